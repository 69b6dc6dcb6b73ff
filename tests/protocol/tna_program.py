"""The source of p4src/tna as Python: what its P4 says, executed without a compiler for Tofino or a Tofino.

P4's preprocessor is C's (`cpp`). The rest is translated once, statement by statement; of the language just what the program
uses, and anything else is a SyntaxError that names the token. A control is translated where it is applied, with its parameters
bound to the caller's fields. What cannot be seen here is what the compiler and the chip make of the source: stages, containers,
instructions of stateful ALUs.
"""

from __future__ import annotations

import functools
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from switchsum.p4src import generate
from tests.protocol.switch_under_test import checksum

CPP = shutil.which("cpp")
ARCHITECTURE = Path(__file__).with_name("tna_architecture.p4")
PORT_METADATA_BITS = {1: 64, 2: 192}  # by __TARGET_TOFINO__
NOWHERE = 0x1FF  # the port of a packet for which none was chosen

_TOKEN = re.compile(
    r'\s*(?:(\d+w)?(0[xX][0-9a-fA-F_]+|\d[\d_]*)|([A-Za-z_]\w*)|("[^"]*")|(&&&|\|-\||\+\+|&&|\|\||==|!=|<=|>=|<<|[^\s\w"]))'
)
_PRECEDENCE = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4, "|": 5, "^": 6, "&": 7, "<<": 8}
_PRECEDENCE |= {"++": 9, "+": 9, "-": 9, "|-|": 9, "*": 10}
_EXTERNS = {"Register", "RegisterAction", "RegisterAction2", "Counter", "DirectCounter", "Random", "Checksum", "Resubmit"}


class Kind(NamedTuple):
    """A P4 type: name "bit", "int", "bool", "literal" (an integer without a width), or a struct's or header's own."""

    name: str
    bits: int = 0


LITERAL, BOOL = Kind("literal"), Kind("bool")


class Value(NamedTuple):
    """An expression in Python. Of an extern or a control, `code` is what is asked of it."""

    code: str
    kind: Kind


class Record:
    """A struct or header at work: fields are attributes; `is_valid` of headers."""

    is_valid = False


class Cells(dict[int, Any]):
    """A register: its cells are made when they are first reached."""

    def __init__(self, size: int, new: Callable[[], Any]) -> None:
        super().__init__()
        self._size, self._new = size, new

    def __missing__(self, index: int) -> Any:
        if not 0 <= index < self._size:
            raise IndexError(f"cell {index} of {self._size}")
        self[index] = self._new()
        return self[index]


class Cut(Exception):
    """A packet ends inside a header."""


class PacketIn:
    """Bytes on their way through a parser."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def lookahead(self, bits: int) -> int:
        return int.from_bytes(self._data[self._at : self._at + bits // 8], "big")

    def advance(self, bits: int) -> None:
        if self._at + bits // 8 > len(self._data):
            raise Cut
        self._at += bits // 8

    def extract(self, header: Record, layout: list[tuple[str, int, int]], bits: int) -> None:
        start = self._at
        self.advance(bits)
        number = int.from_bytes(self._data[start : self._at], "big")
        for name, shift, mask in layout:
            setattr(header, name, number >> shift & mask)
        header.is_valid = True

    def rest(self) -> bytes:
        return self._data[self._at :]


@dataclass
class TableEntry:
    """An action with its data, and what has been counted."""

    action: str
    params: tuple[int, ...]
    packets: int = 0
    octets: int = 0

    def count(self, octets: int) -> None:
        self.packets += 1
        self.octets += octets


@dataclass
class Table:
    """`constant`: entries of the source, first match wins; `entries`: those that a controller writes, all exact."""

    key: Callable[[Any], tuple[int, ...]]
    actions: dict[str, Callable[..., None]]
    constant: list[tuple[list[tuple[int, int]], TableEntry]] | None
    default: TableEntry
    entries: dict[tuple[int, ...], TableEntry] = field(default_factory=dict)

    def apply(self, state: Any) -> None:
        key = self.key(state)
        if self.constant is None:
            entry = self.entries.get(key, self.default)
        else:
            fits = (e for masks, e in self.constant if all(v & m == w for v, (w, m) in zip(key, masks, strict=True)))
            entry = next(fits, self.default)
        state.entry = entry
        self.actions[entry.action](state, *entry.params)


def preprocessed(target: int, elements: int) -> str:
    """The program's text for Tofino (1) or Tofino 2 (2)."""
    assert CPP is not None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "core.p4").touch()
        for name in ("tna.p4", "t2na.p4"):
            shutil.copyfile(ARCHITECTURE, Path(folder) / name)
        defined = [
            f"-D__TARGET_TOFINO__={target}",
            f"-DELEMENTS={elements}",
            f"-DPORT_METADATA_SIZE={PORT_METADATA_BITS[target]}",
        ]
        command = [CPP, "-P", "-undef", "-nostdinc", "-x", "c", "-I", folder, "-I", "include", "-I", "tna", *defined]
        return subprocess.run(
            [*command, "tna/switchsum.p4"], cwd=generate.HERE, check=True, capture_output=True, text=True
        ).stdout


class TnaProgram:
    """One switch: the program with empty tables and registers of zeros."""

    def __init__(self, source: str) -> None:
        """`source`: as preprocessed() gives it, or changed. Raises SyntaxError for P4 that the program has not used so far."""
        self.tables: dict[str, Table] = {}
        self.registers: dict[str, Cells] = {}
        self.counters: dict[str, Counter[int]] = {}
        translator = _Translator(source, self)
        self.ingress = translator.gress("SwitchIngress", "IngressParser", "IngressDeparser")
        self.egress = translator.gress("SwitchEgress", "EgressParser", "EgressDeparser")


class _Translator:
    """Reads the tokens and writes Python, both from left to right."""

    def __init__(self, source: str, program: TnaProgram) -> None:
        self._tokens = list(_tokens(source))
        self._at = 0
        self._program = program
        self._types: dict[str, Kind] = {}
        self._fields: dict[str, dict[str, Kind]] = {}
        self._headers: set[str] = set()
        self._controls: dict[str, int] = {}
        self._constants: dict[str, Value] = {}
        self._functions: list[str] = []
        self._records: dict[str, str] = {}  # type -> the state's record of it, in the gress at work
        self._applied: list[Value] = []  # arguments of the control that is being applied
        self._second_output: str | None = None  # where RegisterAction2 puts the other of its results
        self._scope: dict[str, Any] = {
            "Table": Table,
            "TableEntry": TableEntry,
            "Cut": Cut,
            "checksum": checksum,
            "program": program,
            "new": self.new,
            "dice": random.Random(1),
            "no_action": lambda state: None,
        }
        self._top()

    # --- tokens ----------------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead]

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if self._next() != token:
            near = " ".join(self._tokens[max(self._at - 12, 0) : self._at])
            raise SyntaxError(f"{token!r} expected: {near}")

    def _skip(self, opening: str, closing: str) -> None:
        """From behind an opening token to behind its closing one."""
        depth = 1
        while depth:
            token = self._next()
            depth += (token == opening) - (token == closing)

    def _annotations(self) -> str:
        """The argument of @name, "" without one; others are left out."""
        name = ""
        while self._accept("@"):
            is_name = self._next() == "name"
            if self._accept("("):
                if is_name:
                    name = self._peek().strip('"')
                self._skip("(", ")")
        return name

    # --- declarations ----------------------------------------------------------------------------------------------

    def _top(self) -> None:
        while self._peek():
            self._annotations()
            word = self._next()
            if word == "const":
                kind = self._type()
                name = self._next()
                self._expect("=")
                self._constants[name] = Value(self._expression({}).code, kind)
                self._expect(";")
            elif word == "typedef":
                kind = self._type()
                self._types[self._next()] = kind
                self._expect(";")
            elif word in ("header", "struct"):
                self._record(word == "header")
            elif word in ("control", "parser"):
                name = self._next()
                self._controls[name] = self._at
                while self._next() != "{":
                    pass
                self._skip("{", "}")
            elif word in ("Pipeline", "Switch"):
                while self._next() != ";":
                    pass
            else:
                raise SyntaxError(f"{word!r} is nothing that is declared at the top")

    def _record(self, is_header: bool) -> None:
        name = self._next()
        self._expect("{")
        fields: dict[str, Kind] = {}
        while not self._accept("}"):
            self._annotations()
            kind = self._type()
            fields[self._next()] = kind
            self._expect(";")
        self._fields[name] = fields
        if is_header:
            self._headers.add(name)

    def _type(self) -> Kind:
        word = self._next()
        if word in ("bit", "int"):
            self._expect("<")
            bits = int(self._next())
            self._expect(">")
            return Kind(word, bits)
        if word == "bool":
            return BOOL
        if word in self._types:
            return self._types[word]
        if word in self._fields:
            return Kind(word)
        raise SyntaxError(f"{word!r} is no type")

    def _is_type(self) -> bool:
        return self._peek() in ("bit", "int", "bool") or self._peek() in self._types

    def new(self, name: str) -> Record:
        """A record of zeros; headers in it are invalid."""
        record = Record()
        for field_name, kind in self._fields[name].items():
            setattr(record, field_name, self.new(kind.name) if kind.name in self._fields else 0)
        return record

    def _layout(self, name: str) -> tuple[list[tuple[str, int, int]], int]:
        """(field, shift, mask) of a header's fields, and its bits."""
        bits = sum(kind.bits for kind in self._fields[name].values())
        layout, left = [], bits
        for field_name, kind in self._fields[name].items():
            left -= kind.bits
            layout.append((field_name, left, (1 << kind.bits) - 1))
        return layout, bits

    def _register_layout(self, name: str) -> str:
        self._scope[f"layout_{name}"] = self._layout(name)
        return f"*layout_{name}"

    # --- a gress ---------------------------------------------------------------------------------------------------

    def gress(self, control: str, parser: str, deparser: str) -> Gress:
        """Parser, control and deparser of one direction."""
        self._functions, self._records = [], {}
        start = self._parser(parser)
        body = self._top_control("work", control, control)
        emit = self._top_control("emit", deparser, deparser)
        source = "\n".join([*self._functions, body, emit])
        exec(compile(source, control, "exec"), self._scope)
        return Gress(self.new, self._scope[start], self._scope["work"], self._scope["emit"], dict(self._records))

    def _parameters(self, name: str) -> list[tuple[str, str]]:
        """(name, type) of a control's or parser's; goes to its body."""
        self._at = self._controls[name]
        self._expect("(")
        found = []
        while not self._accept(")"):
            if self._peek() in ("in", "out", "inout"):
                self._next()
            kind = self._type().name if self._is_type() else self._next()
            found.append((self._next(), kind))
            self._accept(",")
        self._expect("{")
        return found

    def _global_scope(self, name: str) -> dict[str, Value]:
        """A top-level control's parameters: records of the state, one for each type."""
        env = dict(self._constants)
        for parameter, kind in self._parameters(name):
            env[parameter] = Value(f"state.{kind}", Kind(kind))
            if kind in self._fields:
                self._records[kind] = f"state.{kind}"
        return env

    def _top_control(self, function: str, name: str, path: str) -> str:
        env = self._global_scope(name)
        lines = [f"def {function}(state):", *self._control_body(env, path, " ")]
        return "\n".join(lines)

    def _control_body(self, env: dict[str, Any], path: str, indent: str) -> list[str]:
        """Declarations become functions and objects; returns the statements of apply."""
        while True:
            given = self._annotations()
            word = self._peek()
            if word == "apply":
                self._next()
                lines = self._block(env, indent)
                self._expect("}")
                return lines
            if word == "action":
                self._action(env, path)
            elif word == "table":
                self._table(env, path)
            elif word in _EXTERNS:
                self._extern(env, path)
            elif self._is_type():
                kind = self._type()
                name = self._next()
                self._expect(";")
                env[name] = Value(f"state.{_python(path)}_{name}", kind)
            elif word in self._controls:
                control = self._next()
                self._expect("(")
                self._expect(")")
                name = self._next()
                self._expect(";")
                env[name] = Value(f"{path}.{given or name}", Kind("control:" + control))
            else:
                raise SyntaxError(f"{word!r} in control {path}")

    def _extern(self, env: dict[str, Any], path: str) -> None:
        word = self._next()
        kinds: list[Kind] = []
        if self._accept("<"):
            while not self._accept(">"):
                kinds.append(self._type())
                self._accept(",")
        self._expect("(")
        arguments = []
        while not self._accept(")"):
            arguments.append(self._argument(env))
            self._accept(",")
        name = self._next()
        full, code = f"{path}.{name}", _python(f"{path}.{name}")
        env[name] = Value(code, Kind(word))
        if word == "Register":
            size = int(eval(arguments[0].code))
            row = kinds[0].name
            self._program.registers[full] = Cells(size, functools.partial(self.new, row) if row in self._fields else int)
            self._scope[code] = self._program.registers[full]
            env[name] = Value(code, Kind("Register:" + row, kinds[0].bits))
        elif word in ("RegisterAction", "RegisterAction2"):
            self._register_action(env, arguments[0], kinds[0], code)
            env[name] = Value(code, Kind("RegisterAction", kinds[-1].bits))
        elif word == "Counter":
            self._scope[code] = self._program.counters.setdefault(full, Counter())
        elif word == "Random":
            env[name] = Value(code, Kind(word, kinds[0].bits))
        self._expect(";")

    def _argument(self, env: dict[str, Any]) -> Value:
        if self._peek() == "CounterType_t":
            self._at += 3
            return Value("", LITERAL)
        return self._expression(env)

    def _register_action(self, env: dict[str, Any], register: Value, kind: Kind, code: str) -> None:
        for token in ("=", "{", "void", "apply", "("):
            self._expect(token)
        inner = dict(env)
        names = []
        while not self._accept(")"):
            self._next()
            own = self._type()
            name = self._next()
            inner[name] = Value(f"its_{name}", own)
            names.append(f"its_{name}")
            self._accept(",")
        row, outs = names[0], names[1:]
        lines = [f"def {code}(state, index):", f" {row} = {register.code}[index]", *(f" {out} = 0" for out in outs)]
        lines += self._block(inner, " ")
        if kind.name not in self._fields:
            lines.append(f" {register.code}[index] = {row}")
        lines.append(f" return {', '.join(outs) or None}")
        self._functions.append("\n".join(lines))
        self._expect("}")

    def _action(self, env: dict[str, Any], path: str) -> None:
        self._next()
        name = self._next()
        self._expect("(")
        inner, parameters = dict(env), []
        while not self._accept(")"):
            kind = self._type()
            parameter = self._next()
            inner[parameter] = Value(f"its_{parameter}", kind)
            parameters.append(f"its_{parameter}")
            self._accept(",")
        code = _python(f"{path}.{name}")
        lines = [f"def {code}({', '.join(['state', *parameters])}):", *(self._block(inner, " ") or [" pass"])]
        self._functions.append("\n".join(lines))
        env[name] = Value(code, Kind("action:" + f"{path}.{name}"))

    def _table(self, env: dict[str, Any], path: str) -> None:
        self._next()
        name = self._next()
        self._expect("{")
        keys: list[Value] = []
        actions: dict[str, str] = {"NoAction": "no_action"}
        constant, default = "None", "TableEntry('NoAction', ())"
        while not self._accept("}"):
            self._accept("const")
            part = self._next()
            self._expect("=")
            if part == "key":
                self._expect("{")
                while not self._accept("}"):
                    keys.append(self._expression(env))
                    self._expect(":")
                    self._next()  # exact or ternary
                    self._annotations()
                    self._expect(";")
            elif part == "actions":
                self._expect("{")
                while not self._accept("}"):
                    self._annotations()
                    action = self._next()
                    self._expect(";")
                    if action != "NoAction":
                        actions[env[action].kind.name.removeprefix("action:")] = env[action].code
            elif part == "entries":
                self._expect("{")
                rows = []
                while not self._accept("}"):
                    masks = [f"({value.code}, {mask})" for value, mask in self._key_set(env, keys)]
                    self._expect(":")
                    rows.append(f"([{', '.join(masks)}], {self._bound_action(env)})")
                    self._expect(";")
                constant = f"[{', '.join(rows)}]"
            elif part == "default_action":
                default = self._bound_action(env)
                self._expect(";")
            else:  # size, counters
                self._next()
                self._expect(";")
        code = _python(f"{path}.{name}")
        key = "".join(f"int({value.code}), " for value in keys)
        functions = ", ".join(f"{action!r}: {function}" for action, function in actions.items())
        self._functions.append(
            f"{code} = Table(lambda state: ({key}), {{{functions}}}, {constant}, {default})\n"
            f"program.tables[{f'{path}.{name}'!r}] = {code}"
        )
        env[name] = Value(code, Kind("table"))

    def _bound_action(self, env: dict[str, Any]) -> str:
        name = self._next()
        self._expect("(")
        arguments = []
        while not self._accept(")"):
            arguments.append(self._expression(env).code)
            self._accept(",")
        full = "NoAction" if name == "NoAction" else env[name].kind.name.removeprefix("action:")
        return f"TableEntry({full!r}, ({''.join(f'{argument}, ' for argument in arguments)}))"

    def _key_set(self, env: dict[str, Any], keys: list[Value]) -> list[tuple[Value, str]]:
        """(value, mask) of each of the keys, alone or in parentheses."""
        whole = len(keys) > 1
        if whole:
            self._expect("(")
        found = []
        for key in keys:
            if self._accept("_") or self._accept("default"):
                found.append((Value("0", LITERAL), "0"))
            else:
                value = self._expression(env)
                mask = self._expression(env).code if self._accept("&&&") else str((1 << max(key.kind.bits, 1)) - 1)
                found.append((Value(f"int({value.code}) & {mask}", value.kind), mask))
            self._accept(",")
        if whole:
            self._expect(")")
        return found

    # --- parsers ---------------------------------------------------------------------------------------------------

    def _parser(self, name: str) -> str:
        env = self._global_scope(name)
        while self._peek() != "state":
            self._annotations()
            self._extern(env, name)
        while self._accept("state"):
            state = self._next()
            self._expect("{")
            lines = [f"def {name}_{state}(state):"]
            while not self._accept("}"):
                lines += self._transition(env, name) if self._accept("transition") else self._statement(env, " ")
            self._functions.append("\n".join(lines))
        return f"{name}_start"

    def _transition(self, env: dict[str, Any], name: str) -> list[str]:
        def target() -> str:
            state = self._next()
            self._expect(";")
            return f"return {None if state == 'accept' else f'{name}_{state}'}"

        if not self._accept("select"):
            return [f" {target()}"]
        self._expect("(")
        keys = []
        while not self._accept(")"):
            keys.append(self._expression(env))
            self._accept(",")
        self._expect("{")
        lines = []
        while not self._accept("}"):
            if self._accept("default"):
                condition = "True"
            else:
                sets = zip(keys, self._key_set(env, keys), strict=True)
                condition = " and ".join(f"{key.code} & {mask} == {value.code}" for key, (value, mask) in sets)
            self._expect(":")
            lines.append(f" if {condition}: {target()}")
        return lines

    # --- statements ------------------------------------------------------------------------------------------------

    def _block(self, env: dict[str, Any], indent: str) -> list[str]:
        self._expect("{")
        lines: list[str] = []
        while not self._accept("}"):
            lines += self._statement(env, indent)
        return lines

    def _statement(self, env: dict[str, Any], indent: str) -> list[str]:
        if self._accept("if"):
            self._expect("(")
            lines = [f"{indent}if {self._expression(env).code}:"]
            self._expect(")")
            lines += self._block(env, indent + " ") or [f"{indent} pass"]
            if self._accept("else"):
                lines.append(f"{indent}else:")
                nested = indent + " "
                lines += self._statement(env, nested) if self._peek() == "if" else self._block(env, nested)
            return lines
        if self._is_type():
            kind = self._type()
            name = self._next()
            env[name] = Value(f"own_{name}", kind)
            self._expect("=")
            return self._assigned(env, env[name], indent)
        target = self._postfix(env)
        if self._accept("="):
            return self._assigned(env, target, indent)
        self._expect(";")
        if target.kind.name.startswith("applied:"):
            return self._apply_control(target, indent)
        return [f"{indent}{target.code}"]

    def _assigned(self, env: dict[str, Any], target: Value, indent: str) -> list[str]:
        self._second_output = None
        value = self._expression(env)
        self._expect(";")
        left = target.code if self._second_output is None else f"{target.code}, {self._second_output}"
        return [f"{indent}{left} = {value.code}"]

    def _apply_control(self, applied: Value, indent: str) -> list[str]:
        """The control's statements, its parameters bound to the arguments."""
        control, path = applied.kind.name.removeprefix("applied:"), applied.code
        arguments, back = self._applied, self._at
        parameters = self._parameters(control)
        env = dict(self._constants)
        for (name, _), argument in zip(parameters, arguments, strict=True):
            env[name] = argument
        lines = self._control_body(env, path, indent)
        self._at = back
        return lines

    # --- expressions -----------------------------------------------------------------------------------------------

    def _expression(self, env: dict[str, Any], lowest: int = 1) -> Value:
        left = self._unary(env)
        while (level := _PRECEDENCE.get(self._peek(), 0)) >= lowest:
            operator = self._next()
            left = _binary(operator, left, self._expression(env, level + 1))
        return left

    def _unary(self, env: dict[str, Any]) -> Value:
        if self._accept("!"):
            return Value(f"(not {self._unary(env).code})", BOOL)
        if self._peek() == "(":
            self._next()
            if self._is_type():
                kind = self._type()
                self._expect(")")
                return _cast(self._unary(env), kind)
            inside = self._expression(env)
            self._expect(")")
            return Value(f"({inside.code})", inside.kind)
        return self._postfix(env)

    def _postfix(self, env: dict[str, Any]) -> Value:
        token = self._next()
        if token in ("true", "false"):
            return Value(token.capitalize(), BOOL)
        if sized := re.fullmatch(r"(?:(\d+)w)?(0[xX][0-9a-fA-F_]+|\d[\d_]*)", token):
            kind = Kind("bit", int(sized[1])) if sized[1] else LITERAL
            return Value(str(int(sized[2].replace("_", ""), 0)), kind)
        if token == "max":
            one, other = self._arguments(env)
            return Value(f"max({one.code}, {other.code})", one.kind)
        value = Value("", Kind("packet")) if token == "packet" else env.get(token)
        if value is None:
            raise SyntaxError(f"{token!r} is nothing that is known here")
        if value.kind.name.startswith("action:") and self._peek() == "(":
            arguments = ", ".join(["state", *(argument.code for argument in self._arguments(env))])
            return Value(f"{value.code}({arguments})", value.kind)
        while True:
            if self._accept("."):
                name = self._next()
                fields = self._fields.get(value.kind.name, {})
                value = Value(f"{value.code}.{name}", fields[name]) if name in fields else self._method(env, value, name)
            elif self._accept("["):
                high = int(self._next())
                self._expect(":")
                low = int(self._next())
                self._expect("]")
                value = Value(f"({value.code} >> {low} & {(1 << high - low + 1) - 1})", Kind("bit", high - low + 1))
            else:
                return value

    def _arguments(self, env: dict[str, Any]) -> list[Value]:
        self._expect("(")
        found = []
        while not self._accept(")"):
            if self._accept("{"):
                while not self._accept("}"):
                    found.append(self._expression(env))
                    self._accept(",")
            else:
                found.append(self._expression(env))
            self._accept(",")
        return found

    def _method(self, env: dict[str, Any], of: Value, name: str) -> Value:
        if of.kind.name == "packet" and name == "lookahead":
            self._expect("<")
            kind = self._type()
            self._expect(">")
            self._arguments(env)
            return Value(f"state.packet.lookahead({kind.bits})", kind)
        arguments = self._arguments(env)
        first = arguments[0] if arguments else Value("", LITERAL)
        match of.kind.name.split(":")[0], name:
            case "packet", "extract":
                return Value(f"state.packet.extract({first.code}, {self._register_layout(first.kind.name)})", BOOL)
            case "packet", "advance":
                return Value(f"state.packet.advance({first.code})", BOOL)
            case "packet", "emit":
                return Value(self._emitted(first), BOOL)
            case "Resubmit", "emit":
                return Value("pass", BOOL)
            case "table", "apply":
                return Value(f"{of.code}.apply(state)", BOOL)
            case "control", "apply":
                self._applied = arguments
                return Value(of.code, Kind("applied:" + of.kind.name.removeprefix("control:")))
            case "RegisterAction", "execute":
                if len(arguments) == 2:
                    self._second_output = arguments[1].code
                return Value(f"{of.code}(state, {first.code})", Kind("bit", of.kind.bits))
            case "Counter", "count":
                return Value(f"{of.code}.update([{first.code}])", BOOL)
            case "DirectCounter", "count":
                return Value("state.entry.count(state.octets)", BOOL)
            case "Random", "get":
                return Value(f"dice.getrandbits({of.kind.bits})", Kind("bit", of.kind.bits))
            case "Checksum", "add":
                parts = [self._field(first, each) for each in self._fields[first.kind.name]]
                return Value(f"state.summed = {self._octets(parts)}", BOOL)
            case "Checksum", "verify":  # true where the sum is wrong
                return Value("(checksum(state.summed) != 0)", BOOL)
            case "Checksum", "update":
                return Value(f"checksum({self._octets(arguments)})", Kind("bit", 16))
            case header, "isValid" if header in self._headers:
                return Value(f"{of.code}.is_valid", BOOL)
            case header, "setValid" | "setInvalid" if header in self._headers:
                return Value(f"{of.code}.is_valid = {name == 'setValid'}", BOOL)
        raise SyntaxError(f"{of.kind.name} has no {name}")

    def _field(self, record: Value, name: str) -> Value:
        return Value(f"{record.code}.{name}", self._fields[record.kind.name][name])

    def _octets(self, parts: list[Value]) -> str:
        bits = sum(part.kind.bits for part in parts)
        left, terms = bits, []
        for part in parts:
            left -= part.kind.bits
            terms.append(f"{part.code} << {left}")
        return f"({' | '.join(terms)}).to_bytes({bits // 8}, 'big')"

    def _emitted(self, value: Value) -> str:
        if value.kind.name in self._headers:
            parts = [self._field(value, name) for name in self._fields[value.kind.name]]
            return f"state.emitted += {self._octets(parts)} if {value.code}.is_valid else b''"
        return "; ".join(self._emitted(self._field(value, name)) for name in self._fields[value.kind.name])


def _python(path: str) -> str:
    return path.replace(".", "_")


def _tokens(source: str) -> Iterator[str]:
    at = 0
    source = source.rstrip()
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise SyntaxError(f"no token of P4: {source[at : at + 30]!r}")
        yield found[0].strip()
        at = found.end()
    yield ""


def _cast(value: Value, kind: Kind) -> Value:
    mask = (1 << kind.bits) - 1
    if kind.name == "int":
        half = 1 << kind.bits - 1
        return Value(f"((({value.code} & {mask}) ^ {half}) - {half})", kind)
    return Value(f"(int({value.code}) & {mask})", kind)


def _binary(operator: str, left: Value, right: Value) -> Value:
    kind = right.kind if left.kind == LITERAL else left.kind
    mask = (1 << kind.bits) - 1
    if operator == "++":
        return Value(f"({left.code} << {right.kind.bits} | {right.code})", Kind("bit", left.kind.bits + right.kind.bits))
    if operator in ("&&", "||"):
        return Value(f"({left.code} {'and' if operator == '&&' else 'or'} {right.code})", BOOL)
    if operator in ("==", "!=", "<", ">", "<=", ">="):
        return Value(f"({left.code} {operator} {right.code})", BOOL)
    if operator == "|-|":
        return Value(f"max({left.code} - {right.code}, 0)", kind)
    if operator in ("+", "-", "*", "<<") and kind != LITERAL:
        return Value(f"({left.code} {operator} {right.code} & {mask})", kind)
    return Value(f"({left.code} {operator} {right.code})", kind)


class State:
    """A packet in one direction: a record for each type that its controls are given, under the type's name."""

    def __init__(self, packet: PacketIn, octets: int) -> None:
        self.packet, self.octets = packet, octets
        self.emitted = b""


@dataclass(frozen=True)
class Gress:
    """Ingress or egress. run() leaves the result in the state: `emitted` with the rest of the packet, and the records."""

    new: Callable[[str], Record]
    start: Callable[[Any], Any]
    work: Callable[[Any], None]
    emit: Callable[[Any], None]
    records: dict[str, str]

    def run(self, data: bytes, octets: int, prepared: Callable[[Any], None]) -> Any:
        """`octets`: of the frame, for counters. `prepared(state)`: sets what the architecture sets before the control."""
        state: Any = State(PacketIn(data), octets)
        for name in self.records:
            setattr(state, name, self.new(name))
        step: Any = self.start
        is_cut = False
        try:
            while step is not None:
                step = step(state)
        except Cut:
            is_cut = True
        if is_cut and hasattr(state, "ingress_intrinsic_metadata_from_parser_t"):
            state.ingress_intrinsic_metadata_from_parser_t.parser_err = 1
        prepared(state)
        self.work(state)
        self.emit(state)
        state.emitted += state.packet.rest()
        return state
