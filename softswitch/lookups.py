"""Native table lookups: `i64 (context, phv)`, the number of the matching entry or -1.

Exact tables hash the packed key (open addressing, tables.py keeps at least half of the slots empty). All others scan their
entries in the order tables.py keeps, best first.
"""

from __future__ import annotations

from llvmlite import ir

from switchsum.softswitch.frame import I1, I32, I64, PTR, Frame, Unit, Value
from switchsum.softswitch.layout import entry_layout
from switchsum.softswitch.program import TableDecl

HASH_START = 0x9E3779B97F4A7C15
HASH_FACTOR = 0xFF51AFD7ED558CCD
EMPTY, DELETED = -1, -2


def lower_lookup(unit: Unit, table: TableDecl) -> ir.Function:
    function = unit.define(f"lookup.{table.name}", I64, [PTR, PTR])
    frame = Frame(unit, function, function.args[0], function.args[1])
    components = []
    for key in table.keys:
        slot = unit.layout.slot(key.field)
        value = frame.resize(frame.load(slot), max(slot.container, 8))
        if key.mask is not None:
            value = frame.b.and_(value, ir.Constant(value.type, key.mask % (1 << value.type.width)))
        components.append(value)
    layout = entry_layout(unit.program, table.name)
    words = key_words(frame, components, layout.key_offsets, layout.key_bytes // 8)
    if table.match == "exact":
        _hash_probe(frame, table, words)
    else:
        _scan(frame, table, words, components, layout.key_offsets)
    return function


def key_words(frame: Frame, components: list[Value], offsets: tuple[int, ...], count: int) -> list[Value]:
    """The packed key as u64 words, component i at byte offsets[i] in little-endian order."""
    b = frame.b
    words: list[Value] = [None] * count
    for value, offset in zip(components, offsets, strict=True):
        first = offset // 8
        if value.type.width <= 64:
            parts = [b.shl(frame.resize(value, 64), I64(8 * (offset % 8)))]
        else:
            parts = [b.trunc(b.lshr(value, ir.Constant(value.type, 64 * i)), I64) for i in range(value.type.width // 64)]
        for i, part in enumerate(parts):
            known = words[first + i]
            words[first + i] = part if known is None else b.or_(known, part)
    return words


def _hash_probe(frame: Frame, table: TableDecl, words: list[Value]) -> None:
    b = frame.b
    state: Value = I64(HASH_START)
    for word in words:
        state = b.mul(b.xor(state, word), I64(HASH_FACTOR))
        state = b.xor(state, b.lshr(state, I64(32)))
    prefix = f"table:{table.name}"
    mask = frame.read_word(f"{prefix}:slot_mask")
    slots, keys = frame.read_pointer(f"{prefix}:slots"), frame.read_pointer(f"{prefix}:keys")
    before = b.block
    probe, candidate, onward, miss, hit = (frame.new_block(n) for n in ("probe", "candidate", "onward", "miss", "hit"))
    b.branch(probe)
    b.position_at_end(probe)
    index = b.phi(I64)
    index.add_incoming(b_and(frame, state, mask, before), before)
    entry = b.load(frame.at(slots, b.mul(index, I64(4))), typ=I32)
    usable = b.icmp_signed(">=", entry, I32(0))
    b.cbranch(usable, candidate, onward)
    b.position_at_end(candidate)
    wide = b.zext(entry, I64)
    address = frame.at(keys, b.mul(wide, I64(8 * len(words))))
    b.cbranch(_all_equal(frame, address, words), hit, onward)
    b.position_at_end(onward)
    following = b.and_(b.add(index, I64(1)), mask)
    index.add_incoming(following, onward)
    b.cbranch(b.icmp_signed("==", entry, I32(EMPTY)), miss, probe)
    b.position_at_end(hit)
    b.ret(wide)
    b.position_at_end(miss)
    b.ret(I64(-1))


def b_and(frame: Frame, left: Value, right: Value, block: ir.Block) -> Value:
    """left & right, computed at the end of an earlier block."""
    with frame.b.goto_block(block):
        return frame.b.and_(left, right)


def _all_equal(frame: Frame, address: Value, words: list[Value]) -> Value:
    b = frame.b
    difference = None
    for i, word in enumerate(words):
        part = b.xor(b.load(frame.at(address, 8 * i), typ=I64), word)
        difference = part if difference is None else b.or_(difference, part)
    return b.icmp_unsigned("==", difference, I64(0))


def _scan(frame: Frame, table: TableDecl, words: list[Value], components: list[Value], offsets: tuple[int, ...]) -> None:
    b = frame.b
    prefix = f"table:{table.name}"
    count = frame.read_word(f"{prefix}:count")
    order, keys, masks = (frame.read_pointer(f"{prefix}:{w}") for w in ("order", "keys", "masks"))
    before = b.block
    head, body, onward, miss, hit = (frame.new_block(n) for n in ("head", "body", "onward", "miss", "hit"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(I64(0), before)
    b.cbranch(b.icmp_unsigned("<", index, count), body, miss)
    b.position_at_end(body)
    entry = b.zext(b.load(frame.at(order, b.mul(index, I64(4))), typ=I32), I64)
    offset = b.mul(entry, I64(8 * len(words)))
    low, high = frame.at(keys, offset), frame.at(masks, offset)
    if any(key.match == "range" for key in table.keys):
        matches: Value = I1(1)
        for key, value, place in zip(table.keys, components, offsets, strict=True):
            first = b.load(frame.at(low, place), typ=value.type, align=min(value.type.width // 8, 8))
            second = b.load(frame.at(high, place), typ=value.type, align=min(value.type.width // 8, 8))
            if key.match == "range":
                inside = b.and_(b.icmp_unsigned("<=", first, value), b.icmp_unsigned("<=", value, second))
            else:
                inside = b.icmp_unsigned("==", b.and_(value, second), first)
            matches = b.and_(matches, inside)
    else:
        difference = None
        for i, word in enumerate(words):
            wanted = b.load(frame.at(low, 8 * i), typ=I64)
            part = b.and_(b.xor(wanted, word), b.load(frame.at(high, 8 * i), typ=I64))
            difference = part if difference is None else b.or_(difference, part)
        matches = b.icmp_unsigned("==", difference, I64(0))
    b.cbranch(matches, hit, onward)
    b.position_at_end(onward)
    index.add_incoming(b.add(index, I64(1)), onward)
    b.branch(head)
    b.position_at_end(hit)
    b.ret(entry)
    b.position_at_end(miss)
    b.ret(I64(-1))
