"""What a step of a training is made of: the features that a prediction begins with, of one job and rank.

In the manner of Alibaba-PAI's workload characterisation (Wang et al., IISWC 2019, arXiv 1910.05930): nodes, batch, operations,
memory traffic, input, parameters, gradients' traffic, class of architecture. Seconds measured step by step stand beside them.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from switchsum.measure import strict_json
from switchsum.measure.manifest import ITEM_BYTES

SCHEMA = "switchsum-features/1"

# PAI's classes, and those that have come since.
ARCHITECTURES = (
    "1w1g", "1wng", "ps/worker", "allreduce-local", "allreduce-cluster", "pearl", "ddp", "fsdp", "switch", "other",
)  # fmt: skip

MOST_WORKERS = 1_000_000
MOST_BUCKETS = 10_000
MOST_STEPS = 1_000_000
LARGEST_BYTES = 1 << 50
LARGEST_FILE_BYTES = 64 << 20
RANK_FILES = "features.rank*.json"  # as `switchsum profile` calls them
LONGEST_S = 1e6
LARGEST_RATE_BPS = 1e15
# Clocks of a trace have steps, so the parts may come out a little longer than the whole.
_PARTS_TOO_LONG = 1.01

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_STEPS = ("step_s", "compute_s", "input_s", "exposed_s")
_AMOUNTS = ("flops", "memory_bytes", "input_bytes")
_BYTES = ("dense_parameter_bytes", "embedding_parameter_bytes", "gradient_bytes")


class BadFeatures(ValueError):
    """Features that make no sense; the text says what is wrong, where, and what to do."""


class WrongSchema(BadFeatures):
    """It is JSON, but no features that this version reads."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are summed as one. `ready_s`: so long after the step's backward pass began they were ready; the median
    over steps. Raises BadFeatures."""

    size_bytes: int
    dtype: str
    ready_s: float

    def __post_init__(self) -> None:
        strict_json.whole("size_bytes", self.size_bytes, 1, LARGEST_BYTES, BadFeatures)
        _check_dtype(self.dtype)
        strict_json.number("ready_s", self.ready_s, LONGEST_S, BadFeatures)

    def as_json(self) -> dict[str, Any]:
        """What from_json() takes."""
        return {"size_bytes": self.size_bytes, "dtype": self.dtype, "ready_s": self.ready_s}

    @classmethod
    def from_json(cls, value: Any, where: str = "bucket") -> Bucket:
        """`where`: file and bucket, for errors. Raises BadFeatures."""
        try:
            return cls(**strict_json.fields(value, where, ("size_bytes", "dtype", "ready_s"), (), BadFeatures))
        except BadFeatures as error:
            raise BadFeatures(_placed(where, error)) from None


@dataclass(frozen=True)
class Features:
    """One job's, per step, of one rank (0 unless `source` says so). Raises BadFeatures where fields do not fit each other.

    architecture: one of ARCHITECTURES, and by which rule (architecture_rule). workers: PAI's cNodes, each with one replica of
    the model. batch_size: of one worker. flops: of operations that are bound by computing (matmul, conv, attention), of one
    worker and step; memory_bytes: moved by those bound by memory; input_bytes: of a batch, copied to the device (0: none).
    gradient_bytes: on the wire, of one worker and step, counted once whatever the algorithm makes of it; buckets: in which it
    is summed, empty where they are not known. step_s, compute_s, input_s, exposed_s: seconds of each step, as many of each;
    a step is computing, input, communication that nothing hid, and a rest. forward_s, backward_s: means; the buckets' ready_s
    count from backward's begin. link_bps, backend: where it was measured; None: not known. synthetic: made up, not measured.
    source, of JSON's types: command, versions, date, machine, overhead of profiling.
    """

    name: str
    architecture: str
    architecture_rule: str
    workers: int
    batch_size: int
    flops: float
    memory_bytes: float
    input_bytes: float
    dense_parameter_bytes: int
    embedding_parameter_bytes: int
    gradient_bytes: int
    dtype: str
    buckets: tuple[Bucket, ...]
    step_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    input_s: tuple[float, ...]
    exposed_s: tuple[float, ...]
    forward_s: float
    backward_s: float
    link_bps: float | None
    backend: str
    synthetic: bool
    source: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise BadFeatures(
                f"name {strict_json.shown(self.name)} is none: 1 to 64 letters, digits, dots, dashes, pluses and underscores"
            )
        if self.architecture not in ARCHITECTURES:
            raise BadFeatures(
                f"architecture {strict_json.shown(self.architecture)} is unknown; there are {', '.join(ARCHITECTURES)}"
            )
        for what in ("architecture_rule", "backend"):
            if not isinstance(getattr(self, what), str):
                raise BadFeatures(f"{what} {strict_json.shown(getattr(self, what))} is no text")
        strict_json.whole("workers", self.workers, 1, MOST_WORKERS, BadFeatures)
        strict_json.whole("batch_size", self.batch_size, 1, 10**12, BadFeatures)
        for what in _AMOUNTS:
            strict_json.number(what, getattr(self, what), 1e24, BadFeatures)
        for what in _BYTES:
            strict_json.whole(what, getattr(self, what), 0, LARGEST_BYTES, BadFeatures)
        _check_dtype(self.dtype)
        self._check_buckets()
        self._check_steps()
        for what in ("forward_s", "backward_s"):
            strict_json.number(what, getattr(self, what), LONGEST_S, BadFeatures)
        if self.link_bps is not None:
            strict_json.number("link_bps", self.link_bps, LARGEST_RATE_BPS, BadFeatures, positive=True)
        if not isinstance(self.synthetic, bool):
            raise BadFeatures(f"synthetic {strict_json.shown(self.synthetic)} must be true or false")
        if not isinstance(self.source, Mapping):
            raise BadFeatures(f"source must be an object, not {strict_json.shown(self.source)}")

    def _check_buckets(self) -> None:
        if not isinstance(self.buckets, tuple) or len(self.buckets) > MOST_BUCKETS:
            raise BadFeatures(f"buckets must be a list of at most {MOST_BUCKETS}")
        summed = sum(bucket.size_bytes for bucket in self.buckets)
        if summed > self.gradient_bytes:
            raise BadFeatures(f"buckets add up to {summed} bytes, more than gradient_bytes {self.gradient_bytes}")

    def _check_steps(self) -> None:
        for what in _STEPS:
            values = getattr(self, what)
            if not isinstance(values, tuple) or not 1 <= len(values) <= MOST_STEPS:
                raise BadFeatures(f"{what} must be a list of 1 to {MOST_STEPS} times in seconds, one a step")
            if len(values) != len(self.step_s):
                raise BadFeatures(f"{what} has {len(values)} steps, step_s {len(self.step_s)}; they must be as many")
            for number, seconds in enumerate(values):
                strict_json.number(f"{what} of step {number}", seconds, LONGEST_S, BadFeatures, positive=what == "step_s")
        for number, (step, *parts) in enumerate(zip(*(getattr(self, what) for what in _STEPS), strict=True)):
            if sum(parts) > _PARTS_TOO_LONG * step:
                raise BadFeatures(
                    f"step {number}: compute_s, input_s and exposed_s add up to {sum(parts):g} s, more than its step_s {step:g}"
                )

    @property
    def wire_dtype(self) -> str:
        """Of most gradients' bytes, as they travel; where buckets are not known, `dtype`, in which most is computed."""
        shares: dict[str, int] = {}
        for bucket in self.buckets:
            shares[bucket.dtype] = shares.get(bucket.dtype, 0) + bucket.size_bytes
        return max(shares, key=lambda dtype: shares[dtype], default=self.dtype)

    @property
    def mean_step_s(self) -> float:
        return statistics.fmean(self.step_s)

    @property
    def exposed_share(self) -> float:
        """Of the steps' time, in which only communication ran."""
        return sum(self.exposed_s) / sum(self.step_s)

    @property
    def rest_s(self) -> tuple[float, ...]:
        """Of each step, what is neither computing, nor input, nor communication that nothing hid."""
        steps = zip(self.step_s, self.compute_s, self.input_s, self.exposed_s, strict=True)
        return tuple(max(0.0, step - compute - fed - exposed) for step, compute, fed, exposed in steps)

    def as_json(self) -> dict[str, Any]:
        """What from_json() takes."""
        value = {"schema": SCHEMA, **vars(self), "source": dict(self.source)}
        return value | {"buckets": [bucket.as_json() for bucket in self.buckets], **{n: list(value[n]) for n in _STEPS}}

    @classmethod
    def from_json(cls, value: Any, where: str = "features") -> Features:
        """`where`: the file, for errors. Raises BadFeatures."""
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            schema = value.get("schema") if isinstance(value, dict) else value
            raise WrongSchema(
                f"{where}: schema {strict_json.shown(schema)} is not {SCHEMA!r}, which is all that this version "
                "reads; write features with `switchsum profile`"
            )
        names = tuple(cls.__dataclass_fields__)
        found = strict_json.fields(value, where, ("schema", *names), (), BadFeatures)
        listed = strict_json.items(found["buckets"], f"{where}: buckets", BadFeatures)
        found["buckets"] = tuple(Bucket.from_json(each, f"{where}: bucket {number}") for number, each in enumerate(listed))
        for name in _STEPS:
            found[name] = tuple(strict_json.items(found[name], f"{where}: {name}", BadFeatures))
        try:
            return cls(**{name: found[name] for name in names})
        except BadFeatures as error:
            raise BadFeatures(_placed(where, error)) from None

    @classmethod
    def load(cls, path: Path) -> Features:
        """Raises BadFeatures."""
        text = strict_json.read_text(path, "job's features", LARGEST_FILE_BYTES, BadFeatures)
        return cls.from_json(strict_json.parse(text, str(path), "job's features", BadFeatures), str(path))

    def save(self, path: Path) -> None:
        """All of it or, if that fails, nothing: what was there stays. Raises OSError."""
        strict_json.write_text(path, json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")


def of_job(path: Path) -> Features:
    """A file, or a folder in which `switchsum profile` left those of all ranks: together(). Raises BadFeatures."""
    if not path.is_dir():
        return Features.load(path)
    files = sorted(path.glob(RANK_FILES))
    if not files:
        raise BadFeatures(f"{path} holds no {RANK_FILES}, which `switchsum profile` leaves: name its folder, or a file")
    ranks = [Features.load(file) for file in files]
    if len(ranks) < ranks[0].workers and len(ranks) > 1:
        raise BadFeatures(
            f"{path} holds features of {len(ranks)} ranks of {ranks[0].workers}: bring all ranks' files together there, or "
            "name one of them"
        )
    try:
        return together(ranks)
    except BadFeatures as error:
        raise BadFeatures(f"{path}: {error}") from None


def together(ranks: Sequence[Features]) -> Features:
    """One job from the features of all its ranks, which must have been profiled in the same steps.

    Ranks wait for the slowest of them, so each step is that of the rank that computed and read its input for longest, and a
    bucket is ready when the last rank has it. A rank's exposed communication holds its waiting for others; the least of all
    ranks does not. Of sparse gradients each rank touched other rows: a bucket is as large as the largest rank's, and a rank
    that touched none has no such bucket. Raises BadFeatures.
    """
    first = ranks[0]
    same = ("name", "architecture", "workers", "dtype", "link_bps", "backend", "synthetic")
    for other in ranks[1:]:
        for what in same:
            if getattr(other, what) != getattr(first, what):
                raise BadFeatures(
                    f"{what} is {getattr(first, what)} of one rank and {getattr(other, what)} of another: not one job"
                )
        if len(other.step_s) != len(first.step_s):
            raise BadFeatures("ranks have different numbers of steps; profile them in the same run")
    steps = range(len(first.step_s))
    slowest = [max(ranks, key=lambda each: each.compute_s[step] + each.input_s[step]) for step in steps]
    computed = max(ranks, key=lambda each: statistics.fmean(each.compute_s))
    buckets = _largest_buckets(ranks)
    beyond = [rank.gradient_bytes - sum(bucket.size_bytes for bucket in rank.buckets) for rank in ranks]
    if len(set(beyond)) > 1:
        raise BadFeatures(
            f"gradient_bytes beyond buckets are {min(beyond)} of one rank and {max(beyond)} of another: not one job"
        )
    return replace(
        first,
        buckets=buckets,
        gradient_bytes=sum(bucket.size_bytes for bucket in buckets) + beyond[0],
        step_s=tuple(rank.step_s[step] for rank, step in zip(slowest, steps, strict=True)),
        compute_s=tuple(rank.compute_s[step] for rank, step in zip(slowest, steps, strict=True)),
        input_s=tuple(rank.input_s[step] for rank, step in zip(slowest, steps, strict=True)),
        exposed_s=tuple(min(rank.exposed_s[step] for rank in ranks) for step in steps),
        forward_s=computed.forward_s,
        backward_s=computed.backward_s,
        source={"ranks": [dict(rank.source) for rank in ranks]},
    )


def _largest_buckets(ranks: Sequence[Features]) -> tuple[Bucket, ...]:
    """Each as large as the largest rank's, and ready when the last rank has it. Raises BadFeatures."""
    form = max((rank.buckets for rank in ranks), key=len)
    same: list[list[Bucket]] = [[] for _ in form]
    for rank in ranks:
        for place, bucket in zip(_places(rank.buckets, form), rank.buckets, strict=True):
            same[place].append(bucket)
    largest = [max(bucket.size_bytes for bucket in each) for each in same]
    different = sum(
        size for size, each in zip(largest, same, strict=True) if [bucket.size_bytes for bucket in each] != [size] * len(ranks)
    )
    tables = max(rank.embedding_parameter_bytes for rank in ranks)
    if different > tables:
        raise BadFeatures(
            f"ranks have different buckets, of {different} bytes, which sparse gradients do not explain: embedding tables have "
            f"{tables}. These are not of one job, or not of the same steps; profile it in one run, or name one rank's file"
        )
    return tuple(
        Bucket(size, each[0].dtype, max(bucket.ready_s for bucket in each)) for size, each in zip(largest, same, strict=True)
    )


def _places(buckets: Sequence[Bucket], form: Sequence[Bucket]) -> list[int]:
    """Where in `form`, which has as many or more, each is: in the same order, of the same type and, of as many as possible, of
    the same size. Raises BadFeatures."""
    # By how many of `form` are left out so far: how many sizes differ, and the last place with all those before.
    best: list[tuple[float, Any]] = [(0, ())] * (len(form) - len(buckets) + 1)
    for number, bucket in enumerate(buckets):
        least = best[0]
        for left_out, before in enumerate(best):
            least = min(least, before, key=itemgetter(0))
            there = form[number + left_out]
            differ = least[0] + (there.size_bytes != bucket.size_bytes) if there.dtype == bucket.dtype else math.inf
            best[left_out] = differ, (number + left_out, least[1])
    differ, chain = min(best, key=itemgetter(0))
    if differ == math.inf:
        raise BadFeatures("ranks have buckets of different types: not one job; name one rank's file")
    places = []
    while chain:
        place, chain = chain
        places.append(place)
    return places[::-1]


def _check_dtype(dtype: Any) -> None:
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise BadFeatures(f"dtype {strict_json.shown(dtype)} is unknown; there are {', '.join(ITEM_BYTES)}")


def _placed(where: str, error: BadFeatures) -> str:
    text = str(error)
    return text if text.startswith(where) else f"{where}: {text}"
