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
"""

import contextlib
import socket
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from switchsum.softswitch import datagrams
from switchsum.softswitch.serving import PacketProcessor, Ports, check_port_numbers, enlarge_buffers

_SOL_UDP, _UDP_GRO = 17, 104  # linux/udp.h; Python's socket module has no names for them


class UdpPorts(Ports):
    """All ports of one switch, as UDP sockets."""

    count_names = datagrams.Count

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
        check_port_numbers(list(ports))
        try:
            self._switch_ip = socket.inet_aton(switch_ip)
        except OSError:
            raise ValueError(f"switch address {switch_ip!r} is not an IPv4 address like 10.83.0.1") from None
        if not 0 < service_port < 65536:
            raise ValueError(f"service port {service_port}: 1 to 65535")
        self._service_port = service_port
        self._offload = offload
        sockets: dict[int, socket.socket] = {}
        try:
            for number, address in sorted(ports.items()):
                sockets[number] = _bound_socket(number, address, offload)
        except OSError:
            for opened in sockets.values():
                opened.close()
            raise
        self.addresses: dict[int, tuple[str, int]] = {number: opened.getsockname()[:2] for number, opened in sockets.items()}
        super().__init__(dataplane_provider, sockets)

    def _open(self, wake: socket.socket, counts: npt.NDArray[np.int64]) -> tuple[datagrams.Intake, datagrams.Outlet]:
        intake = datagrams.Intake(self._sockets, wake, self._switch_ip, self._service_port, counts)
        return intake, datagrams.Outlet(self._sockets, counts, offload=self._offload)


def _bound_socket(number: int, address: tuple[str, int], offload: bool) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        enlarge_buffers(opened)
        if offload:
            with contextlib.suppress(OSError):  # kernels before 5.0: datagrams come one by one
                opened.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        opened.bind(address)
    except (OSError, OverflowError) as error:
        opened.close()
        code = error.errno if isinstance(error, OSError) else None
        raise OSError(code, f"port {number}: cannot bind UDP {address[0]}:{address[1]}: {error}") from None
    return opened
