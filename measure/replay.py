"""A step's sums beside its backward pass: what a schedule of buckets hides, and what it leaves.

As DistributedDataParallel does it, bucket by bucket in their order: a sum starts when its bucket is ready and, where k are
under way at once, the k-th before it has ended. The link is for one at a time, in the same order; latencies pass side by side.
The step goes on when the last sum has ended. Sums do not slow down computing.
"""

from __future__ import annotations

from collections.abc import Sequence

from switchsum.measure.costs import Cost

Part = tuple[float, float]  # a bucket: bytes, and seconds since backward's begin at which it is ready


def ends(buckets: Sequence[Part], cost: Cost) -> list[float]:
    """When each bucket's sum has ended, in seconds since backward's begin. The link had a pause before the first."""
    free_s, credit_s = 0.0, cost.credit_s
    found: list[float] = []
    for number, (size_bytes, ready_s) in enumerate(buckets):
        starts_s = max(ready_s, found[number - cost.at_once] if number >= cost.at_once else 0.0)
        moves_s = max(starts_s + cost.latency_s, free_s)
        seconds, credit_s = cost.moving(size_bytes, cost.refilled(credit_s, moves_s - free_s))
        free_s = moves_s + seconds
        found.append(free_s)
    return found


def back_to_back(buckets: Sequence[Part], cost: Cost) -> float:
    """Seconds that the sums take if all buckets are ready at once."""
    return ends([(size_bytes, 0.0) for size_bytes, _ in buckets], cost)[-1] if buckets else 0.0
