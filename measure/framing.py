"""A list of buffers in front of their bytes: who sends them, for what, how they are marked, and how long each is."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from switchsum.measure.rpc import Buffer, Method

_HEAD = struct.Struct("!4sHHII")  # magic, method or status, worker, mark, buffers
_MAGIC = b"SSB1"
HEAD_BYTES = _HEAD.size
LENGTH_BYTES = 8
MOST_BUFFERS = 1 << 20
LARGEST_BYTES = 16 << 30
ANSWER, FAILURE = 0, 255  # in place of the method, in answers; a failure's only buffer is a sentence


class BadFrame(ValueError):
    """What came is not one of our messages."""


def head(kind: int, mark: int, worker: int, buffers: Sequence[Buffer]) -> bytes:
    """What goes in front of the buffers' bytes. `kind`: a Method, ANSWER or FAILURE."""
    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    return _HEAD.pack(_MAGIC, kind, worker, mark, len(buffers)) + struct.pack(f"!{len(lengths)}Q", *lengths)


def parse_head(data: Buffer) -> tuple[int, int, int, int]:
    """(kind, mark, worker, how many buffers) of the first HEAD_BYTES. Raises BadFrame."""
    magic, kind, worker, mark, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or (kind not in (ANSWER, FAILURE) and kind not in list(Method)):
        raise BadFrame("what came is no message of switchsum bench: something else talks to its port")
    if count > MOST_BUFFERS:
        raise BadFrame(f"a message of {count} buffers came; {MOST_BUFFERS} is the most")
    return kind, mark, worker, count


def parse_lengths(data: Buffer, count: int) -> tuple[int, ...]:
    """Bytes of each buffer. Raises BadFrame."""
    lengths = struct.unpack_from(f"!{count}Q", data)
    if sum(lengths) > LARGEST_BYTES:
        raise BadFrame(f"a message of {sum(lengths)} bytes came; {LARGEST_BYTES} is the most")
    return lengths
