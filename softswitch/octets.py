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
    """Sum of the 16-bit words of data[at:][:length], for folded(); an odd last byte counts as a word's first (RFC 1071).

    Taken in 32-bit words of this machine's order, which LLVM adds eight at a time: the order of bytes may be put right at the
    end (section 2 (B)), and so may the carries (section 2 (C)).
    """
    whole = length & ~3
    total = np.uint64(0)
    for word in data[at : at + whole].view(np.uint32):
        total += np.uint64(word)
    total = (total & np.uint64(0xFFFFFFFF)) + (total >> np.uint64(32))
    low = np.int64(folded(np.int64(total)))
    result = (low & 0xFF) << 8 | low >> 8
    at += whole
    if length & 2:
        result += u16(data, at)
        at += 2
    if length & 1:
        result += np.int64(data[at]) << 8
    return result


_memcpy = nb.types.ExternalFunction("memcpy", nb.intp(nb.intp, nb.intp, nb.intp))


@nb.njit(nb.void(BYTES, nb.int64, BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def copy(target, at, source, start, length):  # type: ignore[no-untyped-def]
    """target[at:][:length] = source[start:][:length], which must not overlap."""
    _memcpy(target.ctypes.data + at, source.ctypes.data + start, length)
