"""That the trace of tests/protocol/cases/verinc.py bites: the published rule gives a wrong sum where the case expects none."""

from __future__ import annotations

from switchsum.p4src.layout import PacketType
from tests.protocol.cases.verinc import MIDDLE, NEW, OLD, TRACE
from tests.protocol.modelled_switches import OneVersionBit
from tests.protocol.slot_rules import Packet


def test_the_same_trace_breaks_one_version_bit() -> None:
    switch = OneVersionBit()
    rows = [switch.empty, switch.empty]
    answers = []
    for number, (worker, phase, _) in enumerate(TRACE):
        packet = Packet(PacketType.CONTRIBUTION, 1, phase, 0, 0, 0, (number,))
        places = switch.places(0, phase)
        after, left, _ = switch.receive(tuple(rows[place] for place in places), packet, worker, 2)
        for place, row in zip(places, after, strict=True):
            rows[place] = row
        answers.append(sum(TRACE[added][2] for added in left[0][1].values) if left else None)
    assert answers == [None, 2 * OLD, None, 2 * MIDDLE, None, OLD + NEW]
    assert answers[-1] != 2 * NEW
