"""The protocol of every benchmark (DESIGN section 8; gloo's benchmark runner is the model).

For each payload: every transport is verified and warmed up. Then the transports take turns, run by run, so that what else the
machine does meets all alike. After each run its last result is verified again. What differs between benchmarks is how a run
is made: see allreduce.AllReduce and calls.Calls.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchsum.measure import processor, resources
from switchsum.measure.clock import machine
from switchsum.measure.crew import Crew
from switchsum.measure.manifest import Buffer
from switchsum.measure.samples import Carried, Run, Series

_IDLE_S = 0.5  # in which nothing of ours runs
_LEAD_NS = 300_000  # between "go" and the common start: reading the message, and
_LEAD_PER_RANK_NS = 150_000  # waking a rank, on two cores that all of them share
_JOIN_S, _JOIN_PER_RANK_S = 60.0, 10.0  # importing torch takes a core two to four seconds

Told = Callable[[str, int, int], None]  # what is going on, step, of steps
Measured = Callable[[Series], None]  # a row is complete


@dataclass(frozen=True)
class Way:
    """How payloads travel. `mode`: "serialized" or "non-serialized" where there is a choice, else "". `compiled`: whether it
    uses the packet engine, which is compiled beforehand."""

    transport: str
    mode: str = ""
    needs_switch: bool = False
    compiled: bool = False

    @property
    def name(self) -> str:
        """Unique in a plan; what workers know it by."""
        return f"{self.transport}/{self.mode}" if self.mode else self.transport

    @property
    def label(self) -> str:
        return f"{self.transport} {self.mode}" if self.mode == "serialized" else self.transport


@dataclass(frozen=True)
class Case:
    """A payload by name: the buffers of one operation, of one worker."""

    payload: str
    buffers: Sequence[Buffer]

    @property
    def size_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)


@dataclass(frozen=True)
class Plan:
    """What to measure. `elements`: 32-bit numbers a packet. `duration_s`: of a run."""

    ways: Sequence[Way]
    cases: Sequence[Case]
    workers: int
    servers: int = 0
    redop: str = "sum"
    elements: int = 256
    repeat: int = 5
    duration_s: float = 10.0
    warmup_s: float = 2.0
    seed: int = 0
    ip: str = ""  # where parameter servers listen; "": each at its host's own address
    port: int = 0  # the first of theirs; 0: any
    timeout_s: float = 120.0
    check: bool = False  # whether every operation's result is verified, instead of one after each run
    stages: bool = False  # whether to tell where the data path's time goes, in a run that is not timed


class Experiment(ABC):
    """Runs a plan. `crews`: name of a Way -> the processes that run it; several may share a crew.

    `busy_before`: share of the machine's cores that others used when all ranks were there and idle.
    """

    benchmark: str
    busy_before = 0.0

    def __init__(self, plan: Plan, crews: Mapping[str, Crew], told: Told, measured: Measured) -> None:
        self._plan, self._crews, self._told, self._measured = plan, crews, told, measured
        self._steps = 1 + len(plan.cases) * len(plan.ways) * (1 + plan.repeat)
        self._step = 0
        self.timeline = resources.Timeline()
        here = machine()
        self._one_clock = {id(crew): all(hello["machine"] == here for hello in crew.hellos) for crew in crews.values()}

    @property
    def _used_crews(self) -> dict[str, Crew]:
        return {way.name: self._crews[way.name] for way in self._plan.ways}

    @property
    def _distinct_crews(self) -> list[Crew]:
        return list({id(self._crews[way.name]): self._crews[way.name] for way in self._plan.ways}.values())

    def run(self) -> list[Series]:
        """Everything, in the order of the table: by payload, then by transport. Raises BenchmarkFailed."""
        self._tell("ranks meet")
        for crew in self._distinct_crews:
            if any(self._needs_torch(way) for way in self._plan.ways if self._crews[way.name] is crew):
                members = self._members(crew)
                patience_s = _JOIN_S + _JOIN_PER_RANK_S * len(members)
                told = {"rendezvous": crew.site.rendezvous, "ranks": len(members), "timeout_s": self._plan.timeout_s}
                crew.ask_each("import_torch", patience_s, {rank: {} for rank in members})
                crew.ask_each("join", patience_s, dict.fromkeys(members, told))
        for way in self._plan.ways:
            self._open(way)
        busy, ticks = processor.machine_ticks()
        time.sleep(_IDLE_S)
        busy_after, ticks_after = processor.machine_ticks()
        self.busy_before = (busy_after - busy) / max(1, ticks_after - ticks)
        watch = resources.Watch(self._used_crews)
        try:
            series = [each for case in self._plan.cases for each in self._measure(case)]
        finally:
            self.timeline.tracks = watch.stop()
        self.timeline.tracks += resources.of_ranks(self._used_crews, machine(), self._plan.timeout_s)
        for crew in self._distinct_crews:
            crew.ask("leave", self._plan.timeout_s)
            crew.ask("end", self._plan.timeout_s)
            crew.dismiss()
        return series

    def _tell(self, what: str) -> None:
        self._step += 1
        self._told(what, self._step, self._steps)

    @abstractmethod
    def _needs_torch(self, way: Way) -> bool:
        """Whether it needs torch.distributed's default group."""

    def _members(self, crew: Crew) -> range:
        """Of that group, the first ranks."""
        return range(crew.ranks)

    def _ranks(self, way: Way) -> range:
        """Those that have a part in this way."""
        return range(self._crews[way.name].ranks)

    @abstractmethod
    def _open(self, way: Way) -> None:
        """Connect the ranks."""

    @abstractmethod
    def _load(self, case: Case) -> None:
        """Give the ranks the payload of the next rows."""

    @abstractmethod
    def _series(self, case: Case, way: Way) -> Series:
        """An empty row."""

    @abstractmethod
    def _warm_up(self, row: Series, way: Way) -> None:
        """Operations for plan.warmup_s."""

    @abstractmethod
    def _operate(self, row: Series, way: Way, run: Run) -> None:
        """A run's operations: its seconds, elapsed_s, usage and serialize_s."""

    @abstractmethod
    def _check(self, row: Series, way: Way) -> None:
        """Verify a result: row.wrong and row.checked."""

    def _after(self, row: Series, way: Way) -> None:  # noqa: B027  what most benchmarks need not do
        """When all runs of a row are made."""

    def _measure(self, case: Case) -> list[Series]:
        self._load(case)
        rows = [self._series(case, way) for way in self._plan.ways]
        both = list(zip(rows, self._plan.ways, strict=True))
        for row, way in both:
            self._tell(f"{way.label} verifies and warms up")
            self._check(row, way)
            self._warm_up(row, way)
        for number in range(self._plan.repeat):
            for row, way in both:
                self._tell(f"{way.label}, run {number + 1} of {self._plan.repeat}")
                self._run(row, way, number)
        for row, way in both:
            self._after(row, way)
            self._measured(row)
        return rows

    def _run(self, row: Series, way: Way, number: int) -> None:
        run = Run(number)
        self.timeline.marks.append((time.monotonic(), f"{row.benchmark} {way.label} {row.payload} run {number + 1}"))
        before = self._count(way)
        busy, ticks = processor.machine_ticks()
        self._operate(row, way, run)
        busy_after, ticks_after = processor.machine_ticks()
        if not run.machine_ticks:
            run.machine_busy_ticks, run.machine_ticks = busy_after - busy, ticks_after - ticks
        after = self._count(way)
        self._account(row, run, way, before, after)
        row.runs.append(run)
        self._check(row, way)

    def _count(self, way: Way) -> tuple[list[dict[str, Any]], list[Carried] | None]:
        crew = self._crews[way.name]
        asked = {"way": way.name}
        answers = crew.ask_each("counters", self._plan.timeout_s, dict.fromkeys(self._ranks(way), asked))
        return answers, crew.site.link_counters()

    def _account(
        self,
        row: Series,
        run: Run,
        way: Way,
        before: tuple[list[dict[str, Any]], list[Carried] | None],
        after: tuple[list[dict[str, Any]], list[Carried] | None],
    ) -> None:
        """What the links carried, and what was sent again or lost, between two counts."""
        if before[1] is not None and after[1] is not None:
            row.link_source = "tbf"
            hosts = len(set(row.hosts))  # the first ones; what has no part in this way may have links, too
            old, new = before[1][:hosts], after[1][:hosts]
        else:
            # An interface that ranks share, or loopback, tells nothing about one of them.
            hellos = [self._crews[way.name].hellos[rank] for rank in self._ranks(way)]
            alone = all(hello["alone"] and hello["interface"] not in ("", "lo") for hello in hellos)
            row.link_source = source = "interface" if alone else "payload"
            old, new = ([Carried(**answer[source]) for answer in answers] for answers in (before[0], after[0]))
        run.carried = [end.since(start) for end, start in zip(new, old, strict=True)]
        ends, starts = ([Carried(**answer["payload"]) for answer in answers] for answers in (after[0], before[0]))
        run.payload = [end.since(start) for end, start in zip(ends, starts, strict=True)]
        run.resent_bytes = [end["resent_bytes"] - start["resent_bytes"] for end, start in zip(after[0], before[0], strict=True)]
        if after[0][0]["resent"] is not None:
            run.resent = sum(end["resent"] - start["resent"] for end, start in zip(after[0], before[0], strict=True))
        run.lost = sum(end["lost"] - start["lost"] for end, start in zip(after[0], before[0], strict=True))

    def _start_ns(self, crew: Crew) -> int | None:
        """A moment that all ranks can make, on CLOCK_MONOTONIC; None where their clocks differ."""
        if not self._one_clock[id(crew)]:
            return None
        return time.monotonic_ns() + _LEAD_NS + _LEAD_PER_RANK_NS * crew.ranks
