"""A handful of the runs of `make soak-faults`, each by its name; and that the judge sees what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from switchsum.bmv2_topologies import namespaces
from tests.faults import many_jobs
from tests.faults.campaign import Campaign
from tests.faults.course import Course
from tests.faults.ground import Blow
from tests.faults.plan import GLOO, cases, plan
from tests.faults.ranks import RankProcess
from tests.faults.training import SHORT_STEPS, weights_path
from tests.faults.verdict import judge

CHOICES = cases(bmv2=False)
PAUSE = "worker stopped briefly"
NAMED = [
    "worker killed",
    "worker stopped, one network",
    "worker cut off briefly",
    "worker killed under torchrun",
    "switch killed",
    "switch restarted empty",
    "controller restarted",
    "switch and controller killed",
]
_PROBLEM = namespaces.what_is_missing()
needs_racks = pytest.mark.skipif(_PROBLEM is not None, reason=f"racks are made of network namespaces, but {_PROBLEM}")


def seed_of(name: str) -> int:
    """The first seed whose run is this one, with the default policy. Under torchrun with the fewest workers: an agent and two
    lives of a worker are three processes that load PyTorch."""
    for seed in range(100 * len(CHOICES)):
        scenario, policy = CHOICES[seed % len(CHOICES)]
        few = not scenario.elastic or plan(seed, CHOICES).workers == scenario.least_workers
        if (scenario.name, policy) == (name, GLOO) and few:
            return seed
    raise AssertionError(f"no run is {name!r}")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with Campaign(tmp_path_factory.mktemp("faults")) as runs:
        yield runs


@needs_racks
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_training_ends_as_promised(campaign: Campaign, name: str) -> None:
    result = campaign.run(plan(seed_of(name), CHOICES))
    assert not result.problems, result
    assert result.evidence


@pytest.mark.slow
def test_teams_join_sum_and_leave_side_by_side(tmp_path: Path) -> None:
    account = many_jobs.run(3.0, 1, tmp_path, most_sums=40)
    assert not account.problems, account
    assert account.jobs >= many_jobs.TEAMS
    assert account.sums > account.jobs


def finished(rank: int, folder: Path, *, wrong: float = 0.0) -> RankProcess:
    """A rank that says it went well, and its weights."""
    process = RankProcess(rank, os.getpid())
    process.status = 0
    process.events = [{"step": n, "began": n, "ended": n + 0.5, "packets": n} for n in range(SHORT_STEPS)]
    process.events.append({"finished": 100.0, "packets": 99})
    np.save(weights_path(folder, rank, SHORT_STEPS), np.ones(4, np.float32) + np.float32(wrong))
    return process


def failed(rank: int, text: str) -> RankProcess:
    process = RankProcess(rank, os.getpid())
    process.status = 1
    process.events = [{"error": text.partition(":")[0], "text": text, "at": 9.0, "began": 5.0, "step": 5}]
    return process


def course(name: str, ranks: list[RankProcess], *, blows: bool = True, steps_before: int = 5) -> Course:
    drawn = plan(seed_of(name), CHOICES)
    happened = Course(drawn, ranks)
    if blows:
        happened.blows = [Blow(stroke.target, stroke.action, at=6.0, evidence=["seen"]) for stroke in drawn.scenario.strokes]
        happened.steps_before = {rank.rank: steps_before for rank in ranks}
    return happened


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    folder = tmp_path / "reference"
    folder.mkdir()
    np.save(weights_path(folder, 0, SHORT_STEPS), np.ones(4, np.float32))
    return folder


def test_the_judge_accepts_right_weights(tmp_path: Path, reference: Path) -> None:
    ranks = [finished(rank, tmp_path) for rank in range(3)]
    result = judge(course(PAUSE, ranks), reference, tmp_path, 1.0)
    assert result.problems == []
    assert (result.in_a_step, result.again_s, result.pause_s) == (True, 0.5, 1.0)


@pytest.mark.parametrize(
    ("happened", "problem"),
    [
        (
            lambda folder: course(PAUSE, [finished(0, folder), finished(1, folder, wrong=1e-4)]),
            "wrong weights",
        ),
        (
            lambda folder: course(PAUSE, [finished(0, folder), finished(1, folder, wrong=1e-6)]),
            "different weights",
        ),
        (lambda folder: course(PAUSE, [finished(0, folder)], blows=False), "0 of 1 blows fell"),
        (
            lambda folder: course(PAUSE, [finished(0, folder)], steps_before=SHORT_STEPS - 1),
            "was not under way when the fault fired",
        ),
        (lambda folder: course(PAUSE, [failed(0, "EpochEnded: lost")]), "should have ended well"),
        (lambda folder: course(PAUSE, [failed(0, "WrongSum: integers")]), "WrongSum"),
        (
            lambda folder: course("worker killed", [finished(0, folder)]),
            "should have ended with an error",
        ),
        (
            lambda folder: course("worker killed", [failed(rank, "EpochEnded: something") for rank in range(4)]),
            "does not name the lost rank and its host",
        ),
        (
            lambda folder: course("switch killed, one network", [failed(0, "EpochEnded: something")]),
            "does not say that switch or controller is gone",
        ),
    ],
)
def test_the_judge_sees_what_is_wrong(tmp_path: Path, reference: Path, happened: object, problem: str) -> None:
    assert callable(happened)
    result = judge(happened(tmp_path), reference, tmp_path, 1.0)
    assert any(problem in each for each in result.problems), result.problems


def test_a_crash_is_seen_in_a_log(tmp_path: Path, reference: Path) -> None:
    (tmp_path / "rank-0.log").write_text("Fatal Python error: none_dealloc\n")
    result = judge(course(PAUSE, [finished(0, tmp_path)]), reference, tmp_path, 1.0)
    assert any("crashed" in problem for problem in result.problems)


def test_a_seed_is_a_run_and_consecutive_ones_are_all_cases() -> None:
    drawn = [plan(seed, CHOICES) for seed in range(len(CHOICES))]
    assert [(each.scenario, each.policy) for each in drawn] == CHOICES
    assert drawn == [plan(seed, CHOICES) for seed in range(len(CHOICES))]
    for each in drawn:
        assert each.victims[0] != each.victims[1]
        assert max(each.victims) < each.workers
        assert 0 < each.step < each.steps // 2
