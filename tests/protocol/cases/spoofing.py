"""An attacker between the contributions of a running job: what is not from the port, address, UDP port, job, epoch and index
in the tables enters no sum, and is counted by reason."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from switchsum.p4src.layout import PacketType, RejectReason, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.cases.bench import Bench, case
from tests.protocol.switch_under_test import frame_of
from tests.protocol.targets import PORTS, SLOTS_OF_A_JOB, WORKERS

PHASES = 6
Attack = tuple[int, bytes, RejectReason]


def attacks(bench: Bench, slot: int, phase: int) -> Iterator[Attack]:
    """One packet of each kind that carries poison for this phase: port, frame, and why it must be rejected."""
    poison = [0x7FFFFFFF] * bench.elements
    fields: dict[str, Any] = {"slot": slot, "phase": phase, "values": poison}
    for rank, worker in enumerate(WORKERS):
        good = bench.frame(rank, **fields)
        payload = good[42:]
        for port in PORTS:
            if port != worker.port:
                yield port, good, RejectReason.UNKNOWN_WORKER
        for stranger in (
            replace(worker, ip=worker.ip + 7),
            replace(worker, ip=WORKERS[rank - 1].ip),
            replace(worker, udp_port=worker.udp_port + 1),
        ):
            yield worker.port, frame_of(stranger, payload), RejectReason.UNKNOWN_WORKER
        for epoch in (bench.job.epoch - 1, bench.job.epoch + 1, 0, 2**32 - 1):
            yield worker.port, bench.frame(rank, **fields | {"epoch": epoch}), RejectReason.UNKNOWN_JOB
        yield worker.port, bench.frame(rank, **fields | {"job": bench.job.number + 1}), RejectReason.UNKNOWN_JOB
        for index in ((rank + 1) % len(WORKERS), len(WORKERS), 255):
            yield worker.port, bench.frame(rank, **fields | {"worker": index}), RejectReason.WORKER_INDEX
        for kind in (PacketType.RESULT, PacketType.STATUS, 0, 0x7F):
            yield worker.port, bench.frame(rank, **fields | {"kind": kind}), RejectReason.TYPE
        yield worker.port, bench.frame(rank, **fields | {"version": 0x50}), RejectReason.VERSION
        yield worker.port, bench.frame(rank, **fields, ip_checksum=1), RejectReason.CHECKSUM
        for raw in (
            payload[:-1],
            payload[:-4],
            payload[:24],
            payload[:23],
            payload[:9],
            payload + b"\0",
            payload + payload[24:64],
        ):
            yield worker.port, bench.frame(rank, raw=raw), RejectReason.MALFORMED
        long_proposal = bytes(SwitchSum(**{**fields, "job": bench.job.number, "epoch": bench.job.epoch, "worker": rank}))
        yield worker.port, bench.frame(rank, raw=long_proposal[:1] + b"\x02" + long_proposal[2:]), RejectReason.MALFORMED


@case()
def spoofed_packets_change_no_sum_and_are_counted_by_reason(bench: Bench) -> None:
    rng = random.Random(6)
    rejected: Counter[RejectReason] = Counter()
    for phase in range(1, PHASES + 1):
        slot = phase % SLOTS_OF_A_JOB
        every = list(attacks(bench, slot, phase))
        rng.shuffle(every)
        for rank in range(len(WORKERS)):
            part = every[rank :: len(WORKERS)]
            rejected.update(reason for *_, reason in part)
            assert bench.raw(*((port, frame) for port, frame, _ in part)) == []
            outputs = bench.send(rank, slot=slot, phase=phase)
            assert bool(outputs) == (rank == len(WORKERS) - 1)
        bench.check_results(outputs, bench.sums([0, 1, 2]), slot=slot, phase=phase)
    assert bench.rejections() == rejected
    assert set(rejected) == set(RejectReason)
    assert bench.job_verdicts() == {Verdict.CONTRIBUTION: 2 * PHASES, Verdict.COMPLETION: PHASES}


@case()
def captured_packets_are_worth_nothing_when_they_are_sent_again(bench: Bench) -> None:
    """From where they came: they count as duplicates, as stale or of an unknown epoch. From elsewhere: as of a stranger."""
    captured = [[bench.frame(rank, phase=phase) for rank in range(3)] for phase in range(1, 5)]
    for phase, frames in enumerate(captured, 1):
        for rank, frame in enumerate(frames[:2]):
            assert bench.raw((WORKERS[rank].port, frame)) == []
            again = [(WORKERS[other].port, captured[phase - 1][other]) for other in range(rank + 1)]
            late = [(WORKERS[other].port, captured[phase - 3][other]) for other in range(3) if phase > 2]
            strange = [(PORTS[3], frame) for frame in frames]
            assert bench.raw(*again, *late, *strange) == []
        bench.check_results(bench.send(2, phase=phase), bench.sums([0, 1, 2]), phase=phase)
    verdicts = bench.job_verdicts()
    assert verdicts == {
        Verdict.CONTRIBUTION: 8,
        Verdict.COMPLETION: 4,
        Verdict.DUPLICATE: 4 * 3,
        Verdict.STALE: 2 * 2 * 3,
    }
    assert bench.rejections() == {RejectReason.UNKNOWN_WORKER: 4 * 2 * 3}
    bench.reinstall(epochs_later=1)
    every = [(WORKERS[rank].port, frame) for frames in captured for rank, frame in enumerate(frames)]
    assert bench.raw(*every) == []
    assert bench.rejections() == {RejectReason.UNKNOWN_WORKER: 4 * 2 * 3, RejectReason.UNKNOWN_JOB: len(every)}
    assert bench.job_verdicts() == {}
    bench.check_untouched(phase=1)
