"""Packets of any length and content: no crash, no byte written where none belongs, nothing left over for the next packet."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchsum.softswitch.dataplane import Dataplane, Program
from switchsum.softswitch.hashes import input_bytes
from switchsum.softswitch.layout import MAX_LOOPS, PHV_COUNT
from switchsum.softswitch.tables import Exact, KeyField, Lpm, Match, Range, Table, Ternary
from tests.softswitch.bmv2_json import argument, assign, const, field, op, program
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
    """A header cut anywhere is a parser error, never a read beyond the end: the bytes behind the cut do not matter.

    Without the parser's length check the first test of this file ends in a crash.
    """
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


def test_an_action_that_loops_for_ever_is_stopped() -> None:
    """p4c compiles for loops in actions to backward jumps. Hand-written, because p4c refuses this one."""
    again = {"op": "_jump", "parameters": [const(0)]}
    more = assign(field("h", "n"), op("+", field("h", "n"), const(1)))
    dataplane = Dataplane(Program.from_text(json.dumps(program({"h": [["n", 64]]}, [more, again], ["h"]))))
    [(_, data)] = dataplane.process(0, bytes(8))
    assert int.from_bytes(data, "big") == MAX_LOOPS + 1
    assert dataplane.statistics["loops_stopped"] == 1


def test_an_action_that_loops_a_while_ends_by_itself() -> None:
    """n = n / 2 while n != 0; counts its rounds."""
    loop = [
        {"op": "_jump_if_zero", "parameters": [field("h", "n"), const(4)]},
        assign(field("h", "n"), op(">>", field("h", "n"), const(1))),
        assign(field("h", "rounds"), op("+", field("h", "rounds"), const(1))),
        {"op": "_jump", "parameters": [const(0)]},
    ]
    document = program({"h": [["n", 32], ["rounds", 8]]}, loop, ["h"])
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    for value in (0, 1, 2, 1000, 2**32 - 1):
        [(_, data)] = dataplane.process(0, value.to_bytes(4, "big") + b"\0")
        assert data == bytes(4) + bytes([value.bit_length()])
    assert dataplane.statistics["loops_stopped"] == 0


def test_a_parser_that_loops_for_ever_is_stopped() -> None:
    document = program({"h": [["n", 8]]}, [], ["h"])
    [state] = document["parsers"][0]["parse_states"]
    state["parser_ops"] = []
    state["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": "start"}]
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    assert dataplane.process(0, b"abc") == [(0, b"abc")]
    assert dataplane.statistics["parser_errors"] == 1


def test_stack_elements_at_run_time_indexes() -> None:
    """Hand-written, because p4c turns most run-time indexes into conditions: out of range reads 0 and writes nothing."""
    document = program(
        {"c": [["i", 8], ["v", 16]], "s0": [["a", 8], ["b", 16]], "s1": [["a", 8], ["b", 16]]}, [], ["c", "s0", "s1"]
    )
    document["header_types"][4]["name"] = document["headers"][3]["header_type"]
    document["headers"][4]["header_type"] = document["headers"][3]["header_type"]
    document["header_stacks"] = [{"name": "s", "id": 0, "header_type": "s0_t", "header_ids": [3, 4]}]
    element = op("dereference_header_stack", {"type": "header_stack", "value": "s"}, field("c", "i"))
    place = {"type": "expression", "value": {"op": "access_field", "left": element, "right": 1}}
    document["actions"][0]["primitives"] = [
        assign(argument(place), op("+", place, const(1))),
        assign(field("c", "v"), place),
    ]
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    for index, expected in ((0, (6, [6, 7])), (1, (8, [5, 8])), (2, (0, [5, 7])), (255, (0, [5, 7]))):
        [(_, data)] = dataplane.process(0, bytes([index, 0, 0, 1, 0, 5, 2, 0, 7]))
        value, first, second = (int.from_bytes(data[i : i + 2], "big") for i in (1, 4, 7))
        assert (value, [first, second]) == expected
