"""Block floating point: how a block of numbers becomes lanes that a switch can add, and back (DESIGN section 5).

A block is one packet of E elements. With n workers a lane holds value + B, where B = floor((2^32 - 1) / (2n)) and
|value| <= B, so n lanes sum to at most 2nB < 2^32 and never carry; the receiver subtracts nB.

Floats (float32). Every worker proposes e = ceil(log2 max|x|) of its block (at least -126, so that subnormals are
defined); the switch returns the maximum. The scale is s = B / 2^e and the value rint(x * s), so |value| <= B for any n.
Each rounding is off by at most half a unit 1/s (and 2^-22 of a unit, because x * s is rounded to float64 first), so

    |result - exact sum| <= n/2 * (1 + 2^-21) / s  +  half an ulp of the result as float32.

A subnormal block (e = -126) is summed like any other: for 32 workers the bound above is two and a half steps of 2^-149, for two
workers the result is all but always the correctly rounded one. A block of zeros is exact; -0.0 counts as 0.0. NaN and Inf
concern only their own elements: a block that holds one takes an extra round in which each worker sends, for each element,
which class it has, as counts that add up (1 for +Inf, 2^8 for -Inf, 2^16 for NaN); the result is NaN where a NaN or both
infinities met, the infinity where one did, and the ordinary sum of the finite elements elsewhere.

Integers (int32, int64) are exact modulo their range. If every value of the block is at most B in magnitude on all
workers (code 0) they travel as they are; otherwise (code 1) as unsigned 16-bit half words, in 2 or 4 rounds.

The switch adds integers, so the result depends neither on the order of packets nor on the rank: same inputs, same bits.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import numpy.typing as npt

from switchsum.host_agent.wire import swap32
from switchsum.p4src.layout import MAX_WORKERS, Exponent

CODE_ZERO = int(Exponent.ZERO)
CODE_BIAS = int(Exponent.BIAS)
CODE_SPECIAL = int(Exponent.SPECIAL)
CODE_NONE = int(Exponent.NONE)
CODE_FITS = CODE_ZERO  # integers: every value fits a lane
CODE_HALVES = 1  # integers: 16-bit half words

EXPONENT_MIN = -126  # float32's smallest normal exponent: subnormal blocks share its scale

CLASS_POSITIVE_INF = 1
CLASS_NEGATIVE_INF = 1 << 8
CLASS_NAN = 1 << 16

_INF_BITS = 0x7F800000


def lane_limit(world_size: int) -> int:
    """B, the largest magnitude a lane may carry with `world_size` workers (1 to 32); raises ValueError beyond."""
    if not 1 <= world_size <= MAX_WORKERS:
        raise ValueError(f"world size {world_size}: a slot's bitmap has room for 1 to {MAX_WORKERS} workers")
    return (2**32 - 1) // (2 * world_size)


@nb.njit(cache=True, nogil=True)
def float_code(bits, count):
    """Code to propose for `bits: uint32[count]`, the bit patterns of float32 values (may be SPECIAL)."""
    largest = np.uint32(0)
    for i in range(count):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        largest = max(largest, magnitude)
    if largest >= np.uint32(_INF_BITS):
        return CODE_SPECIAL
    return _code_of_magnitude(largest)


@nb.njit(cache=True, nogil=True)
def finite_code(bits, count):
    """Like float_code, but NaN and Inf do not count: the scale of the finite elements beside them."""
    largest = np.uint32(0)
    for i in range(count):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        if magnitude < np.uint32(_INF_BITS):
            largest = max(largest, magnitude)
    return _code_of_magnitude(largest)


@nb.njit(cache=True, nogil=True)
def _code_of_magnitude(largest):
    if largest == 0:
        return CODE_ZERO
    exponent = np.int64(largest >> np.uint32(23)) - 127
    if (largest & np.uint32(0x007FFFFF)) != 0:
        exponent += 1
    return CODE_BIAS + max(exponent, EXPONENT_MIN)


@nb.njit(cache=True, nogil=True)
def scale_of(code, limit):
    """Scale s = B / 2^e of an agreed code; exact in float64. A ZERO block has nothing to scale: 1."""
    if code == CODE_ZERO:
        return 1.0
    return math.ldexp(float(limit), CODE_BIAS - code)


@nb.njit(cache=True, nogil=True)
def quantize(values, count, code, limit, lanes):
    """`values: float32[count]` to `lanes: uint32[E]` in network byte order; elements beyond `count` travel as zero.

    NaN and Inf become 0 here: their classes travel in a round of their own.
    """
    scale = scale_of(code, limit)
    top = float(limit)
    for i in range(count):
        scaled = np.rint(np.float64(values[i]) * scale)
        scaled = scaled if abs(scaled) <= top else 0.0  # only NaN and Inf exceed the agreed maximum
        lanes[i] = swap32(np.uint32(np.int64(scaled) + limit))
    zero = swap32(np.uint32(limit))
    for i in range(count, lanes.shape[0]):
        lanes[i] = zero


@nb.njit(cache=True, nogil=True)
def dequantize(lanes, count, code, limit, world_size, values):
    """Sums in `lanes: uint32[E]` (network byte order) to `values: float32[count]`."""
    unit = 1.0 / scale_of(code, limit)
    bias = np.int64(limit) * world_size
    for i in range(count):
        values[i] = np.float32(np.float64(np.int64(swap32(lanes[i])) - bias) * unit)


@nb.njit(cache=True, nogil=True)
def write_classes(bits, count, lanes):
    """Class counts of `bits: uint32[count]` to `lanes: uint32[E]` (network byte order, no bias: counts are small)."""
    for i in range(count):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        kind = 0
        if magnitude > np.uint32(_INF_BITS):
            kind = CLASS_NAN
        elif magnitude == np.uint32(_INF_BITS):
            kind = CLASS_NEGATIVE_INF if bits[i] >> np.uint32(31) else CLASS_POSITIVE_INF
        lanes[i] = swap32(np.uint32(kind))
    for i in range(count, lanes.shape[0]):
        lanes[i] = np.uint32(0)


@nb.njit(cache=True, nogil=True)
def apply_classes(classes, count, values):
    """Overwrite the elements of `values: float32[count]` that met NaN or Inf, from summed `classes: uint32[E]`."""
    for i in range(count):
        summed = classes[i]
        if summed == 0:
            continue
        plus = summed & np.uint32(0xFF)
        minus = (summed >> np.uint32(8)) & np.uint32(0xFF)
        if summed >> np.uint32(16) or (plus and minus):
            values[i] = np.float32(np.nan)
        elif plus:
            values[i] = np.float32(np.inf)
        else:
            values[i] = np.float32(-np.inf)


@nb.njit(cache=True, nogil=True)
def integer_code(values, count, limit):
    """Code to propose for `values: int32|int64[count]`: FITS if every magnitude is at most B, else HALVES."""
    for i in range(count):
        if values[i] > limit or values[i] < -limit:
            return CODE_HALVES
    return CODE_FITS


@nb.njit(cache=True, nogil=True)
def write_integers(values, count, limit, lanes):
    """`values: int32|int64[count]`, each at most B in magnitude, to `lanes: uint32[E]` (network byte order)."""
    for i in range(count):
        lanes[i] = swap32(np.uint32(np.int64(values[i]) + limit))
    zero = swap32(np.uint32(limit))
    for i in range(count, lanes.shape[0]):
        lanes[i] = zero


@nb.njit(cache=True, nogil=True)
def write_halves(values, count, part, lanes):
    """The unsigned 16-bit half word number `part` (0 = lowest) of each value, without bias: n of them stay below 2^21."""
    for i in range(count):
        lanes[i] = swap32(np.uint32((np.int64(values[i]) >> (16 * part)) & 0xFFFF))
    for i in range(count, lanes.shape[0]):
        lanes[i] = np.uint32(0)


@nb.njit(cache=True, nogil=True)
def read_integers(lanes, count, limit, world_size, values):
    """Sums of `write_integers` lanes to `values: int32|int64[count]`, modulo the type's range."""
    bias = np.int64(limit) * world_size
    for i in range(count):
        values[i] = np.int64(swap32(lanes[i])) - bias


@nb.njit(cache=True, nogil=True)
def accumulate_halves(lanes, count, part, sums):
    """Add part number `part` of summed half words to `sums: int64[E]` (part 0 starts afresh), modulo 2^64."""
    for i in range(count):
        piece = np.int64(swap32(lanes[i])) << (16 * part)
        sums[i] = piece if part == 0 else sums[i] + piece


def reference_sum(inputs: npt.NDArray[np.float32], elements: int) -> npt.NDArray[np.float32]:
    """What the switch must return for `inputs: float32[n, numel]` in blocks of `elements`: the same bits, no network.

    Plain numpy with exact integers, written apart from the kernels above so that each can show the other wrong.
    """
    world_size, numel = inputs.shape
    limit = lane_limit(world_size)
    blocks = -(-numel // elements)
    padded = np.zeros((world_size, blocks * elements), np.float32)
    padded[:, :numel] = inputs
    padded = padded.reshape(world_size, blocks, elements)
    finite = np.where(np.isfinite(padded), padded, np.float32(0)).astype(np.float64)
    largest = np.abs(finite).max(axis=(0, 2))
    mantissa, exponent = np.frexp(largest)  # largest = mantissa * 2^exponent, 0.5 <= mantissa < 1
    exponent = np.maximum(exponent - (mantissa == 0.5), EXPONENT_MIN)
    scale = np.where(largest == 0, 1.0, np.ldexp(float(limit), -exponent))[:, None]
    sums = np.rint(finite * scale).astype(np.int64).sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        result = (sums.astype(np.float64) * (1.0 / scale)).astype(np.float32)
        special = ~np.isfinite(padded).all(axis=0)
        result[special] = padded.sum(axis=0)[special]
    return np.asarray(result.reshape(-1)[:numel], np.float32)
