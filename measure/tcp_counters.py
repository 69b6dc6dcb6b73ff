"""What this process's TCP connections carried, and sent again, as the kernel counts it (struct tcp_info, linux/tcp.h)."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_INFO_BYTES = 256
_RETRANSMITTED = (100, "=I")  # tcpi_total_retrans: segments
_BYTES = (120, "=QQ")  # tcpi_bytes_acked, tcpi_bytes_received (Linux 4.1)


@dataclass(frozen=True)
class TcpCounters:
    """Payload bytes, and segments sent again, over all connections that are open now."""

    sent: int
    received: int
    retransmitted: int


def read() -> TcpCounters:
    """Of this process, all its connections together."""
    sent = received = retransmitted = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with duplicate:
            if duplicate.type != socket.SOCK_STREAM or duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            acknowledged, arrived = struct.unpack_from(_BYTES[1], info, _BYTES[0])
            sent += acknowledged
            received += arrived
            retransmitted += struct.unpack_from(_RETRANSMITTED[1], info, _RETRANSMITTED[0])[0]
    return TcpCounters(sent, received, retransmitted)
