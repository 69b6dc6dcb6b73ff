"""Where processes listen, as the kernel tells it in /proc."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTEN = "0A"  # TCP's state; UDP sockets have none, and are asked for a peer instead
_NOBODY = {"00000000:0000", "0" * 32 + ":0000"}


def family(pid: int) -> set[int]:
    """The process and all that it started, so far as they still live."""
    found = {pid}
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except OSError:
            continue
        for child in children:
            found |= family(int(child))
    return found


def listening(pids: set[int]) -> set[tuple[str, str, int]]:
    """(kind, local address, port) of every TCP listener, of every UDP socket that takes from anybody, and of raw ones."""
    owned = {inode for pid in pids for inode in _inodes(pid)}
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            _, local, peer, state, *_ = fields = line.split()
            open_to_all = state == _LISTEN if kind.startswith("tcp") else peer in _NOBODY
            if open_to_all and fields[9] in owned:
                found.add((kind, str(_address(local.partition(":")[0])), int(local.partition(":")[2], 16)))
    return found


def beyond_loopback(sockets: set[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
    return {each for each in sockets if not ip_address(each[1]).is_loopback}


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(entry.path)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """From the kernel's hexadecimal words in host order."""
    words = b"".join(bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    if len(words) == 4:
        return IPv4Address(words)
    address = IPv6Address(words)
    return address.ipv4_mapped or address
