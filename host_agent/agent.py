"""One worker's membership in a job, from join to leave: socket, engine, controller and queue put together."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.host_agent import engine as _engine
from switchsum.host_agent.collective import CollectiveQueue, Done
from switchsum.host_agent.credentials import IN_THE_CLEAR, Credentials
from switchsum.host_agent.detour import Detour, Peers
from switchsum.host_agent.engine import Engine, EngineFailure, collective_tag
from switchsum.host_agent.errors import EpochEnded, SwitchSilent, SwitchSumError
from switchsum.host_agent.job_client import JobClient, Joined
from switchsum.host_agent.policy import OnLoss
from switchsum.host_agent.prepare import prepare
from switchsum.host_agent.transport import Transport, now_ns

VERDICT_WAIT_S = 3.0  # how long a failed rank waits for the controller's account of what the others were doing
DRAIN_S = 10.0  # how long close() waits for sums that are still under way
# Attempts to return to a lost switch: an attempt waits for the other ranks', so that they meet.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0
_ATTEMPT_S = 10.0
_TRIAL_S = 3.0
_LOOK_S = 0.1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """How a worker takes part in a job.

    `controller`: "HOST:PORT", or several with commas between; `job_name`: equal on all ranks of the job; `data_address`: this
    host's IPv4 address towards the switch, "" for the one that leads to the controller; `slots`, `elements`: 0 for the
    controller's choice; `least_slots`, `queue_s`: see JobClient.join; `lanes`: bits of a lane of large float32 sums (Engine);
    `timeout_s`: bound for joining and for a silent switch; `peer_timeout_s`: longest wait for other ranks in one sum;
    `on_loss`: what to do without the switch; `credentials`: what is shown to the controller.
    """

    controller: str
    job_name: str
    rank: int
    world_size: int
    data_address: str = ""
    slots: int = 0
    least_slots: int = 0
    queue_s: float = 0.0
    elements: int = 0
    lanes: int = 32
    timeout_s: float = 30.0
    peer_timeout_s: float = 1800.0
    on_loss: OnLoss = OnLoss.FAIL
    credentials: Credentials = IN_THE_CLEAR


@dataclass(eq=False)
class _Membership:
    """One epoch of ours."""

    client: JobClient
    joined: Joined
    engine: Engine | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Agent:
    """A joined worker. Make one with `Agent.join`."""

    def __init__(self, terms: Terms, transport: Transport, membership: _Membership, peers: Peers | None) -> None:
        self._terms = terms
        self._transport = transport
        self._member = membership
        self._lease_s = membership.joined.lease_s
        self._candidate: _Membership | None = None  # while the switch is lost: where we could go on
        self._told: _Membership | None = None  # the candidate that the other ranks were told of last
        self._peers = peers if terms.on_loss is not OnLoss.FAIL else None
        self._lock = threading.Lock()  # of these
        self._suffix = "" if terms.lanes == 32 else f" in {terms.lanes}-bit lanes"  # ranks that disagree on it must be told
        self._closed = threading.Lock()
        self._stop = threading.Event()
        self._seeker: threading.Thread | None = None
        self._attempt: JobClient | None = None  # its
        self._met = threading.Event()  # the switch is lost on all ranks, and our epoch is the past
        self._wanted = threading.Event()  # somebody sums meanwhile
        self._lost_at = 0.0
        detour = None
        if self._peers is not None:
            detour = Detour(
                peers=self._peers,
                waits=terms.on_loss is OnLoss.WAIT,
                patience_s=terms.peer_timeout_s,
                begin=self._begin_detour,
                met=self._met.set,
                ready=self._ready,
                enter=self._enter,
                entered=self._entered,
            )
        self._queue = CollectiveQueue(self._engine_of(membership.joined), transport, on_failure=self._failed, detour=detour)
        self._start(membership)

    @classmethod
    def join(cls, terms: Terms, peers: Peers | None = None) -> Agent:
        """Join a job and wait until all its ranks are there. `peers`: for terms that go on without the switch.

        Raises SwitchSumError's family, each with the reason.
        """
        prepare(tell=terms.rank == 0)  # before the barrier: whoever compiles must not keep the others waiting inside a sum
        hosts = {one.rpartition(":")[0] for one in terms.controller.split(",")}
        loopback = hosts <= {"127.0.0.1", "localhost", "[::1]"}
        transport = Transport(terms.data_address or ("127.0.0.1" if loopback else ""))
        try:
            membership = _apply(JobClient(terms.controller, terms.credentials), terms, transport, terms.timeout_s)
            try:
                transport.connect(membership.joined.switch_address, membership.joined.switch_port)
                return cls(terms, transport, membership, peers)
            except BaseException:
                membership.client.close()
                raise
        except BaseException:
            transport.close()
            raise

    def _engine_of(self, joined: Joined) -> Engine:
        # A silent switch is found as soon as a lost worker is, where it costs no more than the way around it.
        silence_s = self._terms.timeout_s if self._peers is None else min(self._terms.timeout_s, joined.lease_s)
        return Engine(
            job=joined.job,
            epoch=joined.epoch,
            worker=joined.worker,
            world_size=self._terms.world_size,
            slots=joined.slots,
            elements=joined.elements,
            lanes=self._terms.lanes,
            switch_timeout_ns=int(silence_s * 1e9),
            peer_timeout_ns=int(self._terms.peer_timeout_s * 1e9),
        )

    def _start(self, membership: _Membership) -> None:
        membership.client.start(
            on_ended=lambda ended: self._epoch_ended(membership, ended),
            describe=lambda: self._queue.current,
            counters=lambda: self._queue.engine.counters(),
            on_renewal=self._renewed,
        )

    # --- losing the switch, and getting it back --------------------------------------------------------------------

    def _epoch_ended(self, membership: _Membership, ended: EpochEnded) -> None:
        membership.ended.set()
        with self._lock:
            ours = membership is self._member and not self._met.is_set()
        if not ours:  # the past, or an epoch that we have not summed in: another attempt will do
            return
        if ended.resumable and self._peers is not None:
            self._queue.lose_switch(ended)
        else:
            self._queue.fail(ended)

    def _renewed(self, answered: bool) -> None:
        """Others may have lost the switch, and the controller cannot tell us, or does not know."""
        if self._peers is None or (answered and self._queue.stalled_s() < self._lease_s):
            return
        reason = self._peers.called(self._queue.generation + 1)
        if reason is not None:
            self._queue.lose_switch(SwitchSilent(reason))

    def _failed(self, failure: EngineFailure | None, error: SwitchSumError) -> SwitchSumError:
        """Tell the controller; its account names all ranks concerned, ours only what this rank saw."""
        client = self._member.client
        kind = _engine.NO_FAILURE if failure is None else failure.kind
        if kind == _engine.MISMATCHED:
            client.report_mismatch(str(error), self._queue.current)
        elif kind == _engine.SWITCH_SILENT:
            client.report_switch_silent(str(error), self._queue.current)
        elif client.ended is None and not self._met.is_set():
            client.report_failure(str(error), self._queue.current)
        else:
            return error  # the epoch is the past, and this is about what came after
        ended = client.wait_ended(VERDICT_WAIT_S)
        return error if ended is None else EpochEnded(f"{ended} (this rank: {error})")

    def _begin_detour(self, generation: int, reason: SwitchSumError) -> None:
        assert self._peers is not None
        self._lost_at = time.monotonic()
        way = "wait" if self._terms.on_loss is OnLoss.WAIT else "go over Gloo"
        logger.log(
            self._level,
            "job %r, rank %d: sums %s until the switch is back: %s",
            self._terms.job_name, self._terms.rank, way, reason, extra=self._log_fields(),
        )  # fmt: skip
        self._peers.call(generation, f"rank {self._terms.rank} lost the switch: {reason}")
        if not isinstance(reason, EpochEnded):
            self._member.client.report_switch_silent(str(reason), self._queue.current)
        self._wanted.clear()
        if self._seeker is None:
            self._seeker = threading.Thread(target=self._seek, name="switchsum-return", daemon=True)
            self._seeker.start()

    def _seek(self) -> None:
        while not self._stop.is_set():
            try:
                self._seek_return()
            except Exception:  # such as no thread to be had: it must not be the last attempt
                logger.exception("an attempt to return to the switch failed", extra=self._log_fields())
                self._stop.wait(_LONGEST_PAUSE_S)

    def _seek_return(self) -> None:
        """Join anew whenever the switch is lost: the join's barrier brings all ranks together, in the same epoch."""
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            if self._queue.path != "gloo":
                pause_s = _FIRST_PAUSE_S
                self._stop.wait(_LOOK_S)
                continue
            if not self._met.wait(_LOOK_S):  # our client's end would look like ours to ranks that have not come yet
                continue
            self._member.client.leave()
            self._member.client.close()
            # A job that gave its slots back because it sums nothing must not ask for them again at once.
            if self._terms.on_loss is OnLoss.GLOO and not self._wanted.wait(_LOOK_S):
                continue
            if self._stop.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            client = JobClient(self._terms.controller, self._terms.credentials)
            with self._lock:
                self._attempt = client
            if self._stop.is_set():  # close() has looked for an attempt before
                client.close()
                return
            membership: _Membership | None = None
            try:
                membership = _apply(client, self._terms, self._transport, _ATTEMPT_S)
                if self._stop.is_set():
                    client.close()
                    return
                self._start(membership)
                membership.engine = self._try_out(membership)
            except SwitchSumError as error:
                logger.info(
                    "job %r, rank %d: not back yet: %s", self._terms.job_name, self._terms.rank, error, extra=self._log_fields()
                )
                if self._stop.is_set():
                    client.leave()
                elif membership is not None:
                    client.report_switch_silent(str(error), "none")  # the others must not wait for us in this epoch
                client.close()
                continue
            with self._lock:
                self._candidate = membership
            while self._queue.path == "gloo" and not membership.ended.wait(_LOOK_S) and not self._stop.is_set():
                pass
            with self._lock:
                taken = self._candidate is None
                self._candidate = None
            if not taken:
                if self._stop.is_set():
                    membership.client.leave()
                membership.client.close()

    def _try_out(self, membership: _Membership) -> Engine:
        """A sum of one number: all ranks' packets find their way to the switch and back. Else a job would return to a switch
        that the controller reaches and a rank does not, and stand still for a lease each time. Raises SwitchSumError."""
        joined = membership.joined
        self._transport.connect(joined.switch_address, joined.switch_port)
        engine = self._engine_of(joined)
        one = np.ones(1, np.int32)
        engine.submit(one, one, collective_tag(0, "return to the switch"), now_ns())
        deadline = time.monotonic() + _TRIAL_S
        while not engine.finished:
            if time.monotonic() > deadline or engine.failure is not None:
                raise SwitchSilent(f"packets do not find their way to the switch at {joined.switch_address} and back")
            if membership.ended.is_set() or self._stop.is_set():
                raise SwitchSumError(f"epoch {joined.epoch} has ended already")
            self._transport.run(engine)
        engine.forget_finished()
        return engine

    def _ready(self) -> int:
        self._wanted.set()
        with self._lock:
            ended = self._candidate is None or self._candidate.ended.is_set()
            self._told = None if ended else self._candidate
            return 0 if self._told is None else self._told.joined.epoch

    def _enter(self, epoch: int) -> Engine:
        with self._lock:
            candidate, self._candidate = self._told, None
            assert candidate is not None
            self._member = candidate
            self._met.clear()
        logger.log(
            self._level,
            "job %r, rank %d: sums go through the switch again, in epoch %d, after %.1f s",
            self._terms.job_name, self._terms.rank, epoch, time.monotonic() - self._lost_at,
            extra=self._log_fields() | {"epoch": epoch},
        )  # fmt: skip
        assert candidate.engine is not None
        return candidate.engine

    @property
    def _level(self) -> int:
        """Of what all ranks have to tell: once is enough for people."""
        return logging.WARNING if self._terms.rank == 0 else logging.INFO

    def _log_fields(self) -> dict[str, object]:
        """What a log line tells beside its words; the epoch is the past one while the switch is lost."""
        return {"job": self._terms.job_name, "epoch": self.epoch, "rank": self._terms.rank}

    def _entered(self) -> None:
        ended = self._member.client.ended
        if ended is not None:  # after we had said that we could go on in it: all ranks have entered, and must leave again
            self._queue.lose_switch(ended)

    def all_reduce(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0
    ) -> None:
        """Sum over all workers, see CollectiveQueue.submit."""
        self._queue.submit(source, target, description + self._suffix, done, place)

    def all_reduce_now(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0
    ) -> None:
        """As all_reduce, by a caller that waits for it anyway, see CollectiveQueue.run."""
        self._queue.run(source, target, description + self._suffix, done, place)

    def all_reduce_when_ready(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done
    ) -> Callable[[], None]:
        """As all_reduce, for numbers that are still on their way into `source`, see CollectiveQueue.hold."""
        return self._queue.hold(source, target, description + self._suffix, done)

    def agree(self, description: str, done: Done, *, waits: bool) -> None:
        """Find out whether all workers' next collective is this one: a sum of one number under its name.

        `done(error)` is called when all have come, or with an error that tells which rank does what. `waits`: whether the
        caller waits for that, as all_reduce_now. `done` must not run code of others.
        """
        ballot = np.zeros(1, np.int32)
        if waits:
            self._queue.run(ballot, ballot, description, done)
        else:
            self._queue.submit(ballot, ballot, description, done, inline=True)

    @property
    def failure(self) -> SwitchSumError | None:
        """Why this job is over; None while it is not."""
        return self._queue.error

    def wait_failure(self, timeout_s: float) -> SwitchSumError | None:
        """Wait for such a reason; None if none came in time."""
        deadline = time.monotonic() + timeout_s
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.failure

    def counters(self) -> dict[str, int]:
        """Packets, bytes and events since the join, see Engine.counters."""
        return self._queue.counters()

    @property
    def path(self) -> str:
        """Where sums go now, see CollectiveQueue.path."""
        return self._queue.path

    @property
    def epoch(self) -> int:
        """The job's present epoch, or the last one while the switch is lost."""
        return self._queue.engine.epoch

    def gauges(self) -> dict[str, float]:
        """How things stand now, see CollectiveQueue.gauges."""
        return self._queue.gauges()

    def start_profile(self) -> None:
        """Begin to count where the data path's time goes, see Engine.start_profile."""
        self._queue.engine.start_profile()

    def end_profile(self) -> dict[str, float]:
        """Seconds of each stage since start_profile, see Engine.end_profile."""
        return self._queue.engine.end_profile()

    def close(self) -> None:
        """Finish what is under way (for at most a few seconds), leave the job, free everything. May be called twice."""
        if not self._closed.acquire(blocking=False):
            return
        try:
            self._queue.drain(DRAIN_S)
        finally:  # Ctrl-C may end the wait; a stream that is left open may keep the process from ending
            self._stop.set()
            self._end_seeker()
            self._queue.close()
            self._member.client.leave()
            self._member.client.close()

    def _end_seeker(self) -> None:
        if self._seeker is None:
            return
        with self._lock:
            attempt = self._attempt
        if attempt is not None and attempt is not self._member.client:
            attempt.close()  # which may wait for the other ranks, or in the queue for slots
        self._seeker.join()


def _apply(client: JobClient, terms: Terms, transport: Transport, timeout_s: float) -> _Membership:
    """Join once; the client is closed if that fails."""
    try:
        joined = client.join(
            job_name=terms.job_name,
            rank=terms.rank,
            world_size=terms.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            data_address=terms.data_address,
            data_port=transport.local_port,
            slots=terms.slots,
            least_slots=terms.least_slots,
            queue_s=terms.queue_s,
            elements=terms.elements,
            timeout_s=timeout_s,
        )
    except BaseException:
        client.close()
        raise
    return _Membership(client, joined)
