"""Payloads: which buffers a benchmark moves, where that comes from, and how it is kept in a file.

A payload is made by one of TF-gRPC-Bench's schemes (Biswas, Lu, Panda: arXiv 1804.01138, Tables 1 and 2), captured from a
training (`switchsum bench capture`), or read from SwitchML's list of layers. Units are decimal: 10 KB are 10,000 bytes.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from switchsum.measure import strict_json
from switchsum.measure.strict_json import shown

SCHEMA = "switchsum-payload/1"
CAPTURES = Path(__file__).resolve().parent / "captures"  # those that come with the package

LARGEST_STEP_BYTES = 16 << 30
MOST_BUFFERS = 100_000  # of a step; as many tensors of a buffer
MOST_STEPS = 1_000_000_000
LARGEST_FILE_BYTES = 256 << 20
LARGEST_SEED = 2**32 - 1

ITEM_BYTES = {
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

# Table 1: from, below (Large: up to and including).
RANGES = {"small": (1, 1_000), "medium": (1_000, 1_000_000), "large": (1_000_000, 10_000_001)}
RANGE_TEXTS = {"small": "1 B to below 1 KB", "medium": "1 KB to below 1 MB", "large": "1 MB to 10 MB"}
DEFAULT_SIZES = {"small": 10, "medium": 10_000, "large": 1_000_000}
SCHEMES = ("uniform", "random", "skew")
DEFAULT_IOVEC_COUNT = 10
# What has 60, 30 and 10 %. The paper says so for Large; the two others are its unnamed variants, each with its neighbours next.
SKEWED = {
    "large": ("large", "medium", "small"),
    "medium": ("medium", "large", "small"),
    "small": ("small", "medium", "large"),
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SIZE = re.compile(r"(\d{1,12})\s*(B|KB|MB)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000}
_CSV_HEADER = "layer_index,numel,fwd_ns,bwd_ns"


class BadPayload(ValueError):
    """A payload that makes no sense; the text says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Buffer:
    """What travels as one: an iovec, or a bucket of gradients. Raises BadPayload where the fields do not fit each other.

    tensors: bytes of each tensor in it; empty: it is one tensor. at_us: when it became ready, in microseconds since the step's
    first; of steps that were alike, the median. sparse: only the values of rows that were touched, so the next step's differ.
    """

    size_bytes: int
    dtype: str = "uint8"
    tensors: tuple[int, ...] = ()
    at_us: float | None = None
    sparse: bool = False

    def __post_init__(self) -> None:
        _check_count("size_bytes", self.size_bytes, LARGEST_STEP_BYTES)
        if not isinstance(self.dtype, str) or self.dtype not in ITEM_BYTES:
            raise BadPayload(f"dtype {self.dtype!r} is unknown; there are {', '.join(ITEM_BYTES)}")
        item = ITEM_BYTES[self.dtype]
        if self.size_bytes % item:
            raise BadPayload(f"size_bytes {self.size_bytes} is no whole number of {self.dtype} ({item} bytes each)")
        if not isinstance(self.tensors, tuple) or len(self.tensors) > MOST_BUFFERS:
            raise BadPayload(f"tensors must be a list of at most {MOST_BUFFERS} sizes in bytes")
        for size in self.tensors:
            _check_count("a size in tensors", size, LARGEST_STEP_BYTES)
        if self.tensors and sum(self.tensors) != self.size_bytes:
            raise BadPayload(f"tensors add up to {sum(self.tensors)} bytes, size_bytes says {self.size_bytes}")
        if self.at_us is not None:
            if isinstance(self.at_us, bool) or not isinstance(self.at_us, int | float):
                raise BadPayload(f"at_us {shown(self.at_us)} is no number of microseconds")
            if not 0 <= self.at_us <= 1e15:  # NaN fails, too
                raise BadPayload(f"at_us {shown(self.at_us)} is out of range: 0 to 1e15 microseconds")
        if not isinstance(self.sparse, bool):
            raise BadPayload(f"sparse {shown(self.sparse)} must be true or false")

    def as_json(self) -> dict[str, Any]:
        """What from_json() takes; what has its default is left out."""
        value: dict[str, Any] = {"size_bytes": self.size_bytes, "dtype": self.dtype}
        if self.tensors:
            value["tensors"] = list(self.tensors)
        if self.at_us is not None:
            value["at_us"] = self.at_us
        if self.sparse:
            value["sparse"] = True
        return value

    @classmethod
    def from_json(cls, value: Any, where: str = "buffer") -> Buffer:
        """`where`: file, step and buffer, for errors. Raises BadPayload."""
        fields = strict_json.fields(value, where, ("size_bytes",), ("dtype", "tensors", "at_us", "sparse"), BadPayload)
        if "tensors" in fields:
            fields["tensors"] = tuple(strict_json.items(fields["tensors"], f"{where}: tensors", BadPayload))
        try:
            return cls(**fields)
        except BadPayload as error:
            raise BadPayload(f"{where}: {error}") from None


@dataclass(frozen=True)
class Step:
    """Buffers in the order in which they become ready. `times`: so many steps in a row were alike. Raises BadPayload."""

    buffers: tuple[Buffer, ...]
    times: int = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.buffers) <= MOST_BUFFERS:
            raise BadPayload(f"it has {len(self.buffers)} buffers; a step has 1 to {MOST_BUFFERS}")
        _check_count("times", self.times, MOST_STEPS)
        if self.size_bytes > LARGEST_STEP_BYTES:
            raise BadPayload(f"its buffers add up to {self.size_bytes} bytes; a step has at most {LARGEST_STEP_BYTES}")

    @property
    def size_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)

    @property
    def iovecs(self) -> list[int]:
        """Bytes of each tensor, as a parameter server's workers send them."""
        return [size for buffer in self.buffers for size in buffer.tensors or (buffer.size_bytes,)]

    @property
    def buckets(self) -> list[Buffer]:
        """What an allreduce sums, one after the other. The schemes' bytes become float32, rounded up to whole numbers."""
        return [
            Buffer(buffer.size_bytes + -buffer.size_bytes % 4, "float32") if buffer.dtype == "uint8" else buffer
            for buffer in self.buffers
        ]

    def is_like(self, other: Step) -> bool:
        """Whether both have the same buffers, at whatever times."""
        return self._untimed == other._untimed

    @property
    def _untimed(self) -> tuple[Buffer, ...]:
        return tuple(replace(buffer, at_us=None) for buffer in self.buffers)

    def as_json(self) -> dict[str, Any]:
        """What from_json() takes."""
        return {"times": self.times, "buffers": [buffer.as_json() for buffer in self.buffers]}

    @classmethod
    def from_json(cls, value: Any, where: str = "step") -> Step:
        """`where`: file and step, for errors. Raises BadPayload."""
        fields = strict_json.fields(value, where, ("buffers",), ("times",), BadPayload)
        listed = strict_json.items(fields["buffers"], f"{where}: buffers", BadPayload)
        buffers = tuple(Buffer.from_json(buffer, f"{where}: buffer {number}") for number, buffer in enumerate(listed))
        try:
            return cls(buffers, fields.get("times", 1))
        except BadPayload as error:
            raise BadPayload(f"{where}: {error}") from None


@dataclass(frozen=True)
class Manifest:
    """A payload by name. `source`, of JSON's types, tells its origin: {"scheme": ...}, {"captured": ...} or {"switchml": ...}.

    Raises BadPayload.
    """

    name: str
    source: Mapping[str, Any]
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise BadPayload(
                f"{shown(self.name)} is no name: 1 to 64 letters, digits, dots, dashes, plus signs and underscores"
            )
        if not 1 <= len(self.steps) <= MOST_BUFFERS:
            raise BadPayload(f"the payload has {len(self.steps)} steps; it must have 1 to {MOST_BUFFERS}")

    @property
    def usual_step(self) -> int:
        """Index of the step that stands for most steps; of several, the last, since a training's first steps are unlike."""
        times: Counter[tuple[Buffer, ...]] = Counter()
        for step in self.steps:
            times[step._untimed] += step.times
        return max(range(len(self.steps)), key=lambda index: (times[self.steps[index]._untimed], index))

    @property
    def usual(self) -> Step:
        return self.steps[self.usual_step]

    def as_json(self) -> dict[str, Any]:
        """What from_json() takes."""
        steps = [step.as_json() for step in self.steps]
        return {"schema": SCHEMA, "name": self.name, "source": dict(self.source), "steps": steps}

    @classmethod
    def from_json(cls, value: Any, where: str = "payload") -> Manifest:
        """`where`: the file, for errors. Raises BadPayload."""
        fields = strict_json.fields(value, where, ("schema", "name", "steps"), ("source",), BadPayload)
        if fields["schema"] != SCHEMA:
            raise BadPayload(
                f"{where}: schema {shown(fields['schema'])} is not {SCHEMA!r}, which is all that this version reads; "
                "write one with `switchsum bench capture`"
            )
        source = fields.get("source", {})
        if not isinstance(source, dict):
            raise BadPayload(f"{where}: source must be an object, not {shown(source)}")
        listed = strict_json.items(fields["steps"], f"{where}: steps", BadPayload)
        steps = tuple(Step.from_json(step, f"{where}: step {number}") for number, step in enumerate(listed))
        try:
            return cls(fields["name"], source, steps)
        except BadPayload as error:
            raise BadPayload(f"{where}: {error}") from None

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """A payload's file, or SwitchML's list of layers if the name ends in .csv. Raises BadPayload."""
        where = str(path)
        text = strict_json.read_text(path, "payload", LARGEST_FILE_BYTES, BadPayload)
        if path.suffix.lower() == ".csv":
            return from_switchml(text, where)
        value = strict_json.parse(text, where, "payload", BadPayload)
        return cls.from_json(value, where)

    def save(self, path: Path) -> None:
        """All of it or, if that fails, nothing: what was there stays. Raises OSError."""
        described = self.as_json()
        head = json.dumps({name: described[name] for name in ("schema", "name", "source")}, indent=1, allow_nan=False)
        steps = []
        for step in described["steps"]:  # a buffer a line, to be read and compared
            buffers = ",\n".join(f"   {json.dumps(buffer)}" for buffer in step["buffers"])
            steps.append(f'  {{"times": {step["times"]}, "buffers": [\n{buffers}\n  ]}}')
        text = head.removesuffix("\n}") + ',\n "steps": [\n' + ",\n".join(steps) + "\n ]\n}\n"
        strict_json.write_text(path, text)


def shipped() -> list[str]:
    """Names of the captures that come with the package."""
    return sorted(path.stem for path in CAPTURES.glob("*.json"))


def find(name_or_path: str) -> Manifest:
    """A capture that comes with the package, by its name, or a file, by its path. Raises BadPayload."""
    if name_or_path in shipped():
        return Manifest.load(CAPTURES / f"{name_or_path}.json")
    if not os.path.exists(name_or_path):
        raise BadPayload(
            f"payload {name_or_path!r}: there is no such file, and no capture of that name; there are {', '.join(shipped())}"
        )
    return Manifest.load(Path(name_or_path))


def category(size_bytes: int) -> str:
    """ "small", "medium" or "large" as in the paper's Table 1, or "above"."""
    return next((name for name, (_, end) in RANGES.items() if size_bytes < end), "above")


def histogram(sizes: Iterable[int]) -> dict[str, int]:
    """How many buffers are of each category."""
    counts = Counter(map(category, sizes))
    return {name: counts[name] for name in (*RANGES, "above")}


def from_scheme(
    scheme: str,
    iovec_count: int = DEFAULT_IOVEC_COUNT,
    sizes: Mapping[str, int] | None = None,
    bias: str = "large",
    seed: int = 0,
) -> Manifest:
    """A payload of the paper: `iovec_count` buffers of the categories in `sizes` (bytes; DEFAULT_SIZES without), in any order.

    uniform: as many of each; what does not divide goes to the larger categories, so that the default is 4 Large, 3 Medium and
    3 Small, 4.03 MB: the paper gives no counts, and its uniform latencies are those of two thirds of its skew payload, 6.03 MB.
    random: each buffer's category is drawn, until at least two categories were. skew: 60 % of the biased category, 30 % of the
    next and 10 % of the last (SKEWED); of two categories the other one has 40 %. The largest remainders complete the counts.
    `seed` decides draws and order. Raises BadPayload.
    """
    chosen = dict(DEFAULT_SIZES if sizes is None else sizes)
    if scheme not in SCHEMES:
        raise BadPayload(f"scheme {scheme!r} is unknown; there are {', '.join(SCHEMES)}")
    if not 1 <= iovec_count <= MOST_BUFFERS:
        raise BadPayload(f"{iovec_count} buffers are out of range: 1 to {MOST_BUFFERS}")
    if not 0 <= seed <= LARGEST_SEED:
        raise BadPayload(f"seed {seed} is out of range: 0 to {LARGEST_SEED}")
    _check_sizes(chosen)
    if scheme != "uniform":
        if len(chosen) < 2:
            raise BadPayload(f"scheme {scheme} needs at least two categories; there is only {', '.join(chosen) or 'none'}")
        if iovec_count < 2:
            raise BadPayload(f"scheme {scheme} needs at least 2 buffers, one for each of two categories")
    source: dict[str, Any] = {"scheme": scheme, "iovec_count": iovec_count, "sizes": chosen, "seed": seed}
    # Of the generator's methods, only random() is promised to draw the same with every Python.
    dice = random.Random(seed)
    if scheme == "random":
        names = list(chosen)
        drawn = [names[int(dice.random() * len(names))] for _ in range(iovec_count)]
        while len(set(drawn)) < 2:
            drawn = [names[int(dice.random() * len(names))] for _ in range(iovec_count)]
    else:
        if scheme == "skew":
            if bias not in chosen:
                raise BadPayload(f"bias {bias!r} is none of the chosen categories, {', '.join(chosen)}")
            source["bias"] = bias
            order = [name for name in SKEWED[bias] if name in chosen]
            shares = [60, 30, 10] if len(order) == 3 else [60, 40]
        else:
            order = [name for name in SKEWED["large"] if name in chosen]
            shares = [1] * len(order)
        counts = _largest_remainders(iovec_count, shares)
        drawn = [name for name, count in zip(order, counts, strict=True) for _ in range(count)]
        drawn.sort(key=lambda _: dice.random())
    return Manifest(scheme, source, (Step(tuple(Buffer(chosen[name]) for name in drawn)),))


def single(size_bytes: int) -> Manifest:
    """One buffer. Raises BadPayload."""
    _check_count("the payload's size", size_bytes, LARGEST_STEP_BYTES)
    return Manifest(f"single-{size_bytes}", {"scheme": "single", "size_bytes": size_bytes}, (Step((Buffer(size_bytes),)),))


def parse_size(text: str) -> int:
    """Bytes of "10", "10 B", "10KB" or "1MB"; decimal. Raises BadPayload."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise BadPayload(f"{text!r} is not a size; write a whole number of B, KB or MB (decimal), such as 10, 10KB or 1MB")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def parse_sizes(text: str) -> dict[str, int]:
    """Bytes by category of "small=10,medium=10KB,large=1MB", or of some of them. Raises BadPayload."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise BadPayload(f"{part!r} is not CATEGORY=SIZE; write for example small=10,medium=10KB,large=1MB")
        if name in sizes:
            raise BadPayload(f"{name} is given twice")
        sizes[name] = parse_size(size)
    _check_sizes(sizes)
    return sizes


def from_switchml(text: str, where: str = "layers") -> Manifest:
    """SwitchML's list of a model's layers, from first to last: layer_index,numel,forward_ns,backward_ns, below a line of names.

    (p4app-switchML, dnn_benchmark.) Each layer becomes a float32 buffer, in the order of the backward pass; it is ready when
    its part of that pass has ended. Raises BadPayload.
    """
    lines = text.splitlines()
    names = [name.strip() for name in lines[0].split(",")] if lines else []
    if len(names) != 4 or names[:2] != ["layer_index", "numel"]:
        raise BadPayload(f"{where}: line 1 must be {_CSV_HEADER}, as in SwitchML's lists of layers")
    layers = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        fields = line.split(",")
        if len(fields) != 4 or not all(re.fullmatch(r"\s*\d{1,15}\s*", part, re.ASCII) for part in fields):
            raise BadPayload(f"{where}: line {number} is not four whole numbers, {_CSV_HEADER}")
        layers.append((int(fields[1]), int(fields[3]), number))
    buffers: list[Buffer] = []
    layers.reverse()
    ended_ns = list(accumulate(backward_ns for _, backward_ns, _ in layers))
    first_ns = next((ended for ended, (numel, _, _) in zip(ended_ns, layers, strict=True) if numel), 0)
    for ended, (numel, _, number) in zip(ended_ns, layers, strict=True):
        if numel:  # a layer without weights takes time, but sends nothing
            try:
                buffers.append(Buffer(4 * numel, "float32", at_us=(ended - first_ns) / 1e3))
            except BadPayload as error:
                raise BadPayload(f"{where}: line {number}: {error}") from None
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", Path(where).stem)[:64].lstrip("._+-") or "layers"
    try:
        return Manifest(name, {"switchml": Path(where).name}, (Step(tuple(buffers)),))
    except BadPayload as error:
        raise BadPayload(f"{where}: {error}") from None


def _check_count(what: str, value: Any, largest: int) -> None:
    strict_json.whole(what, value, 1, largest, BadPayload)


def _check_sizes(sizes: Mapping[str, int]) -> None:
    if not sizes:
        raise BadPayload(f"no category is chosen; there are {', '.join(RANGES)}")
    for name, size in sizes.items():
        if name not in RANGES:
            raise BadPayload(f"category {name!r} is unknown; there are {', '.join(RANGES)}")
        first, end = RANGES[name]
        if not first <= size < end:
            raise BadPayload(f"{name}={size}: a {name} buffer has {RANGE_TEXTS[name]}")


def _largest_remainders(total: int, shares: Sequence[int]) -> list[int]:
    """`total` in whole numbers by `shares`; ties go to the first."""
    whole = sum(shares)
    counts = [total * share // whole for share in shares]
    rest = sorted(range(len(shares)), key=lambda index: -(total * shares[index] % whole))
    for index in rest[: total - sum(counts)]:
        counts[index] += 1
    return counts
