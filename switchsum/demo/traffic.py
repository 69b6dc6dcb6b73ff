"""What this process's TCP connections carried, as the kernel counts it: how Gloo's bytes are measured, not assumed."""

from __future__ import annotations

import os
import socket
import struct

# struct tcp_info (linux/tcp.h): tcpi_bytes_acked and tcpi_bytes_received, both u64, lie at byte 120 (kernel 4.1 and later)
_BYTES_OFFSET = 120
_BYTES_FORMAT = "=QQ"
_INFO_BYTES = 256


def tcp_bytes() -> tuple[int, int]:
    """Payload bytes (sent and acknowledged, received) over all TCP connections that this process has open now."""
    sent = received = 0
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
            acknowledged, arrived = struct.unpack_from(_BYTES_FORMAT, info, _BYTES_OFFSET)
            sent += acknowledged
            received += arrived
    return sent, received
