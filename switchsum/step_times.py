"""Where a training step's time went: marks set while it runs, made into seconds afterwards.

A step is, without overlap, input (waiting for the DataLoader), communication that nothing hid, computing, and a rest: what the
script did before it asked for the step's first batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

Span = tuple[float, float]


class Clock(Protocol):
    """Sets marks, and tells seconds between two of them once settle() has returned."""

    def mark(self) -> Any: ...

    def seconds(self, origin: Any, mark: Any) -> float: ...

    def settle(self) -> None: ...


class HostClock:
    """For trainings on CPUs, where an operation has ended when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, origin: float, mark: float) -> float:
        return mark - origin

    def settle(self) -> None:
        pass


class DeviceClock:
    """For trainings on a GPU: a mark is an event in the current stream, so it tells when the device got there, not the host.

    What the host does while the device is busy takes no time on this clock, as it takes none of the step's.
    """

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, origin: Any, mark: Any) -> float:
        return float(origin.elapsed_time(mark)) / 1e3

    def settle(self) -> None:
        torch.cuda.synchronize()


@dataclass
class Sums:
    """Of the buckets of one module in one backward pass: when computing had ended, and when each was summed."""

    computed: Any = None
    done: list[Any] = field(default_factory=list)


class ReadyBucket(NamedTuple):
    """`ready`: when it was. Of a sparse gradient, size_bytes is what it stores, a row as often as it was looked up: it takes
    computing to tell rows apart."""

    size_bytes: int
    dtype: str
    ready: Any
    sparse: bool = False

    @property
    def form(self) -> tuple[str, int | None]:
        """What is the same in every step: type, and size unless it is sparse."""
        return self.dtype, None if self.sparse else self.size_bytes


@dataclass
class StepMarks:
    """Of one step. `fetches`: waiting for batches; `waits`: handing buckets over to be summed, and being blocked in other
    collectives; `passes`: backward passes."""

    began: Any
    ended: Any = None
    fetches: list[tuple[Any, Any]] = field(default_factory=list)
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    passes: list[tuple[Any, Any]] = field(default_factory=list)
    sums: list[Sums] = field(default_factory=list)
    buckets: list[ReadyBucket] = field(default_factory=list)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step.

    exposed_s: handing buckets over to be summed, blocked in other collectives and, of each backward pass, from the end of its
    computing to the end of its last bucket's sum. compute_s: the step from its first fetch on (from its begin without one),
    less input and exposed communication. forward_s: of that, what comes before the first backward pass that sums gradients
    (the last pass, if none does), and backward_s: what comes from there to the end of the last backward pass; the optimizer
    comes after it. ready_s: of each bucket, computing from the begin of that pass until it was ready.
    """

    step_s: float
    compute_s: float
    input_s: float
    exposed_s: float
    forward_s: float
    backward_s: float
    ready_s: tuple[float, ...]

    @classmethod
    def of(cls, marks: StepMarks, clock: Clock) -> StepTimes:
        """`clock` has settled."""

        def at(mark: Any) -> float:
            return clock.seconds(marks.began, mark)

        step_s = at(marks.ended)
        fetches, waits, passes = ([(at(a), at(b)) for a, b in spans] for spans in (marks.fetches, marks.waits, marks.passes))
        exposed = waits + [_exposed(at(sums.computed), map(at, sums.done), passes) for sums in marks.sums if sums.computed]
        busy_else = fetches + exposed

        def computing(begin: float, end: float) -> float:
            return max(0.0, end - begin - _within(busy_else, begin, end))

        # A batch that is fetched behind the backward pass is the next step's.
        first_s = fetches[0][0] if fetches and (not passes or fetches[0][0] < passes[0][0]) else 0.0
        buckets = [at(bucket.ready) for bucket in marks.buckets]
        summing = [span for span in passes if any(span[0] <= ready <= span[1] for ready in buckets)]
        backward = (summing or passes[-1:] or [(step_s, step_s)])[0]
        return cls(
            step_s=step_s,
            compute_s=computing(first_s, step_s),
            input_s=_within(fetches, 0.0, step_s),
            exposed_s=_within(exposed, 0.0, step_s),
            forward_s=computing(first_s, backward[0]),
            backward_s=computing(backward[0], passes[-1][1]) if passes else 0.0,
            ready_s=tuple(computing(backward[0], ready) for ready in buckets),
        )


def _exposed(computed_s: float, done: Any, passes: Sequence[Span]) -> Span:
    """The pass ends when DDP has waited for all sums, so what a callback that came late says beyond that is not true."""
    end_s = next((end for begin, end in passes if begin <= computed_s <= end), computed_s)
    return computed_s, max(computed_s, min(end_s, max(done, default=computed_s)))


def _within(spans: Sequence[Span], begin: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in spans)
