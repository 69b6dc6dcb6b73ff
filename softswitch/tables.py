"""Match-action tables: their entries, the control operations on them, and the arrays that native lookups read.

Entry i occupies row i of `keys`, `masks` (not for exact tables), `data` and `counters`. Free rows are kept in a list.
Exact tables find rows through a hash with open addressing, all others through `order`, rows sorted best first: by priority (the
higher wins), for tables with only lpm and exact keys by prefix length; among equals, the entry inserted first.

Callers hold the dataplane's lock, so native code never sees a change half done.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.softswitch.layout import TABLE_WORDS, ContextMap, EntryLayout, Slot, container_bits, entry_layout
from switchsum.softswitch.lookups import DELETED, EMPTY, HASH_FACTOR, HASH_START
from switchsum.softswitch.program import ConstEntry, Program, TableDecl
from switchsum.softswitch.state import Counter
from switchsum.softswitch.table_errors import BadEntry, ConstTable, EntryExists, NoSuchEntry, TableError, TableFull

WORD = (1 << 64) - 1
FIRST_CAPACITY = 16


@dataclass(frozen=True)
class Exact:
    value: int


@dataclass(frozen=True)
class Lpm:
    value: int
    prefix: int


@dataclass(frozen=True)
class Ternary:
    """For ternary and optional keys (an optional key has a mask of all ones, or none)."""

    value: int
    mask: int


@dataclass(frozen=True)
class Range:
    lo: int
    hi: int


Match = Exact | Lpm | Ternary | Range
Key = tuple[Match, ...]


@dataclass(frozen=True)
class KeyField:
    name: str
    match: str
    width: int


@dataclass(frozen=True)
class ActionInfo:
    name: str
    params: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Entry:
    key: Key
    priority: int
    action: str
    params: tuple[int, ...]
    packets: int
    bytes: int
    const: bool


@dataclass
class _Row:
    """What the control plane said about an entry, beside what the arrays hold."""

    key: Key
    priority: int
    action: int
    params: tuple[int, ...]
    const: bool
    serial: int


class Table:
    """One table of a running program."""

    def __init__(
        self, program: Program, declaration: TableDecl, context: npt.NDArray[np.int64], words: ContextMap, lock: threading.RLock
    ) -> None:
        self._program = program
        self._declaration = declaration
        self._layout: EntryLayout = entry_layout(program, declaration.name)
        self._context = context
        self._words = {word: words[f"table:{declaration.name}:{word}"] for word in TABLE_WORDS}
        self._lock = lock
        self.name = declaration.name
        self.keys = tuple(KeyField(k.name, k.match, k.width) for k in declaration.keys)
        self._actions = {program.actions[a].name: a for a in self._layout.param_slots}
        callable_actions = {program.actions[a].name: a for a in declaration.actions}
        self.actions = {name: ActionInfo(name, program.actions[a].params) for name, a in callable_actions.items()}
        self.max_size = declaration.max_size
        self.has_priority = declaration.match == "ternary"
        self.is_const = declaration.has_const_entries
        self.direct_counter = declaration.with_counters
        self._exact = declaration.match == "exact"
        self.reset()

    # --- state

    def reset(self) -> None:
        """Back to what the program declares: const entries, initial default action, counters at zero."""
        with self._lock:
            self._rows: dict[int, _Row] = {}
            self._by_key: dict[tuple[Key, int], int] = {}
            self._free: list[int] = []
            self._serial = 0
            self._allocate(FIRST_CAPACITY)
            self._slots: npt.NDArray[np.int32] = np.full(2 * FIRST_CAPACITY, EMPTY, np.int32)
            self._deleted = 0
            self._order: npt.NDArray[np.int32] = np.zeros(FIRST_CAPACITY, np.int32)
            self._ranks: list[tuple[int, int]] = []
            self._default_data: npt.NDArray[np.uint8] = np.zeros(self._layout.data_bytes, np.uint8)
            self._default: tuple[int, tuple[int, ...]] | None = None
            declared = self._declaration.default
            self._set_default(None if declared is None else (declared.action, declared.params))
            self._publish()
            for entry in self._declaration.entries:
                self._insert_const(entry)

    def _allocate(self, capacity: int) -> None:
        """Arrays for `capacity` entries, keeping what is there."""
        words = self._layout.key_bytes // 8
        old = len(self._keys) if self._rows else 0

        def grown(name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
            array = np.zeros(shape, dtype)
            if old:
                array[:old] = getattr(self, name)
            return array

        self._keys: npt.NDArray[np.uint64] = grown("_keys", (capacity, words), np.uint64)
        self._masks: npt.NDArray[np.uint64] = grown("_masks", (capacity, words), np.uint64)
        self._data: npt.NDArray[np.uint8] = grown("_data", (capacity, self._layout.data_bytes), np.uint8)
        self._counters: npt.NDArray[np.uint64] = grown("_counters", (capacity, 2), np.uint64)
        self._free = [*range(capacity - 1, old - 1, -1), *self._free]

    def _publish(self) -> None:
        """Tell native code where everything is."""
        values = {
            "count": len(self._ranks),
            "slot_mask": len(self._slots) - 1,
            "slots": self._slots.ctypes.data,
            "order": self._order.ctypes.data,
            "keys": self._keys.ctypes.data,
            "masks": self._masks.ctypes.data,
            "data": self._data.ctypes.data,
            "counters": self._counters.ctypes.data,
            "default_data": self._default_data.ctypes.data,
        }
        for word, value in values.items():
            self._context[self._words[word]] = value

    # --- checking

    def _where(self) -> str:
        return f"table {self.name!r}"

    def _check_key(self, key: Key) -> None:
        if len(key) != len(self.keys):
            raise BadEntry(f"{self._where()}: {len(key)} match fields given, the key has {len(self.keys)}")
        kinds = {"exact": Exact, "lpm": Lpm, "ternary": Ternary, "optional": Ternary, "range": Range}
        for match, field in zip(key, self.keys, strict=True):
            where = f"{self._where()}, key {field.name!r}"
            if not isinstance(match, kinds[field.match]):
                raise BadEntry(f"{where}: {type(match).__name__} given, the key is {field.match}")
            limit = 1 << field.width
            numbers = (match.lo, match.hi) if isinstance(match, Range) else (match.value,)
            if isinstance(match, Ternary):
                numbers = (match.value, match.mask)
            if any(not 0 <= n < limit for n in numbers):
                raise BadEntry(f"{where}: {match} does not fit {field.width} bits")
            if isinstance(match, Lpm) and not 0 <= match.prefix <= field.width:
                raise BadEntry(f"{where}: a prefix of {match.prefix} bits of {field.width}")
            if isinstance(match, Lpm) and match.value & ~prefix_mask(match.prefix, field.width) & (limit - 1):
                raise BadEntry(f"{where}: {match} has bits set behind its prefix; clear them")
            if isinstance(match, Ternary) and match.value & ~match.mask:
                raise BadEntry(f"{where}: {match} has bits set that its mask excludes; clear them")
            if field.match == "optional" and isinstance(match, Ternary) and match.mask not in (0, limit - 1):
                raise BadEntry(f"{where}: an optional key is matched whole or not at all, not with mask {match.mask:#x}")
            if isinstance(match, Range) and match.lo > match.hi:
                raise BadEntry(f"{where}: {match} is empty")

    def _check_action(self, action: str, params: Sequence[int], default: bool = False) -> int:
        known = self._actions if default else self.actions
        if action not in known:
            raise BadEntry(f"{self._where()}: action {action!r} is not one of {', '.join(sorted(known)) or 'none'}")
        number = self._actions[action]
        declared = self._program.actions[number].params
        if len(params) != len(declared):
            raise BadEntry(f"{self._where()}: {len(params)} parameters given, action {action!r} has {len(declared)}")
        for value, (name, width) in zip(params, declared, strict=True):
            if not 0 <= value < 1 << width:
                raise BadEntry(f"{self._where()}, action {action!r}: {name}={value} does not fit {width} bits")
        return number

    def _check_priority(self, priority: int) -> None:
        if self.has_priority and not 1 <= priority < 1 << 31:
            raise BadEntry(
                f"{self._where()}: priority {priority}; a table with ternary, range or optional keys needs 1 or more"
            )
        if not self.has_priority and priority != 0:
            raise BadEntry(f"{self._where()}: priority {priority}; a table with only exact and lpm keys takes 0")

    def _find(self, key: Key, priority: int) -> int:
        self._check_key(key)
        self._check_priority(priority)
        row = self._by_key.get((key, priority))
        if row is None:
            raise NoSuchEntry(f"{self._where()}: no entry {self._describe(key, priority)}")
        return row

    def _describe(self, key: Key, priority: int) -> str:
        text = ", ".join(f"{f.name}={m}" for f, m in zip(self.keys, key, strict=True))
        return f"({text})" + (f" with priority {priority}" if self.has_priority else "")

    # --- packing

    def _pack(self, key: Key) -> tuple[list[int], list[int]]:
        """Words of the value (or low end) and of the mask (or high end)."""
        low = high = 0
        for match, declared, offset in zip(key, self._declaration.keys, self._layout.key_offsets, strict=True):
            width = declared.width
            full = (1 << container_bits(width)) - 1
            static = full if declared.mask is None else declared.mask
            match match:
                case Exact(value):
                    first, second = value & static, full
                case Lpm(value, prefix):
                    first, second = value & static, prefix_mask(prefix, width)
                case Ternary(value, mask):
                    first, second = value & static, mask
                case Range(lo, hi):
                    first, second = lo, hi
            low |= first << 8 * offset
            high |= second << 8 * offset
        count = self._layout.key_bytes // 8
        return ([low >> 64 * i & WORD for i in range(count)], [high >> 64 * i & WORD for i in range(count)])

    def _write_data(self, row: npt.NDArray[np.uint8], action: int, params: Sequence[int]) -> None:
        row[:] = 0
        row[:4] = np.frombuffer(np.int32(action).tobytes(), np.uint8)
        slots: tuple[Slot, ...] = self._layout.param_slots[action]
        for value, slot in zip(params, slots, strict=True):
            size = slot.container // 8
            row[slot.offset : slot.offset + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    # --- hash and order

    @staticmethod
    def _hash(words: Sequence[int]) -> int:
        state = HASH_START
        for word in words:
            state = (state ^ word) * HASH_FACTOR & WORD
            state ^= state >> 32
        return state

    def _link(self, row: int) -> None:
        if self._exact:
            if 2 * (len(self._rows) + self._deleted + 1) > len(self._slots):
                self._rehash()
                return
            self._place(row)
            return
        entry = self._rows[row]
        rank = (-self._rank(entry), entry.serial)
        position = bisect_left(self._ranks, rank)
        count = len(self._ranks)
        if count == len(self._order):
            self._order = np.concatenate([self._order, np.zeros(count, np.int32)])
        self._order[position + 1 : count + 1] = self._order[position:count].copy()
        self._order[position] = row
        self._ranks.insert(position, rank)

    def _place(self, row: int) -> None:
        mask = len(self._slots) - 1
        index = self._hash([int(w) for w in self._keys[row]]) & mask
        while self._slots[index] >= 0:
            index = (index + 1) & mask
        if self._slots[index] == DELETED:
            self._deleted -= 1
        self._slots[index] = row

    def _rehash(self) -> None:
        size = len(self._slots)
        while 4 * len(self._rows) > size:
            size *= 2
        self._slots = np.full(size, EMPTY, np.int32)
        self._deleted = 0
        for row in self._rows:
            self._place(row)

    def _unlink(self, row: int) -> None:
        if self._exact:
            mask = len(self._slots) - 1
            index = self._hash([int(w) for w in self._keys[row]]) & mask
            while self._slots[index] != row:
                index = (index + 1) & mask
            self._slots[index] = DELETED
            self._deleted += 1
            return
        entry = self._rows[row]
        position = bisect_left(self._ranks, (-self._rank(entry), entry.serial))
        count = len(self._ranks)
        self._order[position : count - 1] = self._order[position + 1 : count].copy()
        del self._ranks[position]

    def _rank(self, entry: _Row) -> int:
        if self.has_priority:
            return entry.priority
        return sum(match.prefix for match in entry.key if isinstance(match, Lpm))

    # --- control operations

    def insert(self, key: Key, priority: int, action: str, params: Sequence[int]) -> None:
        """Add an entry. Raises EntryExists, TableFull, ConstTable or BadEntry; then nothing has changed."""
        with self._lock:
            self._refuse_const()
            self._insert(key, priority, action, params, const=False)

    def _refuse_const(self) -> None:
        if self.is_const:
            raise ConstTable(f"{self._where()}: its entries are const in the program")
        if not self.keys:
            raise BadEntry(f"{self._where()}: it has no key; only its default action can be set")

    def _insert(self, key: Key, priority: int, action: str, params: Sequence[int], const: bool) -> None:
        self._check_key(key)
        if not const:
            self._check_priority(priority)
        number = self._check_action(action, params)
        if (key, priority) in self._by_key:
            raise EntryExists(f"{self._where()}: there is an entry {self._describe(key, priority)} already")
        if len(self._rows) >= self.max_size and not const:
            raise TableFull(f"{self._where()}: it was declared for {self.max_size} entries and has them all")
        if not self._free:
            self._allocate(2 * len(self._keys))
        row = self._free.pop()
        self._serial += 1
        self._rows[row] = _Row(key, priority, number, tuple(params), const, self._serial)
        self._by_key[key, priority] = row
        self._keys[row], self._masks[row] = self._pack(key)
        self._counters[row] = 0
        self._write_data(self._data[row], number, params)
        self._link(row)
        self._publish()

    def _insert_const(self, entry: ConstEntry) -> None:
        key: list[Match] = []
        for kind, *numbers in entry.match:
            match kind:
                case "exact":
                    key.append(Exact(*numbers))
                case "lpm":
                    key.append(Lpm(*numbers))
                case "ternary":
                    value, mask = numbers
                    key.append(Ternary(value & mask, mask))
                case _:
                    key.append(Range(*numbers))
        priority = entry.priority if self.has_priority else 0
        self._insert(tuple(key), priority, self._program.actions[entry.action].name, entry.params, const=True)

    def modify(self, key: Key, priority: int, action: str, params: Sequence[int]) -> None:
        """Give an entry another action; its counter goes on. Raises NoSuchEntry, ConstTable or BadEntry."""
        with self._lock:
            self._refuse_const()
            row = self._find(key, priority)
            number = self._check_action(action, params)
            self._rows[row].action, self._rows[row].params = number, tuple(params)
            self._write_data(self._data[row], number, params)

    def delete(self, key: Key, priority: int) -> None:
        """Remove an entry. Raises NoSuchEntry, ConstTable or BadEntry."""
        with self._lock:
            self._refuse_const()
            row = self._find(key, priority)
            self._unlink(row)
            del self._rows[row]
            del self._by_key[key, priority]
            self._free.append(row)
            self._publish()

    def entries(self) -> list[Entry]:
        """All entries in the order they were inserted."""
        with self._lock:
            return [
                Entry(
                    row.key,
                    row.priority,
                    self._program.actions[row.action].name,
                    row.params,
                    int(self._counters[number, 0]),
                    int(self._counters[number, 1]),
                    row.const,
                )
                for number, row in sorted(self._rows.items(), key=lambda item: item[1].serial)
            ]

    def read_counter(self, key: Key, priority: int) -> tuple[int, int]:
        """(packets, bytes) of an entry's direct counter. Raises NoSuchEntry, or BadEntry if the table has no counter."""
        with self._lock:
            self._refuse_counterless()
            row = self._find(key, priority)
            return int(self._counters[row, 0]), int(self._counters[row, 1])

    def write_counter(self, key: Key, priority: int, packets: int, bytes: int) -> None:
        with self._lock:
            self._refuse_counterless()
            row = self._find(key, priority)
            self._counters[row] = (packets & WORD, bytes & WORD)

    def _refuse_counterless(self) -> None:
        if not self.direct_counter:
            raise BadEntry(f"{self._where()}: it has no direct counter")

    # --- default action

    @property
    def default(self) -> tuple[str, tuple[int, ...], bool] | None:
        """(action, parameters, const), or None if a miss does nothing."""
        declared = self._declaration.default
        if self._default is None:
            return None
        number, params = self._default
        return self._program.actions[number].name, params, declared is not None and declared.const

    def set_default(self, action: str, params: Sequence[int]) -> None:
        """Set the default action. Raises ConstTable or BadEntry."""
        with self._lock:
            self._refuse_const_default()
            self._set_default((self._check_action(action, params, default=True), tuple(params)))

    def reset_default(self) -> None:
        """The default action of the program's text. Raises ConstTable."""
        with self._lock:
            self._refuse_const_default()
            declared = self._declaration.default
            self._set_default(None if declared is None else (declared.action, declared.params))

    def _refuse_const_default(self) -> None:
        declared = self._declaration.default
        if declared is not None and declared.const:
            raise ConstTable(f"{self._where()}: its default action is const in the program")

    def _set_default(self, default: tuple[int, tuple[int, ...]] | None) -> None:
        self._default = default
        if default is None:
            self._default_data[:] = 0
            self._default_data[:4] = 0xFF  # action -1: none
        else:
            self._write_data(self._default_data, *default)


def prefix_mask(prefix: int, width: int) -> int:
    """`prefix` ones at the top of `width` bits."""
    return (1 << width) - (1 << (width - prefix))


__all__ = [
    "ActionInfo",
    "BadEntry",
    "ConstTable",
    "Counter",
    "Entry",
    "EntryExists",
    "Exact",
    "Key",
    "KeyField",
    "Lpm",
    "Match",
    "NoSuchEntry",
    "Range",
    "Table",
    "TableError",
    "TableFull",
    "Ternary",
    "prefix_mask",
]
