"""YAML with whereabouts: values are taken from a file one by one, and every complaint names file, line and field."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import yaml

Value = TypeVar("Value")


def load(path: Path, error: type[Exception]) -> "Place":
    """The top of a YAML file. Raises `error` when it cannot be read, is not YAML, or is empty."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: cannot be read: {problem}") from None
    return parse(text, str(path), error)


def parse(text: str, source: str, error: type[Exception]) -> "Place":
    """Like load(), from text; `source` names it in errors."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise error(f"{source} line {line}: not YAML: {problem.problem}") from None
    except yaml.YAMLError as problem:
        raise error(f"{source}: not YAML: {problem}") from None
    except RecursionError:
        raise error(f"{source}: nested too deeply to be read") from None
    if node is None:
        raise error(f"{source} line 1: the file is empty")
    return Place(node, source, "", error)


class Place:
    """A YAML node with its whereabouts, so that every complaint names file, line and field."""

    def __init__(self, node: yaml.Node, source: str, field: str, error: type[Exception], line: int | None = None) -> None:
        """`source` names the file, `field` the way here from the top; `error`: what to raise. `line`, from 0: where the field's
        name stands, if it has one; its value may begin on a later line."""
        self._node, self._source, self._field, self._error = node, source, field, error
        self._line = node.start_mark.line if line is None else line

    def failure(self, problem: str) -> Exception:
        where = f", {self._field}" if self._field else ""
        return self._error(f"{self._source} line {self._line + 1}{where}: {problem}")

    def fail(self, problem: str) -> NoReturn:
        raise self.failure(problem)

    def text(self) -> str:
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.failure("must be a single value")
        return str(self._node.value)

    def convert(self, convert: Callable[[str], Value], form: str) -> Value:
        """The value by a function that raises ValueError; `form` says what it should look like."""
        try:
            return convert(self.text())
        except (ValueError, OverflowError):
            raise self.failure(f"{self.text()!r} is not {form}") from None

    def items(self) -> list[tuple[str, "Place"]]:
        """A mapping's entries, no key twice."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.failure("must be a mapping (`name: value` lines)")
        found: dict[str, Place] = {}
        for key, value in self._node.value:
            name = Place(key, self._source, self._field, self._error).text()
            place = Place(
                value, self._source, f"{self._field}.{name}" if self._field else name, self._error, key.start_mark.line
            )
            if name in found:
                raise place.failure("is there twice")
            found[name] = place
        return list(found.items())

    def fields(self, known: set[str], required: frozenset[str] | set[str] = frozenset()) -> dict[str, "Place"]:
        """A mapping with fixed names."""
        found = dict(self.items())
        for name, place in found.items():
            if name not in known:
                raise place.failure(f"is not a field; there are {', '.join(sorted(known))}")
        for name in sorted(required - found.keys()):
            raise self.failure(f"the field {name} is missing")
        return found

    def is_list(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    def elements(self) -> list["Place"]:
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.failure("must be a list, such as [{address: ..., mac: ...}]")
        return [
            Place(node, self._source, f"{self._field}[{index}]", self._error) for index, node in enumerate(self._node.value)
        ]

    def key_number(self, text: str, low: int, high: int) -> int:
        """The name under which this place stands, as a number."""
        if not text.isdecimal() or str(int(text)) != text or not low <= int(text) <= high:
            raise self.failure(f"{text!r} is not a port number from {low} to {high}")
        return int(text)
