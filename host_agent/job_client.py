"""A worker's side of the job service: join, keep the lease, hear what happens to the job, leave (protos/job.proto).

Fork: gRPC's threads and sockets do not survive fork(). Make the client in the process that uses it (torchrun, spawn and
forkserver do so by themselves); a client that was made before a fork must not be touched in the child.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Else gRPC meets each fork of the trainer (a data loader's worker) with a line on its standard error, and some with an abort of
# the child. It reads this when it is first used; a program that forks and uses gRPC in the child may set it otherwise.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from switchsum.host_agent.credentials import IN_THE_CLEAR, Credentials
from switchsum.host_agent.errors import ControllerUnreachable, EpochEnded, JoinRefused, NotTrusted, SwitchFull, SwitchSumError
from switchsum.p4src.layout import WIRE_VERSION
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub

DEFAULT_TIMEOUT_S = 30.0
_CALL_TIMEOUT_S = 5.0  # of calls that the controller answers from memory
_FAREWELL_S = 2.0  # leaving must not hold up a process that wants to end
_END_S = 10.0  # for threads that have been told to end, on a busy machine
_FIRST_KNOCK_S = 1.0  # before it is asked whether TLS stands in the way
_KNOCK_S = 2.0  # for one of several controllers
_RETRY_S = 0.2  # before a broken event stream is opened once more
_CLOSED = "the attempt to join was given up"
_LEASE_PART = 3  # renewals in each lease: two may get lost
_PATIENCE_LEASES = 2  # how long a controller may be gone, to be started again or replaced by one that stands by

_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # the controller is in the rack, not behind the way out
    ("grpc.initial_reconnect_backoff_ms", 100),  # ranks often start before their controller
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# What the transport says, as opposed to what the controller says; or a controller that stands by, or has no switch now.
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True)
class Joined:
    """What a worker needs to speak to the switch. Each field is JoinReply's of the same name."""

    job: int
    epoch: int
    worker: int
    slots: int
    elements: int
    switch_address: str
    switch_port: int
    lease_s: float


class JobClient:
    """One worker's connection to the controller. Thread-safe. Call join(), then start(); leave() and close() at the end."""

    def __init__(self, address: str, credentials: Credentials = IN_THE_CLEAR) -> None:
        """`address`: the controller's "HOST:PORT", or several with commas between: those that stand by for it. Nothing is sent
        before join() or inspect(). Raises NotTrusted for a token that would be sent to another host in the clear."""
        self.address = address
        self._credentials = credentials
        self._channels = [credentials.channel(one, _CHANNEL_OPTIONS) for one in address.split(",")]
        self._stubs = [JobServiceStub(channel, credentials.metadata) for channel in self._channels]
        self._turn = 0  # which of them is spoken to
        self._heard = time.monotonic()  # when a controller answered last
        self._member = ""
        self._lease_s = 0.0
        self._lock = threading.Lock()
        self._ended: EpochEnded | None = None
        self._over = threading.Event()  # ended, left or closed: the threads stop
        self._known = threading.Event()  # _ended is set
        self._listening = threading.Event()  # the event stream is open, or the epoch over
        self._stream: Any = None
        self._threads: list[threading.Thread] = []
        self._on_ended: Callable[[EpochEnded], None] = lambda ended: None
        self._describe: Callable[[], str] = lambda: ""
        self._counters: Callable[[], dict[str, int]] = dict
        self._on_renewal: Callable[[bool], None] = lambda answered: None

    @property
    def ended(self) -> EpochEnded | None:
        """Why the epoch is over; None while it is not."""
        return self._ended

    def join(
        self,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        host: str,
        pid: int,
        data_port: int,
        data_address: str = "",
        slots: int = 0,
        least_slots: int = 0,
        queue_s: float = 0.0,
        elements: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Joined:
        """Join and wait until all `world_size` ranks have joined; `timeout_s` bounds both, the connection included.

        `data_address` and `data_port` are where this worker's data socket sends from ("": the address that leads to the
        controller); `slots`, `elements`: 0 for the controller's choice; `least_slots`: content with so few; `queue_s`: how long
        to wait for slots, beyond `timeout_s`. Raises ControllerUnreachable or JoinRefused (SwitchFull for want of slots).
        """
        deadline = time.monotonic() + timeout_s
        request = pb.JoinRequest(
            wire_version=WIRE_VERSION,
            job_name=job_name,
            rank=rank,
            world_size=world_size,
            host=host,
            pid=pid,
            data_address=data_address,
            data_port=data_port,
            slots=slots,
            elements=elements,
            least_slots=least_slots,
            queue_ms=round(queue_s * 1000),
        )
        reply = self._ask_to_join(request, deadline, timeout_s, queue_s)
        self._member = reply.member
        self._lease_s = reply.lease_ms / 1000
        return Joined(
            job=reply.job,
            epoch=reply.epoch,
            worker=reply.worker,
            slots=reply.slots,
            elements=reply.elements,
            switch_address=reply.switch_address,
            switch_port=reply.switch_port,
            lease_s=self._lease_s,
        )

    def _ask_to_join(self, request: pb.JoinRequest, deadline: float, timeout_s: float, queue_s: float) -> pb.JoinReply:
        while True:
            self._connect(deadline - time.monotonic())
            try:
                return self._stub.Join(request, timeout=max(deadline - time.monotonic(), 0.1) + queue_s)
            except ValueError:
                raise ControllerUnreachable(_CLOSED) from None
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() + _RETRY_S < deadline:
                    self._over.wait(_RETRY_S)  # it ended meanwhile, or is getting its switch back
                    self._next()
                    continue
                if error.code() in _NO_ANSWER:
                    raise ControllerUnreachable(
                        f"controller at {self.address}: no answer to the join within {timeout_s:g} s ({_text(error)}); "
                        "see whether it is running and what its log says"
                    ) from None
                refusal = SwitchFull if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else JoinRefused
                raise refusal(f"the controller at {self.address} refused the join: {error.details()}") from None

    def start(
        self,
        *,
        on_ended: Callable[[EpochEnded], None],
        describe: Callable[[], str],
        counters: Callable[[], dict[str, int]] = dict,
        on_renewal: Callable[[bool], None] = lambda answered: None,
    ) -> None:
        """Keep the lease and listen, in two daemon threads; returns once the controller can reach this rank, or cannot be
        reached itself. Call once, soon after join(): the lease is running.

        `on_ended(reason)` is called once, from one of the threads, when the epoch ends other than by leave(). `describe()`
        tells, when ranks disagree, which collective this rank is in, such as "#5 all_reduce(sum) of float32[1000]".
        `counters()` goes to the controller with each renewal. `on_renewal(answered)` is called after each, from a thread.
        """
        self._on_ended, self._describe = on_ended, describe
        self._counters, self._on_renewal = counters, on_renewal
        self._heard = time.monotonic()
        self._threads = [
            threading.Thread(target=target, name=f"switchsum-{name}", daemon=True)
            for name, target in (("watch", self._watch), ("lease", self._renew))
        ]
        for thread in self._threads:
            thread.start()
        self._listening.wait(_CALL_TIMEOUT_S)

    def report_mismatch(self, detail: str, collective: str) -> None:
        """Tell the controller that the switch saw ranks disagree; it asks the others and ends the epoch."""
        self._report(pb.ReportRequest.MISMATCH, detail, collective)

    def report_switch_silent(self, detail: str, collective: str) -> None:
        """Tell the controller that this rank gets no answer from the switch."""
        self._report(pb.ReportRequest.SWITCH_SILENT, detail, collective)

    def report_failure(self, detail: str, collective: str) -> None:
        """Tell the controller that this rank cannot go on."""
        self._report(pb.ReportRequest.FAILURE, detail, collective)

    def wait_ended(self, timeout_s: float) -> EpochEnded | None:
        """Wait for the controller's account of why the epoch ended; None if none came in time."""
        self._known.wait(timeout_s)
        return self._ended

    def leave(self) -> None:
        """Tell the controller that this rank is done, if the epoch still lives. Never raises: there is nothing left to lose."""
        with self._lock:
            member, self._member = self._member, ""
            alive = self._ended is None
        self._over.set()
        if member and alive:
            with contextlib.suppress(grpc.RpcError, ValueError):  # the lease runs out by itself
                self._stub.Leave(pb.MemberRequest(member=member), timeout=_FAREWELL_S)

    def close(self) -> None:
        """Stop threads and connection. Without leave() before, the controller takes this worker for lost."""
        self._over.set()
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            # Until gRPC's own thread is done with the stream, and none of it is left: its destructor takes a lock, and at the
            # interpreter's end that thread may be gone with it, so that the process would never end.
            ended = threading.Event()
            stream.add_done_callback(lambda _: ended.set())
            stream.cancel()
            ended.wait(_END_S)
        for channel in self._channels:
            channel.close()
        for thread in self._threads:
            if thread is not threading.current_thread():  # on_ended may close
                thread.join(_END_S)

    def inspect(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> pb.InspectReply:
        """What controller and switch know right now, see InspectReply. Raises ControllerUnreachable."""
        self._connect(timeout_s)
        try:
            return self._stub.Inspect(pb.InspectRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise ControllerUnreachable(f"controller at {self.address}: {_text(error)}") from None

    def shrink(self, job_name: str, slots: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Have a running job go on with fewer slots. Raises ControllerUnreachable, or SwitchSumError with the refusal."""
        self._connect(timeout_s)
        try:
            self._stub.Shrink(pb.ShrinkRequest(job_name=job_name, slots=slots), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() in _NO_ANSWER:
                raise ControllerUnreachable(f"controller at {self.address}: {_text(error)}") from None
            raise SwitchSumError(f"the controller at {self.address} refused: {error.details()}") from None

    @property
    def _stub(self) -> JobServiceStub:
        return self._stubs[self._turn]

    def _next(self) -> None:
        """This one does not answer, or stands by: speak to the next."""
        self._turn = (self._turn + 1) % len(self._stubs)

    def _connect(self, timeout_s: float) -> None:
        """Knock: leaving as nobody changes nothing, and any controller answers it. (grpc.channel_ready_future would leave a
        thread behind that dies with a traceback when the channel is closed.)"""
        deadline = time.monotonic() + timeout_s
        knock_s = _FIRST_KNOCK_S
        while True:
            left_s = max(deadline - time.monotonic(), 0.1)
            try:
                self._stub.Leave(pb.MemberRequest(), timeout=min(left_s, knock_s), wait_for_ready=True)
                return
            except ValueError:  # grpcio's word for a channel that close() has closed meanwhile
                raise ControllerUnreachable(_CLOSED) from None
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                    raise NotTrusted(f"the controller at {self.address} lets nobody in: {error.details()}") from None
                if error.code() not in _NO_ANSWER:
                    raise ControllerUnreachable(
                        f"what answers at {self.address} is not a switchsum controller ({_text(error)}); correct the address"
                    ) from None
                over = time.monotonic() + _RETRY_S >= deadline
                if over or len(self._stubs) == 1:  # of several, another one may be in order
                    fault = self._credentials.fault(self.address.split(",")[self._turn])
                    if fault is not None:
                        raise NotTrusted(fault) from None
                if over:
                    said = f" ({error.details()})" if error.code() == grpc.StatusCode.UNAVAILABLE else ""
                    raise ControllerUnreachable(
                        f"no controller answers at {self.address} within {round(timeout_s, 1):g} s{said}; "
                        "start one (`switchsum controller`) or correct the address"
                    ) from None
            knock_s = _KNOCK_S
            self._over.wait(_RETRY_S)
            self._next()

    def _report(self, kind: int, detail: str, collective: str) -> None:
        request = pb.ReportRequest(member=self._member, kind=kind, detail=detail, collective=collective)  # type: ignore[arg-type]
        # Controller gone or epoch over: the watching thread finds out and says so. (ValueError: close() was called.)
        with contextlib.suppress(grpc.RpcError, ValueError):
            self._stub.Report(request, timeout=_CALL_TIMEOUT_S)

    def _end(self, ended: EpochEnded) -> None:
        with self._lock:
            if self._over.is_set() or self._ended is not None:
                return
            self._ended = ended
        self._over.set()
        self._known.set()
        self._listening.set()
        self._on_ended(ended)

    def _watch(self) -> None:
        """Follow the events. A stream that breaks is opened again, with the same controller or one that stood by for it."""
        request = pb.MemberRequest(member=self._member)
        while True:
            with self._lock:
                if self._over.is_set():
                    return
                stream = self._stream = self._stub.Watch(request)
            try:
                for event in stream:
                    self._heard = time.monotonic()
                    self._handle(event)
                problem = "its event stream ended without a reason"
            except grpc.RpcError as error:
                problem = _text(error)
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    break
            except ValueError:  # grpcio's word for a channel that close() has closed meanwhile
                return
            if time.monotonic() - self._heard > _PATIENCE_LEASES * self._lease_s:
                break
            if self._over.wait(_RETRY_S):
                return
            self._next()
        self._end(self._controller_lost(problem))

    def _handle(self, event: pb.JobEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "ready":
            self._listening.set()
        elif kind == "describe":
            self._report(pb.ReportRequest.DESCRIPTION, "", self._describe())
        elif kind == "epoch_ended":
            ended = event.epoch_ended
            cause = pb.Cause.Name(ended.cause)
            self._end(EpochEnded(ended.reason, cause, tuple(ended.ranks), ended.resumable))

    def _renew(self) -> None:
        """Renew three times a lease. A controller that answers none of them is as good as dead, stream or no stream."""
        pause_s = self._lease_s / _LEASE_PART
        patience_s = _PATIENCE_LEASES * self._lease_s
        while not self._over.wait(pause_s):
            answered = False
            try:
                self._stub.Renew(pb.RenewRequest(member=self._member, counters=self._counters()), timeout=pause_s)
                answered, self._heard = True, time.monotonic()
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                    self._end(EpochEnded(f"the controller at {self.address} lets this rank in no more: {error.details()}"))
                if error.code() not in _NO_ANSWER:
                    continue  # the epoch is over; the event stream brings the reason
                if time.monotonic() - self._heard > patience_s:
                    self._end(self._controller_lost(f"no lease renewal was answered for {patience_s:g} s"))
            except ValueError:  # close() has closed the channel
                return
            self._on_renewal(answered)

    def _controller_lost(self, problem: str) -> EpochEnded:
        return EpochEnded(
            f"lost the controller at {self.address} ({problem}); without it nobody watches over the job, so it ends here: "
            "start the controller again and join anew",
            "CONTROLLER_LOST",
            resumable=True,
        )


def _text(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"
