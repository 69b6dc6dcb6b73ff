"""The arithmetic of the table: bandwidths as nccl-tests defines them, percentiles, and what limited a row.

algbw = S / t with S the bytes of one rank's tensor and t the time of the slowest rank. busbw = algbw * 2(n-1)/n, nccl-tests'
factor for allreduce. The factor holds for algorithms made of point-to-point messages; a switch that adds carries S in each
direction of a link, so that busbw may exceed the link's rate, up to twofold. What the link carried is measured beside it.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

_ROUNDING = 1e-12  # of sums of weights
GIGA = 1e9  # bandwidths are decimal, sizes binary
MEGA = 1e6

# A full link: tbf counts all headers, and pauses between operations are not timed; what is missing to 100 % is start and end of
# each operation. More than 100 % passes only on the credit that a token bucket gathers in a pause, and what passes on credit is
# not held back. A busy machine: waiting for each other leaves a fifth of two cores idle, or a little more
# (docs/measurements.md). A process that is its own limit: one thread that never waits.
FULL_LINK = 0.90
ON_CREDIT = 1.05
BUSY_MACHINE = 0.75
BUSY_PROCESS = 0.95


def algbw(size_bytes: float, seconds: float) -> float:
    """GB/s."""
    return size_bytes / seconds / GIGA


def bus_factor(ranks: int) -> float:
    """What busbw is of algbw for allreduce."""
    return 2 * (ranks - 1) / ranks


def percentile(samples: Sequence[float], share: float, weights: Sequence[float] | None = None) -> float:
    """The least sample that at least `share` of all samples do not exceed (nearest rank): always a sample that was seen.

    `weights`: how many each of them stands for; None: one.
    """
    ordered = sorted(zip(samples, [1.0] * len(samples) if weights is None else weights, strict=True))
    reached = list(itertools.accumulate(weight for _, weight in ordered))
    wanted = share * reached[-1] * (1 - _ROUNDING)
    return ordered[bisect.bisect_left(reached, wanted)][0]


def limited_by(link_share: float | None, machine_busy: float, process_busy: float) -> str:
    """`link`, `burst`, `cpu` or `-`. `link_share`: of the link's rate, None where it has none; `process_busy`: CPU seconds a
    second that the busiest process used. `burst`: the link carried more than its rate, on credit from a pause before."""
    if link_share is not None and link_share >= FULL_LINK:
        return "link" if link_share <= ON_CREDIT else "burst"
    if machine_busy >= BUSY_MACHINE or process_busy >= BUSY_PROCESS:
        return "cpu"
    return "-"


def iterations_for(median_s: float, wanted_s: float, most: int) -> int:
    """How many operations of `median_s` fill `wanted_s`: at least one, at most `most`."""
    return max(1, min(most, math.ceil(wanted_s / max(median_s, 1e-9))))
