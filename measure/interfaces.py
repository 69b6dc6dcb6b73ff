"""The network interface that a worker's traffic takes: which one, how fast, what it has carried."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from switchsum.measure.samples import Carried

_SIOCGIFADDR = 0x8915


def namespace() -> int:
    """Tells whether two processes of one machine have the same interfaces: the number of our network namespace."""
    return os.stat("/proc/self/ns/net").st_ino


def of_address(address: str) -> str:
    """The name of the interface that has this IPv4 address; "" if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(opened, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""


def carried(name: str) -> Carried:
    """Since it came up, in the network namespace of the calling process.

    Ethernet headers count; of a run of segments that the kernel carries as one, the headers of the first only.
    """
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        found, _, numbers = line.partition(":")
        if found.strip() == name:
            fields = [int(field) for field in numbers.split()]
            return Carried(fields[8], fields[0], fields[9], fields[1], fields[3] + fields[11])
    return Carried(0, 0)


def rate_bps(name: str) -> int | None:
    """The link's speed as its driver tells it, bits a second; None where it tells none (and for veth, which invents one)."""
    if not Path(f"/sys/class/net/{name}/device").exists():
        return None
    try:
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text())
    except (OSError, ValueError):
        return None
    return speed * 1_000_000 if speed > 0 else None
