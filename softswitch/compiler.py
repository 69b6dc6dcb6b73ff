"""From a program to LLVM: lowers every part into one module."""

from __future__ import annotations

from collections.abc import Callable

from switchsum.softswitch.actions import lower_action
from switchsum.softswitch.deparser import lower_deparser
from switchsum.softswitch.frame import Unit
from switchsum.softswitch.layout import ContextMap, Layout
from switchsum.softswitch.parsers import ParserLowering
from switchsum.softswitch.pipeline import lower_pipeline
from switchsum.softswitch.program import Program, Unsupported, UnsupportedProgram
from switchsum.softswitch.traffic import Traffic


def lower(program: Program) -> Unit:
    """The program as an LLVM module. Raises UnsupportedProgram naming each part that cannot be lowered."""
    layout = Layout(program)
    unit = Unit(program, layout, ContextMap(program, layout))
    problems: list[str] = []
    for action in program.actions.values():
        try:
            lower_action(unit, action)
        except Unsupported as error:
            problems.append(str(error))
    steps: list[Callable[[], object]] = [
        lambda: ParserLowering(unit).lower(),
        lambda: lower_deparser(unit),
    ]
    if not problems:
        steps += [
            lambda: lower_pipeline(unit, program.ingress),
            lambda: lower_pipeline(unit, program.egress),
            lambda: Traffic(unit).define_all(),
        ]
    for step in steps:
        try:
            step()
        except Unsupported as error:
            problems.append(str(error))
            break
    if problems:
        raise UnsupportedProgram(program.source, problems)
    return unit
