"""Table entries between P4Runtime messages and the dataplane: parsing with all of the standard's checks, and back.

Source: P4Runtime 1.4.1, section "TableEntry" with its parts "Match Format", "Action Specification", "Default Entry",
"Constant Tables", "Wildcard Reads" and "Direct Resources".
"""

from collections.abc import Iterator

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from switchsum.softswitch import bytestrings
from switchsum.softswitch.counter_entries import counter_data, counter_values
from switchsum.softswitch.device import Annotations, Pipeline
from switchsum.softswitch.entity_error import EntityError, denied, invalid, unimplemented
from switchsum.softswitch.p4info import ActionView, Field, TableView
from switchsum.softswitch.tables import Entry, Exact, Key, Lpm, Match, Range, Ternary


class TableEntries:
    """Reads and writes the table entries and direct counters of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._tables = pipeline.schema.tables
        self._annotations: Annotations = pipeline.annotations

    def write(self, kind: int, message: p4runtime_pb2.TableEntry) -> None:
        """Apply one update of type `kind` (Update.INSERT, MODIFY or DELETE). Raises EntityError or TableError."""
        view = self._view(message.table_id)
        if message.is_const:
            raise invalid(f"table {view.name}: is_const must be false in a write")
        if message.is_default_action:
            self._write_default(kind, view, message)
        elif kind == p4runtime_pb2.Update.DELETE:
            self._delete(view, message)
        else:
            _refuse_side_fields(view, message)
            if kind == p4runtime_pb2.Update.INSERT:
                self._insert(view, message)
            else:
                self._modify(view, message)

    def read(self, message: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.TableEntry]:
        """All entries that the request selects. Fields left at their default are wildcards."""
        if not message.table_id:
            if message.match or message.HasField("action"):
                raise invalid("a read of all tables (table_id 0) cannot be filtered by match or action; name a table")
            for view in self._tables.values():
                yield from self._read_table(view, message)
        else:
            yield from self._read_table(self._view(message.table_id), message)

    def write_direct_counter(self, kind: int, message: p4runtime_pb2.DirectCounterEntry) -> None:
        if kind != p4runtime_pb2.Update.MODIFY:
            raise invalid("direct counter entries can only be modified; they come and go with their table entry")
        view = self._counted_view(message.table_entry)
        key, priority = _parse_key(view, message.table_entry)
        if message.HasField("data"):
            packets, octets = counter_values(message.data, f"table {view.name}")
            view.table.write_counter(key, priority, packets, octets)
        else:
            self._entry(view, key, priority)  # NOT_FOUND if there is none; nothing to change otherwise

    def read_direct_counter(self, message: p4runtime_pb2.DirectCounterEntry) -> Iterator[p4runtime_pb2.DirectCounterEntry]:
        if not message.table_entry.table_id:
            for view in self._tables.values():
                if view.table.direct_counter:
                    for entry in view.table.entries():
                        yield _direct_counter(view, entry)
            return
        view = self._counted_view(message.table_entry)
        if message.table_entry.match:
            key, priority = _parse_key(view, message.table_entry)
            yield _direct_counter(view, self._entry(view, key, priority))
            return
        for entry in view.table.entries():
            if message.table_entry.priority in (0, entry.priority):
                yield _direct_counter(view, entry)

    def _view(self, table_id: int) -> TableView:
        view = self._tables.get(table_id)
        if view is None:
            raise invalid(f"table id 0x{table_id:08x} is not in the P4Info of the loaded pipeline")
        return view

    def _counted_view(self, message: p4runtime_pb2.TableEntry) -> TableView:
        view = self._view(message.table_id)
        if not view.table.direct_counter:
            raise invalid(f"table {view.name} has no direct counter")
        if message.is_default_action:
            raise unimplemented(f"table {view.name}: the default entry has no direct counter in this switch")
        return view

    def _entry(self, view: TableView, key: Key, priority: int) -> Entry:
        for entry in view.table.entries():
            if entry.key == key and (entry.priority == priority or not view.needs_priority):
                return entry
        raise EntityError(code_pb2.NOT_FOUND, f"table {view.name} has no such entry")

    def _insert(self, view: TableView, message: p4runtime_pb2.TableEntry) -> None:
        if not view.fields:
            raise invalid(f"table {view.name} has no key, so it can hold no entry; modify its default action instead")
        if view.is_const:
            raise denied(f"table {view.name} is constant: its entries were fixed when the program was compiled")
        key, priority = _parse_key(view, message)
        if not message.HasField("action"):
            raise invalid(f"table {view.name}: an inserted entry needs an action")
        action, arguments = _parse_action(view, message.action)
        if not action.for_entries:
            raise denied(f"table {view.name}: {action.name} may only be the default action")
        counts = counter_values(message.counter_data, f"table {view.name}") if message.HasField("counter_data") else None
        view.table.insert(key, priority, action.name, arguments)
        if counts is not None:
            view.table.write_counter(key, priority, *counts)
        self._annotate(view, key, priority, message)

    def _modify(self, view: TableView, message: p4runtime_pb2.TableEntry) -> None:
        key, priority = _parse_key(view, message)
        entry = self._entry(view, key, priority)
        changes_action = message.HasField("action")
        if changes_action and (view.is_const or entry.const):
            raise denied(f"table {view.name}: the entry is constant; only its counter can be modified (leave action unset)")
        counts = counter_values(message.counter_data, f"table {view.name}") if message.HasField("counter_data") else None
        if changes_action:
            action, arguments = _parse_action(view, message.action)
            if not action.for_entries:
                raise denied(f"table {view.name}: {action.name} may only be the default action")
            view.table.modify(key, priority, action.name, arguments)
        if counts is not None:
            view.table.write_counter(key, priority, *counts)
        if not entry.const:
            self._annotate(view, key, priority, message)

    def _delete(self, view: TableView, message: p4runtime_pb2.TableEntry) -> None:
        """Only table, match and priority count; anything else in the message is ignored, as the standard says."""
        if view.is_const:
            raise denied(f"table {view.name} is constant: its entries were fixed when the program was compiled")
        key, priority = _parse_key(view, message)
        view.table.delete(key, priority)
        self._annotations.entries.pop((view.id, key, priority), None)

    def _write_default(self, kind: int, view: TableView, message: p4runtime_pb2.TableEntry) -> None:
        if kind != p4runtime_pb2.Update.MODIFY:
            raise invalid(f"table {view.name}: the default entry always exists; it can only be modified")
        if message.match or message.priority:
            raise invalid(f"table {view.name}: the default entry has neither match nor priority")
        if view.const_default:
            raise denied(f"table {view.name}: its default action is constant")
        if message.HasField("counter_data"):
            if view.table.direct_counter:
                raise unimplemented(f"table {view.name}: the default entry has no direct counter in this switch")
            raise invalid(f"table {view.name} has no direct counter")
        _refuse_side_fields(view, message)
        if not message.HasField("action"):
            view.table.reset_default()
            self._annotations.entries.pop((view.id, None, 0), None)
            return
        action, arguments = _parse_action(view, message.action)
        if not action.for_default:
            raise denied(f"table {view.name}: {action.name} may not be the default action")
        view.table.set_default(action.name, arguments)
        self._annotate(view, None, 0, message)

    def _annotate(self, view: TableView, key: Key | None, priority: int, message: p4runtime_pb2.TableEntry) -> None:
        note = (message.controller_metadata, message.metadata)
        if note == (0, b""):
            self._annotations.entries.pop((view.id, key, priority), None)
        else:
            self._annotations.entries[view.id, key, priority] = note

    def _read_table(self, view: TableView, message: p4runtime_pb2.TableEntry) -> Iterator[p4runtime_pb2.TableEntry]:
        wanted = _action_filter(view, message)
        if message.is_default_action:
            if message.match or message.priority:
                raise invalid(f"table {view.name}: the default entry has neither match nor priority")
            found = self._default_entry(view)
            if wanted in (None, found.action.action.action_id) and self._noted(found, message):
                yield found
            return
        key = _parse_match(view, message) if message.match else None
        for entry in view.table.entries():
            if key is not None and entry.key != key:
                continue
            if message.priority and entry.priority != message.priority:
                continue
            action = view.action_named(entry.action)
            if wanted is not None and action.id != wanted:
                continue
            found = self._entry_message(view, entry, action, message.HasField("counter_data"))
            if self._noted(found, message):
                yield found

    @staticmethod
    def _noted(found: p4runtime_pb2.TableEntry, message: p4runtime_pb2.TableEntry) -> bool:
        return message.controller_metadata in (0, found.controller_metadata) and message.metadata in (
            b"",
            found.metadata,
        )

    def _default_entry(self, view: TableView) -> p4runtime_pb2.TableEntry:
        found = p4runtime_pb2.TableEntry(table_id=view.id, is_default_action=True, is_const=view.const_default)
        if view.table.default is not None:  # None: a miss does nothing, and the program names no action for it
            action, arguments, _ = view.table.default
            _write_action(found, view.action_named(action), arguments)
        found.controller_metadata, found.metadata = self._annotations.entries.get((view.id, None, 0), (0, b""))
        return found

    def _entry_message(self, view: TableView, entry: Entry, action: ActionView, with_counter: bool) -> p4runtime_pb2.TableEntry:
        found = _key_message(view, entry)
        found.is_const = entry.const
        _write_action(found, action, entry.params)
        note = self._annotations.entries.get((view.id, entry.key, found.priority), (0, b""))
        found.controller_metadata, found.metadata = note
        if with_counter and view.table.direct_counter:
            found.counter_data.CopyFrom(counter_data(entry.packets, entry.bytes))
        return found


def _refuse_side_fields(view: TableView, message: p4runtime_pb2.TableEntry) -> None:
    if message.HasField("counter_data") and not view.table.direct_counter:
        raise invalid(f"table {view.name} has no direct counter")
    if message.HasField("meter_config") or message.HasField("meter_counter_data"):
        raise unimplemented(f"table {view.name}: meters are not supported")
    if message.idle_timeout_ns:
        raise unimplemented(f"table {view.name}: idle timeouts are not supported")
    if message.HasField("time_since_last_hit"):
        raise invalid(f"table {view.name}: time_since_last_hit must be unset in a write")


def _parse_key(view: TableView, message: p4runtime_pb2.TableEntry) -> tuple[Key, int]:
    key = _parse_match(view, message)
    if view.needs_priority and message.priority <= 0:
        raise invalid(f"table {view.name}: priority {message.priority}; ternary, range and optional keys need one above 0")
    if not view.needs_priority and message.priority:
        raise invalid(f"table {view.name}: priority {message.priority}; exact and LPM keys have none, leave it 0")
    return key, message.priority


def _parse_match(view: TableView, message: p4runtime_pb2.TableEntry) -> Key:
    given: dict[int, p4runtime_pb2.FieldMatch] = {}
    for match in message.match:
        if view.field(match.field_id) is None:
            raise invalid(f"table {view.name} has no match field with id {match.field_id}")
        if match.field_id in given:
            raise invalid(f"table {view.name}: match field {match.field_id} is given twice")
        given[match.field_id] = match
    return tuple(_parse_field(view, field, given.get(field.id)) for field in view.fields)


def _parse_field(view: TableView, field: Field, match: p4runtime_pb2.FieldMatch | None) -> Match:
    where = f"table {view.name}, match field {field.name}"
    if match is None:
        return _dont_care(field, where)
    kind = match.WhichOneof("field_match_type")
    if kind != field.match:
        raise invalid(f"{where} is {field.match}; the entry gives {kind or 'no match at all'}")
    if field.match == "exact":
        return Exact(bytestrings.decode(match.exact.value, field.width, where))
    if field.match == "optional":
        return Ternary(bytestrings.decode(match.optional.value, field.width, where), _ones(field))
    if field.match == "lpm":
        return _parse_lpm(field, match.lpm, where)
    if field.match == "ternary":
        return _parse_ternary(field, match.ternary, where)
    return _parse_range(field, match.range, where)


def _parse_lpm(field: Field, lpm: p4runtime_pb2.FieldMatch.LPM, where: str) -> Lpm:
    value = bytestrings.decode(lpm.value, field.width, where)
    if not 0 < lpm.prefix_len <= field.width:
        raise invalid(f"{where}: prefix length {lpm.prefix_len}; 1 to {field.width}, or leave the field out for any value")
    if value & ((1 << (field.width - lpm.prefix_len)) - 1):
        raise invalid(f"{where}: the value has bits below its prefix of {lpm.prefix_len}; set them to zero")
    return Lpm(value, lpm.prefix_len)


def _parse_ternary(field: Field, ternary: p4runtime_pb2.FieldMatch.Ternary, where: str) -> Ternary:
    value = bytestrings.decode(ternary.value, field.width, where)
    mask = bytestrings.decode(ternary.mask, field.width, f"{where} (mask)")
    if not mask:
        raise invalid(f"{where}: the mask is zero; leave the field out for any value")
    if value & ~mask:
        raise invalid(f"{where}: the value has bits outside its mask; set them to zero")
    return Ternary(value, mask)


def _parse_range(field: Field, limits: p4runtime_pb2.FieldMatch.Range, where: str) -> Range:
    low = bytestrings.decode(limits.low, field.width, f"{where} (low)")
    high = bytestrings.decode(limits.high, field.width, f"{where} (high)")
    if low > high:
        raise invalid(f"{where}: low {low} is above high {high}")
    if (low, high) == (0, _ones(field)):
        raise invalid(f"{where}: the range holds every value; leave the field out")
    return Range(low, high)


def _dont_care(field: Field, where: str) -> Match:
    if field.match == "exact":
        raise invalid(f"{where} is exact and cannot be left out")
    if field.match == "lpm":
        return Lpm(0, 0)
    if field.match == "range":
        return Range(0, _ones(field))
    return Ternary(0, 0)  # ternary, and optional left out


def _ones(field: Field) -> int:
    return (1 << field.width) - 1


def _parse_action(view: TableView, message: p4runtime_pb2.TableAction) -> tuple[ActionView, tuple[int, ...]]:
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {view.name} is direct and needs an action; the entry gives {kind or 'none'}")
    action = view.actions.get(message.action.action_id)
    if action is None:
        raise invalid(f"table {view.name} has no action with id 0x{message.action.action_id:08x}")
    given = {param.param_id: param.value for param in message.action.params}
    if len(given) != len(message.action.params):
        raise invalid(f"action {action.name}: a parameter is given twice")
    for unknown in given.keys() - {param.id for param in action.params}:
        raise invalid(f"action {action.name} has no parameter with id {unknown}")
    for param in action.params:
        if param.id not in given:
            raise invalid(f"action {action.name}: parameter {param.name} (id {param.id}) is missing")
    return action, tuple(
        bytestrings.decode(given[param.id], param.width, f"action {action.name}, parameter {param.name}")
        for param in action.params
    )


def _action_filter(view: TableView, message: p4runtime_pb2.TableEntry) -> int | None:
    if not message.HasField("action"):
        return None
    if message.action.WhichOneof("type") != "action":
        raise invalid(f"table {view.name} is direct; only an action id can filter its entries")
    if message.action.action.params:
        raise invalid(f"table {view.name}: entries cannot be filtered by action parameters, only by the action's id")
    action_id: int = message.action.action.action_id
    if action_id not in view.actions:
        raise invalid(f"table {view.name} has no action with id 0x{action_id:08x}")
    return action_id


def _write_action(found: p4runtime_pb2.TableEntry, action: ActionView, arguments: tuple[int, ...]) -> None:
    found.action.action.action_id = action.id
    for param, value in zip(action.params, arguments, strict=True):
        found.action.action.params.add(param_id=param.id, value=bytestrings.encode(value))


def _key_message(view: TableView, entry: Entry) -> p4runtime_pb2.TableEntry:
    """table_id, match (don't-care fields left out) and priority."""
    found = p4runtime_pb2.TableEntry(table_id=view.id, priority=entry.priority if view.needs_priority else 0)
    for field in view.fields:
        part = entry.key[field.position]
        if field.match != "exact" and part == _dont_care(field, field.name):
            continue
        match = found.match.add(field_id=field.id)
        if isinstance(part, Exact):
            match.exact.value = bytestrings.encode(part.value)
        elif isinstance(part, Lpm):
            match.lpm.value = bytestrings.encode(part.value)
            match.lpm.prefix_len = part.prefix
        elif isinstance(part, Range):
            match.range.low, match.range.high = bytestrings.encode(part.lo), bytestrings.encode(part.hi)
        elif field.match == "optional":
            match.optional.value = bytestrings.encode(part.value)
        else:
            match.ternary.value, match.ternary.mask = bytestrings.encode(part.value), bytestrings.encode(part.mask)
    return found


def _direct_counter(view: TableView, entry: Entry) -> p4runtime_pb2.DirectCounterEntry:
    return p4runtime_pb2.DirectCounterEntry(
        table_entry=_key_message(view, entry), data=counter_data(entry.packets, entry.bytes)
    )
