"""What an experiment leaves: every iteration of every rank, and what was counted beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Turn:
    """One run: iterations of one transport and size without another's in between. Lists by iteration, then by rank."""

    number: int
    seconds: list[list[float]] = field(default_factory=list)
    cpu_s: list[list[float]] = field(default_factory=list)  # of worker processes, all threads
    switch_cpu_s: float | None = None  # None: no switch on this machine, or none in this transport's way
    machine_busy_ticks: int = 0
    machine_ticks: int = 0
    link_bytes: list[tuple[int, int]] = field(default_factory=list)  # by rank: (sent, received)
    resent: int | None = None  # packets or TCP segments, all ranks
    lost: int = 0
    queue_drops: int | None = None  # what shapers of the links dropped, where there are any

    @property
    def slowest_s(self) -> list[float]:
        """The time of each iteration: the slowest rank's."""
        return [max(ranks) for ranks in self.seconds]


@dataclass
class Series:
    """One row's samples. `size_bytes` of one rank's tensor."""

    transport: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    ranks: int
    link_rate_bps: int | None = None
    link_source: str = ""  # "tbf", "interface" or "payload": see crew.Crew.carried
    wrong: int | None = None  # None: nothing is summed
    checked: int = 0  # elements
    warmup_s: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    # Of a run of its own, by rank: seconds of each stage of the data path, and packets that the rank received in it.
    stages: list[tuple[dict[str, float], int]] = field(default_factory=list)

    def times(self) -> list[float]:
        """Of all iterations, in the order in which they ran."""
        return [time for turn in self.turns for time in turn.slowest_s]


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None if none of them is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
