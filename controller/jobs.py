"""Jobs, members, leases, epochs and slot ranges: the control plane's state machine.

No I/O, no clock, no thread, no gRPC: requests and the time (`now`, seconds of any monotonic clock) go in; what has to be done
comes out of `take_effects()`, in order. The owner serializes the calls.

A job's life, and what moves it on:

    FORMING     ranks join                 --world complete--> INSTALLING    (effect Install), or QUEUED without slots
    QUEUED      others hold the slots      --there are some--> INSTALLING    (effect Install)
    INSTALLING  the switch is programmed   --installed()-----> RUNNING       (effect Admit for each member)
    RUNNING     members renew and leave    --all left--------> ENDED         (effect Uninstall)
    INSTALLING, RUNNING                    --lost worker, mismatch, failure, lost switch...--> ENDED (Dismiss or End; Uninstall)
    FORMING, QUEUED                        --disagreement, timeout, lost switch--> gone              (Dismiss)
    ENDED       the switch is cleaned      --uninstalled()---> in `history`, its slots and number free again

A job takes its slots when its first rank joins, if there are enough and nobody waits for some. The queue is strict: who came
later never takes slots before who came earlier, however few it asks for.

Invariants (tests/controller/test_jobs.py): the slot ranges of live jobs never overlap; an epoch is larger than every one
before; a rank has at most one live membership in its job; each member hears exactly one ending.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from switchsum.controller.slots import Demand, gaps, overlap
from switchsum.controller.tenants import Tenant

MAX_JOBS = 255  # job numbers 1 to 255; the program's job table holds 256
_EPOCHS = 1 << 32
MAX_FORMING = 64  # jobs of one tenant that wait for ranks: each holds a number and slots
MAX_NAME = 256  # characters of a job's name
HISTORY = 16  # ended jobs kept for Inspect
DESCRIPTION_WAIT_S = 1.0  # how long ranks have to say which collective they are in
CLEANING_S = 10.0  # how long a job waits for slots of jobs that have ended and are being taken off the switch
REFUSAL_S = 10.0  # how long a job that found the switch full is refused to its other ranks, too
PROMISE_S = 60.0  # how long the slots of a job that shrinks are kept for it


class Refused(Exception):
    """What was asked cannot be; the message is the sentence for the user, `label` what it is counted as."""

    label = "invalid"


class Full(Refused):
    """A join for which the switch has no room left: it could be another time."""

    label = "full"


class Unavailable(Refused):
    """A join that cannot be served now: by another controller perhaps, or by this one soon."""

    label = "unavailable"


class Unknown(Refused):
    """There is no such job."""


class Cause(Enum):
    """Why an epoch ended; the names are those of job.proto's Cause."""

    FINISHED = "every member left"
    LOST_WORKER = "a worker died, hung or was cut off"
    MISMATCH = "ranks disagreed on a collective"
    SWITCH_LOST = "the switch, or the charge of it, was lost"
    FAILED = "a member reported a failure"
    CONTROLLER_STOPPED = "the controller was told to stop"
    SHRUNK = "the job is to go on with fewer slots"
    IDLE = "the job summed nothing for long, and somebody else needed its slots"


_RESUMABLE = frozenset({Cause.SWITCH_LOST, Cause.CONTROLLER_STOPPED, Cause.SHRUNK, Cause.IDLE})


@dataclass(frozen=True)
class Ended:
    """An epoch's end: `reason` is one sentence for the user of any rank, `ranks` those it names."""

    cause: Cause
    reason: str
    ranks: tuple[int, ...] = ()

    @property
    def resumable(self) -> bool:
        """No rank is to blame: all may join again and go on with what they were summing."""
        return self.cause in _RESUMABLE


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
    least_slots: int = 0  # content with so few; 0: no fewer than `slots`
    queue_s: float = 0.0  # how long to wait for slots, once the world is complete
    tenant: str = ""

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log line about this rank tells beside its words."""
        return {"tenant": self.tenant, "job": self.job_name[:MAX_NAME], "rank": self.rank}

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

    @property
    def data_address(self) -> str: ...

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The switch port for a worker at `address`; the loads count workers by port. Raises ValueError with a sentence."""


class State(Enum):
    """See the module's docstring."""

    FORMING = "forming"
    QUEUED = "queued"
    INSTALLING = "being installed"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class Member:
    """One rank of one job."""

    key: str = field(repr=False)  # whoever has it speaks for the rank
    application: Application
    attachment: Attachment
    lease_until: float | None = None  # None: not admitted yet, so nothing to renew
    left: bool = False
    collective: str | None = None  # its own account, once ranks disagree
    waits_in: tuple[str, float] | None = None  # once others left: the collective it is in, and when it first said so
    counters: dict[str, int] = field(default_factory=dict)  # as its last renewal told them
    heard: bool = True  # by this controller; False after a restart, until it renews or watches


@dataclass(eq=False)
class Job:
    """One epoch of a job. `slots` is its range on the switch, empty until it has got one; `number` and `epoch` stand in its
    packets."""

    name: str
    world_size: int
    slots: range
    number: int
    tenant: str
    demand: Demand
    born_at: float  # when its first rank joined
    epoch: int = 0  # 0 until the job is being installed
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)  # by rank
    ended: Ended | None = None
    verdict_at: float | None = None  # when the ranks' descriptions are due
    ask_at: float = 0.0  # when those who stay are asked again whether they wait for those who left
    queue_until: float = 0.0  # while QUEUED: when it gives up
    active_at: float | None = None  # when a rank last told of another finished collective; None: they tell of none

    @property
    def identity(self) -> tuple[str, str]:
        """What its ranks have in common: tenants need not know each other's names."""
        return self.tenant, self.name

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log line about this job tells beside its words."""
        return {"tenant": self.tenant, "job": self.name, "epoch": self.epoch or None}

    def __str__(self) -> str:
        tenant = f" of tenant {self.tenant!r}" if self.tenant else ""
        return f"job {self.name!r}{tenant} ({self.state.value}, {len(self.members)} of {self.world_size} ranks)"

    def idle_s(self, now: float) -> float:
        """Seconds since a rank told of another finished collective; 0 where they tell of none."""
        return 0.0 if self.active_at is None else max(now - self.active_at, 0.0)


@dataclass
class _TurnedAway:
    """A job that found the switch full: what was said, to which ranks, and how long the others are told the same."""

    sentence: str
    ranks: set[int]
    until: float


@dataclass(frozen=True)
class _Promise:
    """Slots that are kept for a job that shrinks, until its ranks have joined again, or until `until`."""

    slots: range
    until: float


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
    """This member's pending join fails with the sentence; `kind` as if join() had raised it."""

    member: Member
    sentence: str
    kind: type[Refused] = Refused


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


def later_epoch(one: int, other: int) -> int:
    """The one that comes after the other, as they come round (serial number arithmetic, RFC 1982)."""
    return one if (one - other) % _EPOCHS < _EPOCHS // 2 else other


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
        idle_s: float,
        epoch_floor: int,
    ) -> None:
        """`idle_s`: a job that summed nothing for so long ends when somebody else needs its slots. `epoch_floor`: an epoch that
        the switch has not seen, nor those that follow (see first_epoch and raise_epochs)."""
        self._fabric = fabric
        self._total_slots = total_slots
        self._max_workers = max_workers
        self._default_slots = default_slots
        self.elements = elements
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._next_epoch = epoch_floor
        self._next_number = 1
        self._jobs: list[Job] = []  # in every state; each holds a number, and slots as soon as it has got some
        self._member_jobs: dict[str, Job] = {}  # by key, for members of jobs that have not ended
        self._queue: list[Job] = []  # QUEUED ones, the first come first
        self._promises: dict[tuple[str, str], _Promise] = {}  # by the job's identity
        self._turned_away: dict[tuple[str, str], _TurnedAway] = {}  # likewise
        self._away: tuple[str, float] | None = None  # the switch does not answer: a sentence, and since when
        self._incarnation: int | None = None  # of the program on the switch
        self._ticked_at: float | None = None
        self._effects: list[Effect] = []
        self.history: deque[Job] = deque(maxlen=HISTORY)  # the latest last

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every job that is not yet history, in order of arrival."""
        return tuple(self._jobs)

    @property
    def free_slots(self) -> int:
        """Those that neither a job holds nor are kept for one."""
        return sum(map(len, self._gaps()))

    @property
    def data_address(self) -> str:
        """IPv4 address where hosts send their packets."""
        return self._fabric.data_address

    def take_effects(self) -> list[Effect]:
        """What has to be done since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def raise_epochs(self, seen: int) -> None:
        """The switch holds entries of epoch `seen`: never give out that or an earlier one."""
        self._next_epoch = later_epoch(self._next_epoch, seen + 1)

    def _take_epoch(self) -> int:
        epoch = self._next_epoch % _EPOCHS or 1  # 0 means "none yet"
        self._next_epoch = epoch + 1
        return epoch

    # --- joining ---------------------------------------------------------------------------------------------------

    def join(self, application: Application, tenant: Tenant, now: float) -> Member:
        """A rank of a job of `tenant` joins; it is admitted by the effect Admit or turned away by Dismiss. Raises Refused, or
        one of its kinds, at once if it cannot be.

        Ranks that disagree on the shape of the world end the forming job for all of them: it could never complete.
        """
        job = self._forming((application.tenant, application.job_name))
        if job is not None:
            self._check_agreement(job, application)
        else:
            self._check_refused(application, now)
        self._check_rank(application)
        if application.elements not in (0, self.elements):
            raise Refused(
                f"{application} asks for {application.elements} elements a packet, but the switch runs a program for "
                f"{self.elements}: ask for that, or start the controller with {application.elements}"
            )
        self._check_unique(application)
        attachment = self._attach(application, {} if job is None else _load([job]))
        if job is None:
            job = self._open(application, tenant, now)
        member = Member(secrets.token_hex(16), application, attachment)
        job.members[application.rank] = member
        self._member_jobs[member.key] = job
        if len(job.members) == job.world_size:
            if job.slots:
                self._install(job)
            else:
                job.state = State.QUEUED
                job.queue_until = now + (max(each.application.queue_s for each in job.members.values()) or CLEANING_S)
                self._queue.append(job)
                self._serve_queue(now)
        return member

    def _open(self, application: Application, tenant: Tenant, now: float) -> Job:
        """The first rank of a job has come: the job, with its slots if it gets them now. Raises Refused."""
        identity = (application.tenant, application.job_name)
        promise = self._promises.get(identity)
        demand = Demand(len(promise.slots), len(promise.slots)) if promise else self._demand(application, tenant)
        self._check_limits(application, tenant)
        job = Job(
            application.job_name,
            application.world_size,
            range(0),
            self._number(),
            application.tenant,
            demand,
            now,
        )
        slots = None if self._queue and promise is None else self._allocate(job)
        if slots is None and promise is None and not application.queue_s and (self._queue or not self._make_room(job, now)):
            shortage = self._shortage(job)
            self._turned_away[identity] = _TurnedAway(shortage, {application.rank}, now + REFUSAL_S)
            raise Full(shortage)
        job.slots = slots or range(0)
        self._jobs.append(job)
        return job

    def _check_refused(self, application: Application, now: float) -> None:
        """What one rank of a job was told all are told: else those who come when there is room would wait for it in vain."""
        identity = (application.tenant, application.job_name)
        refused = self._turned_away.get(identity)
        if refused is None:
            return
        if application.rank in refused.ranks or now >= refused.until:  # another attempt
            del self._turned_away[identity]
            return
        refused.ranks.add(application.rank)
        if len(refused.ranks) >= application.world_size:
            del self._turned_away[identity]
        raise Full(refused.sentence)

    def _install(self, job: Job) -> None:
        job.state = State.INSTALLING
        job.epoch = self._take_epoch()
        self._effects.append(Install(job))

    def _check_rank(self, application: Application) -> None:
        if not application.job_name:
            raise Refused("the job has no name; give all its ranks the same one")
        if len(application.job_name) > MAX_NAME:
            raise Refused(f"the job's name has {len(application.job_name)} characters; {MAX_NAME} at most are possible")
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
        if application.slots and application.least_slots > application.slots:
            raise Refused(
                f"{application} asks for {application.slots} slots, but at least {application.least_slots}: "
                "the least cannot be the more"
            )

    def _check_agreement(self, job: Job, application: Application) -> None:
        first = next(iter(job.members.values())).application
        for what, mine, theirs in (
            ("the world size", application.world_size, first.world_size),
            ("slots", application.slots, first.slots),
            ("the least slots", application.least_slots, first.least_slots),
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
                same_rank = job.identity == (application.tenant, application.job_name) and other.rank == application.rank
                same_socket = (other.data_address, other.data_port) == (application.data_address, application.data_port)
                if (same_rank or (same_socket and job.tenant == application.tenant)) and not member.heard:
                    raise Unavailable(
                        f"{other} is in job {job.name!r} since before the controller was started anew; whether it still lives "
                        f"shows within {self._lease_s:g} s"
                    )
                if same_rank:
                    raise Refused(
                        f"{other} is in job {job.name!r} already ({job.state.value}); a second one came from host "
                        f"{application.host or 'unnamed'}, pid {application.pid}: give each job its own name"
                    )
                if same_socket:
                    whose = f"{other} of job {job.name!r}" if job.tenant == application.tenant else "another tenant's job"
                    raise Refused(
                        f"data socket {application.data_address}:{application.data_port} belongs to {whose}; "
                        "give each worker a UDP socket of its own"
                    )

    def _check_limits(self, application: Application, tenant: Tenant) -> None:
        """Of jobs and workers; of slots, see _demand. A tenant without limits still cannot take all numbers for jobs that only
        form."""
        live = [job for job in self._jobs if job.tenant == tenant.name and job.state is not State.ENDED]
        workers = sum(job.world_size for job in live)
        for what, held, more, limit in (
            ("jobs", len(live), 1, tenant.limits.jobs),
            ("workers", workers, application.world_size, tenant.limits.workers),
        ):
            if limit is not None and held + more > limit:
                raise _beyond_limit(application, tenant, what, held, limit, more)
        forming = sum(job.state is State.FORMING for job in live)
        if forming >= MAX_FORMING:
            raise Full(f"{forming} jobs wait for ranks already; start those, or wait until they give up")

    def _demand(self, application: Application, tenant: Tenant) -> Demand:
        """The slots that it asks for, or fewer where its tenant may hold no more. Raises Refused beyond the tenant's limit."""
        demand = Demand.of(application.slots, application.least_slots, self._default_slots)
        limit = tenant.limits.slots
        if limit is None:
            return demand
        live = [job for job in self._jobs if job.tenant == tenant.name and job.state is not State.ENDED]
        held = sum(len(job.slots) or job.demand.most for job in live)
        if held + demand.least > limit:
            raise _beyond_limit(application, tenant, "slots", held, limit, demand.least)
        return Demand(min(demand.most, limit - held), demand.least, demand.polite)

    def _attach(self, application: Application, job_load: Mapping[int, int]) -> Attachment:
        try:
            return self._fabric.attach(application.data_address, job_load, _load(self._jobs))
        except ValueError as error:
            raise Refused(str(error)) from None

    # --- slots -----------------------------------------------------------------------------------------------------

    def _gaps(self, without: Iterable[Job] = ()) -> list[range]:
        """The free ranges, as they would be without these jobs."""
        gone = set(map(id, without))
        taken = [job.slots for job in self._jobs if job.slots and id(job) not in gone]
        return gaps(self._total_slots, [*taken, *(promise.slots for promise in self._promises.values())])

    def _allocate(self, job: Job) -> range | None:
        """The slots that are kept for the job, or some that are free; None if there are none yet."""
        promise = self._promises.get(job.identity)
        if promise is None:
            return job.demand.take(self._gaps())
        if any(overlap(promise.slots, other.slots) for other in self._jobs):  # it is not off the switch yet
            return None
        return self._promises.pop(job.identity).slots

    def _make_room(self, asker: Job, now: float) -> bool:
        """Whether there will be slots for it once jobs are off the switch that have ended, or that are idle and end now: as few
        of those as it takes, the longest idle first."""
        ended = [job for job in self._jobs if job.state is State.ENDED]
        idle = [job for job in self._jobs if job.state is State.RUNNING and job.active_at is not None]
        idle = sorted((job for job in idle if job.idle_s(now) >= self._idle_s), key=lambda job: -job.idle_s(now))
        for count in range(len(idle) + 1):
            if asker.demand.take(self._gaps([*ended, *idle[:count]])) is not None:
                for job in idle[:count]:
                    sentence = (
                        f"job {job.name!r} summed nothing for {job.idle_s(now):.0f} s, and job {asker.name!r} needs its slots"
                    )
                    self._end(job, Ended(Cause.IDLE, sentence))
                return True
        return False

    def _serve_queue(self, now: float) -> None:
        """Slots for those who wait, in order; who has waited for too long is turned away."""
        blocked = False
        for job in list(self._queue):
            promised = job.identity in self._promises
            if blocked and not promised:
                continue
            slots = self._allocate(job)
            if slots is not None:
                self._queue.remove(job)
                job.slots = slots
                self._install(job)
            elif not promised:
                blocked = True
                self._make_room(job, now)
        for job in list(self._queue):
            if now >= job.queue_until:
                self._dissolve(job, f"{self._shortage(job)} (it waited for as long as it wanted to)", Full)

    def _shortage(self, job: Job) -> str:
        """Why it gets no slots, with numbers."""
        free = self._gaps()
        holders = [f"{len(each.slots)} by {each}" for each in self._jobs if each.slots]
        holders += [f"{len(promise.slots)} kept for job {name!r}" for (_, name), promise in self._promises.items()]
        before = self._queue[: self._queue.index(job)] if job in self._queue else self._queue
        waiting = "".join(f"; {each} waits for {each.demand} before it" for each in before)
        return (
            f"job {job.name!r} asks for {job.demand}; {sum(map(len, free))} of the switch's {self._total_slots} are "
            f"free, {max(map(len, free), default=0)} of them in a row ({', '.join(holders) or 'none held'}){waiting}: "
            "ask for fewer, or wait until a job ends"
        )

    def shrink(self, name: str, slots: int, tenant: Tenant, now: float) -> None:
        """A running job ends, to go on with fewer slots when its ranks join again. Raises Unknown or Refused."""
        named = [job for job in self._jobs if job.name == name and job.state is State.RUNNING]
        seen = [job for job in named if tenant.operator or job.tenant == tenant.name]
        seen = [job for job in seen if job.tenant == tenant.name] or seen
        if not seen:
            raise Unknown(f"no job {name!r} is running; `switchsum jobs` lists those that are")
        if len(seen) > 1:
            tenants = ", ".join(repr(job.tenant) for job in seen)
            raise Refused(f"several tenants run a job {name!r} ({tenants}); let one of theirs ask")
        (job,) = seen
        if not 1 <= slots < len(job.slots):
            raise Refused(f"job {name!r} holds {len(job.slots)} slots: it can shrink to 1 to {len(job.slots) - 1}, not {slots}")
        sentence = f"job {name!r} is to go on with {slots} of its {len(job.slots)} slots"
        self._promises[job.identity] = _Promise(range(job.slots.start, job.slots.start + slots), now + PROMISE_S)
        self._end(job, Ended(Cause.SHRUNK, sentence))

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
        if job.state is State.QUEUED:
            self._queue.remove(job)
            job.state = State.FORMING
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
        if job.state is State.QUEUED:
            self._dissolve(job, f"{self._shortage(job)} ({waited_s:g} s were too short)", Full)
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

    def _dissolve(self, job: Job, sentence: str, kind: type[Refused] = Refused) -> None:
        """Every waiting member of a job is dismissed; nothing was installed, so nothing is left."""
        self._jobs.remove(job)
        if job in self._queue:
            self._queue.remove(job)
        for member in job.members.values():
            del self._member_jobs[member.key]
            self._effects.append(Dismiss(member, sentence, kind))

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

    def renew(self, key: str, now: float, counters: Mapping[str, int] | None = None) -> bool:
        """Keep a member's lease; False if its epoch is over. `counters`: of this rank in this epoch, by name; "collectives",
        the finished ones, tells whether the job is idle."""
        found = self._admitted(key)
        if found is None:
            return False
        job, member = found
        member.heard = True
        if not member.left:
            member.lease_until = now + self._lease_s
        if counters:
            if counters.get("collectives", 0) != member.counters.get("collectives"):
                job.active_at = now
            member.counters = dict(counters)
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
            self._finish(job)

    def lose(self, key: str, how: str) -> None:
        """A member is gone ("rank 3 (host b, pid 7) {how}"): the epoch ends for all others. Nothing if it had left."""
        found = self.job_of(key)
        if found is None or found[1].left:
            return
        job, member = found
        if job.state in (State.FORMING, State.QUEUED):
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
        """Let time pass: leases run out, descriptions are due, who waits for slots gets them or gives up."""
        if self._ticked_at is not None and now - self._ticked_at > self._lease_s / 2:
            # This process was stopped or starved, and heard nothing: that says nothing about its members.
            for member in (member for job in self._jobs for member in job.members.values()):
                if member.lease_until is not None:
                    member.lease_until = max(member.lease_until, now + self._lease_s)
        self._ticked_at = now
        self._turned_away = {job: refused for job, refused in self._turned_away.items() if now < refused.until}
        if self._away is not None and now - self._away[1] >= self._lease_s:
            self.end_all(Cause.SWITCH_LOST, self._away[0])
        for job in list(self._jobs):
            expired = [m for m in job.members.values() if m.lease_until is not None and m.lease_until <= now]
            if job.state is State.RUNNING and expired:
                self._lose(expired, job, f"did not renew its lease for {self._lease_s:g} s: it died, hangs or is cut off")
            self._judge(job, now)
            self._ask_the_rest(job, now)
        self._promises = {identity: kept for identity, kept in self._promises.items() if now < kept.until}
        self._serve_queue(now)

    def end_all(self, cause: Cause, sentence: str) -> None:
        """Every job ends, and every waiting rank is turned away, for the same reason."""
        for job in list(self._jobs):
            if job.state in (State.FORMING, State.QUEUED):
                self._dissolve(job, sentence, Unavailable)
            else:
                self._end(job, Ended(cause, sentence), Unavailable)

    # --- the switch ------------------------------------------------------------------------------------------------

    def switch_away(self, sentence: str, now: float) -> None:
        """The switch does not answer. The packets may still find it, so jobs end only if it stays away for a lease."""
        if self._away is None:
            self._away = (sentence, now)

    def restore(self, jobs: Iterable[Job], next_epoch: int | None, incarnation: int | None) -> None:
        """What an earlier controller wrote down: its running jobs, its next epoch, the program that was on the switch. Leases
        begin with switch_back()."""
        self._incarnation = incarnation
        if next_epoch is not None:
            self.raise_epochs(next_epoch - 1)
        for job in jobs:
            self._jobs.append(job)
            for member in job.members.values():
                member.heard = False
                self._member_jobs[member.key] = job
            if all(member.left for member in job.members.values()):
                self._finish(job)

    def switch_found(self, incarnation: int, epochs_seen: int) -> list[Job]:
        """The switch answers, with this incarnation of the program, and entries of epochs up to `epochs_seen` (0: none).
        Returns the jobs whose entries it shall hold; running ones have ended if theirs went with another incarnation."""
        if epochs_seen:
            self.raise_epochs(epochs_seen)
        known, self._incarnation = self._incarnation, incarnation
        for job in list(self._jobs):
            if job.state is State.RUNNING and known != incarnation:
                sentence = f"the switch was started anew, and what it held of job {job.name!r} is gone; join again"
                self._end(job, Ended(Cause.SWITCH_LOST, sentence))
        return [job for job in self._jobs if job.state in (State.INSTALLING, State.RUNNING)]

    def switch_back(self, now: float) -> None:
        """The switch holds what it shall. Members that an earlier controller admitted get a fresh lease."""
        self._away = None
        for job in self._jobs:
            for member in job.members.values():
                if job.state is State.RUNNING and not member.left and not member.heard:
                    member.lease_until = now + self._lease_s

    def forget(self, sentence: str) -> None:
        """Another controller is in charge: who waits is turned away, and what runs is its affair now."""
        for job in self._jobs:
            if job.state in (State.FORMING, State.QUEUED, State.INSTALLING):
                self._effects += [Dismiss(member, sentence, Unavailable) for member in job.members.values()]
        self._jobs.clear()
        self._member_jobs.clear()
        self._queue.clear()
        self._promises.clear()
        self._away = self._incarnation = None

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

    def _finish(self, job: Job) -> None:
        self._end(job, Ended(Cause.FINISHED, f"every rank of job {job.name!r} left"))

    def _end(self, job: Job, ended: Ended, kind: type[Refused] = Refused) -> None:
        """`kind`: what members hear that wait for admission."""
        if job.state is State.ENDED:
            return
        admitted = job.state is State.RUNNING
        job.state, job.ended, job.verdict_at = State.ENDED, ended, None
        for member in job.members.values():
            del self._member_jobs[member.key]
            self._effects.append(End(member, ended) if admitted else Dismiss(member, ended.reason, kind))
        self._effects.append(Uninstall(job))

    def _forming(self, identity: tuple[str, str]) -> Job | None:
        return next((job for job in self._jobs if job.identity == identity and job.state is State.FORMING), None)


def _member(job: Job, key: str) -> Member:
    return next(member for member in job.members.values() if member.key == key)


def _beyond_limit(application: Application, tenant: Tenant, what: str, held: int, limit: int, more: int) -> Refused:
    """Full where waiting helps."""
    kind, remedy = (Refused, "use fewer") if more > limit else (Full, "wait until one of its jobs ends")
    return kind(
        f"tenant {tenant.name!r} holds {held} of its {limit} {what}, and job {application.job_name!r} needs {more}: "
        f"{remedy}, or have the limit raised"
    )


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
