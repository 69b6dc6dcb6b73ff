"""Stream channels over gRPC: which message or status each situation brings, and who may write afterwards.

Source: P4Runtime 1.4.1, sections "Client Arbitration and Controller Replication" and "Stream Error Reporting".
"""

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from switchsum.softswitch.daemon import SoftSwitch
from switchsum.softswitch.p4runtime_server import MAX_STREAMS
from tests.p4runtime.raw_client import Client, Names, Set, Update, update


def test_primary_and_backup_over_two_connections(switch: SoftSwitch, names: Names) -> None:
    first, second = Client(switch.grpc_address, 10), Client(switch.grpc_address, 11)
    one = first.become_primary()
    first.set_pipeline()
    two = second.stream()
    two.arbitrate(9)
    assert two.standing() == ("ALREADY_EXISTS", 10)
    two.arbitrate(11)
    assert one.standing() == ("ALREADY_EXISTS", 11)
    assert two.standing() == ("OK", 11)

    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    with pytest.raises(grpc.RpcError) as refused:
        first.write(update(Update.INSERT, table_entry=entry))
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    second.write(update(Update.INSERT, table_entry=entry))
    assert len(first.read(table_entry=names.entry("op"))) == 1  # a backup may read

    two.close()
    assert two.end() == grpc.StatusCode.OK
    assert one.standing() == ("NOT_FOUND", 11)
    with pytest.raises(grpc.RpcError) as refused:
        second.write(update(Update.DELETE, table_entry=entry))
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    one.arbitrate(11)
    assert one.standing() == ("OK", 11)
    first.close()
    second.close()


def test_a_cancelled_stream_ends_the_primacy(switch: SoftSwitch) -> None:
    lost, waiting = Client(switch.grpc_address, 7), Client(switch.grpc_address, 3)
    stream = lost.become_primary()
    backup = waiting.stream()
    backup.arbitrate(3)
    assert backup.standing() == ("ALREADY_EXISTS", 7)
    stream.cancel()
    assert backup.standing() == ("NOT_FOUND", 7)
    lost.close()
    waiting.close()


def test_election_ids_have_128_bits(client: Client) -> None:
    client.election_id = (1 << 127) + 5
    client.become_primary()
    client.set_pipeline()


def test_a_client_without_election_id_waits(client: Client) -> None:
    stream = client.stream()
    stream.arbitrate(None)
    assert stream.standing() == ("NOT_FOUND", None)


def test_a_taken_election_id_ends_the_newcomers_stream_only(switch: SoftSwitch, client: Client) -> None:
    primary = client.become_primary()
    newcomer = client.stream()
    newcomer.arbitrate(client.election_id)
    assert newcomer.end() == grpc.StatusCode.INVALID_ARGUMENT
    primary.arbitrate(client.election_id)
    assert primary.standing() == ("OK", client.election_id)


def test_an_unknown_device_ends_the_stream(client: Client) -> None:
    stream = client.stream()
    stream.arbitrate(1, device_id=2)
    assert stream.end() == grpc.StatusCode.NOT_FOUND


def test_a_stream_cannot_change_its_device(client: Client) -> None:
    stream = client.become_primary()
    stream.arbitrate(1, device_id=2)
    assert stream.end() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("role", [{"name": "reader"}, {"id": 3}, {"config": {"type_url": "x"}}])
def test_roles_are_refused_by_name(client: Client, role: dict[str, object]) -> None:
    stream = client.stream()
    stream.arbitrate(1, role=role)
    assert stream.end() == grpc.StatusCode.UNIMPLEMENTED


def test_an_empty_role_is_the_default_role(client: Client) -> None:
    stream = client.stream()
    stream.arbitrate(1, role={})
    assert stream.standing() == ("OK", 1)


def test_roles_in_calls_are_refused_by_name(primary: Client) -> None:
    for call in (
        lambda: primary.write(role="x"),
        lambda: list(primary.stub.Read(p4runtime_pb2.ReadRequest(device_id=1, role="x"))),
        lambda: primary.stub.SetForwardingPipelineConfig(Set(device_id=1, role="x")),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "roles are not supported" in refused.value.details()


def test_one_stream_too_many_is_told_so_and_room_is_made_again(switch: SoftSwitch, client: Client) -> None:
    streams = [client.stream() for _ in range(MAX_STREAMS)]
    for number, stream in enumerate(streams):
        stream.arbitrate(None if number else 1)
        stream.standing()
    extra = client.stream()
    assert extra.end() == grpc.StatusCode.RESOURCE_EXHAUSTED
    client.set_pipeline()  # calls still get through
    streams[1].close()
    assert streams[1].end() == grpc.StatusCode.OK
    late = client.stream()
    late.arbitrate(2)
    assert late.standing() == ("OK", 2)


def test_packet_out_and_digest_acks_are_refused_by_name_and_the_stream_lives_on(client: Client) -> None:
    stream = client.become_primary()
    stream.send(packet={"payload": b"hello"})
    error = stream.next().error
    assert error.canonical_code == code_pb2.UNIMPLEMENTED
    assert error.packet_out.packet_out.payload == b"hello"
    stream.send(digest_ack={"digest_id": 5})
    error = stream.next().error
    assert error.canonical_code == code_pb2.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.digest_id == 5
    stream.send()
    assert stream.next().error.WhichOneof("details") == "other"
    stream.arbitrate(client.election_id)
    assert stream.standing() == ("OK", client.election_id)


def test_only_the_primary_may_send_packets(client: Client) -> None:
    stream = client.stream()
    stream.send(packet={"payload": b"hello"})
    assert stream.next().error.canonical_code == code_pb2.PERMISSION_DENIED


def test_capabilities(client: Client) -> None:
    answer = client.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest())
    assert answer.p4runtime_api_version == "1.4.1"


def test_calls_for_an_unknown_device(client: Client) -> None:
    for call in (
        lambda: client.stub.Write(p4runtime_pb2.WriteRequest(device_id=5)),
        lambda: list(client.stub.Read(p4runtime_pb2.ReadRequest())),
        lambda: client.stub.SetForwardingPipelineConfig(Set(device_id=5)),
        lambda: client.stub.GetForwardingPipelineConfig(p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=5)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_closing_the_switch_ends_open_streams(client: Client, switch: SoftSwitch) -> None:
    stream = client.become_primary()
    switch.close()
    assert stream.end() != grpc.StatusCode.OK
