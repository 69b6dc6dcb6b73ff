"""What this process's TCP connections carried, and sent again, as the kernel counts it (struct tcp_info, linux/tcp.h)."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from dataclasses import astuple, dataclass

_getsockopt = ctypes.CDLL(None).getsockopt
_getsockopt.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32)]

_INFO_BYTES = 256
_RETRANSMITTED = (100, "=I")  # tcpi_total_retrans: segments
_RECEIVED = (128, "=Q")  # tcpi_bytes_received (Linux 4.1)
_SENT = (200, "=QQ")  # tcpi_bytes_sent, which counts again what is sent again, and tcpi_bytes_retrans (Linux 4.19)


@dataclass(frozen=True)
class TcpCounters:
    """Payload bytes, each once; segments sent again, and their bytes."""

    sent: int = 0
    received: int = 0
    retransmitted: int = 0
    retransmitted_bytes: int = 0

    def __add__(self, other: TcpCounters) -> TcpCounters:
        return TcpCounters(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


class _Tally:
    """Connections by the inode of their socket, so that one that closes keeps what it had counted when it was last seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone = TcpCounters()
        self._open: dict[int, TcpCounters] = {}

    def read(self) -> TcpCounters:
        with self._lock:
            now = _connections()
            for inode, before in self._open.items():
                if inode not in now or now[inode].received < before.received or now[inode].sent < before.sent:
                    self._gone += before  # closed; the kernel may give its number to another one
            self._open = now
            return sum(now.values(), self._gone)


_TALLY = _Tally()


def read() -> TcpCounters:
    """Of this process, all its connections together, with those that have closed since an earlier call saw them.

    What a connection carries between the last call and its end is missing.
    """
    return _TALLY.read()


def _connections() -> dict[int, TcpCounters]:
    """By socket. Asked by its number, without a duplicate that would keep a connection open while its owner closes it."""
    found = {}
    info, length = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint32()
    for name in os.listdir("/proc/self/fd"):
        length.value = _INFO_BYTES
        try:
            inode = os.fstat(int(name)).st_ino
        except OSError:  # closed meanwhile
            continue
        if _getsockopt(int(name), socket.IPPROTO_TCP, socket.TCP_INFO, info, length):
            continue  # no connection of TCP, or none any more
        [segments], [arrived], (sent, again) = (
            struct.unpack_from(form, info, offset) for offset, form in (_RETRANSMITTED, _RECEIVED, _SENT)
        )
        found[inode] = TcpCounters(sent - again, arrived, segments, again)
    return found
