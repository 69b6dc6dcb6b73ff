"""Trainings as a benchmark: an operation is a step of a small training (workloads), whose gradients are summed in some way.

Each rank trains on data of its own, with DistributedDataParallel. Steps follow each other without a common start, as they do in
life. Afterwards all ranks must hold the same weights, to the last bit.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from switchsum.measure import formulas, processor
from switchsum.measure.allreduce import AllReduce
from switchsum.measure.experiment import Case, Way
from switchsum.measure.payload import differing_elements
from switchsum.measure.samples import Run, Series

# DDP makes its buckets anew after the first step, and an optimizer or a memory allocator needs a few to settle.
_WARMUP_STEPS = 4
LEAST_STEPS, MOST_STEPS = 4, 200  # of a run


class Training(AllReduce):
    """A case is a workload by name. The crews' processes are training_worker's."""

    benchmark = "training"

    def _load(self, case: Case) -> None:
        named = {"workload": case.payload, "seed": self._plan.seed}
        for crew in self._distinct_crews:
            crew.ask_each("build", self._plan.timeout_s, dict.fromkeys(self._workers, named))

    def _warm_up(self, row: Series, way: Way) -> None:
        """The first steps were taken when the row was first checked."""

    def _check(self, row: Series, way: Way) -> None:
        if not row.runs:
            row.warmup_s = self._train(way, _WARMUP_STEPS, None)[0]
        answers = self._ask(self._workers, way, "weights")
        row.wrong = (row.wrong or 0) + differing_elements([answer["checksums"] for answer in answers], answers[0]["count"])
        row.checked += answers[0]["count"] * self._plan.workers

    def _operate(self, row: Series, way: Way, run: Run) -> None:
        steps = formulas.iterations_for(row.warmup_s[-1], self._plan.duration_s, MOST_STEPS)
        run.seconds = self._train(way, max(LEAST_STEPS, steps), run)
        run.elapsed_s = sum(run.slowest_s)

    def _train(self, way: Way, steps: int, run: Run | None) -> list[list[float]]:
        """Seconds of each step: it has ended when it has on every rank, so the same for all. Ranks of a rack share a clock."""
        pids = self._crews[way.name].site.switch_pids if way.needs_switch else ()
        served, switch_ns = self._ask(self._servers(way), way, "usage"), sum(map(processor.process_ns, pids))
        answers = self._ask(self._workers, way, "train", steps=steps)
        if run is not None:
            if pids:
                run.switch_cpu_s = (sum(map(processor.process_ns, pids)) - switch_ns) / 1e9
            run.usage = self._used(way, answers, served)
        ended = [max(marks) for marks in zip(*(answer["marks_ns"] for answer in answers), strict=True)]
        return [[(end - begin) / 1e9 for begin, end in itertools.pairwise(ended)]] * len(answers)


class Profiles(Training):
    """Profiles each workload over the plan's first way, and measures nothing: every rank leaves its features in `folder`."""

    def __init__(self, *arguments: object, folder: Path, steps: int, **named: object) -> None:
        super().__init__(*arguments, **named)
        self._folder, self._profiled = folder, steps

    def _measure(self, case: Case) -> list[Series]:
        way = self._plan.ways[0]
        rate_bps = self._crews[way.name].link_rate_bps
        self._tell(f"profiles {case.payload}")
        folder = str(self._folder / case.payload)
        named = {"workload": case.payload, "seed": self._plan.seed, "link_bps": rate_bps}
        self._ask(self._workers, way, "profile", folder=folder, steps=self._profiled, **named)
        return []
