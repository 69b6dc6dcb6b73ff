"""Tables against a model that looks at every entry, and the control operations' rules. Program: programs/matching.p4."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.tables import (
    BadEntry,
    ConstTable,
    EntryExists,
    Exact,
    Lpm,
    Match,
    NoSuchEntry,
    Range,
    Table,
    TableError,
    TableFull,
    Ternary,
    prefix_mask,
)
from tests.softswitch.conftest import compiled

Switch = Callable[..., Dataplane]
MISS = {"exact": 0, "lpm": 0xDDDD, "ternary": 0, "range": 0, "optional": 0}
WHICH = {"exact": 0, "lpm": 1, "ternary": 2, "range": 3, "optional": 4}
ACTION = {"exact": "counted", "lpm": "set", "ternary": "counted_ternary", "range": "set", "optional": "set"}


def frame(which: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> bytes:
    return struct.pack(">BIH", which, a, b << 4 | c) + d.to_bytes(6, "big")


def look_up(dataplane: Dataplane, which: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> tuple[int, int, int]:
    """(value that the entry's action set, 1 hit or 2 miss where the program says so, path)"""
    [(port, data)] = dataplane.process(3, frame(which, a, b, c, d))
    assert port == 1
    value, hit, path = struct.unpack(">HBB", data)
    return value, hit, path


def action(name: str) -> str:
    return f"I.{name}"


def table(dataplane: Dataplane, name: str) -> Table:
    return dataplane.tables[f"I.{name}"]


# --- the model


@dataclass
class Known:
    key: tuple[Match, ...]
    priority: int
    value: int
    serial: int


def covers(match: Match, value: int, width: int) -> bool:
    if isinstance(match, Exact):
        return value == match.value
    if isinstance(match, Lpm):
        return value & prefix_mask(match.prefix, width) == match.value
    if isinstance(match, Ternary):
        return value & match.mask == match.value
    return match.lo <= value <= match.hi


def rank(entry: Known) -> tuple[int, int]:
    prefix = sum(m.prefix for m in entry.key if isinstance(m, Lpm))
    return (-max(entry.priority, prefix), entry.serial)


def model(entries: list[Known], values: tuple[int, ...], widths: tuple[int, ...], miss: int) -> int:
    for entry in sorted(entries, key=rank):
        if all(covers(m, v, w) for m, v, w in zip(entry.key, values, widths, strict=True)):
            return entry.value
    return miss


KEYS = {  # letters of the key header's fields, in the table's order
    "exact": ("a", "b", "d"),
    "lpm": ("a", "c"),
    "ternary": ("a", "d", "c"),
    "range": ("b", "a"),
    "optional": ("b", "c"),
}
WIDTHS = {"a": 32, "b": 12, "c": 4, "d": 48}
# Few values, so that entries overlap and packets hit.
VALUES = {
    "a": st.sampled_from([0, 0x0A000000, 0x0A000001, 0x0A0B0000, 0xFFFFFFFF, 0x80000000]),
    "b": st.sampled_from([0, 1, 5, 0x7FF, 0x800, 0xFFF]),
    "c": st.sampled_from([0, 1, 15]),
    "d": st.sampled_from([0, 1, 0xFFFF00000000, 0xFFFFFFFFFFFF]),
}


def match_strategy(kind: str, letter: str) -> st.SearchStrategy[Match]:
    width = WIDTHS[letter]
    full = (1 << width) - 1
    exact: st.SearchStrategy[Match] = VALUES[letter].map(Exact)
    if kind == "exact":
        return exact
    if kind == "lpm":
        return (
            exact
            if letter == "c"
            else st.builds(
                lambda v, p: Lpm(v & prefix_mask(p, width), p), VALUES[letter], st.sampled_from([0, 1, 8, 16, 31, 32])
            )
        )
    masks = st.sampled_from([0, full, full & ~0xF, 1, full << (width // 2) & full])
    if kind == "optional":
        masks = st.sampled_from([0, full])
    ternary: st.SearchStrategy[Match] = st.builds(lambda v, m: Ternary(v & m, m), VALUES[letter], masks)
    if kind == "ternary":
        return exact if letter == "c" else ternary
    if kind == "range" and letter == "b":
        return st.builds(lambda x, y: Range(min(x, y), max(x, y)), VALUES[letter], VALUES[letter])
    return ternary


def scenario(kind: str) -> st.SearchStrategy[list[tuple[str, tuple[Match, ...], int, int]]]:
    key = st.tuples(*(match_strategy(kind, letter) for letter in KEYS[kind]))
    priority = st.just(0) if kind in ("exact", "lpm") else st.integers(1, 3)
    operation = st.sampled_from(["insert", "insert", "insert", "modify", "delete"])
    return st.lists(st.tuples(operation, key, priority, st.integers(1, 0xFFFF)), max_size=40)


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_lookups_equal_the_model_after_any_operations(kind: str) -> None:
    """Whatever was inserted, modified and deleted, and whatever packet comes: the best entry's action runs."""
    dataplane = Dataplane(compiled("matching"))
    target = table(dataplane, f"{kind}_table")
    letters = KEYS[kind]
    packets = st.lists(st.tuples(*(VALUES[letter] for letter in letters)), min_size=5, max_size=25)

    @settings(max_examples=60, deadline=None)
    @given(scenario(kind), packets)
    def check(operations: list[tuple[str, tuple[Match, ...], int, int]], probes: list[tuple[int, ...]]) -> None:
        dataplane.reset_state()
        known: dict[tuple[tuple[Match, ...], int], Known] = {}
        for serial, (operation, key, priority, value) in enumerate(operations):
            there = (key, priority) in known
            expected: type[TableError] | None = None
            if operation == "insert":
                expected = EntryExists if there else TableFull if len(known) >= target.max_size else None
            elif not there:
                expected = NoSuchEntry
            arguments = (key, priority) if operation == "delete" else (key, priority, action(ACTION[kind]), (value,))
            if expected is not None:
                with pytest.raises(expected):
                    getattr(target, operation)(*arguments)
                continue
            getattr(target, operation)(*arguments)
            if operation == "insert":
                known[key, priority] = Known(key, priority, value, serial)
            elif operation == "modify":
                known[key, priority].value = value
            else:
                del known[key, priority]
        assert [(e.key, e.priority, e.params[0]) for e in target.entries()] == [
            (e.key, e.priority, e.value) for e in sorted(known.values(), key=lambda e: e.serial)
        ]
        widths = tuple(WIDTHS[letter] for letter in letters)
        for probe in probes:
            fields = dict(zip(letters, probe, strict=True))
            value, _, _ = look_up(dataplane, WHICH[kind], **fields)
            assert value == model(list(known.values()), probe, widths, MISS[kind])

    check()


def test_a_table_grows_to_its_declared_size_and_shrinks_again(switch: Switch) -> None:
    dataplane = switch("matching")
    target = table(dataplane, "exact_table")
    for n in range(64):
        target.insert((Exact(n * 0x01010101 & 0xFFFFFFFF), Exact(n), Exact(n << 40)), 0, action("counted"), (n + 1,))
    with pytest.raises(TableFull, match="declared for 64"):
        target.insert((Exact(1), Exact(1), Exact(1)), 0, action("counted"), (1,))
    for n in range(64):
        assert look_up(dataplane, 0, n * 0x01010101 & 0xFFFFFFFF, n, 0, n << 40) == (n + 1, 1, 0)
    for n in range(0, 64, 2):
        target.delete((Exact(n * 0x01010101 & 0xFFFFFFFF), Exact(n), Exact(n << 40)), 0)
    for n in range(64):
        expected = (n + 1, 1, 0) if n % 2 else (0, 2, 0)
        assert look_up(dataplane, 0, n * 0x01010101 & 0xFFFFFFFF, n, 0, n << 40) == expected


def test_many_deletions_leave_room_for_new_entries(switch: Switch) -> None:
    """Deleted hash slots are reused; a probe that never ended would hang here."""
    dataplane = switch("matching")
    target = table(dataplane, "exact_table")
    for n in range(3000):
        target.insert((Exact(n), Exact(n & 0xFFF), Exact(0)), 0, action("counted"), (7,))
        assert look_up(dataplane, 0, n, n & 0xFFF)[0] == 7
        target.delete((Exact(n), Exact(n & 0xFFF), Exact(0)), 0)
    assert look_up(dataplane, 0, 5, 5) == (0, 2, 0)


# --- hit, miss, switch, exit, defaults


def test_hit_and_miss_choose_the_branch(switch: Switch) -> None:
    dataplane = switch("matching")
    table(dataplane, "exact_table").insert((Exact(1), Exact(2), Exact(3)), 0, action("counted"), (9,))
    assert look_up(dataplane, 0, 1, 2, 0, 3) == (9, 1, 0)
    assert look_up(dataplane, 0, 1, 2, 0, 4) == (0, 2, 0)
    assert look_up(dataplane, 1) == (0xDDDD, 2, 0)
    table(dataplane, "lpm_table").insert((Lpm(0, 0), Exact(0)), 0, action("set"), (5,))
    assert look_up(dataplane, 1) == (5, 0, 0)


def test_the_action_that_ran_chooses_the_branch(switch: Switch) -> None:
    dataplane = switch("matching")
    assert look_up(dataplane, 2) == (0, 0, 2)  # the default action counts as one that ran
    target = table(dataplane, "ternary_table")
    target.insert((Ternary(0, 0), Ternary(0, 0), Exact(1)), 1, action("counted_ternary"), (3,))
    assert look_up(dataplane, 2, c=1) == (3, 0, 1)


def test_exit_ends_the_pipeline(switch: Switch) -> None:
    """Entry 2 leaves before path is set; the other entries and the default do not."""
    dataplane = switch("matching")
    assert [look_up(dataplane, 5, c=c) for c in (1, 2, 3, 4)] == [
        (0x1111, 0, 7), (0x2222, 0, 0), (0, 0, 7), (0xEEEE, 0, 7)
    ]  # fmt: skip


def test_constant_entries_match_in_the_order_of_the_text(switch: Switch) -> None:
    dataplane = switch("matching")
    for a, expected in ((0x0A0B0001, 1), (0x0B000001, 3), (0x0B000000, 4)):
        assert look_up(dataplane, 6, a)[0] == expected
    entries = table(dataplane, "const_ternary").entries()
    assert [e.params[0] for e in sorted(entries, key=lambda e: -e.priority)] == [1, 2, 3, 4]
    assert all(e.const for e in entries)


def test_default_actions_can_be_set_and_reset(switch: Switch) -> None:
    dataplane = switch("matching")
    target = table(dataplane, "lpm_table")
    assert target.default == (action("set"), (0xDDDD,), False)
    target.set_default(action("nothing"), ())
    assert look_up(dataplane, 1)[0] == 0
    target.set_default(action("set"), (77,))
    assert look_up(dataplane, 1)[0] == 77
    target.reset_default()
    assert look_up(dataplane, 1)[0] == 0xDDDD
    with pytest.raises(ConstTable, match="const"):
        table(dataplane, "ternary_table").set_default(action("nothing"), ())


# --- counters


def test_direct_counters_count_hits_in_packets_and_bytes(switch: Switch) -> None:
    dataplane = switch("matching")
    target = table(dataplane, "exact_table")
    key = (Exact(1), Exact(2), Exact(3))
    target.insert(key, 0, action("counted"), (9,))
    size = len(frame(0))
    for _ in range(3):
        look_up(dataplane, 0, 1, 2, 0, 3)
    look_up(dataplane, 0, 1, 2, 0, 4)
    assert target.read_counter(key, 0) == (3, 3 * size)
    target.modify(key, 0, action("counted"), (10,))
    assert target.read_counter(key, 0) == (3, 3 * size)
    target.write_counter(key, 0, 100, 1000)
    dataplane.process(1, frame(0, 1, 2, 0, 3) + bytes(87))
    assert target.read_counter(key, 0) == (101, 1100)
    assert [(e.packets, e.bytes) for e in target.entries()] == [(101, 1100)]
    target.delete(key, 0)
    target.insert(key, 0, action("counted"), (9,))
    assert target.read_counter(key, 0) == (0, 0)
    with pytest.raises(BadEntry, match="no direct counter"):
        table(dataplane, "lpm_table").read_counter((Lpm(0, 0), Exact(0)), 0)


# --- what is refused


@pytest.mark.parametrize(
    ("name", "key", "priority", "act", "params", "text"),
    [
        ("exact_table", (Exact(1), Exact(2)), 0, "counted", (1,), "2 match fields given, the key has 3"),
        ("exact_table", (Exact(1 << 32), Exact(2), Exact(3)), 0, "counted", (1,), "does not fit 32 bits"),
        ("exact_table", (Exact(-1), Exact(2), Exact(3)), 0, "counted", (1,), "does not fit 32 bits"),
        ("exact_table", (Lpm(1, 32), Exact(2), Exact(3)), 0, "counted", (1,), "Lpm given, the key is exact"),
        ("exact_table", (Exact(1), Exact(2), Exact(3)), 5, "counted", (1,), "takes 0"),
        ("exact_table", (Exact(1), Exact(2), Exact(3)), 0, "set", (1,), "'I.set' is not one of"),
        ("exact_table", (Exact(1), Exact(2), Exact(3)), 0, "counted", (), "0 parameters given"),
        ("exact_table", (Exact(1), Exact(2), Exact(3)), 0, "counted", (1 << 16,), "does not fit 16 bits"),
        ("lpm_table", (Lpm(1, 8), Exact(0)), 0, "set", (1,), "bits set behind its prefix"),
        ("lpm_table", (Lpm(0, 33), Exact(0)), 0, "set", (1,), "a prefix of 33 bits of 32"),
        ("ternary_table", (Ternary(3, 1), Ternary(0, 0), Exact(0)), 1, "counted_ternary", (1,), "its mask excludes"),
        ("ternary_table", (Ternary(0, 0), Ternary(0, 0), Exact(0)), 0, "counted_ternary", (1,), "needs 1 or more"),
        ("range_table", (Range(5, 4), Ternary(0, 0)), 1, "set", (1,), "is empty"),
    ],
)
def test_entries_that_do_not_fit_are_refused(
    switch: Switch, name: str, key: tuple[Match, ...], priority: int, act: str, params: tuple[int, ...], text: str
) -> None:
    dataplane = switch("matching")
    target = table(dataplane, name)
    with pytest.raises(BadEntry, match=text) as caught:
        target.insert(key, priority, action(act), params)
    assert f"'I.{name}'" in str(caught.value)
    assert target.entries() == []


def test_constant_entries_cannot_be_touched(switch: Switch) -> None:
    target = table(switch("matching"), "const_exact")
    with pytest.raises(ConstTable):
        target.insert((Exact(9),), 0, action("set"), (1,))
    with pytest.raises(ConstTable):
        target.delete((Exact(1),), 0)
    with pytest.raises(ConstTable):
        target.modify((Exact(1),), 0, action("set"), (1,))
    assert len(target.entries()) == 3


def test_tables_say_what_they_are(switch: Switch) -> None:
    target = table(switch("matching"), "exact_table")
    assert [(k.name, k.match, k.width) for k in target.keys] == [
        ("hdr.key.a", "exact", 32), ("hdr.key.b", "exact", 12), ("hdr.key.d", "exact", 48)
    ]  # fmt: skip
    assert target.max_size == 64
    assert target.direct_counter
    assert not target.has_priority
    assert target.actions[action("counted")].params == (("value", 16),)
