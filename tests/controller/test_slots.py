"""Who gets which slots: demands, the queue, shrinking, idle jobs, limits of tenants; and how jobs depend on the switch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.controller import jobs
from switchsum.controller.jobs import (
    Admit,
    AskDescription,
    Cause,
    Dismiss,
    End,
    Full,
    Install,
    Refused,
    State,
    Unavailable,
    Uninstall,
    Unknown,
)
from switchsum.controller.slots import Demand, gaps, overlap
from switchsum.controller.tenants import ANYBODY, Limits, Tenant
from tests.controller.test_jobs import LEASE_S, TOTAL, application, join, refusal, registry, running


def form(machine: jobs.Registry, name: str, now: float = 0.0, world: int = 1, **options: object) -> list[str]:
    """A complete world joins; returns its members' keys."""
    return [join(machine, application(rank, world, name, **options), now=now).key for rank in range(world)]


def job(machine: jobs.Registry, name: str) -> jobs.Job:
    """The latest one of that name."""
    return [one for one in machine.jobs if one.name == name][-1]


def installed(machine: jobs.Registry) -> list[str]:
    """The jobs that the switch is told to take, after it has taken them."""
    names = []
    for effect in machine.take_effects():
        if isinstance(effect, Install):
            machine.installed(effect.job, 0.0)
            names.append(effect.job.name)
    machine.take_effects()
    return names


def finish(machine: jobs.Registry, name: str) -> None:
    """All its ranks leave, and the switch is cleaned."""
    ending = job(machine, name)
    for member in list(ending.members.values()):
        machine.leave(member.key)
    machine.take_effects()
    machine.uninstalled(ending)


# --- arithmetic ------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6), st.integers(1, 60), st.integers(1, 60))
def test_a_demand_takes_what_it_may_from_where_it_is_free(taken: list[tuple[int, int]], most: int, least: int) -> None:
    held = [range(start, min(start + length, 60)) for start, length in taken if length]
    free = gaps(60, held)
    expected = set(range(60)) - {slot for one in held for slot in one}
    assert [slot for gap in free for slot in gap] == sorted(expected)
    demand = Demand(max(most, least), least)
    got = demand.take(free)
    largest = max(map(len, free), default=0)
    if largest < least:
        assert got is None
    else:
        assert got is not None
        assert len(got) == min(demand.most, largest)
        assert set(got) <= expected


def test_ranges_overlap_when_they_share_a_slot() -> None:
    assert overlap(range(5), range(4, 9))
    assert not overlap(range(5), range(5, 9))
    assert not overlap(range(0), range(5))


def test_a_job_may_be_content_with_fewer_slots() -> None:
    machine = registry()
    form(machine, "a", slots=1500)
    form(machine, "b", slots=1000, least_slots=500)
    assert job(machine, "b").slots == range(1500, 2048)
    assert refusal(machine, application(0, 1, "c", slots=1000, least_slots=500)) == (
        "job 'c' asks for 1000 slots, 500 at least; 0 of the switch's 2048 are free, 0 of them in a row (1500 by job 'a' "
        "(being installed, 1 of 1 ranks), 548 by job 'b' (being installed, 1 of 1 ranks)): ask for fewer, or wait until a job "
        "ends"
    )
    assert refusal(machine, application(0, 1, "d", slots=5, least_slots=6)) == (
        "rank 0 (host h0, pid 100) asks for 5 slots, but at least 6: the least cannot be the more"
    )


# --- the queue ------------------------------------------------------------


def test_a_queued_job_gets_slots_when_they_come_free() -> None:
    machine = registry()
    form(machine, "a", slots=2048)
    assert installed(machine) == ["a"]
    form(machine, "b", now=1.0, slots=100, queue_s=30.0)
    assert job(machine, "b").state is State.QUEUED
    machine.tick(5.0)
    assert installed(machine) == []
    finish(machine, "a")
    machine.tick(6.0)
    assert installed(machine) == ["b"]
    assert (job(machine, "b").state, job(machine, "b").slots) == (State.RUNNING, range(100))


def test_who_waits_for_too_long_is_told_the_numbers() -> None:
    machine = registry()
    (key,) = form(machine, "a", slots=2048)
    installed(machine)
    form(machine, "b", now=1.0, world=2, slots=100, queue_s=30.0)
    machine.renew(key, 30.0)
    machine.tick(30.9)
    assert machine.take_effects() == []
    machine.tick(31.0)
    first, second = machine.take_effects()
    assert isinstance(first, Dismiss)
    assert isinstance(second, Dismiss)
    assert first.kind is Full
    assert first.sentence == (
        "job 'b' asks for 100 slots; 0 of the switch's 2048 are free, 0 of them in a row (2048 by job 'a' (running, 1 of 1 "
        "ranks)): ask for fewer, or wait until a job ends (it waited for as long as it wanted to)"
    )
    assert [one.name for one in machine.jobs] == ["a"]


def test_a_small_job_never_overtakes_a_big_one_that_came_earlier() -> None:
    machine = registry()
    form(machine, "a", slots=1024)
    installed(machine)
    form(machine, "b", slots=2048, queue_s=60.0)
    form(machine, "c", slots=10, queue_s=60.0)
    assert "; job 'b' (queued, 1 of 1 ranks) waits for 2048 slots before it; job 'c' (queued" in refusal(
        machine, application(0, 1, "d", slots=10)
    )
    machine.tick(1.0)
    assert installed(machine) == []
    finish(machine, "a")
    machine.tick(2.0)
    assert installed(machine) == ["b"]
    finish(machine, "b")
    machine.tick(3.0)
    assert installed(machine) == ["c"]


def test_a_rank_that_withdraws_from_the_queue_lets_the_job_form_again() -> None:
    machine = registry()
    form(machine, "a", slots=2048)
    installed(machine)
    keys = form(machine, "b", world=2, slots=10, queue_s=60.0)
    form(machine, "c", slots=10, queue_s=60.0)
    machine.withdraw(keys[1])
    assert job(machine, "b").state is State.FORMING
    finish(machine, "a")
    machine.tick(1.0)
    assert installed(machine) == ["c"]  # it was complete, the other was not
    join(machine, application(1, 2, "b", slots=10, queue_s=60.0))
    assert installed(machine) == ["b"]
    for key in keys:
        machine.withdraw(key)


def test_a_job_waits_until_those_that_have_ended_are_off_the_switch() -> None:
    """Ranks that may go on join again at once, before the switch has been cleaned of their last epoch."""
    machine = registry()
    keys = form(machine, "a", slots=2048)
    installed(machine)
    machine.report_failure(keys[0], "silent", Cause.SWITCH_LOST)
    over = job(machine, "a")
    form(machine, "a", slots=2048)
    assert job(machine, "a").state is State.QUEUED
    machine.uninstalled(over)
    machine.tick(0.1)
    assert job(machine, "a").slots == range(2048)


def test_a_queued_job_whose_rank_s_patience_ends_is_turned_away() -> None:
    machine = registry()
    form(machine, "a", slots=2048)
    installed(machine)
    (key,) = form(machine, "b", slots=10, queue_s=600.0)
    machine.give_up(key, 30.0)
    (dismiss,) = machine.take_effects()
    assert isinstance(dismiss, Dismiss)
    assert dismiss.kind is Full
    assert dismiss.sentence.endswith("or wait until a job ends (30 s were too short)")


# --- shrinking ------------------------------------------------------------


def test_a_job_that_shrinks_goes_on_with_what_was_kept_for_it() -> None:
    machine = registry()
    form(machine, "a", slots=2048)
    installed(machine)
    form(machine, "b", slots=2000, queue_s=60.0)
    machine.shrink("a", 40, ANYBODY, 1.0)
    end, uninstall = machine.take_effects()
    assert isinstance(end, End)
    assert isinstance(uninstall, Uninstall)
    assert (end.ended.cause, end.ended.resumable) == (Cause.SHRUNK, True)
    assert end.ended.reason == "job 'a' is to go on with 40 of its 2048 slots"
    form(machine, "a", now=1.5, slots=2048)  # it asks for what it always asked for
    machine.tick(2.0)
    assert installed(machine) == []
    machine.uninstalled(uninstall.job)
    machine.tick(3.0)
    assert sorted(installed(machine)) == ["a", "b"]
    assert (job(machine, "a").slots, job(machine, "b").slots) == (range(40), range(40, 2040))


def test_slots_are_not_kept_for_ever() -> None:
    machine = registry()
    form(machine, "a", slots=2048)
    installed(machine)
    machine.shrink("a", 40, ANYBODY, 1.0)
    machine.uninstalled(job(machine, "a"))
    assert machine.free_slots == 2008
    assert "(40 kept for job 'a')" in refusal(machine, application(0, 1, "b", slots=2048))
    machine.tick(1.0 + jobs.PROMISE_S)
    assert machine.free_slots == TOTAL


@pytest.mark.parametrize(
    ("name", "slots", "kind", "sentence"),
    [
        ("b", 4, Unknown, "no job 'b' is running; `switchsum jobs` lists those that are"),
        ("a", 0, Refused, "job 'a' holds 512 slots: it can shrink to 1 to 511, not 0"),
        ("a", 512, Refused, "job 'a' holds 512 slots: it can shrink to 1 to 511, not 512"),
    ],
)
def test_a_job_that_cannot_shrink_says_why(name: str, slots: int, kind: type[Refused], sentence: str) -> None:
    machine = registry()
    running(machine)
    with pytest.raises(kind) as caught:
        machine.shrink(name, slots, ANYBODY, 0.0)
    assert str(caught.value) == sentence
    assert machine.take_effects() == []


def test_only_a_tenant_s_own_jobs_shrink_unless_an_operator_asks() -> None:
    machine = registry()
    for number, name in enumerate("xy"):
        tenant = Tenant(name)
        join(machine, application(0, 1, "a", tenant=name, data_port=70 + number, slots=100), tenant)
    installed(machine)
    with pytest.raises(Unknown):
        machine.shrink("a", 5, Tenant("z"), 0.0)
    with pytest.raises(Refused, match="several tenants run a job 'a' \\('x', 'y'\\); let one of theirs ask"):
        machine.shrink("a", 5, Tenant("z", operator=True), 0.0)
    machine.shrink("a", 5, Tenant("x"), 0.0)
    assert [one.tenant for one in machine.jobs if one.state is State.ENDED] == ["x"]
    machine.shrink("a", 5, Tenant("z", operator=True), 0.0)
    assert [one.state for one in machine.jobs] == [State.ENDED, State.ENDED]


# --- idle jobs ------------------------------------------------------------


def test_idle_jobs_keep_their_slots_until_somebody_lacks_them() -> None:
    machine = registry()
    keys = [form(machine, name, slots=1000)[0] for name in "ab"]
    installed(machine)
    for now in range(0, 200, 4):
        for key, progress in zip(keys, (7, now), strict=True):
            machine.renew(key, float(now), {"collectives": progress})
        machine.tick(float(now))
    assert [round(job(machine, name).idle_s(196.0)) for name in "ab"] == [196, 0]
    assert machine.take_effects() == []
    form(machine, "c", now=196.0, slots=40)  # fits
    assert installed(machine) == ["c"]
    form(machine, "d", now=196.0, slots=900)
    end, uninstall = machine.take_effects()
    assert isinstance(end, End)
    assert isinstance(uninstall, Uninstall)
    assert (end.ended.cause, end.ended.resumable) == (Cause.IDLE, True)
    assert end.ended.reason == "job 'a' summed nothing for 196 s, and job 'd' needs its slots"
    machine.uninstalled(uninstall.job)
    machine.tick(197.0)
    assert installed(machine) == ["d"]


def test_no_idle_job_ends_in_vain() -> None:
    """Both idle ones together would not make enough room in a row."""
    machine = registry()
    keys = [form(machine, name, slots=600)[0] for name in "abc"]
    installed(machine)
    for now in range(0, 100, 4):
        for key, progress in zip(keys, (1, now, 1), strict=True):
            machine.renew(key, float(now), {"collectives": progress})
        machine.tick(float(now))
    assert "asks for 900 slots; 248 of" in refusal_at(machine, application(0, 1, "d", slots=900), 96.0)
    assert machine.take_effects() == []


def refusal_at(machine: jobs.Registry, asked: jobs.Application, now: float) -> str:
    with pytest.raises(Refused) as caught:
        join(machine, asked, now=now)
    return str(caught.value)


def test_a_job_whose_ranks_tell_nothing_is_never_idle() -> None:
    """Hosts of an earlier release renew without counters."""
    machine = registry()
    (key,) = form(machine, "a", slots=2048)
    installed(machine)
    for now in range(0, 1000, 4):
        machine.renew(key, float(now))
        machine.tick(float(now))
    assert job(machine, "a").idle_s(1000.0) == 0.0
    assert "asks for 1 slots; 0 of" in refusal_at(machine, application(0, 1, "b", slots=1), 1000.0)


# --- tenants ------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "asked", "sentence"),
    [
        (
            Limits(jobs=1),
            application(0, 1, "b"),
            "tenant 't' holds 1 of its 1 jobs, and job 'b' needs 1: wait until one of its jobs ends, or have the limit raised",
        ),
        (Limits(workers=3), application(0, 2, "b"), "tenant 't' holds 2 of its 3 workers, and job 'b' needs 2: wait until"),
        (Limits(workers=3), application(0, 4, "b"), "tenant 't' holds 2 of its 3 workers, and job 'b' needs 4: use fewer, or"),
        (
            Limits(slots=520),
            application(0, 1, "b", slots=9),
            "tenant 't' holds 512 of its 520 slots, and job 'b' needs 9: wait",
        ),
        (Limits(slots=520), application(0, 1, "b"), "tenant 't' holds 512 of its 520 slots, and job 'b' needs 16: wait until"),
    ],
)
def test_a_tenant_s_limits_are_refused_with_numbers(limits: Limits, asked: jobs.Application, sentence: str) -> None:
    machine = registry()
    tenant = Tenant("t", limits)
    for rank in range(2):
        join(machine, application(rank, tenant="t"), tenant)
    with pytest.raises(Refused) as caught:
        machine.join(jobs.Application(**(vars(asked) | {"tenant": "t"})), tenant, 0.0)
    assert str(caught.value).startswith(sentence)
    join(machine, asked)  # another tenant's limits are its own
    installed(machine)
    finish(machine, "a")
    if asked.world_size < 4:
        machine.join(jobs.Application(**(vars(asked) | {"tenant": "t", "data_port": 9})), tenant, 0.0)


def test_who_asks_for_no_number_gets_what_its_tenant_may_still_hold() -> None:
    machine = registry()
    tenant = Tenant("t", Limits(slots=600))
    join(machine, application(0, 1, "a", tenant="t"), tenant)
    join(machine, application(0, 1, "b", tenant="t"), tenant)
    assert [len(one.slots) for one in machine.jobs] == [512, 88]


def test_tenants_may_use_the_same_names() -> None:
    machine = registry()
    for number, name in enumerate("xy"):
        join(machine, application(0, 2, "a", tenant=name, data_port=70 + number), Tenant(name))
    assert [(one.tenant, len(one.members)) for one in machine.jobs] == [("x", 1), ("y", 1)]
    assert "(512 by job 'a' of tenant 'x' (forming, 1 of 2 ranks)" in refusal(machine, application(0, 1, "b", slots=2048))


def test_what_one_tenant_can_cost_is_bounded() -> None:
    machine = registry(default_slots=1)
    for number in range(jobs.MAX_FORMING):
        join(machine, application(0, 2, f"a{number}", data_port=1 + number))
    assert refusal(machine, application(0, 2, "b", data_port=2000)) == (
        f"{jobs.MAX_FORMING} jobs wait for ranks already; start those, or wait until they give up"
    )
    join(machine, application(0, 2, "b", data_port=2000, tenant="t"), Tenant("t"))
    assert "the job's name has 257 characters; 256 at most are possible" in refusal(machine, application(0, 2, "b" * 257))


# --- the switch, and other controllers ------------------------------------------------------------


def test_a_switch_that_is_away_for_less_than_a_lease_costs_nothing() -> None:
    machine = registry()
    keys = running(machine)
    waiting = join(machine, application(0, 2, "b"))
    machine.switch_found(1, 0)  # jobs that were installed before it is known which program runs
    machine.take_effects()
    keys = running(machine, name="c")
    machine.switch_away("the switch at x is gone", 1.0)
    machine.switch_away("again", 4.0)  # an attempt that failed changes nothing
    for key in keys:
        assert machine.renew(key, 2.0)
    machine.tick(5.9)
    assert machine.take_effects() == []
    assert [one.name for one in machine.switch_found(1, 0)] == ["c"]
    machine.switch_back(5.95)
    machine.tick(6.5)
    assert machine.take_effects() == []
    machine.switch_away("the switch at x is gone", 6.6)
    for now in (8.0, 10.0):
        for key in keys:
            machine.renew(key, now)
        machine.tick(now)
    machine.tick(6.6 + LEASE_S)
    effects = machine.take_effects()
    assert Dismiss(waiting, "the switch at x is gone", Unavailable) in effects
    ends = [effect for effect in effects if isinstance(effect, End)]
    assert [(end.ended.cause, end.ended.resumable) for end in ends] == [(Cause.SWITCH_LOST, True)] * 2


def test_a_job_that_was_being_installed_is_admitted_when_the_switch_is_back() -> None:
    machine = registry()
    machine.switch_found(1, 0)
    form(machine, "a", world=2)
    machine.take_effects()
    machine.switch_away("gone", 1.0)
    (found,) = machine.switch_found(2, 0)  # started anew: nothing of this job was there yet
    machine.switch_back(2.0)
    machine.installed(found, 2.0)
    assert [type(effect) for effect in machine.take_effects()] == [Admit, Admit]


def test_what_an_earlier_controller_wrote_down_goes_on() -> None:
    before = registry()
    keys = running(before, name="a")
    form(before, "b", slots=100)
    (install,) = before.take_effects()
    before.installed(install.job, 0.0)  # type: ignore[union-attr]
    before.leave(keys[0])
    machine = registry(epoch_floor=1)
    machine.restore(before.jobs, 1002, 77)
    assert machine.switch_found(77, 0) == list(before.jobs)
    assert machine.take_effects() == []
    machine.switch_back(100.0)
    machine.tick(100.0 + LEASE_S - 0.1)
    assert [type(effect) for effect in machine.take_effects()] == [AskDescription]  # since the other one left
    assert machine.renew(keys[1], 104.9)
    with pytest.raises(Unavailable, match="whether it still lives shows within 5 s"):
        join(machine, application(0, 1, "b"))
    machine.tick(100.0 + LEASE_S)
    end = next(effect for effect in machine.take_effects() if isinstance(effect, End))
    assert (end.ended.cause, end.member.application.job_name) == (Cause.LOST_WORKER, "b")
    form(machine, "c", slots=1)
    assert job(machine, "c").epoch == 1002
    assert not overlap(job(machine, "c").slots, job(machine, "a").slots)


def test_a_job_whose_ranks_had_all_left_is_taken_off() -> None:
    before = registry()
    keys = running(before)
    (one,) = before.jobs
    machine = registry()
    for rank in range(2):
        one.members[rank].left = True
    machine.restore([one], 1002, 77)
    assert [type(effect) for effect in machine.take_effects()] == [End, End, Uninstall]
    assert machine.switch_found(77, 0) == []
    assert not machine.renew(keys[0], 0.0)


def test_another_incarnation_of_the_program_ends_what_ran() -> None:
    machine = registry()
    machine.switch_found(1, 0)
    running(machine)
    assert machine.switch_found(2, 5000) == []
    end, _, uninstall = machine.take_effects()
    assert isinstance(end, End)
    assert end.ended == jobs.Ended(
        Cause.SWITCH_LOST, "the switch was started anew, and what it held of job 'a' is gone; join again"
    )
    machine.uninstalled(uninstall.job)  # type: ignore[union-attr]
    running(machine)
    assert machine.jobs[0].epoch == 5001


def test_a_controller_that_is_replaced_forgets_and_turns_away_who_waits() -> None:
    machine = registry()
    keys = running(machine)
    waiting = join(machine, application(0, 2, "b"))
    form(machine, "c", slots=2048, queue_s=9.0)
    queued = job(machine, "c").members[0]
    machine.forget("another is in charge")
    assert machine.take_effects() == [Dismiss(who, "another is in charge", Unavailable) for who in (waiting, queued)]
    assert (machine.jobs, machine.free_slots) == ((), TOTAL)
    assert not machine.renew(keys[0], 1.0)
    machine.tick(100.0)
    assert machine.take_effects() == []


def test_a_controller_that_was_stopped_itself_takes_nobody_for_lost() -> None:
    """SIGSTOP and SIGCONT, or a machine that was suspended: it has heard nothing, and nothing follows from that."""
    machine = registry()
    keys = running(machine, now=0.0)
    machine.tick(0.1)
    machine.tick(60.0)
    assert machine.take_effects() == []
    machine.renew(keys[0], 61.0)
    for now in (62.0, 64.0, 65.0):
        machine.tick(now)
    (ended, *_) = machine.take_effects()
    assert isinstance(ended, End)
    assert ended.ended.ranks == (1,)


def test_epochs_rise_when_they_come_round_as_well() -> None:
    machine = registry(epoch_floor=2**32 - 1)
    running(machine, name="a")
    machine.raise_epochs(2**32 - 2)  # the clock has been put back
    running(machine, name="b")
    machine.raise_epochs(5)
    running(machine, name="c")
    machine.raise_epochs(3 * 2**30)  # an entry from before they came round
    running(machine, name="d")
    assert [one.epoch for one in machine.jobs] == [2**32 - 1, 1, 6, 7]


@pytest.mark.parametrize("cause", list(Cause))
def test_an_ending_says_whether_the_job_may_go_on(cause: Cause) -> None:
    to_blame = {Cause.FINISHED, Cause.LOST_WORKER, Cause.MISMATCH, Cause.FAILED}
    assert jobs.Ended(cause, "so").resumable == (cause not in to_blame)


def test_a_job_that_finds_the_switch_full_is_refused_to_all_its_ranks() -> None:
    """Else whoever comes when there is room again waits for those who were refused."""
    machine = registry()
    form(machine, "big", slots=TOTAL)
    installed(machine)
    with pytest.raises(Full) as first:
        join(machine, application(0, 3, "late", slots=8), now=1.0)
    finish(machine, "big")
    for rank in (1, 2):
        with pytest.raises(Full) as other:
            join(machine, application(rank, 3, "late", slots=8), now=2.0)
        assert str(other.value) == str(first.value)
    for rank in (2, 0, 1):
        join(machine, application(rank, 3, "late", slots=8), now=3.0)
    assert installed(machine) == ["late"]


@pytest.mark.parametrize(("rank", "now"), [(0, 1.5), (1, 1.0 + jobs.REFUSAL_S)])
def test_another_attempt_is_a_new_one(rank: int, now: float) -> None:
    """A rank that asks once more, or much later than the others, is no longer the job that was refused."""
    machine = registry()
    form(machine, "big", slots=TOTAL)
    installed(machine)
    with pytest.raises(Full):
        join(machine, application(0, 2, "late", slots=8), now=1.0)
    finish(machine, "big")
    join(machine, application(rank, 2, "late", slots=8), now=now)
    join(machine, application(1 - rank, 2, "late", slots=8), now=now)
    assert installed(machine) == ["late"]
