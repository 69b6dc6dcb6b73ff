"""What the traces of a job say: time shares of each rank and of all, its collectives, and what must be known to read them."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from switchsum.measure import breakdown, formulas, matching, spans
from switchsum.measure.breakdown import Parts, StepTimes
from switchsum.measure.matching import Clocks, Matched
from switchsum.measure.rows import Figure
from switchsum.measure.traces.folder import Job
from switchsum.measure.traces.kineto import Operation, Trace

SCHEMA = "switchsum-analysis/1"
SHARES = ("exposed_share", "pai_share", "overlap_share")


@dataclass(frozen=True)
class RankTimes:
    """One rank's steps, at least one; or the mean over ranks of each step that all ranks have (rank None)."""

    rank: int | None
    file: str
    steps: tuple[StepTimes, ...]

    def figure(self, name: str, unit: float = 1.0) -> Figure:
        """Mean over steps of one of StepTimes' fields or shares, with its interval over steps. `unit`: how many of it make one,
        such as 100 for per cent and 1e3 for milliseconds."""
        return Figure.of([unit * getattr(step, name) for step in self.steps])

    def as_json(self) -> dict[str, Any]:
        shares = [{name: getattr(step, name) for name in SHARES} for step in self.steps]
        means = {name: _figure_json(self.figure(name)) for name in (*breakdown.TIMES, *SHARES)}
        steps = [{**asdict(step), **share} for step, share in zip(self.steps, shares, strict=True)]
        return {"rank": self.rank, "file": self.file, "mean": means, "steps": steps}


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one kind, group size and message size.

    a_step: how many one rank has in a step. time_s: mean duration, over operations and ranks. transfer_s: mean of the shortest
    duration over ranks, in which nobody waits for a peer; None where collectives of ranks could not be put together.
    algbw, busbw: GB/s (1e9 bytes), as nccl-tests defines them, from transfer_s; None where size or group is not known.
    """

    name: str
    collective: str
    ranks: int | None
    size_bytes: int | None
    dtype: str
    a_step: float
    time_s: float
    transfer_s: float | None
    algbw: float | None
    busbw: float | None

    @property
    def wait_s(self) -> float | None:
        return None if self.transfer_s is None else self.time_s - self.transfer_s


@dataclass
class Analysis:
    """unclassified: seconds of a step, mean over ranks, by name. parts: what ran when, by rank, for pictures."""

    source: str
    world_size: int | None
    backend: str
    device: bool
    ranks: list[RankTimes]
    over_ranks: RankTimes | None
    collectives: list[CollectiveRow]
    unclassified: dict[str, float]
    clocks: Clocks | None
    notes: list[str]
    traces: dict[int, Trace] = field(repr=False)
    parts: dict[int, Parts] = field(repr=False)

    @classmethod
    def of(cls, job: Job, source: str) -> Analysis:
        """`source`: where the traces are, for the reader."""
        traces = job.traces
        matched = matching.match(traces)
        parts = {rank: Parts.of(trace, matched.waits) for rank, trace in traces.items()}
        ranks = [RankTimes(rank, trace.path.name, tuple(breakdown.steps(trace, parts[rank]))) for rank, trace in traces.items()]
        over_ranks = _over_ranks(ranks)
        return cls(
            source=source,
            world_size=next((trace.world_size for trace in traces.values() if trace.world_size is not None), None),
            backend=", ".join(dict.fromkeys(trace.backend for trace in traces.values() if trace.backend)),
            device=any(trace.device for trace in traces.values()),
            ranks=ranks,
            over_ranks=over_ranks,
            collectives=_collectives(traces, matched),
            unclassified=_unclassified(traces),
            clocks=matching.clocks(traces, matched) if len(traces) > 1 else None,
            notes=[*_notes(traces, matched, over_ranks), *job.notes],
            traces=traces,
            parts=parts,
        )

    @property
    def whole(self) -> RankTimes:
        """All ranks together; where they have no step in common, the first."""
        return self.over_ranks or self.ranks[0]

    def as_json(self) -> dict[str, Any]:
        """Times in seconds; clocks in microseconds. What is not known is null."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "world_size": self.world_size,
            "backend": self.backend,
            "computation": "kernels" if self.device else "operators",
            "ranks": [each.as_json() for each in self.ranks],
            "over_ranks": None if self.over_ranks is None else self.over_ranks.as_json(),
            "collectives": [{**asdict(each), "wait_s": each.wait_s} for each in self.collectives],
            "unclassified_s": self.unclassified,
            "clocks": None if self.clocks is None else asdict(self.clocks),
            "notes": self.notes,
        }

    def save(self, path: Path) -> None:
        """Raises OSError."""
        path.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False))


def _figure_json(figure: Figure) -> dict[str, float | None]:
    return {"mean": figure.mean, "ci95": figure.ci95 if len(figure.runs) > 1 else None}


def _over_ranks(ranks: Sequence[RankTimes]) -> RankTimes | None:
    by_rank = [{step.number: step for step in each.steps} for each in ranks]
    shared = [number for number in by_rank[0] if all(number in steps for steps in by_rank)]
    if not shared:
        return None
    means = [
        StepTimes(
            number, **{name: statistics.fmean(getattr(steps[number], name) for steps in by_rank) for name in breakdown.TIMES}
        )
        for number in shared
    ]
    return RankTimes(None, "", tuple(means))


def _collectives(traces: dict[int, Trace], matched: Matched) -> list[CollectiveRow]:
    steps = sum(len(trace.steps) for trace in traces.values())
    kinds: dict[tuple[Any, ...], list[Operation]] = defaultdict(list)
    shortest: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for trace in traces.values():
        for each in trace.operations:
            if trace.step_of(each.begin) is not None:
                kinds[_kind(trace, each)].append(each)
    for by_rank in matched.together:
        rank, each = next(iter(by_rank.items()))
        if traces[rank].step_of(each.begin) is not None:
            shortest[_kind(traces[rank], each)].append(min(each.duration for each in by_rank.values()))
    rows = []
    for kind, operations in kinds.items():
        collective, ranks, size_bytes, dtype, name = kind
        transfer_s = 1e-6 * statistics.fmean(shortest[kind]) if kind in shortest else None
        algbw = formulas.algbw(size_bytes, transfer_s) if size_bytes and transfer_s else None
        factor = _BUS_FACTORS.get(collective)
        rows.append(
            CollectiveRow(
                name=name,
                collective=collective,
                ranks=ranks,
                size_bytes=size_bytes,
                dtype=dtype,
                a_step=len(operations) / steps,
                time_s=1e-6 * statistics.fmean(each.duration for each in operations),
                transfer_s=transfer_s,
                algbw=algbw,
                busbw=algbw * factor(ranks) if algbw and factor and ranks else None,
            )
        )
    return sorted(rows, key=lambda row: row.a_step * row.time_s, reverse=True)


def _kind(trace: Trace, operation: Operation) -> tuple[Any, ...]:
    """Where a trace tells no group but has only one, that is the group."""
    ranks = operation.size or (trace.world_size if trace.groups == 1 else None)
    return (operation.collective, ranks, operation.size_bytes, operation.dtype, operation.name)


def _half(ranks: int) -> float:
    return (ranks - 1) / ranks


# What busbw is of algbw, as in nccl-tests' PERFORMANCE.md; sizes are those of the whole array.
_BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": formulas.bus_factor,
    "reducescatter": _half,
    "allgather": _half,
    "alltoall": _half,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
}


def _unclassified(traces: dict[int, Trace]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for trace in traces.values():
        for name, times in trace.unclassified.items():
            inside = sum(spans.length(spans.clip(times, step.begin, step.end)) for step in trace.steps)
            seconds[name] += 1e-6 * inside / len(trace.steps) / len(traces)
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


def _notes(traces: dict[int, Trace], matched: Matched, over_ranks: RankTimes | None) -> list[str]:
    """What a reader must know to read the figures right."""
    notes = []
    world = max((trace.world_size or 0 for trace in traces.values()), default=0)
    if len(traces) < world:
        waits = "what ranks wait for peers is counted as transfer" if len(traces) == 1 else "waiting is at least what is said"
        notes.append(f"traces of {len(traces)} of {world} ranks: {waits}")
    if matched.unmatched:
        notes.append(
            f"{matched.unmatched} collectives have no partner of the same size on the other ranks: what they wait counts as "
            "transfer"
        )
    groups = max(trace.groups for trace in traces.values())
    if groups > 1 and any(not each.group for trace in traces.values() for each in trace.operations):
        notes.append(f"the traces do not say which of {groups} process groups a collective is of: all ranks count as peers")
    alone = sum(trace.alone for trace in traces.values())
    if alone:
        notes.append(f"collectives of groups of one rank move nothing, and are no communication: {alone} are left out")
    unmeasured: dict[str, int] = defaultdict(int)
    for trace in traces.values():
        for name, count in trace.unmeasured.items():
            unmeasured[name] += count if trace.world_size != 1 else 0
    if any(unmeasured.values()):
        what = ", ".join(f"{name} {count} times" for name, count in unmeasured.items() if count)
        notes.append(
            f"collectives were issued ({what}), but nothing in the traces tells how long they took: communication is NOT in "
            "these figures. With NCCL, profile with ProfilerActivity.CUDA"
        )
    if over_ranks is None:
        notes.append("the ranks have no step in common: there are no figures over ranks")
    elif any(len(trace.steps) > len(over_ranks.steps) for trace in traces.values()):
        notes.append(f"over ranks, only the {len(over_ranks.steps)} steps count that all have")
    return notes
