"""UDP sockets for whole batches: buffers, segmentation and receive offload, and the memory that recvmmsg fills.

Numbers of socket options and layouts of msghdr and cmsghdr are Linux's on 64-bit machines (linux/udp.h, bits/socket.h).
"""

from __future__ import annotations

import errno
import socket
import struct

import numpy as np
import numpy.typing as npt
from numba.core import types

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_RCVBUFFORCE = 33

RECEIVE_MESSAGES = 16  # recvmmsg batch; with GRO each may hold 60 packets
RECEIVE_BYTES = 65536
SEGMENTS = 60  # packets a UDP_SEGMENT call: 60 x 1048 bytes stay below the 65,507 of one datagram
# Smaller than what a shaped link's queue holds, so that a full queue blocks (or refuses) instead of losing packets.
SEND_BUFFER = 128 << 10
RECEIVE_BUFFER = 8 << 20

recvmmsg = types.ExternalFunction("recvmmsg", types.int32(types.int32, types.uintp, types.uint32, types.int32, types.uintp))
sendmsg = types.ExternalFunction("sendmsg", types.int64(types.int32, types.uintp, types.int32))
poll = types.ExternalFunction("poll", types.int32(types.uintp, types.uint64, types.int32))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


class ReceiveBatch:
    """What one recvmmsg fills.

    buffer: uint32[RECEIVE_MESSAGES, RECEIVE_BYTES / 4]; controls: uint64[RECEIVE_MESSAGES, 8], segment sizes among it;
    headers: uint64[RECEIVE_MESSAGES, 8], struct mmsghdr (msghdr in 7 words, msg_len).
    """

    def __init__(self) -> None:
        self.buffer = np.zeros((RECEIVE_MESSAGES, RECEIVE_BYTES // 4), np.uint32)
        self.controls = np.zeros((RECEIVE_MESSAGES, 8), np.uint64)
        self.headers = np.zeros((RECEIVE_MESSAGES, 8), np.uint64)
        self._vectors = np.zeros((RECEIVE_MESSAGES, 2), np.uint64)  # kept alive: the headers point into it
        for i in range(RECEIVE_MESSAGES):
            self._vectors[i] = (self.buffer[i].ctypes.data, RECEIVE_BYTES)
            self.headers[i, 2] = self._vectors[i].ctypes.data
            self.headers[i, 3] = 1
            self.headers[i, 4] = self.controls[i].ctypes.data


def set_buffers(sender: socket.socket, receiver: socket.socket, receive_bytes: int) -> None:
    """SEND_BUFFER for the one, `receive_bytes` for the other, beyond net.core.rmem_max where we may."""
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, receive_bytes)
    except PermissionError:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)


def segments_a_call(sender: socket.socket, receiver: socket.socket) -> int:
    """Turn on UDP_GRO; how many packets a call may send: SEGMENTS, or 1 where the kernel lacks UDP_SEGMENT (Linux 4.18) or
    UDP_GRO (5.0)."""
    try:
        sender.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
        receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise
        return 1
    return SEGMENTS


def segment_control(segment_bytes: int) -> npt.NDArray[np.uint64]:
    """struct cmsghdr that asks for UDP_SEGMENT: length 18, level, type, then the segment size as u16; uint64[3]."""
    return np.frombuffer(struct.pack("=QiiQ", 18, SOL_UDP, UDP_SEGMENT, segment_bytes), np.uint64).copy()
