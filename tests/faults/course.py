"""One run from the start of its ranks to the end of the last: the blows fall and are taken back when the plan says so."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import stacks
from tests.faults.ground import Blow, Ground
from tests.faults.plan import Plan, Promise, Stroke
from tests.faults.ranks import RankProcess
from tests.faults.training import Task

LIMIT_S = 90.0  # a run that takes longer hangs
_START_LIMIT_S = 60.0  # until the first step, on a busy machine
_PAUSE_S = 0.05  # after each step of a long training: what is left of it when a fault fires takes longer than two leases


@dataclass
class Course:
    """What happened. `hung`: which ranks lived too long. `problems`: what is wrong beyond that, as sentences."""

    plan: Plan
    ranks: list[RankProcess] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)
    steps_before: dict[int, int] = field(default_factory=dict)  # by rank: the last step that was done when the blows fell
    hung: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    dropped: int = 0  # by the switch's drop simulator, so far

    @property
    def fired_at(self) -> float:
        return min(blow.at for blow in self.blows) if self.blows else 0.0

    @property
    def steps_done(self) -> dict[int, int]:
        """By rank, the last step."""
        return {rank.rank: max((step["step"] for step in rank.steps), default=-1) for rank in self.ranks}

    @property
    def dead(self) -> set[int]:
        """Ranks that were killed, or stopped for good."""
        if self.plan.scenario.elastic:  # others take their places
            return set()
        strokes = zip(self.plan.scenario.strokes, self.plan.backs_s, strict=True)
        ends = ("kill", "term", "stop")
        return {self.rank_of(stroke) for stroke, back in strokes if stroke.action in ends and back is None} - {-1}

    @property
    def struck(self) -> set[int]:
        """Ranks that were hit."""
        return {self.rank_of(stroke) for stroke in self.plan.scenario.strokes} - {-1}

    def rank_of(self, stroke: Stroke) -> int:
        return {"worker": self.plan.victims[0], "other": self.plan.victims[1]}.get(stroke.target, -1)


def run(plan: Plan, ground: Ground, folder: Path, port: int) -> Course:
    """`folder`: for weights and logs; `port`: of the rendezvous. Never raises for what the ranks do."""
    course = Course(plan)
    task = Task(
        backend="switchsum",
        steps=plan.steps,
        folder=str(folder),
        pause_s=_PAUSE_S if plan.scenario.long else 0.0,
        returns=plan.promise is Promise.BACK,
    )
    try:
        for rank in range(plan.workers):
            course.ranks.append(ground.start(rank, plan.workers, plan.policy, port, task, folder))
        _Conduct(course, ground).until_all_have_ended()
    except AssertionError as error:
        course.problems.append(str(error))
    if course.hung:
        _dump(course, ground, folder)
    for blow in course.blows:
        try:
            ground.confirm(blow, course.ranks)
        except AssertionError as error:
            course.problems.append(str(error))
    return course


class _Conduct:
    def __init__(self, course: Course, ground: Ground) -> None:
        self._course, self._ground = course, ground
        self._due: list[tuple[float, Any]] = []

    def until_all_have_ended(self) -> None:
        course, plan = self._course, self._course.plan
        began = time.monotonic()
        trigger = plan.victims[0] if any(course.rank_of(stroke) >= 0 for stroke in plan.scenario.strokes) else 0
        fired = not plan.scenario.strokes
        while any(rank.status is None for rank in course.ranks if rank.rank not in course.dead):
            wait_s = min([0.1, *(at - time.monotonic() for at, _ in self._due)])
            if select.select([self._ground.starter.fd], [], [], max(wait_s, 0.0))[0]:
                self._ground.starter.read()
            now = time.monotonic()
            for entry in [entry for entry in self._due if entry[0] <= now]:
                self._due.remove(entry)
                entry[1]()
            if not fired and any(event["step"] >= plan.step for event in course.ranks[trigger].steps):
                fired = True
                self._due.append((now + plan.delay_s, self._fire))
            if not fired and any(rank.status is not None for rank in course.ranks):
                raise AssertionError("a rank ended before the fault")
            if now - began > (LIMIT_S if fired else _START_LIMIT_S):
                course.hung = [rank.rank for rank in course.ranks if rank.status is None and rank.rank not in course.dead]
                return
        assert not self._due, "the run was over before the fault was"

    def _fire(self) -> None:
        course, plan = self._course, self._course.plan
        course.steps_before = {rank.rank: len(rank.steps) - 1 for rank in course.ranks}
        for stroke, back_s in zip(plan.scenario.strokes, plan.backs_s, strict=True):
            rank = course.rank_of(stroke)
            target = self._ground.rack.file.workers[rank].name if rank >= 0 else stroke.target
            blow = Blow(target, stroke.action, plan.how)
            course.blows.append(blow)
            self._ground.strike(blow, course.ranks)
            if back_s is not None:
                self._due.append((blow.at + back_s, lambda blow=blow: self._ground.undo(blow, course.ranks)))


def _dump(course: Course, ground: Ground, folder: Path) -> None:
    ranks = {f"rank-{rank.rank}": rank.pid for rank in course.ranks if rank.status is None}
    for name, pid in {**ranks, **ground.parts}.items():
        stacks.dump(name, pid, folder)
