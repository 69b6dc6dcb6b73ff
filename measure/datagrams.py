"""The transport `limit`: the same datagrams, without any protocol.

Rank r sends as many datagrams as a sum of the tensor would (24 bytes of header, 4 bytes an element) to rank r+1 and receives as
many from rank r-1, both at once from one thread, in runs of UDP_SEGMENT and UDP_GRO as host_agent/transport.py does. Nothing is
added, converted, acknowledged or sent again. So it tells what a path can carry at best, and what carrying costs.

A rank is at most WINDOW datagrams ahead of what it has received, as many as an ordinary job has slots. Around the ring no
receive buffer holds more than ranks * WINDOW of them. What gets lost all the same is counted; SILENCE_NS ends the wait for it,
and is not timed.
"""

from __future__ import annotations

import socket

import numba as nb
import numpy as np

from switchsum.host_agent.udp_batches import (
    SEGMENTS,
    SOL_UDP,
    UDP_GRO,
    ReceiveBatch,
    clock_gettime,
    poll,
    recvmmsg,
    segment_control,
    segments_a_call,
    sendmsg,
    set_buffers,
)
from switchsum.p4src.layout import HEADER_BYTES

WINDOW = 256
SILENCE_NS = 250_000_000
RECEIVE_BUFFER = 32 << 20

_CLOCK_MONOTONIC = 1
_MSG_DONTWAIT = 0x40
_POLLIN, _POLLOUT = 1, 4
_TAG_WORD = 4  # where the header has the collective's tag


@nb.njit(cache=True, nogil=True)
def _now(timespec):
    clock_gettime(_CLOCK_MONOTONIC, timespec.ctypes.data)
    return timespec[0] * 1_000_000_000 + timespec[1]


@nb.njit(cache=True, nogil=True)
def _receive(fd, buffer, headers, controls, datagram_bytes, tag):
    """Take what is there, one batch; returns how many datagrams of this exchange it held, -1 if there was nothing at all."""
    stride = headers.shape[1]
    for i in range(headers.shape[0]):
        headers[i, 5] = np.uint64(controls.shape[1] * 8)  # msg_controllen, which the kernel shortens
    count = recvmmsg(fd, headers.ctypes.data, headers.shape[0], _MSG_DONTWAIT, 0)
    if count <= 0:
        return -1
    found = 0
    for i in range(count):
        length = np.int64(headers[i, stride - 1] & np.uint64(0xFFFFFFFF))
        segment = length
        if headers[i, 5] >= np.uint64(20) and controls[i, 1] == np.uint64((UDP_GRO << 32) | SOL_UDP):
            segment = np.int64(controls[i, 2] & np.uint64(0xFFFFFFFF))
        if segment != datagram_bytes:
            continue
        start = 0
        while start + segment <= length:
            if buffer[i, start // 4 + _TAG_WORD] == tag:
                found += 1
            start += segment
    return found


@nb.njit(cache=True, nogil=True)
def _exchange(
    out_fd, in_fd, total, window, silence_ns, tag, datagram_bytes, segmentation,
    buffer, headers, controls, iovec, control, message, timespec, polled,
):  # fmt: skip
    """Send and receive `total` datagrams each; returns (datagrams received, ns of silence that were waited out)."""
    sent = 0
    got = 0
    forgiven = 0  # lost ones, for which the window must not wait
    silent = 0
    last = _now(timespec)
    while sent < total or got + forgiven < total:
        moved = False
        run = min(segmentation, total - sent)
        if run > 0 and sent - got - forgiven + run <= window:
            iovec[1] = np.uint64(run * datagram_bytes)
            message[5] = np.uint64(24 if run > 1 else 0)
            message[4] = np.uint64(control.ctypes.data) if run > 1 else np.uint64(0)
            if sendmsg(out_fd, message.ctypes.data, _MSG_DONTWAIT) >= 0:
                sent += run
                moved = True
        found = _receive(in_fd, buffer, headers, controls, datagram_bytes, tag)
        if found > 0:
            got += found
            moved = True
        if moved:
            last = _now(timespec)
            continue
        if found == 0:  # only late ones of an earlier exchange
            continue
        events = np.uint64(_POLLIN) << np.uint64(32)
        polled[0] = np.uint64(in_fd) | events
        polls = 1
        run = min(segmentation, total - sent)
        if run > 0 and sent - got - forgiven + run <= window:  # refused: the link's queue is full
            polled[1] = np.uint64(out_fd) | (np.uint64(_POLLOUT) << np.uint64(32))
            polls = 2
        poll(polled.ctypes.data, polls, 1 + silence_ns // 1_000_000)
        now = _now(timespec)
        if now - last >= silence_ns and (polled[0] >> np.uint64(48)) == 0:
            silent += now - last
            last = now
            if sent < total:
                forgiven += max(sent - got - forgiven, 1)
            else:
                break
    return min(got, total), silent


class DatagramRing:
    """One rank's two sockets: towards rank r+1, and for what rank r-1 sends. `address`: local IPv4 address."""

    def __init__(self, address: str, elements: int) -> None:
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._in.bind((address, 0))
        self._out.bind((address, 0))
        set_buffers(self._out, self._in, RECEIVE_BUFFER)
        self._segmentation = segments_a_call(self._out, self._in)
        self._datagram_bytes = HEADER_BYTES + 4 * elements
        self._elements = elements
        self._tag = 0
        self.sent = self.received = 0  # datagrams so far
        self.lost = 0
        self._packets = np.zeros((SEGMENTS, self._datagram_bytes // 4), np.uint32)
        self._batch = ReceiveBatch()
        self._iovec = np.array([self._packets.ctypes.data, 0], np.uint64)
        self._control = segment_control(self._datagram_bytes)
        self._message = np.zeros(7, np.uint64)
        self._message[2], self._message[3] = self._iovec.ctypes.data, 1
        self._timespec = np.zeros(2, np.int64)
        self._polled = np.zeros(2, np.uint64)

    @property
    def ports(self) -> tuple[int, int]:
        """UDP ports: to receive at, and that we send from."""
        return self._in.getsockname()[1], self._out.getsockname()[1]

    def connect(self, following: tuple[str, int], preceding: tuple[str, int]) -> None:
        """Where rank r+1 receives, and where rank r-1 sends from; nobody else is heard."""
        self._out.connect(following)
        self._in.connect(preceding)

    def datagrams(self, count: int) -> int:
        """How many a sum of `count` numbers takes (16-bit floats travel as 32-bit numbers, too)."""
        return -(-count // self._elements)

    def exchange(self, total: int, window: int = WINDOW, silence_ns: int = SILENCE_NS) -> int:
        """Send and receive `total` datagrams each, without the GIL; returns ns that silence took at the end, for lost ones."""
        self._tag = (self._tag + 1) & 0xFFFFFFFF
        self._packets[:, _TAG_WORD] = self._tag
        got, silent = _exchange(
            self._out.fileno(),
            self._in.fileno(),
            total,
            window,
            silence_ns,
            self._tag,
            self._datagram_bytes,
            self._segmentation,
            self._batch.buffer,
            self._batch.headers,
            self._batch.controls,
            self._iovec,
            self._control,
            self._message,
            self._timespec,
            self._polled,
        )
        self.sent += total
        self.received += got
        self.lost += total - got
        return int(silent)

    @property
    def payload_bytes(self) -> tuple[int, int]:
        """UDP payload sent and received so far."""
        return self.sent * self._datagram_bytes, self.received * self._datagram_bytes

    def close(self) -> None:
        self._in.close()
        self._out.close()


def prepare() -> None:
    """Compile once on a machine: numba keeps the result. Call it before workers start side by side."""
    ring = DatagramRing("127.0.0.1", 64)
    own, source = ring.ports
    ring.connect(("127.0.0.1", own), ("127.0.0.1", source))
    ring.exchange(1)
    ring.close()
