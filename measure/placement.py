"""On how many hosts a job's workers are, where nobody says."""

from __future__ import annotations

from switchsum.measure.features import Features

# Classes whose sums never leave the host.
LOCAL = ("1w1g", "1wng", "allreduce-local", "pearl")


def evenly(workers: int, most: int) -> int:
    """The most workers of a host, up to `most`, that fill hosts evenly."""
    return next(count for count in range(min(most, workers), 0, -1) if workers % count == 0)


def per_host(features: Features, workers: int) -> int:
    """A job on one host stays there, and takes more such hosts for more workers; of others each worker has its own."""
    return evenly(workers, features.workers) if features.architecture in LOCAL else 1
