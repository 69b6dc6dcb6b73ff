"""A P4Runtime client without any library in between, so that a test sees exactly what the server answers."""

import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

FOLDER = Path(__file__).parent
Set = p4runtime_pb2.SetForwardingPipelineConfigRequest
Get = p4runtime_pb2.GetForwardingPipelineConfigRequest
Update = p4runtime_pb2.Update
TIMEOUT_S = 20


def p4info(name: str = "entries") -> p4info_pb2.P4Info:
    return text_format.Parse((FOLDER / f"{name}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


def device_config(name: str = "entries") -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


def later_build() -> bytes:
    """The same program, but not the same bytes: what a reconciling switch takes for a new version."""
    return json.dumps(json.loads(device_config()) | {"program": "a later build"}).encode()


class Stream:
    """One stream channel; `next` waits for the server's next message."""

    def __init__(self, stub: p4runtime_pb2_grpc.P4RuntimeStub) -> None:
        self._requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        self._call = stub.StreamChannel(iter(self._requests.get, None))
        self._answers: queue.Queue[p4runtime_pb2.StreamMessageResponse | grpc.RpcError | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
            self._answers.put(None)
        except grpc.RpcError as error:
            self._answers.put(error)

    def send(self, **update: Any) -> None:
        self._requests.put(p4runtime_pb2.StreamMessageRequest(**update))

    def arbitrate(self, election_id: int | None, device_id: int = 1, role: dict[str, Any] | None = None) -> None:
        message = p4runtime_pb2.MasterArbitrationUpdate(device_id=device_id, role=role)
        if election_id is not None:
            message.election_id.high, message.election_id.low = divmod(election_id, 1 << 64)
        self.send(arbitration=message)

    def next(self) -> p4runtime_pb2.StreamMessageResponse:
        answer = self._answers.get(timeout=TIMEOUT_S)
        assert isinstance(answer, p4runtime_pb2.StreamMessageResponse), answer
        return answer

    def standing(self) -> tuple[str, int | None]:
        """Status code name and election id of the next arbitration message."""
        answer = self.next()
        assert answer.WhichOneof("update") == "arbitration"
        update = answer.arbitration
        highest = update.election_id.high << 64 | update.election_id.low if update.HasField("election_id") else None
        return code_pb2.Code.Name(update.status.code), highest

    def end(self) -> grpc.StatusCode:
        """Wait until the server ends the stream: with which status?"""
        answer = self._answers.get(timeout=TIMEOUT_S)
        assert not isinstance(answer, p4runtime_pb2.StreamMessageResponse), answer
        return grpc.StatusCode.OK if answer is None else answer.code()

    def last_status(self) -> grpc.StatusCode:
        """Like `end`, after skipping whatever messages came before."""
        while isinstance(answer := self._answers.get(timeout=TIMEOUT_S), p4runtime_pb2.StreamMessageResponse):
            pass
        return grpc.StatusCode.OK if answer is None else answer.code()

    def close(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        self._call.cancel()

    def discard(self) -> None:
        """Leave no thread behind: a process with hundreds of gRPC's own does not end well."""
        self.close()
        self.cancel()
        self._reader.join(TIMEOUT_S)


class Client:
    """Calls as one controller makes them: its election id goes into every request."""

    def __init__(self, address: str, election_id: int = 1) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_metadata_size", 1 << 20)])
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self.election_id = election_id
        self._streams: list[Stream] = []

    def stream(self) -> Stream:
        self._streams.append(Stream(self.stub))
        return self._streams[-1]

    def become_primary(self) -> Stream:
        stream = self.stream()
        stream.arbitrate(self.election_id)
        assert stream.standing() == ("OK", self.election_id)
        return stream

    def _identified(self, request: Any) -> Any:
        request.device_id = 1
        request.election_id.high, request.election_id.low = divmod(self.election_id, 1 << 64)
        return request

    def set_pipeline(self, action: int = Set.VERIFY_AND_COMMIT, cookie: int | None = None, **config: Any) -> None:
        """Without config: the program of this folder. Raises grpc.RpcError."""
        request = self._identified(Set(action=action))
        if action != Set.COMMIT or config:
            request.config.p4info.CopyFrom(config.get("p4info") or p4info())
            request.config.p4_device_config = config.get("device_config", device_config())
            if cookie is not None:
                request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request, timeout=60)

    def get_pipeline(self, response_type: int = Get.ALL) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        return self.stub.GetForwardingPipelineConfig(Get(device_id=1, response_type=response_type), timeout=TIMEOUT_S)

    def write(self, *updates: p4runtime_pb2.Update, **fields: Any) -> None:
        """Raises grpc.RpcError."""
        request = self._identified(p4runtime_pb2.WriteRequest(updates=updates))
        request.MergeFrom(p4runtime_pb2.WriteRequest(**fields))
        self.stub.Write(request, timeout=TIMEOUT_S)

    def write_codes(self, *updates: p4runtime_pb2.Update) -> list[str]:
        """Code name of each update of a batch."""
        try:
            self.write(*updates)
        except grpc.RpcError as error:
            return [code_pb2.Code.Name(detail.canonical_code) for detail in details(error)]
        return ["OK"] * len(updates)

    def write_error(self, update: p4runtime_pb2.Update) -> tuple[str, str]:
        """Code name and message of an update that must fail."""
        try:
            self.write(update)
        except grpc.RpcError as error:
            (detail,) = details(error)
            return str(code_pb2.Code.Name(detail.canonical_code)), detail.message
        raise AssertionError("the update was accepted")

    def read(self, **entity: Any) -> list[Any]:
        """The entities that one request selects, unwrapped. Raises grpc.RpcError."""
        request = p4runtime_pb2.ReadRequest(device_id=1, entities=[p4runtime_pb2.Entity(**entity)])
        found: list[Any] = []
        for response in self.stub.Read(request, timeout=TIMEOUT_S):
            found += [getattr(item, item.WhichOneof("entity")) for item in response.entities]
        return found

    def read_code(self, **entity: Any) -> str:
        try:
            self.read(**entity)
        except grpc.RpcError as error:
            (detail,) = details(error)
            return str(code_pb2.Code.Name(detail.canonical_code))
        return "OK"

    def close(self) -> None:
        for stream in self._streams:
            stream.discard()
        self._channel.close()


def details(error: grpc.RpcError) -> list[p4runtime_pb2.Error]:
    """The p4.v1.Error of each element of a failed batch; checks the envelope that the standard prescribes."""
    assert error.code() == grpc.StatusCode.UNKNOWN, error
    text = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(text)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    unpacked = []
    for item in status.details:
        detail = p4runtime_pb2.Error()
        assert item.Unpack(detail)
        unpacked.append(detail)
    return unpacked


class Names:
    """Builds entities of the folder's program by name instead of by id."""

    def __init__(self, info: p4info_pb2.P4Info) -> None:
        self._info = info

    def table_id(self, name: str) -> int:
        return next(int(t.preamble.id) for t in self._info.tables if t.preamble.alias == name)

    def action_id(self, name: str) -> int:
        return next(int(a.preamble.id) for a in self._info.actions if a.preamble.alias == name)

    def counter_id(self, name: str) -> int:
        return next(int(c.preamble.id) for c in self._info.counters if c.preamble.alias == name)

    def action(self, name: str, *params: bytes) -> p4runtime_pb2.TableAction:
        action = p4runtime_pb2.Action(action_id=self.action_id(name))
        for number, value in enumerate(params, 1):
            action.params.add(param_id=number, value=value)
        return p4runtime_pb2.TableAction(action=action)

    def entry(self, table: str, *match: Any, action: Any = None, **fields: Any) -> p4runtime_pb2.TableEntry:
        """match: for each field None (left out), bytes (exact), or a dict like {"lpm": {...}}."""
        entry = p4runtime_pb2.TableEntry(table_id=self.table_id(table), action=action, **fields)
        for number, value in enumerate(match, 1):
            if value is not None:
                kinds = {"exact": {"value": value}} if isinstance(value, bytes) else value
                entry.match.append(p4runtime_pb2.FieldMatch(field_id=number, **kinds))
        return entry


def update(kind: int, **entity: Any) -> p4runtime_pb2.Update:
    return p4runtime_pb2.Update(type=kind, entity=p4runtime_pb2.Entity(**entity))


def inserts(*entries: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.Update]:
    return (update(Update.INSERT, table_entry=entry) for entry in entries)
