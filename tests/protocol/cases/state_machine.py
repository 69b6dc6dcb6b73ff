"""docs/protocol.md's table, row by row: each transition of the slot state machine, packet by packet.

scapy builds and reads the packets. After each step: what left and where, what was counted, what the row holds.

That they can fail: tests/protocol/test_conformance.py breaks the compiled program rule by rule and sees cases go red each time.
"""

from __future__ import annotations

from typing import Any

from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether

from switchsum.host_agent.quantizer import lane_limit
from switchsum.p4src.layout import MAX_WORKERS, SLOTS, Exponent, Flag, PacketType, RejectReason, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.cases.bench import TAG, Bench, case
from tests.protocol.switch_under_test import Worker, frame_of
from tests.protocol.targets import PORTS, SLOTS_OF_A_JOB


@case()
def first_contribution_overwrites_the_row(bench: Bench) -> None:
    assert bench.send(1) == []
    assert bench.verdicts(1) == {Verdict.CONTRIBUTION: 1}
    bench.check_row([1], bench.values(1), 11)


@case()
def another_contribution_adds_and_takes_the_larger_exponent(bench: Bench) -> None:
    bench.send(2, exponent=50)
    assert bench.send(0, exponent=20) == []
    assert bench.verdicts(0) == {Verdict.CONTRIBUTION: 1}
    bench.check_row([0, 2], bench.sums([0, 2]), 50)


@case()
def last_contribution_multicasts_the_sum(bench: Bench) -> None:
    outputs = bench.fill([1, 0, 2])
    bench.check_results(outputs, bench.sums([0, 1, 2]), slot=1, phase=1, tag=TAG, exponent=12)
    assert bench.verdicts(2) == {Verdict.COMPLETION: 1}
    assert bench.job_verdicts() == {Verdict.CONTRIBUTION: 2, Verdict.COMPLETION: 1}
    bench.check_row([0, 1, 2], bench.sums([0, 1, 2]), 12)


@case()
def duplicate_while_filling_is_counted_and_dropped(bench: Bench) -> None:
    bench.send(0)
    assert bench.send(0, values=[99] * bench.elements, exponent=99) == []
    assert bench.verdicts(0) == {Verdict.CONTRIBUTION: 1, Verdict.DUPLICATE: 1}
    bench.check_row([0], bench.values(0), 10)


@case()
def duplicate_may_ask_who_is_there(bench: Bench) -> None:
    bench.send(0)
    bench.send(2)
    [(port, packet)] = bench.send(2, flags=Flag.WANT_STATUS)
    assert port == 3
    bench.check_answer(packet, 2, PacketType.STATUS, phase=1, tag=0b101, flags=0)
    assert packet[SwitchSum].values == []
    bench.check_row([0, 2], bench.sums([0, 2]), 12)


@case()
def first_contribution_may_carry_the_question_too(bench: Bench) -> None:
    """The original was lost, its resend asks: it counts as a contribution all the same."""
    assert bench.send(0, flags=Flag.WANT_STATUS) == []
    bench.check_row([0], bench.values(0), 10)


@case()
def duplicate_of_a_full_phase_is_answered_with_the_stored_sum(bench: Bench) -> None:
    bench.fill([0, 1, 2])
    [(port, packet)] = bench.send(1, exponent=3, values=[99] * bench.elements)
    assert port == 2
    bench.check_answer(packet, 1, PacketType.RESULT, phase=1, exponent=12, flags=Flag.REPAIR)
    assert packet[SwitchSum].values == bench.sums([0, 1, 2])
    assert bench.verdicts(1) == {Verdict.CONTRIBUTION: 1, Verdict.REPAIR: 1}
    bench.check_row([0, 1, 2], bench.sums([0, 1, 2]), 12)


@case()
def previous_phase_can_be_repaired_while_the_next_one_fills(bench: Bench) -> None:
    bench.fill([0, 1, 2])
    assert bench.fill([0, 1], phase=2) == []
    [(_, packet)] = bench.send(2)
    bench.check_answer(packet, 2, PacketType.RESULT, phase=1, flags=Flag.REPAIR)
    assert packet[SwitchSum].values == bench.sums([0, 1, 2])
    bench.check_row([0, 1], bench.sums([0, 1]), 11, phase=2)


@case(
    {
        f"{old}_{new}": (old, new)
        for old, new in [(1, 3), (2**31 - 1, 2**31 + 1), (2**32 - 1, 1), (2**32 - 2, 0), (5, 5 + 2**31 - 2)]
    }
)
def later_phase_overwrites_and_an_earlier_one_is_stale(bench: Bench, old: int, new: int) -> None:
    """Serial arithmetic (RFC 1982): later and earlier hold across the wrap of 32 bits."""
    bench.fill([0, 1, 2], phase=old)
    assert bench.send(0, phase=new) == []
    assert bench.send(1, phase=old) == []
    assert bench.verdicts(1) == {Verdict.CONTRIBUTION: 1, Verdict.STALE: 1}
    bench.check_row([0], bench.values(0), 10, phase=new)


@case()
def half_the_circle_away_is_not_later(bench: Bench) -> None:
    bench.send(0, phase=2)
    assert bench.send(1, phase=2 + 2**31) == []
    assert bench.verdicts(1) == {Verdict.STALE: 1}
    bench.check_row([0], bench.values(0), 10, phase=2)


@case()
def another_epoch_overwrites_whatever_the_phase(bench: Bench) -> None:
    bench.fill([0, 1, 2], phase=900)
    bench.reinstall(epochs_later=1)
    assert bench.send(0, phase=2) == []
    bench.check_row([0], bench.values(0), 10, phase=2)


@case()
def old_epoch_never_reaches_a_row(bench: Bench) -> None:
    bench.reinstall(epochs_later=1)
    bench.send(0)
    assert bench.send(1, epoch=bench.job.epoch - 1) == []
    assert bench.rejections() == {RejectReason.UNKNOWN_JOB: 1}
    bench.check_row([0], bench.values(0), 10)


@case()
def removed_job_is_a_stranger(bench: Bench) -> None:
    """What the controller takes off ends at the job table, whatever the rows still hold; what it puts back goes on."""
    bench.send(0)
    bench.target.remove(bench.job)
    try:
        assert bench.send(1) == []
        assert bench.rejections() == {RejectReason.UNKNOWN_JOB: 1}
    finally:
        bench.target.install(bench.job)
    bench.check_row([0], bench.values(0), 10)


@case()
def different_tag_is_told_and_never_added(bench: Bench) -> None:
    bench.send(0)
    [(port, packet)] = bench.send(1, tag=0xEEEE)
    assert port == 2
    bench.check_answer(packet, 1, PacketType.MISMATCH, phase=1, tag=TAG, flags=0)
    assert packet[SwitchSum].values == []
    assert bench.verdicts(1) == {Verdict.MISMATCH: 1}
    bench.check_row([0], bench.values(0), 10)


@case()
def proposals_agree_on_the_largest_exponent_without_values(bench: Bench) -> None:
    assert bench.fill([0, 1], kind=PacketType.PROPOSAL, exponent=5) == []
    outputs = bench.send(2, kind=PacketType.PROPOSAL, exponent=Exponent.SPECIAL)
    assert [port for port, _ in outputs] == [1, 2, 3]
    for worker, (_, packet) in enumerate(outputs):
        bench.check_answer(packet, worker, PacketType.AGREEMENT, exponent=Exponent.SPECIAL, flags=0)
        assert packet[SwitchSum].values == []
    [(port, packet)] = bench.send(1, kind=PacketType.PROPOSAL, exponent=7)
    assert port == 2
    bench.check_answer(packet, 1, PacketType.AGREEMENT, exponent=Exponent.SPECIAL, flags=Flag.REPAIR)


@case()
def proposals_leave_the_values_alone(bench: Bench) -> None:
    bench.fill([0, 1, 2])
    before = bench.stored(1)
    bench.fill([0, 1, 2], phase=3, kind=PacketType.PROPOSAL)
    assert bench.stored(1) == before == bench.sums([0, 1, 2])


@case()
def slots_do_not_touch_each_other(bench: Bench) -> None:
    bench.send(0, slot=0)
    bench.send(1, slot=2)
    bench.check_untouched(slot=1)
    bench.check_row([0], bench.values(0), 10, slot=0)
    bench.check_row([1], bench.values(1), 11, slot=2)


BEYOND = {str(slot): (slot,) for slot in (SLOTS_OF_A_JOB, SLOTS_OF_A_JOB + 1, 2**16 - 1)}


@case(BEYOND)
def slot_beyond_the_range_is_refused(bench: Bench, slot: int) -> None:
    assert bench.send(0, slot=slot) == []
    assert bench.verdicts(0) == {Verdict.SLOT_RANGE: 1}
    for own in range(SLOTS_OF_A_JOB):
        bench.check_untouched(slot=own)


@case(BEYOND)
def slot_beyond_the_range_writes_no_row_at_all(bench: Bench, slot: int) -> None:
    bench.send(0, slot=slot)
    epochs = [bench.target.register("SwitchIngress.service.slots.row_epoch", row)[0] for row in range(2 * SLOTS)]
    assert bench.job.epoch not in epochs


@case()
def jobs_share_the_switch_without_meeting(bench: Bench) -> None:
    """The same slots, phases and tags by the same workers in two jobs: neither sees the other's values."""
    with Bench(bench.target, bench.job.number + 1) as other:
        bench.send(0)
        assert other.send(1, values=[5] * bench.elements) == []
        assert bench.send(1) == []
        assert bench.verdicts(1) == other.verdicts(1) == {Verdict.CONTRIBUTION: 1}
        bench.check_row([0, 1], bench.sums([0, 1]), 11)
        other.check_row([1], [5] * bench.elements, 11)


REJECTED: dict[str, tuple[RejectReason, dict[str, Any]]] = {
    "version": (RejectReason.VERSION, {"version": 0x52}),
    "an_answers_type": (RejectReason.TYPE, {"kind": PacketType.RESULT}),
    "no_type": (RejectReason.TYPE, {"kind": 0}),
    "another_job": (RejectReason.UNKNOWN_JOB, {"job": 99}),
    "another_workers_port": (RejectReason.UNKNOWN_WORKER, {"port": 2}),
    "a_bystanders_port": (RejectReason.UNKNOWN_WORKER, {"port": 4}),
    "another_workers_index": (RejectReason.WORKER_INDEX, {"worker": 1}),
    "three_values": (RejectReason.MALFORMED, {"values": [1, 2, 3]}),
    "no_values": (RejectReason.MALFORMED, {"values": []}),
    "proposal_with_a_value": (RejectReason.MALFORMED, {"kind": PacketType.PROPOSAL, "values": [1]}),
    "empty_datagram": (RejectReason.MALFORMED, {"raw": b""}),
    "cut_in_the_header": (RejectReason.MALFORMED, {"raw": b"\x51\x01\x00\x07"}),
    "ip_checksum": (RejectReason.CHECKSUM, {"ip_checksum": 0x1234}),
}


@case(REJECTED)
def not_a_members_packet(bench: Bench, reason: RejectReason, fields: dict[str, Any]) -> None:
    assert bench.send(0, **fields) == []
    assert bench.rejections() == {reason: 1}
    assert bench.job_verdicts() == {}
    bench.check_untouched()


@case()
def too_many_values_are_malformed(bench: Bench) -> None:
    assert bench.send(0, values=[1] * (bench.elements + 1)) == []
    assert bench.rejections() == {RejectReason.MALFORMED: 1}
    bench.check_untouched()


@case()
def bytes_cut_off_on_the_way_are_malformed(bench: Bench) -> None:
    """The headers promise more than the frame holds."""
    whole = bench.frame(0)
    shortened = [whole[:-1], whole[:-4], whole[: 14 + 20 + 8 + 24], whole[:65], whole[: 14 + 20 + 8 + 4]]
    assert bench.raw(*((1, frame) for frame in shortened)) == []
    assert bench.rejections() == {RejectReason.MALFORMED: len(shortened)}
    bench.check_untouched()


@case()
def bytes_behind_the_datagram_do_not_count(bench: Bench) -> None:
    """Ethernet pads; what a datagram's lengths say decides. An answer may carry the padding of its packet on, as padding."""
    for worker in (0, 1):
        assert bench.raw((worker + 1, bench.frame(worker) + b"\xee" * 18)) == []
    answers = sorted(bench.raw((3, bench.frame(2) + b"\xee" * 18)))
    datagram_bytes = 14 + 20 + 8 + 24 + 4 * bench.elements
    bench.check_results([(port, Ether(frame[:datagram_bytes])) for port, frame in answers], bench.sums([0, 1, 2]))
    assert bench.rejections() == {}


@case()
def counters_count_bytes_of_whole_frames(bench: Bench) -> None:
    frames = [bench.frame(0), bench.frame(0), bench.frame(0, kind=PacketType.PROPOSAL, slot=2)]
    bench.raw(*((1, frame) for frame in frames))
    assert bench.bytes_of(0, Verdict.CONTRIBUTION) == len(frames[0]) + len(frames[2])
    assert bench.bytes_of(0, Verdict.DUPLICATE) == len(frames[1])


@case()
def one_worker_is_a_job_too(bench: Bench) -> None:
    bench.reinstall(workers=1)
    bench.check_results(bench.send(0), bench.values(0))


@case()
def full_lanes_do_not_carry_into_their_neighbours(bench: Bench) -> None:
    """The largest lanes that hosts send (value B on every worker) beside the smallest, in either build."""
    limit = lane_limit(3)
    lanes = [2 * limit if i % 2 else 0 for i in range(bench.elements)]
    outputs = bench.fill([0, 1, 2], values=lanes)
    bench.check_results(outputs, [3 * lane for lane in lanes])
    assert 3 * max(lanes) < 2**32


@case()
def as_many_workers_as_a_row_has_bits(bench: Bench) -> None:
    """Each gets its own copy, also where several sit behind one port."""
    workers = [Worker.at(PORTS[rank % 3], 40000 + rank) for rank in range(MAX_WORKERS)]
    job = bench.target.new_job(workers, bench.job.number + 1)
    bench.target.install(job)
    try:
        for rank, worker in enumerate(workers):
            fields = {"job": job.number, "epoch": job.epoch, "worker": rank, "values": [rank + 1] * bench.elements}
            outputs = bench.raw((worker.port, frame_of(worker, bytes(SwitchSum(**fields)))))
            assert rank == MAX_WORKERS - 1 or outputs == []
        received = [(port, Ether(frame)) for port, frame in outputs]
    finally:
        bench.target.remove(job)
    got = {packet[SwitchSum].worker: (port, packet[UDP].dport) for port, packet in received}
    assert got == {rank: (worker.port, worker.udp_port) for rank, worker in enumerate(workers)}
    assert len(received) == MAX_WORKERS
    assert all(packet[SwitchSum].values == [sum(range(MAX_WORKERS + 1))] * bench.elements for _, packet in received)
