"""Lowering of actions: one native function for each, `void (context, phv, entry data)`, and the primitives they are made of.

What each primitive does is defined by simple_switch (targets/simple_switch/primitives.cpp and
src/bm_sim/core/primitives.cpp there). Where BMv2 leaves an index out of range undefined, registers read 0 and drop writes,
counters count nothing and stacks read 0.
"""

from __future__ import annotations

from llvmlite import ir

from switchsum.softswitch.expressions import Expressions, Params
from switchsum.softswitch.frame import I8, I32, I64, I128, PTR, VOID, Frame, Unit, Value
from switchsum.softswitch.hashes import Calculations
from switchsum.softswitch.layout import CLONE_MARK, MAX_LOOPS, HeaderLayout, action_params
from switchsum.softswitch.program import (
    Action,
    Const,
    Expr,
    FieldRef,
    HeaderRef,
    Named,
    Primitive,
    StackRef,
    Unsupported,
)

DROP_PORT = 511


class Primitives:
    """Lowers primitives inside one Frame."""

    def __init__(self, frame: Frame, params: Params | None = None) -> None:
        self.frame = frame
        self.unit = frame.unit
        self.layout = frame.unit.layout
        self.program = frame.unit.program
        self.expressions = Expressions(frame, params)

    def lower(self, primitive: Primitive) -> None:
        """One primitive that is not a jump."""
        method = getattr(self, f"_do_{primitive.op}", None)
        if method is None:
            raise Unsupported("this primitive is not implemented")
        method(*primitive.args)

    # --- assignments

    def _do_assign(self, target: Expr, source: Expr) -> None:
        self.expressions.assign(target, self.expressions.modulo(source, self.expressions.width_of(target)))

    def _do_assign_VL(self, target: Expr, source: Expr) -> None:
        mine, other = self._varbit(target), self._varbit(source)
        frame = self.frame
        frame.forget()
        size = frame.b.lshr(frame.raw_load(frame.address(other.length), other.length), I32(3))
        limit = I32(mine.max_bytes)
        size = frame.b.select(frame.b.icmp_unsigned("<", size, limit), size, limit)
        frame.memmove(frame.at(frame.phv, mine.offset), frame.at(frame.phv, other.offset), frame.b.zext(size, I64))
        frame.store(mine.length, frame.b.shl(size, I32(3)))

    def _varbit(self, expr: Expr):  # type: ignore[no-untyped-def]
        if isinstance(expr, FieldRef) and expr.field != "$valid$":
            place = self.layout.headers[expr.header].varbit
            if place is not None and expr.field not in self.layout.headers[expr.header].fields:
                return place
        raise Unsupported("varbit assignment between things that are not varbit fields")

    def _do_assign_header(self, target: Expr, source: Expr) -> None:
        if not (isinstance(target, HeaderRef) and isinstance(source, HeaderRef)):
            raise Unsupported("assignment of a stack element chosen at run time; use constant indexes or copy its fields")
        self._copy_header(target.name, source.name)

    def _copy_header(self, target: str, source: str) -> None:
        """Validity too; the fields only if the source is valid, as BMv2 does."""
        if self.program.headers[target].type is not self.program.headers[source].type:
            raise Unsupported(f"assignment of header {source!r} to {target!r}, which has another type")
        if target == source:
            return
        frame = self.frame
        mine, other = self.layout.headers[target], self.layout.headers[source]
        valid = frame.load(other.valid)
        frame.store(mine.valid, valid)
        frame.forget()
        size = frame.b.select(frame.b.icmp_unsigned("!=", valid, I8(0)), I64(mine.size), I64(0))
        frame.memcpy(frame.at(frame.phv, mine.offset), frame.at(frame.phv, other.offset), size)
        self._mark_written(mine)

    def _mark_written(self, header: HeaderLayout) -> None:
        self.unit.written.update(header.fields.values())
        self.unit.written.add(header.valid)
        if header.varbit is not None:
            self.unit.written.add(header.varbit.length)
            self.unit.written_bytes.add((header.varbit.offset, header.varbit.max_bytes))

    def _do_assign_header_stack(self, target: Expr, source: Expr) -> None:
        if not (isinstance(target, StackRef) and isinstance(source, StackRef)):
            raise Unsupported("stack assignment between things that are not header stacks")
        mine, other = self.program.stacks[target.name], self.program.stacks[source.name]
        if len(mine.headers) != len(other.headers):
            raise Unsupported("assignment of a header stack to one of another size")
        self.frame.store(self.layout.stacks[mine.name].next, self.frame.load(self.layout.stacks[other.name].next))
        for left, right in zip(mine.headers, other.headers, strict=True):
            self._copy_header(left, right)

    # --- validity and stacks

    def _header(self, expr: Expr) -> str:
        if not isinstance(expr, HeaderRef):
            raise Unsupported("validity of a stack element chosen at run time; use a constant index")
        return expr.name

    def _wire_bytes(self, name: str) -> Value:
        header = self.program.headers[name]
        place = self.layout.headers[name].varbit
        size = I32(header.type.fixed_bits // 8)
        if place is None:
            return size
        return self.frame.b.add(size, self.frame.b.lshr(self.frame.load(place.length), I32(3)))

    def _do_add_header(self, target: Expr) -> None:
        """setValid: a header that was invalid starts with all fields zero (as in BMv2); the packet grows."""
        name = self._header(target)
        header = self.layout.headers[name]
        frame, b = self.frame, self.frame.b
        was_invalid = b.icmp_unsigned("==", frame.load(header.valid), I8(0))
        length = self.layout.hidden["length"]
        if header.varbit is not None:
            frame.store(header.varbit.length, b.select(was_invalid, I32(0), frame.load(header.varbit.length)))
        growth = b.select(was_invalid, self._wire_bytes(name), I32(0))
        frame.store(length, b.add(frame.load(length), growth))
        frame.store(header.valid, I8(1))
        frame.forget()
        with b.if_then(was_invalid):
            frame.zero(frame.at(frame.phv, header.offset), header.size)
        self._mark_written(header)

    def _do_remove_header(self, target: Expr) -> None:
        name = self._header(target)
        header = self.layout.headers[name]
        frame, b = self.frame, self.frame.b
        was_valid = b.icmp_unsigned("!=", frame.load(header.valid), I8(0))
        length = self.layout.hidden["length"]
        shrink = b.select(was_valid, self._wire_bytes(name), I32(0))
        frame.store(length, b.sub(frame.load(length), shrink))
        frame.store(header.valid, I8(0))

    def _do_push(self, stack: Expr, amount: Expr) -> None:
        self._shift(stack, amount, forward=True)

    def _do_pop(self, stack: Expr, amount: Expr) -> None:
        self._shift(stack, amount, forward=False)

    def _shift(self, stack: Expr, amount: Expr, forward: bool) -> None:
        """push_front and pop_front of P4_16: move the whole stack, invalidate what is new or left over."""
        if not (isinstance(stack, StackRef) and isinstance(amount, Const)):
            raise Unsupported("push or pop of a header stack by an amount that is not constant")
        frame, b = self.frame, self.frame.b
        place = self.layout.stacks[stack.name]
        names = self.program.stacks[stack.name].headers
        count = min(amount.value, place.size)
        if count == 0:
            return
        following = frame.load(place.next)
        if forward:
            more = b.add(following, I32(count))
            frame.store(place.next, b.select(b.icmp_unsigned("<", more, I32(place.size)), more, I32(place.size)))
        else:
            less = b.sub(following, I32(count))
            frame.store(place.next, b.select(b.icmp_unsigned(">", following, I32(count)), less, I32(0)))
        frame.forget()
        first = self.layout.headers[names[0]]
        body, valid = frame.at(frame.phv, first.offset), frame.address(first.valid)
        kept = place.size - count
        span = (kept - 1) * place.stride + first.size if kept else 0
        source, target = (0, count) if forward else (count, 0)
        if kept:
            frame.memmove(frame.at(body, target * place.stride), frame.at(body, source * place.stride), span)
            frame.memmove(frame.at(valid, target), frame.at(valid, source), kept)
        frame.zero(frame.at(valid, 0 if forward else kept), count)
        for name in names:
            self._mark_written(self.layout.headers[name])

    # --- registers, counters, random, hash

    def _register(self, expr: Expr):  # type: ignore[no-untyped-def]
        if not isinstance(expr, Named):
            raise Unsupported("a register access on something that is not a register")
        group, lane = self.layout.register_place[expr.name]
        return self.layout.groups[group], lane

    def _index(self, expr: Expr) -> Value:
        number = self.expressions.exact(expr)
        if number.range.lo < 0:
            raise Unsupported("an index that may be negative; use an unsigned index")
        return number.value

    def _do_register_read(self, target: Expr, register: Expr, index: Expr) -> None:
        group, lane = self._register(register)
        value = self.frame.load_cell(group, lane, self.frame.row(group, self._index(index)))
        self.expressions.assign(target, value)

    def _do_register_write(self, register: Expr, index: Expr, source: Expr) -> None:
        group, lane = self._register(register)
        row = self.frame.row(group, self._index(index))
        value = self.expressions.modulo(source, group.width)
        self.frame.store_cell(group, lane, row, self.frame.resize(value, 8 * group.cell_bytes))

    def _do_count(self, counter: Expr, index: Expr) -> None:
        if not isinstance(counter, Named):
            raise Unsupported("count on something that is not a counter")
        frame, b = self.frame, self.frame.b
        size = self.program.counters[counter.name].size
        position = self._index(index)
        if position.type.width < 64:
            position = b.zext(position, I64)
        length = frame.load(self.layout.hidden["ingress_length"])
        frame.flush()
        with b.if_then(b.icmp_unsigned("<", position, ir.Constant(position.type, size)), likely=True):
            base = frame.read_pointer(f"counter:{counter.name}")
            cell = frame.at(base, b.mul(frame.resize(position, 64), I64(16)))
            add_to_counter(frame, cell, length)

    def _do_modify_field_rng_uniform(self, target: Expr, low: Expr, high: Expr) -> None:
        """random(): a number of 64 bits from the dataplane's seeded generator; lo > hi leaves the target alone."""
        frame, b = self.frame, self.frame.b
        lo, hi = self.expressions.modulo(low, 64), self.expressions.modulo(high, 64)
        old = self.expressions.modulo(target, 64)
        drawn = b.call(random_function(self.unit), [frame.context, lo, hi])
        self.expressions.assign(target, b.select(b.icmp_unsigned("<=", lo, hi), drawn, old))

    def _do_modify_field_with_hash_based_offset(self, target: Expr, base: Expr, hashed: Expr, size: Expr) -> None:
        """hash(): base + hash % max in 64 bits; max 0 counts as 1."""
        if not isinstance(hashed, Named):
            raise Unsupported("hash over something that is not a calculation")
        b = self.frame.b
        start, modulus = self.expressions.modulo(base, 64), self.expressions.modulo(size, 64)
        result = Calculations(self.frame, None).result(self.program.calculations[hashed.name])
        modulus = b.select(b.icmp_unsigned("==", modulus, I64(0)), I64(1), modulus)
        self.expressions.assign(target, b.add(b.urem(result, modulus), start))

    # --- what the traffic manager looks at

    def _do_mark_to_drop(self, _: Expr | None = None) -> None:
        intrinsic = self.program.intrinsic
        spec = self.layout.slot(intrinsic["egress_spec"])
        self.frame.set(spec, I32(DROP_PORT))
        if "mcast_grp" in intrinsic:
            group = self.layout.slot(intrinsic["mcast_grp"])
            self.frame.set(group, I32(0))

    def _do_drop(self) -> None:
        self._do_mark_to_drop()

    def _do_no_op(self) -> None:
        pass

    def _do_log_msg(self) -> None:
        pass

    def _do_assert(self, _: Expr) -> None:
        """Checked by verifiers and by BMv2, which aborts; a switch in service goes on."""

    _do_assume = _do_assert

    def _hidden(self, name: str, value: Value) -> None:
        self.frame.store(self.layout.hidden[name], value)

    def _list_number(self, expr: Expr) -> Value:
        if not isinstance(expr, Const) or expr.value not in self.program.field_lists:
            raise Unsupported("a field list that is not declared; recompile with p4c-bm2-ss")
        return I32(expr.value)

    def _clone(self, session: Expr, fields: Expr) -> None:
        number = self.frame.b.zext(self.expressions.modulo(session, 16), ir.IntType(32))
        self._hidden("clone_session", self.frame.b.or_(number, I32(CLONE_MARK)))
        self._hidden("clone_list", self._list_number(fields))

    _do_clone_ingress_pkt_to_egress = _clone
    _do_clone_egress_pkt_to_egress = _clone

    def _do_resubmit(self, fields: Expr) -> None:
        self._hidden("resubmit_list", self._list_number(fields))

    def _do_recirculate(self, fields: Expr) -> None:
        self._hidden("recirculate_list", self._list_number(fields))

    def _do_generate_digest(self, _: Expr, __: Expr) -> None:
        self._hidden("digest_list", I32(1))

    def _do_truncate(self, length: Expr) -> None:
        """The smallest limit of all calls holds."""
        b = self.frame.b
        wanted = self.expressions.modulo(length, 32)
        limit = b.select(b.icmp_unsigned("<", wanted, I32(0xFFFFFFFE)), wanted, I32(0xFFFFFFFE))
        limit = b.add(limit, I32(1))
        old = self.frame.load(self.layout.hidden["truncate"])
        smaller = b.or_(b.icmp_unsigned("==", old, I32(0)), b.icmp_unsigned("<", limit, old))
        self._hidden("truncate", b.select(smaller, limit, old))

    def _do_exit(self) -> None:
        self._hidden("exit", I32(1))


def add_to_counter(frame: Frame, cell: Value, length: Value) -> None:
    """One packet of `length` (u32) bytes on a (packets, bytes) pair of u64."""
    b = frame.b
    second = frame.at(cell, 8)
    b.store(b.add(b.load(cell, typ=I64), I64(1)), cell)
    b.store(b.add(b.load(second, typ=I64), b.zext(length, I64)), second)


def random_function(unit: Unit) -> ir.Function:
    """u64 (context, lo, hi): uniform in [lo, hi].

    SplitMix64 (Steele, Lea and Flood, 2014), scaled by taking the high half of a product.
    """
    if "random" in unit.functions:
        return unit.functions["random"]
    function = unit.define("random", I64, [PTR, I64, I64])
    frame = Frame(unit, function, function.args[0], function.args[0])
    b = frame.b
    _, lo, hi = function.args
    state = b.add(frame.read_word("random"), I64(0x9E3779B97F4A7C15))
    frame.write_word("random", state)
    mixed = state
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = b.mul(b.xor(mixed, b.lshr(mixed, I64(shift))), I64(factor))
    mixed = b.xor(mixed, b.lshr(mixed, I64(31)))
    span = b.add(b.zext(b.sub(hi, lo), I128), I128(1))
    scaled = b.trunc(b.lshr(b.mul(b.zext(mixed, I128), span), I128(64)), I64)
    frame.finish(b.add(lo, scaled))
    return function


def lower_action(unit: Unit, action: Action) -> ir.Function:
    """The native function of an action. Raises Unsupported with the primitive's place in the text."""
    function = unit.define(f"action.{action.id}", VOID, [PTR, PTR, PTR])
    unit.take_writes()
    frame = Frame(unit, function, function.args[0], function.args[1])
    slots, _ = action_params(unit.program, action.id)
    params = Params(tuple(width for _, width in action.params), slots, function.args[2])
    primitives = Primitives(frame, params)
    targets = {_jump_target(p, len(action.primitives)) for p in action.primitives if p.op.startswith("_jump")}
    backward = any(
        _jump_target(p, len(action.primitives)) <= i for i, p in enumerate(action.primitives) if p.op.startswith("_jump")
    )
    blocks = {t: frame.new_block(f"at{t}") for t in sorted(targets)}
    end = blocks.get(len(action.primitives)) or frame.new_block("end")
    entered: set[int] = set()
    if backward:
        frame.store(frame.hidden("loops"), I32(0))
    for position, primitive in enumerate(action.primitives):
        try:
            if position in blocks and position not in entered:
                if not frame.b.block.is_terminated:
                    frame.jump(blocks[position])
                frame.enter(blocks[position])
            elif frame.b.block.is_terminated:
                frame.enter(frame.new_block("unreachable"))
            if primitive.op.startswith("_jump"):
                target = _jump_target(primitive, len(action.primitives))
                destination = end if target == len(action.primitives) else blocks[target]
                if target <= position:
                    destination = _bounded(frame, destination, end)
                if primitive.op == "_jump":
                    frame.jump(destination)
                else:
                    onward = blocks.get(position + 1) or frame.new_block("onward")
                    if position + 1 == len(action.primitives):
                        onward = end
                    frame.branch(primitives.expressions.truth(primitive.args[0]), onward, destination)
                    if onward is not end:
                        frame.enter(onward)
                        entered.add(position + 1)
            else:
                primitives.lower(primitive)
        except Unsupported as error:
            raise Unsupported(f"{primitive.where}: {error}") from None
    if not frame.b.block.is_terminated:
        frame.jump(end)
    frame.enter(end)
    frame.finish()
    unit.action_writes[action.id] = unit.take_writes()
    return function


def _jump_target(primitive: Primitive, count: int) -> int:
    target = primitive.args[-1]
    if not isinstance(target, Const) or not 0 <= target.value <= count:
        raise Unsupported(f"{primitive.where}: a jump out of the action; recompile with p4c-bm2-ss")
    return target.value


def _bounded(frame: Frame, destination: ir.Block, end: ir.Block) -> ir.Block:
    """A block that leads back to `destination`, or to `end` when the action has looped too often."""
    check, stop = frame.new_block("loop"), frame.new_block("stopped")
    here = frame.b.block
    with frame.b.goto_block(check):
        counter = frame.address(frame.hidden("loops"))
        taken = frame.b.add(frame.b.load(counter, typ=I32(0).type), I32(1))
        frame.b.store(taken, counter)
        frame.b.cbranch(frame.b.icmp_unsigned("<=", taken, I32(MAX_LOOPS)), destination, stop)
    with frame.b.goto_block(stop):
        frame.count("loops_stopped")
        frame.b.branch(end)
    frame.b.position_at_end(here)
    return check
