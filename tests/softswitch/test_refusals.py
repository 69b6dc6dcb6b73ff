"""Programs that cannot be run are refused when they are loaded; all their problems are named, with place and advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchsum.softswitch.dataplane import Program, UnsupportedProgram
from tests.softswitch.bmv2_json import Json, assign, const, field, program


def small(*primitives: Json, **extra: Any) -> Json:
    return program({"h": [["a", 8], ["b", 8]]}, list(primitives), ["h"], **extra)


def problems(document: Json | str) -> list[str]:
    with pytest.raises(UnsupportedProgram) as caught:
        Program.from_text(document if isinstance(document, str) else json.dumps(document), "some.json")
    assert str(caught.value).startswith("some.json: the softswitch cannot run this program:\n")
    return caught.value.problems


def test_the_small_program_itself_is_fine() -> None:
    assert Program.from_text(json.dumps(small())).headers["h"].type.max_bytes == 2


@pytest.mark.parametrize(
    ("key", "item", "words"),
    [
        ("meter_arrays", {"name": "m"}, ["meter 'm'", "registers"]),
        ("header_unions", {"name": "u"}, ["header union 'u'", "separate headers"]),
        ("header_union_stacks", {"name": "u"}, ["header union stack 'u'"]),
        ("extern_instances", {"name": "e"}, ["extern instance 'e'", "PSA"]),
        ("parse_vsets", {"name": "v"}, ["parser value set 'v'", "select"]),
        ("calculations", {"name": "c", "algo": "crc32_custom", "input": []}, ["calculation 'c'", "'crc32_custom'", "crc32"]),
        ("register_arrays", {"name": "r", "size": 1, "bitwidth": 0}, ["register 'r'", "0 bits"]),
    ],
)
def test_whole_features(key: str, item: Json, words: list[str]) -> None:
    [problem] = problems(small(**{key: [{**item, "source_info": {"filename": "x.p4", "line": 12}}]}))
    for word in words:
        assert word in problem


@pytest.mark.parametrize(
    ("primitive", "words"),
    [
        ({"op": "execute_meter", "parameters": []}, ["execute_meter", "meters are not implemented"]),
        ({"op": "made_up", "parameters": []}, ["made_up", "not implemented"]),
        ({"op": "assign", "parameters": [field("h", "a")]}, ["1 arguments where 2"]),
        (assign(field("h", "nope"), const(1)), ["header 'h' has no field 'nope'"]),
        (assign(field("nope", "a"), const(1)), ["header 'nope' is not declared"]),
        (assign(const(1), const(1)), ["assignment to something that is not a field"]),
        (
            {"op": "register_read", "parameters": [field("h", "a"), {"type": "register_array", "value": "r"}, const(0)]},
            ["register_array 'r' is not declared"],
        ),
        ({"op": "resubmit", "parameters": [const(9)]}, ["field list that is not declared"]),
    ],
)
def test_primitives_are_named_with_action_position_and_line(primitive: Json, words: list[str]) -> None:
    primitive = {**primitive, "source_info": {"filename": "x.p4", "line": 34}}
    [problem] = problems(small(assign(field("h", "a"), const(1)), primitive))
    assert f"action 'action0', primitive 1 ({primitive['op']}) (x.p4:34): " in problem
    for word in words:
        assert word in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "indirect"}, ["'indirect'", "plain actions"]),
        ({"support_timeout": True}, ["idle timeouts"]),
        ({"direct_meters": "m"}, ["direct meters"]),
        ({"action_ids": [7]}, ["action 7 is not declared"]),
        ({"next_tables": {"action0": "elsewhere"}}, ["'t0' goes to 'elsewhere', which is missing"]),
        ({"next_tables": {"action0": "t0"}}, ["loops through 't0'"]),
        (
            {"key": [{"match_type": "exotic", "target": ["h", "a"], "name": "x", "mask": None}]},
            ["match kind 'exotic'", "exact, lpm, ternary, range or optional"],
        ),
    ],
)
def test_tables(change: Json, words: list[str]) -> None:
    document = small()
    document["pipelines"][0]["tables"][0].update(change)
    found = "\n".join(problems(document))
    for word in words:
        assert word in found


def test_all_problems_are_told_at_once() -> None:
    document = small({"op": "made_up", "parameters": []}, {"op": "other", "parameters": []}, meter_arrays=[{"name": "m"}])
    document["pipelines"][0]["tables"][0]["support_timeout"] = True
    assert len(problems(document)) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "not an object"),
        ("{}", "not a BMv2 program"),
        ('{"__meta__": {"version": [1, 0]}}', "[1, 0]"),
        ('{"__meta__": {"version": [2, 0]}}', "'header_types' is missing"),
    ],
)
def test_files_that_are_something_else(text: str, words: str) -> None:
    assert words in problems(text)[0]


def test_a_program_that_is_not_v1model() -> None:
    document = small()
    document["header_types"][1]["fields"] = [["ingress_port", 9], ["pad", 7]]
    assert any("not a v1model program" in p for p in problems(document))


def test_damaged_documents_never_end_in_another_exception(tmp_path: Path) -> None:
    """Every part of a real program, replaced by something of another type: refused, or still a program."""
    good = small(assign(field("h", "a"), const(1)))
    junk: list[Any] = [None, 7, "x", [], {}, [None], {"a": 1}]

    def paths(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        found = [path] if path else []
        if isinstance(item, dict):
            for key, value in item.items():
                found += paths(value, (*path, key))
        elif isinstance(item, list):
            for index, value in enumerate(item):
                found += paths(value, (*path, index))
        return found

    refused = 0
    for number, path in enumerate(paths(good)):
        document = json.loads(json.dumps(good))
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = junk[number % len(junk)]
        try:
            Program.from_text(json.dumps(document))
        except UnsupportedProgram:
            refused += 1
    assert refused > 50
