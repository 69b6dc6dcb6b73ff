"""Jobs, members, leases, epochs and slot ranges: the control plane's state machine.

No I/O, no clock, no thread, no gRPC: requests and the time (`now`, seconds of any monotonic clock) go in; what has to be done
comes out of `take_effects()`, in order. The owner serializes the calls.

A job's life, and what moves it on:

    FORMING     ranks join                 --world complete--> INSTALLING    (effect Install)
    INSTALLING  the switch is programmed   --installed()-----> RUNNING       (effect Admit for each member)
    RUNNING     members renew and leave    --all left--------> ENDED         (effect Uninstall)
    INSTALLING, RUNNING                    --lost worker, mismatch, failure, lost switch--> ENDED (Dismiss or End; Uninstall)
    FORMING                                --disagreement, timeout, lost switch--> gone           (Dismiss)
    ENDED       the switch is cleaned      --uninstalled()---> in `history`, its slots and number free again

Invariants (tests/controller/test_jobs.py): the slot ranges of live jobs never overlap; an epoch is larger than every one
before; a rank has at most one live membership in its job; each member hears exactly one ending.
"""

import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

MAX_JOBS = 255  # job numbers 1 to 255; the program's job table holds 256
_EPOCHS = 1 << 32
LEAST_SLOTS = 16  # fewer are worth nothing to a job that did not ask for so few
HISTORY = 16  # ended jobs kept for Inspect
DESCRIPTION_WAIT_S = 1.0  # how long ranks have to say which collective they are in


class Refused(Exception):
    """A join that cannot be; the message is the sentence for the user."""


class Full(Refused):
    """A join for which the switch has no room left: it could be another time."""


class Cause(Enum):
    """Why an epoch ended; the names are those of job.proto's Cause."""

    FINISHED = "every member left"
    LOST_WORKER = "a worker died, hung or was cut off"
    MISMATCH = "ranks disagreed on a collective"
    SWITCH_LOST = "the switch, or the charge of it, was lost"
    FAILED = "a member reported a failure"
    CONTROLLER_STOPPED = "the controller was told to stop"


@dataclass(frozen=True)
class Ended:
    """An epoch's end: `reason` is one sentence for the user of any rank, `ranks` those it names."""

    cause: Cause
    reason: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Application:
    """What a rank asks for. `data_address` and `data_port`: where its packets come from."""

    job_name: str
    rank: int
    world_size: int
    host: str
    pid: int
    data_address: str
    data_port: int
    slots: int  # 0: the controller's default
    elements: int  # 0: what the switch sums

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host or 'unnamed'}, pid {self.pid})"


@dataclass(frozen=True)
class Attachment:
    """Where a worker meets the switch. `mac`: the worker's; `switch_address`, `switch_port`: where it sends its packets."""

    port: int
    mac: int
    switch_address: str
    switch_port: int


class Fabric(Protocol):
    """What the registry wants to know of the network."""

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The switch port for a worker at `address`; the loads count workers by port. Raises ValueError with a sentence."""


class State(Enum):
    """See the module's docstring."""

    FORMING = "forming"
    INSTALLING = "being installed"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class Member:
    """One rank of one job."""

    key: str
    application: Application
    attachment: Attachment
    lease_until: float | None = None  # None: not admitted yet, so nothing to renew
    left: bool = False
    collective: str | None = None  # its own account, once ranks disagree
    waits_in: tuple[str, float] | None = None  # once others left: the collective it is in, and when it first said so


@dataclass(eq=False)
class Job:
    """One epoch of a job. `slots` is its range on the switch; `number` and `epoch` stand in its packets."""

    name: str
    world_size: int
    slots: range
    number: int
    epoch: int = 0  # 0 until the world is complete
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)  # by rank
    ended: Ended | None = None
    verdict_at: float | None = None  # when the ranks' descriptions are due
    ask_at: float = 0.0  # when those who stay are asked again whether they wait for those who left

    def __str__(self) -> str:
        return f"job {self.name!r} ({self.state.value}, {len(self.members)} of {self.world_size} ranks)"


@dataclass(frozen=True)
class Install:
    """Program the switch for this job, then call installed() or install_failed()."""

    job: Job


@dataclass(frozen=True)
class Uninstall:
    """Take this job off the switch, then call uninstalled()."""

    job: Job


@dataclass(frozen=True)
class Admit:
    """The world is complete: answer this member's join."""

    job: Job
    member: Member


@dataclass(frozen=True)
class Dismiss:
    """This member's pending join fails with the sentence."""

    member: Member
    sentence: str


@dataclass(frozen=True)
class AskDescription:
    """Ask this member which collective it is in."""

    member: Member


@dataclass(frozen=True)
class End:
    """Tell this member that its epoch is over."""

    member: Member
    ended: Ended


Effect = Install | Uninstall | Admit | Dismiss | AskDescription | End


def first_epoch() -> int:
    """Where a controller that remembers nothing begins: 256 epochs a second from the clock.

    The switch's rows outlive jobs and controllers. One that met its own epoch again would take old values for contributions and
    answer a wrong sum; so the clock must run ahead of any rate at which jobs can be admitted, which takes milliseconds each.
    (With whole seconds, a controller that started right after a burst of jobs repeated their epochs.) 32 bits come round after
    194 days, which harms nothing: the switch compares epochs for equality only.
    """
    return int(time.time() * 256) % _EPOCHS


class Registry:
    """All jobs of one switch."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        total_slots: int,
        max_workers: int,
        default_slots: int,
        elements: int,
        lease_s: float,
        epoch_floor: int,
    ) -> None:
        """`epoch_floor`: an epoch that the switch has not seen, nor those that follow (see first_epoch and raise_epochs)."""
        self._fabric = fabric
        self._total_slots = total_slots
        self._max_workers = max_workers
        self._default_slots = default_slots
        self.elements = elements
        self._lease_s = lease_s
        self._next_epoch = epoch_floor
        self._next_number = 1
        self._jobs: list[Job] = []  # all that hold slots: every state
        self._member_jobs: dict[str, Job] = {}  # by key, for members of jobs that have not ended
        self._effects: list[Effect] = []
        self.history: deque[Job] = deque(maxlen=HISTORY)  # the latest last

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every job that holds slots, in order of arrival."""
        return tuple(self._jobs)

    @property
    def free_slots(self) -> int:
        return self._total_slots - sum(len(job.slots) for job in self._jobs)

    def take_effects(self) -> list[Effect]:
        """What has to be done since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def raise_epochs(self, seen: int) -> None:
        """The switch holds entries of epoch `seen`: never give out that or an earlier one."""
        self._next_epoch = max(self._next_epoch, seen + 1)

    def _take_epoch(self) -> int:
        epoch = self._next_epoch % _EPOCHS or 1  # 0 means "none yet"
        self._next_epoch = epoch + 1
        return epoch

    # --- joining ---------------------------------------------------------------------------------------------------

    def join(self, application: Application) -> Member:
        """A rank joins; it is admitted by the effect Admit or turned away by Dismiss. Raises Refused at once if it cannot be.

        Ranks that disagree on the shape of the world end the forming job for all of them: it could never complete.
        """
        job = self._forming(application.job_name)
        if job is not None:
            self._check_agreement(job, application)
        self._check_rank(application)
        if application.elements not in (0, self.elements):
            raise Refused(
                f"{application} asks for {application.elements} elements a packet, but the switch runs a program for "
                f"{self.elements}: ask for that, or start the controller with {application.elements}"
            )
        self._check_unique(application)
        if job is None:
            attachment = self._attach(application, {})
            job = Job(application.job_name, application.world_size, self._allocate(application), self._number())
            self._jobs.append(job)
        else:
            attachment = self._attach(application, _load([job]))
        member = Member(secrets.token_hex(16), application, attachment)
        job.members[application.rank] = member
        self._member_jobs[member.key] = job
        if len(job.members) == job.world_size:
            job.state = State.INSTALLING
            job.epoch = self._take_epoch()
            self._effects.append(Install(job))
        return member

    def _check_rank(self, application: Application) -> None:
        if not application.job_name:
            raise Refused("the job has no name; give all its ranks the same one")
        if not 1 <= application.world_size <= self._max_workers:
            raise Refused(
                f"a world of {application.world_size} is not possible: a switch slot counts 1 to {self._max_workers} workers, "
                "one bit each; use that many processes at most"
            )
        if not 0 <= application.rank < application.world_size:
            raise Refused(
                f"rank {application.rank} does not exist in a world of {application.world_size}: "
                f"ranks are 0 to {application.world_size - 1}"
            )
        if not 1 <= application.data_port <= 65535:
            raise Refused(f"data port {application.data_port} is not a UDP port (1 to 65535)")

    def _check_agreement(self, job: Job, application: Application) -> None:
        first = next(iter(job.members.values())).application
        for what, mine, theirs in (
            ("the world size", application.world_size, first.world_size),
            ("slots", application.slots, first.slots),
            ("elements a packet", application.elements, first.elements),
        ):
            if mine != theirs:
                sentence = (
                    f"ranks of job {job.name!r} disagree on {what}: {mine or 'the default'} says {application}, "
                    f"{theirs or 'the default'} says {first}; start all ranks with the same settings"
                )
                self._dissolve(job, sentence)
                raise Refused(sentence)

    def _check_unique(self, application: Application) -> None:
        for job in self._jobs:
            if job.state is State.ENDED:
                continue
            for member in job.members.values():
                other = member.application
                if member.left:
                    continue
                if job.name == application.job_name and other.rank == application.rank:
                    raise Refused(
                        f"{other} is in job {job.name!r} already ({job.state.value}); a second one came from host "
                        f"{application.host or 'unnamed'}, pid {application.pid}: give each job its own name"
                    )
                if (other.data_address, other.data_port) == (application.data_address, application.data_port):
                    raise Refused(
                        f"data socket {application.data_address}:{application.data_port} belongs to {other} of job "
                        f"{job.name!r}; give each worker a UDP socket of its own"
                    )

    def _attach(self, application: Application, job_load: Mapping[int, int]) -> Attachment:
        try:
            return self._fabric.attach(application.data_address, job_load, _load(self._jobs))
        except ValueError as error:
            raise Refused(str(error)) from None

    def _allocate(self, application: Application) -> range:
        """The first gap that is large enough.

        A job that asks for no number gets the default, but at most half of the largest gap: a job's groups, each one a job
        here, or another user's, should still find some.
        """
        ends = [0, *(job.slots.stop for job in self._jobs)]
        gaps = [
            (stop, min([job.slots.start for job in self._jobs if job.slots.start >= stop], default=self._total_slots))
            for stop in sorted(ends)
        ]
        largest = max(until - start for start, until in gaps)
        wanted = application.slots or min(self._default_slots, max(largest // 2, LEAST_SLOTS))
        for start, until in gaps:
            if until - start >= wanted:
                return range(start, start + wanted)
        holders = ", ".join(f"{len(job.slots)} by {job}" for job in self._jobs) or "none held"
        raise Full(
            f"job {application.job_name!r} asks for {wanted} slots; {self.free_slots} of the switch's {self._total_slots} are "
            f"free, {largest} of them in a row ({holders}): ask for fewer, or wait until a job ends"
        )

    def _number(self) -> int:
        """The free job number that has been free for longest."""
        taken = {job.number for job in self._jobs}
        for step in range(MAX_JOBS):
            number = (self._next_number - 1 + step) % MAX_JOBS + 1
            if number not in taken:
                self._next_number = number + 1
                return number
        raise Full(f"the switch serves {MAX_JOBS} jobs already; wait until one ends")

    def withdraw(self, key: str) -> None:
        """A rank went away before it was admitted. The others wait on: somebody may start it again."""
        job = self._member_jobs.get(key)
        if job is None:
            return
        if job.state is not State.FORMING:
            self.lose(key, "went away")
            return
        rank = _member(job, key).application.rank
        del job.members[rank]
        del self._member_jobs[key]
        if not job.members:
            self._jobs.remove(job)

    def give_up(self, key: str, waited_s: float) -> None:
        """A rank's patience is over, and so is the forming job: every waiting rank is told who is missing."""
        job = self._member_jobs.get(key)
        if job is None:
            return
        if job.state is not State.FORMING:
            self.lose(key, f"was not admitted within {waited_s:g} s, because the switch was slow, and gave up")
            return
        missing = [rank for rank in range(job.world_size) if rank not in job.members]
        here = ", ".join(str(member.application) for _, member in sorted(job.members.items()))
        self._dissolve(
            job,
            f"job {job.name!r}: {len(job.members)} of {job.world_size} ranks joined within {waited_s:g} s; "
            f"missing: {_ranks(missing)}; here: {here}. See why the missing ones did not start",
        )

    def _dissolve(self, job: Job, sentence: str) -> None:
        """Every waiting member of a forming job is dismissed; nothing was installed, so nothing is left."""
        self._jobs.remove(job)
        for member in job.members.values():
            del self._member_jobs[member.key]
            self._effects.append(Dismiss(member, sentence))

    # --- running ---------------------------------------------------------------------------------------------------

    def installed(self, job: Job, now: float) -> None:
        """The switch is ready for this job."""
        if job.state is not State.INSTALLING:  # it ended meanwhile; its Uninstall is on the way
            return
        job.state = State.RUNNING
        for member in job.members.values():
            member.lease_until = now + self._lease_s
            self._effects.append(Admit(job, member))

    def install_failed(self, job: Job, sentence: str) -> None:
        """The switch could not be programmed for this job."""
        self._end(job, Ended(Cause.SWITCH_LOST, f"job {job.name!r} could not be installed on the switch: {sentence}"))

    def uninstalled(self, job: Job) -> None:
        """The switch holds nothing of this job any more."""
        if job in self._jobs:
            self._jobs.remove(job)
            self.history.append(job)

    def job_of(self, key: str) -> tuple[Job, Member] | None:
        """A member and its job; None if there is no such member or its epoch is over."""
        job = self._member_jobs.get(key)
        return None if job is None else (job, _member(job, key))

    def _admitted(self, key: str) -> tuple[Job, Member] | None:
        """Like job_of, for members that have been told that they are in."""
        found = self.job_of(key)
        return found if found is not None and found[0].state is State.RUNNING else None

    def renew(self, key: str, now: float) -> bool:
        """Keep a member's lease; False if its epoch is over."""
        found = self._admitted(key)
        if found is None:
            return False
        found[1].lease_until = now + self._lease_s
        return True

    def leave(self, key: str) -> None:
        """A member is done. The last one to leave ends the job."""
        found = self.job_of(key)
        if found is None:
            return
        job, member = found
        if job.state is not State.RUNNING:
            self.withdraw(key)
            return
        member.left, member.lease_until = True, None
        if all(other.left for other in job.members.values()):
            self._end(job, Ended(Cause.FINISHED, f"every rank of job {job.name!r} left"))

    def lose(self, key: str, how: str) -> None:
        """A member is gone ("rank 3 (host b, pid 7) {how}"): the epoch ends for all others. Nothing if it had left."""
        found = self.job_of(key)
        if found is None or found[1].left:
            return
        job, member = found
        if job.state is State.FORMING:
            self.withdraw(key)
        else:
            self._lose([member], job, how)

    def report_mismatch(self, key: str, collective: str, now: float) -> None:
        """A member saw ranks disagree: ask the others what they are doing, and end the epoch with all accounts."""
        found = self._admitted(key)
        if found is None:
            return
        job, reporter = found
        reporter.collective = collective
        if job.verdict_at is None:
            job.verdict_at = now + DESCRIPTION_WAIT_S
            for member in job.members.values():
                if member is not reporter and not member.left:
                    self._effects.append(AskDescription(member))
        self._judge(job, now)

    def describe(self, key: str, collective: str, now: float) -> None:
        """A member's answer to AskDescription: "#5 all_reduce(sum) ...", or "none" when it is in no collective."""
        found = self._admitted(key)
        if found is None:
            return
        job, member = found
        if job.verdict_at is not None:
            member.collective = collective
            self._judge(job, now)
        elif not collective.startswith("#"):
            member.waits_in = None
        elif member.waits_in is None or member.waits_in[0] != collective:
            member.waits_in = (collective, now)
        elif now - member.waits_in[1] >= self._lease_s:
            self._strand(job, member, collective)

    def report_failure(self, key: str, detail: str, cause: Cause) -> None:
        """A member cannot go on (`cause`: FAILED, or SWITCH_LOST if it hears nothing from the switch)."""
        found = self._admitted(key)
        if found is not None:
            job, member = found
            self._end(job, Ended(cause, f"{member.application} cannot go on: {detail}", (member.application.rank,)))

    def tick(self, now: float) -> None:
        """Let time pass: leases run out, descriptions are due."""
        for job in list(self._jobs):
            expired = [m for m in job.members.values() if m.lease_until is not None and m.lease_until <= now]
            if job.state is State.RUNNING and expired:
                self._lose(expired, job, f"did not renew its lease for {self._lease_s:g} s: it died, hangs or is cut off")
            self._judge(job, now)
            self._ask_the_rest(job, now)

    def end_all(self, cause: Cause, sentence: str) -> None:
        """Every job ends, and every waiting rank is turned away, for the same reason."""
        for job in list(self._jobs):
            if job.state is State.FORMING:
                self._dissolve(job, sentence)
            else:
                self._end(job, Ended(cause, sentence))

    def _judge(self, job: Job, now: float) -> None:
        if job.state is not State.RUNNING or job.verdict_at is None:
            return
        present = [member for member in job.members.values() if not member.left]
        if now < job.verdict_at and any(member.collective is None for member in present):
            return
        accounts: dict[str, list[int]] = {}
        for rank, member in sorted(job.members.items()):
            text = "left the job" if member.left else member.collective or "did not answer"
            accounts.setdefault(text, []).append(rank)
        told = "; ".join(f"{_ranks(ranks)}: {text}" for text, ranks in accounts.items())
        sentence = (
            f"ranks of job {job.name!r} disagree on which collective comes next: {told}. "
            "Every rank must call the same collectives in the same order"
        )
        self._end(job, Ended(Cause.MISMATCH, sentence, tuple(sorted(job.members))))

    def _ask_the_rest(self, job: Job, now: float) -> None:
        """A rank leaves when its own collectives are done. Whoever is in one for a lease after that waits in vain."""
        present = [member for member in job.members.values() if not member.left]
        if job.state is not State.RUNNING or job.verdict_at is not None or len(present) == len(job.members):
            return
        if now >= job.ask_at:
            job.ask_at = now + self._lease_s / 2
            self._effects += [AskDescription(member) for member in present]

    def _strand(self, job: Job, member: Member, collective: str) -> None:
        gone = [other.application for _, other in sorted(job.members.items()) if other.left]
        sentence = (
            f"{', '.join(map(str, gone))} left job {job.name!r}, and {member.application} waits in {collective}: "
            "every rank must call the same collectives before it ends; its own output may say why it ended"
        )
        self._end(job, Ended(Cause.LOST_WORKER, sentence, tuple(one.rank for one in gone)))

    def _lose(self, lost: list[Member], job: Job, how: str) -> None:
        names = ", ".join(str(member.application) for member in lost)
        ranks = tuple(sorted(member.application.rank for member in lost))
        self._end(job, Ended(Cause.LOST_WORKER, f"lost a worker of job {job.name!r}: {names} {how}", ranks))

    def _end(self, job: Job, ended: Ended) -> None:
        if job.state is State.ENDED:
            return
        admitted = job.state is State.RUNNING
        job.state, job.ended, job.verdict_at = State.ENDED, ended, None
        for member in job.members.values():
            del self._member_jobs[member.key]
            self._effects.append(End(member, ended) if admitted else Dismiss(member, ended.reason))
        self._effects.append(Uninstall(job))

    def _forming(self, name: str) -> Job | None:
        return next((job for job in self._jobs if job.name == name and job.state is State.FORMING), None)


def _member(job: Job, key: str) -> Member:
    return next(member for member in job.members.values() if member.key == key)


def _load(jobs: list[Job]) -> dict[int, int]:
    """Workers by switch port."""
    load: dict[int, int] = {}
    for job in jobs:
        if job.state is not State.ENDED:
            for member in job.members.values():
                load[member.attachment.port] = load.get(member.attachment.port, 0) + 1
    return load


def _ranks(ranks: list[int]) -> str:
    """ "rank 3", "ranks 0, 2": how people list ranks."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
