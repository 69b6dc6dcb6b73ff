"""DESIGN section 4, row by row: each transition of the slot state machine on the compiled program, packet by packet.

scapy builds and reads the packets. After each step: what left and where, what was counted, what the registers hold.

That they can fail: test_mutations.py breaks the compiled program rule by rule and sees the simulation go red each time; these
tests went red with the first three of its mutations as well (2026-11-29).
"""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchsum.host_agent.quantizer import lane_limit
from switchsum.p4src.layout import SERVICE_PORT, Exponent, Flag, PacketType, RejectReason, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC, SwitchUnderTest, Worker

JOB, EPOCH, BASE, COUNT, GROUP = 7, 100, 40, 4, 9
WORKERS = [Worker.at(1), Worker.at(2), Worker.at(3)]
BUILDS = [("lanes", 64), ("wide", 64), ("lanes", 128), ("wide", 128), ("lanes", 256), ("wide", 256)]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda build: f"{build[0]}-{build[1]}")
def loaded(request: pytest.FixtureRequest) -> SwitchUnderTest:
    return SwitchUnderTest(*request.param)


@pytest.fixture
def switch(loaded: SwitchUnderTest) -> SwitchUnderTest:
    loaded.reset()
    loaded.install_job(JOB, EPOCH, WORKERS, BASE, COUNT, GROUP)
    return loaded


def mac(value: int) -> str:
    return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))


def dotted(value: int) -> str:
    return str(ipaddress.IPv4Address(value))


class Bench:
    """Sends as a worker, returns what left as [(port, packet)]."""

    def __init__(self, switch: SwitchUnderTest) -> None:
        self.switch = switch

    def values(self, worker: int) -> list[int]:
        return [1000 * (worker + 1) + i for i in range(self.switch.elements)]

    def send(
        self, sender_index: int, *, port: int | None = None, raw: bytes | None = None, **fields: Any
    ) -> list[tuple[int, Any]]:
        sender = WORKERS[sender_index]
        defaults = {
            "job": JOB,
            "epoch": EPOCH,
            "worker": sender_index,
            "slot": 1,
            "phase": 1,
            "tag": 0xABCD,
            "exponent": 10 + sender_index,
        }
        if fields.get("kind", PacketType.CONTRIBUTION) == PacketType.CONTRIBUTION:
            defaults["values"] = self.values(sender_index)  # type: ignore[assignment]
        packet = SwitchSum(**{**defaults, **fields})
        frame = (
            Ether(dst=mac(SWITCH_MAC), src=mac(sender.mac))
            / IP(src=dotted(sender.ip), dst=dotted(SWITCH_IP))
            / UDP(sport=sender.udp_port, dport=SERVICE_PORT)
            / (packet if raw is None else raw)
        )
        outputs = self.switch.process(sender.port if port is None else port, bytes(frame))
        return [(out, Ether(data)) for out, data in outputs]

    def row(self, phase: int, slot: int = 1) -> dict[str, int]:
        index = 2 * (BASE + slot) + (phase & 1)
        registers = self.switch.dataplane.registers
        return {
            name: registers[f"SwitchIngress.service.slots.row_{name}"].read(index)
            for name in ("epoch", "phase", "bitmap", "tag", "exponent")
        }

    def stored(self, phase: int, slot: int = 1) -> list[int]:
        """The row's values, lane by lane."""
        index = 2 * (BASE + slot) + (phase & 1)
        arrays = {
            name: register
            for name, register in self.switch.dataplane.registers.items()
            if name.startswith("SwitchIngress.service.values.row_v")
        }
        lanes = []
        for i in range(len(arrays)):
            register = arrays[f"SwitchIngress.service.values.row_v{i}"]
            data = register.read(index).to_bytes(register.width // 8, "big")
            lanes += [int.from_bytes(data[k : k + 4], "big") for k in range(0, len(data), 4)]
        return lanes


@pytest.fixture
def bench(switch: SwitchUnderTest) -> Bench:
    return Bench(switch)


def sums(bench: Bench, workers: list[int]) -> list[int]:
    return [sum(column) for column in zip(*(bench.values(worker) for worker in workers), strict=True)]


def check_answer(packet: Any, worker: int, kind: PacketType, **fields: int) -> None:
    """An answer is addressed to its worker, comes from the service, has no UDP checksum and a right IPv4 one."""
    expected = WORKERS[worker]
    assert (packet.dst, packet.src) == (mac(expected.mac), mac(SWITCH_MAC))
    assert (packet[IP].src, packet[IP].dst) == (dotted(SWITCH_IP), dotted(expected.ip))
    assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].chksum) == (SERVICE_PORT, expected.udp_port, 0)
    assert packet[IP].len == 20 + packet[UDP].len == len(packet) - 14
    header = packet[IP].copy()
    del header.chksum
    assert IP(bytes(header)).chksum == packet[IP].chksum
    ours = packet[SwitchSum]
    assert (ours.kind, ours.worker, ours.job, ours.epoch) == (kind, worker, JOB, EPOCH)
    for name, value in fields.items():
        assert getattr(ours, name) == value, name


def fill(bench: Bench, workers: list[int], **fields: Any) -> list[tuple[int, Any]]:
    out: list[tuple[int, Any]] = []
    for worker in workers:
        out = bench.send(worker, **fields)
    return out


def test_first_contribution_overwrites_the_row(bench: Bench, switch: SwitchUnderTest) -> None:
    assert bench.send(1) == []
    assert bench.row(1) == {"epoch": EPOCH, "phase": 1, "bitmap": 0b010, "tag": 0xABCD, "exponent": 11}
    assert bench.stored(1) == bench.values(1)
    assert switch.verdicts(JOB, EPOCH, 1) == {Verdict.CONTRIBUTION: 1}


def test_another_contribution_adds_and_takes_the_larger_exponent(bench: Bench, switch: SwitchUnderTest) -> None:
    bench.send(2, exponent=50)
    assert bench.send(0, exponent=20) == []
    assert bench.row(1) == {"epoch": EPOCH, "phase": 1, "bitmap": 0b101, "tag": 0xABCD, "exponent": 50}
    assert bench.stored(1) == sums(bench, [0, 2])
    assert switch.verdicts(JOB, EPOCH, 0) == {Verdict.CONTRIBUTION: 1}


def test_the_last_contribution_multicasts_the_sum(bench: Bench, switch: SwitchUnderTest) -> None:
    out = fill(bench, [1, 0, 2])
    assert sorted(port for port, _ in out) == [1, 2, 3]
    for port, packet in out:
        check_answer(packet, port - 1, PacketType.RESULT, slot=1, phase=1, tag=0xABCD, exponent=12, flags=0)
        assert packet[SwitchSum].values == sums(bench, [0, 1, 2])
    assert bench.row(1)["bitmap"] == 0b111
    assert switch.verdicts(JOB, EPOCH, 2) == {Verdict.COMPLETION: 1}


def test_a_duplicate_while_filling_is_counted_and_dropped(bench: Bench, switch: SwitchUnderTest) -> None:
    bench.send(0)
    before = bench.stored(1)
    assert bench.send(0) == []
    assert bench.stored(1) == before
    assert switch.verdicts(JOB, EPOCH, 0) == {Verdict.CONTRIBUTION: 1, Verdict.DUPLICATE: 1}


def test_a_duplicate_may_ask_who_is_there(bench: Bench) -> None:
    bench.send(0)
    bench.send(2)
    [(port, packet)] = bench.send(2, flags=Flag.WANT_STATUS)
    assert port == 3
    check_answer(packet, 2, PacketType.STATUS, phase=1, tag=0b101)
    assert packet[SwitchSum].values == []
    assert bench.row(1)["bitmap"] == 0b101


def test_a_first_contribution_may_carry_the_question_too(bench: Bench) -> None:
    """The original was lost, its resend asks: it counts as a contribution all the same."""
    assert bench.send(0, flags=Flag.WANT_STATUS) == []
    assert bench.row(1)["bitmap"] == 0b001


def test_a_duplicate_of_a_full_phase_is_answered_with_the_stored_sum(bench: Bench, switch: SwitchUnderTest) -> None:
    fill(bench, [0, 1, 2])
    [(port, packet)] = bench.send(1, exponent=3, values=[99] * switch.elements)
    assert port == 2
    check_answer(packet, 1, PacketType.RESULT, phase=1, exponent=12, flags=Flag.REPAIR)
    assert packet[SwitchSum].values == sums(bench, [0, 1, 2])
    assert bench.stored(1) == sums(bench, [0, 1, 2])
    assert switch.verdicts(JOB, EPOCH, 1) == {Verdict.CONTRIBUTION: 1, Verdict.REPAIR: 1}


def test_the_previous_phase_can_be_repaired_while_the_next_one_fills(bench: Bench) -> None:
    fill(bench, [0, 1, 2])
    fill(bench, [0, 1], phase=2)
    [(_, packet)] = bench.send(2)
    check_answer(packet, 2, PacketType.RESULT, phase=1, flags=Flag.REPAIR)
    assert packet[SwitchSum].values == sums(bench, [0, 1, 2])
    assert bench.row(2)["bitmap"] == 0b011


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2**31 - 1, 2**31 + 1), (2**32 - 1, 1), (2**32 - 2, 0), (5, 5 + 2**31 - 2)])
def test_a_later_phase_overwrites_and_an_earlier_one_is_stale(
    bench: Bench, switch: SwitchUnderTest, old: int, new: int
) -> None:
    """Serial arithmetic (RFC 1982): later and earlier hold across the wrap of 32 bits."""
    fill(bench, [0, 1, 2], phase=old)
    bench.send(0, phase=new)
    assert bench.row(new) == {"epoch": EPOCH, "phase": new, "bitmap": 0b001, "tag": 0xABCD, "exponent": 10}
    assert bench.stored(new) == bench.values(0)
    assert bench.send(1, phase=old) == []
    assert bench.row(new)["bitmap"] == 0b001
    assert bench.stored(new) == bench.values(0)
    assert switch.verdicts(JOB, EPOCH, 1) == {Verdict.CONTRIBUTION: 1, Verdict.STALE: 1}


def test_half_the_circle_away_is_not_later(bench: Bench, switch: SwitchUnderTest) -> None:
    bench.send(0, phase=2)
    bench.send(1, phase=2 + 2**31)
    assert bench.row(2)["phase"] == 2
    assert switch.verdicts(JOB, EPOCH, 1) == {Verdict.STALE: 1}


def test_another_epoch_overwrites_whatever_the_phase(bench: Bench, switch: SwitchUnderTest) -> None:
    fill(bench, [0, 1, 2], phase=900)
    switch.remove_job(JOB, EPOCH, GROUP)
    switch.install_job(JOB, EPOCH + 1, WORKERS, BASE, COUNT, GROUP)
    bench.send(0, epoch=EPOCH + 1, phase=2)
    assert bench.row(2) == {"epoch": EPOCH + 1, "phase": 2, "bitmap": 0b001, "tag": 0xABCD, "exponent": 10}
    assert bench.stored(2) == bench.values(0)


def test_an_old_epoch_never_reaches_a_register(bench: Bench, switch: SwitchUnderTest) -> None:
    switch.remove_job(JOB, EPOCH, GROUP)
    switch.install_job(JOB, EPOCH + 1, WORKERS, BASE, COUNT, GROUP)
    bench.send(0, epoch=EPOCH + 1)
    before = bench.row(1), bench.stored(1)
    assert bench.send(1, epoch=EPOCH) == []
    assert (bench.row(1), bench.stored(1)) == before
    assert switch.rejections() == {RejectReason.UNKNOWN_JOB: 1}


def test_a_different_tag_is_told_and_never_added(bench: Bench, switch: SwitchUnderTest) -> None:
    bench.send(0)
    [(port, packet)] = bench.send(1, tag=0xEEEE)
    assert port == 2
    check_answer(packet, 1, PacketType.MISMATCH, phase=1, tag=0xABCD)
    assert packet[SwitchSum].values == []
    assert bench.row(1)["bitmap"] == 0b001
    assert bench.stored(1) == bench.values(0)
    assert switch.verdicts(JOB, EPOCH, 1) == {Verdict.MISMATCH: 1}


def test_proposals_agree_on_the_largest_exponent_without_values(bench: Bench) -> None:
    before = bench.stored(1)
    fill(bench, [0, 1], kind=PacketType.PROPOSAL, exponent=5)
    out = bench.send(2, kind=PacketType.PROPOSAL, exponent=Exponent.SPECIAL)
    assert sorted(port for port, _ in out) == [1, 2, 3]
    for port, packet in out:
        check_answer(packet, port - 1, PacketType.AGREEMENT, exponent=Exponent.SPECIAL)
        assert packet[SwitchSum].values == []
    assert bench.stored(1) == before


def test_slots_do_not_touch_each_other(bench: Bench) -> None:
    bench.send(0, slot=0)
    bench.send(1, slot=2)
    assert bench.row(1, slot=0)["bitmap"] == 0b001
    assert bench.row(1, slot=2)["bitmap"] == 0b010
    assert bench.row(1, slot=1)["bitmap"] == 0


@pytest.mark.parametrize("slot", [COUNT, COUNT + 1, 2**16 - 1])
def test_a_slot_beyond_the_range_is_refused(bench: Bench, switch: SwitchUnderTest, slot: int) -> None:
    assert bench.send(0, slot=slot) == []
    assert switch.verdicts(JOB, EPOCH, 0) == {Verdict.SLOT_RANGE: 1}
    assert not any(switch.dataplane.registers["SwitchIngress.service.slots.row_bitmap"].read(i) for i in range(200))


REJECTED: list[tuple[RejectReason, dict[str, Any]]] = [
    (RejectReason.VERSION, {"version": 0x52}),
    (RejectReason.TYPE, {"kind": 0x81}),
    (RejectReason.TYPE, {"kind": 0}),
    (RejectReason.UNKNOWN_JOB, {"job": JOB + 1}),
    (RejectReason.UNKNOWN_JOB, {"epoch": EPOCH - 1}),
    (RejectReason.UNKNOWN_WORKER, {"port": 2}),  # worker 0's packet on worker 1's port
    (RejectReason.UNKNOWN_WORKER, {"port": 9}),
    (RejectReason.WORKER_INDEX, {"worker": 1}),
    (RejectReason.MALFORMED, {"values": [1, 2, 3]}),
    (RejectReason.MALFORMED, {"values": []}),
    (RejectReason.MALFORMED, {"kind": PacketType.PROPOSAL, "values": [1]}),
    (RejectReason.MALFORMED, {"raw": b""}),
    (RejectReason.MALFORMED, {"raw": b"\x51\x01\x00\x07"}),
]


@pytest.mark.parametrize(("reason", "fields"), REJECTED, ids=lambda item: str(item))
def test_what_is_not_a_members_packet_changes_nothing(
    bench: Bench, switch: SwitchUnderTest, reason: RejectReason, fields: dict[str, Any]
) -> None:
    assert bench.send(0, **fields) == []
    assert switch.rejections() == {reason: 1}
    assert bench.row(1)["bitmap"] == 0


def test_too_many_values_are_malformed(bench: Bench, switch: SwitchUnderTest) -> None:
    assert bench.send(0, values=[1] * (switch.elements + 1)) == []
    assert switch.rejections() == {RejectReason.MALFORMED: 1}


def test_a_broken_ip_checksum_is_refused(bench: Bench, switch: SwitchUnderTest) -> None:
    worker = WORKERS[0]
    packet = SwitchSum(job=JOB, epoch=EPOCH, slot=1, phase=1, values=bench.values(0))
    frame = Ether(dst=mac(SWITCH_MAC), src=mac(worker.mac)) / IP(src=dotted(worker.ip), dst=dotted(SWITCH_IP), chksum=0x1234)
    assert switch.process(worker.port, bytes(frame / UDP(sport=worker.udp_port, dport=SERVICE_PORT) / packet)) == []
    assert switch.rejections() == {RejectReason.CHECKSUM: 1}


def test_one_worker_is_a_job_too(bench: Bench, switch: SwitchUnderTest) -> None:
    switch.remove_job(JOB, EPOCH, GROUP)
    switch.install_job(JOB, EPOCH, WORKERS[:1], BASE, COUNT, GROUP)
    [(port, packet)] = bench.send(0)
    assert port == 1
    check_answer(packet, 0, PacketType.RESULT)
    assert packet[SwitchSum].values == bench.values(0)


def test_full_lanes_do_not_carry_into_their_neighbours(bench: Bench, switch: SwitchUnderTest) -> None:
    """The largest lanes that hosts send (value B on every worker) beside the smallest, in either build."""
    limit = lane_limit(3)
    lanes = [2 * limit if i % 2 else 0 for i in range(switch.elements)]
    for worker in range(3):
        out = bench.send(worker, values=lanes)
    assert out[0][1][SwitchSum].values == [3 * lane for lane in lanes]
    assert 3 * max(lanes) < 2**32
