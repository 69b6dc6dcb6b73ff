"""The P4Runtime service of the softswitch: gRPC outside, `Device`, `Arbitration` and `Entities` inside.

Source: P4Runtime 1.4.1; each method names its section. What is not supported is refused by name: roles, atomic batches,
packet I/O, digests, registers (as in BMv2), meters, idle timeouts, action profiles, value sets.

Threads: gRPC's pool runs one handler for each call, and a stream occupies one for as long as it lives, so the pool is
sized by the number of streams allowed; idle ones sleep in the kernel and take nothing from the packet thread. One lock
serializes elections, writes and reads, which makes every batch serializable as the standard demands. Compiling a
program takes seconds and therefore happens outside that lock, so that nobody's election waits for it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from switchsum.softswitch.arbitration import Arbitration, ElectionIdTaken, Notice
from switchsum.softswitch.device import Device, NotReconcilable, Pipeline
from switchsum.softswitch.entity_error import EntityError
from switchsum.softswitch.p4info import PipelineMismatch, UnsupportedP4Info
from switchsum.softswitch.p4runtime_entities import Entities
from switchsum.softswitch.program import UnsupportedProgram

API_VERSION = "1.4.1"
MAX_STREAMS = 16  # controllers and their standbys; one more is told RESOURCE_EXHAUSTED
_UNARY_THREADS = 4
_MAX_MESSAGE_BYTES = 128 << 20  # the standard's advice for device configs (section "gRPC Server Maximum ...")
_ENTITIES_PER_RESPONSE = 500  # keeps a ReadResponse far below gRPC's default limit of 4 MiB at the client
_MAX_DETAIL_CHARACTERS = 4000  # gRPC clients accept 8 KiB of trailing metadata unless told otherwise
_MAX_QUEUED_ERRORS = 1000  # a client that sends packets but never reads loses its error reports, not our memory

_log = logging.getLogger(__name__)
_SetAction = p4runtime_pb2.SetForwardingPipelineConfigRequest
_GetAction = p4runtime_pb2.GetForwardingPipelineConfigRequest


class _Failure(Exception):
    """Ends a call with this status; `details` is the status message of a batch (section "Error Reporting Messages")."""

    def __init__(self, code: grpc.StatusCode, message: str, details: status_pb2.Status | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


@dataclass(eq=False)
class _Client:
    """One stream. `outbox` holds messages to send, a _Failure that ends the stream, or None for its normal end."""

    outbox: "queue.SimpleQueue[p4runtime_pb2.StreamMessageResponse | _Failure | None]" = field(
        default_factory=queue.SimpleQueue
    )


class P4RuntimeServer:
    """Serves one device. `address` is where, after construction; clients are answered after start()."""

    def __init__(
        self,
        device: Device,
        address: str = "127.0.0.1:0",
        device_id: int = 1,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Bind `address`: "host:port" (port 0: any free one) or "unix:PATH", which all network namespaces can reach.

        `credentials`: for TLS; None: connections in the clear.

        Raises OSError if that fails, ValueError for a bad address or id.
        """
        if not 0 < device_id < 1 << 64:
            raise ValueError(f"device id {device_id}: P4Runtime reserves 0 for unset; choose 1 or more")
        local = address.startswith("unix:") and len(address) > 5
        host, _, port = address.rpartition(":")
        if not local and (not host or not port.isdigit() or int(port) > 65535):
            raise ValueError(f"P4Runtime address {address!r}: give host:port, for instance 127.0.0.1:9559, or unix:PATH")
        self._pool = ThreadPoolExecutor(MAX_STREAMS + _UNARY_THREADS, thread_name_prefix="p4runtime")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # else two switches could share a port without noticing
                ("grpc.keepalive_time_ms", 10_000),  # a controller that vanished from the network loses its primacy
                ("grpc.keepalive_timeout_ms", 5_000),
            ],
        )
        servicer = _Servicer(device, device_id)
        self._server.add_generic_rpc_handlers((_handlers(servicer),))
        self._servicer = servicer
        try:
            bound = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            self._pool.shutdown()
            raise OSError(f"P4Runtime server: cannot bind {address}; is another switch there? ({error})") from None
        self.address = address if local else f"{host}:{bound}"

    def start(self) -> None:
        self._server.start()

    def sessions(self) -> tuple[int, bool]:
        """Clients that take part in the election, and whether one of them is primary."""
        return self._servicer.sessions()

    def stop(self) -> None:
        """End all streams and calls, and wait until no thread of the server is left."""
        self._server.stop(grace=None).wait()
        self._servicer.join()
        self._pool.shutdown()


class _Servicer(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """The six calls of the service."""

    def __init__(self, device: Device, device_id: int) -> None:
        self._device = device
        self._device_id = device_id
        self._lock = threading.Lock()  # arbitration, and whatever Read and Write refer to
        self._pipeline_lock = threading.Lock()  # one new pipeline at a time; taken before _lock
        self._arbitration: Arbitration[_Client] = Arbitration()
        self._readers: set[threading.Thread] = set()  # one for each open stream

    def join(self) -> None:
        """Wait for the stream readers to end, after the gRPC server has cancelled their streams."""
        for reader in list(self._readers):
            reader.join()

    def sessions(self) -> tuple[int, bool]:
        """See P4RuntimeServer."""
        with self._lock:
            return self._arbitration.standing()

    # --- calls ---------------------------------------------------------------------------------------------------

    def Capabilities(
        self, request: p4runtime_pb2.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.CapabilitiesResponse:
        """Section "Capabilities RPC"."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def Write(self, request: p4runtime_pb2.WriteRequest, context: grpc.ServicerContext) -> p4runtime_pb2.WriteResponse:
        """Section "Write RPC". Updates are applied one by one, in order; one that fails does not stop the others."""
        with _reporting(context), self._lock:
            self._check_device(request.device_id)
            _refuse_role(request.role or request.role_id)
            self._check_primary(request)
            entities = Entities(self._addressed())
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise _Failure(
                    grpc.StatusCode.UNIMPLEMENTED,
                    f"atomicity {_enum_name(p4runtime_pb2.WriteRequest.Atomicity, request.atomicity)} is not supported; "
                    "use CONTINUE_ON_ERROR",
                )
            _raise_if_any([_attempt(entities, update) for update in request.updates], "Write")
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: p4runtime_pb2.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4runtime_pb2.ReadResponse]:
        """Section "Read RPC". Valid requests of a batch are answered before the errors of the others are reported."""
        found: list[p4runtime_pb2.Entity] = []
        errors: list[p4runtime_pb2.Error] = []
        with _reporting(context), self._lock:
            self._check_device(request.device_id)
            _refuse_role(request.role)
            entities = Entities(self._addressed())
            for entity in request.entities:
                try:
                    found += list(entities.read(entity))
                    errors.append(p4runtime_pb2.Error())
                except EntityError as error:
                    errors.append(p4runtime_pb2.Error(canonical_code=error.code, message=str(error)))
        for start in range(0, len(found), _ENTITIES_PER_RESPONSE):
            yield p4runtime_pb2.ReadResponse(entities=found[start : start + _ENTITIES_PER_RESPONSE])
        with _reporting(context):
            _raise_if_any(errors, "Read")

    def SetForwardingPipelineConfig(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        """Section "SetForwardingPipelineConfig RPC", all five actions."""
        with _reporting(context), self._pipeline_lock:
            with self._lock:
                self._check_device(request.device_id)
                _refuse_role(request.role or request.role_id)
                self._check_primary(request)
            if request.action == _SetAction.COMMIT:
                self._commit_saved(request)
            elif request.action in (
                _SetAction.VERIFY,
                _SetAction.VERIFY_AND_SAVE,
                _SetAction.VERIFY_AND_COMMIT,
                _SetAction.RECONCILE_AND_COMMIT,
            ):
                self._install(request)
            else:
                raise _Failure(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"action {_enum_name(_SetAction.Action, request.action)}: choose VERIFY, VERIFY_AND_SAVE, "
                    "VERIFY_AND_COMMIT, COMMIT or RECONCILE_AND_COMMIT",
                )
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        """Section "GetForwardingPipelineConfig RPC". Without a pipeline the response's config is unset."""
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        with _reporting(context), self._lock:
            self._check_device(request.device_id)
            if request.response_type not in _GetAction.ResponseType.values():
                raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, f"response_type {request.response_type} is not known")
            pipeline = self._device.addressed
            if pipeline is None:
                return response
            response.config.SetInParent()
            if pipeline.cookie is not None:
                response.config.cookie.cookie = pipeline.cookie
            if request.response_type in (_GetAction.ALL, _GetAction.P4INFO_AND_COOKIE):
                response.config.p4info.CopyFrom(pipeline.p4info)
            if request.response_type in (_GetAction.ALL, _GetAction.DEVICE_CONFIG_AND_COOKIE):
                response.config.p4_device_config = pipeline.device_config
        return response

    def StreamChannel(
        self, requests: Iterator[p4runtime_pb2.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        """Section "Client Arbitration and Controller Replication". The stream is the session: its end, however it
        comes, takes the client out of the election."""
        client = _Client()
        with _reporting(context), self._lock:
            if len(self._readers) >= MAX_STREAMS:
                raise _Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, f"all {MAX_STREAMS} streams of this switch are in use")
            reader = threading.Thread(target=self._read_stream, args=(client, requests), name="p4runtime-stream")
            reader.daemon = True
            self._readers.add(reader)
        reader.start()
        while (item := client.outbox.get()) is not None:
            if isinstance(item, _Failure):
                context.abort(item.code, item.message)
            yield item

    # --- the stream ----------------------------------------------------------------------------------------------

    def _read_stream(self, client: _Client, requests: Iterator[p4runtime_pb2.StreamMessageRequest]) -> None:
        """A stream's reading half, in its own thread. `requests` ends when the client closes and raises when the call
        ends in any other way, a lost connection included, so this is where a client leaves the election."""
        try:
            for request in requests:
                if request is _UNREADABLE:
                    raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, "the bytes on the stream are no StreamMessageRequest")
                if request.WhichOneof("update") == "arbitration":
                    self._arbitrate(client, request.arbitration)
                else:
                    self._refuse_stream_message(client, request)
        except _Failure as failure:
            client.outbox.put(failure)
        except grpc.RpcError:
            _log.debug("a P4Runtime stream was cancelled")
        except Exception:
            _log.exception("P4Runtime stream")
            client.outbox.put(_Failure(grpc.StatusCode.INTERNAL, "the switch failed to handle a stream message; see its log"))
        finally:
            self._leave(client)
            with self._lock:
                self._readers.discard(threading.current_thread())

    def _arbitrate(self, client: _Client, message: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        with self._lock:
            if message.device_id != self._device_id:
                if self._arbitration.has_client(client):
                    raise _Failure(
                        grpc.StatusCode.FAILED_PRECONDITION,
                        f"device id {message.device_id}: this stream belongs to device {self._device_id}",
                    )
                raise self._no_such_device(message.device_id)
            _refuse_role(message.role.name or message.role.id or message.role.HasField("config"))
            try:
                notices = self._arbitration.update(client, _election_id(message))
            except ElectionIdTaken as error:
                raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
            self._deliver(notices)

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._deliver(self._arbitration.leave(client))
        client.outbox.put(None)

    def _deliver(self, notices: list[Notice[_Client]]) -> None:
        for notice in notices:
            response = p4runtime_pb2.StreamMessageResponse()
            response.arbitration.device_id = self._device_id
            response.arbitration.status.code = notice.standing.value
            response.arbitration.status.message = notice.standing.name.lower().replace("_", " ")
            if notice.highest is not None:
                response.arbitration.election_id.high = notice.highest >> 64
                response.arbitration.election_id.low = notice.highest & ((1 << 64) - 1)
            notice.client.outbox.put(response)

    def _refuse_stream_message(self, client: _Client, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Section "Stream Error Reporting": say why the message was dropped; the stream goes on."""
        if client.outbox.qsize() > _MAX_QUEUED_ERRORS:
            return
        kind = request.WhichOneof("update")
        response = p4runtime_pb2.StreamMessageResponse()
        with self._lock:
            is_primary = self._arbitration.is_primary_client(client)
        if not is_primary:
            code, text = code_pb2.PERMISSION_DENIED, "only the primary controller may send this"
        elif kind == "packet":
            code, text = code_pb2.UNIMPLEMENTED, "packet-out: the program has no controller packet header"
        elif kind == "digest_ack":
            code, text = code_pb2.INVALID_ARGUMENT, f"the program has no digest with id {request.digest_ack.digest_id}"
        else:
            code, text = code_pb2.INVALID_ARGUMENT, "the stream message is empty or of a kind this switch does not know"
        response.error.canonical_code = code
        response.error.message = text
        if kind == "packet":
            response.error.packet_out.packet_out.CopyFrom(request.packet)
        elif kind == "digest_ack":
            response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
        else:
            response.error.other.SetInParent()
        client.outbox.put(response)

    # --- pipelines -----------------------------------------------------------------------------------------------

    def _install(self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest) -> None:
        config = request.config
        for part in ("p4info", "p4_device_config"):
            if not (config.HasField(part) if part == "p4info" else config.p4_device_config):
                raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, f"the config has no {part}; send both of p4c's files")
        cookie = config.cookie.cookie if config.HasField("cookie") else None
        try:
            pipeline = self._device.load(config.p4info, config.p4_device_config, cookie)
        except (UnsupportedProgram, UnsupportedP4Info, PipelineMismatch) as error:
            raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        with self._lock:
            self._check_primary(request)  # an election may have been held while the program was compiled
            if request.action == _SetAction.VERIFY_AND_SAVE:
                self._device.save(pipeline)
            elif request.action == _SetAction.VERIFY_AND_COMMIT:
                self._device.commit(pipeline)
            elif request.action == _SetAction.RECONCILE_AND_COMMIT:
                try:
                    self._device.reconcile(pipeline)
                except NotReconcilable as error:
                    raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, f"cannot reconcile: {error}") from None

    def _commit_saved(self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest) -> None:
        if request.HasField("config"):
            raise _Failure(grpc.StatusCode.INVALID_ARGUMENT, "COMMIT takes no config; it commits the saved one")
        with self._lock:
            self._check_primary(request)
            if not self._device.commit_saved():
                raise _Failure(grpc.StatusCode.NOT_FOUND, "no config is saved; send VERIFY_AND_SAVE first")

    # --- checks, in the order of section "Write RPC" ----------------------------------------------------------------

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise self._no_such_device(device_id)

    def _no_such_device(self, device_id: int) -> _Failure:
        return _Failure(
            grpc.StatusCode.NOT_FOUND, f"device id {device_id} is not known; this switch is device {self._device_id}"
        )

    def _check_primary(self, request: p4runtime_pb2.WriteRequest | p4runtime_pb2.SetForwardingPipelineConfigRequest) -> None:
        if not self._arbitration.is_primary(_election_id(request)):
            raise _Failure(
                grpc.StatusCode.PERMISSION_DENIED, "this election id is not the primary controller's; win the election first"
            )

    def _addressed(self) -> Pipeline:
        pipeline = self._device.addressed
        if pipeline is None:
            raise _Failure(grpc.StatusCode.FAILED_PRECONDITION, "no pipeline is loaded; send SetForwardingPipelineConfig first")
        return pipeline


_UNREADABLE = object()
_CALLS: dict[str, tuple[Any, type[Message], type[Message]]] = {
    "Write": (grpc.unary_unary_rpc_method_handler, p4runtime_pb2.WriteRequest, p4runtime_pb2.WriteResponse),
    "Read": (grpc.unary_stream_rpc_method_handler, p4runtime_pb2.ReadRequest, p4runtime_pb2.ReadResponse),
    "SetForwardingPipelineConfig": (
        grpc.unary_unary_rpc_method_handler,
        p4runtime_pb2.SetForwardingPipelineConfigRequest,
        p4runtime_pb2.SetForwardingPipelineConfigResponse,
    ),
    "GetForwardingPipelineConfig": (
        grpc.unary_unary_rpc_method_handler,
        p4runtime_pb2.GetForwardingPipelineConfigRequest,
        p4runtime_pb2.GetForwardingPipelineConfigResponse,
    ),
    "Capabilities": (
        grpc.unary_unary_rpc_method_handler,
        p4runtime_pb2.CapabilitiesRequest,
        p4runtime_pb2.CapabilitiesResponse,
    ),
    "StreamChannel": (
        grpc.stream_stream_rpc_method_handler,
        p4runtime_pb2.StreamMessageRequest,
        p4runtime_pb2.StreamMessageResponse,
    ),
}


def _handlers(servicer: "_Servicer") -> grpc.GenericRpcHandler:
    """What p4runtime_pb2_grpc would register, but for requests that cannot be read: grpcio 1.85 never frees a call whose
    deserializer raises, so that anybody could fill the memory."""

    def reader(kind: Any) -> Callable[[bytes], Any]:
        def read(data: bytes) -> Any:
            try:
                return kind.FromString(data)
            except Exception:  # protobuf releases differ in what they raise
                return _UNREADABLE

        return read

    def readable(name: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        method = getattr(servicer, name)

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            if request is _UNREADABLE:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the bytes of the request are no {name}Request")
            return method(request, context)

        return call

    handlers = {
        name: make(readable(name), request_deserializer=reader(request), response_serializer=response.SerializeToString)
        for name, (make, request, response) in _CALLS.items()
    }
    return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", handlers)


@contextmanager
def _reporting(context: grpc.ServicerContext) -> Iterator[None]:
    """Turn whatever goes wrong inside into a gRPC status; what we did not foresee is INTERNAL and logged."""
    try:
        yield
    except _Failure as failure:
        if failure.details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", failure.details.SerializeToString()),))
        context.abort(failure.code, _shortened(failure.message))
    except Exception:
        _log.exception("P4Runtime call")
        context.abort(grpc.StatusCode.INTERNAL, "the switch failed to handle the call; its log says why")


def _shortened(text: str) -> str:
    """Keep a long list of refusals within what a client's metadata limit lets through."""
    if len(text) <= _MAX_DETAIL_CHARACTERS:
        return text
    return f"{text[:_MAX_DETAIL_CHARACTERS]}... ({len(text) - _MAX_DETAIL_CHARACTERS} more characters)"


def _attempt(entities: Entities, update: p4runtime_pb2.Update) -> p4runtime_pb2.Error:
    try:
        entities.write(update)
    except EntityError as error:
        return p4runtime_pb2.Error(canonical_code=error.code, message=str(error))
    return p4runtime_pb2.Error()


def _raise_if_any(errors: list[p4runtime_pb2.Error], call: str) -> None:
    """One p4.v1.Error for each element of the batch, OK included, inside a status of UNKNOWN."""
    failed = [(index, error) for index, error in enumerate(errors) if error.canonical_code]
    if not failed:
        return
    index, first = failed[0]
    message = (
        f"{call}: {len(failed)} of {len(errors)} failed; first (index {index}) "
        f"{code_pb2.Code.Name(first.canonical_code)}: {first.message}"
    )
    status = status_pb2.Status(code=code_pb2.UNKNOWN, message=_shortened(message))
    for error in errors:
        detail = any_pb2.Any()
        detail.Pack(error)
        status.details.append(detail)
    raise _Failure(grpc.StatusCode.UNKNOWN, message, status)


def _election_id(
    message: p4runtime_pb2.WriteRequest
    | p4runtime_pb2.SetForwardingPipelineConfigRequest
    | p4runtime_pb2.MasterArbitrationUpdate,
) -> int | None:
    """The 128-bit id; None when unset, which differs from 0 (section "Unset Election ID")."""
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)


def _refuse_role(role: object) -> None:
    if role:
        raise _Failure(
            grpc.StatusCode.UNIMPLEMENTED,
            "roles are not supported: this switch has the default role only; leave role unset in every message",
        )


def _enum_name(enum: object, number: int) -> str:
    values: dict[str, int] = dict(enum.items())  # type: ignore[attr-defined]
    return next((name for name, value in values.items() if value == number), str(number))
