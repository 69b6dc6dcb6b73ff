"""Wire format on the host: SwitchSum headers as big-endian 32-bit words (DESIGN section 3, `p4src/protocol.yaml`).

A packet in memory is `uint32[HEADER_WORDS + E]` in network byte order, so that headers and values are written with the
same byte swap and whole batches stay one array. The layout itself is generated (`switchsum.p4src.layout`);
tests/protocol/test_layout.py checks these functions against it byte for byte.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from switchsum.p4src.layout import HEADER_BYTES, WIRE_VERSION, PacketType

HEADER_WORDS = HEADER_BYTES // 4

CONTRIBUTION = int(PacketType.CONTRIBUTION)
PROPOSAL = int(PacketType.PROPOSAL)
RESULT = int(PacketType.RESULT)
AGREEMENT = int(PacketType.AGREEMENT)
MISMATCH = int(PacketType.MISMATCH)
STATUS = int(PacketType.STATUS)


def packet_bytes(elements: int) -> int:
    """Bytes of UDP payload that a packet with `elements` values has."""
    return HEADER_BYTES + 4 * elements


@nb.njit(cache=True, nogil=True, inline="always")
def swap32(x):
    """The 32-bit word with its bytes reversed (LLVM makes one instruction of it, eight lanes at a time)."""
    x = np.uint32(x)
    return np.uint32(
        (x << np.uint32(24))
        | ((x & np.uint32(0xFF00)) << np.uint32(8))
        | ((x >> np.uint32(8)) & np.uint32(0xFF00))
        | (x >> np.uint32(24))
    )


@nb.njit(cache=True, nogil=True)
def write_header(words, kind, job, epoch, slot, exponent, phase, tag, worker, flags):
    """Write the header into `words: uint32[>= HEADER_WORDS]` (network byte order)."""
    words[0] = swap32(np.uint32((WIRE_VERSION << 24) | (kind << 16) | job))
    words[1] = swap32(np.uint32(epoch))
    words[2] = swap32(np.uint32((slot << 16) | exponent))
    words[3] = swap32(np.uint32(phase))
    words[4] = swap32(np.uint32(tag))
    words[5] = swap32(np.uint32((worker << 24) | (flags << 16)))


@nb.njit(cache=True, nogil=True)
def add_flags(words, flags):
    """Set bits in the flags byte of a written header; everything else, values included, stays as it was sent."""
    words[5] = words[5] | swap32(np.uint32(flags << 16))


@nb.njit(cache=True, nogil=True, inline="always")
def is_ours(words, length, job, epoch):
    """Whether `length` bytes at `words` begin with a header of this wire version, job and epoch."""
    if length < HEADER_BYTES:
        return False
    first = swap32(words[0])
    return (first >> 24) == WIRE_VERSION and (first & 0xFFFF) == job and swap32(words[1]) == epoch
