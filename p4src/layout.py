"""Generated from p4src/protocol.yaml by p4src/generate.py (make generate). Do not edit."""

from enum import IntEnum

import numpy as np

WIRE_VERSION = 0x51
SERVICE_PORT = 0x5353
MAX_WORKERS = 32
SLOTS = 2048
ELEMENT_CHOICES = (64, 128, 256)
DEFAULT_ELEMENTS = 256
HEADER_BYTES = 24

HEADER_DTYPE = np.dtype(
    [
        ("version", "u1"),  # wire_version
        ("type", "u1"),  # packet type, see packet_types
        ("job", ">u2"),  # job id given by the controller
        ("epoch", ">u4"),  # job epoch; a restarted job gets a larger one
        ("slot", ">u2"),  # slot, relative to the job's range
        ("exponent", ">u2"),  # code proposed for the slot's next chunk (out), agreed maximum (back)
        ("phase", ">u4"),  # round of this slot, 32-bit serial arithmetic (RFC 1982)
        ("tag", ">u4"),  # identifies collective and round; MISMATCH: the row's tag; STATUS: the row's bitmap
        ("worker", "u1"),  # worker index; checked against the switch's own table, never believed
        ("flags", "u1"),  # see flags
        ("reserved", ">u2"),  # sent as zero
    ]
)


class PacketType(IntEnum):
    """Values of protocol.yaml's `packet_types`."""

    CONTRIBUTION = 0x1  # host to switch: header and E values to add
    PROPOSAL = 0x2  # host to switch: header only, agrees on an exponent
    RESULT = 0x81  # switch to host: header and the E sums
    AGREEMENT = 0x82  # switch to host: header only, the agreed exponent
    MISMATCH = 0x83  # switch to host: header only, your tag is not the row's
    STATUS = 0x84  # switch to host: header only, the row is still filling, the bitmap is in tag


class Flag(IntEnum):
    """Values of protocol.yaml's `flags`."""

    WANT_STATUS = 0x1  # host: if this is a duplicate in a filling slot, tell me who is there
    REPAIR = 0x2  # switch: this answer repeats a stored result (unicast)


class Exponent(IntEnum):
    """Values of protocol.yaml's `exponents`."""

    ZERO = 0x0  # every value of the block is zero (floats) or fits a lane (integers)
    BIAS = 0x800  # code = BIAS + ceil(log2 max|x|) for finite blocks
    SPECIAL = 0xFFFE  # the block holds NaN or Inf (floats): a round of classes comes first
    NONE = 0xFFFF  # this rank has not queued the next chunk yet


class Verdict(IntEnum):
    """Values of protocol.yaml's `verdicts`."""

    CONTRIBUTION = 0x1  # first or further contribution of a phase that is not full yet
    COMPLETION = 0x2  # the contribution that filled the bitmap; the result was multicast
    DUPLICATE = 0x3  # already counted in a phase that is still filling
    REPAIR = 0x4  # already counted in a full phase; answered with the stored result
    STALE = 0x5  # a phase that is over
    MISMATCH = 0x6  # another tag than the row's
    SLOT_RANGE = 0x7  # slot outside the job's range


class RejectReason(IntEnum):
    """Values of protocol.yaml's `reject_reasons`."""

    MALFORMED = 0x1  # truncated, or a length that does not fit the type
    CHECKSUM = 0x2  # IPv4 header checksum
    VERSION = 0x3  # another wire version
    TYPE = 0x4  # not a type that hosts send
    UNKNOWN_JOB = 0x5  # no such job and epoch (an old epoch ends here)
    UNKNOWN_WORKER = 0x6  # ingress port, address or UDP port belong to no worker of the job
    WORKER_INDEX = 0x7  # worker index is not the one the table names
