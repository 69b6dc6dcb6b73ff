"""Random expressions, lowered and run, equal BMv2's rule: evaluate in integers without bounds, store modulo the width."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchsum.softswitch.dataplane import Dataplane, Program, UnsupportedProgram
from tests.softswitch.bmv2_json import argument, assign, const, field, op, program

Json = dict[str, Any]

# name, width, signed: all container sizes, odd widths, both sides of machine words
FIELDS = [
    ("u1", 1, False),
    ("u3", 3, False),
    ("u8", 8, False),
    ("u13", 13, False),
    ("u16", 16, False),
    ("u31", 31, False),
    ("u32", 32, False),
    ("u33", 33, False),
    ("u64", 64, False),
    ("u65", 65, False),
    ("u129", 129, False),
    ("u300", 300, False),
    ("s8", 8, True),
    ("s13", 13, True),
    ("s32", 32, True),
    ("s64", 64, True),
    ("s70", 70, True),
]
PADDING = -sum(width for _, width, _ in FIELDS) % 8
INPUT = [[name, width, signed] for name, width, signed in FIELDS] + ([["pad", PADDING]] if PADDING else [])
INPUT_BITS = sum(entry[1] for entry in INPUT)
EXPRESSIONS_A_PROGRAM = 30

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
RING: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


def signed_value(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def evaluate(item: Json, fields: dict[str, int]) -> Any:
    """BMv2's meaning of an expression."""
    if item["type"] == "hexstr":
        return int(item["value"], 16)
    if item["type"] == "bool":
        return item["value"]
    if item["type"] == "field":
        return fields[item["value"][1]]
    body = item["value"]
    kind = body["op"]
    right = evaluate(body["right"], fields)
    if kind == "~":
        return ~right
    if kind == "not":
        return not right
    if kind == "d2b":
        return right != 0
    if kind == "b2d":
        return int(right)
    left = evaluate(body["left"], fields)
    if kind in RING:
        return RING[kind](left, right)
    if kind in COMPARE:
        return COMPARE[kind](left, right)
    if kind == "<<":
        return left << right
    if kind == ">>":
        return left >> right
    if kind == "/":
        return left // right if right else 0
    if kind == "%":
        return left % right if right else 0
    if kind == "and":
        return left and right
    if kind == "or":
        return left or right
    if kind == "?":
        return left if evaluate(body["cond"], fields) else right
    low, high = (0, (1 << right) - 1) if kind == "usat_cast" else (-(1 << (right - 1)), (1 << (right - 1)) - 1)
    if kind == "two_comp_mod":
        return signed_value(left % (1 << right), right)
    return min(max(left, low), high)


def leaves() -> st.SearchStrategy[Json]:
    fields = st.sampled_from([field("i", name) for name, _, _ in FIELDS])
    constants = st.one_of(st.integers(-300, 300), st.integers(0, (1 << 70) - 1)).map(const)
    return st.one_of(fields, fields, constants)


def unsigned_leaves() -> st.SearchStrategy[Json]:
    return st.sampled_from([field("i", name) for name, _, signed in FIELDS if not signed])


def numbers(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    amounts = st.one_of(st.integers(0, 140).map(const), st.sampled_from([field("i", "u3"), field("i", "u8")]))
    masks = st.integers(1, 140).map(lambda bits: const((1 << bits) - 1))
    widths = st.integers(1, 140).map(const)
    conditions = st.builds(op, st.sampled_from(sorted(COMPARE)), inner, inner)
    compound = st.builds(op, st.sampled_from(["and", "or"]), conditions, conditions)
    negated = conditions.map(lambda c: op("not", None, c))
    any_condition = st.one_of(conditions, compound, negated, inner.map(lambda e: op("d2b", None, e)))
    return st.one_of(
        st.builds(op, st.sampled_from(sorted(RING)), inner, inner),
        st.builds(op, st.just("&"), inner, masks),
        st.builds(op, st.just("&"), inner, st.integers(0, 1 << 66).map(const)),
        st.builds(op, st.sampled_from(["<<", ">>"]), inner, amounts),
        st.builds(op, st.sampled_from(["/", "%"]), unsigned_leaves(), unsigned_leaves()),
        inner.map(lambda e: op("~", None, e)),
        st.builds(op, st.sampled_from(["two_comp_mod", "sat_cast", "usat_cast"]), inner, widths),
        st.builds(op, st.just("?"), inner, inner, any_condition),
        any_condition.map(lambda c: op("b2d", None, c)),
    )


EXPRESSION = st.recursive(leaves(), numbers, max_leaves=8)
OUTPUT_WIDTH = st.sampled_from([1, 5, 8, 16, 24, 32, 37, 64, 100, 200])


@pytest.fixture(autouse=True, scope="module")
def _throwaway_object_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Random programs must not push useful ones out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def unpack(data: bytes, layout: list[list[Any]]) -> dict[str, int]:
    """Field values of a header in network order."""
    remaining = 8 * len(data)
    whole = int.from_bytes(data, "big")
    result = {}
    for entry in layout:
        remaining -= entry[1]
        value = whole >> remaining & (1 << entry[1]) - 1
        result[entry[0]] = signed_value(value, entry[1]) if len(entry) > 2 and entry[2] else value
    return result


def run(expressions: list[Json], widths: list[int], inputs: list[bytes]) -> list[dict[str, int]]:
    """All expressions in one action, each into its own field; one result for each input."""
    outputs: list[list[Any]] = [[f"o{n}", width] for n, width in enumerate(widths)]
    outputs.append(["pad", 8 - sum(widths) % 8])
    primitives = [{"op": "add_header", "parameters": [{"type": "header", "value": "o"}]}]
    primitives += [assign(field("o", f"o{n}"), e) for n, e in enumerate(expressions)]
    document = program({"i": INPUT, "o": outputs}, primitives, ["o"], extracted=["i"])
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    results = []
    for data in inputs:
        [(_, frame)] = dataplane.process(1, data)
        results.append(unpack(frame, outputs))
    return results


edge_bytes = st.sampled_from([0x00, 0xFF, 0x80, 0x7F, 0x01])
PACKETS = st.lists(
    st.one_of(
        st.binary(min_size=INPUT_BITS // 8, max_size=INPUT_BITS // 8),
        st.lists(edge_bytes, min_size=INPUT_BITS // 8, max_size=INPUT_BITS // 8).map(bytes),
    ),
    min_size=6,
    max_size=6,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cases=st.lists(st.tuples(EXPRESSION, OUTPUT_WIDTH), min_size=EXPRESSIONS_A_PROGRAM, max_size=EXPRESSIONS_A_PROGRAM),
    inputs=PACKETS,
)
def test_expressions_mean_what_bmv2_means(cases: list[tuple[Json, int]], inputs: list[bytes]) -> None:
    results = run([e for e, _ in cases], [w for _, w in cases], inputs)
    for data, result in zip(inputs, results, strict=True):
        fields = unpack(data, INPUT)
        for n, (expression, width) in enumerate(cases):
            assert result[f"o{n}"] == evaluate(expression, fields) % (1 << width), (json.dumps(expression), fields, width)


@pytest.mark.parametrize("kind", sorted(COMPARE))
def test_comparisons_at_the_edges_of_signs_and_widths(kind: str) -> None:
    """Every pair of signed and unsigned fields and a few constants, on all zeros, all ones and alternating bits.

    Seen red with unsigned comparison of signed operands.
    """
    operands = [field("i", n) for n in ("u8", "u32", "u64", "u65", "s8", "s32", "s64", "s70")] + [const(-1), const(1 << 64)]
    expressions = [op("b2d", None, op(kind, a, b)) for a in operands for b in operands]
    inputs = [bytes([byte]) * (INPUT_BITS // 8) for byte in (0x00, 0xFF, 0x55, 0xAA)]
    for data, result in zip(inputs, run(expressions, [1] * len(expressions), inputs), strict=True):
        fields = unpack(data, INPUT)
        for n, expression in enumerate(expressions):
            assert result[f"o{n}"] == evaluate(expression, fields), json.dumps(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (op(">>", op("<<", field("i", "u8"), field("i", "u32")), const(3)), "without a useful bound"),
        (op("/", field("i", "s8"), field("i", "u8")), "may be negative"),
        (op(">>", field("i", "u8"), field("i", "s8")), "may be negative"),
        (op("+", field("i", "u8"), op("==", field("i", "u8"), const(1))), "a condition where a number belongs"),
        (op("+", field("i", "u8"), {"type": "header", "value": "i"}), "not a number"),
    ],
)
def test_what_cannot_be_lowered_is_refused_by_name_and_place(expression: Json, reason: str) -> None:
    document = program({"i": INPUT}, [assign(field("i", "u8"), expression)], ["i"])
    with pytest.raises(UnsupportedProgram, match=reason) as caught:
        Program.from_text(json.dumps(document))
    assert "action 'action0', primitive 0 (assign)" in caught.value.problems[0]


def test_an_unbounded_shift_is_fine_where_only_low_bits_matter() -> None:
    """(u8 << u32) & 0xff needs no bound, since amounts of 8 and more leave nothing."""
    expression = op("&", op("<<", field("i", "u8"), field("i", "u32")), const(0xFF))
    data = bytes([0xFF]) * (INPUT_BITS // 8)
    [result] = run([expression], [8], [data])
    assert result["o0"] == 0


def test_arguments_keep_their_shell() -> None:
    """p4c wraps an expression twice where it is an argument and not at all where it is a field."""
    inner = op("+", field("i", "u8"), const(1))
    assert argument(inner)["value"] is inner
    assert argument(field("i", "u8"))["type"] == "field"
