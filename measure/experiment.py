"""The protocol of the experiment (DESIGN section 8; gloo's benchmark runner is the model).

For each size: every transport's sum is verified, then it warms up, and the median of that tells how many iterations fill a
turn; all ranks run as many. Then the transports take turns, so that what else the machine does meets all alike. An iteration
begins at the same moment on all ranks and its time is the slowest rank's. Each turn's last result is verified again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from switchsum.measure import formulas, processor
from switchsum.measure.crew import Crew
from switchsum.measure.payload import ITEM_BYTES, differing_elements
from switchsum.measure.samples import Series, Turn
from switchsum.measure.transports import DESCRIPTIONS
from switchsum.measure.worker import machine

MOST_ITERATIONS = 400  # a turn
_IDLE_S = 0.5  # in which nothing of ours runs
_WARMUP_S = 3.0  # more warming up than that changes nothing
_LEAD_NS = 300_000  # between "go" and the common start: reading the message, and
_LEAD_PER_RANK_NS = 150_000  # waking a rank, on two cores that all of them share
_JOIN_S, _JOIN_PER_RANK_S = 60.0, 10.0  # importing torch takes a core two to four seconds

Told = Callable[[str, int, int], None]  # what is going on, step, of steps
Measured = Callable[[Series], None]  # a row is complete


@dataclass(frozen=True)
class Plan:
    """What to measure. `sizes`: bytes of one rank's tensor. `elements`: 32-bit numbers a packet."""

    sizes: Sequence[int]
    transports: Sequence[str]
    dtype: str = "float32"
    redop: str = "sum"
    elements: int = 256
    turns: int = 5
    turn_s: float = 0.5
    warmup: int = 3
    seed: int = 1
    timeout_s: float = 120.0
    stages: bool = False  # whether to tell where the data path's time goes, in a run that is not timed


class Experiment:
    """Runs a plan. `crews`: transport -> the ranks that run it; several transports may share a crew.

    `busy_before`: share of the machine's cores that others used when all ranks were there and idle.
    """

    busy_before = 0.0

    def __init__(self, plan: Plan, crews: Mapping[str, Crew], told: Told, measured: Measured) -> None:
        self._plan, self._crews, self._told, self._measured = plan, crews, told, measured
        self._steps = 1 + len(plan.sizes) * len(plan.transports) * (1 + plan.turns)
        self._step = 0
        self._compares: dict[str, bool] = {}
        here = machine()
        self._one_clock = {id(crew): all(hello["machine"] == here for hello in crew.hellos) for crew in crews.values()}

    @property
    def _distinct_crews(self) -> list[Crew]:
        return list({id(self._crews[name]): self._crews[name] for name in self._plan.transports}.values())

    def run(self) -> list[Series]:
        """Everything, in the order of the table: by size, then by transport. Raises BenchmarkFailed."""
        self._tell("ranks meet")
        for crew in self._distinct_crews:
            patience_s = _JOIN_S + _JOIN_PER_RANK_S * crew.ranks
            crew.ask("join", patience_s, rendezvous=crew.site.rendezvous, timeout_s=self._plan.timeout_s)
        for name in self._plan.transports:
            self._open(name)
        busy, ticks = processor.machine_ticks()
        time.sleep(_IDLE_S)
        busy_after, ticks_after = processor.machine_ticks()
        self.busy_before = (busy_after - busy) / max(1, ticks_after - ticks)
        series = [each for size in self._plan.sizes for each in self._measure(size)]
        for crew in self._distinct_crews:
            crew.ask("leave", self._plan.timeout_s)
            crew.dismiss()
        return series

    def _tell(self, what: str) -> None:
        self._step += 1
        self._told(what, self._step, self._steps)

    def _open(self, name: str) -> None:
        crew, plan = self._crews[name], self._plan
        answers = crew.ask(
            "open", plan.timeout_s, transport=name, elements=plan.elements, redop=plan.redop, timeout_s=plan.timeout_s
        )
        self._compares[name] = any(answer["compares_ranks"] for answer in answers)
        if answers[0]["ports"] is None:
            return
        ring = [
            {
                "transport": name,
                "following": [after["address"], after["ports"][0]],
                "preceding": [before["address"], before["ports"][1]],
            }
            for before, after in zip(answers[-1:] + answers[:-1], answers[1:] + answers[:1], strict=True)
        ]
        crew.ask_each("connect", plan.timeout_s, ring)

    def _measure(self, size: int) -> list[Series]:
        plan = self._plan
        count = max(1, size // ITEM_BYTES[plan.dtype])
        for crew in self._distinct_crews:
            crew.ask("load", plan.timeout_s, count=count, dtype=plan.dtype, redop=plan.redop, seed=plan.seed)
        rows = [
            Series(
                transport=name,
                size_bytes=count * ITEM_BYTES[plan.dtype],
                count=count,
                dtype=plan.dtype,
                redop=plan.redop,
                ranks=self._crews[name].ranks,
                link_rate_bps=self._crews[name].link_rate_bps,
            )
            for name in plan.transports
        ]
        iterations = {}
        for row in rows:
            self._tell(f"{row.transport} verifies and warms up")
            self._iterate(row, None)
            self._check(row)
            while not row.warmup_s or (len(row.warmup_s) < plan.warmup and sum(row.warmup_s) < _WARMUP_S):
                self._iterate(row, None)
            iterations[row.transport] = formulas.iterations_for(statistics.median(row.warmup_s), plan.turn_s, MOST_ITERATIONS)
        for number in range(plan.turns):
            for row in rows:
                self._tell(f"{row.transport}, run {number + 1} of {plan.turns}")
                self._turn(row, number, iterations[row.transport])
        for row in rows:
            if plan.stages and DESCRIPTIONS[row.transport].needs_switch:
                self._profile(row, iterations[row.transport])
            self._measured(row)
        return rows

    def _iterate(self, row: Series, turn: Turn | None) -> None:
        """One operation; `turn` None: to warm up."""
        crew = self._crews[row.transport]
        crew.ask("ready", self._plan.timeout_s)
        pids = crew.site.switch_pids if turn is not None and DESCRIPTIONS[row.transport].needs_switch else ()
        busy, ticks = processor.machine_ticks()
        switch_ns = sum(map(processor.process_ns, pids))
        lead = _LEAD_NS + _LEAD_PER_RANK_NS * crew.ranks
        at = time.monotonic_ns() + lead if self._one_clock[id(crew)] else None
        answers = crew.ask("go", self._plan.timeout_s, transport=row.transport, at_ns=at)
        if turn is None:
            row.warmup_s.append(max(answer["ns"] for answer in answers) / 1e9)
            return
        if pids:
            turn.switch_cpu_s = (turn.switch_cpu_s or 0.0) + (sum(map(processor.process_ns, pids)) - switch_ns) / 1e9
        busy_after, ticks_after = processor.machine_ticks()
        turn.machine_busy_ticks += busy_after - busy
        turn.machine_ticks += ticks_after - ticks
        turn.seconds.append([answer["ns"] / 1e9 for answer in answers])
        turn.cpu_s.append([answer["cpu_ns"] / 1e9 for answer in answers])

    def _turn(self, row: Series, number: int, iterations: int) -> None:
        crew, turn = self._crews[row.transport], Turn(number)
        before, links_before = crew.ask("counters", self._plan.timeout_s, transport=row.transport), crew.site.link_counters()
        for _ in range(iterations):
            self._iterate(row, turn)
        after, links_after = crew.ask("counters", self._plan.timeout_s, transport=row.transport), crew.site.link_counters()
        if links_before is not None and links_after is not None:
            row.link_source = "tbf"
            pairs = [*zip(links_before.carried, links_after.carried, strict=True)]
            turn.queue_drops = links_after.queue_drops - links_before.queue_drops
        else:
            # An interface that ranks share, or loopback, tells nothing about one of them.
            alone = all(hello["alone"] and hello["interface"] not in ("", "lo") for hello in crew.hellos)
            row.link_source = source = "interface" if alone else "payload"
            pairs = [(old[source], new[source]) for old, new in zip(before, after, strict=True)]
        turn.link_bytes = [(new[0] - old[0], new[1] - old[1]) for old, new in pairs]
        if after[0]["resent"] is not None:
            turn.resent = sum(new["resent"] - old["resent"] for old, new in zip(before, after, strict=True))
        turn.lost = sum(new["lost"] - old["lost"] for old, new in zip(before, after, strict=True))
        row.turns.append(turn)
        self._check(row)

    def _profile(self, row: Series, iterations: int) -> None:
        """A run that counts stages instead of being timed: counting takes time of its own."""
        crew, plan = self._crews[row.transport], self._plan
        for _ in range(iterations):
            crew.ask("ready", plan.timeout_s)  # restoring the tensor is no part of the data path
            crew.ask("start_profile", plan.timeout_s, transport=row.transport)
            crew.ask("go", plan.timeout_s, transport=row.transport, at_ns=None)
            answers = crew.ask("end_profile", plan.timeout_s, transport=row.transport)
            row.stages += [(answer["stages"], answer["packets"]) for answer in answers]

    def _check(self, row: Series) -> None:
        answers = self._crews[row.transport].ask("check", self._plan.timeout_s, transport=row.transport)
        if answers[0]["wrong"] is None:
            return
        wrong = sum(answer["wrong"] for answer in answers)
        if self._compares[row.transport]:
            wrong += differing_elements([answer["checksums"] for answer in answers], row.count)
        row.wrong = (row.wrong or 0) + wrong
        row.checked += row.count * row.ranks
