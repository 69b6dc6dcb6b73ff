"""Hash functions and checksums' arithmetic as native functions over bytes, and the bytes they run over.

Sources: CRC-16/ARC and CRC-32/ISO-HDLC in the reflected, table-driven form; the Internet checksum of RFC 1071; xor16 and
identity as v1model.p4 and simple_switch define them (xor of 16-bit big-endian words, the last one padded; the first 8 bytes
as a number).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from switchsum.softswitch.frame import I1, I8, I16, I32, I64, PTR, Frame, Unit, Value
from switchsum.softswitch.layout import MAX_PACKET
from switchsum.softswitch.program import Calculation, CalculationInput, FieldRef, Program, Unsupported


def crc_table(polynomial: int) -> list[int]:
    """The 256 remainders of a reflected polynomial."""
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (polynomial if remainder & 1 else 0)
        table.append(remainder)
    return table


def _byte_loop(b: ir.IRBuilder, data: Value, length: Value, start: Value, step: object) -> Value:
    """for each byte: state = step(state, byte, index). Returns the last state."""
    before = b.block
    head, body, done = (b.append_basic_block(name) for name in ("head", "byte", "done"))
    b.branch(head)
    b.position_at_end(head)
    index, state = b.phi(I64), b.phi(start.type)
    index.add_incoming(I64(0), before)
    state.add_incoming(start, before)
    b.cbranch(b.icmp_unsigned("<", index, length), body, done)
    b.position_at_end(body)
    byte = b.load(b.gep(data, [index], inbounds=True, source_etype=I8), typ=I8)
    following = step(state, byte, index)  # type: ignore[operator]
    index.add_incoming(b.add(index, I64(1)), b.block)
    state.add_incoming(following, b.block)
    b.branch(head)
    b.position_at_end(done)
    return state


def _crc(unit: Unit, name: str, bits: int, polynomial: int, start: int, final: int) -> None:
    kind = ir.IntType(bits)
    table = unit.bytes_global(f"{name}.table", kind, crc_table(polynomial))
    function = unit.define(f"hash.{name}", I64, [PTR, I64])
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def step(state: Value, byte: Value, _: Value) -> Value:
        entry = b.and_(b.xor(state, b.zext(byte, kind)), ir.Constant(kind, 255))
        address = b.gep(table, [I64(0), b.zext(entry, I64)], inbounds=True, source_etype=table.value_type)
        return b.xor(b.lshr(state, ir.Constant(kind, 8)), b.load(address, typ=kind))

    state = _byte_loop(b, function.args[0], function.args[1], ir.Constant(kind, start), step)
    b.ret(b.zext(b.xor(state, ir.Constant(kind, final)), I64))


def _sum16(unit: Unit, name: str, ones_complement: bool) -> None:
    """Sum (RFC 1071) or exclusive or of big-endian 16-bit words, an odd last byte padded with zero on the right."""
    function = unit.define(f"hash.{name}", I64, [PTR, I64])
    b = ir.IRBuilder(function.append_basic_block("entry"))
    data, length = function.args
    words = b.lshr(length, I64(1))
    before = b.block
    head, body, done = (b.append_basic_block(n) for n in ("head", "word", "done"))
    b.branch(head)
    b.position_at_end(head)
    index, state = b.phi(I64), b.phi(I64)
    index.add_incoming(I64(0), before)
    state.add_incoming(I64(0), before)
    b.cbranch(b.icmp_unsigned("<", index, words), body, done)
    b.position_at_end(body)
    word = b.load(b.gep(data, [index], inbounds=True, source_etype=I16), typ=I16, align=1)
    wide = b.zext(word, I64)
    state.add_incoming(b.add(state, wide) if ones_complement else b.xor(state, wide), body)
    index.add_incoming(b.add(index, I64(1)), body)
    b.branch(head)
    b.position_at_end(done)
    odd = b.trunc(length, I1)
    last = b.gep(data, [b.select(odd, b.sub(length, I64(1)), I64(0))], inbounds=True, source_etype=I8)
    tail = b.select(odd, b.zext(b.load(last, typ=I8), I64), I64(0))
    total = b.add(state, tail) if ones_complement else b.xor(state, tail)
    if ones_complement:
        for _ in range(3):  # at most 32,768 words of 16 bits: two folds suffice, the third settles the last carry
            total = b.add(b.and_(total, I64(0xFFFF)), b.lshr(total, I64(16)))
        total = b.xor(total, I64(0xFFFF))
    # The words were added in the host's order; RFC 1071 section 2(B): swapping the result is enough.
    swapped = b.call(unit.declare("llvm.bswap.i16", I16, [I16]), [b.trunc(total, I16)])
    b.ret(b.zext(swapped, I64))


def _identity(unit: Unit) -> None:
    function = unit.define("hash.identity", I64, [PTR, I64])
    b = ir.IRBuilder(function.append_basic_block("entry"))
    data, length = function.args
    length = b.select(b.icmp_unsigned("<", length, I64(8)), length, I64(8))

    def step(state: Value, byte: Value, _: Value) -> Value:
        return b.or_(b.shl(state, I64(8)), b.zext(byte, I64))

    b.ret(_byte_loop(b, data, length, I64(0), step))


def hash_function(unit: Unit, algorithm: str) -> ir.Function:
    """The native function u64 (bytes, length), made on first use."""
    name = "csum16" if algorithm == "cksum16" else algorithm
    if f"hash.{name}" not in unit.functions:
        if name == "crc16":
            _crc(unit, name, 16, 0xA001, 0, 0)
        elif name == "crc32":
            _crc(unit, name, 32, 0xEDB88320, 0xFFFFFFFF, 0xFFFFFFFF)
        elif name == "identity":
            _identity(unit)
        else:
            _sum16(unit, name, ones_complement=name == "csum16")
    return unit.functions[f"hash.{name}"]


# --- the bytes a calculation runs over


@dataclass(frozen=True)
class Piece:
    """Adjacent inputs that are present together: when `header` is valid, or always if it is None."""

    header: str | None
    inputs: tuple[CalculationInput, ...]
    bits: int


def _expanded(program: Program, calculation: Calculation) -> list[CalculationInput]:
    """Inputs with whole headers replaced by their fields."""
    result = []
    for item in calculation.inputs:
        if item.kind == "header":
            header = program.headers[item.header]
            result += [CalculationInput("field", field=FieldRef(header.name, f.name)) for f in header.type.fields]
        else:
            result.append(item)
    return result


def _bits(program: Program, item: CalculationInput) -> int:
    if item.kind == "const":
        return item.bits
    assert item.field is not None
    if item.field.field == "$valid$":
        return 1
    field = program.headers[item.field.header].field(item.field.field)
    assert field is not None
    return field.width


def _is_varbit(program: Program, item: CalculationInput) -> bool:
    if item.field is None:
        return False
    field = program.headers[item.field.header].field(item.field.field)
    return field is not None and field.varbit


def _presence(program: Program, item: CalculationInput) -> str | None:
    if item.field is None or program.headers[item.field.header].metadata:
        return None
    return item.field.header


def calculation_pieces(program: Program, calculation: Calculation) -> tuple[list[Piece], bool]:
    """Inputs grouped by the header they need, and whether the payload follows."""
    pieces: list[Piece] = []
    payload = False
    for item in _expanded(program, calculation):
        if item.kind == "payload":
            payload = True
            continue
        presence = _presence(program, item)
        last = pieces[-1] if pieces else None
        apart = _is_varbit(program, item) or (last is not None and _is_varbit(program, last.inputs[-1]))
        if last is not None and last.header == presence and not apart:
            pieces[-1] = Piece(presence, (*last.inputs, item), last.bits + _bits(program, item))
        else:
            pieces.append(Piece(presence, (item,), _bits(program, item)))
    return pieces, payload


def input_bytes(program: Program) -> int:
    """Scratch space that any calculation of the program may need."""
    longest = 0
    for calculation in program.calculations.values():
        pieces, _ = calculation_pieces(program, calculation)
        longest = max(longest, sum(piece.bits for piece in pieces) // 8 + 1)
    return longest + MAX_PACKET + 64


class Calculations:
    """Lowers calculations inside one Frame. The payload, if any calculation wants it, is at `payload`."""

    def __init__(self, frame: Frame, payload: tuple[Value, Value] | None) -> None:
        self.frame = frame
        self.payload = payload

    def result(self, calculation: Calculation) -> Value:
        """The hash as u64. Reads fields only; leaves the frame in another block."""
        frame, program = self.frame, self.frame.unit.program
        frame.forget()
        pieces, with_payload = calculation_pieces(program, calculation)
        if calculation.algorithm in ("csum16", "cksum16") and not with_payload and self._adds_up(pieces):
            return self._sum(pieces)
        scratch = frame.read_pointer("scratch")
        aligned = all(piece.bits % 8 == 0 for piece in pieces[:-1])
        if aligned:
            data, length = scratch, self._write_pieces(pieces, scratch)
        else:
            data, length = self._write_bits(pieces, scratch, calculation.name)
        if with_payload:
            if self.payload is None:
                raise Unsupported(f"calculation {calculation.name!r} runs over the payload, which only checksums can do")
            frame.memcpy(frame.at(data, length), self.payload[0], self.payload[1])
            length = frame.b.add(length, self.payload[1])
        return frame.b.call(hash_function(frame.unit, calculation.algorithm), [data, length])

    def _adds_up(self, pieces: list[Piece]) -> bool:
        """Whether a ones' complement sum can be taken field by field: their places within words must be known."""
        program = self.frame.unit.program
        inputs = [item for piece in pieces for item in piece.inputs]
        narrow = all(not _is_varbit(program, item) and _bits(program, item) <= 64 for item in inputs)
        return narrow and len(inputs) < 1 << 12 and all(piece.header is None or piece.bits % 16 == 0 for piece in pieces)

    def _sum(self, pieces: list[Piece]) -> Value:
        """csum16 without writing the bytes down: 2^16 is 1 modulo 2^16 - 1, so each field counts with its place in its word."""
        frame, b = self.frame, self.frame.b
        total: Value = I64(0)
        position = 0
        for piece in pieces:
            own: Value = I64(0)
            for item in piece.inputs:
                width = _bits(frame.unit.program, item)
                position += width
                value = frame.resize(self._value(item), 64)
                parts = [value] if width <= 32 else [b.and_(value, I64(0xFFFFFFFF)), b.lshr(value, I64(32))]
                for part in parts:
                    own = b.add(own, b.shl(part, I64(-position % 16)))
            if piece.header is not None:
                slot = frame.unit.layout.headers[piece.header].valid
                valid = b.icmp_unsigned("!=", frame.raw_load(frame.address(slot), slot), I8(0))
                own = b.select(valid, own, I64(0))
            total = b.add(total, own)
        total = b.add(b.and_(total, I64(0xFFFFFFFF)), b.lshr(total, I64(32)))
        for _ in range(3):
            total = b.add(b.and_(total, I64(0xFFFF)), b.lshr(total, I64(16)))
        return b.xor(total, I64(0xFFFF))

    def _write_pieces(self, pieces: list[Piece], scratch: Value) -> Value:
        """Write pieces of whole bytes one behind the other; returns their length in bytes."""
        b = self.frame.b
        position: Value = I64(0)
        for piece in pieces:
            before = b.block
            if piece.header is None:
                position = b.add(position, self._write_piece(piece, self.frame.at(scratch, position)))
                continue
            valid = self.frame.raw_load(
                self.frame.address(self.frame.unit.layout.headers[piece.header].valid),
                self.frame.unit.layout.headers[piece.header].valid,
            )
            with b.if_then(b.icmp_unsigned("!=", valid, I8(0))):
                longer = b.add(position, self._write_piece(piece, self.frame.at(scratch, position)))
                inside = b.block
            merged = b.phi(I64)
            merged.add_incoming(position, before)
            merged.add_incoming(longer, inside)
            position = merged
        return position

    def _write_piece(self, piece: Piece, target: Value) -> Value:
        frame, b = self.frame, self.frame.b
        if _is_varbit(frame.unit.program, piece.inputs[0]):
            ref = piece.inputs[0].field
            assert ref is not None
            place = frame.unit.layout.headers[ref.header].varbit
            assert place is not None
            size = b.lshr(b.zext(frame.raw_load(frame.address(place.length), place.length), I64), I64(3))
            frame.memcpy(target, frame.at(frame.phv, place.offset), size)
            return size
        start = 0  # bits written
        pending: Value = None  # integer of bits not yet written
        for item in piece.inputs:
            value = self._value(item)
            pending = value if pending is None else self._concatenate(pending, value)
            if pending.type.width % 8 == 0:
                frame.store_big_endian(frame.at(target, start // 8), pending)
                start += pending.type.width
                pending = None
        if pending is not None:
            padded = (pending.type.width + 7) // 8 * 8
            kind = ir.IntType(padded)
            shifted = b.shl(b.zext(pending, kind), ir.Constant(kind, padded - pending.type.width))
            frame.store_big_endian(frame.at(target, start // 8), shifted)
            start += padded
        return I64(start // 8)

    def _concatenate(self, left: Value, right: Value) -> Value:
        b = self.frame.b
        kind = ir.IntType(left.type.width + right.type.width)
        return b.or_(b.shl(b.zext(left, kind), ir.Constant(kind, right.type.width)), b.zext(right, kind))

    def _value(self, item: CalculationInput) -> Value:
        """The input as an integer of exactly its width."""
        if item.kind == "const":
            return ir.Constant(ir.IntType(item.bits), item.value % (1 << item.bits))
        assert item.field is not None
        slot = self.frame.unit.layout.slot(item.field)
        value = self.frame.raw_load(self.frame.address(slot), slot)
        return self.frame.resize(value, _bits(self.frame.unit.program, item))

    def _write_bits(self, pieces: list[Piece], scratch: Value, name: str) -> tuple[Value, Value]:
        """Pieces that end inside a byte: gather all bits in one integer first. Returns address and length in bytes."""
        frame, b = self.frame, self.frame.b
        total = (sum(piece.bits for piece in pieces) + 7) // 8 * 8 + 8
        kind = ir.IntType(total)
        gathered, count = ir.Constant(kind, 0), I32(0)
        for piece in pieces:
            if _is_varbit(frame.unit.program, piece.inputs[0]):
                raise Unsupported(f"calculation {name!r} mixes a varbit with fields that are not whole bytes; pad them")
            value = None
            for item in piece.inputs:
                value = self._value(item) if value is None else self._concatenate(value, self._value(item))
            more = b.or_(b.shl(gathered, ir.Constant(kind, piece.bits)), b.zext(value, kind))
            longer = b.add(count, I32(piece.bits))
            if piece.header is not None:
                slot = frame.unit.layout.headers[piece.header].valid
                valid = b.icmp_unsigned("!=", frame.raw_load(frame.address(slot), slot), I8(0))
                more, longer = b.select(valid, more, gathered), b.select(valid, longer, count)
            gathered, count = more, longer
        padding = b.and_(b.sub(I32(0), count), I32(7))
        gathered = b.shl(gathered, frame.resize(padding, total))
        frame.store_big_endian(scratch, gathered)
        length = b.zext(b.lshr(b.add(count, I32(7)), I32(3)), I64)
        return frame.at(scratch, b.sub(I64(total // 8), length)), length
