"""Runs from seeds, one after the other, on racks that are kept while they are sound."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from tests.faults import course, elastic
from tests.faults.ground import Ground, Variant
from tests.faults.plan import Plan
from tests.faults.ranks import Starter
from tests.faults.verdict import Result, judge

_FIRST_PORT, _PORTS = 29600, 400  # of the rendezvous: one for each run, since the last one's may linger


class Campaign:
    """Context manager, for the main thread. `folder` keeps what failed runs left: weights, logs, stacks."""

    def __init__(self, folder: Path, *, bmv2: str = "", tell: Callable[[str], None] = lambda sentence: None) -> None:
        self._folder, self._bmv2, self._tell = folder, bmv2, tell
        self._ground: Ground | None = None
        self._references: dict[int, Path] = {}
        self._runs = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._starter = Starter(folder / "starter.log")

    def runs(self, plans: Iterable[Plan]) -> Iterator[Result]:
        """Those of one kind of rack together. Yields each when it is judged."""
        for plan in sorted(plans, key=lambda plan: plan.scenario.variant.name):
            yield self.run(plan)

    def run(self, plan: Plan) -> Result:
        """One run, and the check that it left nothing behind."""
        began = time.monotonic()
        ground = self._ground_of(plan.scenario.variant)
        if plan.workers not in self._references:
            reference = self._folder / f"reference-{plan.workers}"
            reference.mkdir(exist_ok=True)
            ground.reference(plan.workers, reference)
            self._references[plan.workers] = reference
        folder = self._folder / f"run-{plan.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._runs += 1
        conduct = elastic.run if plan.scenario.elastic else course.run
        happened = conduct(plan, ground, folder, _FIRST_PORT + self._runs % _PORTS)
        try:
            ground.heal()
            if plan.scenario.variant.loss:
                happened.dropped = sum(ground.inspect().dropped_in.values())
        except Exception as error:  # whatever it is, the rack is not to be used again
            happened.problems.append(str(error))
        result = judge(happened, self._references[plan.workers], folder, time.monotonic() - began)
        if result.problems:
            for log in ground.rack.folder.glob("*.log"):
                shutil.copy(log, folder)
            try:
                self._drop_ground()
            except AssertionError as error:
                result.problems.append(str(error))
        else:
            shutil.rmtree(folder)
        return result

    def _ground_of(self, variant: Variant) -> Ground:
        if self._ground is not None and self._ground.variant != variant:
            self._drop_ground()
        if self._ground is None:
            self._tell(f"bringing a rack up ({variant.name})")
            self._ground = Ground(variant, self._starter, name=f"faults-{os.getpid() % 100000}", bmv2=self._bmv2)
        return self._ground

    def _drop_ground(self) -> None:
        ground, self._ground = self._ground, None
        if ground is not None:
            ground.close()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._drop_ground()
        finally:
            self._starter.close()
