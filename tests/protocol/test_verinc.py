"""The known violation of the published protocol, as a regression test (VeriNC, arXiv 2604.10186; DESIGN section 4).

Two workers, one slot. Worker 0's first packet is delayed; its resend completes the phase; the next phase completes as well;
worker 0's packet of the phase after that is lost; now the old packet arrives, on the same row, whose mark of worker 0 the
phases between have cleared. With one version bit it is taken for the lost one and worker 1 receives a wrong sum.
"""

from __future__ import annotations

import pytest

from switchsum.p4src.layout import Flag, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.switch_under_test import SwitchUnderTest, Worker
from tests.protocol.test_transitions import EPOCH, JOB, Bench

OLD, MIDDLE, NEW = 64, 7, 192  # what worker 0 sends in phases 1, 2, 3; worker 1 sends the same
# (worker, phase, value) in the order in which the switch sees them; the packet of (0, 3) is lost on the way
TRACE = [(0, 1, OLD), (1, 1, OLD), (0, 2, MIDDLE), (1, 2, MIDDLE), (0, 1, OLD), (1, 3, NEW)]


@pytest.fixture(params=["lanes", "wide"])
def switch(request: pytest.FixtureRequest) -> SwitchUnderTest:
    switch = SwitchUnderTest(request.param, 64)
    switch.install_job(JOB, EPOCH, [Worker.at(1), Worker.at(2)], 40, 4, 9)
    return switch


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [(TRACE, Verdict.REPAIR), ([*TRACE[:4], TRACE[5], TRACE[4]], Verdict.STALE)],
    ids=["before the new phase", "after it began"],
)
def test_the_late_packet_enters_no_sum(switch: SwitchUnderTest, trace: list[tuple[int, int, int]], verdict: Verdict) -> None:
    """Whether the row still holds the old phase (it is answered with that sum) or the new one (it is stale)."""
    bench = Bench(switch)
    outputs = [bench.send(worker, slot=0, phase=phase, values=[value] * 64) for worker, phase, value in trace]
    late = trace.index(TRACE[4], 1)
    answers = {i: len(out) for i, out in enumerate(outputs) if out}
    assert answers == ({1: 2, 3: 2, late: 1} if verdict == Verdict.REPAIR else {1: 2, 3: 2})
    for _, packet in outputs[late]:
        assert (packet[SwitchSum].phase, packet[SwitchSum].flags) == (1, Flag.REPAIR)  # its host is past that: ignored
    assert switch.verdicts(JOB, EPOCH, 0)[verdict] == 1
    assert bench.row(3, slot=0)["bitmap"] == 0b10  # worker 1 alone: the late packet did not stand in for the lost one
    assert bench.stored(3, slot=0) == [NEW] * 64
    repaired = bench.send(0, slot=0, phase=3, values=[NEW] * 64)  # worker 0 resends what was lost
    assert [port for port, _ in repaired] == [1, 2]
    assert all(packet[SwitchSum].values == [2 * NEW] * 64 for _, packet in repaired)


class OneBitRow:
    """The published rule for one slot and n workers (SwitchML's algorithm 3): a version bit, seen marks, a counter modulo n."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.seen = [set[int](), set[int]()]
        self.count = [0, 0]
        self.total = [0, 0]

    def receive(self, worker: int, phase: int, value: int) -> int | None:
        """The sum, if this packet is answered."""
        version = phase & 1
        if worker in self.seen[version]:
            return self.total[version] if self.count[version] == 0 else None
        self.seen[version].add(worker)
        self.seen[1 - version].discard(worker)
        first = self.count[version] == 0
        self.count[version] = (self.count[version] + 1) % self.workers
        self.total[version] = value if first else self.total[version] + value
        return self.total[version] if self.count[version] == 0 else None


def test_the_same_trace_breaks_one_version_bit() -> None:
    """So the trace bites: what the test above asserts is not true of every rule."""
    row = OneBitRow(2)
    answers = [row.receive(*packet) for packet in TRACE]
    assert answers == [None, 2 * OLD, None, 2 * MIDDLE, None, OLD + NEW]
    assert answers[-1] != 2 * NEW
