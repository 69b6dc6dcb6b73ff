"""The job service: gRPC calls in, the registry's decisions out to waiting calls, event streams and the switch.

One lock guards the registry; no call to the switch, no wait and no write to a disk happens under it.
"""

import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import quote, unquote

import grpc

from switchsum.controller import jobs
from switchsum.controller.errors import StateError
from switchsum.controller.jobs import Application, Cause, Ended, Full, Job, Refused, Registry, State, Unavailable, Unknown
from switchsum.controller.ledger import Kept, Ledger
from switchsum.controller.switch_keeper import JobCounts, Role, SwitchCounts, SwitchKeeper
from switchsum.controller.tenants import ANYBODY, Tenant, Tenants
from switchsum.p4src.layout import SLOTS, WIRE_VERSION
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServicer

JOIN_PATIENCE_S = 30.0  # for a client that sets no deadline
LONGEST_PATIENCE_S = 3600.0  # a forming job holds slots
MAX_TEXT = 1000  # characters of what a client says of itself; the rest is cut off
MAX_COUNTERS = 64  # of one member
COUNT_TIMEOUT_S = 5.0
TICK_S = 0.1  # how late a lease may be found to have run out
_REPLY_MARGIN_S = 0.5  # the sentence that names missing ranks must reach the client before its own deadline does

logger = logging.getLogger(__name__)

_MAX_ENCODED = 6000  # bytes of a refusal

_GONE = object()  # the client of a waiting join went away

_CODES = {
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    Full: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Unknown: grpc.StatusCode.NOT_FOUND,
}


@dataclass(eq=False)
class _Desk:
    """Where one member is served: its pending join, and its event streams."""

    tenant: str
    answer: "queue.SimpleQueue[jobs.Admit | jobs.Dismiss | object]" = field(default_factory=queue.SimpleQueue)
    streams: "set[queue.SimpleQueue[pb.JobEvent | None]]" = field(default_factory=set)
    ended: pb.JobEvent | None = None

    def tell(self, event: pb.JobEvent | None) -> None:
        """To every open stream; None closes them."""
        for stream in self.streams:
            stream.put(event)


@dataclass(frozen=True)
class Reading:
    """What the metrics are made of: what Inspect tells an operator, and what only grows while the controller runs."""

    report: pb.InspectReply
    role: Role
    epochs_ended: dict[str, int]  # by Cause name
    joins_refused: dict[str, int]  # by Refused.label, "wire version" or "dismissed"
    updates_written: int  # to the switch, by reconciling


class JobService(JobServicer):
    """The servicer, and the keeper's listener. `serve(keeper)` before the first call; `stop()` at the end."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger | None,
        tenants: Tenants | None,
        *,
        lease_s: float,
        pipeline: str,
        switch_address: str,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._tenants = tenants
        self._lease_s = lease_s
        self._pipeline = pipeline
        self._switch_address = switch_address
        self._keeper: SwitchKeeper | None = None
        self._standby = ""  # another controller is in charge: a sentence that says so
        self._started_at = time.monotonic()
        self._lock = threading.Lock()
        self._desks: dict[str, _Desk] = {}
        self._final: dict[int, JobCounts] = {}  # by epoch, of jobs in the registry's history
        self._epochs_ended: Counter[str] = Counter()
        self._joins_refused: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._clock = threading.Thread(target=self._keep_time, name="switchsum-leases", daemon=True)

    def serve(self, keeper: SwitchKeeper) -> None:
        """Begin to answer; `keeper` has been given this service as its listener."""
        self._keeper = keeper
        self._tick()
        self._clock.start()

    def stop(self) -> None:
        """Turn everybody away and end every job; the keeper still has to be closed, which takes them off the switch."""
        with self._acting():
            self._registry.end_all(Cause.CONTROLLER_STOPPED, "the controller was stopped; start it again and join anew")
            self._carry_out()  # the reason goes first, the end of the streams second
            self._stopped.set()
            for desk in self._desks.values():
                desk.tell(None)
        self._clock.join()

    def running_jobs(self) -> int:
        """Jobs that are forming, being installed or running."""
        with self._lock:
            return sum(job.state is not State.ENDED for job in self._registry.jobs)

    # --- calls -----------------------------------------------------------------------------------------------------

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply:
        """Waits for the world; what is refused ends with one sentence and FAILED_PRECONDITION, RESOURCE_EXHAUSTED (others have
        the slots) or UNAVAILABLE (try again, or another controller)."""
        tenant = self._tenant(context)
        remaining_s = context.time_remaining()
        patience_s = JOIN_PATIENCE_S if remaining_s is None else min(remaining_s, LONGEST_PATIENCE_S)
        if request.wire_version != WIRE_VERSION:
            self._count_refusal("wire version")
            raise _refusal(
                context,
                f"rank {request.rank} of job {_cut(request.job_name)!r} speaks wire version {request.wire_version:#x}, this "
                f"controller and its switch {WIRE_VERSION:#x}: install the same release of switchsum on both",
            )
        application = Application(
            job_name=request.job_name,
            rank=request.rank,
            world_size=request.world_size,
            host=_cut(request.host),
            pid=request.pid,
            data_address=_cut(request.data_address) or _caller(context),
            data_port=request.data_port,
            slots=request.slots,
            elements=request.elements,
            least_slots=request.least_slots,
            queue_s=request.queue_ms / 1000,
            tenant=tenant.name,
        )
        try:
            key, desk = self._enter(application, tenant)
        except Refused as refused:
            logger.info(
                "refused %s of job %r: %s", application, _cut(application.job_name), refused, extra=application.log_fields
            )
            self._count_refusal(refused.label)
            raise _refusal(context, str(refused), _CODES[type(refused)]) from None
        if not context.add_callback(lambda: desk.answer.put(_GONE)):
            desk.answer.put(_GONE)
        answer = self._await(key, desk, patience_s)
        if isinstance(answer, jobs.Admit):
            return self._admission(answer)
        if isinstance(answer, jobs.Dismiss):
            raise _refusal(context, answer.sentence, _CODES[answer.kind])
        with self._acting():
            self._registry.withdraw(key)
        raise _refusal(context, "the caller went away")

    def Watch(self, request: pb.MemberRequest, context: grpc.ServicerContext) -> Iterator[pb.JobEvent]:
        """Ready, then what happens, EpochEnded last."""
        self._check_serving(context)
        tenant = self._tenant(context)
        stream: queue.SimpleQueue[pb.JobEvent | None] = queue.SimpleQueue()
        with self._lock:
            desk = self._desk(request.member, tenant)
            if desk is not None:
                desk.streams.add(stream)
                self._registry.renew(request.member, time.monotonic())  # a sign of life
                if desk.ended is not None:
                    stream.put(desk.ended)
                elif self._stopped.is_set():
                    stream.put(None)
        if desk is None:
            context.abort(grpc.StatusCode.NOT_FOUND, _UNKNOWN_MEMBER)
            return

        def closed() -> None:
            stream.put(None)
            with self._acting():
                desk.streams.discard(stream)
                if self._desks.get(request.member) is desk and not desk.streams:
                    self._registry.lose(request.member, "broke off: its process ended, or its link to the controller did")

        if not context.add_callback(closed):
            closed()
            return
        yield pb.JobEvent(ready=pb.Ready())
        while (event := stream.get()) is not None:
            yield event
            if event.HasField("epoch_ended"):
                return
        self._check_serving(context)

    def Renew(self, request: pb.RenewRequest, context: grpc.ServicerContext) -> pb.RenewReply:
        self._check_serving(context)
        tenant = self._tenant(context)
        counters = dict(islice(((_cut(name), value) for name, value in request.counters.items()), MAX_COUNTERS))
        with self._lock:
            known = self._desk(request.member, tenant) is not None
            alive = known and self._registry.renew(request.member, time.monotonic(), counters)
        if not alive:
            context.abort(grpc.StatusCode.NOT_FOUND, _UNKNOWN_MEMBER)
        return pb.RenewReply()

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply:
        self._check_serving(context)
        tenant = self._tenant(context)
        now = time.monotonic()
        kinds = pb.ReportRequest
        if request.kind not in (kinds.MISMATCH, kinds.DESCRIPTION, kinds.SWITCH_SILENT, kinds.FAILURE):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.kind} is not a kind of report")
        collective, detail = _cut(request.collective), _cut(request.detail)
        with self._acting():
            known = self._desk(request.member, tenant) is not None
            if known and request.kind == kinds.MISMATCH:
                self._registry.report_mismatch(request.member, collective, now)
            elif known and request.kind == kinds.DESCRIPTION:
                self._registry.describe(request.member, collective, now)
            elif known:
                cause = Cause.FAILED if request.kind == kinds.FAILURE else Cause.SWITCH_LOST
                told = not collective or collective in detail
                where = "" if told else f" (in {collective})"
                self._registry.report_failure(request.member, f"{detail}{where}", cause)
        if not known:
            context.abort(grpc.StatusCode.NOT_FOUND, _UNKNOWN_MEMBER)
        return pb.ReportReply()

    def Leave(self, request: pb.MemberRequest, context: grpc.ServicerContext) -> pb.LeaveReply:
        """A standby too lets nobody leave: that is how clients knock."""
        tenant = self._tenant(context)
        if not request.member:
            return pb.LeaveReply()
        self._check_serving(context)
        with self._acting():
            desk = self._desk(request.member, tenant)
            found = None if desk is None else self._registry.job_of(request.member)
            if desk is not None:
                self._registry.leave(request.member)
                if desk.ended is None:
                    desk.tell(None)
        if found is not None and self._ledger is not None:
            job, member = found
            try:
                self._ledger.leave(job.epoch, member.application.rank)
            except StateError as error:
                logger.error("job %r, epoch %d: %s", job.name, job.epoch, error, extra=job.log_fields)
        return pb.LeaveReply()

    def Shrink(self, request: pb.ShrinkRequest, context: grpc.ServicerContext) -> pb.ShrinkReply:
        self._check_serving(context)
        tenant = self._tenant(context)
        try:
            with self._acting():
                self._registry.shrink(_cut(request.job_name), request.slots, tenant, time.monotonic())
        except Refused as refused:
            raise _refusal(context, str(refused), _CODES[type(refused)]) from None
        return pb.ShrinkReply()

    def Inspect(self, request: pb.InspectRequest, context: grpc.ServicerContext) -> pb.InspectReply:
        return self._inspect(self._tenant(context))

    def reading(self) -> Reading:
        """For the metrics; takes as long as an Inspect."""
        assert self._keeper is not None
        report = self._inspect(ANYBODY)
        with self._lock:
            ended, refused = dict(self._epochs_ended), dict(self._joins_refused)
        return Reading(report, self._keeper.role, ended, refused, self._keeper.updates_written)

    def _inspect(self, tenant: Tenant) -> pb.InspectReply:
        """Counters of running jobs are read now; those of ended ones were read when they ended. A tenant that is no operator
        sees its own jobs."""
        assert self._keeper is not None
        with self._lock:
            current = list(self._registry.jobs)
        counted = self._keeper.count([job for job in current if job.epoch], COUNT_TIMEOUT_S)
        switch, by_epoch = counted or (SwitchCounts(), {})
        reply = pb.InspectReply(
            rejected=switch.rejected,
            dropped_in=switch.dropped_in,
            dropped_out=switch.dropped_out,
            slots_total=SLOTS,
            pipeline=self._pipeline,
            data_address=self._registry.data_address,
            wire_version=WIRE_VERSION,
            clock_s=time.time(),
            switch_address=self._switch_address,
            switch_problem=self._keeper.problem or ("" if counted else "the switch does not answer for its counters"),
            standby=bool(self._standby),
            uptime_s=time.monotonic() - self._started_at,
            lease_s=self._lease_s,
        )
        with self._lock:
            now = time.monotonic()
            reply.slots_free = self._registry.free_slots
            for job in (*self._registry.jobs, *reversed(self._registry.history)):
                if tenant.operator or tenant.name == job.tenant:
                    counts = self._final.get(job.epoch) or by_epoch.get(job.epoch) or JobCounts()
                    reply.jobs.append(_report(job, counts, now))
        return reply

    # --- what the keeper tells ---------------------------------------------------------------------------------------

    def switch_found(self, kept: Kept | None, incarnation: int, epochs_seen: int) -> list[Job]:
        with self._acting():
            if kept is not None:
                for job in kept.jobs:
                    self._desks |= {member.key: _Desk(job.tenant) for member in job.members.values()}
                self._registry.restore(kept.jobs, kept.next_epoch, kept.incarnation)
            return self._registry.switch_found(incarnation, epochs_seen)

    def switch_ready(self, jobs: list[Job]) -> None:
        with self._acting():
            now = time.monotonic()
            self._standby = ""
            self._registry.switch_back(now)
            for job in jobs:
                self._registry.installed(job, now)

    def switch_away(self, sentence: str) -> None:
        with self._acting():
            self._registry.switch_away(sentence, time.monotonic())

    def standing_by(self, sentence: str) -> None:
        with self._acting():
            self._standby = sentence
            self._registry.forget(sentence)
            self._carry_out()
            for desk in self._desks.values():
                desk.tell(None)
            self._desks.clear()

    def job_installed(self, job: Job) -> None:
        with self._acting():
            self._registry.installed(job, time.monotonic())

    def job_failed(self, job: Job, sentence: str) -> None:
        with self._acting():
            self._registry.install_failed(job, sentence)

    def job_uninstalled(self, job: Job, counts: JobCounts | None) -> None:
        with self._acting():
            self._registry.uninstalled(job)
            if counts is not None:
                self._final[job.epoch] = counts
            remembered = {past.epoch for past in self._registry.history}
            self._final = {epoch: kept for epoch, kept in self._final.items() if epoch in remembered}
            served = {
                member.key for each in (*self._registry.jobs, *self._registry.history) for member in each.members.values()
            }
            self._desks = {key: desk for key, desk in self._desks.items() if key in served}

    # --- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Hold the lock while the registry decides, and carry its decisions out before anybody else may ask."""
        with self._lock:
            yield
            self._carry_out()

    def _carry_out(self) -> None:
        assert self._keeper is not None or not self._registry.jobs
        for effect in self._registry.take_effects():
            match effect:
                case jobs.Install(job=job):
                    logger.info(
                        "job %r, epoch %d: the world of %d is complete",
                        job.name,
                        job.epoch,
                        job.world_size,
                        extra=job.log_fields,
                    )
                    self._keeper.install(job)  # type: ignore[union-attr]
                case jobs.Uninstall(job=job):
                    if job.ended is not None:
                        self._epochs_ended[job.ended.cause.name] += 1
                    logger.info(
                        "job %r, epoch %d ended: %s",
                        job.name,
                        job.epoch,
                        job.ended and job.ended.reason,
                        extra=job.log_fields,
                    )
                    self._keeper.uninstall(job)  # type: ignore[union-attr]
                case jobs.Admit(member=member):
                    self._desks[member.key].answer.put(effect)
                case jobs.Dismiss(member=member):
                    self._joins_refused["dismissed"] += 1
                    self._desks.pop(member.key).answer.put(effect)
                case jobs.AskDescription(member=member):
                    self._desks[member.key].tell(pb.JobEvent(describe=pb.Describe()))
                case jobs.End(member=member, ended=ended):
                    desk = self._desks[member.key]
                    desk.ended = pb.JobEvent(epoch_ended=_ended_message(ended))
                    desk.tell(desk.ended)

    def _count_refusal(self, label: str) -> None:
        with self._lock:
            self._joins_refused[label] += 1

    def _tenant(self, context: grpc.ServicerContext) -> Tenant:
        """On whose behalf a call is made. The gate has let it in; its token may have been withdrawn since."""
        if self._tenants is None:
            return ANYBODY
        found = self._tenants.of(context.invocation_metadata())
        if isinstance(found, str):
            raise _refusal(context, found, grpc.StatusCode.UNAUTHENTICATED)
        return found

    def _check_serving(self, context: grpc.ServicerContext) -> None:
        """Ends the call with UNAVAILABLE while another controller is in charge."""
        if self._standby:
            context.abort(grpc.StatusCode.UNAVAILABLE, self._standby)

    def _desk(self, key: str, tenant: Tenant) -> _Desk | None:
        """The desk of a member of this tenant's."""
        desk = self._desks.get(key)
        return desk if desk is not None and desk.tenant == tenant.name else None

    def _enter(self, application: Application, tenant: Tenant) -> tuple[str, _Desk]:
        """Hand the application to the registry. Raises Refused."""
        with self._lock:
            if self._stopped.is_set():
                raise Unavailable("the controller is being stopped")
            if self._standby:
                raise Unavailable(self._standby)
            problem = self._keeper.problem if self._keeper else "it is not connected yet"
            if problem:
                raise Unavailable(f"there is no switch to sum in: {problem}")
            try:
                member = self._registry.join(application, tenant, time.monotonic())
                desk = self._desks[member.key] = _Desk(tenant.name)
            finally:
                self._carry_out()  # a disagreement turns the others away as well
            return member.key, desk

    def _await(self, key: str, desk: _Desk, patience_s: float) -> object:
        """The registry's answer to a join, or _GONE."""
        try:
            return desk.answer.get(timeout=max(patience_s - _REPLY_MARGIN_S, patience_s / 2))
        except queue.Empty:
            with self._acting():
                if desk.answer.empty():
                    self._registry.give_up(key, round(patience_s, 1))
            return desk.answer.get()

    def _admission(self, answer: jobs.Admit) -> pb.JoinReply:
        job, member = answer.job, answer.member
        return pb.JoinReply(
            member=member.key,
            job=job.number,
            epoch=job.epoch,
            worker=member.application.rank,
            slots=len(job.slots),
            elements=self._registry.elements,
            switch_address=member.attachment.switch_address,
            switch_port=member.attachment.switch_port,
            lease_ms=round(self._lease_s * 1000),
        )

    def _keep_time(self) -> None:
        while not self._stopped.wait(TICK_S):
            self._tick()

    def _tick(self) -> None:
        with self._acting():
            self._registry.tick(time.monotonic())


_UNKNOWN_MEMBER = "no such member: its epoch is over, or the controller was started anew since it joined; join again"


def _refusal(
    context: grpc.ServicerContext, sentence: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
) -> Exception:
    """Ends the call with the sentence; abort() raises, `raise` in front of the call tells readers and checkers so.

    gRPC takes 8 KiB of what comes with an error, percent-encoded; of a longer sentence nothing would arrive.
    """
    while len(quote(sentence)) > _MAX_ENCODED:
        sentence = f"{sentence[: len(sentence) * 3 // 4]}..."
    context.abort(code, sentence)
    return AssertionError("abort() raises")


def _caller(context: grpc.ServicerContext) -> str:
    """The IPv4 address a call came from; "::1" is this machine; what is no IPv4 address is returned as gRPC names it."""
    peer = unquote(context.peer())
    found = re.fullmatch(r"ipv4:([\d.]+):\d+|ipv6:\[(?:::ffff:)?([^\]]+)\]:\d+", peer)
    if found is None:
        return peer
    address = str(found[1] or found[2])
    return "127.0.0.1" if address == "::1" else address


def _cut(text: str) -> str:
    """What a client says of itself, fit for messages and logs: one line, of bounded length."""
    shown = text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text[: MAX_TEXT + 1])
    return shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}..."


def _ended_message(ended: Ended) -> pb.EpochEnded:
    return pb.EpochEnded(
        cause=pb.Cause.Value(ended.cause.name), reason=ended.reason, ranks=ended.ranks, resumable=ended.resumable
    )


def _report(job: Job, counts: JobCounts, now: float) -> pb.JobReport:
    return pb.JobReport(
        job_name=job.name,
        job=job.number,
        epoch=job.epoch,
        world_size=job.world_size,
        slot_base=job.slots.start,
        slots=len(job.slots),
        running=job.state is State.RUNNING,
        ended_because=job.ended.reason if job.ended else "",
        verdicts=counts.verdicts,
        tenant=job.tenant,
        state=job.state.value,
        idle_s=job.idle_s(now),
        age_s=now - job.born_at,
        workers=[
            pb.WorkerReport(
                rank=rank,
                host=member.application.host,
                switch_port=member.attachment.port,
                data_address=member.application.data_address,
                data_port=member.application.data_port,
                verdicts=counts.by_rank.get(rank, {}),
                pid=member.application.pid,
                lease_left_s=max((member.lease_until or now) - now, 0.0) if job.state is State.RUNNING else 0.0,
                counters=member.counters,
            )
            for rank, member in sorted(job.members.items())
        ],
    )
