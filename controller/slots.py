"""Which range of slots a demand gets, between those that are taken."""

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_SLOTS = 16  # fewer are worth nothing to a job that did not ask for so few


@dataclass(frozen=True)
class Demand:
    """`most` slots if there are as many in a row, no fewer than `least`.

    `polite`: nobody asked for a number, so it takes at most half of the largest gap: a job's groups, each one a job here, or
    another user's, should still find some.
    """

    most: int
    least: int
    polite: bool = False

    @classmethod
    def of(cls, slots: int, least_slots: int, default: int) -> "Demand":
        """What an application asks for: `slots` (0: the `default`), content with `least_slots` (0: no fewer than asked)."""
        if slots:
            return cls(slots, least_slots or slots)
        return cls(default, least_slots or min(default, LEAST_SLOTS), polite=True)

    def take(self, gaps: list[range]) -> range | None:
        """The first place for as many as it may get; None if no gap has room for the least."""
        largest = max(map(len, gaps), default=0)
        if largest < self.least:
            return None
        wanted = min(self.most, max(largest // 2, self.least) if self.polite else largest)
        start = next(gap.start for gap in gaps if len(gap) >= wanted)
        return range(start, start + wanted)

    def __str__(self) -> str:
        if self.polite or self.least == self.most:
            return f"{self.least} slots"
        return f"{self.most} slots, {self.least} at least"


def gaps(total: int, taken: Iterable[range]) -> list[range]:
    """The free ranges of slots 0 to `total` - 1, in order; the `taken` ones may overlap."""
    free, start = [], 0
    for held in sorted(taken, key=lambda one: one.start):
        if held.start > start:
            free.append(range(start, held.start))
        start = max(start, held.stop)
    return [*free, range(start, total)] if start < total else free


def overlap(one: range, other: range) -> bool:
    """Whether two ranges have a slot in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)
