"""Lowering of the deparser: `u64 (context, phv, target)` writes the valid headers and returns their length.

`u64 deparse_bound` is a constant of the program: no packet's headers are longer.
"""

from __future__ import annotations

from llvmlite import ir

from switchsum.softswitch.frame import I8, I64, PTR, Frame, Unit, Value
from switchsum.softswitch.parsers import Run, lanes, runs, vector_parts


def header_bound(unit: Unit) -> int:
    """Bytes of all headers that the deparser may write."""
    return sum(unit.program.headers[name].type.max_bytes for name in unit.program.deparser)


def lower_deparser(unit: Unit) -> ir.Function:
    function = unit.define("deparse", I64, [PTR, PTR, PTR])
    frame = Frame(unit, function, function.args[0], function.args[1])
    b = frame.b
    target = function.args[2]
    position: Value = I64(0)
    for name in unit.program.deparser:
        header, layout = unit.program.headers[name], unit.layout.headers[name]
        before, after = runs(header.type, layout)
        start = b.block
        valid = b.icmp_unsigned("!=", frame.raw_load(frame.address(layout.valid), layout.valid), I8(0))
        with b.if_then(valid, likely=True):
            here = frame.at(target, position)
            _write_runs(frame, before, here)
            size: Value = I64(header.type.fixed_bits // 8)
            if layout.varbit is not None:
                length = frame.raw_load(frame.address(layout.varbit.length), layout.varbit.length)
                varying = b.lshr(b.zext(length, I64), I64(3))
                middle = frame.at(here, sum(run.size for run in before))
                frame.memcpy(middle, frame.at(frame.phv, layout.varbit.offset), varying)
                _write_runs(frame, after, frame.at(middle, varying))
                size = b.add(size, varying)
            longer = b.add(position, size)
            inside = b.block
        merged = b.phi(I64)
        merged.add_incoming(position, start)
        merged.add_incoming(longer, inside)
        position = merged
    frame.finish(position)
    return function


def _write_runs(frame: Frame, pieces: list[Run], target: Value) -> None:
    b = frame.b
    position = 0
    while position < len(pieces):
        run = pieces[position]
        count = lanes(pieces, position)
        slot, width = run.fields[0]
        if count > 1:
            for first, size in vector_parts(count, width):
                kind = ir.VectorType(ir.IntType(width), size) if size > 1 else ir.IntType(width)
                offset = first * width // 8
                value = b.load(frame.at(frame.phv, slot.offset + offset), typ=kind, align=width // 8)
                b.store(frame.swap(value), frame.at(target, run.start + offset), align=1)
            position += count
            continue
        position += 1
        if len(run.fields) == 1 and width > 64 and width == slot.container:
            frame.copy_reversed(frame.at(target, run.start), frame.address(slot), width // 8)
            continue
        kind = ir.IntType(8 * run.size)
        whole = None
        right = 8 * run.size
        for field, bits in run.fields:
            right -= bits
            part = frame.resize(frame.raw_load(frame.address(field), field), 8 * run.size)
            if right:
                part = b.shl(part, ir.Constant(kind, right))
            whole = part if whole is None else b.or_(whole, part)
        frame.store_big_endian(frame.at(target, run.start), whole)
