"""Big-endian fields and Internet checksums in byte arrays, for compiled code."""

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

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


@intrinsic
def _load32(typing_context: Any, address: Any) -> Any:
    """The 32-bit word at an address, in this machine's order. A slice and a view would cost 20 ns."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(32)))
        return builder.load(pointer, align=1)

    return nb.uint32(nb.intp), generate


@intrinsic
def _sum_blocks(typing_context: Any, address: Any, blocks: Any) -> Any:
    """Sum of the 32-bit words in `blocks` blocks of 32 bytes from an address on."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        narrow, wide = ir.VectorType(ir.IntType(32), 8), ir.VectorType(ir.IntType(64), 8)
        total = cgutils.alloca_once_value(builder, ir.Constant(wide, None))
        with cgutils.for_range(builder, arguments[1]) as loop:
            place = builder.add(arguments[0], builder.mul(loop.index, ir.Constant(loop.index.type, 32)))
            words = builder.load(builder.inttoptr(place, ir.PointerType(narrow)), align=1)
            builder.store(builder.add(builder.load(total), builder.zext(words, wide)), total)
        kind = ir.FunctionType(ir.IntType(64), [wide])
        added = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.add.v8i64")
        return builder.call(added, [builder.load(total)])

    return nb.uint64(nb.intp, nb.intp), generate


@nb.njit(nb.int64(BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def word_sum(data, at, length):  # type: ignore[no-untyped-def]
    """Sum of the 16-bit words of data[at:][:length], for folded(); an odd last byte counts as a word's first (RFC 1071).

    Taken in 32-bit words of this machine's order, eight at a time: the order of bytes may be put right at the end
    (section 2 (B)), and so may the carries (section 2 (C)).
    """
    start = data.ctypes.data + at
    total = _sum_blocks(start, length >> 5)
    for word in range((length >> 5) << 3, length >> 2):
        total += np.uint64(_load32(start + 4 * word))
    total = (total & np.uint64(0xFFFFFFFF)) + (total >> np.uint64(32))
    low = np.int64(folded(np.int64(total)))
    result = (low & 0xFF) << 8 | low >> 8
    at += length & ~3
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
