"""Keeps one switch programmed: opens the session, loads the program, installs and removes jobs, comes back after a loss, stands
by while another controller is in charge and takes over when that one is gone.

All calls to the switch happen in one thread, in order, so that a slow switch delays nobody who only wants to renew a lease. The
same thread writes the ledger, before the switch.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from p4.v1 import p4runtime_pb2

from switchsum.controller import programming
from switchsum.controller.errors import ControllerError, ElectionIdTaken, NotPrimary, StateError, SwitchError, SwitchUnreachable
from switchsum.controller.jobs import Job, State
from switchsum.controller.ledger import Kept, Ledger
from switchsum.controller.p4names import Entry, Item
from switchsum.controller.pipeline import Build
from switchsum.controller.switch_session import DELETE, INSERT, MODIFY, Standing, SwitchSession
from switchsum.p4src.layout import RejectReason, Verdict
from switchsum.protos.tls import ClientTls

PROBE_INTERVAL_S = 2.0  # a switch that hangs does not close its stream; it just stops answering
RECONNECT_INTERVAL_S = 1.0
ELECTION_INTERVAL_S = 0.2  # between attempts to get an election id that is taken
RECONNECT_TIMEOUT_S = 3.0  # of one attempt; jobs that end meanwhile wait for it

logger = logging.getLogger(__name__)


class Role(Enum):
    """What a controller is to its switch."""

    PRIMARY = "primary"
    STANDBY = "standby"
    NO_SESSION = "no session"


class Listener(Protocol):
    """Who wants to know; called from the keeper's thread."""

    def switch_found(self, kept: Kept | None, incarnation: int, epochs_seen: int) -> list[Job]:
        """This controller is in charge of the switch, which runs this incarnation of the program and holds entries of epochs
        up to `epochs_seen` (0: none). `kept`: what the ledger says, None if this controller was in charge before.

        Returns the jobs whose entries the switch shall hold.
        """

    def switch_ready(self, jobs: list[Job]) -> None:
        """The switch is programmed, and holds the entries of these jobs."""

    def switch_away(self, sentence: str) -> None:
        """The switch does not answer; the keeper tries to get it back."""

    def standing_by(self, sentence: str) -> None:
        """Another controller is in charge of the switch."""

    def job_installed(self, job: Job) -> None: ...

    def job_failed(self, job: Job, sentence: str) -> None: ...

    def job_uninstalled(self, job: Job, counts: "JobCounts | None") -> None:
        """`counts`: the job's final counters; None if the switch could not be asked."""


@dataclass(frozen=True)
class JobCounts:
    """Packets of one job by Verdict name: in all, and by rank."""

    verdicts: dict[str, int] = field(default_factory=dict)
    by_rank: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class SwitchCounts:
    """Packets that concern no job. `dropped_in`, `dropped_out`: by switch port; only what is not zero."""

    rejected: dict[str, int] = field(default_factory=dict)
    dropped_in: dict[int, int] = field(default_factory=dict)
    dropped_out: dict[int, int] = field(default_factory=dict)


class SwitchKeeper:
    """One switch in one thread. Call start(), then any of the others from any thread; close() at the end."""

    def __init__(
        self,
        build: Build,
        base_items: Iterable[Item],
        listener: Listener,
        *,
        address: str,
        device_id: int,
        election_id: int,
        connect_timeout_s: float,
        lease_s: float,
        ledger: Ledger | None,
        tls: ClientTls | None,
    ) -> None:
        """`lease_s`: half of it is how long the switch may take to answer, and a quarter how long the controller in charge may
        be gone, so that one that only starts again, or lost its session for a moment, keeps its place."""
        self._build = build
        self._base = list(base_items)
        self._listener = listener
        self._address = address
        self._device_id = device_id
        self._election_id = election_id
        self._connect_timeout_s = connect_timeout_s
        self._probe_timeout_s = lease_s / 2
        self._takeover_delay_s = lease_s / 4
        self._ledger = ledger
        self._tls = tls
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SwitchSession | None = None
        self._generation = 0  # of the session
        self._ready = False  # we are primary and the switch is programmed
        self._in_charge = False  # we were primary last, as far as we know: the listener's jobs are those of the switch
        self._check_at = 0.0
        self._claim_at: float | None = None  # nobody is primary: when we take over
        self.updates_written = 0  # to have the switch hold what it should, since the start
        self._problem = "it is not connected yet"
        self._thread = threading.Thread(target=self._loop, name="switchsum-keeper", daemon=True)

    def start(self) -> None:
        """Connect and program the switch; if another controller is in charge, stand by. Raises ControllerError's family.

        A controller that was killed and starts again may come before the switch knows that the first one is gone.
        """
        deadline = time.monotonic() + self._connect_timeout_s
        while True:
            try:
                self._connect(self._connect_timeout_s)
                break
            except ElectionIdTaken:
                if time.monotonic() + ELECTION_INTERVAL_S > deadline:
                    raise
            time.sleep(ELECTION_INTERVAL_S)
        self._thread.start()

    def close(self) -> None:
        """Finish what is queued, then close the session. The program stays on the switch."""
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._session is not None:
            self._session.close()

    @property
    def problem(self) -> str | None:
        """Why jobs cannot be served now; None when they can."""
        return None if self._ready else self._problem

    @property
    def role(self) -> Role:
        """How the election at the switch went."""
        session = self._session
        if session is None:
            return Role.NO_SESSION
        return Role.PRIMARY if session.primary else Role.STANDBY

    def install(self, job: Job) -> None:
        """Program the switch for a job; the listener hears job_installed or job_failed."""
        self._work.put(lambda: self._install(job))

    def uninstall(self, job: Job) -> None:
        """Take a job off the switch; the listener hears job_uninstalled with the final counters."""
        self._work.put(lambda: self._uninstall(job))

    def count(self, jobs: Iterable[Job], timeout_s: float) -> tuple[SwitchCounts, dict[int, JobCounts]] | None:
        """The switch's counters now, and those of `jobs` by epoch; None if it cannot be asked within `timeout_s`."""
        wanted = list(jobs)
        answer: queue.SimpleQueue[tuple[SwitchCounts, dict[int, JobCounts]] | None] = queue.SimpleQueue()
        self._work.put(lambda: answer.put(self._count(wanted)))
        try:
            return answer.get(timeout=timeout_s)
        except queue.Empty:
            return None

    # --- the thread ------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        self._check_at = time.monotonic() + PROBE_INTERVAL_S
        while True:
            wake_at = self._check_at if self._claim_at is None else min(self._check_at, self._claim_at)
            with contextlib.suppress(queue.Empty):
                work = self._work.get(timeout=max(wake_at - time.monotonic(), 0))
                if work is None:
                    return
                work()
                continue
            if self._session is None:
                self._reconnect()
            elif self._claim_at is not None and time.monotonic() >= self._claim_at:
                self._claim(self._session)
            else:
                self._probe(self._session)
            self._check_at = time.monotonic() + (RECONNECT_INTERVAL_S if self._session is None else PROBE_INTERVAL_S)

    def _connect(self, timeout_s: float) -> None:
        self._generation += 1
        generation = self._generation

        def later(call: Callable[[], None]) -> None:
            """Run in the keeper's thread, unless the session that speaks has been replaced by then."""
            self._work.put(lambda: call() if generation == self._generation else None)

        session = SwitchSession(
            self._address,
            self._device_id,
            self._election_id,
            timeout_s=timeout_s,
            on_lost=lambda sentence: later(lambda: self._lost(sentence)),
            on_role=lambda standing: later(lambda: self._role_changed(standing)),
            tls=self._tls,
        )
        self._session = session
        try:
            if session.standing is Standing.VACANT:
                session.claim(timeout_s)
                self._election_id = session.election_id
            if session.primary:
                self._program(session)
            else:
                self._stand_by(Standing.BACKUP)
        except ControllerError:
            self._drop_session()
            raise

    def _reconnect(self) -> None:
        try:
            self._notice_successor()
            self._connect(min(self._connect_timeout_s, RECONNECT_TIMEOUT_S))
        except ControllerError as error:
            self._problem = str(error)
            logger.info("switch: %s; trying again", error)

    def _notice_successor(self) -> None:
        """While we have no session another may take charge. Our members have to go to that one, and the ledger is its."""
        if self._in_charge and self._ledger is not None and not self._ledger.is_ours():
            self._stand_by(Standing.BACKUP)

    def _probe(self, session: SwitchSession) -> None:
        try:
            session.probe(self._probe_timeout_s)
        except SwitchError as error:
            self._lost(str(error))

    def _lost(self, sentence: str) -> None:
        if self._session is None:
            return
        self._drop_session()
        self._problem = sentence
        self._check_at = time.monotonic()
        logger.error("%s; trying to get it back", sentence)
        if self._in_charge:
            self._listener.switch_away(sentence)

    def _role_changed(self, standing: Standing) -> None:
        session = self._session
        if session is None or session.standing is not standing:  # newer news is on the way
            return
        if standing is not Standing.PRIMARY:
            self._stand_by(standing)
            if standing is Standing.VACANT:
                self._claim_at = time.monotonic() + self._takeover_delay_s
        elif not self._ready:
            self._claim_at = None
            logger.info("in charge of the switch at %s now", self._address)
            try:
                if session.is_outranked:  # BMv2 put us in charge with the id that we have
                    session.claim(RECONNECT_TIMEOUT_S)
                    self._election_id = session.election_id
                self._program(session)
            except ControllerError as error:
                self._lost(str(error))

    def _claim(self, session: SwitchSession) -> None:
        self._claim_at = None
        try:
            session.claim(self._connect_timeout_s)
        except SwitchError as error:
            self._lost(str(error))
            return
        if session.primary:
            self._election_id = session.election_id
            self._role_changed(Standing.PRIMARY)

    def _stand_by(self, standing: Standing) -> None:
        self._ready = self._in_charge = False
        self._problem = f"this controller stands by for the switch at {self._address}: {standing.value}"
        logger.warning("%s", self._problem)
        self._listener.standing_by(self._problem)

    def _drop_session(self) -> None:
        self._ready = False
        self._claim_at = None
        if self._session is not None:
            self._session.close()
            self._session = None

    # --- programming -----------------------------------------------------------------------------------------------

    def _program(self, session: SwitchSession) -> None:
        """Give the switch what it must hold: reconcile under the same program, else load ours."""
        self._notice_successor()
        kept = None
        if not self._in_charge:
            kept = Kept() if self._ledger is None else self._ledger.take_over(time.monotonic())
        present: list[Item] = []
        incarnation = session.cookie()
        if incarnation is not None and self._build.is_incarnation(incarnation):
            present = self._read_items(session)
        else:
            incarnation = session.commit(self._build)
        jobs = self._listener.switch_found(kept, incarnation, max(programming.epochs(present), default=0))
        self._in_charge = True
        if self._ledger is not None:
            self._ledger.found(incarnation)
            for job in jobs:
                if job.state is State.INSTALLING:
                    self._ledger.add(job, time.monotonic())
        wanted = [*self._base, *(item for job in jobs for step in programming.job_steps(job) for item in step)]
        changes = reconcile(present, wanted)
        for step in changes:
            session.write(self._build.names, step)
        # A default is written whether it was right or not, see reconcile.
        updates = sum(not (isinstance(item, Entry) and item.is_default) for step in changes for _, item in step)
        self.updates_written += updates
        logger.info(
            "switch %s runs %s; %d of its entries were right, %d updates written",
            self._address,
            self._build.description,
            len(set(present) & set(wanted)),
            updates,
        )
        self._ready = True
        self._listener.switch_ready(jobs)

    def _read_items(self, session: SwitchSession) -> list[Item]:
        wanted = []
        for table in programming.TABLES:
            entity = p4runtime_pb2.Entity()
            entity.table_entry.table_id = self._build.names.table_id(table)
            wanted.append(entity)
        groups = p4runtime_pb2.Entity()
        groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        items = [self._build.names.item(entity) for entity in session.read([*wanted, groups])]
        return [item for item in items if not (isinstance(item, Entry) and item.is_default)]

    def _install(self, job: Job) -> None:
        """Unless the switch is away: it gets the job with all else when it is back."""
        session = self._session
        if session is None or not self._ready or job.state is not State.INSTALLING:
            return
        try:
            if self._ledger is not None:
                self._ledger.add(job, time.monotonic())
            for step in programming.job_steps(job):
                session.write(self._build.names, [(INSERT, item) for item in step])
        except ControllerError as error:
            logger.error("job %r, epoch %d: %s", job.name, job.epoch, error, extra=job.log_fields)
            self._after(error)
            if self._ready:
                self._listener.job_failed(job, str(error))
        else:
            self._listener.job_installed(job)

    def _uninstall(self, job: Job) -> None:
        """The admitting entry goes first: then nothing counts any more, and the counters read next are final."""
        if self._ledger is not None:
            try:
                self._ledger.remove(job.epoch)
            except StateError as error:
                logger.error("job %r, epoch %d, while taking it off: %s", job.name, job.epoch, error, extra=job.log_fields)
        session, counts = self._session, None
        if session is not None and self._ready:
            *others, admission = programming.job_steps(job)
            for step in (admission, None, *reversed(others)):
                try:
                    if step is None:
                        counts = self._job_counts(session, [job])[job.epoch]
                    else:
                        session.write(self._build.names, [(DELETE, item) for item in step])
                except SwitchError as error:  # a job that was never whole lacks some; what counts is that the rest goes
                    logger.info("job %r, epoch %d, while taking it off: %s", job.name, job.epoch, error, extra=job.log_fields)
                    self._after(error)
                    if not self._ready:
                        break
        self._listener.job_uninstalled(job, counts)

    def _after(self, error: ControllerError) -> None:
        if isinstance(error, SwitchUnreachable):
            self._lost(str(error))
        elif isinstance(error, NotPrimary) and self._ready:
            self._stand_by(Standing.BACKUP)

    # --- counters --------------------------------------------------------------------------------------------------

    def _count(self, jobs: list[Job]) -> tuple[SwitchCounts, dict[int, JobCounts]] | None:
        session = self._session
        if session is None or not self._ready:
            return None
        try:
            rejected = {
                RejectReason(key[0]).name: packets
                for key, packets in self._direct(session, programming.REJECTIONS).items()
                if packets
            }
            counts = SwitchCounts(
                rejected, self._by_port(session, programming.DROPPED_IN), self._by_port(session, programming.DROPPED_OUT)
            )
            return counts, self._job_counts(session, jobs)
        except SwitchError as error:
            logger.warning("while reading counters: %s", error)
            self._after(error)
            return None

    def _job_counts(self, session: SwitchSession, jobs: list[Job]) -> dict[int, JobCounts]:
        found = {job.epoch: JobCounts() for job in jobs}
        if not jobs:
            return found
        for (_, epoch, verdict), packets in self._direct(session, programming.JOB_VERDICTS).items():
            if epoch in found:
                found[epoch].verdicts[Verdict(verdict).name] = packets
        for (_, epoch, rank, verdict), packets in self._direct(session, programming.WORKER_VERDICTS).items():
            if epoch in found:
                found[epoch].by_rank.setdefault(rank, {})[Verdict(verdict).name] = packets
        return found

    def _direct(self, session: SwitchSession, table: str) -> dict[tuple[int, ...], int]:
        """Packets by key of every entry of a table with a direct counter. Entries are read with their counters, since Stratum
        tells of a DirectCounterEntry only for one key (stratum/hal/lib/barefoot/bfrt_table_manager.cc)."""
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = self._build.names.table_id(table)
        entity.table_entry.counter_data.SetInParent()
        entries = [found.table_entry for found in session.read([entity])]
        return {
            self._build.names.key(entry)[1]: int(entry.counter_data.packet_count)
            for entry in entries
            if not entry.is_default_action
        }

    def _by_port(self, session: SwitchSession, counter: str) -> dict[int, int]:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self._build.names.counter_id(counter)
        entries = [found.counter_entry for found in session.read([entity])]
        return {int(e.index.index): int(e.data.packet_count) for e in entries if e.data.packet_count}


def reconcile(present: Iterable[Item], wanted: Iterable[Item]) -> list[list[tuple[int, Item]]]:
    """Steps of updates that turn what a switch holds into what it shall hold, touching nothing that is right.

    The entry that admits a job's packets goes first and comes last. A default action is always written: it cannot be told
    apart from the program's own by reading.
    """
    now = {_place(item): item for item in present}
    then = {_place(item): item for item in wanted}
    surplus = [item for place, item in now.items() if place not in then]
    admissions = [item for item in surplus if _admits(item)]
    changed = [item for place, item in then.items() if place in now and now[place] != item]
    missing = [item for place, item in then.items() if place not in now]
    defaults = [item for item in missing if isinstance(item, Entry) and item.is_default]
    steps: list[list[tuple[int, Item]]] = [
        [(DELETE, item) for item in admissions],
        [(DELETE, item) for item in surplus if item not in admissions],
        [(MODIFY, item) for item in [*changed, *defaults]],
        [(INSERT, item) for item in missing if item not in defaults and not _admits(item)],
        [(INSERT, item) for item in missing if _admits(item)],
    ]
    return [step for step in steps if step]


def _admits(item: Item) -> bool:
    return isinstance(item, Entry) and item.table == programming.JOBS


def _place(item: Item) -> tuple[object, ...]:
    """What can hold only one item: a table's key, a group's number."""
    return (item.table, item.key, item.is_default) if isinstance(item, Entry) else (item.number,)
