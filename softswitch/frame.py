"""Lowering state of one native function: where its header vector is, and what is known of its fields in the current block.

Inside a basic block, fields and registers are read from memory once and written back once, at the block's end, in address
order. So the 256 additions of an aggregation leave as: loads, adds, stores of neighbours, which is the shape that
vectorizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from switchsum.softswitch.layout import ContextMap, Layout, RegisterGroup, Slot
from switchsum.softswitch.program import Program

I1, I8, I16, I32, I64, I128 = (ir.IntType(n) for n in (1, 8, 16, 32, 64, 128))
PTR = ir.PointerType()
VOID = ir.VoidType()

Value = Any  # llvmlite's values carry no types


class Unit:
    """One LLVM module under construction, and what all its functions share."""

    def __init__(self, program: Program, layout: Layout, context: ContextMap) -> None:
        self.program = program
        self.layout = layout
        self.context = context
        self.module = ir.Module(name="switch")
        self.functions: dict[str, ir.Function] = {}
        self.globals: dict[str, ir.GlobalVariable] = {}
        self.written: set[Slot] = set()  # fields stored by any frame since this was last cleared
        self.written_bytes: set[tuple[int, int]] = set()  # the same for varbits: offset, length
        self.action_writes: dict[int, set[tuple[int, int]]] = {}  # memory each action may change: offset, length

    def declare(self, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
        """An outside function (libc or an LLVM intrinsic)."""
        if name not in self.functions:
            self.functions[name] = ir.Function(self.module, ir.FunctionType(result, args), name=name)
        return self.functions[name]

    def define(self, name: str, result: ir.Type, args: list[ir.Type], exported: bool = False) -> ir.Function:
        """A function of this module; pointers among its arguments never overlap."""
        function = ir.Function(self.module, ir.FunctionType(result, args), name=name)
        if not exported:
            function.linkage = "internal"
        function.attributes.add("nounwind")
        for argument in function.args:
            if argument.type == PTR:
                argument.add_attribute("noalias")
        self.functions[name] = function
        return function

    def take_writes(self) -> set[tuple[int, int]]:
        """Memory that was marked as written since the last call: (offset, length)."""
        writes = self.written_bytes | {(slot.offset, slot.container // 8) for slot in self.written}
        self.written, self.written_bytes = set(), set()
        return writes

    def bytes_global(self, name: str, element: ir.IntType, values: list[int]) -> ir.GlobalVariable:
        if name not in self.globals:
            kind = ir.ArrayType(element, len(values))
            variable = ir.GlobalVariable(self.module, kind, name=name)
            variable.linkage = "internal"
            variable.global_constant = True
            variable.initializer = ir.Constant(kind, values)
            self.globals[name] = variable
        return self.globals[name]


@dataclass(frozen=True)
class Row:
    """A register row that was looked up: address of its first lane, and whether the index was within range."""

    address: Value
    in_range: Value


class Frame:
    """A function being lowered. `phv` and `context` are its pointers; `params` the action's entry data, if any."""

    def __init__(self, unit: Unit, function: ir.Function, context: Value, phv: Value) -> None:
        self.unit = unit
        self.function = function
        self.context = context
        self.phv = phv
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self._fields: dict[Slot, Value] = {}
        self._dirty_fields: set[Slot] = set()
        self._cells: dict[tuple[int, int], tuple[Row, Value]] = {}  # (group, lane): where, value
        self._dirty_cells: set[tuple[int, int]] = set()
        self._rows: dict[tuple[int, int], Row] = {}  # (group, id of the index value)
        self._keep: list[Value] = []  # values whose id() is a key above must not be collected

    # --- addresses

    def at(self, base: Value, offset: int | Value) -> Value:
        """base + offset bytes."""
        if isinstance(offset, int):
            if offset == 0:
                return base
            offset = I64(offset)
        return self.b.gep(base, [offset], inbounds=True, source_etype=I8)

    def word(self, name: str) -> Value:
        """Address of a context word."""
        return self.at(self.context, 8 * self.unit.context[name])

    def read_word(self, name: str) -> Value:
        return self.b.load(self.word(name), typ=I64)

    def read_pointer(self, name: str) -> Value:
        return self.b.load(self.word(name), typ=PTR)

    def write_word(self, name: str, value: Value) -> None:
        self.b.store(value, self.word(name))

    def count(self, statistic: str, amount: Value | None = None) -> None:
        name = f"stat:{statistic}"
        self.write_word(name, self.b.add(self.read_word(name), I64(1) if amount is None else amount))

    # --- fields

    def address(self, slot: Slot) -> Value:
        return self.at(self.phv, slot.offset)

    def known(self, slot: Slot) -> Value | None:
        """The field's container if this block has it in hand."""
        return self._fields.get(slot)

    def load(self, slot: Slot) -> Value:
        """The field's container (its high bits are zero)."""
        if slot not in self._fields:
            self._fields[slot] = self.raw_load(self.address(slot), slot)
        return self._fields[slot]

    def raw_load(self, address: Value, slot: Slot) -> Value:
        return self.b.load(address, typ=ir.IntType(slot.container), align=min(slot.container // 8, 8))

    def raw_store(self, address: Value, slot: Slot, value: Value) -> None:
        self.b.store(value, address, align=min(slot.container // 8, 8))

    def store(self, slot: Slot, value: Value) -> None:
        """Set a field to a value of its container's type whose bits beyond the field's width are zero."""
        self._fields[slot] = value
        self._dirty_fields.add(slot)
        self.unit.written.add(slot)

    def set(self, slot: Slot, value: Value) -> None:
        """Set a field to the low `width` bits of an integer of any size."""
        self.store(slot, self.fit(value, slot.width, slot.container))

    def fit(self, value: Value, width: int, container: int) -> Value:
        """value modulo 2^width, as an integer of `container` bits."""
        value = self.resize(value, min(value.type.width, width))
        return self.resize(value, container)

    def resize(self, value: Value, bits: int) -> Value:
        """Truncate or zero-extend."""
        if value.type.width > bits:
            return self.b.trunc(value, ir.IntType(bits))
        if value.type.width < bits:
            return self.b.zext(value, ir.IntType(bits))
        return value

    def hidden(self, name: str) -> Slot:
        return self.unit.layout.hidden[name]

    # --- registers

    def row(self, group: RegisterGroup, index: Value) -> Row:
        """The row of an index of any integer type; out of range leads to the spare row."""
        key = (group.index, id(index))
        if key not in self._rows:
            self._keep.append(index)
            wide = index if index.type.width >= 64 else self.b.zext(index, I64)
            in_range = self.b.icmp_unsigned("<", wide, ir.Constant(wide.type, group.rows))
            number = self.b.select(in_range, self.resize(wide, 64), I64(group.rows))
            offset = self.b.mul(number, I64(group.row_bytes))
            base = self.read_pointer(f"group:{group.index}")
            self._rows[key] = Row(self.at(base, offset), in_range)
        return self._rows[key]

    def load_cell(self, group: RegisterGroup, lane: int, row: Row) -> Value:
        known = self._cells.get((group.index, lane))
        if known is not None and known[0] is row:
            return known[1]
        if (group.index, lane) in self._dirty_cells:
            self._flush_cells()
        cell = Slot(0, group.width)
        value = self.raw_load(self.at(row.address, lane * group.cell_bytes), cell)
        self._cells[group.index, lane] = (row, value)
        return value

    def store_cell(self, group: RegisterGroup, lane: int, row: Row, value: Value) -> None:
        known = self._cells.get((group.index, lane))
        if known is not None and known[0] is not row and (group.index, lane) in self._dirty_cells:
            self._flush_cells()
        self._cells[group.index, lane] = (row, value)
        self._dirty_cells.add((group.index, lane))

    # --- block boundaries

    def _flush_cells(self) -> None:
        rows: dict[int, tuple[Row, RegisterGroup]] = {}
        for key in sorted(self._dirty_cells):
            group = self.unit.layout.groups[key[0]]
            row, value = self._cells[key]
            rows[id(row)] = (row, group)
            self.raw_store(self.at(row.address, key[1] * group.cell_bytes), Slot(0, group.width), value)
        for row, group in rows.values():
            with self.b.if_then(self.b.not_(row.in_range), likely=False):  # the spare row was written: make it zero again
                self.zero(row.address, group.row_bytes)
                self.count("register_writes_out_of_range")
        self._dirty_cells.clear()
        self._cells.clear()

    def flush(self) -> None:
        """Write everything back; what was read stays known."""
        for slot in sorted(self._dirty_fields, key=lambda s: s.offset):
            self.raw_store(self.address(slot), slot, self._fields[slot])
        self._dirty_fields.clear()
        self._flush_cells()

    def forget(self) -> None:
        """Write everything back and assume nothing: memory is about to be changed behind this object's back."""
        self.flush()
        self._fields.clear()
        self._rows.clear()

    def new_block(self, name: str) -> ir.Block:
        return self.function.append_basic_block(name)

    def enter(self, block: ir.Block) -> None:
        """Go on in another block; the current one must have been terminated through jump, branch or finish."""
        self.b.position_at_end(block)
        self._fields.clear()
        self._rows.clear()
        self._cells.clear()

    def jump(self, block: ir.Block) -> None:
        self.flush()
        self.b.branch(block)

    def branch(self, condition: Value, yes: ir.Block, no: ir.Block) -> None:
        self.flush()
        self.b.cbranch(condition, yes, no)

    def finish(self, value: Value | None = None) -> None:
        self.flush()
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(value)

    def call(self, name: str, args: list[Value]) -> Value:
        """Call a function of this module that may change any field."""
        self.forget()
        return self.b.call(self.unit.functions[name], args)

    # --- bytes

    def memcpy(self, target: Value, source: Value, size: int | Value) -> None:
        function = self.unit.declare("llvm.memcpy.p0.p0.i64", VOID, [PTR, PTR, I64, I1])
        self.b.call(function, [target, source, I64(size) if isinstance(size, int) else size, I1(0)])

    def memmove(self, target: Value, source: Value, size: int | Value) -> None:
        function = self.unit.declare("llvm.memmove.p0.p0.i64", VOID, [PTR, PTR, I64, I1])
        self.b.call(function, [target, source, I64(size) if isinstance(size, int) else size, I1(0)])

    def zero(self, target: Value, size: int | Value) -> None:
        function = self.unit.declare("llvm.memset.p0.i64", VOID, [PTR, I8, I64, I1])
        self.b.call(function, [target, I8(0), I64(size) if isinstance(size, int) else size, I1(0)])

    def swap(self, value: Value) -> Value:
        """Reverse the bytes of an i8, i16, i32, i64 or a vector of them."""
        kind = value.type
        element = kind.element if isinstance(kind, ir.VectorType) else kind
        if element.width == 8:
            return value
        suffix = f"v{kind.count}i{element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"
        return self.b.call(self.unit.declare(f"llvm.bswap.{suffix}", kind, [kind]), [value])

    def load_big_endian(self, address: Value, size: int) -> Value:
        """`size` bytes in network order as an integer of 8 * size bits."""
        if size in (1, 2, 4, 8):
            return self.swap(self.b.load(address, typ=ir.IntType(8 * size), align=1))
        kind = ir.IntType(8 * size)
        result = None
        for start, piece in pieces(size):
            part = self.b.zext(self.load_big_endian(self.at(address, start), piece), kind)
            shift = 8 * (size - start - piece)
            if shift:
                part = self.b.shl(part, ir.Constant(kind, shift))
            result = part if result is None else self.b.or_(result, part)
        return result

    def store_big_endian(self, address: Value, value: Value) -> None:
        """Write an integer of a multiple of 8 bits in network order."""
        size = value.type.width // 8
        if size in (1, 2, 4, 8):
            self.b.store(self.swap(value), address, align=1)
            return
        for start, piece in pieces(size):
            shift = 8 * (size - start - piece)
            part = self.b.lshr(value, ir.Constant(value.type, shift)) if shift else value
            self.store_big_endian(self.at(address, start), self.b.trunc(part, ir.IntType(8 * piece)))

    def copy_reversed(self, target: Value, source: Value, size: int) -> None:
        """Reverse `size` bytes from one place to another: what a byte swap of one wide integer would do.

        By words, because LLVM's code generator crashes on llvm.bswap of thousands of bits.
        """
        parts = pieces(size)
        loaded = [self.swap(self.b.load(self.at(source, start), typ=ir.IntType(8 * piece), align=1)) for start, piece in parts]
        for (start, piece), value in zip(reversed(parts), reversed(loaded), strict=True):
            self.b.store(value, self.at(target, size - start - piece), align=1)


def pieces(size: int) -> list[tuple[int, int]]:
    """Cut `size` bytes into (start, length) of 8, 4, 2 and 1 bytes."""
    result = []
    start = 0
    for piece in (8, 4, 2, 1):
        while size - start >= piece:
            result.append((start, piece))
            start += piece
    return result
