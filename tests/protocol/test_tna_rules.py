"""The source of p4src/tna does what p4src/state_machine.yaml says, by the comparison of test_slot_rules.py.

What is executed is the source (tna_program.py), not what the compiler makes of it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from switchsum.controller import programming
from switchsum.p4src.layout import SLOTS, RejectReason, Verdict
from tests.protocol.simulation import Simulation, run_seed
from tests.protocol.slot_rules import HOST_TYPES, Row, SlotRules, read
from tests.protocol.targets import Outputs, job_of
from tests.protocol.test_slot_rules import (
    ELEMENTS,
    EPOCH,
    FIRST_SLOT,
    JOB,
    JOB_SLOTS,
    NEIGHBOURS,
    ROWS,
    STORED,
    Lanes,
    compare,
    compare_admission,
    workers_of,
)
from tests.protocol.tna_switch import NO_CPP, TnaSwitch, TnaUnderTest, source

pytestmark = pytest.mark.skipif(NO_CPP is not None, reason=NO_CPP or "")
CHIPS = (1, 2)
SEEDS = range(10)
JOBS = {
    1: ((1,), (0,)),
    3: (range(1, 8), (0, 2)),
    32: ((2, 2**31 - 1, 2**32 - 2, 2**32 - 1), (0, 31)),
}  # as test_slot_rules.JOBS


class TnaRows:
    """Rows of Tofino's program: phases lie in registers with the lowest bit set, lanes in pairs, tags twice."""

    def __init__(self, workers: int, chip: int, text: str | None = None) -> None:
        self.workers = workers_of(workers)
        self._target = TnaSwitch(chip, text)
        self._target.install(job_of(self.workers, range(FIRST_SLOT, FIRST_SLOT + JOB_SLOTS), EPOCH, JOB))
        registers, slots = self._target.program.registers, "SwitchIngress.service.slots.row_"
        self._moments, self._members = registers[slots + "epoch_phase"], registers[slots + "bitmap"]
        self._tags, self._exponents = registers[slots + "tag"], registers[slots + "exponent"]
        pairs = range(0, ELEMENTS, 2)
        self._pairs = [registers[f"SwitchIngress.service.values.pair_{even}.row_pair"] for even in pairs]
        self._counted: Counter[Verdict] = Counter()
        for index in (*NEIGHBOURS, *ROWS):
            self.put(index, Row(index, index & 1, 0, index, 0, STORED))

    def process(self, port: int, frame: bytes) -> Outputs:
        return self._target.process(port, frame)

    def rejections(self) -> dict[RejectReason, int]:
        counts = self._target.entry_counters(programming.REJECTIONS)
        return {RejectReason(reason): packets for (reason,), (packets, _) in counts.items() if packets}

    def has_counted(self, verdict: Verdict) -> bool:
        self._counted[verdict] += 1
        counts = self._target.entry_counters(programming.JOB_VERDICTS)
        return counts[JOB, EPOCH, verdict][0] == self._counted[verdict]

    def can_hold(self, index: int, row: Row) -> bool:
        """A row's number says its phase's lowest bit; a bitmap without members stands for another tag."""
        return row.phase & 1 == index & 1 and row.bitmap != 0

    def put(self, index: int, row: Row) -> None:
        moment, members = self._moments[index], self._members[index]
        moment.epoch, moment.round = row.epoch, row.phase | 1
        members.tag, members.bitmap = row.tag, row.bitmap
        self._tags[index], self._exponents[index] = row.tag, row.exponent
        lanes = iter(row.values or ())
        for pair, even, odd in zip(self._pairs, lanes, lanes, strict=False):
            pair[index].even, pair[index].odd = even, odd

    def row(self, index: int) -> Row:
        return self.fields(index, tuple(lane for pair in self._pairs for lane in (pair[index].even, pair[index].odd)))

    def fields(self, index: int, values: Any) -> Row:
        moment, members = self._moments[index], self._members[index]
        assert self._tags[index] == members.tag
        phase = moment.round & ~1 | index & 1
        return Row(moment.epoch, phase, members.bitmap, members.tag, self._exponents[index], values)

    def some_lanes(self, index: int) -> Lanes:
        first, middle, last = (self._pairs[number][index] for number in (0, ELEMENTS // 4, ELEMENTS // 2 - 1))
        return first.even, middle.even, last.odd

    def check_others(self) -> None:
        for index in NEIGHBOURS:
            assert self.row(index) == Row(index, index & 1, 0, index, 0, STORED), f"row {index} is of no slot of the job"
        held = {index for index in range(2 * SLOTS) if self._moments[index].epoch}
        assert held == {*NEIGHBOURS, *ROWS}


@pytest.mark.parametrize("chip", CHIPS)
def test_the_source_keeps_to_the_table(chip: int) -> None:
    rules = SlotRules(read())
    met: Counter[Any] = Counter()
    for workers, (bitmaps, senders) in JOBS.items():
        met += compare(rules, TnaRows(workers, chip), bitmaps, senders)
    assert set(met) == set(itertools.product((rule.name for rule in rules.rules), HOST_TYPES))
    print(f"{sum(met.values())} situations")


@pytest.mark.parametrize("chip", CHIPS)
def test_the_source_refuses_in_the_tables_order(chip: int) -> None:
    compare_admission(SlotRules(read()), TnaRows(2, chip))


def compare_both(rules: SlotRules, chip: int, text: str | None = None) -> None:
    compare(rules, TnaRows(2, chip, text), (0b01, 0b11), (0, 1))
    compare_admission(rules, TnaRows(2, chip, text))


@pytest.mark.parametrize("chip", CHIPS)
def test_engines_sum_right_over_a_bad_network(chip: int) -> None:
    """The simulation (simulation.py), with the source as its switch: nothing happens that does not with the v1model program."""
    for seed in SEEDS:
        assert Simulation(seed, TnaUnderTest(chip)).run() == run_seed(seed)  # type: ignore[arg-type]


BROKEN = [  # what the source says, and what it is made to say
    ("row.epoch != hdr.switchsum.epoch || (", "("),
    ("(int<32>) (meta.round - row.round) > 0", "meta.round - row.round > 0"),
    ("(int<32>) (meta.round - row.round) > 0", "meta.round > row.round"),
    ("(STANDING_OLD, _, _, 0): late();", "(STANDING_OLD, _, _, 0): contribute();"),
    ("if (row.tag == hdr.switchsum.tag) {", "if (true) {"),
    ("row.bitmap = row.bitmap | meta.worker_bit;", "row.bitmap = meta.worker_bit;"),
    ("row = max(row, hdr.switchsum.exponent);", "row = hdr.switchsum.exponent;"),
    ("meta.round = hdr.switchsum.phase | 1;", "meta.round = hdr.switchsum.phase;"),
    ("row.odd = row.odd + odd;", "row.odd = odd;"),
    ("row.even = row.even + even;", "row.even = row.even;"),
    ("(DEED_RECALL, 1, 1): recall_others();", ""),
    ("(VERDICT_REPAIR, 1, _, _): go_round(0);", "(VERDICT_REPAIR, 1, _, _): go_round(1);"),
    ("hdr.switchsum.tag = meta.before;", "hdr.switchsum.tag = meta.after | 2;"),
    ("meta.place = hdr.switchsum.slot + slot_base;", "meta.place = hdr.switchsum.slot;"),
    ("(0, 1, 1, 0, 0): out_of_range();", ""),
]


@pytest.mark.parametrize(("right", "wrong"), BROKEN)
def test_a_broken_source_is_another(right: str, wrong: str) -> None:
    text = " ".join(source(1).split())
    assert right in text, "p4src/tna has changed, so must this test"
    with pytest.raises(AssertionError):
        compare_both(SlotRules(read()), 1, text.replace(right, wrong))


def test_p4_that_is_not_understood_is_told() -> None:
    with pytest.raises(SyntaxError, match=r"'Meter' in control SwitchIngress\.service\.slots"):
        TnaSwitch(1, source(1).replace("Register<moment_t", "Meter<moment_t"))
