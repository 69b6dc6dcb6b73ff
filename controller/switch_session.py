"""One P4Runtime session with one switch: election, pipeline, writes, reads. Every call has a deadline.

It speaks through the generated P4Runtime classes that p4runtime-shell's library is built on, not through that library's
client class: that one calls sys.exit when the handshake fails, cannot set a deadline, a cookie or a channel option, never
tells that the stream ended, and loops for ever over the errors of a batch in which one update succeeded.

Threads: one daemon thread reads the stream; `on_lost` and `on_role` are called from it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switchsum.controller.errors import ElectionIdTaken, NotPrimary, SwitchError, SwitchUnreachable, WriteRefused
from switchsum.controller.p4names import Item, P4Names
from switchsum.controller.pipeline import Build
from switchsum.protos.tls import ClientTls, Names, diagnose

CALL_TIMEOUT_S = 10.0  # of one read or write: hundreds of entries take BMv2 a fraction of a second
COMMIT_TIMEOUT_S = 60.0  # the softswitch compiles the program, BMv2 parses a megabyte of JSON
_UPDATES_PER_WRITE = 500
_ERRORS_SHOWN = 3
_HIGHEST_ELECTION_ID = (1 << 128) - 1

_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),  # the switch is in the rack, not behind the way out
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

TLS_NAMES = Names("--switch-ca", "--switch-cert", "--switch-key")
_FIRST_LOOK_S = 1.0  # without an answer, before it is asked whether TLS stands in the way
_PROBE_S = 2.0
_END_S = 10.0  # for a thread that has been told to end, on a busy machine
logger = logging.getLogger(__name__)

INSERT, MODIFY, DELETE = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE


class Standing(Enum):
    """What the switch told a controller about the election."""

    PRIMARY = "in charge of it"
    BACKUP = "another controller, with a higher election id, is in charge of it"
    VACANT = "the controller that was in charge of it is gone"


class SwitchSession:
    """An open session; the constructor connects and holds the election, `standing` says how it went."""

    def __init__(
        self,
        address: str,
        device_id: int,
        election_id: int,
        *,
        timeout_s: float,
        on_lost: Callable[[str], None],
        on_role: Callable[[Standing], None],
        tls: ClientTls | None = None,
    ) -> None:
        """Connect within `timeout_s`. `on_lost(sentence)`: the session is over; `on_role(standing)`: it changed later; `tls`:
        None for a connection in the clear.

        Raises SwitchUnreachable, or SwitchError (such as ElectionIdTaken) when the switch refuses the session.
        """
        self.address = address
        self._device_id = device_id
        self.election_id = election_id
        self._highest = election_id  # of all that the switch has told of
        self._on_lost, self._on_role = on_lost, on_role
        self._tls = tls
        self._channel = (
            grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
            if tls is None
            else grpc.secure_channel(address, tls.credentials(), options=_CHANNEL_OPTIONS)
        )
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
        self._settled = threading.Event()  # the first answer of the stream, or its end, is there
        self.standing: Standing | None = None
        self._problem = ""
        self._code: grpc.StatusCode | None = None  # with which the stream ended
        self._follower: threading.Thread | None = None
        self._closing = False
        try:
            self._open_stream(timeout_s)
        except SwitchError:
            self.close()
            raise

    @property
    def primary(self) -> bool:
        """Whether this controller is in charge of the switch."""
        return self.standing is Standing.PRIMARY

    @property
    def is_outranked(self) -> bool:
        """Whether a controller with a higher election id was in charge and may come back with it."""
        return self._highest > self.election_id

    @property
    def _election_id(self) -> p4runtime_pb2.Uint128:
        return p4runtime_pb2.Uint128(high=self.election_id >> 64, low=self.election_id & (1 << 64) - 1)

    def close(self) -> None:
        """End the session; no callback comes after this."""
        self._closing = True
        self._requests.put(None)
        self._channel.close()
        # What is left of a stream may take a lock with it at the interpreter's end, and the process would never end.
        if self._follower is not None and self._follower is not threading.current_thread():
            self._follower.join(_END_S)

    # --- election --------------------------------------------------------------------------------------------------

    def _open_stream(self, timeout_s: float) -> None:
        self._find(timeout_s)
        self._stand()
        stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._follower = threading.Thread(target=self._follow, args=(stream,), name="switchsum-switch", daemon=True)
        self._follower.start()
        del stream
        self._await_election(timeout_s)
        if self.standing is None:
            kind = ElectionIdTaken if self._code == grpc.StatusCode.INVALID_ARGUMENT else SwitchError
            raise kind(f"the switch at {self.address} refused the session: {self._problem}")

    def claim(self, timeout_s: float) -> None:
        """Nobody else is in charge: take an election id above all that the switch has told of. `standing` says how it went.

        Raises SwitchUnreachable, or SwitchError if there is no higher one.
        """
        if self._highest == _HIGHEST_ELECTION_ID:
            raise SwitchError(
                f"a controller of the switch at {self.address} had the highest election id that exists, so that nobody can "
                "take over from it; start the controllers with lower ones (--election-id), and the switch again"
            )
        self.election_id = max(self.election_id, self._highest) + 1
        self._settled.clear()
        self._stand()
        self._await_election(timeout_s)

    def _stand(self) -> None:
        """Stand for election."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self._device_id
        request.arbitration.election_id.CopyFrom(self._election_id)
        self._requests.put(request)

    def _await_election(self, timeout_s: float) -> None:
        if not self._settled.wait(timeout_s):
            raise SwitchUnreachable(f"the switch at {self.address} does not answer the election within {timeout_s:g} s")

    def _find(self, timeout_s: float) -> None:
        """Wait for an answer. Any switch tells its capabilities, or that it does not know the question, as open-p4studio's
        (pkgsrc/bf-drivers/src/p4_rt/server/server.cpp). (grpc.channel_ready_future would leave a thread behind that dies with a
        traceback when the channel is closed.)"""
        patience_s = min(_FIRST_LOOK_S, timeout_s)
        for part_s in (patience_s, timeout_s - patience_s):
            try:
                if part_s > 0:
                    self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=part_s, wait_for_ready=True)
                    return
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._translated(error) from None
                who = f"the switch at {self.address}"
                if (fault := diagnose(self.address, self._tls, who, TLS_NAMES, _PROBE_S)) is not None:
                    raise SwitchError(fault) from None
        raise SwitchUnreachable(
            f"no switch answers P4Runtime at {self.address} within {timeout_s:g} s; "
            "start it (`switchsum switch`, or simple_switch_grpc) or correct the address"
        )

    def _follow(self, stream: Iterator[p4runtime_pb2.StreamMessageResponse]) -> None:
        try:
            for message in stream:
                if message.HasField("arbitration"):
                    self._elected(message.arbitration)
                elif message.HasField("error"):
                    logger.warning("switch %s: stream error: %s", self.address, message.error.message)
            self._problem = "it closed the session"
        except grpc.RpcError as error:
            self._problem, self._code = error_text(error), error.code()
        begun = self.standing is not None
        self._settled.set()
        if begun and not self._closing:
            self._on_lost(f"the switch at {self.address} is gone ({self._problem})")

    def _elected(self, told: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        self._highest = max(self._highest, told.election_id.high << 64 | told.election_id.low)
        codes = {code_pb2.OK: Standing.PRIMARY, code_pb2.NOT_FOUND: Standing.VACANT}
        before, self.standing = self.standing, codes.get(told.status.code, Standing.BACKUP)
        self._settled.set()
        if before is not None and before != self.standing and not self._closing:
            self._on_role(self.standing)

    # --- calls -----------------------------------------------------------------------------------------------------

    def probe(self, timeout_s: float) -> None:
        """Ask for the capabilities, which any living switch tells, or refuses to. Raises SwitchUnreachable."""
        try:
            self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                raise self._translated(error) from None

    def cookie(self) -> int | None:
        """The cookie of the program the switch runs, as its controller set it; None if it runs none."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._device_id, response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        )
        try:
            reply = self._stub.GetForwardingPipelineConfig(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                return None
            raise self._translated(error) from None
        return int(reply.config.cookie.cookie) if reply.config.HasField("cookie") else None

    def commit(self, build: Build) -> int:
        """Load the program; whatever the switch held before is gone. Returns its cookie. Raises SwitchError's family.

        Multicast groups are deleted first: BMv2 1.15.5 forgets their numbers but keeps their replicas when it gets another
        program, so that the same group made again would send every copy twice.
        """
        if self.cookie() is not None:
            groups = p4runtime_pb2.Entity()
            groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
            self.write(build.names, [(DELETE, build.names.item(group)) for group in self.read([groups])])
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=self._election_id,
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(build.p4info)
        request.config.p4_device_config = build.device_config
        request.config.cookie.cookie = build.incarnation()
        self._call(self._stub.SetForwardingPipelineConfig, request, COMMIT_TIMEOUT_S)
        return int(request.config.cookie.cookie)

    def write(self, names: P4Names, updates: Iterable[tuple[int, Item]]) -> None:
        """Apply (INSERT | MODIFY | DELETE, item) updates. Their order within one call is the switch's to choose.

        Raises WriteRefused naming the first items that were refused; the others are applied.
        """
        pending = list(updates)
        for start in range(0, len(pending), _UPDATES_PER_WRITE):
            part = pending[start : start + _UPDATES_PER_WRITE]
            request = p4runtime_pb2.WriteRequest(device_id=self._device_id, election_id=self._election_id)
            for kind, item in part:
                request.updates.add(type=kind, entity=names.entity(item))  # type: ignore[arg-type]
            try:
                self._stub.Write(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                refused = list(_refusals(error, part))
                if not refused:
                    raise self._translated(error) from None
                more = f" and {len(refused) - _ERRORS_SHOWN} more" if len(refused) > _ERRORS_SHOWN else ""
                raise WriteRefused(
                    f"the switch at {self.address} refused {len(refused)} of {len(part)} updates: "
                    f"{'; '.join(refused[:_ERRORS_SHOWN])}{more}"
                ) from None

    def read(self, entities: Iterable[p4runtime_pb2.Entity]) -> list[p4runtime_pb2.Entity]:
        """Everything that matches one of the (wildcard) entities."""
        request = p4runtime_pb2.ReadRequest(device_id=self._device_id, entities=list(entities))
        try:
            return [entity for reply in self._stub.Read(request, timeout=CALL_TIMEOUT_S) for entity in reply.entities]
        except grpc.RpcError as error:
            raise self._translated(error) from None

    def _call(self, method: Callable[..., object], request: object, timeout_s: float) -> None:
        try:
            method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._translated(error) from None

    def _translated(self, error: grpc.RpcError) -> SwitchError:
        code = error.code()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return SwitchUnreachable(f"the switch at {self.address} does not answer ({error_text(error)})")
        if code == grpc.StatusCode.PERMISSION_DENIED:
            return NotPrimary(f"another controller is in charge of the switch at {self.address} ({error_text(error)})")
        return SwitchError(f"the switch at {self.address} answered {error_text(error)}")


def error_text(error: grpc.RpcError) -> str:
    """ "UNAVAILABLE: connection refused", for messages."""
    return f"{error.code().name}: {error.details()}"


def _refusals(error: grpc.RpcError, updates: list[tuple[int, Item]]) -> Iterator[str]:
    """The updates that failed, from the status details of a batch (section "Error Reporting Messages")."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            for (_, item), detail in zip(updates, status.details, strict=False):
                reason = p4runtime_pb2.Error()
                if detail.Unpack(reason) and reason.canonical_code != code_pb2.OK:
                    yield f"{item}: {code_pb2.Code.Name(reason.canonical_code)}: {reason.message}"
