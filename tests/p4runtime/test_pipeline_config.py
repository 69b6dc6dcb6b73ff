"""Loading, saving, committing, reconciling and reading back a pipeline.

Source: P4Runtime 1.4.1, sections "SetForwardingPipelineConfig RPC" and "GetForwardingPipelineConfig RPC".
"""

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from p4.config.v1 import p4info_pb2

from switchsum.softswitch.daemon import SoftSwitch
from tests.p4runtime.raw_client import Client, Get, Names, Set, Update, device_config, later_build, p4info, update

REFLECT_1 = b"\x01"


def status_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), refused.value.details()


def edited_config(edit: Callable[[dict[str, Any]], None]) -> bytes:
    """The folder's program with a change in its JSON, as a later version of it might have."""
    document = json.loads(device_config())
    edit(document)
    return json.dumps(document).encode()


def insert_reflect(client: Client, names: Names) -> None:
    client.write(
        update(Update.INSERT, table_entry=names.entry("op", REFLECT_1, action=names.action("reflect"), metadata=b"note"))
    )


def test_without_a_pipeline_nothing_can_be_read_or_written(client: Client) -> None:
    client.become_primary()
    assert not client.get_pipeline().HasField("config")
    assert status_of(client.write)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert status_of(lambda: client.read(table_entry={}))[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_only_the_primary_may_load_a_pipeline(client: Client) -> None:
    assert status_of(client.set_pipeline)[0] == grpc.StatusCode.PERMISSION_DENIED


def test_verify_changes_nothing(client: Client, switch: SoftSwitch) -> None:
    client.become_primary()
    client.set_pipeline(Set.VERIFY)
    assert not client.get_pipeline().HasField("config")
    assert switch.dataplane is None


@pytest.mark.parametrize("cookie", [None, 0, 77])
def test_every_response_type_returns_its_parts(client: Client, cookie: int | None) -> None:
    client.become_primary()
    client.set_pipeline(cookie=cookie)
    for response_type, with_info, with_device in (
        (Get.ALL, True, True),
        (Get.COOKIE_ONLY, False, False),
        (Get.P4INFO_AND_COOKIE, True, False),
        (Get.DEVICE_CONFIG_AND_COOKIE, False, True),
    ):
        config = client.get_pipeline(response_type).config
        assert config.p4info == (p4info() if with_info else p4info_pb2.P4Info())
        assert config.p4_device_config == (device_config() if with_device else b"")
        assert (config.cookie.cookie if config.HasField("cookie") else None) == cookie
    assert status_of(lambda: client.get_pipeline(9))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_verify_and_commit_starts_from_a_clean_state(primary: Client, names: Names) -> None:
    insert_reflect(primary, names)
    primary.set_pipeline()
    assert primary.read(table_entry=names.entry("op")) == []


def test_a_saved_pipeline_takes_writes_and_packets_keep_the_old_one_until_commit(
    primary: Client, switch: SoftSwitch, names: Names
) -> None:
    before = switch.dataplane
    assert before is not None
    primary.set_pipeline(Set.VERIFY_AND_SAVE, cookie=5)
    insert_reflect(primary, names)
    assert primary.get_pipeline(Get.COOKIE_ONLY).config.cookie.cookie == 5
    assert switch.dataplane is before
    assert before.tables["Serve.op"].entries() == []
    primary.set_pipeline(Set.COMMIT)
    assert switch.dataplane is not before
    (entry,) = primary.read(table_entry=names.entry("op"))
    assert entry.metadata == b"note"


def test_commit_needs_a_saved_config_and_takes_none(primary: Client) -> None:
    assert status_of(lambda: primary.set_pipeline(Set.COMMIT))[0] == grpc.StatusCode.NOT_FOUND
    primary.set_pipeline(Set.VERIFY_AND_SAVE)
    code, _ = status_of(lambda: primary.set_pipeline(Set.COMMIT, device_config=device_config()))
    assert code == grpc.StatusCode.INVALID_ARGUMENT


def test_reconciling_the_same_program_keeps_everything_registers_included(
    primary: Client, switch: SoftSwitch, names: Names
) -> None:
    insert_reflect(primary, names)
    assert switch.dataplane is not None
    switch.dataplane.registers["Serve.requests"].write(2, 7)
    before = switch.dataplane
    primary.set_pipeline(Set.RECONCILE_AND_COMMIT, cookie=3)
    assert switch.dataplane is before
    assert primary.get_pipeline(Get.COOKIE_ONLY).config.cookie.cookie == 3
    (entry,) = primary.read(table_entry=names.entry("op"))
    assert entry.metadata == b"note"


def test_reconciling_another_program_carries_entries_counters_groups_and_sessions_over(
    primary: Client, switch: SoftSwitch, names: Names
) -> None:
    before = switch.dataplane
    insert_reflect(primary, names)
    primary.write(
        update(
            Update.MODIFY,
            direct_counter_entry={
                "table_entry": names.entry("op", REFLECT_1),
                "data": {"packet_count": 4, "byte_count": 9},
            },
        ),
        update(
            Update.MODIFY,
            counter_entry={"counter_id": names.counter_id("tags"), "index": {"index": 3}, "data": {"packet_count": 8}},
        ),
        update(
            Update.MODIFY,
            table_entry=names.entry("setting", action=names.action("classify_as", b"\x05"), is_default_action=True),
        ),
        update(
            Update.INSERT,
            packet_replication_engine_entry={
                "multicast_group_entry": {"multicast_group_id": 1, "replicas": [{"egress_port": 1, "instance": 1}]}
            },
        ),
        update(
            Update.INSERT,
            packet_replication_engine_entry={
                "clone_session_entry": {"session_id": 2, "replicas": [{"port": b"\x01", "instance": 1}]}
            },
        ),
    )
    requests: tuple[dict[str, Any], ...] = (
        {"table_entry": {"counter_data": {}}},
        {"table_entry": {"is_default_action": True}},
        {"counter_entry": {"counter_id": names.counter_id("tags")}},
        {"packet_replication_engine_entry": {}},
    )
    state = [primary.read(**request) for request in requests]
    primary.set_pipeline(Set.RECONCILE_AND_COMMIT, device_config=later_build())
    assert switch.dataplane is not before
    assert [primary.read(**request) for request in requests] == state
    assert any(entry.metadata == b"note" for entry in state[0])


def test_reconciling_with_a_program_that_has_no_place_for_an_entry_changes_nothing(
    primary: Client, switch: SoftSwitch, names: Names
) -> None:
    insert_reflect(primary, names)
    before = switch.dataplane
    narrower = p4info()
    table = next(t for t in narrower.tables if t.preamble.alias == "op")
    table.preamble.name = "Serve.operation"

    def rename(document: dict[str, Any]) -> None:
        text = json.dumps(document["pipelines"]).replace('"Serve.op"', '"Serve.operation"')
        document["pipelines"] = json.loads(text)

    code, text = status_of(
        lambda: primary.set_pipeline(Set.RECONCILE_AND_COMMIT, p4info=narrower, device_config=edited_config(rename))
    )
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "table Serve.op has 1 entries" in text
    assert switch.dataplane is before


def test_reconcile_without_a_pipeline_is_a_plain_commit(client: Client, names: Names) -> None:
    client.become_primary()
    client.set_pipeline(Set.RECONCILE_AND_COMMIT)
    insert_reflect(client, names)


@pytest.mark.parametrize("action", [Set.UNSPECIFIED, 17])
def test_unknown_actions_are_refused(client: Client, action: int) -> None:
    client.become_primary()
    assert status_of(lambda: client.set_pipeline(action))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_config_needs_both_files(client: Client) -> None:
    client.become_primary()
    code, text = status_of(lambda: client.set_pipeline(device_config=b""))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "p4_device_config" in text
    request = Set(device_id=1, action=Set.VERIFY, election_id={"low": 1})
    code, text = status_of(lambda: client.stub.SetForwardingPipelineConfig(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "p4info" in text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b"{", "not JSON"),
        (b"[]", "object"),
        (
            edited_config(lambda document: document["meter_arrays"].append({"name": "police", "id": 0})),
            "police",
        ),
    ],
)
def test_a_program_that_cannot_run_is_refused_with_the_reason_and_the_old_one_stays(
    primary: Client, text: bytes, named: str
) -> None:
    code, message = status_of(lambda: primary.set_pipeline(device_config=text))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in message
    assert primary.get_pipeline().config.p4_device_config == device_config()


def _table(info: p4info_pb2.P4Info, alias: str) -> p4info_pb2.Table:
    return next(table for table in info.tables if table.preamble.alias == alias)


def _action(info: p4info_pb2.P4Info, alias: str) -> p4info_pb2.Action:
    return next(action for action in info.actions if action.preamble.alias == alias)


def _edit(path: str, value: Any, alias: str = "op") -> Callable[[p4info_pb2.P4Info], None]:
    """Set an attribute below a table, named by a path like match_fields.0.bitwidth."""

    def edit(info: p4info_pb2.P4Info) -> None:
        target: Any = _table(info, alias)
        *steps, last = path.split(".")
        for step in steps:
            target = target[int(step)] if step.isdigit() else getattr(target, step)
        setattr(target, last, value)

    return edit


def _swap_fields(info: p4info_pb2.P4Info) -> None:
    first, *_, last = _table(info, "class").match_fields
    first.name, last.name = last.name, first.name


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (_edit("preamble.name", "Serve.operation"), "table Serve.operation of the P4Info is missing"),
        (_edit("preamble.id", 0x01000099), "begin with 0x02"),
        (lambda i: setattr(_table(i, "op").preamble, "id", _table(i, "route").preamble.id), "share the id"),
        (lambda i: i.tables.remove(_table(i, "op")), "table Serve.op of the program is missing"),
        (_edit("match_fields.0.bitwidth", 9), "exact of 9 bits in the P4Info, exact of 8 bits in the program"),
        (_edit("match_fields.0.match_type", p4info_pb2.MatchField.LPM), "lpm of 8 bits"),
        (_edit("match_fields.0.match_type", 0), "unknown match type"),
        (_edit("match_fields.0.id", 0), "id 0"),
        (_swap_fields, "the key is"),
        (lambda i: _table(i, "op").match_fields.add(id=9, name="x"), "2 match fields in the P4Info, 1"),
        (lambda i: _table(i, "op").action_refs.pop(), "of the program is missing from the P4Info"),
        (lambda i: _table(i, "op").action_refs.add(id=0x01999999), "0x01999999"),
        (lambda i: setattr(_action(i, "reflect").preamble, "name", "Serve.mirror"), "Serve.mirror"),
        (lambda i: setattr(_action(i, "forward").params[1], "bitwidth", 31), "parameters (bit<9> port, bit<31> address"),
        (lambda i: setattr(_action(i, "forward").params[1], "id", 1), "used twice"),
        (_edit("is_const_table", True), "is_const_table"),
        (_edit("const_default_action_id", 0, "fixed"), "default action is constant"),
        (_edit("has_initial_entries", True), "const entries"),
        (_edit("implementation_id", 5), "action profile"),
        (lambda i: setattr(i.counters[0], "size", 3), "3 cells in the P4Info, 16 in the program"),
        (lambda i: setattr(i.counters[0].preamble, "name", "x"), "counter x"),
        (lambda i: i.direct_counters.pop(), "direct counter is missing"),
        (lambda i: setattr(i.direct_counters[0], "direct_table_id", 3), "the program has none"),
        (lambda i: setattr(i.registers[0], "size", 3), "register Serve.requests: 3 cells"),
        (lambda i: setattr(i.registers[0].preamble, "name", "x"), "register x"),
        (lambda i: i.meters.add().preamble.MergeFrom(p4info_pb2.Preamble(name="police")), "meter police"),
        (lambda i: i.digests.add().preamble.MergeFrom(p4info_pb2.Preamble(name="news")), "digest news"),
        (lambda i: i.controller_packet_metadata.add().preamble.MergeFrom(p4info_pb2.Preamble(name="packet_in")), "packet_in"),
        (lambda i: i.externs.add(extern_type_name="Sorcery"), "extern Sorcery"),
    ],
)
def test_a_p4info_of_another_program_is_refused_naming_the_first_difference(
    client: Client, edit: Callable[[p4info_pb2.P4Info], None], named: str
) -> None:
    client.become_primary()
    other = p4info()
    edit(other)
    code, message = status_of(lambda: client.set_pipeline(p4info=other))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in message
