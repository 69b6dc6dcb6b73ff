"""The arithmetic of `switchsum top`."""

from __future__ import annotations

import pytest

from switchsum.job_rates import Counted, Reading, elements_of, grown, rates
from switchsum.protos import job_pb2 as pb


def reading(at: float, *ranks: dict[str, int], epoch: int = 7, sent: int = 0, **reply: object) -> Reading:
    """One running job, a dict of verdicts for each rank."""
    job = pb.JobReport(job_name="train", epoch=epoch, world_size=len(ranks), running=True, state="running")
    for rank, verdicts in enumerate(ranks):
        job.workers.add(rank=rank, verdicts=verdicts, counters={"packets_sent": sent} if sent else {})
    wanted: dict[str, object] = {"pipeline": "switchsum 1, 64 elements, lanes", "jobs": [job]}
    return Reading(at, pb.InspectReply(**(wanted | reply)))  # type: ignore[arg-type]


def test_goodput_is_what_was_new_at_the_switch_and_repeated_what_was_not() -> None:
    before = reading(10.0, {"CONTRIBUTION": 100, "COMPLETION": 10}, {"COMPLETION": 90})
    now = reading(
        12.0,
        {"CONTRIBUTION": 700, "COMPLETION": 410, "DUPLICATE": 200, "REPAIR": 40, "STALE": 10},
        {"CONTRIBUTION": 400, "COMPLETION": 690},
    )
    (job,) = rates(now, before).jobs
    one, two = job.ranks
    assert one.goodput_bps == 1000 * 64 * 32 / 2
    assert one.repeated == 250 / 1250
    assert (two.goodput_bps, two.repeated) == (one.goodput_bps, 0.0)
    assert job.goodput_bps == 2000 * 64 * 32 / 2
    assert job.repeated == 250 / 2250
    assert (one.stale, job.stale) == (10, 10)


def test_shares_of_the_last_arrivals_of_the_interval_and_of_the_run() -> None:
    before = reading(0.0, {"COMPLETION": 900}, {"COMPLETION": 100})
    now = reading(1.0, {"COMPLETION": 910}, {"COMPLETION": 190})
    (job,) = rates(now, before).jobs
    assert [rank.last for rank in job.ranks] == [0.1, 0.9]
    assert [rank.last_of_run for rank in job.ranks] == [910 / 1100, 190 / 1100]


def test_one_reading_tells_of_the_run_alone() -> None:
    (job,) = rates(reading(5.0, {"COMPLETION": 30}, {"COMPLETION": 10}), None).jobs
    assert [rank.last_of_run for rank in job.ranks] == [0.75, 0.25]
    assert (job.goodput_bps, job.ranks[0].goodput_bps, job.ranks[0].last, job.ranks[0].repeated) == (None, None, None, None)


def test_nothing_in_the_interval_is_a_goodput_of_0_and_no_share() -> None:
    (job,) = rates(reading(2.0, {"COMPLETION": 30}), reading(1.0, {"COMPLETION": 30})).jobs
    assert (job.goodput_bps, job.repeated, job.ranks[0].last) == (0.0, None, None)


def test_another_epoch_is_not_compared() -> None:
    (job,) = rates(reading(2.0, {"COMPLETION": 30}, epoch=8), reading(1.0, {"COMPLETION": 20})).jobs
    assert job.goodput_bps is None


def test_a_rank_that_was_not_there_before_is_not_compared() -> None:
    (job,) = rates(reading(2.0, {"COMPLETION": 30}, {"COMPLETION": 5}), reading(1.0, {"COMPLETION": 20})).jobs
    assert [rank.goodput_bps for rank in job.ranks] == [10 * 64 * 32, None]
    assert job.goodput_bps == 10 * 64 * 32


def test_counters_that_began_anew_count_from_0() -> None:
    """The switch was started again: rank 0's packets now are all that there were."""
    assert grown({"CONTRIBUTION": 50, "COMPLETION": 20}, {"CONTRIBUTION": 10, "COMPLETION": 900}) == {
        "CONTRIBUTION": 50,
        "COMPLETION": 20,
    }
    assert grown({"COMPLETION": 20}, {"COMPLETION": 20, "STALE": 3}) == {"COMPLETION": 20}  # one is gone
    assert grown({"COMPLETION": 20, "STALE": 3}, {"COMPLETION": 5}) == {"COMPLETION": 15, "STALE": 3}
    assert grown({"COMPLETION": 20}, None) is None


def test_without_counters_nothing_is_compared() -> None:
    before = reading(1.0, {"COMPLETION": 20}, switch_problem="it is gone")
    (job,) = rates(reading(2.0, {"COMPLETION": 30}), before).jobs
    assert job.goodput_bps is None


def test_loss_needs_the_ranks_own_count_and_is_never_negative() -> None:
    def lost(now: Reading) -> float | None:
        return rates(now, reading(1.0, {"COMPLETION": 70})).jobs[0].ranks[0].lost

    assert lost(reading(2.0, {"COMPLETION": 90}, sent=100)) == 0.1
    assert lost(reading(2.0, {"COMPLETION": 101}, sent=100)) == 0.0
    assert lost(reading(2.0, {"COMPLETION": 101})) is None


def test_loss_is_of_the_moment_when_the_rank_told_its_count() -> None:
    """2 s ago, at 400 packets a second: 9,000 of its 10,000 had come by then."""
    before, now = reading(1.0, {"COMPLETION": 9000}), reading(3.0, {"COMPLETION": 9800}, sent=10_000, lease_s=5.0)
    now.reply.jobs[0].workers[0].lease_left_s = 3.0
    assert rates(now, before).jobs[0].ranks[0].lost == 0.1


def test_what_the_switch_refused_and_dropped() -> None:
    before = reading(1.0, rejected={"UNKNOWN_JOB": 5}, dropped_in={2: 10})
    now = reading(2.0, rejected={"UNKNOWN_JOB": 8, "TYPE": 1}, dropped_in={2: 10, 10: 4}, dropped_out={2: 1})
    found = rates(now, before)
    assert found.rejected == {"TYPE": Counted(1, 1), "UNKNOWN_JOB": Counted(8, 3)}
    assert found.dropped == {(2, "in"): Counted(10, 0), (10, "in"): Counted(4, 4), (2, "out"): Counted(1, 1)}
    assert rates(now, None).rejected["UNKNOWN_JOB"] == Counted(8, None)


def test_jobs_that_have_ended_are_not_shown() -> None:
    now = reading(1.0, {"COMPLETION": 1})
    now.reply.jobs[0].state = "ended"
    assert rates(now, None).jobs == ()


@pytest.mark.parametrize(("pipeline", "elements"), [("switchsum 1, 256 elements, lanes", 256), ("another program", 0), ("", 0)])
def test_elements_are_told_by_the_pipeline(pipeline: str, elements: int) -> None:
    assert elements_of(pipeline) == elements
