"""The known violation of the published protocol, as a case (VeriNC, arXiv 2604.10186).

Two workers, one slot. Worker 0's first packet is delayed; its resend completes the phase; the next phase completes as well;
worker 0's packet of the phase after that is lost; now the old packet arrives, on the same row, whose mark of worker 0 the
phases between have cleared. With one version bit it is taken for the lost one and worker 1 receives a wrong sum:
tests/protocol/test_verinc.py shows that.
"""

from __future__ import annotations

from switchsum.p4src.layout import Flag, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.cases.bench import Bench, case

OLD, MIDDLE, NEW = 64, 7, 192  # what worker 0 sends in phases 1, 2, 3; worker 1 sends the same
# (worker, phase, value) in the order in which the switch sees them; the packet of (0, 3) is lost on the way
TRACE = [(0, 1, OLD), (1, 1, OLD), (0, 2, MIDDLE), (1, 2, MIDDLE), (0, 1, OLD), (1, 3, NEW)]


@case({"before_the_new_phase": (TRACE, Verdict.REPAIR), "after_it_began": ([*TRACE[:4], TRACE[5], TRACE[4]], Verdict.STALE)})
def late_packet_enters_no_sum(bench: Bench, trace: list[tuple[int, int, int]], verdict: Verdict) -> None:
    """Whether the row still holds the old phase (it is answered with that sum) or the new one (it is stale)."""
    bench.reinstall(workers=2)
    outputs = [bench.send(worker, phase=phase, values=[value] * bench.elements) for worker, phase, value in trace]
    late = trace.index(TRACE[4], 1)
    answers = {i: len(out) for i, out in enumerate(outputs) if out}
    assert answers == ({1: 2, 3: 2, late: 1} if verdict == Verdict.REPAIR else {1: 2, 3: 2})
    for _, packet in outputs[late]:
        assert (packet[SwitchSum].phase, packet[SwitchSum].flags) == (1, Flag.REPAIR)  # its host is past that: ignored
    assert bench.verdicts(0)[verdict] == 1
    # Worker 1 is there alone: the late packet did not stand in for the lost one, which is resent now.
    bench.check_row([1], [NEW] * bench.elements, 11, phase=3)
