"""Read: filters and wildcards of every kind of entity, and the batch rules.

Source: P4Runtime 1.4.1, sections "Read RPC", "Wildcard Reads" (of TableEntry), "Direct Resources".
"""

from typing import Any

import grpc
import pytest
from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from tests.p4runtime.raw_client import Client, Names, Update, details, inserts, update


@pytest.fixture
def filled(primary: Client, names: Names) -> list[p4runtime_pb2.TableEntry]:
    """Entries in three tables, in the order in which reads return them."""
    kind = names.action("classify_as", b"\x01")
    entries = [
        names.entry("op", b"\x01", action=names.action("reflect"), metadata=b"a"),
        names.entry("op", b"\x02", action=names.action("replicate", b"\x05"), controller_metadata=9),
        names.entry("route", None, action=kind),
        names.entry("route", {"lpm": {"value": b"\x0a\0\0\0", "prefix_len": 8}}, action=names.action("NoAction")),
        names.entry("class", None, None, None, b"\x01", action=kind, priority=10),
        names.entry("class", None, None, {"optional": {"value": b"\x04"}}, b"\x01", action=kind, priority=11),
    ]
    primary.write(*inserts(*entries))
    return entries


def constant(names: Names) -> list[p4runtime_pb2.TableEntry]:
    return [
        names.entry("fixed", b"\xfe", action=names.action("classify_as", b"\x0f\xfe"), is_const=True),
        names.entry("fixed", b"\xff", action=names.action("classify_as", b"\x0f\xff"), is_const=True),
    ]


def same(found: list[Any], expected: list[Any]) -> None:
    """Equal as sets: the standard leaves the order open."""
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_all_tables_constant_entries_included(primary: Client, names: Names, filled: list[Any]) -> None:
    same(primary.read(table_entry={}), filled + constant(names))


def test_one_table(primary: Client, names: Names, filled: list[Any]) -> None:
    same(primary.read(table_entry=names.entry("route")), filled[2:4])
    same(primary.read(table_entry=names.entry("fixed")), constant(names))
    same(primary.read(table_entry=names.entry("setting")), [])


def test_one_entry_by_its_match(primary: Client, names: Names, filled: list[Any]) -> None:
    same(primary.read(table_entry=names.entry("op", b"\x02")), filled[1:2])
    same(primary.read(table_entry=names.entry("op", b"\x07")), [])


def test_by_priority_action_and_metadata(primary: Client, names: Names, filled: list[Any]) -> None:
    same(primary.read(table_entry=names.entry("class", priority=11)), filled[5:])
    same(primary.read(table_entry=names.entry("route", action=names.action("NoAction"))), filled[3:4])
    same(primary.read(table_entry=names.entry("op", metadata=b"a")), filled[:1])
    same(primary.read(table_entry=names.entry("op", controller_metadata=9)), filled[1:2])
    same(primary.read(table_entry={"metadata": b"a"}), filled[:1])


def test_default_entries(primary: Client, names: Names) -> None:
    found = primary.read(table_entry={"is_default_action": True})
    by_table = {entry.table_id: entry for entry in found}
    assert len(by_table) == len(found) == 6
    assert by_table[names.table_id("op")] == names.entry("op", action=names.action("drop"), is_default_action=True)
    assert by_table[names.table_id("fixed")].is_const
    assert not by_table[names.table_id("setting")].is_const
    wanted = names.entry("setting", is_default_action=True, action={"action": {"action_id": names.action_id("NoAction")}})
    assert primary.read(table_entry=wanted) == []


def test_counters_come_when_asked_for_and_only_where_there_are_some(primary: Client, names: Names, filled: list[Any]) -> None:
    for entry in primary.read(table_entry={"counter_data": {}}):
        counted = entry.table_id in (names.table_id("op"), names.table_id("class"))
        assert entry.HasField("counter_data") == counted
    assert not any(entry.HasField("counter_data") for entry in primary.read(table_entry={}))


def test_direct_counters_one_a_table_or_all(primary: Client, names: Names, filled: list[Any]) -> None:
    key = names.entry("op", b"\x01")
    primary.write(update(Update.MODIFY, direct_counter_entry={"table_entry": key, "data": {"packet_count": 2}}))
    (one,) = primary.read(direct_counter_entry={"table_entry": key})
    assert one.table_entry == key
    assert one.data.packet_count == 2
    assert len(primary.read(direct_counter_entry={"table_entry": names.entry("op")})) == 2
    assert len(primary.read(direct_counter_entry={"table_entry": names.entry("class", priority=10)})) == 1
    assert len(primary.read(direct_counter_entry={"table_entry": {}})) == 4
    assert primary.read_code(direct_counter_entry={"table_entry": names.entry("op", b"\x09")}) == "NOT_FOUND"
    assert primary.read_code(direct_counter_entry={"table_entry": names.entry("route")}) == "INVALID_ARGUMENT"


def test_indirect_counters_one_cell_a_counter_or_all(primary: Client, names: Names) -> None:
    tags = names.counter_id("tags")
    (cell,) = primary.read(counter_entry={"counter_id": tags, "index": {"index": 15}})
    assert cell.index.index == 15
    assert [cell.index.index for cell in primary.read(counter_entry={"counter_id": tags})] == list(range(16))
    assert len(primary.read(counter_entry={})) == 16
    assert primary.read_code(counter_entry={"counter_id": tags, "index": {"index": 16}}) == "OUT_OF_RANGE"
    assert primary.read_code(counter_entry={"counter_id": tags, "index": {"index": -1}}) == "INVALID_ARGUMENT"
    assert primary.read_code(counter_entry={"counter_id": 5}) == "INVALID_ARGUMENT"
    assert primary.read_code(counter_entry={"index": {"index": 1}}) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "entity",
    [
        {"action_profile_member": {}},
        {"action_profile_group": {}},
        {"meter_entry": {}},
        {"direct_meter_entry": {}},
        {"direct_meter_entry": {"table_entry": {}}},
        {"digest_entry": {}},
        {"packet_replication_engine_entry": {}},
    ],
)
def test_a_wildcard_over_things_that_the_program_lacks_finds_nothing(primary: Client, entity: dict[str, Any]) -> None:
    assert primary.read(**entity) == []


@pytest.mark.parametrize(
    ("code", "entity"),
    [
        ("UNIMPLEMENTED", {"register_entry": {}}),
        ("UNIMPLEMENTED", {"value_set_entry": {}}),
        ("UNIMPLEMENTED", {"extern_entry": {}}),
        ("UNIMPLEMENTED", {"meter_entry": {"meter_id": 1}}),
        ("UNIMPLEMENTED", {"direct_meter_entry": {"table_entry": {"table_id": 1}}}),
        ("UNIMPLEMENTED", {"digest_entry": {"digest_id": 1}}),
        ("UNIMPLEMENTED", {"action_profile_member": {"action_profile_id": 1}}),
        ("INVALID_ARGUMENT", {}),
        ("INVALID_ARGUMENT", {"table_entry": {"table_id": 7}}),
        ("INVALID_ARGUMENT", {"table_entry": {"match": [{"field_id": 1}]}}),
        ("INVALID_ARGUMENT", {"table_entry": {"action": {}}}),
    ],
)
def test_reads_that_are_refused(primary: Client, code: str, entity: dict[str, Any]) -> None:
    assert primary.read_code(**entity) == code


def test_table_reads_that_are_refused(primary: Client, names: Names) -> None:
    for entry in (
        names.entry("op", {"ternary": {"value": b"\1", "mask": b"\1"}}),
        names.entry("op", action={"action_profile_member_id": 1}),
        names.entry("op", action=names.action("classify_as", b"\1")),
        names.entry("route", action=names.action("classify_as", b"\1")),  # a filter has no parameters
        names.entry("op", b"\1", is_default_action=True),
    ):
        assert primary.read_code(table_entry=entry) == "INVALID_ARGUMENT", entry
    assert primary.read_code(table_entry=names.entry("op", b"")) == "OUT_OF_RANGE"


def test_valid_requests_of_a_batch_are_answered_before_the_errors(primary: Client, names: Names, filled: list[Any]) -> None:
    request = p4runtime_pb2.ReadRequest(device_id=1)
    request.entities.add(table_entry=names.entry("op"))
    request.entities.add(register_entry={})
    request.entities.add(table_entry=names.entry("route"))
    found: list[Any] = []
    with pytest.raises(grpc.RpcError) as refused:  # noqa: PT012 - what comes before the error matters here
        for response in primary.stub.Read(request):
            found += [entity.table_entry for entity in response.entities]
    same(found, filled[:4])
    codes = [detail.canonical_code for detail in details(refused.value)]
    assert codes == [code_pb2.OK, code_pb2.UNIMPLEMENTED, code_pb2.OK]


def test_an_empty_read_is_empty(primary: Client) -> None:
    assert list(primary.stub.Read(p4runtime_pb2.ReadRequest(device_id=1))) == []


def test_a_long_answer_comes_in_several_messages(primary: Client, names: Names) -> None:
    request = p4runtime_pb2.ReadRequest(device_id=1)
    for _ in range(40):
        request.entities.add(counter_entry={"counter_id": names.counter_id("tags")})
    sizes = [len(response.entities) for response in primary.stub.Read(request)]
    assert sum(sizes) == 40 * 16
    assert len(sizes) > 1
