"""A step's sums, one after the other, beside its backward pass: what a schedule of buckets hides, and what it leaves.

As DistributedDataParallel does it, bucket by bucket in their order: a sum starts when its bucket is ready and the sum before it
has ended; the step goes on when the last one has. Sums neither slow down computing nor each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from switchsum.measure.costs import Cost

Part = tuple[float, float]  # a bucket: bytes, and seconds since backward's begin at which it is ready


def ends(buckets: Sequence[Part], cost: Cost) -> list[float]:
    """When each bucket's sum has ended, in seconds since backward's begin. The link had a pause before the first."""
    now, idle_from, credit_s = 0.0, 0.0, cost.credit_s
    found = []
    for size_bytes, ready_s in buckets:
        begins = max(now, ready_s)
        moves = begins if cost.overlaps else begins + cost.latency_s
        seconds, credit_s = cost.moving(size_bytes, cost.refilled(credit_s, moves - idle_from))
        idle_from = moves + seconds
        now = max(idle_from, begins + cost.latency_s)
        found.append(now)
    return found


def back_to_back(buckets: Sequence[Part], cost: Cost) -> float:
    """Seconds that the sums take if all buckets are ready at once."""
    return ends([(size_bytes, 0.0) for size_bytes, _ in buckets], cost)[-1] if buckets else 0.0
