"""Batches of packets between the ports and the program: how they lie in memory, on both sides.

A packet's first HEAD_BYTES, its head, may lie apart from the rest. That is what lets a run of datagrams stay as the kernel
has written it, one behind the other, and leave as one piece: no payload is copied to make room for Ethernet, IPv4 and UDP.

On the way in, a packet's head is written in front of its payload only when its turn comes. There it may overwrite the end of
the packet before, which has been processed by then.

On the way out, a packet is a record of RECORD_WORDS 64-bit words, with the head in it:

    bytes 0 to 7    offset in the data of what follows the head
    8 to 11         length of the packet, head included
    12 to 15        port
    16 to 57        the head
    58 to 63        zero
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HEAD_BYTES = 42  # Ethernet 14, IPv4 20, UDP 8
HEAD_STRIDE = 64  # from one head to the next in Arrivals.heads
RECORD_WORDS = 8
RECORD_HEAD = 16  # where the head is

RECORD = np.dtype(
    {
        "names": ["offset", "length", "port", "head"],
        "formats": [np.int64, np.int32, np.int32, (np.uint8, HEAD_BYTES)],
        "offsets": [0, 8, 12, RECORD_HEAD],
        "itemsize": 8 * RECORD_WORDS,
    }
)


class Arrivals:
    """Memory for packets that came in, up to `capacity` of them: packet i came in on ports[i] and is

    buffer[offsets[i]:][:lengths[i]], after heads[HEAD_STRIDE * head_of[i]:][:HEAD_BYTES] was written to its beginning unless
    head_of[i] is negative.
    """

    def __init__(self, capacity: int, buffer_bytes: int) -> None:
        self.buffer: npt.NDArray[np.uint8] = np.zeros(buffer_bytes, np.uint8)
        self.ports: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.offsets: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.lengths: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.head_of: npt.NDArray[np.int32] = np.full(capacity, -1, np.int32)
        self.heads: npt.NDArray[np.uint8] = np.zeros(capacity * HEAD_STRIDE, np.uint8)
        self.count = 0
        # As the compiled program takes them.
        self.addresses = tuple(
            array.ctypes.data for array in (self.ports, self.offsets, self.lengths, self.buffer, self.heads, self.head_of)
        )

    def frames(self) -> list[tuple[int, bytes]]:
        """(port, bytes) of every packet, copied."""
        result = []
        for i in range(self.count):
            start, end = int(self.offsets[i]), int(self.offsets[i] + self.lengths[i])
            whole = self.buffer[start:end].tobytes()
            if self.head_of[i] >= 0:
                head = HEAD_STRIDE * int(self.head_of[i])
                whole = self.heads[head : head + HEAD_BYTES].tobytes() + whole[HEAD_BYTES:]
            result.append((int(self.ports[i]), whole))
        return result


@dataclass
class Departures:
    """Packets that leave: the first `count` records, as words, and the data they lie in."""

    count: int
    records: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, frames: Iterable[tuple[int, bytes]]) -> Departures:
        """(port, bytes) pairs, copied."""
        listed = list(frames)
        records = np.zeros(len(listed), RECORD)
        data = bytearray()
        for record, (port, frame) in zip(records, listed, strict=True):
            record["offset"], record["length"], record["port"] = len(data), len(frame), port
            head = frame[:HEAD_BYTES]
            record["head"][: len(head)] = np.frombuffer(head, np.uint8)
            data += frame[HEAD_BYTES:]
        return cls(len(listed), records.view(np.int64), np.frombuffer(bytes(data) + bytes(8), np.uint8).copy())

    def frames(self) -> list[tuple[int, bytes]]:
        """(port, bytes) of every packet, copied."""
        result = []
        for record in self.records.view(RECORD)[: self.count]:
            at, length = int(record["offset"]), int(record["length"])
            rest = self.data[at : at + max(length - HEAD_BYTES, 0)].tobytes()
            result.append((int(record["port"]), record["head"].tobytes()[:length] + rest))
        return result
