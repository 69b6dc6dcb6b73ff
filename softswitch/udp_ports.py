"""Switch ports made of UDP sockets: no root, no interfaces; the port adds and strips the headers around a datagram.

Port p is one UDP socket, usually on loopback. A datagram that host `a.b.c.d`, UDP port `q`, sends to it enters the
dataplane on port p as

    Ethernet  02:00:a:b:c:d -> 02:53:53:00:00:00 (the switch)
    IPv4      a.b.c.d -> the switch's address, DF, TTL 64, correct header checksum (RFC 791)
    UDP       q -> the service port, checksum 0 (RFC 768: not computed)
    payload   the datagram

and a frame that leaves the dataplane on port p goes, as its UDP payload, from that socket to the frame's IPv4 destination
and UDP destination port. The port learns nothing: what is no sound IPv4/UDP frame for 127.0.0.0/8 is counted by reason and
dropped, as a host's network stack would.

One thread serves all ports: `Intake.receive`, one call into the compiled program, `Outlet.send`. All three release the
GIL.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from switchsum.softswitch import datagrams
from switchsum.softswitch.datagrams import Count

_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int32]
_Longs = npt.NDArray[np.int64]

_SOL_UDP, _UDP_GRO = 17, 104  # linux/udp.h; Python's socket module has no names for them
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SOCKET_BUFFER_BYTES = 16 << 20
_DROP_PORT = 511  # v1model: the egress port of a dropped packet

_log = logging.getLogger(__name__)


class Batch(Protocol):
    """What `process_batch` returns: frame i leaves on ports[i] and is buffer[offsets[i]:][:lengths[i]]."""

    @property
    def ports(self) -> _Ints: ...
    @property
    def offsets(self) -> _Longs: ...
    @property
    def lengths(self) -> _Ints: ...
    @property
    def buffer(self) -> _Bytes: ...


class PacketProcessor(Protocol):
    """The dataplane as the ports see it."""

    def process_batch(self, ports: _Ints, offsets: _Longs, lengths: _Ints, buffer: _Bytes, now_us: int) -> Batch: ...


class UdpPorts:
    """All ports of one switch and the thread that serves them."""

    def __init__(
        self,
        dataplane_provider: Callable[[], PacketProcessor | None],
        ports: dict[int, tuple[str, int]],
        switch_ip: str,
        service_port: int,
        *,
        offload: bool = True,
    ) -> None:
        """Bind one socket for each port: number -> (host, UDP port), UDP port 0 for any free one.

        `dataplane_provider` is asked once for each batch, so a pipeline can be replaced between two batches; None means
        that no pipeline is loaded and packets are counted and dropped. `offload` False avoids UDP_GRO and UDP_SEGMENT.
        Raises OSError naming the port that cannot be bound, ValueError for a bad port number or address.
        """
        if not ports:
            raise ValueError("a switch needs at least one port")
        for number in ports:
            if not 0 <= number < _DROP_PORT:
                raise ValueError(f"port {number}: v1model's ports are 0 to {_DROP_PORT - 1}; {_DROP_PORT} means drop")
        try:
            self._switch_ip = socket.inet_aton(switch_ip)
        except OSError:
            raise ValueError(f"switch address {switch_ip!r} is not an IPv4 address like 10.83.0.1") from None
        if not 0 < service_port < 65536:
            raise ValueError(f"service port {service_port}: 1 to 65535")
        self._provider = dataplane_provider
        self._service_port = service_port
        self._sockets: dict[int, socket.socket] = {}
        try:
            for number, address in sorted(ports.items()):
                self._sockets[number] = _bound_socket(number, address, offload)
        except OSError:
            for opened in self._sockets.values():
                opened.close()
            raise
        self.addresses: dict[int, tuple[str, int]] = {
            number: opened.getsockname()[:2] for number, opened in self._sockets.items()
        }
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._counts: _Longs = np.zeros(len(Count), np.int64)
        self._offload = offload
        self._thread = threading.Thread(target=self._serve, name="udp-ports", daemon=True)

    @property
    def statistics(self) -> dict[str, int]:
        """Packets and bytes received and sent, packets dropped by reason: `datagrams.Count` in lower case."""
        return {count.name.lower(): int(self._counts[count]) for count in Count}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the sockets. May be called more than once, and without start()."""
        if self._thread.ident is not None:
            with contextlib.suppress(OSError):  # closed before
                self._wake_writer.send(b"x")
            self._thread.join()
        for opened in (*self._sockets.values(), self._wake_reader, self._wake_writer):
            opened.close()

    def _serve(self) -> None:
        started_ns = time.monotonic_ns()
        intake = datagrams.Intake(self._sockets, self._wake_reader, self._switch_ip, self._service_port, self._counts)
        outlet = datagrams.Outlet(self._sockets, self._counts, offload=self._offload)
        while (count := intake.receive()) != datagrams.WOKEN:
            if not count:
                continue
            dataplane = self._provider()
            if dataplane is None:
                self._counts[Count.DROPPED_NO_PIPELINE] += count
                continue
            now_us = (time.monotonic_ns() - started_ns) // 1000
            try:
                out = dataplane.process_batch(
                    intake.ports[:count], intake.offsets[:count], intake.lengths[:count], intake.buffer, now_us
                )
                outlet.send(out.ports, out.offsets, out.lengths, out.buffer)
            except Exception:  # a packet must never end the thread: whoever sent it could switch the switch off
                self._counts[Count.INTERNAL_ERRORS] += 1
                _log.exception("a batch of packets was lost")


def _bound_socket(number: int, address: tuple[str, int], offload: bool) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        _enlarge(opened, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(opened, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        if offload:
            with contextlib.suppress(OSError):  # kernels before 5.0: datagrams come one by one
                opened.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        opened.bind(address)
    except (OSError, OverflowError) as error:
        opened.close()
        code = error.errno if isinstance(error, OSError) else None
        raise OSError(code, f"port {number}: cannot bind UDP {address[0]}:{address[1]}: {error}") from None
    return opened


def _enlarge(opened: socket.socket, forced: int, plain: int) -> None:
    """A burst from every worker must fit; without the privilege the kernel's limit has to do."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, forced, _SOCKET_BUFFER_BYTES)
    except OSError:
        opened.setsockopt(socket.SOL_SOCKET, plain, _SOCKET_BUFFER_BYTES)
