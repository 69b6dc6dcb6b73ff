"""The loop between the engine and a UDP socket, compiled and without the GIL (DESIGN section 5).

One call of `run` receives whole batches (UDP_GRO, recvmmsg), hands each datagram to the engine, lets the engine's timers
fire and sends what it wants sent (UDP_SEGMENT where packets of one length follow each other), until there is something to
tell Python: a finished collective, a failure, or a wake-up through the eventfd. No Python object is touched meanwhile, so a
busy Python thread of the trainer does not slow packets down.

The layouts of the kernel's structures are in udp_batches.py.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from switchsum.host_agent import engine as _engine
from switchsum.host_agent.errors import TransportError
from switchsum.host_agent.udp_batches import (
    RECEIVE_BUFFER,
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

if TYPE_CHECKING:
    from switchsum.host_agent.engine import Engine

LONGEST_POLL_NS = 100_000_000  # how long a stop request can go unnoticed if a wake-up were lost
LONGEST_RUN_NS = 100_000_000  # a caller that drives itself must get to Python now and then, for Ctrl-C

_read = types.ExternalFunction("read", types.int64(types.int32, types.uintp, types.uint64))

_PYTHON, _WAIT, _RECEIVE, _PARSE = (_engine.STAGES.index(stage) for stage in ("python", "wait", "receive", "parse"))
_TIMERS, _SEND = (_engine.STAGES.index(stage) for stage in ("timers", "send"))

_CLOCK_MONOTONIC = 1
_MSG_DONTWAIT = 0x40
_POLLIN = 1


@intrinsic
def _borrowed(typingctx, array):
    """The same array without a reference to its memory, which whoever called `_run` keeps.

    numba counts references at every view and call, with atomic instructions: a fifth of the time of a packet.
    """

    def codegen(context, builder, signature, arguments):
        borrowed = context.make_array(array)(context, builder, arguments[0])
        borrowed.meminfo = ir.Constant(borrowed.meminfo.type, None)
        borrowed.parent = ir.Constant(borrowed.parent.type, None)
        return borrowed._getvalue()

    return array(array), codegen


@nb.njit(cache=True, nogil=True)
def _now(timespec):
    clock_gettime(_CLOCK_MONOTONIC, timespec.ctypes.data)
    return timespec[0] * 1_000_000_000 + timespec[1]


@nb.njit(cache=True, nogil=True)
def _send(fd, shared, slots, packets, outbox, iovecs, control, message, segmentation):
    """Send what the outbox names, longest runs of equal length at a time. A refused packet counts as lost on the way."""
    sent = 0
    row_bytes = packets.shape[1] * 4
    base = np.uint64(packets.ctypes.data)
    while sent < shared.outbox:
        length = slots[outbox[sent]].length
        count = 0
        pieces = 0
        end = np.uint64(0)
        while count < segmentation and sent + count < shared.outbox and slots[outbox[sent + count]].length == length:
            index = outbox[sent + count]
            at = base + np.uint64(index * row_bytes)
            if at == end:  # slots are mostly answered in order, and their packets lie side by side: fewer pieces for the kernel
                iovecs[2 * pieces - 1] += np.uint64(length)
            else:
                iovecs[2 * pieces] = at
                iovecs[2 * pieces + 1] = np.uint64(length)
                pieces += 1
            end = at + np.uint64(length)
            slots[index].queued = 0
            count += 1
        message[2] = np.uint64(iovecs.ctypes.data)
        message[3] = np.uint64(pieces)
        if count > 1:
            control[2] = np.uint64(length)
            message[4] = np.uint64(control.ctypes.data)
            message[5] = np.uint64(24)
        else:
            message[4] = np.uint64(0)
            message[5] = np.uint64(0)
        sendmsg(fd, message.ctypes.data, 0)
        shared.packets_sent += count
        shared.bytes_sent += count * length
        sent += count
    shared.outbox = 0


@nb.njit(cache=True, nogil=True)
def _receive(fd, shared, slots, collectives, packets, kept, outbox, finished, buffer, headers, controls, now):
    """Take one batch from the socket; returns the number of messages."""
    stride = headers.shape[1]
    for i in range(headers.shape[0]):
        headers[i, 5] = np.uint64(controls.shape[1] * 8)  # msg_controllen, which the kernel shortens
    count = recvmmsg(fd, headers.ctypes.data, headers.shape[0], _MSG_DONTWAIT, 0)
    _engine.lap(shared, _RECEIVE)
    for i in range(count):
        length = np.int64(headers[i, stride - 1] & np.uint64(0xFFFFFFFF))
        segment = length
        if headers[i, 5] >= np.uint64(20) and controls[i, 1] == np.uint64((UDP_GRO << 32) | SOL_UDP):
            segment = np.int64(controls[i, 2] & np.uint64(0xFFFFFFFF))
        start = 0
        while start < length:
            piece = min(segment, length - start)
            if start & 3 == 0:
                words = buffer[i, start // 4 :]
                _engine.receive(shared, slots, collectives, packets, kept, outbox, finished, words, piece, now)
            else:  # ours are multiples of four bytes; a segment that begins elsewhere is foreign
                shared.foreign += 1
            if shared.failure != 0:
                return count
            start += max(segment, 1)
    return count


@nb.njit(cache=True, nogil=True)
def _loop(
    shareds, slots, collectives, packets, kept, outbox, finished,
    fd, wake_fd, buffer, headers, controls, iovecs, control, message, segmentation, timespec, polled,
):  # fmt: skip
    shared = shareds[0]
    _engine.lap(shared, _PYTHON)
    began = _now(timespec)
    while True:
        now = _now(timespec)
        if now - began > LONGEST_RUN_NS:
            return
        count = _receive(fd, shared, slots, collectives, packets, kept, outbox, finished, buffer, headers, controls, now)
        _engine.lap(shared, _PARSE)
        _engine.tick(shared, slots, packets, outbox, now)
        _engine.lap(shared, _TIMERS)
        if shared.outbox > 0:
            _send(fd, shared, slots, packets, outbox, iovecs, control, message, segmentation)
            _engine.lap(shared, _SEND)
        if shared.finished > 0 or shared.failure != 0:
            return
        if count > 0:
            polled[0] = np.uint64(wake_fd) | (np.uint64(_POLLIN) << np.uint64(32))
            if poll(polled.ctypes.data, 1, 0) > 0:
                _read(wake_fd, polled.ctypes.data, 8)
                return
            continue
        wait = LONGEST_POLL_NS
        if shared.active > 0:
            wait = min(max(shared.next_timer - now, 0), LONGEST_POLL_NS)
        polled[0] = np.uint64(wake_fd) | (np.uint64(_POLLIN) << np.uint64(32))
        polled[1] = np.uint64(fd) | (np.uint64(_POLLIN) << np.uint64(32))
        interrupted = poll(polled.ctypes.data, 2, (wait + 999_999) // 1_000_000) < 0
        _engine.lap(shared, _WAIT)
        if interrupted:
            return
        if (polled[0] >> np.uint64(48)) != 0:
            _read(wake_fd, polled.ctypes.data, 8)  # here, not in Python, where a system call gives the GIL away
            return


@nb.njit(cache=True, nogil=True)
def _run(
    shareds, slots, collectives, packets, kept, outbox, finished,
    fd, wake_fd, buffer, headers, controls, iovecs, control, message, segmentation, timespec, polled,
):  # fmt: skip
    _loop(
        _borrowed(shareds), _borrowed(slots), _borrowed(collectives), _borrowed(packets), _borrowed(kept), _borrowed(outbox),
        _borrowed(finished), fd, wake_fd, _borrowed(buffer), _borrowed(headers), _borrowed(controls), _borrowed(iovecs),
        _borrowed(control), _borrowed(message), segmentation, _borrowed(timespec), _borrowed(polled),
    )  # fmt: skip


class Transport:
    """A UDP socket and the loop that joins it to an engine.

    The socket is bound at construction, because the controller must know its port before an engine can exist.
    `address`: local IPv4 address, "" for any.
    """

    def __init__(self, address: str = "") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind((address, 0))
        except OSError as error:
            self._socket.close()
            raise TransportError(
                f"cannot bind a UDP socket to {address or 'any address'} ({error.strerror}); "
                "SWITCHSUM_DATA_ADDRESS must be an IPv4 address of this host"
            ) from error
        set_buffers(self._socket, self._socket, RECEIVE_BUFFER)
        self._segmentation = segments_a_call(self._socket, self._socket)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._batch = ReceiveBatch()
        self._iovecs = np.zeros(2 * SEGMENTS, np.uint64)
        self._control = segment_control(0)  # the size changes from run to run
        self._message = np.zeros(7, np.uint64)
        self._timespec = np.zeros(2, np.int64)
        self._polled = np.zeros(2, np.uint64)

    @property
    def local_port(self) -> int:
        """UDP port that the socket is bound to."""
        return int(self._socket.getsockname()[1])

    def connect(self, address: str, port: int) -> None:
        """Speak to the switch at `address:port`, and hear nobody else. Raises TransportError if there is no way."""
        try:
            self._socket.connect((address, port))
        except OSError as error:
            raise TransportError(
                f"there is no way from this host to the switch at {address}:{port} ({error.strerror}); see `ip route get "
                f"{address}`, and SWITCHSUM_DATA_ADDRESS"
            ) from None

    def run(self, engine: Engine) -> None:
        """Move packets until a collective finishes, the engine fails, `wake` is called, a signal comes, or LONGEST_RUN_NS are
        over. Holds no GIL meanwhile."""
        _run(
            *engine.state,
            self._socket.fileno(),
            self._wake,
            self._batch.buffer,
            self._batch.headers,
            self._batch.controls,
            self._iovecs,
            self._control,
            self._message,
            self._segmentation,
            self._timespec,
            self._polled,
        )

    def wake(self) -> None:
        """Make `run` return soon; from any thread."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close socket and eventfd. `run` must have returned."""
        self._socket.close()
        os.close(self._wake)


def now_ns() -> int:
    """The clock that `Transport.run` uses: CLOCK_MONOTONIC, ns."""
    return time.monotonic_ns()
