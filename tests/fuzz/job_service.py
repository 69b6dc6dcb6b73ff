"""Fuzzes the job service with a tenant's token and without: no messages, too large ones, old members' keys, calls out of order,
floods of joins, half-open streams."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc

from switchsum.p4src.layout import WIRE_VERSION
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub
from tests.fuzz.target import FUZZER, JOB, Target
from tests.fuzz.wire import Connections, call, check_status, noise, text

_SERVICE = pb.DESCRIPTOR.services_by_name["JobService"]
_METHODS = [method.name for method in _SERVICE.methods]
_TOO_LARGE = 5 << 20  # bytes; gRPC takes 4 MiB
_FLOOD = 60  # joins at once
_CODE = grpc.StatusCode
_REFUSED = {
    _CODE.OK,
    _CODE.FAILED_PRECONDITION,
    _CODE.RESOURCE_EXHAUSTED,
    _CODE.NOT_FOUND,
    _CODE.INVALID_ARGUMENT,
    _CODE.PERMISSION_DENIED,
    _CODE.DEADLINE_EXCEEDED,
    _CODE.CANCELLED,
}


class JobServiceFuzzer:
    """One step is a kind of abuse, drawn at random."""

    def __init__(self, target: Target, seed: int, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        self._metadata = (("authorization", f"Bearer {FUZZER}"),)
        self._channel = stack.enter_context(grpc.insecure_channel(target.controller))
        self._stub = JobServiceStub(self._channel, self._metadata)
        self._connections = Connections(target.controller, self._rng)
        stack.callback(self._connections.close)
        self._address = target.controller
        self._keys: list[str] = ["", "x", "0" * 32]  # of members that are over, or never were
        self._streams: list[Any] = []
        stack.callback(self._cancel_streams)

    def step(self) -> None:
        kinds: list[Callable[[], None]] = [
            self._no_messages,
            self._random_messages,
            self._random_messages,
            self._old_keys,
            self._strangers,
            self._half_open,
            self._too_large,
            self._whole_life,
            self._flood,
        ]
        self._rng.choice(kinds)()

    def _cancel_streams(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self._streams = []

    def _call(self, method: str, request: bytes, timeout_s: float = 1.0, metadata: Any = None) -> tuple[Any, str]:
        return call(
            self._channel,
            f"/{_SERVICE.full_name}/{method}",
            request,
            stream=method == "Watch",
            metadata=self._metadata if metadata is None else metadata,
            timeout_s=timeout_s,
        )

    def _no_messages(self) -> None:
        for _ in range(10):
            method = self._rng.choice(_METHODS)
            check_status(*self._call(method, noise(self._rng, self._join().SerializeToString()), 0.3), _REFUSED)

    def _random_messages(self) -> None:
        """Fields that are wrong in interesting ways, in each call."""
        rng = self._rng
        number = [0, 1, 2, 31, 32, 33, 255, 65535, 2**31, 2**32 - 1]
        numbers = ["rank", "world_size", "slots", "elements", "data_port", "least_slots", "queue_ms", "wire_version", "pid"]
        for _ in range(10):
            key = rng.choice([*self._keys, text(rng)])
            kind = rng.choice([0, 1, 2, 3, 4, 99])
            requests: list[tuple[str, Any]] = [
                ("Join", self._join(**{rng.choice(numbers): rng.choice(number)})),
                ("Join", self._join(**{rng.choice(["job_name", "host", "data_address"]): text(rng)})),
                ("Join", self._join(job_name=JOB)),
                ("Watch", pb.MemberRequest(member=key)),
                ("Renew", pb.RenewRequest(member=key, counters={text(rng): rng.choice(number) for _ in range(3)})),
                ("Report", pb.ReportRequest(member=key, kind=kind, detail=text(rng), collective=text(rng))),
                ("Leave", pb.MemberRequest(member=key)),
                ("Shrink", pb.ShrinkRequest(job_name=rng.choice([JOB, text(rng)]), slots=rng.choice(number))),
            ]
            method, request = rng.choice(requests)
            check_status(*self._call(method, request.SerializeToString(), 0.5), _REFUSED)

    def _old_keys(self) -> None:
        for key in self._rng.sample(self._keys, min(len(self._keys), 5)):
            for method, request in (
                ("Renew", pb.RenewRequest(member=key)),
                ("Watch", pb.MemberRequest(member=key)),
                ("Report", pb.ReportRequest(member=key, kind=pb.ReportRequest.FAILURE, detail="spoiled")),
                ("Leave", pb.MemberRequest(member=key)),
            ):
                check_status(*self._call(method, request.SerializeToString(), 0.5), _REFUSED)

    def _strangers(self) -> None:
        """Whoever has no token gets one answer, whatever it sends."""
        for header in ("", "Bearer", "Bearer ", "Bearer x", f"Basic {FUZZER}", "Bearer " + "x" * 4000):
            method = self._rng.choice(_METHODS)
            request = self._rng.choice([b"", b"\xff" * 50, self._join().SerializeToString()])
            code, _ = self._call(method, request, 5.0, (("authorization", header),) if header else ())
            assert code == _CODE.UNAUTHENTICATED

    def _half_open(self) -> None:
        for _ in range(10):
            self._connections.open()
        with grpc.insecure_channel(self._address) as channel:  # closed with its calls under way
            stub = JobServiceStub(channel, self._metadata)
            for _ in range(5):
                channel.unary_unary(f"/{_SERVICE.full_name}/Join").future(
                    self._join(world_size=2).SerializeToString(), metadata=self._metadata, timeout=30.0
                )
                stub.Watch(pb.MemberRequest(member=self._rng.choice(self._keys)))

    def _too_large(self) -> None:
        request = pb.ReportRequest(member="x", detail="z" * _TOO_LARGE).SerializeToString()
        assert self._call("Report", request, 20.0)[0] == _CODE.RESOURCE_EXHAUSTED

    def _whole_life(self) -> None:
        """Joins as one should, then calls in an order that nobody should."""
        rng = self._rng
        try:
            key = self._stub.Join(self._join(slots=1), timeout=10.0).member
        except grpc.RpcError as error:
            check_status(error.code(), error.details(), _REFUSED)
            return
        self._keys = [*self._keys[:3], *self._keys[3:][-20:], key]
        calls: list[Callable[[], None]] = [
            lambda: self._streams.append(self._stub.Watch(pb.MemberRequest(member=key))),
            lambda: self._check("Renew", pb.RenewRequest(member=key, counters={"x": 1})),
            lambda: self._check(
                "Report", pb.ReportRequest(member=key, kind=pb.ReportRequest.DESCRIPTION, collective=text(rng))
            ),
            lambda: self._check("Report", pb.ReportRequest(member=key, kind=rng.choice([0, 1, 3, 4]), detail=text(rng))),
            lambda: self._check("Leave", pb.MemberRequest(member=key)),
            self._cancel_streams,
        ]
        for each in rng.choices(calls, k=8):
            each()
        self._cancel_streams()
        self._check("Leave", pb.MemberRequest(member=key))

    def _check(self, method: str, request: Any) -> None:
        check_status(*self._call(method, request.SerializeToString(), 2.0), _REFUSED)

    def _flood(self) -> None:
        """Many worlds that never get complete; some give up, some are cancelled."""
        rng = self._rng
        joins = [self._join(world_size=2, slots=rng.choice([0, 1, 2048])).SerializeToString() for _ in range(_FLOOD)]
        done = threading.Semaphore(0)
        join = self._channel.unary_unary(f"/{_SERVICE.full_name}/Join")
        futures = [join.future(request, metadata=self._metadata, timeout=rng.choice([0.05, 0.5])) for request in joins]
        for future in futures:
            future.add_done_callback(lambda _: done.release())
        for future in rng.sample(futures, 10):
            future.cancel()
        for _ in futures:
            assert done.acquire(timeout=60.0)
        for future in futures:
            if not future.cancelled():
                check_status(future.code(), future.details(), _REFUSED)

    def _join(self, **fields: Any) -> pb.JoinRequest:
        """Good but for these fields."""
        rng = self._rng
        good = {
            "wire_version": WIRE_VERSION,
            "job_name": f"fuzz {rng.getrandbits(64)}",
            "world_size": 1,
            "host": "h",
            "data_port": rng.randrange(1, 65536),
            "data_address": "127.0.0.1",
        }
        return pb.JoinRequest(**(good | fields))
