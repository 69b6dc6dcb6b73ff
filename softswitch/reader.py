"""From BMv2 JSON to the program model. Every construct that cannot be run is named; none is skipped in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from switchsum.softswitch.program import (
    CORE_ERRORS,
    HASH_ALGORITHMS,
    INTRINSIC_FIELDS,
    OPERATORS,
    REQUIRED_FIELDS,
    SUPPORTED_MAJOR_VERSION,
    Action,
    ActionCall,
    Calculation,
    CalculationInput,
    Checksum,
    Conditional,
    Const,
    ConstEntry,
    Counter,
    DefaultEntry,
    Expr,
    Field,
    FieldRef,
    Flag,
    Header,
    HeaderRef,
    HeaderStack,
    HeaderType,
    Lookahead,
    Named,
    Op,
    Param,
    Parser,
    ParserOp,
    ParseState,
    Pipeline,
    Primitive,
    Program,
    Register,
    StackLast,
    StackRef,
    TableDecl,
    TableKey,
    Transition,
    Unsupported,
    UnsupportedProgram,
)

Json = dict[str, Any]

# Number of arguments of each primitive; None: any.
PRIMITIVES: dict[str, int | None] = {
    "assign": 2,
    "assign_VL": 2,
    "assign_header": 2,
    "assign_header_stack": 2,
    "add_header": 1,
    "remove_header": 1,
    "push": 2,
    "pop": 2,
    "mark_to_drop": 1,
    "drop": 0,
    "no_op": 0,
    "count": 2,
    "register_read": 3,
    "register_write": 3,
    "modify_field_rng_uniform": 3,
    "modify_field_with_hash_based_offset": 4,
    "clone_ingress_pkt_to_egress": 2,
    "clone_egress_pkt_to_egress": 2,
    "resubmit": 1,
    "recirculate": 1,
    "truncate": 1,
    "generate_digest": 2,
    "exit": 0,
    "assert": 1,
    "assume": 1,
    "log_msg": None,
    "_jump": 1,
    "_jump_if_zero": 2,
}

ADVICE = {
    "execute_meter": "meters are not implemented; count with registers or police outside the switch",
    "assign_union": "header unions are not implemented; use separate headers with their own validity",
    "assign_union_stack": "header union stacks are not implemented; use separate headers with their own validity",
}

MATCH_KINDS = frozenset(["exact", "lpm", "ternary", "range", "optional", "valid"])

MAX_FIELD_BITS = 1 << 16  # wider values would make LLVM's integer code explode; p4c's own limit is 2048 by default


def parse_hex(text: str) -> int:
    """BMv2's hexstr: hexadecimal with or without 0x, perhaps with a minus sign."""
    return int(text, 16)


def text(value: object) -> str:
    """A name. Raises TypeError if it is something else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a name belongs")
    return value


def optional_text(value: object) -> str | None:
    """A name or null."""
    return None if value is None else text(value)


def location(item: Json) -> str:
    info = item.get("source_info")
    if not isinstance(info, dict):
        return ""
    return f" ({info.get('filename', '?')}:{info.get('line', '?')})"


class Reader:
    """One pass over one document. `read` returns the program or raises UnsupportedProgram with every problem found."""

    def __init__(self, document: Json, source: str, digest: str) -> None:
        self.document = document
        self.source = source
        self.digest = digest
        self.problems: list[str] = []
        self.headers: dict[str, Header] = {}
        self.stacks: dict[str, HeaderStack] = {}
        self.actions: dict[int, Action] = {}

    @contextmanager
    def construct(self, where: str) -> Iterator[None]:
        """Turn whatever is wrong inside into a line that says where."""
        try:
            yield
        except Unsupported as error:
            self.problems.append(f"{where}: {error}")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            self.problems.append(
                f"{where}: not what BMv2's JSON format allows ({type(error).__name__}: {error}); recompile with p4c-bm2-ss"
            )

    def fail_if_any(self) -> None:
        if self.problems:
            raise UnsupportedProgram(self.source, self.problems)

    def read(self) -> Program:
        try:
            return self._read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UnsupportedProgram):
                raise
            problem = f"not what BMv2's JSON format allows ({type(error).__name__}: {error}); recompile with p4c-bm2-ss"
            raise UnsupportedProgram(self.source, [*self.problems, problem]) from error

    def _read(self) -> Program:
        document = self.document
        version = document.get("__meta__", {}).get("version") if isinstance(document.get("__meta__"), dict) else None
        if not (isinstance(version, list) and version and version[0] == SUPPORTED_MAJOR_VERSION):
            self.problems.append(
                f"__meta__.version is {version}, not [{SUPPORTED_MAJOR_VERSION}, ...]: not a BMv2 program; "
                "compile with p4c-bm2-ss"
            )
            self.fail_if_any()
        for key in ("header_types", "headers", "parsers", "deparsers", "actions", "pipelines"):
            if not isinstance(document.get(key), list):
                self.problems.append(f"the list {key!r} is missing: not a BMv2 program; compile with p4c-bm2-ss")
        self.fail_if_any()
        self._refuse_whole_features()
        known = len(self.problems)
        self._read_headers()
        if len(self.problems) > known:
            self.fail_if_any()  # nothing below can be named when headers are unknown
        registers, counters = self._read_arrays()
        calculations = self._read_calculations()
        self._read_actions(registers, counters, calculations)
        parser = self._read_parser()
        deparser = self._read_deparser()
        pipelines = self._read_pipelines()
        checksums = self._read_checksums(calculations)
        field_lists = self._read_field_lists()
        intrinsic = self._read_intrinsic()
        errors = self._read_errors()
        self.fail_if_any()
        return Program(
            source=self.source,
            digest=self.digest,
            headers=self.headers,
            stacks=self.stacks,
            errors=errors,
            actions=self.actions,
            parser=parser,
            deparser=deparser,
            ingress=pipelines["ingress"],
            egress=pipelines["egress"],
            registers=registers,
            counters=counters,
            calculations=calculations,
            checksums=checksums,
            field_lists=field_lists,
            intrinsic=intrinsic,
        )

    # --- whole features

    def _refuse_whole_features(self) -> None:
        refused = {
            "header_unions": ("header union", "use separate headers with their own validity"),
            "header_union_stacks": ("header union stack", "use separate headers with their own validity"),
            "meter_arrays": ("meter", "count with registers or police outside the switch"),
            "extern_instances": ("extern instance", "v1model programs have none; this switch is not PSA or PNA"),
            "parse_vsets": ("parser value set", "write the values as select cases or match them in a table"),
        }
        for key, (what, advice) in refused.items():
            for item in self.document.get(key) or []:
                self.problems.append(f"{what} {item.get('name', '?')!r}{location(item)} is not implemented: {advice}")
        for pipeline in self.document["pipelines"]:
            for item in pipeline.get("action_profiles") or []:
                kind = "action selector" if item.get("selector") else "action profile"
                self.problems.append(
                    f"{kind} {item.get('name', '?')!r}{location(item)} is not implemented: give the table plain actions"
                )

    # --- headers

    def _read_headers(self) -> None:
        types: dict[str, HeaderType] = {}
        for item in self.document["header_types"]:
            with self.construct(f"header type {item.get('name', '?')!r}"):
                types[text(item["name"])] = self._header_type(item)
        for item in self.document["headers"]:
            with self.construct(f"header {item.get('name', '?')!r}"):
                kind = types[item["header_type"]]
                metadata = bool(item.get("metadata", False))
                if not metadata and kind.fixed_bits % 8:
                    raise Unsupported(f"{kind.fixed_bits} bits are not whole bytes; pad the header to a multiple of 8")
                self.headers[text(item["name"])] = Header(text(item["name"]), int(item["id"]), kind, metadata)
        by_id = {header.id: header.name for header in self.headers.values()}
        for item in self.document.get("header_stacks") or []:
            with self.construct(f"header stack {item.get('name', '?')!r}"):
                members = tuple(by_id[i] for i in item["header_ids"])
                if not members:
                    raise Unsupported("the stack has no members; give it a size of at least 1")
                self.stacks[text(item["name"])] = HeaderStack(text(item["name"]), types[item["header_type"]], members)

    def _header_type(self, item: Json) -> HeaderType:
        fields: list[Field] = []
        fixed = 0
        for entry in item["fields"]:
            name, width = text(entry[0]), entry[1]
            signed = bool(entry[2]) if len(entry) > 2 else False
            if width == "*":
                maximum = item.get("max_length")
                if not maximum:
                    raise Unsupported(f"varbit {name!r} without max_length; recompile with p4c-bm2-ss")
                fields.append(Field(name, -8 * int(maximum), False, True))
                continue
            if not 1 <= int(width) <= MAX_FIELD_BITS:
                raise Unsupported(f"field {name!r} has {width} bits; 1 to {MAX_FIELD_BITS} can be run")
            fields.append(Field(name, int(width), signed))
            fixed += int(width)
        # max_length counts the whole header in bytes; the varbit may have what the fixed fields leave.
        fields = [Field(f.name, -f.width - fixed // 8 * 8, False, True) if f.varbit else f for f in fields]
        if sum(f.varbit for f in fields) > 1:
            raise Unsupported("two varbit fields in one header; P4 allows one")
        return HeaderType(text(item["name"]), tuple(fields))

    def _field_ref(self, header: str, name: str) -> FieldRef:
        if header not in self.headers:
            raise Unsupported(f"header {header!r} is not declared")
        if name != "$valid$" and self.headers[header].field(name) is None:
            raise Unsupported(f"header {header!r} has no field {name!r}")
        return FieldRef(header, name)

    def _width(self, ref: FieldRef) -> int:
        if ref.field == "$valid$":
            return 1
        found = self.headers[ref.header].field(ref.field)
        assert found is not None  # _field_ref has checked it
        return found.width

    # --- expressions

    def expression(self, item: Json, lookahead: bool = False) -> Expr:
        if "op" in item:
            return self._operator(item, lookahead)
        kind, value = item["type"], item.get("value")
        match kind:
            case "expression":
                return self.expression(value, lookahead)  # type: ignore[arg-type]
            case "hexstr":
                return Const(parse_hex(str(value)))
            case "bool":
                return Flag(bool(value))
            case "field":
                return self._field_ref(value[0], value[1])  # type: ignore[index]
            case "header":
                if value not in self.headers:
                    raise Unsupported(f"header {value!r} is not declared")
                return HeaderRef(str(value))
            case "header_stack":
                if value not in self.stacks:
                    raise Unsupported(f"header stack {value!r} is not declared")
                return StackRef(str(value))
            case "stack_field":
                stack = self.stacks.get(value[0])  # type: ignore[index]
                if stack is None:
                    raise Unsupported(f"header stack {value[0]!r} is not declared")  # type: ignore[index]
                self._field_ref(stack.headers[0], value[1])  # type: ignore[index]
                return StackLast(value[0], value[1])  # type: ignore[index]
            case "local" | "runtime_data":
                return Param(int(value))  # type: ignore[arg-type]
            case "lookahead":
                if not lookahead:
                    raise Unsupported("a lookahead outside the parser")
                return Lookahead(int(value[0]), int(value[1]))  # type: ignore[index]
            case "calculation" | "register_array" | "counter_array" | "string":
                return Named(kind, str(value))
            case "parameters_vector":
                return Named(kind, "")
        raise Unsupported(f"operand of type {kind!r} is not implemented")

    def _operator(self, item: Json, lookahead: bool) -> Expr:
        op = item["op"]
        if op not in OPERATORS:
            raise Unsupported(f"operator {op!r} is not implemented")
        if op == "access_field":
            left = self.expression(item["left"], lookahead)
            return Op(op, left, int(item["right"]))

        def operand(name: str) -> Expr | None:
            value = item.get(name)
            return None if value is None else self.expression(value, lookahead)

        return Op(op, operand("left"), operand("right"), operand("cond"))

    # --- actions

    def _read_actions(
        self, registers: dict[str, Register], counters: dict[str, Counter], calculations: dict[str, Calculation]
    ) -> None:
        known: dict[str, Collection[str]] = {
            "register_array": registers,
            "counter_array": counters,
            "calculation": calculations,
        }
        for item in self.document["actions"]:
            name = item.get("name", "?")
            params: tuple[tuple[str, int], ...] = ()
            with self.construct(f"action {name!r}"):
                params = tuple((text(p["name"]), int(p["bitwidth"])) for p in item.get("runtime_data", []))
            primitives = []
            for position, raw in enumerate(item.get("primitives", [])):
                where = f"action {name!r}, primitive {position} ({raw.get('op', '?')}){location(raw)}"
                with self.construct(where):
                    primitive = self.primitive(raw, where)
                    for argument in primitive.args:
                        if isinstance(argument, Named) and argument.name not in known.get(argument.kind, {argument.name}):
                            raise Unsupported(f"{argument.kind} {argument.name!r} is not declared")
                        self._check_params(argument, len(params))
                    primitives.append(primitive)
            with self.construct(f"action {name!r}"):
                self.actions[int(item["id"])] = Action(text(item["name"]), int(item["id"]), params, tuple(primitives))

    def _check_params(self, expr: Expr, count: int) -> None:
        if isinstance(expr, Param) and not 0 <= expr.index < count:
            raise Unsupported(f"parameter {expr.index} of an action that has {count}")
        if isinstance(expr, Op):
            for operand in (expr.left, expr.right, expr.cond):
                if operand is not None and not isinstance(operand, int):
                    self._check_params(operand, count)

    def primitive(self, item: Json, where: str) -> Primitive:
        op = item["op"]
        if op not in PRIMITIVES:
            raise Unsupported(ADVICE.get(op, "this primitive is not implemented; use an equivalent v1model construct"))
        if op == "log_msg":
            return Primitive(op, (), where)  # a switch has nowhere to print; BMv2 logs it
        if op.startswith("_jump"):
            *condition, target = item["parameters"]
            args = tuple(self.expression(c) for c in condition)
            return Primitive(op, (*args, Const(parse_hex(str(target["value"])))), where)
        args = tuple(self.expression(p) for p in item.get("parameters", []))
        expected = PRIMITIVES[op]
        if expected is not None and len(args) != expected:
            raise Unsupported(f"{len(args)} arguments where {expected} are defined")
        return Primitive(op, args, where)

    # --- parser and deparser

    def _read_parser(self) -> Parser:
        parsers = self.document["parsers"]
        if len(parsers) != 1:
            self.problems.append(f"{len(parsers)} parsers; v1model has exactly one")
            return Parser("", None, {})
        item = parsers[0]
        states: dict[str, ParseState] = {}
        for raw in item.get("parse_states", []):
            where = f"parser state {raw.get('name', '?')!r}"
            ops = []
            for position, raw_op in enumerate(raw.get("parser_ops", [])):
                here = f"{where}, operation {position} ({raw_op.get('op', '?')}){location(raw_op)}"
                with self.construct(here):
                    ops.append(self._parser_op(raw_op, here))
            with self.construct(where):
                key = tuple(self.expression(k, lookahead=True) for k in raw.get("transition_key", []))
                transitions = tuple(self._transition(t) for t in raw.get("transitions", []))
                states[text(raw["name"])] = ParseState(text(raw["name"]), tuple(ops), key, transitions)
        for state in states.values():
            for transition in state.transitions:
                if transition.next_state is not None and transition.next_state not in states:
                    self.problems.append(f"parser state {state.name!r} goes to {transition.next_state!r}, which is missing")
        init = optional_text(item.get("init_state"))
        if init is not None and init not in states:
            self.problems.append(f"the parser starts in {init!r}, which is missing")
        return Parser(text(item.get("name", "parser")), init, states)

    def _parser_op(self, item: Json, where: str) -> ParserOp:
        op = item["op"]
        params = item["parameters"]
        if op in ("extract", "extract_VL"):
            target = params[0]
            if target["type"] == "regular":
                args: tuple[Expr, ...] = (self.expression({"type": "header", "value": target["value"]}),)
            elif target["type"] == "stack":
                args = (self.expression({"type": "header_stack", "value": target["value"]}),)
            else:
                raise Unsupported("header unions are not implemented; use separate headers with their own validity")
            if op == "extract_VL":
                args = (*args, self.expression(params[1]))
            return ParserOp(op, args, None, where)
        if op in ("set", "verify"):
            return ParserOp(op, tuple(self.expression(p, lookahead=True) for p in params), None, where)
        if op == "advance":
            return ParserOp(op, (self.expression(params[0]),), None, where)
        if op == "shift":
            return ParserOp("advance", (Const(8 * int(params[0])),), None, where)
        if op == "primitive":
            return ParserOp(op, (), self.primitive(params[0], where), where)
        raise Unsupported("this parser operation is not implemented")

    def _transition(self, item: Json) -> Transition:
        kind = item.get("type") or ("default" if item["value"] == "default" else "hexstr")
        if kind == "default":
            return Transition(None, None, optional_text(item.get("next_state")))
        if kind != "hexstr":
            raise Unsupported(f"transition on {kind!r} is not implemented: write the values as select cases")
        mask = item.get("mask")
        return Transition(
            parse_hex(item["value"]), None if mask is None else parse_hex(mask), optional_text(item.get("next_state"))
        )

    def _read_deparser(self) -> tuple[str, ...]:
        deparsers = self.document["deparsers"]
        if len(deparsers) != 1:
            self.problems.append(f"{len(deparsers)} deparsers; v1model has exactly one")
            return ()
        with self.construct("deparser"):
            if deparsers[0].get("primitives"):
                raise Unsupported("deparser primitives are not implemented; v1model has none")
            for name in deparsers[0]["order"]:
                if name not in self.headers:
                    raise Unsupported(f"emits {name!r}, which is not declared")
            return tuple(deparsers[0]["order"])
        return ()

    # --- arrays, calculations, checksums

    def _read_arrays(self) -> tuple[dict[str, Register], dict[str, Counter]]:
        registers: dict[str, Register] = {}
        counters: dict[str, Counter] = {}
        for item in self.document.get("register_arrays") or []:
            with self.construct(f"register {item.get('name', '?')!r}"):
                width, size = int(item["bitwidth"]), int(item["size"])
                if not 1 <= width <= MAX_FIELD_BITS:
                    raise Unsupported(f"{width} bits a cell; 1 to {MAX_FIELD_BITS} can be run")
                if not 0 <= size < 1 << 31:
                    raise Unsupported(f"{size} cells; fewer than 2^31 can be run")
                registers[text(item["name"])] = Register(text(item["name"]), size, width)
        for item in self.document.get("counter_arrays") or []:
            if not item.get("is_direct"):
                with self.construct(f"counter {item.get('name', '?')!r}"):
                    if not 0 <= int(item["size"]) < 1 << 31:
                        raise Unsupported(f"{item['size']} cells; fewer than 2^31 can be run")
                    counters[text(item["name"])] = Counter(text(item["name"]), int(item["size"]))
        return registers, counters

    def _read_calculations(self) -> dict[str, Calculation]:
        calculations: dict[str, Calculation] = {}
        for item in self.document.get("calculations") or []:
            with self.construct(f"calculation {item.get('name', '?')!r}{location(item)}"):
                algorithm = item["algo"]
                if algorithm not in HASH_ALGORITHMS:
                    raise Unsupported(
                        f"algorithm {algorithm!r} is not implemented; use one of {', '.join(sorted(HASH_ALGORITHMS))}"
                    )
                inputs = tuple(self._calculation_input(i) for i in item["input"])
                calculations[text(item["name"])] = Calculation(text(item["name"]), algorithm, inputs)
        return calculations

    def _calculation_input(self, item: Json) -> CalculationInput:
        kind = item["type"]
        if kind == "field":
            return CalculationInput("field", field=self._field_ref(item["value"][0], item["value"][1]))
        if kind == "hexstr":
            return CalculationInput("const", value=parse_hex(item["value"]), bits=int(item["bitwidth"]))
        if kind == "header":
            if item["value"] not in self.headers:
                raise Unsupported(f"header {item['value']!r} is not declared")
            return CalculationInput("header", header=item["value"])
        if kind == "payload":
            return CalculationInput("payload")
        raise Unsupported(f"input of type {kind!r} is not implemented; copy the value into a field first")

    def _read_checksums(self, calculations: dict[str, Calculation]) -> tuple[Checksum, ...]:
        checksums = []
        for item in self.document.get("checksums") or []:
            with self.construct(f"checksum {item.get('name', '?')!r}{location(item)}"):
                if item.get("type", "generic") != "generic":
                    raise Unsupported(f"type {item['type']!r} is not implemented; use update_checksum of v1model")
                if item["calculation"] not in calculations:
                    raise Unsupported(f"calculation {item['calculation']!r} is not declared")
                condition = item.get("if_cond")
                checksums.append(
                    Checksum(
                        text(item["name"]),
                        self._field_ref(item["target"][0], item["target"][1]),
                        item["calculation"],
                        None if condition is None else self.expression(condition),
                        bool(item.get("verify", True)),
                        bool(item.get("update", True)),
                    )
                )
        return tuple(checksums)

    def _read_field_lists(self) -> dict[int, tuple[FieldRef, ...]]:
        lists: dict[int, tuple[FieldRef, ...]] = {}
        for item in self.document.get("field_lists") or []:
            with self.construct(f"field list {item.get('name', '?')!r}"):
                refs: list[FieldRef] = []
                for element in item["elements"]:
                    if element["type"] == "field":
                        refs.append(self._field_ref(element["value"][0], element["value"][1]))
                    elif element["type"] == "header":
                        header = self.headers[element["value"]]
                        refs.extend(FieldRef(header.name, f.name) for f in header.type.fields)
                    else:
                        raise Unsupported(f"element of type {element['type']!r} is not implemented")
                lists[int(item["id"])] = tuple(refs)
        return lists

    def _read_intrinsic(self) -> dict[str, FieldRef]:
        aliases = {alias.split(".")[-1]: target for alias, target in self.document.get("field_aliases") or []}
        found: dict[str, FieldRef] = {}
        for name in INTRINSIC_FIELDS:
            header, member = aliases.get(name, ["standard_metadata", name])
            if header in self.headers and self.headers[header].field(member) is not None:
                found[name] = FieldRef(header, member)
            elif name in REQUIRED_FIELDS:
                self.problems.append(f"standard_metadata.{name} is missing: this is not a v1model program")
        return found

    def _read_errors(self) -> dict[str, int]:
        errors = {name: int(value) for name, value in self.document.get("errors") or []}
        following = max(errors.values(), default=-1) + 1
        for name in CORE_ERRORS:  # BMv2 numbers the core errors that a program does not mention after the others
            if name not in errors:
                errors[name] = following
                following += 1
        return errors

    # --- pipelines

    def _read_pipelines(self) -> dict[str, Pipeline]:
        pipelines: dict[str, Pipeline] = {}
        for item in self.document["pipelines"]:
            tables: dict[str, TableDecl] = {}
            conditionals: dict[str, Conditional] = {}
            calls: dict[str, ActionCall] = {}
            known = len(self.problems)
            for raw in item.get("tables", []):
                with self.construct(f"table {raw.get('name', '?')!r}{location(raw)}"):
                    tables[text(raw["name"])] = self._table(raw)
            for raw in item.get("conditionals", []):
                with self.construct(f"condition {raw.get('name', '?')!r}{location(raw)}"):
                    conditionals[text(raw["name"])] = Conditional(
                        text(raw["name"]),
                        self.expression(raw["expression"]),
                        optional_text(raw.get("true_next")),
                        optional_text(raw.get("false_next")),
                    )
            for raw in item.get("action_calls", []):
                with self.construct(f"action call {raw.get('name', '?')!r}"):
                    calls[text(raw["name"])] = ActionCall(
                        text(raw["name"]), int(raw["action_id"]), optional_text(raw.get("next_node"))
                    )
            pipeline = Pipeline(text(item["name"]), optional_text(item.get("init_table")), tables, conditionals, calls)
            if len(self.problems) == known:  # else nodes are missing that are named above
                self._check_graph(pipeline)
            pipelines[pipeline.name] = pipeline
        for name in ("ingress", "egress"):
            if name not in pipelines:
                self.problems.append(f"pipeline {name!r} is missing: this is not a v1model program")
                pipelines[name] = Pipeline(name, None, {}, {}, {})
        return pipelines

    def _check_graph(self, pipeline: Pipeline) -> None:
        """Every node named exists, and no path comes back to where it was."""
        following: dict[str, set[str]] = {}
        for table in pipeline.tables.values():
            named = [table.next_hit, table.next_miss, table.base_next, *table.next_by_action.values()]
            following[table.name] = {n for n in named if n is not None}
        for condition in pipeline.conditionals.values():
            following[condition.name] = {n for n in (condition.true_next, condition.false_next) if n is not None}
        for call in pipeline.calls.values():
            following[call.name] = {call.next} if call.next is not None else set()
        if pipeline.init is not None and pipeline.init not in following:
            self.problems.append(f"pipeline {pipeline.name!r} starts at {pipeline.init!r}, which is missing")
            return
        for name, nexts in following.items():
            for missing in sorted(nexts - following.keys()):
                self.problems.append(f"pipeline {pipeline.name!r}: {name!r} goes to {missing!r}, which is missing")
        done: set[str] = set()
        for root in following:
            path: dict[str, Iterator[str]] = {}
            if root not in done:
                path[root] = iter(following[root])
            while path:
                node = next(reversed(path))
                successor = next(path[node], None)
                if successor is None:
                    done.add(node)
                    del path[node]
                elif successor in path:
                    self.problems.append(f"pipeline {pipeline.name!r} loops through {successor!r}; P4 has no such loops")
                    return
                elif successor in following and successor not in done:
                    path[successor] = iter(following[successor])

    def _table(self, item: Json) -> TableDecl:
        if item.get("type", "simple") != "simple":
            raise Unsupported(f"implementation {item['type']!r} is not implemented: give the table plain actions")
        if item.get("direct_meters"):
            raise Unsupported("direct meters are not implemented: remove the meter from the table")
        if item.get("support_timeout"):
            raise Unsupported("idle timeouts are not implemented: let the controller expire entries")
        keys = tuple(self._table_key(k) for k in item.get("key", []))
        kinds = {k.match for k in keys}
        actions = tuple(int(i) for i in item["action_ids"]) if "action_ids" in item else ()
        by_name: dict[str, int] = {}
        for action_id in actions:
            if action_id not in self.actions:
                raise Unsupported(f"action {action_id} is not declared (or was refused above)")
            by_name[self.actions[action_id].name] = action_id
        nexts = {text(n): optional_text(node) for n, node in item.get("next_tables", {}).items()}
        by_hit = "__HIT__" in nexts or "__MISS__" in nexts
        default = None
        raw_default = item.get("default_entry")
        if raw_default is not None:
            data = tuple(parse_hex(v) for v in raw_default.get("action_data") or [])
            const = bool(raw_default.get("action_const") or raw_default.get("action_entry_const"))
            default = DefaultEntry(int(raw_default["action_id"]), data, const)
            if default.action not in self.actions:
                raise Unsupported(f"default action {default.action} is not declared (or was refused above)")
        raw_entries = item.get("entries") or []
        entries = tuple(self._const_entry(e, keys, raw_entries) for e in raw_entries)
        scan = bool(kinds & {"ternary", "range", "optional"})
        match = "exact" if kinds <= {"exact"} else "ternary" if scan else "lpm"
        return TableDecl(
            name=text(item["name"]),
            keys=keys,
            match=match,
            max_size=int(item.get("max_size", 0)) or 1024,
            with_counters=bool(item.get("with_counters", False)),
            actions=actions,
            next_by_action={} if by_hit else {by_name[n]: node for n, node in nexts.items() if n in by_name},
            next_hit=nexts.get("__HIT__"),
            next_miss=nexts.get("__MISS__"),
            by_hit=by_hit,
            base_next=optional_text(item.get("base_default_next")),
            default=default,
            entries=entries,
            has_const_entries="entries" in item,
        )

    def _table_key(self, item: Json) -> TableKey:
        kind = item["match_type"]
        if kind not in MATCH_KINDS:
            raise Unsupported(f"match kind {kind!r} is not implemented; use exact, lpm, ternary, range or optional")
        if kind == "valid":
            target = item["target"]
            ref = self._field_ref(target if isinstance(target, str) else target[0], "$valid$")
            return TableKey(item.get("name") or f"{ref.header}.$valid$", "exact", ref, 1, None)
        ref = self._field_ref(item["target"][0], item["target"][1])
        mask = item.get("mask")
        name = item.get("name") or f"{ref.header}.{ref.field}"
        return TableKey(name, kind, ref, self._width(ref), None if mask is None else parse_hex(mask))

    def _const_entry(self, item: Json, keys: tuple[TableKey, ...], entries: list[Json]) -> ConstEntry:
        match: list[tuple[Any, ...]] = []
        for raw, key in zip(item["match_key"], keys, strict=True):
            kind = raw["match_type"]
            if kind == "valid":
                match.append(("exact", int(bool(raw["key"]))))
            elif kind == "exact":
                match.append(("exact", parse_hex(raw["key"])))
            elif kind == "lpm":
                match.append(("lpm", parse_hex(raw["key"]), int(raw["prefix_length"])))
            elif kind in ("ternary", "optional"):
                mask = raw.get("mask")
                match.append(("ternary", parse_hex(raw["key"]), (1 << key.width) - 1 if mask is None else parse_hex(mask)))
            elif kind == "range":
                match.append(("range", parse_hex(raw["start"]), parse_hex(raw["end"])))
            else:
                raise Unsupported(f"constant entry of kind {kind!r} is not implemented")
        action = item["action_entry"]
        # In the JSON the smallest number wins, in P4Runtime the largest: turn the scale around.
        worst = max(int(e.get("priority", 0)) for e in entries)
        priority = worst + 1 - int(item.get("priority", 0))
        params = tuple(parse_hex(v) for v in action.get("action_data") or [])
        if int(action["action_id"]) not in self.actions:
            raise Unsupported(f"constant entry calls action {action['action_id']}, which is not declared")
        return ConstEntry(tuple(match), priority, int(action["action_id"]), params)
