"""Table entries by name on our side, P4Runtime messages by number on the switch's: the two-way map, from the program's P4Info.

All tables of the program match exactly and have no priorities, so an entry is a table, integers and an action.
Source: P4Runtime 1.4.1, sections "TableEntry", "Bytestrings", "PacketReplicationEngineEntry".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from switchsum.controller.errors import WrongProgram


@dataclass(frozen=True)
class Entry:
    """One table entry. `key` in the order of the table's fields; key () with `is_default`: the table's default action."""

    table: str
    key: tuple[int, ...]
    action: str
    params: tuple[int, ...] = ()
    is_default: bool = False

    def __str__(self) -> str:
        return f"{self.table}[{', '.join(map(str, self.key)) or 'default'}] -> {self.action}{self.params}"


@dataclass(frozen=True)
class Group:
    """One multicast group: (switch port, replication id) for each copy."""

    number: int
    replicas: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        return f"multicast group {self.number} -> {sorted(self.replicas)}"


Item = Entry | Group


class P4Names:
    """Names and numbers of one program. Every lookup raises WrongProgram naming what the P4Info does not have."""

    def __init__(self, p4info: p4info_pb2.P4Info) -> None:
        self._tables = {table.preamble.name: table for table in p4info.tables}
        self._table_names = {table.preamble.id: table.preamble.name for table in p4info.tables}
        self._actions = {action.preamble.name: action for action in p4info.actions}
        self._action_names = {action.preamble.id: action.preamble.name for action in p4info.actions}
        self._counters = {counter.preamble.name: counter.preamble.id for counter in p4info.counters}

    def table_id(self, name: str) -> int:
        return int(self._table(name).preamble.id)

    def counter_id(self, name: str) -> int:
        if name not in self._counters:
            raise WrongProgram(f"the compiled program has no counter {name}; it is not the one this controller drives")
        return int(self._counters[name])

    def require(self, table: str, fields: tuple[str, ...], actions: Iterable[str]) -> None:
        """Check that a table has these match fields, all exact, in this order, and may use these actions."""
        found = self._table(table)
        names = tuple(field.name for field in found.match_fields)
        inexact = [field.name for field in found.match_fields if field.match_type != p4info_pb2.MatchField.EXACT]
        if names != fields or inexact:
            raise WrongProgram(f"table {table} of the compiled program has the fields {names}, not {fields}, each exact")
        allowed = {self._action_names.get(reference.id) for reference in found.action_refs}
        for action in actions:
            if action not in allowed:
                raise WrongProgram(f"table {table} of the compiled program has no action {action}")

    def entity(self, item: Item) -> p4runtime_pb2.Entity:
        """The message for an entry or a group."""
        entity = p4runtime_pb2.Entity()
        if isinstance(item, Group):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            group.multicast_group_id = item.number
            for port, instance in sorted(item.replicas):
                group.replicas.add(egress_port=port, instance=instance)
            return entity
        table = self._table(item.table)
        entry = entity.table_entry
        entry.table_id = table.preamble.id
        entry.is_default_action = item.is_default
        for field, value in zip(table.match_fields, item.key, strict=not item.is_default):
            entry.match.add(field_id=field.id).exact.value = octets(value)
        action = self._actions.get(item.action)
        if action is None:
            raise WrongProgram(f"the compiled program has no action {item.action}")
        entry.action.action.action_id = action.preamble.id
        for param, value in zip(action.params, item.params, strict=True):
            entry.action.action.params.add(param_id=param.id, value=octets(value))
        return entity

    def item(self, entity: p4runtime_pb2.Entity) -> Item:
        """What a read message holds; counters in it are left out."""
        if entity.HasField("packet_replication_engine_entry"):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            return Group(group.multicast_group_id, frozenset((_port(replica), replica.instance) for replica in group.replicas))
        entry = entity.table_entry
        name, key = self.key(entry)
        action = entry.action.action
        params = {param.param_id: int.from_bytes(param.value, "big") for param in action.params}
        return Entry(
            name,
            key,
            self._action_names[action.action_id],
            tuple(value for _, value in sorted(params.items())),
            entry.is_default_action,
        )

    def key(self, entry: p4runtime_pb2.TableEntry) -> tuple[str, tuple[int, ...]]:
        """The table's name and the entry's key, in the order of the table's fields."""
        name = self._table_names[entry.table_id]
        values = {match.field_id: int.from_bytes(match.exact.value, "big") for match in entry.match}
        return name, tuple(values[field.id] for field in self._tables[name].match_fields if field.id in values)

    def _table(self, name: str) -> p4info_pb2.Table:
        if name not in self._tables:
            raise WrongProgram(f"the compiled program has no table {name}; it is not the one this controller drives")
        return self._tables[name]


def octets(value: int) -> bytes:
    """The canonical byte string: big-endian, no leading zero bytes, at least one byte."""
    return value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big")


def _port(replica: p4runtime_pb2.Replica) -> int:
    return int.from_bytes(replica.port, "big") if replica.WhichOneof("port_kind") == "port" else int(replica.egress_port)
