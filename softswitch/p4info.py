"""The P4Info of a pipeline bound to the compiled program it describes.

P4Runtime speaks of ids, the dataplane of names. `bind` builds the two-way map and refuses a P4Info that does not
belong to the program, naming the first difference, because a pair that almost fits would write wrong entries.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p4.config.v1 import p4info_pb2

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.state import Counter
from switchsum.softswitch.tables import Table


class PipelineMismatch(ValueError):
    """P4Info and program do not belong together; P4Runtime answers INVALID_ARGUMENT."""


class UnsupportedP4Info(ValueError):
    """The P4Info declares objects that this switch does not have; P4Runtime answers UNIMPLEMENTED."""


_MATCH_KINDS = {
    p4info_pb2.MatchField.EXACT: "exact",
    p4info_pb2.MatchField.LPM: "lpm",
    p4info_pb2.MatchField.TERNARY: "ternary",
    p4info_pb2.MatchField.RANGE: "range",
    p4info_pb2.MatchField.OPTIONAL: "optional",
}
PRIORITY_KINDS = frozenset({"ternary", "range", "optional"})  # section "TableEntry": these need a priority

# P4Info field -> (prefix of its ids, what users call it). Section "ID Allocation for P4Info Objects".
_ID_PREFIXES = {
    "tables": (p4info_pb2.P4Ids.TABLE, "table"),
    "actions": (p4info_pb2.P4Ids.ACTION, "action"),
    "counters": (p4info_pb2.P4Ids.COUNTER, "counter"),
    "direct_counters": (p4info_pb2.P4Ids.DIRECT_COUNTER, "direct counter"),
    "registers": (p4info_pb2.P4Ids.REGISTER, "register"),
}
_UNSUPPORTED = {
    "action_profiles": "action profile",
    "meters": "meter",
    "direct_meters": "direct meter",
    "value_sets": "parser value set",
    "digests": "digest",
    "controller_packet_metadata": "controller packet header (packet-in and packet-out)",
}


@dataclass(frozen=True)
class Field:
    """One match field. `width` in bits; `position` in the dataplane's key."""

    id: int
    name: str
    match: str
    width: int
    position: int


@dataclass(frozen=True)
class Param:
    id: int
    name: str
    width: int


@dataclass(frozen=True)
class ActionView:
    """An action as one table may use it. `params` in the program's order."""

    id: int
    name: str
    params: tuple[Param, ...]
    for_entries: bool
    for_default: bool


@dataclass(frozen=True)
class TableView:
    id: int
    name: str
    table: Table
    fields: tuple[Field, ...]  # in the order of the dataplane's key
    actions: dict[int, ActionView]
    needs_priority: bool
    is_const: bool
    const_default: bool

    def field(self, field_id: int) -> Field | None:
        return next((field for field in self.fields if field.id == field_id), None)

    def action_named(self, name: str) -> ActionView:
        return next(action for action in self.actions.values() if action.name == name)


@dataclass(frozen=True)
class CounterView:
    id: int
    name: str
    counter: Counter


@dataclass(frozen=True)
class Schema:
    """Everything a P4Runtime client can address, by id."""

    tables: dict[int, TableView]
    counters: dict[int, CounterView]


def bind(p4info: p4info_pb2.P4Info, dataplane: Dataplane) -> Schema:
    """Map the P4Info's ids to the dataplane's objects.

    Raises UnsupportedP4Info or PipelineMismatch; both name the first object that does not fit.
    """
    _refuse_unsupported(p4info)
    _check_ids(p4info)
    actions = {action.preamble.id: action for action in p4info.actions}
    tables = {info.preamble.id: _bind_table(info, actions, dataplane) for info in p4info.tables}
    described = {view.name for view in tables.values()}
    for name, table in dataplane.tables.items():
        # p4c's own helper tables have no key, and a hidden table of const entries is no business of the controller.
        if name not in described and table.keys and not table.is_const:
            raise PipelineMismatch(f"table {name} of the program is missing from the P4Info")
    _check_direct_counters(p4info, tables)
    _check_registers(p4info, dataplane)
    return Schema(tables, {info.preamble.id: _bind_counter(info, dataplane) for info in p4info.counters})


def _refuse_unsupported(p4info: p4info_pb2.P4Info) -> None:
    for field, noun in _UNSUPPORTED.items():
        objects = getattr(p4info, field)
        if objects:
            raise UnsupportedP4Info(f"{noun} {objects[0].preamble.name}: the softswitch does not support these")
    for extern in p4info.externs:
        raise UnsupportedP4Info(f"extern {extern.extern_type_name}: the softswitch does not support it")


def _check_ids(p4info: p4info_pb2.P4Info) -> None:
    seen: dict[int, str] = {}
    for field, (prefix, noun) in _ID_PREFIXES.items():
        for item in getattr(p4info, field):
            number, name = item.preamble.id, item.preamble.name
            if number >> 24 != prefix:
                raise PipelineMismatch(f"{noun} {name} has id 0x{number:08x}; ids of that kind begin with 0x{prefix:02x}")
            if number in seen:
                raise PipelineMismatch(f"{noun} {name} and {seen[number]} share the id 0x{number:08x}")
            seen[number] = f"{noun} {name}"


def _bind_table(info: p4info_pb2.Table, actions: dict[int, p4info_pb2.Action], dataplane: Dataplane) -> TableView:
    name = info.preamble.name
    table = dataplane.tables.get(name)
    if table is None:
        raise PipelineMismatch(f"table {name} of the P4Info is missing from the program")
    if info.implementation_id:
        raise UnsupportedP4Info(f"table {name} uses an action profile: the softswitch does not support these")
    fields = _bind_fields(info, table)
    views = {ref.id: _bind_action(name, ref, actions, table) for ref in info.action_refs}
    for missing in sorted(set(table.actions) - {view.name for view in views.values()}):
        raise PipelineMismatch(f"table {name}: action {missing} of the program is missing from the P4Info")
    if info.has_initial_entries and not info.is_const_table:
        raise UnsupportedP4Info(f"table {name} declares `entries`: the softswitch supports `const entries` only")
    if info.is_const_table != table.is_const:
        raise PipelineMismatch(f"table {name}: is_const_table is {info.is_const_table} in the P4Info only")
    const_default = table.default is not None and table.default[2]
    if bool(info.const_default_action_id) != const_default:
        raise PipelineMismatch(f"table {name}: its default action is constant in the P4Info or the program only")
    return TableView(
        id=info.preamble.id,
        name=name,
        table=table,
        fields=fields,
        actions=views,
        needs_priority=any(field.match in PRIORITY_KINDS for field in fields),
        is_const=info.is_const_table,
        const_default=const_default,
    )


def _bind_fields(info: p4info_pb2.Table, table: Table) -> tuple[Field, ...]:
    name = info.preamble.name
    if len(info.match_fields) != len(table.keys):
        raise PipelineMismatch(
            f"table {name}: {len(info.match_fields)} match fields in the P4Info, {len(table.keys)} in the program"
        )
    described, compiled = [field.name for field in info.match_fields], [key.name for key in table.keys]
    if described != compiled and sorted(described) == sorted(compiled):
        raise PipelineMismatch(
            f"table {name}: the key is ({', '.join(described)}) in the P4Info, ({', '.join(compiled)}) in the program"
        )
    fields: list[Field] = []
    for position, (field, key) in enumerate(zip(info.match_fields, table.keys, strict=True)):
        match = _MATCH_KINDS.get(field.match_type)
        where = f"table {name}, match field {field.name}"
        if match is None:
            raise UnsupportedP4Info(f"{where}: unknown match type; exact, LPM, ternary, range and optional are")
        # p4c compiles an optional key to a ternary one.
        same_kind = key.match == match or (match, key.match) == ("optional", "ternary")
        if not same_kind or field.bitwidth != key.width:
            raise PipelineMismatch(
                f"{where}: {match} of {field.bitwidth} bits in the P4Info, {key.match} of {key.width} bits in the program"
            )
        if not field.id or any(field.id == earlier.id for earlier in fields):
            raise PipelineMismatch(f"{where}: id {field.id} is zero or used twice")
        fields.append(Field(field.id, field.name, match, field.bitwidth, position))
    return tuple(fields)


def _bind_action(table_name: str, ref: p4info_pb2.ActionRef, actions: dict[int, p4info_pb2.Action], table: Table) -> ActionView:
    action = actions.get(ref.id)
    if action is None:
        raise PipelineMismatch(f"table {table_name} refers to action 0x{ref.id:08x}, which the P4Info does not declare")
    name = action.preamble.name
    compiled = table.actions.get(name)
    if compiled is None:
        raise PipelineMismatch(f"table {table_name}: action {name} of the P4Info is missing from the program")
    params = tuple(Param(param.id, param.name, param.bitwidth) for param in action.params)
    described = tuple((param.name, param.width) for param in params)
    if described != tuple(compiled.params):
        raise PipelineMismatch(
            f"action {name}: parameters {_list(described)} in the P4Info, {_list(compiled.params)} in the program"
        )
    if len({param.id for param in params} - {0}) != len(params):
        raise PipelineMismatch(f"action {name}: a parameter id is zero or used twice")
    return ActionView(
        id=ref.id,
        name=name,
        params=params,
        for_entries=ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY,
        for_default=ref.scope != p4info_pb2.ActionRef.TABLE_ONLY,
    )


def _list(params: Iterable[tuple[str, int]]) -> str:
    return "(" + ", ".join(f"bit<{width}> {name}" for name, width in params) + ")"


def _bind_counter(info: p4info_pb2.Counter, dataplane: Dataplane) -> CounterView:
    name = info.preamble.name
    counter = dataplane.counters.get(name)
    if counter is None:
        raise PipelineMismatch(f"counter {name} of the P4Info is missing from the program")
    if counter.size != info.size:
        raise PipelineMismatch(f"counter {name}: {info.size} cells in the P4Info, {counter.size} in the program")
    return CounterView(info.preamble.id, name, counter)


def _check_direct_counters(p4info: p4info_pb2.P4Info, tables: dict[int, TableView]) -> None:
    counted = set()
    for info in p4info.direct_counters:
        view = tables.get(info.direct_table_id)
        if view is None or not view.table.direct_counter:
            raise PipelineMismatch(
                f"direct counter {info.preamble.name}: the program has none at table 0x{info.direct_table_id:08x}"
            )
        counted.add(view.id)
    for view in tables.values():
        if view.table.direct_counter and view.id not in counted:
            raise PipelineMismatch(f"table {view.name}: its direct counter is missing from the P4Info")


def _check_registers(p4info: p4info_pb2.P4Info, dataplane: Dataplane) -> None:
    for info in p4info.registers:
        register = dataplane.registers.get(info.preamble.name)
        if register is None:
            raise PipelineMismatch(f"register {info.preamble.name} of the P4Info is missing from the program")
        if register.size != info.size:
            raise PipelineMismatch(
                f"register {info.preamble.name}: {info.size} cells in the P4Info, {register.size} in the program"
            )
