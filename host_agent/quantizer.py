"""Block floating point: how a block of numbers becomes lanes that a switch can add, and back (DESIGN section 5).

A block is one packet of E elements. With n workers a lane holds value + B, where B = floor((2^32 - 1) / (2n)) and
|value| <= B, so n lanes sum to at most 2nB < 2^32 and never carry; the receiver subtracts nB.

Floats (float32). Every worker proposes e = ceil(log2 max|x|) of its block (at least -126, so that subnormals are
defined); the switch returns the maximum. The scale is s = B / 2^e and the value rint(x * s), so |value| <= B for any n.
Each rounding is off by at most half a unit 1/s (and 2^-22 of a unit, because x * s is rounded to float64 first), so

    |result - exact sum| <= n/2 * (1 + 2^-21) / s  +  half an ulp of the result as float32.

Sums of few blocks (GUESSED_BLOCKS at most) guess e instead of asking for it, and use only every fourth exponent, the next one
that COARSE_STEP divides. So a guess is seldom wrong, and the sum depends on the numbers alone: not on whether the guess was
right, nor on what was summed before. It costs up to three bits, which leaves the error about that of adding n float32 one by
one, (n - 1) * 2^-24 of the block's largest magnitude, for any n.

A subnormal block (e = -126) is summed like any other: for 32 workers the bound above is two and a half steps of 2^-149 (ten for
sums of few blocks), for two workers the result is all but always the correctly rounded one. A block of zeros is exact; -0.0
counts as 0.0. NaN and Inf concern only their own elements: a block that holds one takes an extra round in which each worker
sends, for each element, which class it has, as counts that add up (1 for +Inf, 2^8 for -Inf, 2^16 for NaN); the result is NaN
where a NaN or both infinities met, the infinity where one did, and the ordinary sum of the finite elements elsewhere.

Narrow lanes (a job's choice, for float32 sums of more than GUESSED_BLOCKS blocks): two 16-bit or four 8-bit lanes in each
32-bit word, so a packet carries 2E or 4E elements, which share one exponent. B = floor((2^w - 1) / (2n)) for w bits: no lane
carries into its neighbour, whatever the switch takes a word for. B is small (15 for 8 bits and 8 workers), so rounding is
stochastic: x * s is rounded up with the probability of its fraction, which makes each element's error zero on average (QSGD,
Alistarh et al. 2017); and what a rank's rounding left over is added to the same tensor's next contribution (error feedback,
Karimireddy et al. 2019), within FEEDBACK_UNITS = 2 units, so that a tensor that has nothing to do with the last one in its
memory is hardly touched. An element that would exceed B by its remainder stays at B, and keeps the remainder.

    |result - exact sum| <= 3n / s  +  half an ulp of the result as float32.

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

# Sums of at most this many blocks guess their exponents. One wrong guess costs the round trip that guessing saves, so with many
# blocks nothing is saved.
GUESSED_BLOCKS = 64
COARSE_STEP = 4  # a block's largest magnitude changes by less than this factor of 2^4 from one step of a training to the next
GUESSES = 65  # a zero block, and the exponents -124, -120, ... 128; see code_of_guess

LANE_WIDTHS = (32, 16, 8)
FEEDBACK_UNITS = 2.0  # the most that may be carried over, in units of the present scale

_INF_BITS = 0x7F800000


def lane_limit(world_size: int, width: int = 32) -> int:
    """B, the largest magnitude a lane of `width` bits (32, 16 or 8) may carry with `world_size` workers (1 to 32).

    Raises ValueError beyond.
    """
    if not 1 <= world_size <= MAX_WORKERS:
        raise ValueError(f"world size {world_size}: a slot's bitmap has room for 1 to {MAX_WORKERS} workers")
    if width not in LANE_WIDTHS:
        raise ValueError(f"lanes of {width} bits: choose 32, 16 or 8")
    return int((2**width - 1) // (2 * world_size))


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
def coarse_code(code):
    """The code that a sum of few blocks uses where another would use `code` (ZERO and SPECIAL stay)."""
    if code == CODE_ZERO or code >= CODE_SPECIAL:
        return code
    return CODE_BIAS + -(-(code - CODE_BIAS) // COARSE_STEP) * COARSE_STEP


@nb.njit(cache=True, nogil=True)
def guess_of_code(code):
    """Number (0 to GUESSES - 1) of a coarse code."""
    if code == CODE_ZERO:
        return 0
    return (code - CODE_BIAS - EXPONENT_MIN) // COARSE_STEP + 1


@nb.njit(cache=True, nogil=True)
def code_of_guess(guess):
    """The coarse code of that number."""
    if guess == 0:
        return CODE_ZERO
    return coarse_code(CODE_BIAS + EXPONENT_MIN + (guess - 1) * COARSE_STEP)


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
    bias = np.uint32(limit)
    for i in range(count):
        scaled = np.rint(np.float64(values[i]) * scale)
        scaled = scaled if abs(scaled) <= top else 0.0  # only NaN and Inf exceed the agreed maximum (and a guess that is wrong)
        lanes[i] = swap32(np.uint32(np.int32(scaled)) + bias)  # B < 2^31: 32 bits, which vector units convert to
    zero = swap32(np.uint32(limit))
    for i in range(count, lanes.shape[0]):
        lanes[i] = zero


@nb.njit(cache=True, nogil=True)
def dequantize(lanes, count, code, limit, world_size, values):
    """Sums in `lanes: uint32[E]` (network byte order) to `values: float32[count]`."""
    unit = 1.0 / scale_of(code, limit)
    bias = np.uint32(limit * world_size)
    for i in range(count):
        values[i] = np.float32(np.float64(np.int32(swap32(lanes[i]) - bias)) * unit)  # |sum| <= nB < 2^31


@nb.njit(cache=True, nogil=True, inline="always")
def _noise(counter):
    """A number from [0, 1) that depends on `counter: uint32` like a random one (MurmurHash3's finalizer, Appleby)."""
    x = np.uint32(counter)  # cast at each step: numba widens what it multiplies
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.float64(np.uint32(x ^ (x >> np.uint32(16)))) * 2.0**-32


@nb.njit(cache=True, nogil=True)
def narrow_quantize(values, remainder, count, code, limit, width, seed, lanes):
    """`values: float32[count]` to narrow lanes of `lanes: uint32[E]` (network byte order) with stochastic rounding.

    Lane j (from the lowest bits) of word i is element j * E + i, so that each lane is one run of elements. `remainder:
    float32[count]` is added first, and what is left over now is written to it. `seed: uint32` chooses the noise. Elements
    beyond `count` travel as zero, and so do NaN and Inf, as in `quantize`.
    """
    scale = scale_of(code, limit)
    unit = 1.0 / scale
    top = float(limit)
    most = FEEDBACK_UNITS * unit
    words = lanes.shape[0]
    for i in range(words):
        lanes[i] = np.uint32(0)
    for j in range(32 // width):
        first = j * words
        here = min(max(count - first, 0), words)
        if code == CODE_ZERO:  # nothing to measure a unit by: what is owed is owed to another step
            here = 0
        shift = np.uint32(j * width)
        if here > 0:
            x = values[first : first + here]
            left = remainder[first : first + here]
            for i in range(here):
                wanted = np.float64(x[i]) + min(max(np.float64(left[i]), -most), most)
                sound = abs(wanted) * scale <= 2.0 * top  # false for NaN and Inf
                wanted = wanted if sound else 0.0
                rounded = np.floor(wanted * scale + _noise(seed + np.uint32(first + i)))
                rounded = min(max(rounded, -top), top)
                left[i] = np.float32(wanted - rounded * unit)
                lanes[i] |= np.uint32(np.int32(rounded) + np.int32(limit)) << shift
        for i in range(here, words):
            lanes[i] |= np.uint32(limit) << shift
    for i in range(words):
        lanes[i] = swap32(lanes[i])


@nb.njit(cache=True, nogil=True)
def narrow_dequantize(lanes, count, code, limit, width, world_size, values):
    """Sums in narrow lanes of `lanes: uint32[E]` (network byte order) to `values: float32[count]`."""
    unit = 1.0 / scale_of(code, limit)
    bias = np.int32(limit * world_size)
    mask = np.uint32((1 << width) - 1)
    words = lanes.shape[0]
    for j in range(32 // width):
        first = j * words
        here = min(max(count - first, 0), words)
        if here > 0:
            out = values[first : first + here]
            shift = np.uint32(j * width)
            for i in range(here):
                out[i] = np.float32(np.float64(np.int32((swap32(lanes[i]) >> shift) & mask) - bias) * unit)


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


def reference_sum(
    inputs: npt.NDArray[np.float32], elements: int, guessed_blocks: int = GUESSED_BLOCKS
) -> npt.NDArray[np.float32]:
    """What the switch must return in 32-bit lanes for `inputs: float32[n, numel]`, one whole tensor of each worker, in blocks
    of `elements`: the same bits, no network. `guessed_blocks`: as the engine has it.

    Plain numpy with exact integers, written apart from the kernels above so that each can show the other wrong.
    """
    world_size, numel = inputs.shape
    limit = lane_limit(world_size)
    padded = _blocks_of(inputs, elements)
    finite = np.where(np.isfinite(padded), padded, np.float32(0)).astype(np.float64)
    exponent = _exponents(finite)
    if padded.shape[1] <= guessed_blocks:
        exponent = np.ceil(exponent / COARSE_STEP).astype(np.int64) * COARSE_STEP
    scale = np.where(finite.any(axis=(0, 2)), np.ldexp(float(limit), -exponent), 1.0)[:, None]
    sums = np.rint(finite * scale).astype(np.int64).sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        result = (sums.astype(np.float64) * (1.0 / scale)).astype(np.float32)
        special = ~np.isfinite(padded).all(axis=0)
        result[special] = padded.astype(np.float64).sum(axis=0)[special]  # finite ones must not overflow on the way
    return np.asarray(result.reshape(-1)[:numel], np.float32)


def error_bound(
    inputs: npt.NDArray[np.float32], elements: int, width: int, guessed_blocks: int = GUESSED_BLOCKS
) -> npt.NDArray[np.float64]:
    """The largest |sum - exact sum| of each element, float64[numel], in lanes of `width` bits, whatever was summed before.

    `inputs: float32[n, numel]`, finite, one whole tensor of each worker; `elements`: E, 32-bit words a packet;
    `guessed_blocks`: as the engine has it. The bound is the module's; the ulp is taken at the sum's largest possible magnitude.
    """
    world_size, numel = inputs.shape
    if -(-numel // elements) <= guessed_blocks:
        width = 32  # so few blocks travel in whole words, at a coarse scale
        units, octaves = world_size / 2, COARSE_STEP - 1
    elif width == 32:
        units, octaves = world_size / 2, 0
    else:
        units, octaves = 3.0 * world_size, 0
    size = elements * 32 // width
    exponent = _exponents(_blocks_of(inputs, size).astype(np.float64))
    unit = np.ldexp(1.0 / lane_limit(world_size, width), exponent + octaves)
    ulp = np.ldexp(1.0, np.maximum(exponent + world_size.bit_length() + octaves - 24, -149))
    return np.asarray(((units * (1 + 2.0**-21)) * unit + ulp).repeat(size)[:numel], np.float64)


def _blocks_of(inputs: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    """float32[n, numel] as float32[n, blocks, size], filled up with zeros."""
    world_size, numel = inputs.shape
    padded = np.zeros((world_size, -(-numel // size) * size), np.float32)
    padded[:, :numel] = inputs
    return padded.reshape(world_size, -1, size)


def _exponents(blocks: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """ceil(log2 max|x|), at least EXPONENT_MIN, of each block of finite float64[n, blocks, size]."""
    mantissa, exponent = np.frexp(np.abs(blocks).max(axis=(0, 2)))  # largest = mantissa * 2^exponent, 0.5 <= mantissa < 1
    return np.asarray(np.maximum(exponent.astype(np.int64) - (mantissa == 0.5), EXPONENT_MIN))
