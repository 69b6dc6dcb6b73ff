"""What the ranks sum, and what must come out: inputs from a seed, expected results, and the count of wrong elements.

A tensor repeats one tile of TILE numbers, each time changed in a way that the sum follows exactly: floats times a power of two,
integers plus a number. So every tile differs from its neighbours, and the expected sum of a large tensor costs a tile's work.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

TILE = 1 << 18  # numbers: whole packets of every size and lane width, and it fits a processor's cache
PIECE = 4096  # numbers: what one checksum covers where ranks are compared with each other

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
# Unit roundoff u of an addition in the type (half the distance from 1 to the next number).
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Powers of two by which tiles differ; float16 has little room: 32 ranks x 5 sigma x 8 must stay below 65,504.
_SCALES = {"float32": 16, "float16": 4, "bfloat16": 16}

_STARTS, _START_STEP = 1024, 256  # places at which tensors of one operation begin, and numbers between them

Value = TypeVar("Value", bound=np.generic)
Reference = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
Bound = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float64]]


class Numbers:
    """All ranks' numbers of one type from a seed, of which each tensor repeats a stretch. `dtype`: a key of ITEM_BYTES."""

    def __init__(self, dtype: str, ranks: int, seed: int) -> None:
        self.dtype, self.ranks, self._seed = dtype, ranks, seed
        self._made: npt.NDArray[Any] = np.empty((ranks, 0), np.float32)

    def stretch(self, first: int, width: int) -> npt.NDArray[Any]:
        """float32[ranks, width] (values of the type), or int32 of magnitudes that fit a lane of 32 ranks."""
        if self._made.shape[1] < first + width:
            self._made = np.stack([self._of(np.random.default_rng([self._seed, rank]), first + width) for rank in self._all])
        return self._made[:, first : first + width]

    @property
    def _all(self) -> range:
        return range(self.ranks)

    def _of(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        import torch

        if self.dtype == "int32":
            return generator.integers(-(1 << 20), 1 << 20, count, np.int32)
        values = torch.from_numpy(generator.standard_normal(count, np.float32))
        return np.asarray(values.to(getattr(torch, self.dtype)).float().numpy())


class Payload:
    """One rank's tensor of `count` numbers, and the means to judge the sum of all ranks'.

    `number`: of the tensor among those of one operation, which begin at different places of `numbers`.
    """

    def __init__(self, count: int, numbers: Numbers, redop: str, rank: int, number: int = 0) -> None:
        self.count, self.dtype, self.redop = count, numbers.dtype, redop
        self._numbers, self._rank, self._number = numbers, rank, number
        self._ranks = numbers.ranks

    @cached_property
    def _base(self) -> npt.NDArray[Any]:
        """Numbers.stretch() of the tile."""
        return self._numbers.stretch(_START_STEP * (self._number % _STARTS), min(self.count, TILE))

    def _tiles(self) -> Iterator[tuple[int, int, float]]:
        """(start, numbers, the tile's factor or, for integers, summand)."""
        for number, start in enumerate(range(0, self.count, TILE)):
            change = number if self.dtype == "int32" else 2.0 ** (number % _SCALES[self.dtype])
            yield start, min(TILE, self.count - start), change

    def fill(self, tensor: torch.Tensor) -> None:
        """This rank's numbers into `tensor: dtype[count]`."""
        import torch

        base = torch.from_numpy(self._base[self._rank])
        for start, width, change in self._tiles():
            part = base[:width]
            tensor[start : start + width] = part + int(change) if self.dtype == "int32" else part * change

    def wrong_bits(self, result: torch.Tensor, reference: Reference | None) -> int:
        """Elements of `result: dtype[count]` whose bits are not those of the expected sum.

        `reference`: float32[ranks, m] -> float32[m], what the switch must return; None for integers, whose sum is exact.
        """
        import torch

        wrong = 0
        bits = torch.int32 if ITEM_BYTES[self.dtype] == 4 else torch.int16
        expected_of = self._by_width(self._exact_integers if reference is None else reference)
        for start, width, change in self._tiles():
            expected = torch.from_numpy(expected_of[width])
            if self.dtype == "int32":
                wanted = expected + int(change) * self._ranks
            else:
                wanted = expected * change
                if self.redop == "avg":
                    wanted.div_(self._ranks)
                wanted = wanted.to(result.dtype)
            found = result[start : start + width]
            wrong += int((found.view(bits) != wanted.view(bits)).sum())
        return wrong

    def _exact_integers(self, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(inputs.sum(axis=0, dtype=np.int32))

    def _by_width(self, of_tensor: Callable[[npt.NDArray[Any]], npt.NDArray[Value]]) -> dict[int, npt.NDArray[Value]]:
        """What a function of the ranks' whole tensors says of a full tile, and of the last tile; by their widths.

        How a tensor is summed may depend on its length, so the last tile is looked at behind a full one.
        """
        if self.count <= TILE:
            return {self.count: of_tensor(np.ascontiguousarray(self._base))}
        rest = self.count % TILE
        values = of_tensor(np.concatenate([self._base, self._base[:, :rest]], axis=1))
        return {TILE: values[:TILE], rest: values[TILE:]}

    def wrong_beyond(self, result: torch.Tensor, bound: Bound | None) -> int:
        """Elements of `result` that are farther from the exact sum than allowed.

        `bound`: float32[ranks, m] -> float64[m], the largest permitted error of the sum; None for floating-point additions in
        the type, in any order: gamma(n-1) * sum|x| with gamma(k) = ku / (1 - ku) (Higham, Accuracy and Stability, 4.2), which
        is (n-1) * 2^-24 * sum|x| for float32. An average's division rounds once more, and so does the result's type.
        """
        wrong = 0
        exact_of = self._by_width(lambda inputs: inputs.sum(axis=0, dtype=np.float64))
        permitted_of = self._by_width(lambda inputs: self._permitted(inputs, bound))
        divisor = self._ranks if self.redop == "avg" else 1
        for start, width, change in self._tiles():
            found = result[start : start + width].double().numpy()
            with np.errstate(invalid="ignore"):
                error = np.abs(found - exact_of[width] * (change / divisor))
                wrong += int((~(error <= permitted_of[width] * (change / divisor))).sum())  # NaN is wrong, too
        return wrong

    def largest_error(self, result: torch.Tensor) -> float:
        """Of `result`: the largest distance from the exact sum, relative to the sum of magnitudes; 0 if all is exact.

        What is no number, or infinite, counts as the largest float that there is.
        """
        largest = 0.0
        exact_of = self._by_width(lambda inputs: inputs.sum(axis=0, dtype=np.float64))
        scale_of = self._by_width(lambda inputs: np.abs(inputs).sum(axis=0, dtype=np.float64))
        divisor = self._ranks if self.redop == "avg" else 1
        for start, width, change in self._tiles():
            found = result[start : start + width].double().numpy()
            if self.dtype == "int32":
                scale = np.abs(self._base[:, :width] + int(change)).sum(axis=0, dtype=np.float64)
                error = np.abs(found - exact_of[width] - change * self._ranks)
            else:
                scale = scale_of[width] * (change / divisor)
                error = np.abs(found - exact_of[width] * (change / divisor))
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = np.where(error == 0, 0.0, error / scale)
            largest = max(largest, float(np.nan_to_num(relative, nan=np.inf).max()))
        return min(largest, sys.float_info.max)

    def _permitted(self, inputs: npt.NDArray[np.float32], bound: Bound | None) -> npt.NDArray[np.float64]:
        """Of the sum, before an average's division."""
        unit = UNIT_ROUNDOFF[self.dtype]
        roundings = self._ranks - 1 if bound is None else 0
        if self.redop == "avg" or (bound is not None and self.dtype != "float32"):
            roundings += 1
        permitted = np.abs(inputs).sum(axis=0, dtype=np.float64) * (roundings * unit / (1 - roundings * unit))
        if bound is not None:
            permitted = permitted + bound(inputs)
        if self.dtype == "float16":  # half a step of its subnormal numbers, as often
            permitted = permitted + (roundings + 1) * self._ranks * 2.0**-25
        return np.asarray(permitted, np.float64)


def checksums(result: torch.Tensor) -> list[int]:
    """One CRC-32 for each PIECE of the result: ranks whose results are equal send equal lists."""
    import torch

    whole = memoryview(result.view(torch.uint8).numpy())
    step = PIECE * result.element_size()
    return [zlib.crc32(whole[start : start + step]) for start in range(0, len(whole), step)]


def differing_elements(lists: list[list[int]], count: int) -> int:
    """Over all ranks: elements in pieces that differ from rank 0's (a piece counts whole)."""
    wrong = 0
    for other in lists[1:]:
        for number, (mine, first) in enumerate(zip(other, lists[0], strict=True)):
            if mine != first:
                wrong += min(PIECE, count - number * PIECE)
    return wrong
