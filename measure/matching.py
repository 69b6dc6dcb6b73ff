"""Puts collectives of several ranks together: which are the same, who waited for whom, how far clocks are apart."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from switchsum.measure import formulas
from switchsum.measure.traces import names
from switchsum.measure.traces.kineto import Operation, Trace


@dataclass(frozen=True)
class Clocks:
    """offset_us: of each rank, what its clock is ahead of the first one's; residual: how far apart the ends of the same
    collectives are once that is taken off, median and largest, in microseconds. collectives: how many that rests on."""

    offset_us: dict[int, float]
    residual_median_us: float
    residual_largest_us: float
    collectives: int


@dataclass
class Matched:
    """together: the same collective, by rank. waits: by id() of an operation, how long its rank waited for peers, in
    microseconds: its duration less the shortest of all ranks (TraceLens' reading). unmatched: operations without a partner."""

    together: list[dict[int, Operation]]
    waits: dict[int, float]
    unmatched: int


def match(traces: Mapping[int, Trace]) -> Matched:
    """By the group's sequence number where the traces have it, else by the order inside a step, of group, kind and size."""
    places: dict[int, dict[Hashable, Operation]] = {rank: _places(trace) for rank, trace in traces.items()}
    together: dict[Hashable, dict[int, Operation]] = defaultdict(dict)
    for rank, operations in places.items():
        for key, operation in operations.items():
            together[key][rank] = operation
    complete, waits, unmatched = [], {}, 0
    for by_rank in together.values():
        ranks = next((each.ranks for each in by_rank.values() if each.ranks), None)
        expected = set(traces) & set(ranks) if ranks else set(traces)
        sizes = {each.size_bytes for each in by_rank.values()}
        alike = len(sizes) == 1 or next(iter(by_rank.values())).collective not in ("allreduce", "broadcast")
        if len(by_rank) < 2 or set(by_rank) != expected or not alike:
            unmatched += len(by_rank)
            continue
        complete.append(by_rank)
        shortest = min(each.duration for each in by_rank.values())
        for each in by_rank.values():
            waits[id(each)] = each.duration - shortest
    return Matched(complete, waits, unmatched if len(traces) > 1 else 0)


def _places(trace: Trace) -> dict[Hashable, Operation]:
    """Each collective by what the other ranks must have, too. Sends and receives are the affair of two, and left out."""
    counts: dict[Hashable, int] = defaultdict(int)
    found: dict[Hashable, Operation] = {}
    for operation in trace.operations:
        if operation.collective in ("send", "recv"):
            continue
        group = (operation.group, operation.ranks, operation.collective)
        key: tuple[Hashable, ...]
        if operation.seq is not None or operation.comms_id is not None:
            key = ("number", *group, operation.seq, operation.comms_id)
        else:
            step = trace.step_of(operation.begin)
            if step is None:
                continue
            key = ("order", *group, step, operation.size_bytes)
        found[(*key, counts[key])] = operation
        counts[key] += 1
    return found


def clocks(traces: Mapping[int, Trace], matched: Matched) -> Clocks | None:
    """From the ends of collectives that no rank can leave before all have come; None if there are none."""
    ends = [
        {rank: traces[rank].base_us + each.end for rank, each in by_rank.items()}
        for by_rank in matched.together
        if set(by_rank) == set(traces) and next(iter(by_rank.values())).collective in names.SYNCHRONOUS
    ]
    if not ends:
        return None
    first = next(iter(traces))
    offset = {rank: statistics.median(each[rank] - each[first] for each in ends) for rank in traces}
    spread = [max(moments) - min(moments) for each in ends if (moments := [each[rank] - offset[rank] for rank in traces])]
    return Clocks(offset, formulas.percentile(spread, 0.5), max(spread), len(ends))
