"""Fuzzes the softswitch's P4Runtime service as somebody who is not in charge: no messages, too large ones, random ones under
election ids that are lower, equal or missing, streams by the dozen."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switchsum.controller import pipeline
from tests.fuzz.target import ELECTION_ID, ELEMENTS, Target
from tests.fuzz.wire import Connections, call, check_status, noise
from tests.p4runtime.test_random_messages import randomize

_SERVICE = "/p4.v1.P4Runtime/"
_UNARY = {"Write": False, "Read": True, "SetForwardingPipelineConfig": False, "GetForwardingPipelineConfig": False}
_TOO_LARGE = (128 << 20) + 1
_STREAMS = 30  # more than the switch serves
_CODE = grpc.StatusCode
_REFUSED = {
    _CODE.OK,
    _CODE.INVALID_ARGUMENT,
    _CODE.NOT_FOUND,
    _CODE.PERMISSION_DENIED,
    _CODE.FAILED_PRECONDITION,
    _CODE.UNIMPLEMENTED,
    _CODE.RESOURCE_EXHAUSTED,
    _CODE.UNKNOWN,  # the envelope of a batch's errors
}


class P4RuntimeFuzzer:
    """One step is a kind of abuse, drawn at random."""

    def __init__(self, target: Target, seed: int, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        long_errors = [("grpc.max_metadata_size", 1 << 20)]
        self._channel = stack.enter_context(grpc.insecure_channel(target.p4runtime, options=long_errors))
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._connections = Connections(target.p4runtime, self._rng)
        stack.callback(self._connections.close)
        info = pipeline.load("lanes", ELEMENTS).p4info
        self._ids = [item.preamble.id for item in (*info.tables, *info.actions, *info.counters)]
        self._large_sent = False

    def step(self) -> None:
        kinds: list[Callable[[], None]] = [
            self._no_messages,
            self._writes,
            self._writes,
            self._reads,
            self._pipelines,
            self._streams,
            self._half_open,
            self._too_large,
        ]
        self._rng.choice(kinds)()

    def _election_id(self) -> dict[str, int] | None:
        """Any but one that would win."""
        low = self._rng.choice([0, 1, 2, ELECTION_ID - 1])
        return self._rng.choice([None, {"low": low}])

    def _no_messages(self) -> None:
        good = p4runtime_pb2.WriteRequest(device_id=1)
        randomize(good.updates.add(), self._rng, self._ids)
        for _ in range(10):
            method = self._rng.choice(list(_UNARY))
            data = noise(self._rng, good.SerializeToString())
            check_status(*call(self._channel, _SERVICE + method, data, stream=_UNARY[method]), _REFUSED)

    def _writes(self) -> None:
        for _ in range(10):
            request = p4runtime_pb2.WriteRequest(device_id=1, election_id=self._election_id())
            for _ in range(self._rng.randrange(1, 5)):
                randomize(request.updates.add(), self._rng, self._ids)
            code, details = call(self._channel, _SERVICE + "Write", request.SerializeToString(), stream=False)
            assert code == _CODE.PERMISSION_DENIED, (code, details)

    def _reads(self) -> None:
        for _ in range(10):
            request = p4runtime_pb2.ReadRequest(device_id=self._rng.choice([0, 1, 1, 1, 2]))
            for _ in range(self._rng.randrange(1, 5)):
                randomize(request.entities.add(), self._rng, self._ids)
            check_status(*call(self._channel, _SERVICE + "Read", request.SerializeToString(), stream=True), _REFUSED)

    def _pipelines(self) -> None:
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest()
        randomize(request, self._rng, self._ids)
        request.device_id, request.role, request.role_id = 1, "", 0
        request.ClearField("election_id")
        if (election_id := self._election_id()) is not None:
            request.election_id.low = election_id["low"]
        method = _SERVICE + "SetForwardingPipelineConfig"
        assert call(self._channel, method, request.SerializeToString(), stream=False)[0] == _CODE.PERMISSION_DENIED
        get = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=1, response_type=self._rng.choice([0, 1, 2, 3, 99]))
        method = _SERVICE + "GetForwardingPipelineConfig"
        check_status(*call(self._channel, method, get.SerializeToString(), stream=False), _REFUSED)

    def _streams(self) -> None:
        """Backups, streams that stay silent, and some that say what they may not."""
        calls: list[Any] = []
        for _ in range(_STREAMS):
            requests = []
            for _ in range(self._rng.randrange(4)):
                message = p4runtime_pb2.StreamMessageRequest()
                randomize(message, self._rng, self._ids)
                if message.HasField("arbitration"):
                    message.arbitration.ClearField("election_id")
                    if (election_id := self._election_id()) is not None:
                        message.arbitration.election_id.low = election_id["low"]
                requests.append(message)
            calls.append(self._stub.StreamChannel(iter(requests), timeout=self._rng.choice([0.2, 1.0])))
        for stream in calls:
            try:
                for _ in stream:
                    pass
            except grpc.RpcError as error:
                check_status(error.code(), error.details(), _REFUSED | {_CODE.DEADLINE_EXCEEDED})

    def _half_open(self) -> None:
        for _ in range(10):
            self._connections.open()

    def _too_large(self) -> None:
        if not self._large_sent:  # once: it is copied around on this side
            self._large_sent = True
            code, _ = call(self._channel, _SERVICE + "Write", bytes(_TOO_LARGE), stream=False, timeout_s=60.0)
            assert code == _CODE.RESOURCE_EXHAUSTED
        code, details = call(self._channel, _SERVICE + "Write", b"\xff" * (1 << 20), stream=False, timeout_s=20.0)
        assert code == _CODE.INVALID_ARGUMENT, (code, details)
