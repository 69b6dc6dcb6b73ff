"""Keeps one switch programmed: opens the session, loads the program, installs and removes jobs, comes back after a loss.

All calls to the switch happen in one thread, in order, so that a slow switch delays nobody who only wants to renew a lease.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from p4.v1 import p4runtime_pb2

from switchsum.controller import programming
from switchsum.controller.errors import NotPrimary, SwitchError, SwitchUnreachable
from switchsum.controller.jobs import Job
from switchsum.controller.p4names import Entry, Item
from switchsum.controller.pipeline import Build
from switchsum.controller.switch_session import DELETE, INSERT, MODIFY, SwitchSession
from switchsum.p4src.layout import RejectReason, Verdict

PROBE_INTERVAL_S = 2.0  # a switch that hangs does not close its stream; it just stops answering
PROBE_TIMEOUT_S = 5.0
RECONNECT_INTERVAL_S = 1.0

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """Who wants to know; called from the keeper's thread."""

    def switch_ready(self, epochs_seen: int) -> None:
        """The switch is programmed; its entries held epochs up to `epochs_seen` (0: none)."""

    def switch_lost(self, sentence: str) -> None:
        """The switch, or the charge of it, is lost; the keeper tries to get it back."""

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
    ) -> None:
        self._build = build
        self._base = list(base_items)
        self._listener = listener
        self._address = address
        self._device_id = device_id
        self._election_id = election_id
        self._connect_timeout_s = connect_timeout_s
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SwitchSession | None = None
        self._generation = 0  # of the session
        self._ready = False  # we are primary and the switch is programmed
        self._problem = "it is not connected yet"
        self._thread = threading.Thread(target=self._loop, name="switchsum-keeper", daemon=True)

    def start(self) -> None:
        """Connect and program the switch; if another controller is in charge, stand by. Raises SwitchError's family."""
        self._connect()
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
        next_check = time.monotonic() + PROBE_INTERVAL_S
        while True:
            with contextlib.suppress(queue.Empty):
                work = self._work.get(timeout=max(next_check - time.monotonic(), 0))
                if work is None:
                    return
                work()
                continue
            if self._session is None:
                self._reconnect()
            else:
                self._probe(self._session)
            next_check = time.monotonic() + (RECONNECT_INTERVAL_S if self._session is None else PROBE_INTERVAL_S)

    def _connect(self) -> None:
        self._generation += 1
        generation = self._generation

        def later(call: Callable[[], None]) -> None:
            """Run in the keeper's thread, unless the session that speaks has been replaced by then."""
            self._work.put(lambda: call() if generation == self._generation else None)

        session = SwitchSession(
            self._address,
            self._device_id,
            self._election_id,
            timeout_s=self._connect_timeout_s,
            on_lost=lambda sentence: later(lambda: self._lost(sentence)),
            on_role=lambda primary: later(lambda: self._role_changed(primary)),
        )
        self._session = session
        if session.primary:
            try:
                self._program(session)
            except SwitchError:
                self._drop_session()
                raise
        else:
            self._stand_by("another controller with a higher election id is in charge of it")

    def _reconnect(self) -> None:
        try:
            self._connect()
        except SwitchError as error:
            self._problem = str(error)
            logger.info("switch: %s; trying again", error)

    def _probe(self, session: SwitchSession) -> None:
        try:
            session.probe(PROBE_TIMEOUT_S)
        except SwitchError as error:
            self._lost(str(error))

    def _lost(self, sentence: str) -> None:
        if self._session is None:
            return
        self._drop_session()
        self._problem = sentence
        logger.error("%s; trying to get it back", sentence)
        self._listener.switch_lost(sentence)

    def _role_changed(self, primary: bool) -> None:
        session = self._session
        if session is None:
            return
        if not primary:
            self._stand_by("another controller took charge of it")
            self._listener.switch_lost(self._problem)
            return
        logger.info("in charge of the switch at %s now", self._address)
        try:
            self._program(session)
        except SwitchError as error:
            self._lost(str(error))

    def _stand_by(self, why: str) -> None:
        self._ready = False
        self._problem = f"this controller stands by for the switch at {self._address}: {why}"
        logger.warning("%s", self._problem)

    def _drop_session(self) -> None:
        self._ready = False
        if self._session is not None:
            self._session.close()
            self._session = None

    # --- programming -----------------------------------------------------------------------------------------------

    def _program(self, session: SwitchSession) -> None:
        """Give the switch what it must hold while there is no job: reconcile under the same program, else load ours."""
        present: list[Item] = []
        if session.cookie() == self._build.cookie:
            present = self._read_items(session)
        else:
            session.commit(self._build)
        changes = reconcile(present, self._base)
        for step in changes:
            session.write(self._build.names, step)
        logger.info(
            "switch %s runs %s; %d of its entries were right, %d updates written",
            self._address,
            self._build.description,
            len(set(present) & set(self._base)),
            sum(map(len, changes)),
        )
        self._ready = True
        self._listener.switch_ready(max(programming.epochs(present), default=0))

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
        session = self._session
        if session is None or not self._ready:
            self._listener.job_failed(job, self._problem)
            return
        try:
            for step in programming.job_steps(job):
                session.write(self._build.names, [(INSERT, item) for item in step])
        except SwitchError as error:
            logger.error("job %r, epoch %d: %s", job.name, job.epoch, error)
            self._listener.job_failed(job, str(error))
            self._after(error)
        else:
            self._listener.job_installed(job)

    def _uninstall(self, job: Job) -> None:
        """The admitting entry goes first: then nothing counts any more, and the counters read next are final."""
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
                    logger.info("job %r, epoch %d, while taking it off: %s", job.name, job.epoch, error)
                    self._after(error)
                    if not self._ready:
                        break
        self._listener.job_uninstalled(job, counts)

    def _after(self, error: SwitchError) -> None:
        if isinstance(error, SwitchUnreachable):
            self._lost(str(error))
        elif isinstance(error, NotPrimary) and self._ready:
            self._role_changed(False)

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
        """Packets by key of every entry of a table with a direct counter."""
        entity = p4runtime_pb2.Entity()
        entity.direct_counter_entry.table_entry.table_id = self._build.names.table_id(table)
        counts: dict[tuple[int, ...], int] = {}
        for found in session.read([entity]):
            entry = found.direct_counter_entry
            counts[self._build.names.key(entry.table_entry)[1]] = int(entry.data.packet_count)
        return counts

    def _by_port(self, session: SwitchSession, counter: str) -> dict[int, int]:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self._build.names.counter_id(counter)
        entries = [found.counter_entry for found in session.read([entity])]
        return {int(e.index.index): int(e.data.packet_count) for e in entries if e.data.packet_count}


def reconcile(present: Iterable[Item], wanted: Iterable[Item]) -> list[list[tuple[int, Item]]]:
    """Steps of updates that turn what a switch holds into what it shall hold, touching nothing that is right.

    Jobs lose the entry that admits their packets first. A default action is always written: it cannot be told apart from the
    program's own by reading.
    """
    now = {_place(item): item for item in present}
    then = {_place(item): item for item in wanted}
    surplus = [item for place, item in now.items() if place not in then]
    admissions = [item for item in surplus if isinstance(item, Entry) and item.table == programming.JOBS]
    changed = [item for place, item in then.items() if place in now and now[place] != item]
    missing = [item for place, item in then.items() if place not in now]
    defaults = [item for item in missing if isinstance(item, Entry) and item.is_default]
    steps: list[list[tuple[int, Item]]] = [
        [(DELETE, item) for item in admissions],
        [(DELETE, item) for item in surplus if item not in admissions],
        [(MODIFY, item) for item in [*changed, *defaults]],
        [(INSERT, item) for item in missing if item not in defaults],
    ]
    return [step for step in steps if step]


def _place(item: Item) -> tuple[object, ...]:
    """What can hold only one item: a table's key, a group's number."""
    return (item.table, item.key, item.is_default) if isinstance(item, Entry) else (item.number,)
