"""What two readings of a controller's Inspect tell about the time between them: goodput, loss, repairs, who comes last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchsum.p4src.layout import Verdict

if TYPE_CHECKING:
    from switchsum.protos import job_pb2 as pb

# Packets that brought something new, and packets whose like had come before.
_COUNTED = (Verdict.CONTRIBUTION.name, Verdict.COMPLETION.name)
_REPEATED = (Verdict.DUPLICATE.name, Verdict.REPAIR.name, Verdict.STALE.name)
_ELEMENT_BITS = 32
ENDED = "ended"  # JobReport.state


@dataclass(frozen=True)
class Reading:
    """An answer to Inspect, and when it came (`at`: seconds of a monotonic clock)."""

    at: float
    reply: pb.InspectReply


@dataclass(frozen=True)
class RankRates:
    """One rank over the interval. Shares are of 1; None: nothing to take a share of, or too little known.

    `goodput_bps`: bits/s of payload that the switch took from it. `repeated`: of its packets at the switch, those whose like
    had come before; they were sent again because an answer was late or lost. `lost`: of its packets, those that did not come to
    the switch, in the whole epoch, as far as the rank has told how many it sent. `last`, `last_of_run`: of the completed rows,
    those that waited for this rank, in the interval and in the whole epoch. `stale`, `mismatched`: packets, in the whole epoch.
    """

    rank: int
    host: str
    port: int
    goodput_bps: float | None
    repeated: float | None
    lost: float | None
    last: float | None
    last_of_run: float | None
    stale: int
    mismatched: int
    lease_left_s: float


@dataclass(frozen=True)
class JobRates:
    """One job over the interval; shares and counts as in RankRates, `goodput_bps` of all ranks together."""

    name: str
    tenant: str
    state: str
    epoch: int
    world_size: int
    slots: int
    age_s: float
    idle_s: float
    goodput_bps: float | None
    repeated: float | None
    stale: int
    mismatched: int
    ranks: tuple[RankRates, ...]


@dataclass(frozen=True)
class Counted:
    """A counter of the switch: its value, and what came in the interval (None if that is not known)."""

    total: int
    fresh: int | None


@dataclass(frozen=True)
class SwitchRates:
    """All of it. `rejected` by reason; `dropped`: on purpose, by (port, "in" or "out")."""

    jobs: tuple[JobRates, ...]
    rejected: Mapping[str, Counted]
    dropped: Mapping[tuple[int, str], Counted]


def elements_of(pipeline: str) -> int:
    """Elements per packet, from InspectReply.pipeline ("switchsum 1, 256 elements, lanes"); 0 if it does not tell."""
    found = re.search(r"(\d+) elements", pipeline)
    return int(found[1]) if found else 0


def grown(now: Mapping[str, int], before: Mapping[str, int] | None) -> dict[str, int] | None:
    """How much counters have grown; None if they were not known before. One that is smaller than before began anew at 0, and
    so did the others, which lie in the same memory."""
    if before is None:
        return None
    anew = any(now.get(name, 0) < number for name, number in before.items())
    return {name: number - (0 if anew else before.get(name, 0)) for name, number in now.items()}


def rates(now: Reading, before: Reading | None) -> SwitchRates:
    """What has happened between two readings; without an earlier one, what is known from one."""
    seconds = now.at - before.at if before is not None else 0.0
    if before is not None and (seconds <= 0 or before.reply.switch_problem or now.reply.switch_problem):
        before = None  # without counters nothing can be compared
    past = {_key(job): job for job in before.reply.jobs} if before is not None else {}
    packet_bits = elements_of(now.reply.pipeline) * _ELEMENT_BITS
    lease_s = now.reply.lease_s
    return SwitchRates(
        tuple(_job(job, past.get(_key(job)), packet_bits, seconds, lease_s) for job in now.reply.jobs if job.state != ENDED),
        _counted(dict(now.reply.rejected), None if before is None else dict(before.reply.rejected)),
        {
            (port, direction): counted
            for direction in ("in", "out")
            for port, counted in _dropped(now, before, direction).items()
        },
    )


def _key(job: pb.JobReport) -> tuple[str, str, int]:
    """An epoch's counters begin at 0, so the same job in another epoch is another one here."""
    return job.tenant, job.job_name, job.epoch


def _job(job: pb.JobReport, past: pb.JobReport | None, packet_bits: int, seconds: float, lease_s: float) -> JobRates:
    earlier = {worker.rank: dict(worker.verdicts) for worker in past.workers} if past is not None else {}
    fresh = {worker.rank: grown(dict(worker.verdicts), earlier.get(worker.rank)) for worker in job.workers}
    known = [counts for counts in fresh.values() if counts is not None]
    rows = sum(counts.get(Verdict.COMPLETION.name, 0) for counts in known)
    rows_of_run = sum(worker.verdicts.get(Verdict.COMPLETION.name, 0) for worker in job.workers)
    ranks = tuple(
        RankRates(
            rank=worker.rank,
            host=worker.host,
            port=worker.switch_port,
            goodput_bps=_goodput(counts, packet_bits, seconds),
            repeated=_part(counts, _REPEATED),
            lost=_lost(worker, counts, seconds, lease_s),
            last=None if counts is None else _ratio(counts.get(Verdict.COMPLETION.name, 0), rows),
            last_of_run=_ratio(worker.verdicts.get(Verdict.COMPLETION.name, 0), rows_of_run),
            stale=worker.verdicts.get(Verdict.STALE.name, 0),
            mismatched=worker.verdicts.get(Verdict.MISMATCH.name, 0),
            lease_left_s=worker.lease_left_s,
        )
        for worker, counts in ((worker, fresh[worker.rank]) for worker in job.workers)
    )
    goodputs = [rank.goodput_bps for rank in ranks if rank.goodput_bps is not None]
    together = {name: sum(counts.get(name, 0) for counts in known) for name in (*_COUNTED, *_REPEATED)}
    return JobRates(
        name=job.job_name,
        tenant=job.tenant,
        state=job.state,
        epoch=job.epoch,
        world_size=job.world_size,
        slots=job.slots,
        age_s=job.age_s,
        idle_s=job.idle_s,
        goodput_bps=sum(goodputs) if goodputs else None,
        repeated=_part(together, _REPEATED),
        stale=sum(rank.stale for rank in ranks),
        mismatched=sum(rank.mismatched for rank in ranks),
        ranks=ranks,
    )


def _goodput(fresh: Mapping[str, int] | None, packet_bits: int, seconds: float) -> float | None:
    if fresh is None or not packet_bits:
        return None
    return sum(fresh.get(name, 0) for name in _COUNTED) * packet_bits / seconds


def _part(fresh: Mapping[str, int] | None, names: tuple[str, ...]) -> float | None:
    return None if fresh is None else _ratio(sum(fresh.get(name, 0) for name in names), sum(fresh.values()))


def _lost(worker: pb.WorkerReport, fresh: Mapping[str, int] | None, seconds: float, lease_s: float) -> float | None:
    """The rank told how many it had sent when it renewed its lease, the switch counts now: what came in between, at the
    interval's rate, does not belong to it."""
    sent = int(worker.counters.get("packets_sent", 0))
    if not sent or fresh is None:
        return None
    since_told_s = max(lease_s - worker.lease_left_s, 0.0)
    arrived = float(sum(worker.verdicts.values())) - sum(fresh.values()) / seconds * since_told_s
    return min(max(sent - arrived, 0) / sent, 1.0)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _counted(now: dict[str, int], before: dict[str, int] | None) -> dict[str, Counted]:
    fresh = grown(now, before)
    return {name: Counted(total, None if fresh is None else fresh[name]) for name, total in sorted(now.items())}


def _dropped(now: Reading, before: Reading | None, direction: str) -> dict[int, Counted]:
    def by_port(reading: Reading) -> dict[str, int]:
        counts = reading.reply.dropped_in if direction == "in" else reading.reply.dropped_out
        return {str(port): number for port, number in counts.items()}

    counted = _counted(by_port(now), None if before is None else by_port(before))
    return {int(port): counts for port, counts in sorted(counted.items(), key=lambda item: int(item[0]))}
