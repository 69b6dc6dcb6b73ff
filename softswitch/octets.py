"""Big-endian fields and Internet checksums in byte arrays, for compiled code."""

import numba as nb
import numpy as np

BYTES = nb.uint8[::1]
WORDS = nb.int64[::1]
INTS = nb.int32[::1]


@nb.njit(nb.int64(BYTES, nb.int64), cache=True, nogil=True)
def u16(data, at):  # type: ignore[no-untyped-def]
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@nb.njit(nb.void(BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def put16(data, at, value):  # type: ignore[no-untyped-def]
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@nb.njit(nb.int64(nb.int64), cache=True, nogil=True)
def folded(total):  # type: ignore[no-untyped-def]
    """Ones' complement sum of 16-bit words from their plain sum (RFC 1071)."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@nb.njit(nb.int64(BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def word_sum(data, at, length):  # type: ignore[no-untyped-def]
    """Plain sum of the 16-bit words of data[at:][:length]; an odd last byte counts as a word's first (RFC 1071)."""
    high = np.int64(0)
    low = np.int64(0)
    for word in range(length // 2):  # two sums without shifts inside: LLVM adds them 32 at a time
        high += data[at + 2 * word]
        low += data[at + 2 * word + 1]
    if length & 1:
        high += data[at + length - 1]
    return (high << 8) + low
