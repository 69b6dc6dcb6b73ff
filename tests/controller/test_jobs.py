"""The registry: a machine without I/O, so each transition is a call and a look at the effects."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from switchsum.controller import jobs
from switchsum.controller.fabric import Fabric
from switchsum.controller.jobs import (
    Admit,
    Application,
    AskDescription,
    Cause,
    Dismiss,
    End,
    Install,
    Refused,
    State,
    Unavailable,
    Uninstall,
)
from switchsum.controller.tenants import ANYBODY, Limits, Tenant

LEASE_S = 5.0
TOTAL = 2048


def registry(default_slots: int = 512, epoch_floor: int = 1000) -> jobs.Registry:
    """Four loopback ports, 256 elements."""
    return jobs.Registry(
        Fabric.loopback({port: ("127.0.0.1", 41000 + port) for port in range(1, 5)}),
        total_slots=TOTAL,
        max_workers=32,
        default_slots=default_slots,
        elements=256,
        lease_s=LEASE_S,
        idle_s=60.0,
        epoch_floor=epoch_floor,
    )


def join(machine: jobs.Registry, asked: Application, tenant: Tenant = ANYBODY, now: float = 0.0) -> jobs.Member:
    return machine.join(asked, tenant, now)


def application(rank: int = 0, world: int = 2, name: str = "a", **other: object) -> Application:
    """A rank on host h<rank>, pid 100 + rank, with a data socket that no other (name, rank) of these tests has."""
    port = 10000 + 100 * (ord(name[0]) - ord("a")) + rank
    plain = Application(name, rank, world, f"h{rank}", 100 + rank, "127.0.0.1", port, 0, 0)
    return dataclasses.replace(plain, **other)  # type: ignore[arg-type]


def running(machine: jobs.Registry, world: int = 2, name: str = "a", now: float = 0.0) -> list[str]:
    """Bring a job up; returns its members' keys by rank."""
    keys = [join(machine, application(rank, world, name)).key for rank in range(world)]
    (install,) = machine.take_effects()
    assert isinstance(install, Install)
    machine.installed(install.job, now)
    admitted = machine.take_effects()
    assert [type(effect) for effect in admitted] == [Admit] * world
    return keys


def refusal(machine: jobs.Registry, asked: Application) -> str:
    with pytest.raises(Refused) as caught:
        join(machine, asked)
    return str(caught.value)


# --- joining ------------------------------------------------------------


def test_a_job_is_installed_when_its_world_is_complete_and_admitted_when_it_is_installed() -> None:
    machine = registry()
    join(machine, application(0))
    assert machine.take_effects() == []
    join(machine, application(1))
    (install,) = machine.take_effects()
    assert isinstance(install, Install)
    assert install.job.state is State.INSTALLING
    machine.installed(install.job, now=7.0)
    admits = machine.take_effects()
    assert [(type(e), e.member.application.rank) for e in admits] == [(Admit, 0), (Admit, 1)]  # type: ignore[union-attr]
    assert [m.lease_until for m in install.job.members.values()] == [12.0, 12.0]


def test_each_worker_of_a_job_gets_a_port_of_its_own_until_there_are_none_left() -> None:
    machine = registry()
    running(machine, world=6)
    (job,) = machine.jobs
    assert [job.members[rank].attachment.port for rank in range(6)] == [1, 2, 3, 4, 1, 2]
    running(machine, world=2, name="b")
    assert [machine.jobs[1].members[rank].attachment.port for rank in range(2)] == [3, 4]  # the least used ones


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (application(0, 33), "a world of 33 is not possible: a switch slot counts 1 to 32 workers"),
        (application(0, 0), "a world of 0 is not possible"),
        (application(2, 2), "rank 2 does not exist in a world of 2: ranks are 0 to 1"),
        (application(0, 2, data_port=0), "data port 0 is not a UDP port"),
        (application(0, 2, elements=64), "asks for 64 elements a packet, but the switch runs a program for 256"),
        (application(0, 2, data_address="10.0.0.1"), "data address 10.0.0.1 is not on loopback"),
        (application(0, 2, data_address="::2"), "data address '::2' is not an IPv4 address"),
        (
            application(0, 2, slots=3000),
            "asks for 3000 slots; 2048 of the switch's 2048 are free, 2048 of them in a row (none held)",
        ),
        (dataclasses.replace(application(0, 2), job_name=""), "the job has no name"),
    ],
)
def test_an_impossible_join_is_refused_with_the_reason(asked: Application, sentence: str) -> None:
    machine = registry()
    assert sentence in refusal(machine, asked)
    assert machine.jobs == ()
    assert machine.take_effects() == []


def test_a_rank_that_is_taken_is_refused_and_the_first_one_stays() -> None:
    machine = registry()
    join(machine, application(0))
    text = refusal(machine, application(0, pid=999, host="other", data_port=4))
    assert text == (
        "rank 0 (host h0, pid 100) is in job 'a' already (forming); a second one came from host other, pid 999: "
        "give each job its own name"
    )
    assert machine.take_effects() == []
    assert list(machine.jobs[0].members) == [0]


def test_a_data_socket_that_is_taken_is_refused() -> None:
    machine = registry()
    running(machine, name="a")
    assert "data socket 127.0.0.1:10001 belongs to rank 1 (host h1, pid 101) of job 'a'" in refusal(
        machine, application(0, name="b", data_port=10001)
    )


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (application(1, 3), "disagree on the world size: 3 says rank 1 (host h1, pid 101), 2 says rank 0 (host h0, pid 100)"),
        (application(1, 2, slots=8), "disagree on slots: 8 says rank 1 (host h1, pid 101), the default says rank 0"),
        (application(1, 2, elements=64), "disagree on elements a packet: 64 says rank 1 (host h1, pid 101), the default says"),
    ],
)
def test_ranks_that_disagree_are_all_told(second: Application, what: str) -> None:
    machine = registry()
    first = join(machine, application(0))
    text = refusal(machine, second)
    assert what in text
    assert machine.take_effects() == [Dismiss(first, text)]
    assert machine.jobs == ()


def test_slots_are_refused_with_numbers_and_holders() -> None:
    machine = registry()
    running(machine, name="a")  # 0..511
    keys = running(machine, name="b")  # 512..1023
    running(machine, name="c")  # 1024..1535
    for key in keys:
        machine.leave(key)
    machine.take_effects()
    machine.uninstalled(machine.jobs[1])
    assert refusal(machine, application(0, name="d", slots=600)) == (
        "job 'd' asks for 600 slots; 1024 of the switch's 2048 are free, 512 of them in a row (512 by job 'a' (running, 2 of 2 "
        "ranks), 512 by job 'c' (running, 2 of 2 ranks)): ask for fewer, or wait until a job ends"
    )
    join(machine, application(0, name="d", slots=512))
    assert machine.jobs[-1].slots == range(512, 1024)


def test_who_asks_for_no_number_leaves_slots_for_others() -> None:
    machine = registry()
    for number in range(9):
        join(machine, application(0, name=f"job {number}", data_port=20_000 + number))
    assert [len(job.slots) for job in machine.jobs] == [512, 512, 512, 256, 128, 64, 32, 16, 16]
    assert "asks for 16 slots; 0 of the switch's 2048 are free" in refusal(machine, application(0, name="late"))
    machine = registry()
    join(machine, application(0, name="all", slots=2048, data_port=20_000))  # who asks for all gets all
    assert machine.free_slots == 0


def test_a_rank_that_goes_away_while_it_waits_is_forgotten() -> None:
    machine = registry()
    key = join(machine, application(0)).key
    join(machine, application(1, 3, name="b"))
    machine.withdraw(key)
    assert [job.name for job in machine.jobs] == ["b"]
    join(machine, application(0))  # may come again
    assert machine.take_effects() == []


def test_giving_up_names_the_missing_ranks_to_all_who_wait() -> None:
    machine = registry()
    waiting = [join(machine, application(rank, 4)) for rank in (0, 2)]
    machine.give_up(waiting[0].key, 30.0)
    sentence = (
        "job 'a': 2 of 4 ranks joined within 30 s; missing: ranks 1, 3; here: rank 0 (host h0, pid 100), "
        "rank 2 (host h2, pid 102). See why the missing ones did not start"
    )
    assert machine.take_effects() == [Dismiss(waiting[0], sentence), Dismiss(waiting[1], sentence)]
    assert machine.jobs == ()


def test_a_worker_that_goes_away_during_installation_ends_the_job_for_the_others() -> None:
    machine = registry()
    keys = [join(machine, application(rank)).key for rank in range(2)]
    (install,) = machine.take_effects()
    assert isinstance(install, Install)
    machine.withdraw(keys[1])
    dismissed = machine.take_effects()
    assert [type(effect) for effect in dismissed] == [Dismiss, Dismiss, Uninstall]
    assert "rank 1 (host h1, pid 101) went away" in dismissed[0].sentence  # type: ignore[union-attr]
    machine.installed(install.job, 1.0)  # the switch was faster than the news
    assert machine.take_effects() == []
    assert install.job.state is State.ENDED


def test_a_failed_installation_turns_everybody_away() -> None:
    machine = registry()
    for rank in range(2):
        join(machine, application(rank))
    (install,) = machine.take_effects()
    machine.install_failed(install.job, "table full")  # type: ignore[union-attr]
    effects = machine.take_effects()
    assert [type(effect) for effect in effects] == [Dismiss, Dismiss, Uninstall]
    assert effects[0].sentence == "job 'a' could not be installed on the switch: table full"  # type: ignore[union-attr]


# --- running ------------------------------------------------------------


def test_a_lease_runs_out_at_its_moment_and_names_the_worker() -> None:
    machine = registry()
    keys = running(machine, world=3, now=0.0)
    assert machine.renew(keys[0], 4.0)
    assert machine.renew(keys[2], 4.9)
    machine.tick(LEASE_S - 0.001)
    assert machine.take_effects() == []
    machine.tick(LEASE_S)
    *ends, uninstall = machine.take_effects()
    assert [type(effect) for effect in ends] == [End] * 3
    assert isinstance(uninstall, Uninstall)
    ended = ends[0].ended  # type: ignore[union-attr]
    assert ended.cause is Cause.LOST_WORKER
    assert ended.ranks == (1,)
    assert ended.reason == (
        "lost a worker of job 'a': rank 1 (host h1, pid 101) did not renew its lease for 5 s: it died, hangs or is cut off"
    )
    assert not machine.renew(keys[0], 6.0)


def test_a_broken_stream_is_a_lost_worker_unless_it_had_left() -> None:
    machine = registry()
    keys = running(machine, world=3)
    machine.leave(keys[0])
    machine.lose(keys[0], "broke off")
    assert machine.take_effects() == []
    machine.lose(keys[1], "broke off")
    ended = machine.take_effects()[0].ended  # type: ignore[union-attr]
    assert (ended.cause, ended.ranks) == (Cause.LOST_WORKER, (1,))


def test_a_member_that_left_has_no_lease_to_lose() -> None:
    machine = registry()
    keys = running(machine)
    machine.leave(keys[0])
    machine.renew(keys[1], 4.0)
    machine.tick(6.0)
    assert [type(effect) for effect in machine.take_effects()] == [AskDescription]  # the other one, and no ending


def test_the_last_one_to_leave_ends_the_job_and_frees_its_slots_once_it_is_off_the_switch() -> None:
    machine = registry()
    keys = running(machine)
    machine.leave(keys[0])
    assert machine.take_effects() == []
    machine.leave(keys[1])
    effects = machine.take_effects()
    assert [type(effect) for effect in effects] == [End, End, Uninstall]
    (job,) = machine.jobs
    assert job.ended == jobs.Ended(Cause.FINISHED, "every rank of job 'a' left")
    assert machine.free_slots == TOTAL - 512
    machine.uninstalled(job)
    assert machine.free_slots == TOTAL
    assert list(machine.history) == [job]


def test_who_waits_for_a_rank_that_left_is_told_after_a_lease() -> None:
    """sys.exit() in one rank; without this the others waited for the process group's timeout, half an hour."""
    machine = registry()
    keys = running(machine, world=3)
    machine.tick(1.0)
    assert machine.take_effects() == []  # nobody left, nobody is asked
    machine.leave(keys[1])
    machine.tick(1.1)
    asked = machine.take_effects()
    assert [effect.member.application.rank for effect in asked if isinstance(effect, AskDescription)] == [0, 2]
    machine.describe(keys[0], "none (after 7 collectives)", now=1.2)
    machine.describe(keys[2], "#6 all_reduce(sum) of float32[9]", now=1.2)
    for now, collective in ((4.0, "#7 all_reduce(sum) of float32[9]"), (8.9, "#7 all_reduce(sum) of float32[9]")):
        for key in (keys[0], keys[2]):
            machine.renew(key, now)
        machine.describe(keys[0], "none (after 7 collectives)", now)
        machine.describe(keys[2], collective, now)
        machine.tick(now)
        assert {type(effect) for effect in machine.take_effects()} == {AskDescription}
    machine.describe(keys[2], "#7 all_reduce(sum) of float32[9]", now=4.0 + LEASE_S)
    effects = machine.take_effects()
    assert [type(effect) for effect in effects] == [End, End, End, Uninstall]
    assert effects[0].ended == jobs.Ended(  # type: ignore[union-attr]
        Cause.LOST_WORKER,
        "rank 1 (host h1, pid 101) left job 'a', and rank 2 (host h2, pid 102) waits in #7 all_reduce(sum) of float32[9]: "
        "every rank must call the same collectives before it ends; its own output may say why it ended",
        (1,),
    )


def test_a_rank_that_left_may_form_the_next_job_of_that_name_while_others_still_leave() -> None:
    machine = registry()
    keys = running(machine)
    machine.leave(keys[0])
    join(machine, application(0, data_port=7))
    assert "rank 1 (host h1, pid 101) is in job 'a' already (running)" in refusal(machine, application(1, data_port=8))
    machine.leave(keys[1])
    machine.take_effects()
    join(machine, application(1, data_port=8))
    (install,) = machine.take_effects()
    assert install.job.epoch == 1001  # type: ignore[union-attr]


def test_a_mismatch_gathers_what_every_rank_was_doing() -> None:
    machine = registry()
    keys = running(machine, world=4)
    machine.report_mismatch(keys[1], "#5 all_reduce(sum) of float32[9]", now=1.0)
    asked = machine.take_effects()
    assert [effect.member.application.rank for effect in asked if isinstance(effect, AskDescription)] == [0, 2, 3]
    machine.describe(keys[0], "#5 all_reduce(sum) of float32[1000]", now=1.1)
    machine.report_mismatch(keys[2], "#5 all_reduce(sum) of float32[1000]", now=1.2)  # saw it as well
    machine.tick(1.9)
    assert machine.take_effects() == []
    machine.tick(2.0)  # rank 3 does not answer
    ended = machine.take_effects()[0].ended  # type: ignore[union-attr]
    assert ended.cause is Cause.MISMATCH
    assert ended.reason == (
        "ranks of job 'a' disagree on which collective comes next: ranks 0, 2: #5 all_reduce(sum) of float32[1000]; "
        "rank 1: #5 all_reduce(sum) of float32[9]; rank 3: did not answer. "
        "Every rank must call the same collectives in the same order"
    )


def test_a_mismatch_is_settled_as_soon_as_all_have_answered() -> None:
    machine = registry()
    keys = running(machine)
    machine.report_mismatch(keys[1], "#1", now=1.0)
    machine.take_effects()
    machine.describe(keys[0], "#2", now=1.0)
    assert [type(effect) for effect in machine.take_effects()] == [End, End, Uninstall]


def test_a_reported_failure_ends_the_job_for_all() -> None:
    machine = registry()
    keys = running(machine)
    machine.report_failure(keys[1], "no answer from the switch", Cause.SWITCH_LOST)
    effects = machine.take_effects()
    assert [type(effect) for effect in effects] == [End, End, Uninstall]
    assert effects[0].ended == jobs.Ended(  # type: ignore[union-attr]
        Cause.SWITCH_LOST, "rank 1 (host h1, pid 101) cannot go on: no answer from the switch", (1,)
    )


def test_a_lost_switch_ends_what_runs_and_turns_away_what_forms() -> None:
    machine = registry()
    running(machine, name="a")
    waiting = join(machine, application(0, name="b"))
    machine.end_all(Cause.SWITCH_LOST, "the switch at x is gone")
    effects = machine.take_effects()
    assert [type(effect) for effect in effects] == [End, End, Uninstall, Dismiss]
    assert effects[-1] == Dismiss(waiting, "the switch at x is gone", Unavailable)
    machine.end_all(Cause.SWITCH_LOST, "again")  # the same news twice changes nothing
    assert machine.take_effects() == []


def test_epochs_come_round_without_zero() -> None:
    machine = registry(epoch_floor=2**32 - 1)
    for name in "abc":
        running(machine, name=name)
    assert [job.epoch for job in machine.jobs] == [2**32 - 1, 1, 2]


def test_epochs_rise_above_whatever_the_switch_held() -> None:
    machine = registry(epoch_floor=1000)
    machine.raise_epochs(5000)
    machine.raise_epochs(10)
    running(machine)
    running(machine, name="b")
    assert [job.epoch for job in machine.jobs] == [5001, 5002]


def test_job_numbers_are_not_reused_at_once() -> None:
    machine = registry(default_slots=1)
    numbers = []
    for _ in range(jobs.MAX_JOBS + 2):
        for key in running(machine, world=1):
            machine.leave(key)
        machine.take_effects()
        (job,) = machine.jobs
        machine.uninstalled(job)
        numbers.append(job.number)
    assert numbers == [*range(1, jobs.MAX_JOBS + 1), 1, 2]


def test_the_history_keeps_the_last_few() -> None:
    machine = registry()
    for number in range(jobs.HISTORY + 3):
        for key in running(machine, world=1, name=f"a{number}"):
            machine.leave(key)
        machine.take_effects()
        machine.uninstalled(machine.jobs[0])
    assert [job.name for job in machine.history] == [f"a{number}" for number in range(3, jobs.HISTORY + 3)]


# --- everything in any order ------------------------------------------------------------


TENANTS = {"": ANYBODY, "small": Tenant("small", Limits(jobs=2, workers=4, slots=1000))}


class AnyOrder(RuleBasedStateMachine):
    """Members come, go, fail and hang in any order, jobs queue and shrink, the switch answers late, goes and comes back, the
    controller starts anew; the invariants of jobs.py hold throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = registry(default_slots=600)
        self.now = 0.0
        self.keys: list[str] = []
        self.socket = 1
        self.incarnation = 1
        self.installs: list[jobs.Job] = []
        self.uninstalls: list[jobs.Job] = []
        self.epochs: list[int] = []
        self.endings: dict[str, int] = {}
        self.admitted: set[str] = set()
        self.queue: list[jobs.Job] = []  # in the order in which they were seen to begin to wait
        self.shrunk: set[tuple[str, str]] = set()

    def settle(self) -> None:
        for effect in self.machine.take_effects():
            if isinstance(effect, Install):
                assert effect.job.epoch > max(self.epochs, default=999)
                self.epochs.append(effect.job.epoch)
                self.installs.append(effect.job)
                if effect.job in self.queue and effect.job.identity not in self.shrunk:
                    earlier = self.queue[: self.queue.index(effect.job)]
                    assert [job for job in earlier if job.state is State.QUEUED] == []
            elif isinstance(effect, Uninstall):
                self.uninstalls.append(effect.job)
            elif isinstance(effect, Admit):
                assert effect.member.key not in self.endings
                self.admitted.add(effect.member.key)
            elif isinstance(effect, Dismiss | End):
                assert isinstance(effect, End) == (effect.member.key in self.admitted)
                self.endings[effect.member.key] = self.endings.get(effect.member.key, 0) + 1
        waiting = [job for job in self.machine.jobs if job.state is State.QUEUED]
        self.queue = [job for job in self.queue if job in waiting]
        self.queue += [job for job in waiting if job not in self.queue]

    @rule(
        name=st.sampled_from("abc"),
        rank=st.integers(0, 3),
        world=st.sampled_from([1, 2, 3, 3, 3, 33]),
        slots=st.sampled_from([0, 0, 900, 2048]),
        least=st.sampled_from([0, 0, 100]),
        queue_s=st.sampled_from([0.0, 5.0]),
        tenant=st.sampled_from(["", "", "small"]),
    )
    def join(self, name: str, rank: int, world: int, slots: int, least: int, queue_s: float, tenant: str) -> None:
        self.socket += 1
        asked = application(
            rank, world, name, data_port=self.socket, slots=slots, least_slots=least, queue_s=queue_s, tenant=tenant
        )
        before = set(map(id, self.machine.jobs))
        try:
            member = self.machine.join(asked, TENANTS[tenant], self.now)
        except Refused:
            pass
        else:
            self.keys.append(member.key)
            new = [job for job in self.machine.jobs if id(job) not in before]
            if self.queue and new and new[0].identity not in self.shrunk:
                assert not new[0].slots  # whoever came earlier is served first
        self.settle()

    @precondition(lambda self: self.keys)
    @rule(
        data=st.data(), act=st.sampled_from(["leave", "lose", "withdraw", "give_up", "renew", "mismatch", "describe", "fail"])
    )
    def member_acts(self, data: st.DataObject, act: str) -> None:
        key = data.draw(st.sampled_from(self.keys))
        if act == "leave":
            self.machine.leave(key)
        elif act == "lose":
            self.machine.lose(key, "broke off")
        elif act == "withdraw":
            self.machine.withdraw(key)
        elif act == "give_up":
            self.machine.give_up(key, 30.0)
        elif act == "renew":
            self.machine.renew(key, self.now, {"collectives": data.draw(st.integers(0, 1))})
        elif act == "mismatch":
            self.machine.report_mismatch(key, "#1", self.now)
        elif act == "describe":
            self.machine.describe(key, "#2", self.now)
        else:
            self.machine.report_failure(key, "broken", Cause.FAILED)
        self.settle()

    @rule(name=st.sampled_from("abc"), slots=st.integers(1, 900))
    def shrink(self, name: str, slots: int) -> None:
        try:
            self.machine.shrink(name, slots, ANYBODY, self.now)
        except Refused:
            pass
        else:
            self.shrunk |= {("", name), ("small", name)}
        self.settle()

    @precondition(lambda self: self.installs)
    @rule(works=st.booleans())
    def switch_installs(self, works: bool) -> None:
        job = self.installs.pop(0)
        if job.state is State.INSTALLING and not works:
            self.machine.install_failed(job, "refused")
        else:
            self.machine.installed(job, self.now)
        self.settle()

    @precondition(lambda self: self.uninstalls)
    @rule()
    def switch_uninstalls(self) -> None:
        self.machine.uninstalled(self.uninstalls.pop(0))
        self.settle()

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)
        self.settle()

    @rule()
    def switch_goes(self) -> None:
        self.machine.switch_away("gone", self.now)
        self.settle()

    @rule(anew=st.booleans())
    def switch_comes(self, anew: bool) -> None:
        self.incarnation += anew
        found = self.machine.switch_found(self.incarnation, 0)
        self.machine.switch_back(self.now)
        for job in found:
            self.machine.installed(job, self.now)
        self.settle()

    @rule()
    def all_end(self) -> None:
        self.machine.end_all(Cause.CONTROLLER_STOPPED, "stopped")
        self.settle()

    @rule()
    def controller_starts_anew(self) -> None:
        kept = [job for job in self.machine.jobs if job.state is State.RUNNING]
        for job in kept:
            job.active_at = job.verdict_at = None
            for member in job.members.values():
                member.lease_until = None
        self.machine = registry(default_slots=600)
        self.installs, self.uninstalls, self.queue = [], [], []
        self.machine.restore(kept, max(self.epochs, default=999) + 1, self.incarnation)
        self.switch_comes(anew=False)

    @invariant()
    def slot_ranges_are_disjoint_and_inside(self) -> None:
        taken = [slot for job in self.machine.jobs for slot in job.slots]
        assert len(taken) == len(set(taken)) <= TOTAL - self.machine.free_slots
        assert all(0 <= slot < TOTAL for slot in taken)

    @invariant()
    def slots_are_held_by_all_that_need_them(self) -> None:
        for job in self.machine.jobs:
            assert job.slots or job.state in (State.FORMING, State.QUEUED)
            assert not job.slots or job.state is not State.QUEUED

    @invariant()
    def tenants_keep_their_limits(self) -> None:
        live = [job for job in self.machine.jobs if job.tenant == "small" and job.state is not State.ENDED]
        assert len(live) <= 2
        assert sum(job.world_size for job in live) <= 4
        assert sum(len(job.slots) for job in live) <= 1000

    @invariant()
    def numbers_and_live_identities_are_unique(self) -> None:
        numbers = [job.number for job in self.machine.jobs]
        assert len(numbers) == len(set(numbers))
        live = [
            (job.identity, rank)
            for job in self.machine.jobs
            if job.state is not State.ENDED
            for rank, member in job.members.items()
            if not member.left
        ]
        assert len(live) == len(set(live))

    @invariant()
    def members_are_consistent(self) -> None:
        for job in self.machine.jobs:
            assert 1 <= len(job.members) <= job.world_size
            assert all(rank == member.application.rank < job.world_size for rank, member in job.members.items())
            if job.state is not State.FORMING:
                assert len(job.members) == job.world_size
            for member in job.members.values():
                known = self.machine.job_of(member.key)
                assert (known == (job, member)) == (job.state is not State.ENDED)

    @invariant()
    def whoever_runs_has_a_lease(self) -> None:
        for job in self.machine.jobs:
            if job.state is State.RUNNING:
                assert all((member.lease_until is None) == member.left for member in job.members.values())

    @invariant()
    def nobody_hears_two_endings(self) -> None:
        assert all(count == 1 for count in self.endings.values())

    @invariant()
    def every_ended_job_will_be_taken_off(self) -> None:
        ended = [job for job in self.machine.jobs if job.state is State.ENDED]
        assert {id(job) for job in ended} == {id(job) for job in self.uninstalls}


TestAnyOrder = AnyOrder.TestCase
