"""What the kernel offers to UDP sockets, tried on loopback, and what it grants them."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from switchsum.doctor.findings import Finding, Host, Status

_PACKET_BYTES = 1048  # header and 256 elements
_PACKETS = 3
_PATIENCE_S = 1.0  # on loopback
_MSG_DONTWAIT = 0x40
_ACCEPTABLE_RESOLUTION_S = 1e-6
# Clock sources that are read without a system call.
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "riscv_clocksource")
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_READINGS = 10_000


def release(host: Host) -> Iterator[Finding]:
    """For reports; features are tried below."""
    about = os.uname()
    if about.machine != "x86_64":
        text = f"{about.release} on {about.machine}; tested was x86_64"
        yield Finding("Linux", Status.WARNING, text, "expect the unexpected, or use an x86_64 machine")
    else:
        yield Finding("Linux", Status.FINE, f"{about.release} on {about.machine}")


def offloads(host: Host) -> Iterator[Finding]:
    """UDP_SEGMENT and UDP_GRO: many packets a system call."""
    from switchsum.host_agent.udp_batches import SOL_UDP, UDP_SEGMENT, segments_a_call

    with _pair() as (sender, receiver):
        if segments_a_call(sender, receiver) == 1:
            yield Finding(
                "UDP_SEGMENT, UDP_GRO",
                Status.WARNING,
                f"Linux {os.uname().release} lacks them: one system call for each packet",
                "use Linux 5.0 or later",
            )
            return
        segment = (SOL_UDP, UDP_SEGMENT, struct.pack("=H", _PACKET_BYTES))
        sent = sender.sendmsg([bytes(_PACKETS * _PACKET_BYTES)], [segment])
        sizes: list[int] = []
        while sum(sizes) < sent:
            sizes.append(len(receiver.recv(65536)))
    yield Finding("UDP_SEGMENT, UDP_GRO", Status.FINE, f"{_PACKETS} packets left in one call and arrived in {len(sizes)}")


def batches(host: Host) -> Iterator[Finding]:
    """sendmmsg and recvmmsg, which a sandbox may forbid."""
    libc = ctypes.CDLL(None, use_errno=True)
    with _pair() as (sender, receiver):
        payload = np.zeros(8, np.uint8)
        headers, _vectors = _messages(payload, 2)
        sent = libc.sendmmsg(sender.fileno(), ctypes.c_void_p(headers.ctypes.data), 2, 0)
        problem = os.strerror(ctypes.get_errno()) if sent < 0 else ""
        taken = libc.recvmmsg(receiver.fileno(), ctypes.c_void_p(headers.ctypes.data), 2, _MSG_DONTWAIT, None)
        problem = problem or (os.strerror(ctypes.get_errno()) if taken < 0 else "")
    if problem or (sent, taken) != (2, 2):
        yield Finding(
            "sendmmsg, recvmmsg",
            Status.ERROR,
            f"2 packets on loopback: {sent} were sent, {taken} taken{f' ({problem})' if problem else ''}",
            "run outside the sandbox, or allow both system calls in its seccomp profile",
        )
    else:
        yield Finding("sendmmsg, recvmmsg", Status.FINE, "both work")


def _messages(payload: npt.NDArray[np.uint8], count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """struct mmsghdr[count] (uint64[count, 8]) over one buffer, and the iovec that they point to."""
    vector = np.array([payload.ctypes.data, payload.nbytes], np.uint64)
    headers = np.zeros((count, 8), np.uint64)
    headers[:, 2] = vector.ctypes.data
    headers[:, 3] = 1
    return headers, vector


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two UDP sockets on loopback, the first connected to the second."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(_PATIENCE_S)
        sender.connect(receiver.getsockname())
        yield sender, receiver


def buffers(host: Host) -> Iterator[Finding]:
    """What a rank's data socket asks for, and what it gets."""
    from switchsum.host_agent.udp_batches import RECEIVE_BUFFER

    yield from granted(RECEIVE_BUFFER)


def granted(receive_bytes: int) -> Iterator[Finding]:
    """What the kernel makes of a wish for so large a receive buffer, and of our send buffer."""
    from switchsum.host_agent.udp_batches import SEND_BUFFER, set_buffers

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        set_buffers(opened, opened, receive_bytes)
        # The kernel doubles what is asked for, for its own use.
        sizes = {
            "receive": (opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2, receive_bytes, "rmem_max"),
            "send": (opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2, SEND_BUFFER, "wmem_max"),
        }
    for name, (got, wanted, limit) in sizes.items():
        text = f"{got >> 10} KiB granted of {wanted >> 10} KiB asked for"
        if got < wanted:
            yield Finding(
                f"{name} buffer", Status.WARNING, f"{text}: bursts may be lost", f"sysctl -w net.core.{limit}={wanted}"
            )
        else:
            yield Finding(f"{name} buffer", Status.FINE, text)


def clock(host: Host) -> Iterator[Finding]:
    """CLOCK_MONOTONIC, which every packet's timer reads."""
    resolution_s = time.clock_getres(time.CLOCK_MONOTONIC)
    began = time.perf_counter()
    for _ in range(_READINGS):
        time.monotonic_ns()
    cost_ns = (time.perf_counter() - began) / _READINGS * 1e9
    source = _CLOCKSOURCE.read_text().strip() if _CLOCKSOURCE.exists() else "not told by the kernel"
    text = f"CLOCK_MONOTONIC has {resolution_s * 1e9:g} ns, source {source}, {cost_ns:.0f} ns a reading"
    if resolution_s > _ACCEPTABLE_RESOLUTION_S:
        yield Finding(
            "clock", Status.WARNING, f"{text}: too coarse for round trips", "boot a kernel with high resolution timers"
        )
    elif _CLOCKSOURCE.exists() and source not in _FAST_CLOCKS:
        yield Finding(
            "clock",
            Status.WARNING,
            f"{text}: every reading is a system call",
            f"see {_CLOCKSOURCE.parent}/available_clocksource; if tsc is there, boot with clocksource=tsc",
        )
    else:
        yield Finding("clock", Status.FINE, text)
