"""Sums over all workers. An operation begins at the same moment on all of them, and its time is the slowest worker's."""

from __future__ import annotations

import statistics

from switchsum.measure import formulas, processor
from switchsum.measure.experiment import Case, Experiment, Way
from switchsum.measure.payload import differing_elements
from switchsum.measure.samples import Run, Series, Usage
from switchsum.measure.transports import DESCRIPTIONS

MOST_ITERATIONS = 400  # a run
_WARMUP_S = 3.0  # more warming up than that changes nothing


class AllReduce(Experiment):
    """Every rank of a crew is a worker, or one of the parameter servers behind them."""

    benchmark = "allreduce"

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._compares: dict[str, bool] = {}

    def _needs_torch(self, way: Way) -> bool:
        return True

    def _open(self, way: Way) -> None:
        crew, plan = self._crews[way.name], self._plan
        answers = crew.ask(
            "open", plan.timeout_s, transport=way.name, elements=plan.elements, redop=plan.redop, timeout_s=plan.timeout_s
        )
        self._compares[way.name] = any(answer["compares_ranks"] for answer in answers)
        if answers[0]["ports"] is None:
            return
        ring = [
            {
                "transport": way.name,
                "following": [after["address"], after["ports"][0]],
                "preceding": [before["address"], before["ports"][1]],
            }
            for before, after in zip(answers[-1:] + answers[:-1], answers[1:] + answers[:1], strict=True)
        ]
        crew.ask_each("connect", plan.timeout_s, dict(enumerate(ring)))

    def _load(self, case: Case) -> None:
        plan = self._plan
        buffers = [[buffer.size_bytes, buffer.dtype] for buffer in case.buffers]
        for crew in self._distinct_crews:
            crew.ask("load", plan.timeout_s, buffers=buffers, redop=plan.redop, seed=plan.seed)

    def _series(self, case: Case, way: Way) -> Series:
        crew = self._crews[way.name]
        dtypes = sorted({buffer.dtype for buffer in case.buffers})
        return Series(
            benchmark=self.benchmark,
            transport=way.transport,
            mode=way.mode,
            payload=case.payload,
            size_bytes=case.size_bytes,
            buffers=len(case.buffers),
            dtype=dtypes[0] if len(dtypes) == 1 else "mixed",
            redop=self._plan.redop,
            workers=self._plan.workers,
            servers=self._plan.servers if DESCRIPTIONS[way.transport].needs_servers else 0,
            hosts=list(crew.site.hosts),
            lanes=DESCRIPTIONS[way.transport].lanes,
            link_rate_bps=crew.link_rate_bps,
        )

    def _warm_up(self, row: Series, way: Way) -> None:
        while not row.warmup_s or sum(row.warmup_s) < min(self._plan.warmup_s, _WARMUP_S):
            row.warmup_s.append(max(self._iterate(row, way, None)))

    def _operate(self, row: Series, way: Way, run: Run) -> None:
        median = statistics.median(row.warmup_s)
        run.usage = [Usage(0.0, 0.0, 0, 0, 0)] * self._crews[way.name].ranks
        run.seconds = [[] for _ in range(self._plan.workers)]
        for _ in range(formulas.iterations_for(median, self._plan.duration_s, MOST_ITERATIONS)):
            for times, seconds in zip(run.seconds, self._iterate(row, way, run), strict=True):
                times.append(seconds)
        run.elapsed_s = sum(run.slowest_s)

    def _iterate(self, row: Series, way: Way, run: Run | None) -> list[float]:
        """One operation; each worker's seconds. `run` None: to warm up."""
        crew = self._crews[way.name]
        crew.ask("ready", self._plan.timeout_s)
        pids = crew.site.switch_pids if run is not None and DESCRIPTIONS[way.transport].needs_switch else ()
        busy, ticks = processor.machine_ticks()
        switch_ns = sum(map(processor.process_ns, pids))
        answers = crew.ask("go", self._plan.timeout_s, transport=way.name, at_ns=self._start_ns(crew))
        if run is not None:
            if pids:
                run.switch_cpu_s = (run.switch_cpu_s or 0.0) + (sum(map(processor.process_ns, pids)) - switch_ns) / 1e9
            busy_after, ticks_after = processor.machine_ticks()
            run.machine_busy_ticks += busy_after - busy
            run.machine_ticks += ticks_after - ticks
            run.usage = [_sum(usage, Usage(**answer["usage"])) for usage, answer in zip(run.usage, answers, strict=True)]
        return [answer["ns"] / 1e9 for answer in answers[: self._plan.workers]]

    def _after(self, row: Series, way: Way) -> None:
        """A run that counts stages instead of being timed: counting takes time of its own."""
        if not (self._plan.stages and DESCRIPTIONS[way.transport].needs_switch):
            return
        crew, plan = self._crews[way.name], self._plan
        for _ in range(formulas.iterations_for(statistics.median(row.warmup_s), plan.duration_s, MOST_ITERATIONS)):
            crew.ask("ready", plan.timeout_s)  # restoring the tensor is no part of the data path
            crew.ask("start_profile", plan.timeout_s, transport=way.name)
            crew.ask("go", plan.timeout_s, transport=way.name, at_ns=None)
            answers = crew.ask("end_profile", plan.timeout_s, transport=way.name)
            row.stages += [(answer["stages"], answer["packets"]) for answer in answers]

    def _check(self, row: Series, way: Way) -> None:
        if not row.checked:  # before the first run there is no result yet
            self._iterate(row, way, None)
        answers = self._crews[way.name].ask("check", self._plan.timeout_s, transport=way.name)[: self._plan.workers]
        if answers[0]["wrong"] is None:
            return
        wrong = sum(answer["wrong"] for answer in answers)
        elements = sum(answers[0]["counts"])
        if self._compares[way.name]:
            for number, count in enumerate(answers[0]["counts"]):
                wrong += differing_elements([answer["checksums"][number] for answer in answers], count)
        row.wrong = (row.wrong or 0) + wrong
        row.checked += elements * self._plan.workers
        errors = [answer["largest_error"] for answer in answers if answer["largest_error"] is not None]
        row.largest_error = max([*errors, row.largest_error or 0.0]) if errors else row.largest_error


def _sum(one: Usage, other: Usage) -> Usage:
    """Of two stretches of one process, `other` the later one."""
    return Usage(
        one.user_s + other.user_s,
        one.system_s + other.system_s,
        one.voluntary_switches + other.voluntary_switches,
        one.involuntary_switches + other.involuntary_switches,
        other.resident_bytes,
    )
