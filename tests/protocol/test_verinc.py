"""That the trace of tests/protocol/cases/verinc.py bites: the published rule gives a wrong sum where the case expects none."""

from __future__ import annotations

from tests.protocol.cases.verinc import MIDDLE, NEW, OLD, TRACE


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
    row = OneBitRow(2)
    answers = [row.receive(*packet) for packet in TRACE]
    assert answers == [None, 2 * OLD, None, 2 * MIDDLE, None, OLD + NEW]
    assert answers[-1] != 2 * NEW
