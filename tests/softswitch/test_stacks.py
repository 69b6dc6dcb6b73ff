"""Header stacks, validity, copies of headers. Program: programs/stacks.p4."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from switchsum.softswitch.dataplane import Dataplane

Switch = Callable[..., Dataplane]
PUSH1, PUSH3, POP2, WRITE_AT, READ_AT, COPY, COMPARE, COPY_BACK = range(1, 9)

Item = tuple[int, int]  # tag (the last of a stack has 0x80 set), value


def run(dataplane: Dataplane, op: int, items: list[Item], index: int = 0, value: int = 0) -> tuple[int, list[Item]]:
    """(value in the command header, all items that left)"""
    frame = struct.pack(">BBHB", op, index, value, len(items)) + b"".join(struct.pack(">BH", *item) for item in items)
    [(_, data)] = dataplane.process(1, frame)
    _, _, result, _ = struct.unpack(">BBHB", data[:5])
    assert (len(data) - 5) % 3 == 0
    return result, [struct.unpack(">BH", data[i : i + 3]) for i in range(5, len(data), 3)]


def items(count: int) -> list[Item]:
    return [(n + 1 | (0x80 if n == count - 1 else 0), 100 + n) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_push_moves_all_up_and_loses_what_falls_off(switch: Switch, count: int) -> None:
    _, left = run(switch("stacks"), PUSH1, items(count), value=7)
    assert left == [(0, 7), *items(count)[:3]]


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_pushed_headers_are_invalid(switch: Switch, count: int) -> None:
    _, left = run(switch("stacks"), PUSH3, items(count))
    assert left == items(count)[:1]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_pop_moves_all_down(switch: Switch, count: int) -> None:
    _, left = run(switch("stacks"), POP2, items(count))
    assert left == items(count)[2:]


@pytest.mark.parametrize("index", [0, 1, 3])
def test_elements_chosen_at_run_time(switch: Switch, index: int) -> None:
    dataplane = switch("stacks")
    assert run(dataplane, READ_AT, items(4), index)[0] == 100 + index
    _, left = run(dataplane, WRITE_AT, items(4), index, 999)
    assert left == [(tag, 999 if n == index else value) for n, (tag, value) in enumerate(items(4))]


@pytest.mark.parametrize("index", [4, 5, 255])
def test_elements_out_of_range_read_zero_and_write_nothing(switch: Switch, index: int) -> None:
    """P4 leaves both undefined, and p4c may lower the index to a chain of conditions that changes nothing at all."""
    dataplane = switch("stacks")
    assert run(dataplane, WRITE_AT, items(4), index, 999)[1] == items(4)
    value, left = run(dataplane, READ_AT, items(4), index, 5)
    assert left == items(4)
    assert value in (0, 5, 103)


def test_header_copies_take_validity_along(switch: Switch) -> None:
    dataplane = switch("stacks")
    assert run(dataplane, COPY, items(3))[1] == [items(3)[0], items(3)[2], items(3)[1]]
    assert run(dataplane, COPY, items(1))[1] == items(1)
    assert run(dataplane, COPY_BACK, items(3))[1] == [items(3)[1], *items(3)[1:]]
    assert run(dataplane, COPY_BACK, items(1))[1] == []


def test_headers_are_equal_if_valid_and_equal_in_all_fields(switch: Switch) -> None:
    dataplane = switch("stacks")
    assert run(dataplane, COMPARE, [(1, 5), (1, 5), (0x80, 0)])[0] == 1
    assert run(dataplane, COMPARE, [(1, 5), (1, 6), (0x80, 0)])[0] == 0
    assert run(dataplane, COMPARE, [(0x80, 0)])[0] == 0
