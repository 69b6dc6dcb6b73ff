"""Lowering of expressions.

BMv2 evaluates expressions in integers without bounds and p4c adds the masks and sign conversions that make P4's fixed
widths of them. Here an expression is lowered in one of two ways:

`modulo(expr, w)`  only the low w bits are wanted (an assignment, a mask): + - * << & | ^ ~ are done in w bits, for these
the
                   low w bits of the result depend on the low w bits of the operands alone.
`exact(expr)`      the integer itself is wanted (comparison, >>, division): an interval that contains every possible value
is inferred first,
                   and the value is then computed in as many bits as the interval needs.

An `Int` is an LLVM integer together with its interval: read as signed if the interval has negative numbers, else as
unsigned.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from switchsum.softswitch.frame import I1, I32, I64, Frame, Unit, Value
from switchsum.softswitch.layout import Slot, container_bits
from switchsum.softswitch.program import (
    BOOL_OPERATORS,
    Const,
    Expr,
    FieldRef,
    Flag,
    HeaderRef,
    Op,
    Param,
    StackLast,
    StackRef,
    Unsupported,
)

MAX_BITS = 1 << 17  # of an intermediate value; LLVM's own limit is 2^23, its patience is not


@dataclass(frozen=True)
class Interval:
    """All integers from lo to hi."""

    lo: int
    hi: int

    @property
    def bits(self) -> int:
        """Bits of the smallest integer type that holds the interval (signed if lo < 0)."""
        if self.lo >= 0:
            return max(self.hi.bit_length(), 1)
        return max((-self.lo - 1).bit_length(), max(self.hi, 0).bit_length()) + 1

    @staticmethod
    def around(*values: int) -> Interval:
        return Interval(min(values), max(values))


@dataclass(frozen=True)
class Int:
    """`value` of type iN holds a number within `range`: signed if range.lo < 0, else unsigned."""

    value: Value
    range: Interval


@dataclass(frozen=True)
class Params:
    """An action's parameters: either constants known at compile time or slots in entry data at `data`."""

    widths: tuple[int, ...]
    slots: tuple[Slot, ...] = ()
    data: Value = None
    constants: tuple[int, ...] | None = None


def bool_valued(expr: Expr) -> bool:
    """Whether the expression is a condition (i1) rather than a number."""
    if isinstance(expr, Flag):
        return True
    if isinstance(expr, Op):
        if expr.op == "?":
            return bool_valued(_operand(expr.left))
        return expr.op in BOOL_OPERATORS
    return False


def _operand(expr: Expr | int | None) -> Expr:
    if expr is None or isinstance(expr, int):
        raise Unsupported("an operand is missing; recompile with p4c-bm2-ss")
    return expr


def unsigned(width: int) -> Interval:
    return Interval(0, (1 << width) - 1)


def signed(width: int) -> Interval:
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


class Expressions:
    """Lowers expressions inside one Frame. `params` belong to the action being lowered."""

    def __init__(self, frame: Frame, params: Params | None = None) -> None:
        self.frame = frame
        self.params = params
        self.layout = frame.unit.layout
        self._memo: dict[Expr, tuple[Int, list[tuple[Slot, Value]]]] = {}

    # --- intervals

    def interval(self, expr: Expr) -> Interval:
        """Bounds of a number. Raises Unsupported where there are none of use."""
        result = self._interval(expr)
        if result.bits > MAX_BITS:
            raise Unsupported(f"an intermediate value may need {result.bits} bits; mask it or bound the shift count")
        return result

    def _interval(self, expr: Expr) -> Interval:
        match expr:
            case Const(value):
                return Interval(value, value)
            case FieldRef():
                slot = self._slot(expr)
                return signed(slot.width) if slot.signed else unsigned(slot.width)
            case StackLast(stack, field):
                first = self.frame.unit.program.stacks[stack].headers[0]
                return self._interval(FieldRef(first, field))
            case Param(index):
                assert self.params is not None  # the reader refuses parameters outside actions
                if self.params.constants is not None:
                    value = self.params.constants[index]
                    return Interval(value, value)
                return unsigned(self.params.widths[index])
            case Op():
                return self._operator_interval(expr)
        raise Unsupported(f"{type(expr).__name__} is not a number")

    def _operator_interval(self, expr: Op) -> Interval:
        op = expr.op
        if op == "b2d":
            return Interval(0, 1)
        if op == "last_stack_index":
            return Interval(-1, self._stack(expr.right).size - 1)
        if op == "size_stack":
            return Interval(0, self._stack(expr.right).size)
        if op == "access_field":
            slot = self._dynamic_field(expr)
            return signed(slot.width) if slot.signed else unsigned(slot.width)
        right = self.interval(_operand(expr.right))
        if op == "~":
            return Interval(~right.hi, ~right.lo)
        if op == "-" and expr.left is None:
            return Interval(-right.hi, -right.lo)
        left = self.interval(_operand(expr.left))
        match op:
            case "+":
                return Interval(left.lo + right.lo, left.hi + right.hi)
            case "-":
                return Interval(left.lo - right.hi, left.hi - right.lo)
            case "*":
                return Interval.around(*(a * b for a in (left.lo, left.hi) for b in (right.lo, right.hi)))
            case "<<":
                if right.lo < 0 or right.hi > MAX_BITS:
                    raise Unsupported("a shift to the left by an amount without a useful bound; mask the amount or the result")
                return Interval.around(*(a << b for a in (left.lo, left.hi) for b in (right.lo, right.hi)))
            case ">>":
                if right.lo < 0:
                    raise Unsupported("a shift by an amount that may be negative; use an unsigned amount")
                most = min(right.hi, left.bits + 1)
                return Interval.around(*(a >> b for a in (left.lo, left.hi) for b in (min(right.lo, most), most)))
            case "/" | "%":
                if left.lo < 0 or right.lo < 0:
                    raise Unsupported(f"{op} of a number that may be negative; P4 defines it for unsigned numbers only")
                return Interval(0, left.hi if op == "/" else max(min(left.hi, right.hi - 1), 0))
            case "&":
                if left.lo >= 0 and right.lo >= 0:
                    return Interval(0, min(left.hi, right.hi))
                if left.lo >= 0 or right.lo >= 0:
                    return Interval(0, left.hi if left.lo >= 0 else right.hi)
                return signed(max(left.bits, right.bits))
            case "|" | "^":
                if left.lo >= 0 and right.lo >= 0:
                    return unsigned(max(left.hi.bit_length(), right.hi.bit_length(), 1))
                return signed(max(_signed_bits(left), _signed_bits(right)))
            case "?":
                return Interval(min(left.lo, right.lo), max(left.hi, right.hi))
            case "two_comp_mod" | "sat_cast" | "usat_cast":
                width = self._constant_width(expr)
                bounds = unsigned(width) if op == "usat_cast" else signed(width)
                if bounds.lo <= left.lo and left.hi <= bounds.hi:
                    return left
                return bounds
        raise Unsupported(f"operator {op!r} does not yield a number")

    def _constant_width(self, expr: Op) -> int:
        width = expr.right
        if not isinstance(width, Const) or not 1 <= width.value <= MAX_BITS:
            raise Unsupported(f"{expr.op} to a width that is not a constant of at least 1")
        return width.value

    # --- numbers

    def exact(self, expr: Expr) -> Int:
        """The number itself."""
        known = self._memo.get(expr)
        if known is not None and all(self.frame.known(slot) is value for slot, value in known[1]):
            return known[0]
        result = self._exact(expr)
        slots = self._dependencies(expr)
        if slots is not None:
            self._memo[expr] = (result, [(slot, self.frame.load(slot)) for slot in slots])
        return result

    def _dependencies(self, expr: Expr) -> set[Slot] | None:
        """The fields an expression reads; None when memory at run-time addresses is among them."""
        match expr:
            case FieldRef():
                return {self._slot(expr)}
            case Const() | Flag():
                return set()
            case Op(op=op) if op in ("+", "-", "*", "<<", ">>", "&", "|", "^", "~"):
                result: set[Slot] = set()
                for operand in (expr.left, expr.right):
                    if operand is not None:
                        inner = self._dependencies(_operand(operand))
                        if inner is None:
                            return None
                        result |= inner
                return result
        return None

    def _exact(self, expr: Expr) -> Int:
        bounds = self.interval(expr)
        b = self.frame.b
        if bounds.lo == bounds.hi:
            bits = max(bounds.bits, 8)
            return Int(ir.Constant(ir.IntType(bits), bounds.lo % (1 << bits)), bounds)
        match expr:
            case FieldRef():
                slot = self._slot(expr)
                value = self.frame.load(slot)
                if slot.signed:
                    value = b.trunc(value, ir.IntType(slot.width)) if slot.container != slot.width else value
                return Int(value, bounds)
            case Param(index):
                assert self.params is not None
                slot = self.params.slots[index]
                return Int(self.frame.raw_load(self.frame.at(self.params.data, slot.offset), slot), bounds)
            case StackLast():
                return self._signed_load(*self._stack_last(expr), bounds)
            case Op(op="access_field"):
                address, slot = self._dynamic_address(expr, write=False)
                return self._signed_load(address, slot, bounds)
            case Op(op="last_stack_index"):
                return Int(b.sub(self.frame.load(self._stack(expr.right).next), I32(1)), bounds)
            case Op(op="size_stack"):
                return Int(self.frame.load(self._stack(expr.right).next), bounds)
            case Op(op="b2d"):
                return Int(b.zext(self.condition(_operand(expr.right)), ir.IntType(8)), bounds)
            case Op(op=">>"):
                return self._shift_right(expr, bounds)
            case Op(op="/" | "%"):
                return self._divide(expr, bounds)
            case Op(op="sat_cast" | "usat_cast"):
                return self._saturate(expr, bounds)
            case Op(op="?"):
                left, right = self.exact(_operand(expr.left)), self.exact(_operand(expr.right))
                bits = _natural(bounds)
                condition = self.condition(_operand(expr.cond))
                return Int(b.select(condition, self._convert(left, bits), self._convert(right, bits)), bounds)
        bits = _natural(bounds)
        return Int(self.modulo(expr, bits), bounds)

    def _signed_load(self, address: Value, slot: Slot, bounds: Interval) -> Int:
        value = self.frame.raw_load(address, slot)
        if slot.signed and slot.width != slot.container:
            value = self.frame.b.trunc(value, ir.IntType(slot.width))
        return Int(value, bounds)

    def _convert(self, number: Int, bits: int) -> Value:
        """The number modulo 2^bits."""
        width = number.value.type.width
        kind = ir.IntType(bits)
        if width > bits:
            return self.frame.b.trunc(number.value, kind)
        if width < bits:
            return self.frame.b.sext(number.value, kind) if number.range.lo < 0 else self.frame.b.zext(number.value, kind)
        return number.value

    def modulo(self, expr: Expr, bits: int) -> Value:
        """The number modulo 2^bits, as an LLVM integer of `bits` bits."""
        b = self.frame.b
        kind = ir.IntType(bits)
        match expr:
            case Const(value):
                return ir.Constant(kind, value % (1 << bits))
            case Op(op="&"):
                return self._mask(expr, bits)
            case Op(op="+" | "-" | "*" | "|" | "^" as op):
                right = self.modulo(_operand(expr.right), bits)
                if expr.left is None:
                    return b.sub(ir.Constant(kind, 0), right) if op == "-" else right
                left = self.modulo(_operand(expr.left), bits)
                emit = {"+": b.add, "-": b.sub, "*": b.mul, "|": b.or_, "^": b.xor}[op]
                return emit(left, right)
            case Op(op="~"):
                return b.not_(self.modulo(_operand(expr.right), bits))
            case Op(op="<<"):
                return self._shift_left(expr, bits)
            case Op(op="two_comp_mod"):
                width = self._constant_width(expr)
                inner = self.modulo(_operand(expr.left), min(width, bits))
                return b.sext(inner, kind) if bits > width else inner
            case Op(op="?"):
                condition = self.condition(_operand(expr.cond))
                left, right = self.modulo(_operand(expr.left), bits), self.modulo(_operand(expr.right), bits)
                return b.select(condition, left, right)
        if bool_valued(expr):
            raise Unsupported("a condition where a number belongs; recompile with p4c-bm2-ss")
        return self._convert(self.exact(expr), bits)

    def _mask(self, expr: Op, bits: int) -> Value:
        """x & y; a constant that is not negative bounds the bits that x is needed in."""
        b = self.frame.b
        kind = ir.IntType(bits)
        for operand, constant in ((expr.left, expr.right), (expr.right, expr.left)):
            if isinstance(constant, Const) and constant.value >= 0:
                width = min(bits, constant.value.bit_length())
                if width == 0:
                    return ir.Constant(kind, 0)
                value = self.modulo(_operand(operand), width)
                mask = constant.value % (1 << width)
                if mask != (1 << width) - 1:
                    value = b.and_(value, ir.Constant(ir.IntType(width), mask))
                return b.zext(value, kind) if width < bits else value
        return b.and_(self.modulo(_operand(expr.left), bits), self.modulo(_operand(expr.right), bits))

    def _shift_left(self, expr: Op, bits: int) -> Value:
        b = self.frame.b
        kind = ir.IntType(bits)
        left = self.modulo(_operand(expr.left), bits)
        amount = self.exact(_operand(expr.right))
        if amount.range.lo < 0:
            raise Unsupported("a shift by an amount that may be negative; use an unsigned amount")
        if isinstance(expr.right, Const):
            count = expr.right.value
            return ir.Constant(kind, 0) if count >= bits else b.shl(left, ir.Constant(kind, count))
        # A shift by `bits` or more is poison in LLVM, which does no harm where the select does not choose it.
        shifted = b.shl(left, self.frame.resize(amount.value, bits))
        return b.select(self._below(amount, bits), shifted, ir.Constant(kind, 0))

    def _below(self, amount: Int, bits: int) -> Value:
        """amount < bits"""
        if amount.range.hi < bits:
            return I1(1)
        return self.frame.b.icmp_unsigned("<", amount.value, ir.Constant(amount.value.type, bits))

    def _shift_right(self, expr: Op, bounds: Interval) -> Int:
        b = self.frame.b
        left = self.exact(_operand(expr.left))
        amount = self.exact(_operand(expr.right))
        kind = left.value.type
        bits = kind.width
        negative = left.range.lo < 0
        emit = b.ashr if negative else b.lshr
        if isinstance(expr.right, Const):
            count = expr.right.value
            if count >= bits:
                count = bits - 1 if negative else bits
            if count == bits:
                return Int(ir.Constant(kind, 0), bounds)
            return Int(emit(left.value, ir.Constant(kind, count)), bounds)
        gone = b.ashr(left.value, ir.Constant(kind, bits - 1)) if negative else ir.Constant(kind, 0)
        return Int(b.select(self._below(amount, bits), emit(left.value, self.frame.resize(amount.value, bits)), gone), bounds)

    def _divide(self, expr: Op, bounds: Interval) -> Int:
        """Unsigned division; by zero it yields 0, where BMv2 aborts and P4 leaves it undefined."""
        b = self.frame.b
        left, right = self.exact(_operand(expr.left)), self.exact(_operand(expr.right))
        bits = max(left.value.type.width, right.value.type.width)
        kind = ir.IntType(bits)
        numerator, divisor = self._convert(left, bits), self._convert(right, bits)
        zero = ir.Constant(kind, 0)
        by_zero = b.icmp_unsigned("==", divisor, zero)
        safe = b.select(by_zero, ir.Constant(kind, 1), divisor)
        if bits <= 64:
            result = b.udiv(numerator, safe) if expr.op == "/" else b.urem(numerator, safe)
        else:
            # LLVM would call libgcc for 128 bits, which need not be there, and finds ways to use 128 for more.
            result = b.call(division_function(self.frame.unit, expr.op, bits), [numerator, safe])
        return Int(b.select(by_zero, zero, result), bounds)

    def _saturate(self, expr: Op, bounds: Interval) -> Int:
        width = self._constant_width(expr)
        target = unsigned(width) if expr.op == "usat_cast" else signed(width)
        inner = self.exact(_operand(expr.left))
        if target.lo <= inner.range.lo and inner.range.hi <= target.hi:
            return inner
        both = Interval(min(inner.range.lo, target.lo), max(inner.range.hi, target.hi))
        bits = _natural(both)
        kind = ir.IntType(bits)
        b = self.frame.b
        value = self._convert(inner, bits)
        compare = b.icmp_signed if both.lo < 0 else b.icmp_unsigned
        low, high = (ir.Constant(kind, limit % (1 << bits)) for limit in (target.lo, target.hi))
        value = b.select(compare(">", value, high), high, value)
        value = b.select(compare("<", value, low), low, value)
        needed = max(bounds.bits, 8)
        return Int(b.trunc(value, ir.IntType(needed)) if needed < bits else value, bounds)

    # --- conditions

    def condition(self, expr: Expr) -> Value:
        """A boolean as i1."""
        b = self.frame.b
        match expr:
            case Flag(value):
                return I1(int(value))
            case Op(op="and"):
                return b.and_(self.condition(_operand(expr.left)), self.condition(_operand(expr.right)))
            case Op(op="or"):
                return b.or_(self.condition(_operand(expr.left)), self.condition(_operand(expr.right)))
            case Op(op="not"):
                return b.not_(self.condition(_operand(expr.right)))
            case Op(op="d2b"):
                number = self.exact(_operand(expr.right))
                return b.icmp_unsigned("!=", number.value, ir.Constant(number.value.type, 0))
            case Op(op="valid"):
                header = expr.right
                if not isinstance(header, HeaderRef):
                    raise Unsupported("validity of something that is not a header")
                return self.is_valid(header.name)
            case Op(op="?"):
                left, right = self.condition(_operand(expr.left)), self.condition(_operand(expr.right))
                return b.select(self.condition(_operand(expr.cond)), left, right)
            case Op(op="==" | "!=" | "<" | "<=" | ">" | ">="):
                return self._compare(expr)
        raise Unsupported("a number where a condition belongs; recompile with p4c-bm2-ss")

    def truth(self, expr: Expr) -> Value:
        """A condition, or a number that is not zero."""
        if bool_valued(expr):
            return self.condition(expr)
        return self.condition(Op("d2b", None, expr))

    def _compare(self, expr: Op) -> Value:
        b = self.frame.b
        left_expr, right_expr = _operand(expr.left), _operand(expr.right)
        if isinstance(left_expr, HeaderRef) and isinstance(right_expr, HeaderRef):
            equal = self._headers_equal(left_expr.name, right_expr.name)
            return equal if expr.op == "==" else b.not_(equal)
        if bool_valued(left_expr):
            return b.icmp_unsigned(expr.op, self.condition(left_expr), self.condition(right_expr))
        left, right = self.exact(left_expr), self.exact(right_expr)
        both = Interval(min(left.range.lo, right.range.lo), max(left.range.hi, right.range.hi))
        bits = max(both.bits, left.value.type.width, right.value.type.width)
        if both.lo < 0 and (left.range.lo >= 0 or right.range.lo >= 0):
            bits += 1  # room for the sign of the one that is unsigned
        compare = b.icmp_signed if both.lo < 0 else b.icmp_unsigned
        return compare(expr.op, self._convert(left, bits), self._convert(right, bits))

    def _headers_equal(self, left: str, right: str) -> Value:
        """Both valid and all fields equal (BMv2's rule)."""
        b = self.frame.b
        headers = self.frame.unit.program.headers
        if headers[left].type is not headers[right].type:
            return I1(0)
        if headers[left].type.varbit is not None:
            raise Unsupported("comparison of headers with a varbit field; compare the fields")
        result = b.and_(self.is_valid(left), self.is_valid(right))
        mine, other = self.layout.headers[left].fields, self.layout.headers[right].fields
        for name, slot in mine.items():
            result = b.and_(result, b.icmp_unsigned("==", self.frame.load(slot), self.frame.load(other[name])))
        return result

    def is_valid(self, header: str) -> Value:
        value = self.frame.load(self.layout.headers[header].valid)
        return self.frame.b.icmp_unsigned("!=", value, ir.Constant(value.type, 0))

    # --- places

    def _slot(self, ref: FieldRef) -> Slot:
        try:
            return self.layout.slot(ref)
        except KeyError:
            raise Unsupported(
                f"varbit {ref.header}.{ref.field} inside an expression; varbits can only be extracted, copied and emitted"
            ) from None

    def _stack(self, expr: Expr | int | None):  # type: ignore[no-untyped-def]
        if not isinstance(expr, StackRef):
            raise Unsupported("a stack operation on something that is not a header stack")
        return self.layout.stacks[expr.name]

    def _stack_last(self, expr: StackLast) -> tuple[Value, Slot]:
        b = self.frame.b
        program, stack = self.frame.unit.program, self.layout.stacks[expr.stack]
        first = program.stacks[expr.stack].headers[0]
        following = b.zext(self.frame.load(stack.next), I64)
        return self._element(expr.stack, b.sub(following, I64(1)), first, expr.field, write=False)

    def _element(self, stack: str, index: Value, first: str, field: str, write: bool) -> tuple[Value, Slot]:
        """Address of stack[index].field; out of range: a place that reads zero or takes the write."""
        b = self.frame.b
        place, header = self.layout.stacks[stack], self.layout.headers[first]
        self.frame.forget()  # the address is only known at run time: memory must be up to date
        in_range = b.icmp_unsigned("<", index, I64(place.size))
        if field == "$valid$":
            slot = header.valid
            offset = b.add(b.select(in_range, index, I64(0)), I64(slot.offset))
            nowhere = I64(place.trash if write else place.zero)
        else:
            if field not in header.fields:
                raise Unsupported(f"varbit {field!r} of a stack element; varbits can only be extracted and emitted")
            slot = header.fields[field]
            offset = b.add(b.mul(b.select(in_range, index, I64(0)), I64(place.stride)), I64(slot.offset))
            nowhere = I64((place.trash if write else place.zero) + slot.offset - header.offset)
        return self.frame.at(self.frame.phv, b.select(in_range, offset, nowhere)), slot

    def _dynamic_parts(self, expr: Op) -> tuple[str, Expr, str]:
        """stack name, index, field name of access_field(dereference_header_stack(stack, index), field)."""
        inner = expr.left
        if not (isinstance(inner, Op) and inner.op == "dereference_header_stack" and isinstance(inner.left, StackRef)):
            raise Unsupported("access_field of something that is not a header stack element")
        program = self.frame.unit.program
        stack = program.stacks[inner.left.name]
        names = [f.name for f in stack.type.fields]
        if not isinstance(expr.right, int) or not 0 <= expr.right < len(names):
            raise Unsupported(f"field number {expr.right} of a header with {len(names)} fields")
        return stack.name, _operand(inner.right), names[expr.right]

    def _dynamic_field(self, expr: Op) -> Slot:
        stack, _, field = self._dynamic_parts(expr)
        return self._slot(FieldRef(self.frame.unit.program.stacks[stack].headers[0], field))

    def _dynamic_address(self, expr: Op, write: bool) -> tuple[Value, Slot]:
        stack, index, field = self._dynamic_parts(expr)
        number = self._convert(self.exact(index), 64)
        first = self.frame.unit.program.stacks[stack].headers[0]
        return self._element(stack, number, first, field, write)

    def assign(self, target: Expr, value: Value) -> None:
        """Store an integer of any size (its low bits) in a field, named statically or through a stack index."""
        if isinstance(target, FieldRef):
            self.frame.set(self._slot(target), value)
            return
        if isinstance(target, Op) and target.op == "access_field":
            self.frame.flush()
            address, slot = self._dynamic_address(target, write=True)
            self.frame.raw_store(address, slot, self.frame.fit(value, slot.width, slot.container))
            stack, _, field = self._dynamic_parts(target)
            for name in self.frame.unit.program.stacks[stack].headers:
                self.frame.unit.written.add(self.layout.slot(FieldRef(name, field)))
            self.frame.forget()
            return
        raise Unsupported("assignment to something that is not a field")

    def width_of(self, target: Expr) -> int:
        """Bits of an assignable place."""
        if isinstance(target, FieldRef):
            return self._slot(target).width
        if isinstance(target, Op) and target.op == "access_field":
            return self._dynamic_field(target).width
        raise Unsupported("assignment to something that is not a field")


def _signed_bits(interval: Interval) -> int:
    return interval.bits if interval.lo < 0 else interval.bits + 1


def _natural(interval: Interval) -> int:
    """A comfortable integer size for the interval: machine sizes for small ones."""
    bits = interval.bits
    return container_bits(bits) if bits <= 64 else bits


def division_function(unit: Unit, op: str, bits: int) -> ir.Function:
    """iN (iN, iN): quotient or remainder of unsigned numbers of any size, bit by bit; the divisor is not 0."""
    name = f"{'quotient' if op == '/' else 'remainder'}.{bits}"
    if name in unit.functions:
        return unit.functions[name]
    kind = ir.IntType(bits)
    function = unit.define(name, kind, [kind, kind])
    function.attributes.add("noinline")
    numerator, divisor = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    before = b.block
    loop, done = b.append_basic_block("bit"), b.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    # The numerator moves out at the top into `rest`, the quotient moves in at the bottom; `rest` has a bit more, for the carry.
    wider = ir.IntType(bits + 1)
    left, moving, rest = b.phi(I32), b.phi(kind), b.phi(wider)
    left.add_incoming(I32(bits), before)
    moving.add_incoming(numerator, before)
    rest.add_incoming(ir.Constant(wider, 0), before)
    top = b.zext(b.lshr(moving, ir.Constant(kind, bits - 1)), wider)
    shifted = b.or_(b.shl(rest, ir.Constant(wider, 1)), top)
    wide_divisor = b.zext(divisor, wider)
    fits = b.icmp_unsigned(">=", shifted, wide_divisor)
    remainder = b.select(fits, b.sub(shifted, wide_divisor), shifted)
    quotient = b.or_(b.shl(moving, ir.Constant(kind, 1)), b.zext(fits, kind))
    fewer = b.sub(left, I32(1))
    left.add_incoming(fewer, loop)
    moving.add_incoming(quotient, loop)
    rest.add_incoming(remainder, loop)
    b.cbranch(b.icmp_unsigned("==", fewer, I32(0)), done, loop)
    b.position_at_end(done)
    b.ret(quotient if op == "/" else b.trunc(remainder, kind))
    return function
