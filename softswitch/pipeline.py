"""Lowering of a control pipeline: `void (context, phv)`, a graph of tables, conditions and action calls."""

from __future__ import annotations

from llvmlite import ir

from switchsum.softswitch.actions import add_to_counter
from switchsum.softswitch.expressions import Expressions
from switchsum.softswitch.frame import I32, I64, PTR, VOID, Frame, Unit, Value
from switchsum.softswitch.layout import entry_layout
from switchsum.softswitch.lookups import lower_lookup
from switchsum.softswitch.program import Action, Pipeline, TableDecl, Unsupported


def lower_pipeline(unit: Unit, pipeline: Pipeline) -> ir.Function:
    for table in pipeline.tables.values():
        if table.keys:
            lower_lookup(unit, table)
    function = unit.define(f"pipeline.{pipeline.name}", VOID, [PTR, PTR])
    frame = Frame(unit, function, function.args[0], function.args[1])
    names = [*pipeline.tables, *pipeline.conditionals, *pipeline.calls]
    blocks = {name: frame.new_block(name) for name in names}
    end = frame.new_block("end")

    def block(name: str | None) -> ir.Block:
        return end if name is None else blocks[name]

    frame.jump(block(pipeline.init))
    for table in pipeline.tables.values():
        frame.enter(blocks[table.name])
        _TableNode(frame, table, block, end).lower()
    for condition in pipeline.conditionals.values():
        frame.enter(blocks[condition.name])
        try:
            value = Expressions(frame).truth(condition.expression)
        except Unsupported as error:
            raise Unsupported(f"condition {condition.name!r} of {pipeline.name!r}: {error}") from None
        frame.branch(value, block(condition.true_next), block(condition.false_next))
    for call in pipeline.calls.values():
        frame.enter(blocks[call.name])
        frame.call(f"action.{call.action}", [frame.context, frame.phv, ir.Constant(PTR, None)])
        _leave(frame, unit.program.actions[call.action], block(call.next), end)
    frame.enter(end)
    frame.finish()
    return function


def _leave(frame: Frame, action: Action, onward: ir.Block, end: ir.Block) -> None:
    """Go on behind an action, or to the end if it has called exit."""
    if any(primitive.op == "exit" for primitive in action.primitives):
        left = frame.b.icmp_unsigned("!=", frame.load(frame.hidden("exit")), I32(0))
        frame.branch(left, end, onward)
    else:
        frame.jump(onward)


class _TableNode:
    """One table: look up, count, run the action, go where the action (or hit or miss) leads."""

    def __init__(self, frame: Frame, table: TableDecl, block, end: ir.Block) -> None:  # type: ignore[no-untyped-def]
        self.frame = frame
        self.table = table
        self.block = block
        self.end = end
        self.layout = entry_layout(frame.unit.program, table.name)

    def lower(self) -> None:
        frame, table = self.frame, self.table
        prefix = f"table:{table.name}"
        default = frame.read_pointer(f"{prefix}:default_data")
        if not table.keys:
            if table.default is not None and table.default.const:
                self._run(table.default.action, default, None)
            else:
                self._dispatch(default, None)
            return
        b = frame.b
        entry = b.call(frame.unit.functions[f"lookup.{table.name}"], [frame.context, frame.phv])
        hit = b.icmp_signed(">=", entry, I64(0))
        if table.with_counters:
            with b.if_then(hit, likely=True):
                cell = frame.at(frame.read_pointer(f"{prefix}:counters"), b.mul(entry, I64(16)))
                length = frame.hidden("ingress_length")
                add_to_counter(frame, cell, frame.raw_load(frame.address(length), length))
        stored = frame.at(frame.read_pointer(f"{prefix}:data"), b.mul(entry, I64(self.layout.data_bytes)))
        self._dispatch(b.select(hit, stored, default), hit)

    def _dispatch(self, data: Value, hit: Value | None) -> None:
        """Call the action whose number stands in the entry data."""
        frame, b = self.frame, self.frame.b
        number = b.load(data, typ=I32)
        none = frame.new_block("no_action")
        switch = b.switch(number, none)
        for action in self.layout.param_slots:
            here = frame.new_block("action")
            switch.add_case(I32(action), here)
            frame.enter(here)
            self._run(action, data, hit)
        frame.enter(none)
        frame.jump(self._next(None, hit))

    def _run(self, action: int, data: Value, hit: Value | None) -> None:
        frame = self.frame
        declaration = frame.unit.program.actions[action]
        if declaration.primitives:
            frame.call(f"action.{action}", [frame.context, frame.phv, data])
        _leave(frame, declaration, self._next(action, hit), self.end)

    def _next(self, action: int | None, hit: Value | None) -> ir.Block:
        """Where to go behind an action (None: there was none)."""
        table = self.table
        if not table.by_hit:
            if action is None or action not in table.next_by_action:
                return self.block(table.base_next)
            return self.block(table.next_by_action[action])
        if hit is None:
            return self.block(table.next_miss)
        fork = self.frame.new_block("hit_or_miss")
        with self.frame.b.goto_block(fork):
            self.frame.b.cbranch(hit, self.block(table.next_hit), self.block(table.next_miss))
        return fork
