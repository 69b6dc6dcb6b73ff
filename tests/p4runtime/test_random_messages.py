"""Random P4Runtime messages: whatever a client sends, the answer is a gRPC status that blames the client, and the switch
goes on working."""

import random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from p4.v1 import p4runtime_pb2

from tests.p4runtime.raw_client import Client, Names, Set, Update, details, inserts, p4info, update

ROUNDS = 300
FORBIDDEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def randomize(message: Message, rng: random.Random, ids: list[int], depth: int = 0) -> None:
    """Fill a message with values that are wrong in interesting ways, or right by chance."""
    for field in message.DESCRIPTOR.fields:
        kind = field.message_type
        if rng.random() < 0.4 + 0.08 * depth or (kind and (kind.full_name.endswith("Any") or kind.GetOptions().map_entry)):
            continue
        for _ in range(rng.choice((1, 1, 2)) if field.label == FieldDescriptor.LABEL_REPEATED else 1):
            if kind:
                child: Any = getattr(message, field.name)
                if field.label == FieldDescriptor.LABEL_REPEATED:
                    child = child.add()
                else:
                    child.SetInParent()
                if depth < 7:
                    randomize(child, rng, ids, depth + 1)
            elif field.label == FieldDescriptor.LABEL_REPEATED:
                getattr(message, field.name).append(scalar(field, rng, ids))
            else:
                setattr(message, field.name, scalar(field, rng, ids))


def scalar(field: FieldDescriptor, rng: random.Random, ids: list[int]) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\x01", b"\x07", b"\xff", b"\x01\x00", rng.randbytes(rng.randrange(40))))
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(("", "x"))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.3
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.random()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 99))
    unsigned = field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
    bits = 32 if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32) else 64
    top = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    choices = [0, 1, 1, 2, 3, top] if unsigned else [0, 1, 2, 8, -1, top, -top - 1]
    return rng.choice([*choices, *ids] if unsigned and bits == 32 else choices)


@pytest.fixture
def ids() -> list[int]:
    info = p4info()
    return [item.preamble.id for item in (*info.tables, *info.actions, *info.counters)]


def assert_client_error(error: grpc.RpcError) -> None:
    assert error.code() not in FORBIDDEN, error
    if error.code() == grpc.StatusCode.UNKNOWN:
        assert all(detail.canonical_code not in (2, 13) for detail in details(error)), error


@pytest.mark.parametrize("seed", range(3))
def test_random_messages_never_break_the_switch(primary: Client, names: Names, ids: list[int], seed: int) -> None:
    rng = random.Random(seed)
    accepted = refused = 0
    for _ in range(ROUNDS):
        write = p4runtime_pb2.WriteRequest(device_id=1, election_id={"low": primary.election_id})
        for _ in range(rng.randrange(1, 5)):
            randomize(write.updates.add(), rng, ids)
        read = p4runtime_pb2.ReadRequest(device_id=1)
        randomize(read.entities.add(), rng, ids)
        for call, request in ((primary.stub.Write, write), (primary.stub.Read, read)):
            try:
                answer = call(request)
                if request is read:
                    list(answer)
                accepted += 1
            except grpc.RpcError as error:
                assert_client_error(error)
                refused += 1
    assert accepted
    assert refused > ROUNDS
    primary.write(*inserts(names.entry("op", b"\x42", action=names.action("reflect"))))
    primary.write(update(Update.DELETE, table_entry=names.entry("op", b"\x42")))


def test_random_requests_of_the_other_calls(primary: Client, ids: list[int]) -> None:
    rng = random.Random(4)
    for _ in range(100):
        config = Set()
        randomize(config, rng, ids)
        config.device_id, config.role, config.role_id = 1, "", 0
        config.election_id.high, config.election_id.low = 0, primary.election_id
        with pytest.raises(grpc.RpcError) as refused:
            primary.stub.SetForwardingPipelineConfig(config)
        assert_client_error(refused.value)
        stream = primary.stream()
        message = p4runtime_pb2.StreamMessageRequest()
        randomize(message, rng, ids)
        stream.send(**{name.name: value for name, value in message.ListFields()})
        stream.close()
        assert stream.last_status() not in FORBIDDEN
