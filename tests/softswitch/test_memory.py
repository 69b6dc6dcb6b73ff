"""Registers of any width and indirect counters. Program: programs/memory.p4."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from switchsum.softswitch.dataplane import Dataplane

Switch = Callable[..., Dataplane]
READ, WRITE, ACCUMULATE, SWAP, CONDITIONAL, COUNT = range(6)
SIZE = 1 + 4 + 4 + 4 + 1 + 256


class Fields(NamedTuple):
    v0: int
    v1: int
    narrow: int
    wide: int


def send(dataplane: Dataplane, op: int, index: int, v0: int = 0, v1: int = 0, narrow: int = 0, wide: int = 0) -> Fields:
    frame = bytes([op]) + index.to_bytes(4, "big") + v0.to_bytes(4, "big") + v1.to_bytes(4, "big") + bytes([narrow])
    frame += wide.to_bytes(256, "big")
    [(_, data)] = dataplane.process(1, frame)
    assert len(data) == SIZE
    assert data[:5] == frame[:5]
    return Fields(
        int.from_bytes(data[5:9], "big"), int.from_bytes(data[9:13], "big"), data[13], int.from_bytes(data[14:], "big")
    )


def test_what_is_written_is_read(switch: Switch) -> None:
    dataplane = switch("memory")
    wide = random.Random(1).getrandbits(2048)
    send(dataplane, WRITE, 7, 0xDEADBEEF, 0x12345678, 0x3F, wide)
    assert send(dataplane, READ, 7) == (0xDEADBEEF, 0x12345678, 0x1F, wide)
    assert send(dataplane, READ, 6) == (0, 0, 0, 0)
    registers = dataplane.registers
    assert registers["I.r0"].read(7) == 0xDEADBEEF
    assert registers["I.narrow"].read(7) == 0x1F
    assert registers["I.wide"].read(7) == wide
    assert (registers["I.wide"].size, registers["I.wide"].width) == (8, 2048)


def test_tools_can_write_what_packets_read(switch: Switch) -> None:
    dataplane = switch("memory")
    for row in range(100):
        dataplane.registers["I.r0"].write(row, row * 3)
        dataplane.registers["I.r1"].write(row, row * 5 + (1 << 32))
    for row in (0, 1, 50, 99):
        assert send(dataplane, READ, row)[:2] == (row * 3, row * 5)
    with pytest.raises(IndexError, match="cells 0 to 99, not 100"):
        dataplane.registers["I.r0"].read(100)


def test_sums_wrap_at_their_width(switch: Switch) -> None:
    dataplane = switch("memory")
    rng = random.Random(2)
    total = wide_total = 0
    for _ in range(20):
        value, wide = rng.getrandbits(32), rng.getrandbits(2048)
        total = (total + value) % 2**32
        wide_total = (wide_total + wide) % 2**2048
        assert send(dataplane, ACCUMULATE, 3, value, 0, 0, wide) == (total, total, 0, wide_total)


def test_reads_and_writes_of_one_register_keep_their_order(switch: Switch) -> None:
    """Writes are put off to the end of a block; seen red without the flush when the index changes."""
    dataplane = switch("memory")
    dataplane.registers["I.r0"].write(4, 44)
    dataplane.registers["I.r0"].write(5, 55)
    assert send(dataplane, SWAP, 4)[:2] == (55, 44)
    assert [dataplane.registers["I.r0"].read(i) for i in (4, 5)] == [55, 44]


@pytest.mark.parametrize("index", [100, 101, 1 << 31, (1 << 32) - 1])
def test_indexes_out_of_range_read_zero_and_write_nothing(switch: Switch, index: int) -> None:
    """Seen red with the spare row left as written."""
    dataplane = switch("memory")
    for row in range(100):
        dataplane.registers["I.r0"].write(row, 1)
    send(dataplane, WRITE, index, 5, 6, 7, 8)
    assert send(dataplane, READ, index, 9, 9, 9, 9) == (0, 0, 0, 0)
    send(dataplane, ACCUMULATE, index, 5, 6, 7, 8)
    assert send(dataplane, READ, index, 9, 9, 9, 9) == (0, 0, 0, 0)
    assert [dataplane.registers["I.r0"].read(row) for row in range(100)] == [1] * 100
    assert dataplane.statistics["register_writes_out_of_range"] > 0


def test_partly_out_of_range(switch: Switch) -> None:
    """Row 8 exists in r0 and r1 but not in the wide register; index + 1 is beyond the end in the last row."""
    dataplane = switch("memory")
    send(dataplane, WRITE, 8, 1, 2, 3, 4)
    assert send(dataplane, READ, 8) == (1, 2, 3, 0)
    dataplane.registers["I.r0"].write(99, 7)
    assert send(dataplane, SWAP, 99)[:2] == (0, 0)
    assert dataplane.registers["I.r0"].read(99) == 0


def test_conditions_inside_actions(switch: Switch) -> None:
    dataplane = switch("memory")
    assert send(dataplane, CONDITIONAL, 2, 5, 6, 1) == (0, 6, 77, 0)
    assert send(dataplane, CONDITIONAL, 2, 5, 6, 1) == (6, 6, 77, 0)
    assert send(dataplane, CONDITIONAL, 2, 5, 11, 1) == (6, 0, 1, 0)
    assert send(dataplane, CONDITIONAL, 3, 5, 6, 1) == (0, 6, 77, 0)


def test_indirect_counters(switch: Switch) -> None:
    dataplane = switch("memory")
    counter = dataplane.counters["I.indirect"]
    for _ in range(3):
        send(dataplane, COUNT, 4)
    for index in (9, 10, (1 << 32) - 1):
        send(dataplane, COUNT, index)
    assert [counter.read(i) for i in (3, 4, 9)] == [(0, 0), (3, 3 * SIZE), (1, SIZE)]
    counter.write(4, 10, 100)
    send(dataplane, COUNT, 4)
    assert counter.read(4) == (11, 100 + SIZE)
    with pytest.raises(IndexError, match="cells 0 to 9, not 10"):
        counter.read(10)


def test_reset_state_forgets_everything(switch: Switch) -> None:
    dataplane = switch("memory")
    send(dataplane, WRITE, 7, 1, 2, 3, 4)
    send(dataplane, COUNT, 4)
    dataplane.reset_state()
    assert send(dataplane, READ, 7) == (0, 0, 0, 0)
    assert dataplane.counters["I.indirect"].read(4) == (0, 0)
    assert dataplane.statistics["packets_in"] == 1
