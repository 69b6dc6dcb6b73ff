"""PyTorch's execution trace of one rank (Chakra): which collectives were issued, with which tensors.

It has no times, so it describes what a Kineto trace of the same run measured: the rf_id of a node is the "Record function id"
of an event there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchsum.measure.traces import names, stream
from switchsum.measure.traces.kineto import MOST_EVENTS, tensors
from switchsum.measure.traces.stream import BadTrace, NoTrace

SCHEMA = re.compile(r"1\.\d+\.\d+-chakra\.\d+\.\d+\.\d+")
_RANK_IN_NAME = re.compile(r"(?:rank|et)[-_.]?(\d{1,6})", re.IGNORECASE | re.ASCII)
_TENSOR = re.compile(r"(?:GenericList\[)?Tensor\(([^)]*)\)")


@dataclass(frozen=True)
class Issued:
    """A collective. size_bytes: of its input tensors, None where they cannot be told; record_id: rf_id."""

    name: str
    record_id: int
    dtype: str
    size_bytes: int | None


@dataclass
class ExecutionTrace:
    """rank: by the file's name, None if that tells none."""

    path: Path
    rank: int | None
    schema: str
    nodes: int
    issued: list[Issued] = field(default_factory=list)


def read(path: Path) -> ExecutionTrace:
    """Raises NoTrace if the file is something else, BadTrace if it is damaged."""
    reading = _Reading(path)
    found = stream.read_object(path, {"nodes": reading.take})
    schema = found.get("schema")
    if "nodes" not in found or not isinstance(schema, str) or not SCHEMA.fullmatch(schema):
        raise NoTrace(f"{path} is no execution trace of PyTorch: its schema is {_shown(schema)}, not 1.x.y-chakra.x.y.z")
    in_name = _RANK_IN_NAME.search(path.name)
    rank = int(in_name[1]) if in_name else None
    return ExecutionTrace(path, rank, schema, reading.nodes, reading.issued)


class _Reading:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.nodes = 0
        self.issued: list[Issued] = []

    def take(self, node: Any) -> None:
        """An entry of nodes. Raises BadTrace."""
        self.nodes += 1
        if self.nodes > MOST_EVENTS:
            raise BadTrace(f"{self._path} has more than {MOST_EVENTS:,} nodes; record fewer steps")
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            raise BadTrace(f"{self._path} is damaged: node {self.nodes:,} has no name; record it again")
        name = node["name"]
        if (names.ISSUE.match(name) or names.RANGE.fullmatch(name)) and (issued := _issued(name, node)):
            self.issued.append(issued)


def _issued(name: str, node: dict[str, Any]) -> Issued | None:
    attributes = node.get("attrs")
    listed = attributes if isinstance(attributes, list) else []
    record_id = next((each.get("value") for each in listed if isinstance(each, dict) and each.get("name") == "rf_id"), None)
    inputs = node.get("inputs")
    if not isinstance(record_id, int) or not isinstance(inputs, dict):
        return None
    types, shapes = inputs.get("types"), inputs.get("shapes")
    kinds, sizes = [], []
    if isinstance(types, list) and isinstance(shapes, list):
        for kind, shape in zip(types, shapes, strict=False):
            if isinstance(kind, str) and (of := _TENSOR.match(kind)):
                many = shape if kind.startswith("GenericList") and isinstance(shape, list) else [shape]
                sizes += many
                kinds += [of[1]] * len(many)
    dtype, size_bytes = tensors(kinds, sizes)
    return Issued(name, record_id, dtype, size_bytes)


def _shown(value: Any) -> str:
    return repr(value)[:60]
