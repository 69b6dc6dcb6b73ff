"""Whether a run ended as promised, and how long that took."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.course import LIMIT_S, Course
from tests.faults.plan import Promise
from tests.faults.ranks import RankProcess
from tests.faults.training import TOLERANCE, weights_path

_CRASH = re.compile(r"Fatal Python error|Segmentation fault|terminate called|core dumped|Aborted")


@dataclass
class Result:
    """A judged run, as the report and its JSON want it. Times in seconds; None where there is nothing to time.

    `error_s`: from the blow to the error on the last rank that was not hit; `again_s`: to the end of the first step that began
    after it, on the last rank; `pause_s`: the longest between the ends of two steps.
    """

    seed: int
    scenario: str
    policy: str
    variant: str
    workers: int
    promise: str
    problems: list[str]
    evidence: list[str]
    steps_before: dict[int, int]
    steps_done: dict[int, int]
    in_a_step: bool
    errors: dict[int, str]
    error_s: float | None
    again_s: float | None
    pause_s: float | None
    took_s: float


def judge(course: Course, reference: Path, folder: Path, took_s: float) -> Result:
    """`reference`: folder of the right weights. `folder`: the run's, with its weights and logs."""
    plan = course.plan
    problems = list(course.problems)
    if course.hung:
        late = f"not at their end after {LIMIT_S:g} s, with steps {course.steps_done} done"
        problems.append(f"ranks {course.hung} hang: {late}; stacks and logs: {folder}")
    else:
        problems += _fired(course)
        problems += _ended(course, reference, folder)
    for rank in course.ranks:
        log = folder / f"rank-{rank.rank}.log"
        if log.exists() and (found := _CRASH.search(log.read_text(errors="replace"))):
            problems.append(f"rank {rank.rank} crashed: {found[0]!r} in {log}")
    living = [rank for rank in course.ranks if rank.rank not in course.dead]
    told = [rank.error["at"] - course.fired_at for rank in living if rank.error and rank.rank not in course.struck]
    again = [end for rank in living if (end := _first_whole_step(rank, course.fired_at)) is not None]
    pauses = [pause for rank in living if (pause := _longest_pause(rank)) is not None]
    return Result(
        seed=plan.seed,
        scenario=plan.scenario.name,
        policy=plan.policy,
        variant=plan.scenario.variant.name,
        workers=plan.workers,
        promise=plan.promise.value,
        problems=problems,
        evidence=[f"{blow.action} {blow.target}: {', '.join(blow.evidence)}" for blow in course.blows],
        steps_before=course.steps_before,
        steps_done=course.steps_done,
        in_a_step=any(_in_a_step(rank, course.fired_at) for rank in course.ranks),
        errors={rank.rank: rank.error["text"] for rank in course.ranks if rank.error},
        error_s=max(told) if told and course.blows else None,
        again_s=max(again) - course.fired_at if len(again) == len(living) and course.blows else None,
        pause_s=max(pauses) if pauses and len(again) == len(living) else None,
        took_s=took_s,
    )


def _fired(course: Course) -> Iterator[str]:
    """What shows that the fault did not hit the training."""
    plan = course.plan
    if len(course.blows) != len(plan.scenario.strokes):
        yield f"{len(course.blows)} of {len(plan.scenario.strokes)} blows fell"
    for blow in course.blows:
        if not blow.evidence:
            yield f"nothing shows that {blow.target} was hit"
    for rank, step in course.steps_before.items():
        if not 0 <= step < plan.steps - 1:
            yield f"rank {rank} was not under way when the fault fired: it had done step {step} of {plan.steps}"
    if plan.scenario.variant.loss and not course.dropped:
        yield "the switch dropped nothing"


def _ended(course: Course, reference: Path, folder: Path) -> Iterator[str]:
    plan = course.plan
    for rank in course.ranks:
        if rank.error and rank.error["error"] == "WrongSum":
            yield f"rank {rank.rank}: {rank.error['text']}"
    living = [rank for rank in course.ranks if rank.rank not in course.dead]
    for rank in living:
        if plan.promise in (Promise.LOST, Promise.GONE, Promise.ERROR):
            yield from _ended_with_error(rank, course)
        else:
            yield from _ended_well(rank, plan.promise)
    if plan.promise in (Promise.RIGHT, Promise.BACK, Promise.RESUMED):
        yield from weights_differ([rank.rank for rank in living], plan.steps, reference, folder)


def _ended_well(rank: RankProcess, promise: Promise) -> Iterator[str]:
    if (rank.error and promise is not Promise.RESUMED) or rank.status != 0 or not rank.finished:
        told = rank.error["text"] if rank.error else "no error was told"
        yield f"rank {rank.rank} should have ended well, but its exit status is {rank.status}: {told}"
    elif promise is Promise.BACK and rank.finished["packets"] <= rank.steps[-1]["packets"]:
        yield f"rank {rank.rank} never came back to the switch"


def _ended_with_error(rank: RankProcess, course: Course) -> Iterator[str]:
    if rank.error is None or rank.status != 1:
        told = "told none" if rank.error is None else f"told {rank.error['text']}"
        yield f"rank {rank.rank} should have ended with an error; it {told}, and its exit status is {rank.status}"
        return
    text = rank.error["text"]
    promise = course.plan.promise
    if rank.rank in course.struck:
        return  # it may say what it knows
    if promise is Promise.LOST and not any(f"rank {lost}" in text and f"w{lost}" in text for lost in course.struck):
        yield f"rank {rank.rank} does not name the lost rank and its host: {text}"
    if promise is Promise.GONE and not re.search("switch|controller", text):
        yield f"rank {rank.rank} does not say that switch or controller is gone: {text}"


def weights_differ(ranks: list[int], steps: int, reference: Path, folder: Path) -> Iterator[str]:
    """Whose weights are not the reference's, or not those of the first rank, bit by bit."""
    paths = [weights_path(folder, rank, steps) for rank in ranks]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        yield f"no weights were saved: {', '.join(missing)}"
        return
    right = np.load(weights_path(reference, 0, steps))
    first = np.load(paths[0])
    for rank, path in zip(ranks, paths, strict=True):
        found = np.load(path)
        worst = float(np.abs(found - right).max())
        if not worst <= TOLERANCE:
            yield f"rank {rank} has wrong weights: off by up to {worst:.1e}, {TOLERANCE:.0e} is allowed"
        if found.tobytes() != first.tobytes():
            yield f"ranks {ranks[0]} and {rank} ended with different weights"


def _first_whole_step(rank: RankProcess, after: float) -> float | None:
    return next((step["ended"] for step in rank.steps if step["began"] >= after), None)


def _longest_pause(rank: RankProcess) -> float | None:
    ends = [step["ended"] for step in rank.steps]
    return max((later - earlier for earlier, later in itertools.pairwise(ends)), default=None)


def _in_a_step(rank: RankProcess, at: float) -> bool:
    """Whether a step was going on: it has sums under way most of the time."""
    spans: list[dict[str, Any]] = rank.steps
    if any(step["began"] <= at <= step["ended"] for step in spans):
        return True
    return rank.error is not None and rank.error["began"] <= at <= rank.error["at"]
