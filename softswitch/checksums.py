"""Checksums: verified when the parser has finished, updated before the deparser writes (simple_switch's order)."""

from __future__ import annotations

from switchsum.softswitch.expressions import Expressions
from switchsum.softswitch.frame import I32, Frame, Value
from switchsum.softswitch.hashes import Calculations
from switchsum.softswitch.program import Unsupported


def verify_checksums(frame: Frame, payload: tuple[Value, Value]) -> None:
    """standard_metadata.checksum_error = some checksum with a valid target, whose condition holds, is wrong."""
    program = frame.unit.program
    target = program.intrinsic.get("checksum_error")
    checks = [c for c in program.checksums if c.verify]
    if target is None or not checks:
        return
    slot = frame.unit.layout.slot(target)
    frame.set(slot, I32(0))
    for checksum in checks:
        try:
            expressions = Expressions(frame)
            condition = expressions.is_valid(checksum.target.header)
            if checksum.condition is not None:
                condition = frame.b.and_(condition, expressions.truth(checksum.condition))
            frame.forget()
            with frame.b.if_then(condition):
                result = Calculations(frame, payload).result(program.calculations[checksum.calculation])
                stated = expressions.modulo(checksum.target, 64)
                wrong = frame.b.icmp_unsigned("!=", result, stated)
                old = frame.raw_load(frame.address(slot), slot)
                frame.raw_store(frame.address(slot), slot, frame.b.or_(old, frame.b.zext(wrong, old.type)))
            frame.forget()
        except Unsupported as error:
            raise Unsupported(f"checksum {checksum.name!r}: {error}") from None


def update_checksums(frame: Frame, payload: tuple[Value, Value]) -> None:
    """Write every checksum whose condition holds; like simple_switch, whether its header is valid or not."""
    program = frame.unit.program
    for checksum in program.checksums:
        if not checksum.update:
            continue
        try:
            condition = None
            if checksum.condition is not None:
                condition = Expressions(frame).truth(checksum.condition)
            frame.forget()
            if condition is None:
                _update(frame, checksum.calculation, payload, checksum.target)
            else:
                with frame.b.if_then(condition):
                    _update(frame, checksum.calculation, payload, checksum.target)
        except Unsupported as error:
            raise Unsupported(f"checksum {checksum.name!r}: {error}") from None


def _update(frame: Frame, calculation: str, payload: tuple[Value, Value], target) -> None:  # type: ignore[no-untyped-def]
    result = Calculations(frame, payload).result(frame.unit.program.calculations[calculation])
    Expressions(frame).assign(target, result)
    frame.forget()
