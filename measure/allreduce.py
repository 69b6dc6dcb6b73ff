"""Sums over all workers. An operation begins at the same moment on all of them, and its time is the slowest worker's."""

from __future__ import annotations

import statistics
import time
from typing import Any

from switchsum.measure import formulas, processor
from switchsum.measure.crew import Crew
from switchsum.measure.experiment import Case, Experiment, Way
from switchsum.measure.payload import differing_elements
from switchsum.measure.samples import Run, Series, Usage
from switchsum.measure.transports import DESCRIPTIONS

MOST_ITERATIONS = 400  # a run
_SLACK = 1.2
_WARMUP_S = 3.0  # more warming up than that changes nothing


class AllReduce(Experiment):
    """Every rank of a crew is a worker, or one of the parameter servers behind them."""

    benchmark = "allreduce"

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._compares: dict[str, bool] = {}

    def _needs_torch(self, way: Way) -> bool:
        return True

    def _members(self, crew: Crew) -> range:
        return self._workers  # servers add with NumPy alone

    @property
    def _workers(self) -> range:
        return range(self._plan.workers)

    def _servers(self, way: Way) -> range:
        servers = self._plan.servers if DESCRIPTIONS[way.transport].needs_servers else 0
        return range(self._plan.workers, self._plan.workers + servers)

    def _ranks(self, way: Way) -> range:
        return range(self._servers(way).stop)

    def _ask(self, ranks: range, way: Way, command: str, /, **values: object) -> list[dict[str, Any]]:
        named = {"way": way.name, **values}
        # A worker names the server that does not answer before we would name the worker.
        return self._crews[way.name].ask_each(command, _SLACK * self._plan.timeout_s, dict.fromkeys(ranks, named))

    def _open(self, way: Way) -> None:
        plan = self._plan
        serving = self._ask(
            self._servers(way), way, "serve_sums", workers=plan.workers, redop=plan.redop, timeout_s=plan.timeout_s
        )
        answers = self._ask(
            self._workers,
            way,
            "open",
            transport=way.transport,
            elements=plan.elements,
            redop=plan.redop,
            servers=[[server["address"], server["port"]] for server in serving],
            timeout_s=plan.timeout_s,
        )
        self._compares[way.name] = any(answer["compares_ranks"] for answer in answers)
        if answers[0]["ports"] is None:
            return
        ring = [
            {
                "way": way.name,
                "following": [after["address"], after["ports"][0]],
                "preceding": [before["address"], before["ports"][1]],
            }
            for before, after in zip(answers[-1:] + answers[:-1], answers[1:] + answers[:1], strict=True)
        ]
        self._crews[way.name].ask_each("connect", plan.timeout_s, dict(enumerate(ring)))

    def _load(self, case: Case) -> None:
        plan = self._plan
        loaded = {
            "buffers": [[buffer.size_bytes, buffer.dtype] for buffer in case.buffers],
            "redop": plan.redop,
            "ranks": plan.workers,
            "seed": plan.seed,
        }
        for crew in self._distinct_crews:
            crew.ask_each("load", plan.timeout_s, dict.fromkeys(self._workers, loaded))

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
            servers=len(self._servers(way)),
            hosts=list(crew.site.hosts[: len(self._ranks(way))]),
            lanes=DESCRIPTIONS[way.transport].lanes,
            link_rate_bps=crew.link_rate_bps,
            link_rates_bps=crew.link_rates_bps,
            check=self._plan.check,
        )

    def _warm_up(self, row: Series, way: Way) -> None:
        while not row.warmup_s or sum(row.warmup_s) < min(self._plan.warmup_s, _WARMUP_S):
            row.warmup_s.append(max(self._iterate(way, None)))

    def _operate(self, row: Series, way: Way, run: Run) -> None:
        median = statistics.median(row.warmup_s)
        run.usage = [Usage(0.0, 0.0, 0, 0, 0)] * len(self._ranks(way))
        run.seconds = [[] for _ in self._workers]
        began = time.monotonic()
        for number in range(formulas.iterations_for(median, self._plan.duration_s, MOST_ITERATIONS)):
            if number and self._plan.check:  # the last one is verified after the run
                self._judge(row, way)
            for times, seconds in zip(run.seconds, self._iterate(way, run), strict=True):
                times.append(seconds)
        run.elapsed_s = sum(run.slowest_s)
        run.paused_s = max(0.0, time.monotonic() - began - run.elapsed_s)

    def _iterate(self, way: Way, run: Run | None) -> list[float]:
        """One operation; each worker's seconds. `run` None: to warm up."""
        crew, servers = self._crews[way.name], self._servers(way)
        self._ask(self._workers, way, "ready")
        pids = crew.site.switch_pids if run is not None and DESCRIPTIONS[way.transport].needs_switch else ()
        used_before = self._ask(servers, way, "usage")
        busy, ticks = processor.machine_ticks()
        switch_ns = sum(map(processor.process_ns, pids))
        answers = self._ask(self._workers, way, "go", at_ns=self._start_ns(crew))
        if run is not None:
            if pids:
                run.switch_cpu_s = (run.switch_cpu_s or 0.0) + (sum(map(processor.process_ns, pids)) - switch_ns) / 1e9
            busy_after, ticks_after = processor.machine_ticks()
            run.machine_busy_ticks += busy_after - busy
            run.machine_ticks += ticks_after - ticks
            used = self._used(way, answers, used_before)
            run.usage = [now.after(before) for now, before in zip(used, run.usage, strict=True)]
        return [answer["ns"] / 1e9 for answer in answers]

    def _used(self, way: Way, answers: list[dict[str, Any]], served: list[dict[str, Any]]) -> list[Usage]:
        """By process: the workers' as they answer, then what servers used since they told `served`."""
        used = [Usage(**answer["usage"]) for answer in answers]
        for before, after in zip(served, self._ask(self._servers(way), way, "usage"), strict=True):
            used.append(Usage(**after["usage"]).since(Usage(**before["usage"])))
        return used

    def _after(self, row: Series, way: Way) -> None:
        """A run that counts stages instead of being timed: counting takes time of its own."""
        if not (self._plan.stages and DESCRIPTIONS[way.transport].needs_switch):
            return
        for _ in range(formulas.iterations_for(statistics.median(row.warmup_s), self._plan.duration_s, MOST_ITERATIONS)):
            self._ask(self._workers, way, "ready")  # restoring the tensor is no part of the data path
            self._ask(self._workers, way, "start_profile")
            self._ask(self._workers, way, "go", at_ns=None)
            answers = self._ask(self._workers, way, "end_profile")
            row.stages += [(answer["stages"], answer["packets"]) for answer in answers]

    def _check(self, row: Series, way: Way) -> None:
        if not row.runs:  # there is no result yet
            self._iterate(way, None)
        self._judge(row, way)

    def _judge(self, row: Series, way: Way) -> None:
        """Verify what the last operation left on all workers."""
        answers = self._ask(self._workers, way, "check")
        if answers[0]["wrong"] is None:
            return
        wrong = sum(answer["wrong"] for answer in answers)
        if self._compares[way.name]:
            for number, count in enumerate(answers[0]["counts"]):
                wrong += differing_elements([answer["checksums"][number] for answer in answers], count)
        row.wrong = (row.wrong or 0) + wrong
        row.checked += sum(answers[0]["counts"]) * self._plan.workers
        row.largest_error = max([row.largest_error or 0.0, *(answer["largest_error"] for answer in answers)])
