"""A parameter server: workers push pieces of their tensors, and pull what all workers' add up to, as with ps-lite and BytePS.

A call's first buffer says what it is about (head()), the others are a piece: stretches of tensors, each of one type. A call may
push, pull, or do both. Pushing never waits; pulling waits until every worker has pushed. Sums are made in float32 (integers: in
int32, modulo 2^32), in the order in which workers come, and rounded to the tensors' type once: every worker is given the same
bits. For an average the sum is divided before it is rounded.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.measure.rpc import Buffer, Buffers, Call, Method

WINDOW = 2  # calls that a worker has under way on each of its two connections, so that none waits for the last one's answer
THREADS_A_WORKER = 2 * WINDOW
DTYPES = ("float32", "float16", "bfloat16", "int32")
_HEAD = struct.Struct("!QIBBH")  # operation, piece, pushes, pulls, 0; behind it a byte for each buffer's type
_ALIGNMENT = 8  # bytes, so that numbers that follow in one message are where processors like them
_NAN = 0x7FC0  # in bfloat16
_PLAIN = {"float32": np.float32, "float16": np.float16, "int32": np.int32}

Key = tuple[int, int]


class BadPart(ValueError):
    """What a worker pushed does not fit what the others pushed; the text says which worker, and how."""


@dataclass(frozen=True)
class Head:
    """`operation` counts a worker's sums, `piece` counts inside one; `dtypes`: of the buffers that are pushed or pulled."""

    operation: int
    piece: int
    dtypes: tuple[str, ...]
    pushes: bool
    pulls: bool

    def pack(self) -> bytes:
        codes = bytes(map(DTYPES.index, self.dtypes))
        packed = _HEAD.pack(self.operation, self.piece, self.pushes, self.pulls, 0) + codes
        return packed + bytes(-len(packed) % _ALIGNMENT)

    @classmethod
    def parse(cls, data: Buffer, buffers: int) -> Head:
        """`buffers`: how many follow. Raises BadPart."""
        if len(data) < _HEAD.size + buffers:
            raise BadPart(f"a call for a sum begins with {len(data)} bytes, which are too few for {buffers} buffers")
        operation, piece, pushes, pulls, _ = _HEAD.unpack_from(data)
        codes = bytes(data[_HEAD.size : _HEAD.size + buffers])
        if any(code >= len(DTYPES) for code in codes):
            raise BadPart(f"a call for a sum names a type that is unknown; there are {', '.join(DTYPES)}")
        return cls(operation, piece, tuple(DTYPES[code] for code in codes), bool(pushes), bool(pulls))


class SumService:
    """rpc.Service of Method.SUM."""

    def __init__(self, workers: int, average: bool, patience_s: float) -> None:
        """`patience_s`: how long a pull waits for what others have not pushed."""
        self._workers, self._average, self._patience_s = workers, average, patience_s
        self._lock = threading.Lock()
        self._totals: dict[Key, _Total] = {}

    def __call__(self, call: Call) -> Buffers:
        """Raises BadPart; TimeoutError naming the workers that have not pushed."""
        if call.method != Method.SUM or not call.buffers:
            raise BadPart(f"worker {call.worker} asks for {call.method.name}, but this parameter server only sums")
        head = Head.parse(call.buffers[0], len(call.buffers) - 1)
        key = (head.operation, head.piece)
        with self._lock:
            total = self._totals.setdefault(key, _Total(self._workers, self._average))
        if head.pushes:
            total.add(call.worker, head.dtypes, call.buffers[1:])
        if not head.pulls:
            return []
        found = total.wait(self._patience_s)
        with self._lock:
            total.pulled += 1
            if total.pulled == self._workers:
                self._totals.pop(key, None)
        return found


class _Total:
    """One piece's sum while it is made."""

    def __init__(self, workers: int, average: bool) -> None:
        self.pulled = 0
        self._workers, self._average = workers, average
        self._changed = threading.Condition()
        self._pushed: list[int] = []
        self._dtypes: tuple[str, ...] = ()
        self._sums: list[npt.NDArray[Any]] = []
        self._result: Buffers | None = None
        self._failure: BadPart | None = None

    def add(self, worker: int, dtypes: tuple[str, ...], buffers: Buffers) -> None:
        with self._changed:
            try:
                self._add(worker, dtypes, buffers)
            except BadPart as error:
                self._failure = error  # the others need not wait for what cannot come
                self._changed.notify_all()
                raise
            self._pushed.append(worker)
            if len(self._pushed) == self._workers:
                self._result = [self._rounded(total, dtype) for total, dtype in zip(self._sums, dtypes, strict=True)]
                self._sums = []
                self._changed.notify_all()

    def _add(self, worker: int, dtypes: tuple[str, ...], buffers: Buffers) -> None:
        if not 0 <= worker < self._workers or worker in self._pushed:
            raise BadPart(f"worker {worker} pushed a piece that it must not push (again); there are {self._workers} workers")
        parts = [_numbers(buffer, dtype, worker) for buffer, dtype in zip(buffers, dtypes, strict=True)]
        if not self._pushed:
            # Copies: the buffers belong to whoever received them.
            kinds = [np.int32 if dtype == "int32" else np.float32 for dtype in dtypes]
            self._sums = [np.array(part, kind) for part, kind in zip(parts, kinds, strict=True)]
            self._dtypes = dtypes
            return
        shape = [(dtype, part.size) for dtype, part in zip(dtypes, parts, strict=True)]
        wanted = [(dtype, total.size) for dtype, total in zip(self._dtypes, self._sums, strict=True)]
        if shape != wanted:
            raise BadPart(f"worker {worker} pushed {_told(shape)} where worker {self._pushed[0]} pushed {_told(wanted)}")
        for total, part in zip(self._sums, parts, strict=True):
            np.add(total, part, out=total)

    def _rounded(self, total: npt.NDArray[Any], dtype: str) -> Buffer:
        if self._average:
            total /= self._workers
        if dtype == "bfloat16":
            bits = total.view(np.uint32)
            rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)  # to nearest, ties to even
            rounded[np.isnan(total)] = _NAN
            return rounded.view(np.uint8).data
        with np.errstate(over="ignore"):  # what exceeds float16 is infinite, as everywhere
            return total.astype(_PLAIN[dtype], copy=False).view(np.uint8).data

    def wait(self, patience_s: float) -> Buffers:
        with self._changed:
            self._changed.wait_for(lambda: self._result is not None or self._failure is not None, patience_s)
            if self._failure is not None:
                raise self._failure
            if self._result is None:
                missing = ", ".join(str(worker) for worker in range(self._workers) if worker not in self._pushed)
                raise TimeoutError(f"worker {missing} pushed nothing within {patience_s:g} s")
            return self._result


def _numbers(buffer: Buffer, dtype: str, worker: int) -> npt.NDArray[Any]:
    """What float32 or int32 can be added to."""
    size = 4 if dtype in ("float32", "int32") else 2
    if len(buffer) % size:
        raise BadPart(f"worker {worker} pushed {len(buffer)} bytes, which are no whole number of {dtype}")
    if dtype == "bfloat16":
        return (np.frombuffer(buffer, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(buffer, _PLAIN[dtype])


def _told(shape: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {dtype}" for dtype, count in shape) or "nothing"
