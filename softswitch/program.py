"""The model of a compiled P4 program, read from the JSON that p4c-bm2-ss writes.

Format: BMv2's `docs/JSON_format.md`, version 2.x. The reader turns every construct into a frozen dataclass and collects *all*
constructs that this switch cannot run before it gives up, so that a programmer sees the whole list at once.
Later stages (layout, lowering) see only this model, never the JSON.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchsum.softswitch.frame import Unit
    from switchsum.softswitch.native import NativeCode

SUPPORTED_MAJOR_VERSION = 2


class UnsupportedProgram(ValueError):
    """The program needs something this switch does not do, or the file is not BMv2 JSON.

    `problems` lists one line for each construct: what it is, where it stands, what to do instead.
    """

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{source}: the softswitch cannot run this program:\n{lines}")


class Unsupported(Exception):
    """One construct that cannot be run; the reader and the lowering add where it stands."""


# --- expressions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    value: int


@dataclass(frozen=True)
class Flag:
    value: bool


@dataclass(frozen=True)
class FieldRef:
    header: str
    field: str


@dataclass(frozen=True)
class StackLast:
    """Field of the last header pushed or extracted into a stack (`stack.last.field`)."""

    stack: str
    field: str


@dataclass(frozen=True)
class Param:
    """Action parameter by position."""

    index: int


@dataclass(frozen=True)
class Lookahead:
    """`width` bits that start `offset` bits behind the parser's cursor."""

    offset: int
    width: int


@dataclass(frozen=True)
class HeaderRef:
    name: str


@dataclass(frozen=True)
class StackRef:
    name: str


@dataclass(frozen=True)
class Named:
    """Reference to an extern object: `kind` is one of register_array, counter_array, calculation, string."""

    kind: str
    name: str


@dataclass(frozen=True)
class Op:
    op: str
    left: Expr | None
    right: Expr | int | None
    cond: Expr | None = None


Expr = Const | Flag | FieldRef | StackLast | Param | Lookahead | HeaderRef | StackRef | Named | Op

DATA_OPERATORS = frozenset(
    ["+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "~", "?", "b2d", "two_comp_mod", "sat_cast", "usat_cast"]
) | frozenset(["last_stack_index", "size_stack", "access_field"])
BOOL_OPERATORS = frozenset(["==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "valid", "d2b", "?"])
HEADER_OPERATORS = frozenset(["dereference_header_stack"])
OPERATORS = DATA_OPERATORS | BOOL_OPERATORS | HEADER_OPERATORS


def children(expr: Expr) -> Iterator[Expr]:
    """The direct operands of an expression."""
    if isinstance(expr, Op):
        for operand in (expr.left, expr.right, expr.cond):
            if operand is not None and not isinstance(operand, int):
                yield operand


# --- declarations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    name: str
    width: int  # bits; the maximum for a varbit
    signed: bool = False
    varbit: bool = False


@dataclass(frozen=True)
class HeaderType:
    name: str
    fields: tuple[Field, ...]

    @property
    def fixed_bits(self) -> int:
        """Bits on the wire without the varbit."""
        return sum(f.width for f in self.fields if not f.varbit)

    @property
    def max_bytes(self) -> int:
        return (sum(f.width for f in self.fields) + 7) // 8

    @cached_property
    def varbit(self) -> Field | None:
        return next((f for f in self.fields if f.varbit), None)


@dataclass(frozen=True)
class Header:
    name: str
    id: int
    type: HeaderType
    metadata: bool

    def field(self, name: str) -> Field | None:
        return next((f for f in self.type.fields if f.name == name), None)


@dataclass(frozen=True)
class HeaderStack:
    name: str
    type: HeaderType
    headers: tuple[str, ...]


@dataclass(frozen=True)
class Primitive:
    op: str
    args: tuple[Expr, ...]
    where: str


@dataclass(frozen=True)
class Action:
    name: str
    id: int
    params: tuple[tuple[str, int], ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True)
class ParserOp:
    """op: extract (HeaderRef | StackRef), extract_VL (same, bits), set, verify, advance (bits), primitive."""

    op: str
    args: tuple[Expr, ...]
    primitive: Primitive | None
    where: str


@dataclass(frozen=True)
class Transition:
    """value None: the default. value and mask cover the key's byte-padded components, first component highest."""

    value: int | None
    mask: int | None
    next_state: str | None


@dataclass(frozen=True)
class ParseState:
    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[Expr, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class Parser:
    name: str
    init_state: str | None
    states: dict[str, ParseState]


@dataclass(frozen=True)
class Register:
    name: str
    size: int
    width: int
    signed: bool = False


@dataclass(frozen=True)
class Counter:
    name: str
    size: int


@dataclass(frozen=True)
class CalculationInput:
    """kind: field (FieldRef), const (value and bits), header (name), payload."""

    kind: str
    field: FieldRef | None = None
    value: int = 0
    bits: int = 0
    header: str = ""


@dataclass(frozen=True)
class Calculation:
    name: str
    algorithm: str
    inputs: tuple[CalculationInput, ...]


@dataclass(frozen=True)
class Checksum:
    name: str
    target: FieldRef
    calculation: str
    condition: Expr | None
    verify: bool
    update: bool


@dataclass(frozen=True)
class TableKey:
    name: str
    match: str  # exact, lpm, ternary, range, optional
    field: FieldRef
    width: int
    mask: int | None


@dataclass(frozen=True)
class ConstEntry:
    """match: one tuple for each key: (exact, v), (lpm, v, prefix), (ternary, v, mask), (range, lo, hi)."""

    match: tuple[tuple[Any, ...], ...]
    priority: int  # as in P4Runtime: the higher wins
    action: int
    params: tuple[int, ...]


@dataclass(frozen=True)
class DefaultEntry:
    action: int
    params: tuple[int, ...]
    const: bool


@dataclass(frozen=True)
class TableDecl:
    name: str
    keys: tuple[TableKey, ...]
    match: str
    max_size: int
    with_counters: bool
    actions: tuple[int, ...]
    next_by_action: dict[int, str | None]
    next_hit: str | None
    next_miss: str | None
    by_hit: bool
    base_next: str | None
    default: DefaultEntry | None
    entries: tuple[ConstEntry, ...]
    has_const_entries: bool


@dataclass(frozen=True)
class Conditional:
    name: str
    expression: Expr
    true_next: str | None
    false_next: str | None


@dataclass(frozen=True)
class ActionCall:
    name: str
    action: int
    next: str | None


@dataclass(frozen=True)
class Pipeline:
    name: str
    init: str | None
    tables: dict[str, TableDecl]
    conditionals: dict[str, Conditional]
    calls: dict[str, ActionCall]


HASH_ALGORITHMS = frozenset(["crc16", "crc32", "csum16", "cksum16", "xor16", "identity"])

HASH_RESULT_BITS = {"crc16": 16, "crc32": 32, "csum16": 16, "cksum16": 16, "xor16": 16, "identity": 64}

CORE_ERRORS = (
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
)

# Names that simple_switch looks up through field_aliases, with the field that v1model.p4 declares for each.
INTRINSIC_FIELDS = (
    "ingress_port",
    "egress_spec",
    "egress_port",
    "instance_type",
    "packet_length",
    "ingress_global_timestamp",
    "egress_global_timestamp",
    "mcast_grp",
    "egress_rid",
    "checksum_error",
    "parser_error",
    "priority",
    "enq_timestamp",
    "enq_qdepth",
    "deq_timedelta",
    "deq_qdepth",
)

REQUIRED_FIELDS = ("ingress_port", "egress_spec", "egress_port", "instance_type", "packet_length")


@dataclass
class Program:
    """A program that this switch can run. Immutable after `load`; the machine code is made once, on first use."""

    source: str
    digest: str  # SHA-256 of the JSON text
    headers: dict[str, Header]
    stacks: dict[str, HeaderStack]
    errors: dict[str, int]
    actions: dict[int, Action]
    parser: Parser
    deparser: tuple[str, ...]
    ingress: Pipeline
    egress: Pipeline
    registers: dict[str, Register]
    counters: dict[str, Counter]
    calculations: dict[str, Calculation]
    checksums: tuple[Checksum, ...]
    field_lists: dict[int, tuple[FieldRef, ...]]
    intrinsic: dict[str, FieldRef]
    _unit: Unit | None = field(default=None, repr=False)  # LLVM's text before it is compiled
    _native: NativeCode | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read and check a BMv2 JSON file.

        Raises UnsupportedProgram (naming every construct that cannot be run) or OSError.
        """
        return cls.from_text(Path(path).read_text(encoding="utf-8"), str(path))

    @classmethod
    def from_text(cls, text: str, source: str = "<text>") -> Program:
        """Read BMv2 JSON from a string. Raises UnsupportedProgram."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise UnsupportedProgram(source, [f"not JSON: {error}; give the .json file that p4c-bm2-ss wrote"]) from None
        if not isinstance(document, dict):
            raise UnsupportedProgram(source, ["not a BMv2 program: the top of the file is not an object"])
        from switchsum.softswitch.reader import Reader

        program = Reader(document, source, hashlib.sha256(text.encode()).hexdigest()).read()
        from switchsum.softswitch.compiler import lower

        program._unit = lower(program)  # refuses, by name, what only the lowering can see (unbounded shifts, for instance)
        return program

    @property
    def tables(self) -> dict[str, TableDecl]:
        return {**self.ingress.tables, **self.egress.tables}

    @property
    def native(self) -> NativeCode:
        """The program's machine code, compiled on first use and shared by all dataplanes that run it."""
        with self._lock:
            if self._native is None:
                from switchsum.softswitch.native import NativeCode

                assert self._unit is not None  # from_text sets it
                self._native = NativeCode(str(self._unit.module), self._unit.layout, self._unit.context)
                self._unit = None
            return self._native
