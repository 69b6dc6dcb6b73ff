"""What both kinds of ports do with sockets: the system calls, for compiled code, and the frame of the sending side."""

import socket
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from switchsum.softswitch.packets import Departures

PORT_NUMBERS = 512  # v1model's ports have nine bits
PORT_COUNTS = 4  # of each port: packets and bytes received, packets and bytes sent

poll = nb.types.ExternalFunction("poll", nb.int32(nb.intp, nb.uint64, nb.int32))
recvmmsg = nb.types.ExternalFunction("recvmmsg", nb.int32(nb.int32, nb.intp, nb.uint32, nb.int32, nb.intp))
sendmmsg = nb.types.ExternalFunction("sendmmsg", nb.int32(nb.int32, nb.intp, nb.uint32, nb.int32))
errno_location = nb.types.ExternalFunction("__errno_location", nb.types.CPointer(nb.int32)())

WOKEN = -1  # `Intake.receive` was woken up to end
_POLLIN = 1


@nb.njit(nb.int64(nb.int32[:, ::1]), cache=True, nogil=True)
def wait_for_input(polls):  # type: ignore[no-untyped-def]
    """Wait until a socket has something: 1, 0 after a signal, WOKEN if it is the last. polls: pollfd (see datagrams)."""
    for index in range(len(polls)):
        polls[index, 1] = _POLLIN
    if poll(polls.ctypes.data, len(polls), -1) < 0:
        return 0
    return WOKEN if polls[len(polls) - 1, 1] >> 16 else 1


def make_counts(names: type[IntEnum]) -> npt.NDArray[np.int64]:
    """What the compiled code counts in: one for each of `names`, then PORT_COUNTS for each port number."""
    return np.zeros(len(names) + PORT_COUNTS * PORT_NUMBERS, np.int64)


def traffic_of(counts: npt.NDArray[np.int64], names: type[IntEnum]) -> npt.NDArray[np.int64]:
    """The ports' part of such counts, in rows of PORT_COUNTS."""
    return counts[len(names) :].reshape(PORT_NUMBERS, PORT_COUNTS)


class SocketOutlet:
    """The sending side of all ports of a switch; the subclass has the compiled code."""

    _native: Callable[..., Any]  # (packets, records, data, descriptors by port number, offload, counts)

    def __init__(
        self, sockets: Mapping[int, socket.socket], counts: npt.NDArray[np.int64], offload: npt.NDArray[np.int32]
    ) -> None:
        """`sockets` by port number; `counts`: of make_counts; `offload`: as the compiled code has it."""
        self._descriptors = np.full(PORT_NUMBERS, -1, np.int32)
        for number, opened in sockets.items():
            self._descriptors[number] = opened.fileno()
        self._counts = counts
        self._offload = offload

    def send(self, leaving: Departures) -> None:
        """Send every packet from the socket of its port."""
        if leaving.count:
            self._native(leaving.count, leaving.records, leaving.data, self._descriptors, self._offload, self._counts)
