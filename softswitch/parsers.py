"""Lowering of the parser: `void (context, phv, packet, length)`.

A parser error ends parsing, is stored in standard_metadata.parser_error, and the packet goes on to ingress, as in BMv2. Two
differences from BMv2, both where it would read beyond the packet or never end: a lookahead in a select beyond the packet's
end is PacketTooShort, and a parser that has made MAX_STEPS transitions stops with ParserTimeout.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass

from llvmlite import ir

from switchsum.softswitch.actions import Primitives
from switchsum.softswitch.checksums import verify_checksums
from switchsum.softswitch.expressions import Interval
from switchsum.softswitch.frame import I8, I32, I64, PTR, VOID, Frame, Unit, Value
from switchsum.softswitch.layout import HeaderLayout, Layout, Slot
from switchsum.softswitch.program import (
    Const,
    Expr,
    FieldRef,
    HeaderRef,
    HeaderType,
    Lookahead,
    ParserOp,
    ParseState,
    Program,
    StackLast,
    StackRef,
    Transition,
    Unsupported,
)

MAX_STEPS = 4096
VECTOR_BYTES = 32  # runs of equal lanes are moved in vectors of this size


@dataclass(frozen=True)
class Run:
    """Fields that together are whole bytes on the wire: `bits` behind the header's start."""

    start: int  # byte
    fields: tuple[tuple[Slot, int], ...]  # slot, width; first on the wire first

    @property
    def size(self) -> int:
        return sum(width for _, width in self.fields) // 8


def runs(kind: HeaderType, layout: HeaderLayout) -> tuple[list[Run], list[Run]]:
    """A header cut into runs of whole bytes, before and behind its varbit; the latter count from the varbit's end."""
    before: list[Run] = []
    after: list[Run] = []
    current = before
    pending: list[tuple[Slot, int]] = []
    start = bits = 0
    for field in kind.fields:
        if field.varbit:
            if pending:
                raise Unsupported(
                    f"varbit {field.name!r} of {kind.name!r} does not start on a whole byte; pad the fields before it"
                )
            current, start, bits = after, 0, 0
            continue
        pending.append((layout.fields[field.name], field.width))
        bits += field.width
        if bits % 8 == 0:
            current.append(Run(start, tuple(pending)))
            pending, start = [], bits // 8
    if pending:
        raise Unsupported(f"header {kind.name!r} is not a whole number of bytes; pad it")
    return before, after


def lanes(pieces: list[Run], position: int) -> int:
    """How many runs from `position` on are single fields of one machine size, adjacent in memory and on the wire."""
    slot, width = pieces[position].fields[0]
    if len(pieces[position].fields) != 1 or width not in (8, 16, 32, 64):
        return 1
    count = 1
    for following in pieces[position + 1 :]:
        other, other_width = following.fields[0]
        if len(following.fields) != 1 or other_width != width or other.offset != slot.offset + count * width // 8:
            break
        count += 1
    return count


def vector_parts(count: int, width: int) -> list[tuple[int, int]]:
    """Cut `count` lanes into (first, lanes) of at most VECTOR_BYTES, powers of two."""
    parts = []
    first = 0
    size = max(VECTOR_BYTES * 8 // width, 1)
    while first < count:
        while size > count - first:
            size //= 2
        parts.append((first, size))
        first += size
    return parts


LATE_BYTES = 128  # of a header: zeroing fewer is cheaper than asking


def late_headers(program: Program, layout: Layout) -> list[str]:
    """Headers that need no zeros before the parser has ended: it extracts them or leaves them alone, nothing else.

    An extracted header has every field written; the rest are made zero at the parser's end.
    """
    seen: set[str] = set()

    def mention(item: object) -> None:
        if isinstance(item, FieldRef):
            seen.add(item.header)
        elif isinstance(item, HeaderRef):
            seen.add(item.name)
        elif isinstance(item, tuple | list):
            for part in item:
                mention(part)
        elif is_dataclass(item):
            for part in fields(item):
                mention(getattr(item, part.name))

    for state in program.parser.states.values():
        mention(state.key)
        for op in state.ops:
            mention(op.args if op.op != "extract" else op.args[1:])
            mention(op.primitive)
    mention(list(program.field_lists.values()))  # what a packet keeps when it comes back
    seen.update(name for stack in program.stacks.values() for name in stack.headers)
    return [
        name
        for name, place in layout.headers.items()
        if place.size >= LATE_BYTES and place.varbit is None and not program.headers[name].metadata and name not in seen
    ]


class ParserLowering:
    """Lowers the whole parser into one function."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.program = unit.program
        self.layout = unit.layout
        function = unit.define("parse", VOID, [PTR, PTR, PTR, I64])
        self.frame = Frame(unit, function, function.args[0], function.args[1])
        self.packet, self.length = function.args[2], function.args[3]
        self.primitives = Primitives(self.frame)
        b = self.frame.b
        self.position = b.alloca(I64)
        self.steps = b.alloca(I32)
        self.error = b.alloca(I32)
        b.store(I64(0), self.position)
        b.store(I32(0), self.steps)
        b.store(I32(self.program.errors["NoError"]), self.error)
        self.done = self.frame.new_block("done")
        self.failures: dict[str, ir.Block] = {}
        self.states = {name: self.frame.new_block(f"state.{name}") for name in self.program.parser.states}

    def lower(self) -> None:
        frame, b, parser = self.frame, self.frame.b, self.program.parser
        frame.jump(self.done if parser.init_state is None else self.states[parser.init_state])
        for state in parser.states.values():
            frame.enter(self.states[state.name])
            self._state(state)
        frame.enter(self.done)
        for name in late_headers(self.program, self.layout):
            header = self.layout.headers[name]
            absent = b.icmp_unsigned("==", frame.raw_load(frame.address(header.valid), header.valid), I8(0))
            with b.if_then(absent, likely=False):
                frame.zero(frame.at(frame.phv, header.offset), header.size)
        position = b.load(self.position, typ=I64)
        frame.store(frame.hidden("parsed"), b.trunc(position, I32))
        error = b.load(self.error, typ=I32)
        if "parser_error" in self.program.intrinsic:
            frame.set(self.layout.slot(self.program.intrinsic["parser_error"]), error)
        failed = b.icmp_unsigned("!=", error, I32(self.program.errors["NoError"]))
        with b.if_then(failed, likely=False):
            frame.count("parser_errors")
        payload = (frame.at(self.packet, position), b.sub(self.length, position))
        verify_checksums(frame, payload)
        frame.finish()
        for name, block in self.failures.items():
            b.position_at_end(block)
            b.store(I32(self.program.errors[name]), self.error)
            b.branch(self.done)

    def _fail(self, name: str) -> ir.Block:
        if name not in self.failures:
            self.failures[name] = self.frame.new_block(f"error.{name}")
        return self.failures[name]

    def _require(self, condition: Value, error: str) -> None:
        """Go on if the condition holds, else stop with the error."""
        onward = self.frame.new_block("ok")
        self.frame.branch(condition, onward, self._fail(error))
        self.frame.enter(onward)

    def _available(self, size: Value) -> Value:
        """Whether `size` (u64) bytes are left. Returns the cursor too."""
        b = self.frame.b
        position = b.load(self.position, typ=I64)
        return b.icmp_unsigned("<=", size, b.sub(self.length, position))

    def _advance(self, size: Value) -> None:
        b = self.frame.b
        b.store(b.add(b.load(self.position, typ=I64), size), self.position)

    def _cursor(self) -> Value:
        return self.frame.at(self.packet, self.frame.b.load(self.position, typ=I64))

    # --- states

    def _state(self, state: ParseState) -> None:
        b = self.frame.b
        if self._in_loop(state.name):
            steps = b.add(b.load(self.steps, typ=I32), I32(1))
            b.store(steps, self.steps)
            self._require(b.icmp_unsigned("<=", steps, I32(MAX_STEPS)), "ParserTimeout")
        for op in state.ops:
            try:
                self._operation(op)
            except Unsupported as error:
                raise Unsupported(f"{op.where}: {error}") from None
        try:
            self._transition(state)
        except Unsupported as error:
            raise Unsupported(f"parser state {state.name!r}: {error}") from None

    def _in_loop(self, name: str) -> bool:
        """Whether a state can come back to itself."""
        states = self.program.parser.states
        seen: set[str] = set()
        todo = [name]
        while todo:
            for transition in states[todo.pop()].transitions:
                following = transition.next_state
                if following == name:
                    return True
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(following)
        return False

    def _transition(self, state: ParseState) -> None:
        frame, b = self.frame, self.frame.b
        default: str | None = None
        cases: list[Transition] = []
        for transition in state.transitions:
            if transition.value is None:
                default = transition.next_state
            else:
                cases.append(transition)
        if not state.key or not cases:
            frame.jump(self._block(default))
            return
        components = [self._key(expr) for expr in state.key]
        for case in cases:
            condition = self._matches(case, components)
            onward = frame.new_block("case")
            frame.branch(condition, self._block(case.next_state), onward)
            frame.b.position_at_end(onward)  # the key's values stay known
        b.branch(self._block(default))

    def _block(self, state: str | None) -> ir.Block:
        return self.done if state is None else self.states[state]

    def _key(self, expr: Expr) -> tuple[Value, int]:
        """A select component and its width in bits."""
        if isinstance(expr, Lookahead):
            return self._lookahead(expr), expr.width
        expressions = self.primitives.expressions
        if isinstance(expr, FieldRef):
            width = expressions.width_of(expr)
        elif isinstance(expr, StackLast):
            width = expressions.width_of(FieldRef(self.program.stacks[expr.stack].headers[0], expr.field))
        else:
            raise Unsupported("a select on something that is not a field or a lookahead; assign it to a variable first")
        return expressions.modulo(expr, width), width

    def _matches(self, case: Transition, components: list[tuple[Value, int]]) -> Value:
        """Value and mask are laid out in whole bytes for each component, the first one highest."""
        b = self.frame.b
        assert case.value is not None
        remaining = sum((width + 7) // 8 * 8 for _, width in components)
        result = None
        for value, width in components:
            remaining -= (width + 7) // 8 * 8
            wanted = case.value >> remaining & (1 << (width + 7) // 8 * 8) - 1
            mask = (1 << width) - 1 if case.mask is None else case.mask >> remaining & (1 << width) - 1
            if case.mask is None and wanted >> width:
                return ir.Constant(ir.IntType(1), 0)
            masked = b.and_(value, ir.Constant(value.type, mask)) if mask != (1 << width) - 1 else value
            equal = b.icmp_unsigned("==", masked, ir.Constant(value.type, wanted & mask))
            result = equal if result is None else b.and_(result, equal)
        return result

    def _lookahead(self, expr: Lookahead) -> Value:
        """Bits behind the cursor, as an integer of their width; PacketTooShort if they are not there."""
        frame, b = self.frame, self.frame.b
        size = (expr.offset + expr.width + 7) // 8
        self._require(self._available(I64(size)), "PacketTooShort")
        first = expr.offset // 8
        value = frame.load_big_endian(frame.at(self._cursor(), first), size - first)
        right = 8 * size - expr.offset - expr.width
        if right:
            value = b.lshr(value, ir.Constant(value.type, right))
        return frame.resize(value, expr.width)

    # --- operations

    def _operation(self, op: ParserOp) -> None:
        frame, b = self.frame, self.frame.b
        expressions = self.primitives.expressions
        match op.op:
            case "extract" | "extract_VL":
                self._extract(op)
            case "set":
                target, source = op.args
                if isinstance(source, Lookahead):
                    expressions.assign(target, self._lookahead(source))
                elif self._is_varbit(target):
                    self.primitives._do_assign_VL(target, source)
                else:
                    expressions.assign(target, expressions.modulo(source, expressions.width_of(target)))
            case "verify":
                condition, code = op.args
                number = expressions.modulo(code, 32)
                onward, failed = frame.new_block("verified"), frame.new_block("refused")
                frame.branch(expressions.truth(condition), onward, failed)
                with b.goto_block(failed):
                    b.store(number, self.error)
                    b.branch(self.done)
                frame.enter(onward)
            case "advance":
                self._skip(op.args[0])
            case "primitive":
                assert op.primitive is not None
                if op.primitive.op == "exit":
                    raise Unsupported("exit in a parser")
                self.primitives.lower(op.primitive)

    def _is_varbit(self, expr: Expr) -> bool:
        if not isinstance(expr, FieldRef):
            return False
        field = self.program.headers[expr.header].field(expr.field)
        return field is not None and field.varbit

    def _skip(self, amount: Expr) -> None:
        b = self.frame.b
        bits = self._unsigned(amount)
        if not isinstance(amount, Const):
            self._require(b.icmp_unsigned("==", b.and_(bits, I64(7)), I64(0)), "ParserInvalidArgument")
        elif amount.value % 8:
            raise Unsupported("advance by a number of bits that is not a multiple of 8")
        size = b.lshr(bits, I64(3))
        self._require(self._available(size), "PacketTooShort")
        self._advance(size)

    def _unsigned(self, expr: Expr) -> Value:
        """A number of bits as u64."""
        expressions = self.primitives.expressions
        bounds: Interval = expressions.interval(expr)
        if bounds.lo < 0 or bounds.hi >= 1 << 63:
            raise Unsupported("a length that may be negative or exceed 63 bits; use an unsigned type of at most 32 bits")
        return expressions.modulo(expr, 64)

    def _extract(self, op: ParserOp) -> None:
        frame, b = self.frame, self.frame.b
        target = op.args[0]
        varbit_bits = self._unsigned(op.args[1]) if op.op == "extract_VL" else None
        if isinstance(target, HeaderRef):
            self._extract_header(target.name, varbit_bits)
            return
        assert isinstance(target, StackRef)
        stack = self.program.stacks[target.name]
        place = self.layout.stacks[target.name]
        following = frame.load(place.next)
        self._require(b.icmp_unsigned("<", following, I32(place.size)), "StackOutOfBounds")
        # One copy of the extraction for each element: their number is small and every address stays known.
        joined = frame.new_block("extracted")
        blocks = [frame.new_block(f"element{i}") for i in range(len(stack.headers))]
        frame.flush()
        switch = b.switch(frame.load(place.next), blocks[-1])
        for index, block in enumerate(blocks[:-1]):
            switch.add_case(I32(index), block)
        for index, (name, block) in enumerate(zip(stack.headers, blocks, strict=True)):
            frame.enter(block)
            self._extract_header(name, varbit_bits)
            frame.store(place.next, I32(index + 1))
            frame.jump(joined)
        frame.enter(joined)

    def _extract_header(self, name: str, varbit_bits: Value | None) -> None:
        frame, b = self.frame, self.frame.b
        header, layout = self.program.headers[name], self.layout.headers[name]
        before, after = runs(header.type, layout)
        fixed = header.type.fixed_bits // 8
        if layout.varbit is None:
            self._require(self._available(I64(fixed)), "PacketTooShort")
            frame.forget()
            self._read_runs(before, self._cursor())
            self._advance(I64(fixed))
            frame.store(layout.valid, I8(1))
            return
        if varbit_bits is None:
            raise Unsupported("a header with a varbit needs the extract method with two arguments")
        self._require(b.icmp_unsigned("==", b.and_(varbit_bits, I64(7)), I64(0)), "ParserInvalidArgument")
        size = b.lshr(varbit_bits, I64(3))
        self._require(self._available(b.add(size, I64(fixed))), "PacketTooShort")
        self._require(b.icmp_unsigned("<=", size, I64(layout.varbit.max_bytes)), "HeaderTooShort")
        frame.forget()
        cursor = self._cursor()
        self._read_runs(before, cursor)
        middle = frame.at(cursor, sum(run.size for run in before))
        frame.memcpy(frame.at(frame.phv, layout.varbit.offset), middle, size)
        self._read_runs(after, frame.at(middle, size))
        frame.store(layout.varbit.length, b.trunc(varbit_bits, I32))
        self._advance(b.add(size, I64(fixed)))
        frame.store(layout.valid, I8(1))

    def _read_runs(self, pieces: list[Run], source: Value) -> None:
        frame, b = self.frame, self.frame.b
        position = 0
        while position < len(pieces):
            run = pieces[position]
            count = lanes(pieces, position)
            slot, width = run.fields[0]
            if count > 1:
                for first, size in vector_parts(count, width):
                    kind = ir.VectorType(ir.IntType(width), size) if size > 1 else ir.IntType(width)
                    offset = first * width // 8
                    value = b.load(frame.at(source, run.start + offset), typ=kind, align=1)
                    b.store(frame.swap(value), frame.at(frame.phv, slot.offset + offset), align=width // 8)
                position += count
                continue
            position += 1
            if len(run.fields) == 1 and width > 64 and width == slot.container:
                frame.copy_reversed(frame.address(slot), frame.at(source, run.start), width // 8)
                continue
            whole = frame.load_big_endian(frame.at(source, run.start), run.size)
            right = 8 * run.size
            for field, bits in run.fields:
                right -= bits
                part = b.lshr(whole, ir.Constant(whole.type, right)) if right else whole
                frame.raw_store(frame.address(field), field, frame.fit(part, bits, field.container))
