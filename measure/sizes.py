"""Sizes of tensors as people write them: binary suffixes, as nccl-tests takes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_NAMES = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
LARGEST_BYTES = 16 << 30


class BadSize(ValueError):
    """A size, or a sweep of sizes, that makes no sense; the text says which and what to write."""


def parse(text: str) -> int:
    """Bytes of "4096", "4K", "64M" or "1G" (1K = 1,024). Raises BadSize."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadSize(f"{text!r} is not a size; write bytes, or a whole number with K, M or G, such as 4K or 64M")
    size = int(match[1]) << _SHIFTS[match[2].lower()]
    if not 1 <= size <= LARGEST_BYTES:
        raise BadSize(f"{text!r} is out of range: 1 byte to {name(LARGEST_BYTES)}")
    return size


def sweep(begin: int, end: int, factor: int) -> list[int]:
    """begin, begin * factor, ... up to and including `end`. Raises BadSize."""
    if factor < 2:
        raise BadSize(f"factor {factor} is no way from one size to the next; it must be at least 2")
    if begin > end:
        raise BadSize(f"the sweep begins at {name(begin)} and ends at {name(end)}, which is less")
    sizes = []
    while begin <= end:
        sizes.append(begin)
        begin *= factor
    return sizes


def name(size: int) -> str:
    """A size for people: "4 KiB", "64 MiB", "1000 B"."""
    for shift, unit in _NAMES:
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"
