"""Packets of any length and content: no crash, no byte written where none belongs, nothing left over for the next packet."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.hashes import input_bytes
from switchsum.softswitch.layout import PHV_COUNT
from switchsum.softswitch.tables import Exact, KeyField, Lpm, Match, Range, Table, Ternary
from tests.softswitch.conftest import PROGRAMS, compiled

NAMES = sorted(path.stem for path in Path(PROGRAMS).glob("*.json"))
GUARD = 64
LENGTHS = [0, 1, 2, 13, 14, 15, 33, 34, 50, 63, 64, 65, 300, 1500, 9000, 65535]


class Guards:
    """Moves all memory that native code writes (but for its own output) between bytes of a known pattern."""

    PATTERN = 0xC3

    def __init__(self, dataplane: Dataplane) -> None:
        self._blocks: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        words = dataplane._words
        self._context = dataplane._context
        layout = dataplane.program.native.layout
        self._move("phv", words["phv"], PHV_COUNT * layout.size)
        self._move("scratch", words["scratch"], input_bytes(dataplane.program))
        for memory in dataplane._memories:
            moved = self._move(f"registers {memory.group.index}", words[f"group:{memory.group.index}"], memory.group.bytes)
            memory.bytes = moved
        for counter in dataplane.counters.values():
            self._move(counter.name, words[f"counter:{counter.name}"], 16 * counter.size)

    def _move(self, name: str, word: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        block = np.full(size + 2 * GUARD + 64, self.PATTERN, np.uint8)
        start = -block.ctypes.data % 64 + GUARD
        inside = block[start : start + size]
        inside[:] = 0
        self._context[word] = inside.ctypes.data
        self._blocks[name] = block
        self._blocks[f"{name} inside"] = inside
        return inside

    def broken(self) -> list[str]:
        """Names of the blocks around which something was written."""
        result = []
        for name, block in self._blocks.items():
            if name.endswith(" inside"):
                continue
            inside = self._blocks[f"{name} inside"]
            outside = block.size - inside.size
            if int((block == self.PATTERN).sum()) - int((inside == self.PATTERN).sum()) != outside:
                result.append(name)
        return result


def random_match(rng: random.Random, key: KeyField) -> Match:
    value = rng.choice([0, (1 << key.width) - 1, rng.getrandbits(key.width)])
    if key.match == "exact":
        return Exact(value)
    if key.match == "lpm":
        prefix = rng.randint(0, key.width)
        return Lpm(value >> (key.width - prefix) << (key.width - prefix), prefix)
    if key.match == "range":
        return Range(min(value, 1), max(value, 1))
    mask = rng.choice([0, (1 << key.width) - 1])
    return Ternary(value & mask, mask)


def fill(table: Table, rng: random.Random) -> None:
    """Up to 30 random entries."""
    if table.is_const or not table.keys:
        return
    for n in range(30):
        name = rng.choice(sorted(table.actions))
        params = [rng.getrandbits(width) for _, width in table.actions[name].params]
        key = tuple(random_match(rng, k) for k in table.keys)
        if all(e.key != key for e in table.entries()):
            table.insert(key, n + 1 if table.has_priority else 0, name, params)


def random_frame(rng: random.Random) -> bytes:
    """Small first bytes reach more branches; the rest is noise, or all ones, or zeros."""
    length = rng.choice([*LENGTHS, rng.randint(0, 400), rng.randint(0, 400)])
    body = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
    head = bytes(rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 255]) for _ in range(4))
    return (head + body)[:length]


@pytest.mark.parametrize("name", NAMES)
def test_random_packets_harm_nothing(name: str) -> None:
    """Guard bytes around header vectors, scratch space, registers, counters and input stay as they were; two dataplanes with

    the same seed and the same packets agree byte for byte, so that no uninitialized memory shows.
    """
    first, second = Dataplane(compiled(name), 5), Dataplane(compiled(name), 5)
    for dataplane in (first, second):
        rng = random.Random(name)
        for table in dataplane.tables.values():
            fill(table, rng)
        dataplane.multicast_groups.insert(1, [(1, 1), (2, 13), (3, 3)])
        dataplane.clone_sessions.insert(1, [(4, 4)], 20)
    guards = Guards(first)
    rng = random.Random(name)
    for _ in range(12):
        frames = [random_frame(rng) for _ in range(25)]
        before = b"".join(frames)
        buffer = np.full(len(before) + 2 * GUARD, 0xA5, np.uint8)
        buffer[GUARD:-GUARD] = np.frombuffer(before, np.uint8)
        lengths = np.array([len(f) for f in frames], np.int32)
        offsets = GUARD + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        ports = np.array([rng.choice([0, 1, 511, 2**31 - 1]) for _ in frames], np.int32)
        batch = first.process_batch(ports, offsets, lengths, buffer, 7)
        expected = [out for p, f in zip(ports, frames, strict=True) for out in second.process(int(p), f, 7)]
        assert batch.frames() == expected
        assert buffer[GUARD:-GUARD].tobytes() == before
        assert (buffer[:GUARD] == 0xA5).all()
        assert (buffer[-GUARD:] == 0xA5).all()
        assert guards.broken() == []
    assert first.statistics == second.statistics
    assert first.statistics["packets_in"] == 300


@pytest.mark.parametrize("name", NAMES)
def test_every_prefix_of_a_packet(name: str) -> None:
    """A header cut anywhere is a parser error, never a read beyond the end: the bytes behind the cut do not matter."""
    dataplane = Dataplane(compiled(name))
    whole = bytes([1, 1, 0, 1] * 3 + [0x45, 17, 0x80, 0] * 40)
    for length in range(len(whole)):
        outputs = []
        for filler in (0x00, 0xFF):
            dataplane.reset_state()
            buffer = np.full(length + 400, filler, np.uint8)
            buffer[:length] = np.frombuffer(whole[:length], np.uint8)
            one = np.ones(1, np.int32)
            outputs.append(dataplane.process_batch(one, one.astype(np.int64) * 0, one * length, buffer).frames())
        assert outputs[0] == outputs[1]
