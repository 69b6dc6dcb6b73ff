"""Kineto's Chrome trace of one rank, as torch.profiler exports it: what ran, what was communicated, and when.

Of an operator only begin, end and thread are kept (16 bytes), of a collective also what its metadata say.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from switchsum.measure import spans
from switchsum.measure.spans import Spans
from switchsum.measure.traces import names, stream
from switchsum.measure.traces.stream import BadTrace, NoTrace

MOST_EVENTS = 50_000_000
MOST_STEPS = 100_000
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})", re.IGNORECASE | re.ASCII)
_LARGEST_US = 1e17


@dataclass(frozen=True)
class Step:
    """`ProfilerStep#number`, from `begin` to `end` in microseconds."""

    number: int
    begin: float
    end: float


@dataclass
class Operation:
    """A collective as one rank saw it, from its issue (Gloo, switchsum) or the start of its kernel (NCCL) to its end.

    collective: its name as names.collective() has it. group: the process group's name, "" where the trace does not tell.
    ranks: global ranks of the group; size: how many. size_bytes: of the larger of input and output. seq, comms_id: what the
    trace calls Seq and Comms Id. record_id: the "Record function id" by which an execution trace knows it.
    """

    name: str
    collective: str
    begin: float
    end: float
    group: str = ""
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    size_bytes: int | None = None
    dtype: str = ""
    seq: int | None = None
    comms_id: int | None = None
    record_id: int | None = None

    @property
    def duration(self) -> float:
        """Microseconds."""
        return self.end - self.begin


@dataclass
class Trace:
    """One rank's trace. Times in microseconds of a clock of its own; base_us: what must be added for the time of day.

    device: whether kernels of a GPU are in it; then computation is what they did, else what operators did on the threads
    that train. unclassified: communication of unknown kinds, by name. unmeasured: collectives that were issued, by name, while
    nothing tells how long they took. alone: collectives of groups of one rank, which move nothing.
    """

    path: Path
    rank: int
    world_size: int | None
    backend: str
    groups: int
    base_us: float
    device: bool
    steps: list[Step]
    compute: Spans
    input: Spans
    operations: list[Operation]
    unclassified: dict[str, Spans]
    unmeasured: dict[str, int] = field(default_factory=dict)
    alone: int = 0

    def step_of(self, moment: float) -> int | None:
        """The number of the step that `moment` lies in."""
        place = bisect_right(self.steps, moment, key=lambda step: step.begin) - 1
        return self.steps[place].number if place >= 0 and moment < self.steps[place].end else None


def read(path: Path) -> Trace:
    """Raises NoTrace if the file is something else, BadTrace if it is damaged or has no steps."""
    reading = _Reading(path)

    def other(_: Any) -> None:
        raise NoTrace(f"{path} is an execution trace")

    found = stream.read_object(path, {"traceEvents": reading.take, "nodes": other})
    if "traceEvents" not in found:
        raise NoTrace(f"{path} is no trace of torch.profiler: it has no traceEvents")
    return reading.trace(found)


class _Times:
    """Begins and ends."""

    def __init__(self) -> None:
        self.begins, self.ends = array("d"), array("d")

    def add(self, begin: float, end: float) -> None:
        self.begins.append(begin)
        self.ends.append(end)

    @property
    def union(self) -> Spans:
        return spans.union(self.begins, self.ends)


class _Thread:
    def __init__(self) -> None:
        self.operators, self.wrappers, self.issues, self.loading = _Times(), _Times(), _Times(), _Times()
        self.described: list[tuple[float, Mapping[str, Any]]] = []  # issues with metadata: begin, arguments
        self.trains = False

    @property
    def compute(self) -> Spans:
        """When operators ran. A wrapper counts until a collective is issued in it: it may wait for that one from there on."""
        issued = sorted(self.issues.begins)
        wrappers = _Times()
        for begin, end in zip(self.wrappers.begins, self.wrappers.ends, strict=True):
            place = bisect_right(issued, begin)
            wrappers.add(begin, min(end, issued[place]) if place < len(issued) else end)
        worked = spans.together(self.operators.union, wrappers.union)
        return spans.without(spans.without(worked, self.issues.union), self.loading.union)


class _Reading:
    """Takes events one by one, in any order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads: dict[Any, _Thread] = {}
        self._device = False
        self._device_compute, self._copies_in = _Times(), _Times()
        self._steps: dict[int, Step] = {}
        self._operations: list[Operation] = []
        self._kernels: list[tuple[Operation, Any]] = []  # without metadata, and the External id of who launched them
        self._launched: dict[int, Mapping[str, Any]] = {}  # metadata of record_param_comms, by External id
        self._ours: list[tuple[Operation, _Thread]] = []  # the switchsum backend's ranges
        self._issued: dict[str, int] = {}
        self._strange: dict[str, _Times] = {}
        self._events = 0

    def take(self, event: Any) -> None:
        """An entry of traceEvents. Raises BadTrace."""
        self._events += 1
        if self._events > MOST_EVENTS:
            raise BadTrace(f"{self._path} has more than {MOST_EVENTS:,} events; profile fewer steps")
        if not isinstance(event, dict):
            raise self._damaged("is no object")
        if event.get("ph") != "X":
            return
        name, category = event.get("name"), event.get("cat")
        begin, duration = event.get("ts"), event.get("dur", 0)
        if not isinstance(name, str):
            raise self._damaged("has no name")
        if not (_is_time(begin) and _is_time(duration) and duration >= 0):
            raise self._damaged(f"({_shortened(name)}) has no time: ts {begin!r}, dur {duration!r}")
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        name, end = _text(name), begin + duration
        if category == "user_annotation":
            self._annotation(name, begin, end, event.get("tid"), arguments)
        elif category == "cpu_op":
            self._operator(name, begin, end, event.get("tid"), arguments)
        elif category == "kernel":
            self._kernel(name, begin, end, arguments)
        elif category in ("gpu_memcpy", "gpu_memset"):
            self._device = True
            if "HtoD" in name:
                self._copies_in.add(begin, end)
            elif "DtoH" not in name:
                self._device_compute.add(begin, end)

    def _annotation(self, name: str, begin: float, end: float, thread: Any, arguments: dict[str, Any]) -> None:
        if found := names.STEP.fullmatch(name):
            number = int(found[1])
            if len(self._steps) >= MOST_STEPS:
                raise BadTrace(f"{self._path} has more than {MOST_STEPS:,} steps; profile fewer")
            if number in self._steps:
                raise BadTrace(f"{self._path} is damaged: {name} is in it twice; profile again")
            self._steps[number] = Step(number, begin, end)
            self._thread(thread).trains = True
        elif name.startswith(names.DATA_LOADER):
            self._thread(thread).loading.add(begin, end)
        elif found := names.RANGE.fullmatch(name):
            operation = _operation(name, found[2], begin, end, arguments)
            self._operations.append(operation)
            if found[1] == "switchsum":
                self._ours.append((operation, self._thread(thread)))
        elif names.looks_like_communication(name, of_range=True) and not names.ISSUE.match(name):
            self._strange.setdefault(name, _Times()).add(begin, end)

    def _operator(self, name: str, begin: float, end: float, thread: Any, arguments: dict[str, Any]) -> None:
        where = self._thread(thread)
        if names.ISSUE.match(name):
            where.issues.add(begin, end)
            if "Collective name" in arguments:
                where.described.append((begin, arguments))
                if (identity := _whole(arguments.get("External id"))) is not None:
                    self._launched[identity] = arguments
            if "wait" not in name:
                self._issued[name] = self._issued.get(name, 0) + 1
        elif names.is_wrapper(name):
            where.wrappers.add(begin, end)
            where.trains |= name.startswith(names.AUTOGRAD)
        elif names.looks_like_communication(name, of_range=False):
            where.issues.add(begin, end)
            self._strange.setdefault(name, _Times()).add(begin, end)
        else:
            where.operators.add(begin, end)

    def _kernel(self, name: str, begin: float, end: float, arguments: dict[str, Any]) -> None:
        self._device = True
        known = names.NCCL_KERNEL.match(name)
        if known or "Collective name" in arguments:
            operation = _operation(name, known[1] if known else "", begin, end, arguments)
            self._operations.append(operation)
            if "Collective name" not in arguments:
                self._kernels.append((operation, arguments.get("External id")))
        elif names.looks_like_communication(name, of_range=False):
            self._strange.setdefault(name, _Times()).add(begin, end)
        else:
            self._device_compute.add(begin, end)

    def trace(self, rest: dict[str, Any]) -> Trace:
        """`rest`: the file's other values."""
        if not self._steps:
            raise BadTrace(
                f"{self._path} has no steps (ProfilerStep#N): call the profiler's step() after each step of the training, or "
                "use `switchsum profile`"
            )
        steps = sorted(self._steps.values(), key=lambda step: step.begin)
        for one, other in pairwise(steps):
            if other.begin < one.end:
                raise BadTrace(f"{self._path} is damaged: steps {one.number} and {other.number} overlap; profile again")
        if any(step.end <= step.begin for step in steps):
            raise BadTrace(f"{self._path} is damaged: a step has no length; profile again")
        self._describe_kernels()
        self._describe_ranges()
        own = [operation for operation in self._operations if operation.size != 1]
        told = rest.get("distributedInfo")
        told = told if isinstance(told, dict) else {}
        world = _whole(told.get("world_size"))
        if world == 1:
            own = []
        # Copies to a GPU inside a sum on the host bring its result back.
        on_host = [each for each in own if names.RANGE.fullmatch(each.name)]
        sums = spans.union([each.begin for each in on_host], [each.end for each in on_host])
        copied = spans.without(self._copies_in.union, sums)
        trains = [thread for thread in self._threads.values() if thread.trains]
        groups = told.get("pg_config")
        base = rest.get("baseTimeNanoseconds")
        return Trace(
            path=self._path,
            rank=_rank(self._path, told),
            world_size=world,
            backend=_text(told.get("backend", "")),
            groups=len(groups) if isinstance(groups, list) else 0,
            base_us=base / 1e3 if _is_time(base) else 0.0,
            device=self._device,
            steps=steps,
            compute=self._device_compute.union if self._device else spans.together(*(each.compute for each in trains)),
            input=spans.together(copied, *(each.loading.union for each in trains)),
            operations=sorted(own, key=lambda operation: operation.begin),
            unclassified={name: times.union for name, times in sorted(self._strange.items())},
            unmeasured={} if self._operations else dict(sorted(self._issued.items())),
            alone=len(self._operations) - len(own),
        )

    def _describe_kernels(self) -> None:
        """Metadata of kernels that have none, from the record_param_comms that launched them."""
        for operation, identity in self._kernels:
            if isinstance(identity, int) and identity in self._launched:
                _describe(operation, self._launched[identity])

    def _describe_ranges(self) -> None:
        """Metadata of our ranges from what issued them, right before on the same thread; Gloo's that are part of ours go."""
        for thread in self._threads.values():
            thread.described.sort(key=lambda described: described[0])
        for operation, thread in self._ours:
            place = bisect_right(thread.described, operation.begin, key=lambda described: described[0]) - 1
            if place >= 0:
                _describe(operation, thread.described[place][1])
        if self._ours:
            covered = spans.union([each.begin for each, _ in self._ours], [each.end for each, _ in self._ours])
            starts = list(covered[:, 0])
            self._operations = [
                each
                for each in self._operations
                if not each.name.startswith("gloo:")
                or (place := bisect_right(starts, each.begin) - 1) < 0
                or each.end > covered[place, 1]
            ]

    def _thread(self, identity: Any) -> _Thread:
        key = identity if isinstance(identity, int | str) else None
        return self._threads.setdefault(key, _Thread())

    def _damaged(self, what: str) -> BadTrace:
        return BadTrace(f"{self._path} is damaged: event {self._events:,} {what}; profile again")


def _operation(name: str, collective: str, begin: float, end: float, arguments: Mapping[str, Any]) -> Operation:
    made = Operation(name, names.collective(collective), begin, end, record_id=_whole(arguments.get("Record function id")))
    _describe(made, arguments)
    return made


def _describe(operation: Operation, arguments: Mapping[str, Any]) -> None:
    """Fill in what the arguments of an event tell."""
    if "Collective name" in arguments:
        operation.collective = names.collective(str(arguments["Collective name"]))
        operation.group = _text(arguments.get("Process Group Name", ""))
        operation.size = _whole(arguments.get("Group size"))
        operation.ranks = group_ranks(arguments.get("Process Group Ranks"), operation.size)
        operation.dtype = _text(arguments.get("dtype", ""))
        operation.seq = _whole(arguments.get("Seq"))
        operation.comms_id = _whole(arguments.get("Comms Id"))
        counts = [count for key in ("In msg nelems", "Out msg nelems") if (count := _whole(arguments.get(key))) is not None]
        item = names.item_bytes(operation.dtype)
        if counts and item is not None:
            operation.size_bytes = max(counts) * item
    elif "Input Dims" in arguments:
        operation.dtype, operation.size_bytes = tensors(arguments.get("Input type"), arguments["Input Dims"])


def tensors(types: Any, shapes: Any) -> tuple[str, int | None]:
    """dtype of the first tensor, and bytes of all; None where one cannot be told."""
    if not (isinstance(types, list) and isinstance(shapes, list) and len(types) == len(shapes)):
        return "", None
    first, size = "", 0
    for kind, shape in zip(types, shapes, strict=True):
        item = names.item_bytes(kind) if isinstance(kind, str) else None
        if item is None or not isinstance(shape, list) or not all(_whole(each) is not None for each in shape):
            return first, None
        first = first or _text(kind)
        size += item * math.prod(shape)
    return first, size if first else None


def group_ranks(told: Any, size: int | None) -> tuple[int, ...] | None:
    """Of "[0, 1, 2]"; "[0, 2, ..., 62]" goes on with the stride of its last two, if that gives `size` ranks."""
    if not isinstance(told, str | list):
        return None
    text = told if isinstance(told, str) else ",".join(map(str, told))
    before, dots, after = text.partition("...")
    numbers = [int(each) for each in re.findall(r"\d{1,9}", before, re.ASCII)]
    if not dots:
        return tuple(numbers) if numbers and (size is None or len(numbers) == size) else None
    last = re.findall(r"\d{1,9}", after, re.ASCII)
    if len(numbers) < 2 or size is None or not numbers[-1] > numbers[-2]:
        return None
    stride = numbers[-1] - numbers[-2]
    ranks = (*numbers, *(numbers[-1] + stride * step for step in range(1, size - len(numbers) + 1)))
    return ranks if not last or int(last[-1]) == ranks[-1] else None


def _rank(path: Path, told: Mapping[str, Any]) -> int:
    rank = _whole(told.get("rank"))
    if rank is not None:
        return rank
    in_name = _RANK_IN_NAME.search(path.name)
    return int(in_name[1]) if in_name else 0


def _whole(value: Any) -> int | None:
    """A count: of JSON's numbers, those that are one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_US  # NaN fails, too


def _text(value: Any) -> str:
    """Fit to be printed: JSON's escapes can hold halves of characters."""
    text = str(value)
    return text if text.isascii() else text.encode(errors="replace").decode()


def _shortened(text: str) -> str:
    """Of a name that may be long."""
    return _text(text if len(text) <= 60 else f"{text[:60]}...")
