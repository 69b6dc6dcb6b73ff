"""Small BMv2 JSON documents written by hand, for constructs and combinations that are easier to say here than in P4."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

STANDARD_METADATA: list[list[Any]] = [
    ["ingress_port", 9],
    ["egress_spec", 9],
    ["egress_port", 9],
    ["instance_type", 32],
    ["packet_length", 32],
    ["ingress_global_timestamp", 48],
    ["mcast_grp", 16],
    ["egress_rid", 16],
    ["checksum_error", 1],
    ["parser_error", 32],
    ["_padding", 4],
]


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def const(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def op(kind: str, left: Json | None, right: Json, cond: Json | None = None) -> Json:
    body: Json = {"op": kind, "left": left, "right": right}
    if cond is not None:
        body["cond"] = cond
    return {"type": "expression", "value": body}


def argument(expression: Json) -> Json:
    """An expression as a primitive's argument, with the extra shell that p4c puts around it."""
    return {"type": "expression", "value": expression} if expression["type"] == "expression" else expression


def assign(target: Json, source: Json) -> Json:
    return {"op": "assign", "parameters": [target, argument(source)]}


def keyless_table(name: str, number: int, action: int, following: str | None) -> Json:
    """A table as p4c makes it for the direct call of an action."""
    return {
        "name": name,
        "id": number,
        "key": [],
        "match_type": "exact",
        "type": "simple",
        "max_size": 1024,
        "action_ids": [action],
        "actions": [f"action{action}"],
        "base_default_next": None,
        "next_tables": {f"action{action}": following},
        "default_entry": {"action_id": action, "action_const": True, "action_data": [], "action_entry_const": True},
    }


def program(
    headers: dict[str, list[list[Any]]],
    primitives: list[Json],
    emitted: list[str],
    *,
    extracted: list[str] | None = None,
    scalars: list[list[Any]] | None = None,
    **extra: Any,
) -> Json:
    """A program that extracts `extracted` headers, runs one action in ingress and emits `emitted` ones.

    headers: name to [[field, bits, signed?], ...]. Everything leaves on port 0 unless the action says otherwise.
    """
    extracted = list(headers) if extracted is None else extracted
    types = [
        {"name": "scalars_t", "id": 0, "fields": scalars or [["unused", 8]]},
        {"name": "standard_metadata", "id": 1, "fields": STANDARD_METADATA},
    ]
    instances = [
        {"name": "scalars", "id": 0, "header_type": "scalars_t", "metadata": True},
        {"name": "standard_metadata", "id": 1, "header_type": "standard_metadata", "metadata": True},
    ]
    for number, (name, fields) in enumerate(headers.items(), start=2):
        types.append({"name": f"{name}_t", "id": number, "fields": fields})
        instances.append({"name": name, "id": number, "header_type": f"{name}_t", "metadata": False})
    document: Json = {
        "__meta__": {"version": [2, 23]},
        "header_types": types,
        "headers": instances,
        "parsers": [
            {
                "name": "parser",
                "id": 0,
                "init_state": "start",
                "parse_states": [
                    {
                        "name": "start",
                        "id": 0,
                        "parser_ops": [
                            {"op": "extract", "parameters": [{"type": "regular", "value": name}]} for name in extracted
                        ],
                        "transition_key": [],
                        "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
                    }
                ],
            }
        ],
        "deparsers": [{"name": "deparser", "id": 0, "order": emitted}],
        "actions": [{"name": "action0", "id": 0, "runtime_data": [], "primitives": primitives}],
        "pipelines": [
            {"name": "ingress", "id": 0, "init_table": "t0", "tables": [keyless_table("t0", 0, 0, None)], "conditionals": []},
            {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": []},
        ],
    }
    return {**document, **extra}
