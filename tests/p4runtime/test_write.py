"""Write: what each update does, and the code of each one that fails.

Source: P4Runtime 1.4.1, sections "Write RPC", "TableEntry", "CounterEntry & DirectCounterEntry" and
"PacketReplicationEngineEntry".
"""

from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2

from switchsum.softswitch import tables
from switchsum.softswitch.p4runtime_entities import ERROR_CODES
from tests.p4runtime.raw_client import Client, Names, Update, details, inserts, update

ROUTE_10 = {"lpm": {"value": b"\x0a\x00\x00\x00", "prefix_len": 8}}
CLASS = ({"ternary": {"value": b"\x02", "mask": b"\xff"}}, None, {"optional": {"value": b"\x07"}}, b"\x01")


def test_insert_modify_and_delete_an_exact_entry(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"), controller_metadata=5, metadata=b"m")
    primary.write(update(Update.INSERT, table_entry=entry))
    assert primary.read(table_entry=names.entry("op")) == [entry]
    entry.action.CopyFrom(names.action("forward", b"\x02", b"\x7f\x00\x00\x01", b"\x1f\x90"))
    entry.metadata = b""
    primary.write(update(Update.MODIFY, table_entry=entry))
    assert primary.read(table_entry=names.entry("op")) == [entry]
    primary.write(update(Update.DELETE, table_entry=names.entry("op", b"\x01")))
    assert primary.read(table_entry=names.entry("op")) == []


def test_modify_without_an_action_keeps_it(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    primary.write(update(Update.INSERT, table_entry=entry))
    primary.write(update(Update.MODIFY, table_entry=names.entry("op", b"\x01", metadata=b"new")))
    entry.metadata = b"new"
    assert primary.read(table_entry=names.entry("op")) == [entry]


def test_delete_looks_at_the_key_only(primary: Client, names: Names) -> None:
    primary.write(*inserts(names.entry("op", b"\x01", action=names.action("reflect"))))
    nonsense = names.entry("op", b"\x01", action={"action": {"action_id": 1}}, idle_timeout_ns=4, meter_config={})
    primary.write(update(Update.DELETE, table_entry=nonsense))


def test_longer_byte_strings_are_accepted_and_read_back_in_their_shortest_form(primary: Client, names: Names) -> None:
    primary.write(*inserts(names.entry("op", b"\0\0\x01", action=names.action("forward", b"\0\x02", b"\x00", b"\0\0\0"))))
    (entry,) = primary.read(table_entry=names.entry("op"))
    assert entry == names.entry("op", b"\x01", action=names.action("forward", b"\x02", b"\x00", b"\x00"))


@pytest.mark.parametrize(
    "match",
    [
        CLASS,
        (None, {"range": {"low": b"\x10", "high": b"\x20"}}, None, b"\x01"),
        (None, None, None, b"\x01"),
        (
            {"ternary": {"value": b"\x01\x00\x00\x00\x00\x00", "mask": b"\x01\x00\x00\x00\x00\x00"}},
            {"range": {"low": b"\x00", "high": b"\x00"}},
            {"optional": {"value": b"\x00"}},
            b"\x00",
        ),
    ],
)
def test_every_match_kind_reads_back_as_written(primary: Client, names: Names, match: tuple[Any, ...]) -> None:
    entry = names.entry("class", *match, priority=7, action=names.action("classify_as", b"\x05"))
    primary.write(*inserts(entry))
    assert primary.read(table_entry=names.entry("class")) == [entry]
    primary.write(update(Update.DELETE, table_entry=names.entry("class", *match, priority=7)))


def test_lpm_entries_read_back_as_written_the_one_for_all_included(primary: Client, names: Names) -> None:
    entries = [
        names.entry("route", match, action=names.action("classify_as", b"\x01"))
        for match in (ROUTE_10, None, {"lpm": {"value": b"\x0a\x01\x02\x03", "prefix_len": 32}})
    ]
    primary.write(*inserts(*entries))
    assert primary.read(table_entry=names.entry("route")) == entries


def test_priority_is_part_of_the_key(primary: Client, names: Names) -> None:
    entries = [names.entry("class", *CLASS, priority=p, action=names.action("classify_as", b"\x01")) for p in (1, 2)]
    assert primary.write_codes(*inserts(*entries, entries[0])) == ["OK", "OK", "ALREADY_EXISTS"]


def bad_match(names: Names, table: str, *match: Any, **fields: Any) -> p4runtime_pb2.TableEntry:
    fields.setdefault("action", names.action("classify_as", b"\x01"))
    return names.entry(table, *match, **fields)


BAD_INSERTS: list[tuple[str, str, Any]] = [
    ("INVALID_ARGUMENT", "id 0x02ffffff", lambda n: p4runtime_pb2.TableEntry(table_id=0x02FFFFFF)),
    ("INVALID_ARGUMENT", "id 0x00000000", lambda n: p4runtime_pb2.TableEntry()),
    ("INVALID_ARGUMENT", "no match field with id 2", lambda n: bad_match(n, "op", b"\x01", b"\x02")),
    ("INVALID_ARGUMENT", "cannot be left out", lambda n: bad_match(n, "op")),
    ("INVALID_ARGUMENT", "gives ternary", lambda n: bad_match(n, "op", {"ternary": {"value": b"\x01", "mask": b"\x01"}})),
    ("INVALID_ARGUMENT", "no match at all", lambda n: bad_match(n, "op", {})),
    ("OUT_OF_RANGE", "needs 9 bits, the field has 8", lambda n: bad_match(n, "op", b"\x01\x00")),
    ("OUT_OF_RANGE", "empty", lambda n: bad_match(n, "op", b"")),
    ("INVALID_ARGUMENT", "leave it 0", lambda n: bad_match(n, "op", b"\x01", priority=1)),
    ("INVALID_ARGUMENT", "above 0", lambda n: bad_match(n, "class", *CLASS)),
    ("INVALID_ARGUMENT", "priority -1", lambda n: bad_match(n, "class", *CLASS, priority=-1)),
    ("INVALID_ARGUMENT", "prefix length 0", lambda n: bad_match(n, "route", {"lpm": {"value": b"\0", "prefix_len": 0}})),
    ("INVALID_ARGUMENT", "prefix length 33", lambda n: bad_match(n, "route", {"lpm": {"value": b"\0", "prefix_len": 33}})),
    ("INVALID_ARGUMENT", "below its prefix", lambda n: bad_match(n, "route", {"lpm": {"value": b"\1", "prefix_len": 31}})),
    (
        "INVALID_ARGUMENT",
        "mask is zero",
        lambda n: bad_match(n, "class", {"ternary": {"value": b"\0", "mask": b"\0"}}, None, None, b"\1", priority=1),
    ),
    (
        "INVALID_ARGUMENT",
        "outside its mask",
        lambda n: bad_match(n, "class", {"ternary": {"value": b"\3", "mask": b"\1"}}, None, None, b"\1", priority=1),
    ),
    (
        "INVALID_ARGUMENT",
        "low 2 is above high 1",
        lambda n: bad_match(n, "class", None, {"range": {"low": b"\2", "high": b"\1"}}, None, b"\1", priority=1),
    ),
    (
        "INVALID_ARGUMENT",
        "every value",
        lambda n: bad_match(n, "class", None, {"range": {"low": b"\0", "high": b"\xff\xff"}}, None, b"\1", priority=1),
    ),
    ("INVALID_ARGUMENT", "needs an action", lambda n: n.entry("op", b"\x01")),
    ("INVALID_ARGUMENT", "gives none", lambda n: n.entry("op", b"\x01", action={})),
    ("INVALID_ARGUMENT", "action_profile_member_id", lambda n: n.entry("op", b"\1", action={"action_profile_member_id": 1})),
    ("INVALID_ARGUMENT", "no action with id", lambda n: n.entry("op", b"\1", action=n.action("classify_as", b"\1"))),
    (
        "INVALID_ARGUMENT",
        "parameter udp_port (id 3) is missing",
        lambda n: n.entry("op", b"\1", action=n.action("forward", b"\1", b"\1")),
    ),
    ("INVALID_ARGUMENT", "no parameter with id 1", lambda n: n.entry("op", b"\1", action=n.action("reflect", b"\1"))),
    ("OUT_OF_RANGE", "parameter port", lambda n: n.entry("op", b"\1", action=n.action("forward", b"\2\0", b"\1", b"\1"))),
    ("OUT_OF_RANGE", "parameter port", lambda n: n.entry("op", b"\1", action=n.action("forward", b"", b"\1", b"\1"))),
    ("PERMISSION_DENIED", "only be the default action", lambda n: n.entry("op", b"\1", action=n.action("drop"))),
    ("PERMISSION_DENIED", "constant", lambda n: bad_match(n, "fixed", b"\x01")),
    ("INVALID_ARGUMENT", "has no key", lambda n: bad_match(n, "setting")),
    ("INVALID_ARGUMENT", "is_const", lambda n: n.entry("op", b"\1", action=n.action("reflect"), is_const=True)),
    ("INVALID_ARGUMENT", "no direct counter", lambda n: bad_match(n, "route", ROUTE_10, counter_data={})),
    (
        "INVALID_ARGUMENT",
        "negative",
        lambda n: n.entry("op", b"\1", action=n.action("reflect"), counter_data={"byte_count": -1}),
    ),
    ("UNIMPLEMENTED", "meters", lambda n: n.entry("op", b"\1", action=n.action("reflect"), meter_config={})),
    ("UNIMPLEMENTED", "idle timeouts", lambda n: n.entry("op", b"\1", action=n.action("reflect"), idle_timeout_ns=1)),
    (
        "INVALID_ARGUMENT",
        "time_since_last_hit",
        lambda n: n.entry("op", b"\1", action=n.action("reflect"), time_since_last_hit={}),
    ),
    ("INVALID_ARGUMENT", "it can only be modified", lambda n: bad_match(n, "route", is_default_action=True)),
]


@pytest.mark.parametrize(("code", "text", "build"), BAD_INSERTS)
def test_a_bad_insert_is_refused_with_its_code_and_changes_nothing(
    primary: Client, names: Names, code: str, text: str, build: Any
) -> None:
    before = primary.read(table_entry={})
    found, message = primary.write_error(update(Update.INSERT, table_entry=build(names)))
    assert (found, text in message) == (code, True), message
    assert primary.read(table_entry={}) == before


def test_a_field_or_parameter_given_twice_is_refused(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    entry.match.append(entry.match[0])
    assert primary.write_error(update(Update.INSERT, table_entry=entry))[0] == "INVALID_ARGUMENT"
    entry = names.entry("route", ROUTE_10, action=names.action("classify_as", b"\x01"))
    entry.action.action.params.append(entry.action.action.params[0])
    assert primary.write_error(update(Update.INSERT, table_entry=entry))[0] == "INVALID_ARGUMENT"


def test_missing_and_existing_entries(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    codes = primary.write_codes(
        update(Update.MODIFY, table_entry=entry),
        update(Update.DELETE, table_entry=entry),
        update(Update.INSERT, table_entry=entry),
        update(Update.INSERT, table_entry=entry),
        update(Update.UNSPECIFIED, table_entry=entry),
        update(Update.MODIFY, table_entry=names.entry("op", b"\x01", action=names.action("drop"))),
    )
    assert codes == ["NOT_FOUND", "NOT_FOUND", "OK", "ALREADY_EXISTS", "INVALID_ARGUMENT", "PERMISSION_DENIED"]


def test_a_full_table_says_so_and_the_other_updates_of_the_batch_are_done(primary: Client, names: Names) -> None:
    size = 8
    entries = [names.entry("op", bytes([n]), action=names.action("reflect")) for n in range(size + 1)]
    codes = primary.write_codes(*inserts(*entries), update(Update.DELETE, table_entry=entries[0]))
    assert codes == ["OK"] * size + ["RESOURCE_EXHAUSTED", "OK"]
    assert primary.read(table_entry=names.entry("op")) == entries[1:size]


def test_the_batch_status_counts_and_quotes_the_first_failure(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    with pytest.raises(grpc.RpcError) as refused:
        primary.write(*inserts(entry, entry))
    assert refused.value.code() == grpc.StatusCode.UNKNOWN
    assert "1 of 2 failed; first (index 1) ALREADY_EXISTS" in refused.value.details()
    first, second = details(refused.value)
    assert first == p4runtime_pb2.Error()
    assert second.message


@pytest.mark.parametrize("atomicity", ["ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"])
def test_atomic_batches_are_refused_by_name(primary: Client, names: Names, atomicity: str) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"))
    with pytest.raises(grpc.RpcError) as refused:
        primary.write(*inserts(entry), atomicity=atomicity)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert atomicity in refused.value.details()
    assert primary.read(table_entry={"table_id": names.table_id("op")}) == []


# --- default entries -------------------------------------------------------------------------------------------------


def test_the_default_entry_can_be_modified_and_reset(primary: Client, names: Names) -> None:
    changed = names.entry("setting", action=names.action("classify_as", b"\x05"), is_default_action=True, metadata=b"m")
    primary.write(update(Update.MODIFY, table_entry=changed))
    assert primary.read(table_entry=names.entry("setting", is_default_action=True)) == [changed]
    primary.write(update(Update.MODIFY, table_entry=names.entry("setting", is_default_action=True)))
    initial = names.entry("setting", action=names.action("classify_as", b"\x07"), is_default_action=True)
    assert primary.read(table_entry=names.entry("setting", is_default_action=True)) == [initial]


def test_what_a_default_entry_refuses(primary: Client, names: Names) -> None:
    reflect = {"action": names.action("reflect"), "is_default_action": True}
    for code, kind, entry in (
        ("INVALID_ARGUMENT", Update.INSERT, names.entry("op", **reflect)),
        ("INVALID_ARGUMENT", Update.DELETE, names.entry("op", **reflect)),
        ("INVALID_ARGUMENT", Update.MODIFY, names.entry("op", b"\x01", **reflect)),
        ("INVALID_ARGUMENT", Update.MODIFY, names.entry("op", priority=1, **reflect)),
        (
            "PERMISSION_DENIED",
            Update.MODIFY,
            names.entry("op", is_default_action=True, action=names.action("replicate", b"\1")),
        ),
        ("PERMISSION_DENIED", Update.MODIFY, names.entry("fixed", is_default_action=True)),
        ("UNIMPLEMENTED", Update.MODIFY, names.entry("op", counter_data={}, **reflect)),
        ("INVALID_ARGUMENT", Update.MODIFY, names.entry("route", counter_data={}, is_default_action=True)),
    ):
        assert primary.write_error(update(kind, table_entry=entry))[0] == code, entry


# --- constant tables -------------------------------------------------------------------------------------------------


def test_entries_of_a_constant_table_cannot_be_changed(primary: Client, names: Names) -> None:
    action = names.action("classify_as", b"\x01")
    for kind, entry in (
        (Update.INSERT, names.entry("fixed", b"\x01", action=action)),
        (Update.MODIFY, names.entry("fixed", b"\xff", action=action)),
        (Update.DELETE, names.entry("fixed", b"\xff")),
    ):
        assert primary.write_error(update(kind, table_entry=entry))[0] == "PERMISSION_DENIED"
    primary.write(update(Update.MODIFY, table_entry=names.entry("fixed", b"\xff")))  # no action: nothing to change


# --- counters --------------------------------------------------------------------------------------------------------


def test_direct_counters_are_set_with_the_entry_or_alone(primary: Client, names: Names) -> None:
    entry = names.entry("op", b"\x01", action=names.action("reflect"), counter_data={"packet_count": 3, "byte_count": 5})
    primary.write(*inserts(entry))
    with_counter = {"table_entry": names.entry("op", counter_data={})}
    assert primary.read(**with_counter) == [entry]
    primary.write(update(Update.MODIFY, table_entry=names.entry("op", b"\x01", action=names.action("reflect"))))
    assert primary.read(**with_counter) == [entry]  # unset in a MODIFY: not changed
    key = names.entry("op", b"\x01")
    primary.write(update(Update.MODIFY, direct_counter_entry={"table_entry": key, "data": {"packet_count": 9}}))
    primary.write(update(Update.MODIFY, direct_counter_entry={"table_entry": key}))  # without data: not changed
    (counter,) = primary.read(direct_counter_entry={"table_entry": key})
    assert (counter.data.packet_count, counter.data.byte_count) == (9, 0)
    primary.write(update(Update.MODIFY, table_entry=names.entry("op", b"\x01", counter_data={"packet_count": 1})))
    (counter,) = primary.read(direct_counter_entry={"table_entry": key})
    assert (counter.data.packet_count, counter.data.byte_count) == (1, 0)


def test_what_a_direct_counter_refuses(primary: Client, names: Names) -> None:
    primary.write(*inserts(names.entry("op", b"\x01", action=names.action("reflect"))))
    key = names.entry("op", b"\x01")
    for code, kind, counter in (
        ("INVALID_ARGUMENT", Update.INSERT, {"table_entry": key}),
        ("INVALID_ARGUMENT", Update.DELETE, {"table_entry": key}),
        ("NOT_FOUND", Update.MODIFY, {"table_entry": names.entry("op", b"\x02")}),
        ("NOT_FOUND", Update.MODIFY, {"table_entry": names.entry("op", b"\x02"), "data": {}}),
        ("INVALID_ARGUMENT", Update.MODIFY, {"table_entry": names.entry("route", ROUTE_10), "data": {}}),
        ("INVALID_ARGUMENT", Update.MODIFY, {}),
        ("INVALID_ARGUMENT", Update.MODIFY, {"table_entry": key, "data": {"packet_count": -1}}),
        ("UNIMPLEMENTED", Update.MODIFY, {"table_entry": names.entry("op", is_default_action=True), "data": {}}),
    ):
        assert primary.write_error(update(kind, direct_counter_entry=counter))[0] == code, counter


def test_indirect_counters_one_cell_or_all(primary: Client, names: Names) -> None:
    tags = names.counter_id("tags")

    def packets() -> list[int]:
        return [cell.data.packet_count for cell in primary.read(counter_entry={"counter_id": tags})]

    assert packets() == [0] * 16
    primary.write(update(Update.MODIFY, counter_entry={"counter_id": tags, "index": {"index": 3}, "data": {"packet_count": 7}}))
    primary.write(update(Update.MODIFY, counter_entry={"counter_id": tags, "index": {"index": 3}}))
    assert packets() == [0, 0, 0, 7] + [0] * 12
    primary.write(update(Update.MODIFY, counter_entry={"counter_id": tags, "data": {"packet_count": 1}}))
    assert packets() == [1] * 16


def test_what_an_indirect_counter_refuses(primary: Client, names: Names) -> None:
    tags = names.counter_id("tags")
    for code, kind, cell in (
        ("INVALID_ARGUMENT", Update.INSERT, {"counter_id": tags}),
        ("INVALID_ARGUMENT", Update.DELETE, {"counter_id": tags}),
        ("INVALID_ARGUMENT", Update.MODIFY, {}),
        ("INVALID_ARGUMENT", Update.MODIFY, {"counter_id": tags + 1}),
        ("INVALID_ARGUMENT", Update.MODIFY, {"counter_id": tags, "index": {"index": -1}}),
        ("OUT_OF_RANGE", Update.MODIFY, {"counter_id": tags, "index": {"index": 16}}),
        ("INVALID_ARGUMENT", Update.MODIFY, {"counter_id": tags, "data": {"byte_count": -1}}),
    ):
        assert primary.write_error(update(kind, counter_entry=cell))[0] == code, cell


# --- packet replication ----------------------------------------------------------------------------------------------


def group(number: int, *replicas: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"multicast_group_entry": {"multicast_group_id": number, "replicas": list(replicas), **fields}}


def session(number: int, *replicas: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"clone_session_entry": {"session_id": number, "replicas": list(replicas), **fields}}


def written(**entity: Any) -> p4runtime_pb2.PacketReplicationEngineEntry:
    return p4runtime_pb2.PacketReplicationEngineEntry(**entity)


@pytest.mark.parametrize("make", [group, session])
def test_replication_entries_read_back_as_written(primary: Client, make: Any) -> None:
    old_style = make(1, {"egress_port": 1, "instance": 1}, {"egress_port": 2, "instance": 1})
    new_style = make(2, {"port": b"\x01", "instance": 2}, {"port": b"\x02"})
    for entry in (old_style, new_style):
        primary.write(update(Update.INSERT, packet_replication_engine_entry=entry))
    assert primary.read(packet_replication_engine_entry=make(0)) == [written(**old_style), written(**new_style)]
    changed = make(1, {"egress_port": 3})
    primary.write(update(Update.MODIFY, packet_replication_engine_entry=changed))
    assert primary.read(packet_replication_engine_entry=make(1)) == [written(**changed)]
    primary.write(update(Update.DELETE, packet_replication_engine_entry=make(1)))
    assert primary.read(packet_replication_engine_entry={}) == [written(**new_style)]
    assert primary.read(packet_replication_engine_entry=make(1)) == []


def test_metadata_of_a_group_and_length_of_a_clone_read_back(primary: Client) -> None:
    entries = (group(1, {"egress_port": 1}, metadata=b"m"), session(1, {"egress_port": 1}, packet_length_bytes=64))
    for entry in entries:
        primary.write(update(Update.INSERT, packet_replication_engine_entry=entry))
    assert primary.read(packet_replication_engine_entry={}) == [written(**entry) for entry in entries]


def test_what_packet_replication_refuses(primary: Client) -> None:
    one = {"egress_port": 1}
    for make in (group, session):
        primary.write(update(Update.INSERT, packet_replication_engine_entry=make(1, one)))
    for code, kind, entry in (
        ("INVALID_ARGUMENT", Update.INSERT, {}),
        ("INVALID_ARGUMENT", Update.INSERT, group(0, one)),
        ("INVALID_ARGUMENT", Update.INSERT, group(65536, one)),
        ("INVALID_ARGUMENT", Update.INSERT, session(0, one)),
        ("INVALID_ARGUMENT", Update.INSERT, session(32768, one)),
        ("ALREADY_EXISTS", Update.INSERT, group(1, one)),
        ("ALREADY_EXISTS", Update.INSERT, session(1, one)),
        ("NOT_FOUND", Update.MODIFY, group(2, one)),
        ("NOT_FOUND", Update.MODIFY, session(2, one)),
        ("NOT_FOUND", Update.DELETE, group(2)),
        ("NOT_FOUND", Update.DELETE, session(2)),
        ("INVALID_ARGUMENT", Update.INSERT, group(2, one, one)),
        ("INVALID_ARGUMENT", Update.INSERT, group(2, {"instance": 1})),
        ("INVALID_ARGUMENT", Update.INSERT, group(2, {"egress_port": 512})),
        ("OUT_OF_RANGE", Update.INSERT, group(2, {"port": b"\x02\x00"})),
        ("INVALID_ARGUMENT", Update.INSERT, group(2, {"egress_port": 1, "instance": 65536})),
        ("UNIMPLEMENTED", Update.INSERT, session(2, one, class_of_service=1)),
        ("INVALID_ARGUMENT", Update.INSERT, session(2, one, packet_length_bytes=-1)),
    ):
        assert primary.write_error(update(kind, packet_replication_engine_entry=entry))[0] == code, entry


# --- what there is not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "entity"),
    [
        ("UNIMPLEMENTED", {"register_entry": {"register_id": 1}}),
        ("UNIMPLEMENTED", {"value_set_entry": {}}),
        ("UNIMPLEMENTED", {"extern_entry": {}}),
        ("UNIMPLEMENTED", {"digest_entry": {}}),
        ("UNIMPLEMENTED", {"meter_entry": {}}),
        ("UNIMPLEMENTED", {"direct_meter_entry": {}}),
        ("UNIMPLEMENTED", {"action_profile_member": {}}),
        ("UNIMPLEMENTED", {"action_profile_group": {}}),
        ("INVALID_ARGUMENT", {}),
    ],
)
def test_entities_that_do_not_exist_here_are_refused_by_name(primary: Client, code: str, entity: dict[str, Any]) -> None:
    assert primary.write_error(update(Update.INSERT, **entity))[0] == code
    assert update(Update.INSERT, **entity).entity.WhichOneof("entity") in (*entity, None)


def test_every_error_of_the_dataplane_has_a_code() -> None:
    errors = [kind for kind in vars(tables).values() if isinstance(kind, type) and issubclass(kind, tables.TableError)]
    assert len(errors) > 5
    assert {kind for kind, _ in ERROR_CODES} >= set(errors)
