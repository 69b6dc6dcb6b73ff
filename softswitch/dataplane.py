"""A program at work: packets in, packets out, and the state that the control plane sees.

One lock excludes batches and control operations from each other; both take it themselves. Everything is a function of the
packets, the times they are given and the seed.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from switchsum.softswitch.hashes import input_bytes
from switchsum.softswitch.layout import LANES, MAX_PACKET, PHV_COUNT, STATISTICS
from switchsum.softswitch.packets import RECORD, Arrivals, Departures
from switchsum.softswitch.program import Program, UnsupportedProgram
from switchsum.softswitch.state import CloneSessions, Counter, MulticastGroups, Register, RegisterMemory
from switchsum.softswitch.tables import (
    ActionInfo,
    BadEntry,
    ConstTable,
    Entry,
    EntryExists,
    Exact,
    KeyField,
    Lpm,
    NoSuchEntry,
    Range,
    Table,
    TableError,
    TableFull,
    Ternary,
)

FIRST_OUTPUT_BYTES = 1 << 20
FIRST_OUTPUT_PACKETS = 1 << 10

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


@dataclass(frozen=True)
class Batch:
    """Packets that left: ports i32[M], offsets i64[M] and lengths i32[M] (bytes) into buffer u8[...].

    Views of memory that the next call on the dataplane overwrites.
    """

    ports: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    buffer: npt.NDArray[np.uint8]
    owner: object = None  # keeps the memory alive as long as the batch is

    def __len__(self) -> int:
        return len(self.ports)

    def frames(self) -> list[tuple[int, bytes]]:
        """(port, bytes) of every packet, copied."""
        return [
            (int(p), self.buffer[o : o + n].tobytes()) for p, o, n in zip(self.ports, self.offsets, self.lengths, strict=True)
        ]


def _aligned(size: int, alignment: int = 64) -> npt.NDArray[np.uint8]:
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


def _release(context: npt.NDArray[np.int64], words: tuple[int, ...]) -> None:
    for word in words:
        _libc.free(int(context[word]))


class Dataplane:
    """A compiled program and the state it owns."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        self.program = program
        self.lock = threading.RLock()
        native = program.native
        self._packet, self._batch, self._forward = native.packet, native.batch, native.forward
        layout, words = native.layout, native.context
        self._words = words
        self._context: npt.NDArray[np.int64] = _aligned(8 * words.size).view(np.int64)
        self._seed = seed
        self._phv = _aligned(PHV_COUNT * layout.size)
        self._scratch = _aligned(input_bytes(program))
        self._lanes = _aligned(16 * LANES)
        self._context[words["out_lanes"]] = self._lanes.ctypes.data
        self._context[words["phv"]] = self._phv.ctypes.data
        self._context[words["scratch"]] = self._scratch.ctypes.data
        self._context[words["out_data"]] = _libc.malloc(FIRST_OUTPUT_BYTES)
        self._context[words["out_data_capacity"]] = FIRST_OUTPUT_BYTES
        self._context[words["out_records"]] = _libc.malloc(FIRST_OUTPUT_PACKETS * RECORD.itemsize)
        self._context[words["out_capacity"]] = FIRST_OUTPUT_PACKETS
        self._finalizer = weakref.finalize(self, _release, self._context, (words["out_data"], words["out_records"]))
        self.tables = {
            name: Table(program, declaration, self._context, words, self.lock) for name, declaration in program.tables.items()
        }
        self.counters = {c.name: Counter(c.name, c.size, self.lock) for c in program.counters.values()}
        for counter in self.counters.values():
            self._context[words[f"counter:{counter.name}"]] = counter.cells.ctypes.data
        self._memories = [RegisterMemory(group) for group in layout.groups]
        for memory in self._memories:
            self._context[words[f"group:{memory.group.index}"]] = memory.bytes.ctypes.data
        self.registers = {
            name: Register(name, self._memories[group], lane, self.lock)
            for name, (group, lane) in layout.register_place.items()
        }
        self.multicast_groups = MulticastGroups(self._context, words["groups"], words["replicas"], self.lock)
        self.clone_sessions = CloneSessions(self._context, words["sessions"], words["session_replicas"], self.lock)
        self._address = self._context.ctypes.data
        self._departures = Departures(0, np.zeros(0, np.int64), np.zeros(0, np.uint8))
        self._seen = (0, 0, 0, 0)  # where they lie: the four output words of the context
        self._output_words = [words[name] for name in ("out_data", "out_data_capacity", "out_records", "out_capacity")]
        self._now, self._used, self._count = words["now"], words["out_data_used"], words["out_count"]
        self._context[words["random"]] = np.uint64(seed & (1 << 64) - 1).astype(np.int64)

    def reset_state(self) -> None:
        """Registers, counters, statistics, tables, groups, sessions and the random extern as right after construction."""
        with self.lock:
            for memory in self._memories:
                memory.bytes[:] = 0
            for counter in self.counters.values():
                counter.cells[:] = 0
            for table in self.tables.values():
                table.reset()
            self.multicast_groups.clear()
            self.clone_sessions.clear()
            for name in STATISTICS:
                self._context[self._words[f"stat:{name}"]] = 0
            self._context[self._words["random"]] = np.uint64(self._seed & (1 << 64) - 1).astype(np.int64)

    @property
    def statistics(self) -> dict[str, int]:
        """Packets in and out, and drops by reason (see layout.STATISTICS), since construction or reset_state."""
        with self.lock:
            return {name: int(self._context[self._words[f"stat:{name}"]]) for name in STATISTICS}

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """Send one packet through the switch: (egress port, bytes) of all that leaves.

        Raises ValueError if the frame is longer than 65,535 bytes.
        """
        if len(frame) > MAX_PACKET:
            raise ValueError(f"a frame of {len(frame)} bytes; the switch takes at most {MAX_PACKET}")
        with self.lock:
            context = self._context
            context[self._now] = now_us
            context[self._used] = 0
            context[self._count] = 0
            self._packet(self._address, port, frame, len(frame))
            count = int(context[self._count])
            if count == 0:
                return []
            data, records = int(context[self._words["out_data"]]), int(context[self._words["out_records"]])
            words = np.frombuffer(ctypes.string_at(records, count * RECORD.itemsize), np.int64).reshape(count, -1)
            return [(word >> 32, ctypes.string_at(data + at, word & 0xFFFFFFFF)) for at, word in words[:, :2].tolist()]

    def process_batch(
        self,
        ports: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        buffer: npt.NDArray[np.uint8],
        now_us: int = 0,
    ) -> Batch:
        """Send N packets through the switch in order, in one native call without the GIL.

        ports i32[N]; offsets i64[N] and lengths i32[N] in bytes into buffer u8[...]. Raises ValueError for packets outside
        the buffer or longer than 65,535 bytes; then none was processed.
        """
        ports = np.ascontiguousarray(ports, np.int32)
        offsets = np.ascontiguousarray(offsets, np.int64)
        lengths = np.ascontiguousarray(lengths, np.int32)
        buffer = np.ascontiguousarray(buffer, np.uint8)
        count = len(ports)
        if not len(offsets) == len(lengths) == count:
            raise ValueError(f"{count} ports, {len(offsets)} offsets and {len(lengths)} lengths: they must be as many")
        if count:
            bad = (lengths < 0) | (lengths > MAX_PACKET) | (offsets < 0) | (offsets > len(buffer) - lengths)
            if bad.any():
                first = int(bad.argmax())
                raise ValueError(
                    f"packet {first} (offset {offsets[first]}, {lengths[first]} bytes) lies outside the buffer of "
                    f"{len(buffer)} bytes or exceeds {MAX_PACKET}"
                )
        with self.lock:
            context = self._context
            context[self._now] = now_us
            context[self._used] = 0
            context[self._count] = 0
            self._batch(self._address, count, ports.ctypes.data, offsets.ctypes.data, lengths.ctypes.data, buffer.ctypes.data)
            return self._output()

    def forward(self, arrivals: Arrivals, now_us: int) -> Departures:
        """As process_batch, for packets that a port has received: they are taken as they lie, and leave as they will be sent.

        What is returned is overwritten by the next call on the dataplane.
        """
        with self.lock:
            leaving = self._departures
            leaving.count = self._forward(self._address, now_us, arrivals.count, *arrivals.addresses)
            where = tuple(self._context[self._output_words].tolist())
            if where != self._seen:  # the output grew
                leaving.data = _view(where[0], where[1])
                leaving.records = _view(where[2], where[3] * RECORD.itemsize).view(np.int64)
                self._seen = where
            return leaving

    def _output(self) -> Batch:
        words, context = self._words, self._context
        count, used = int(context[self._count]), int(context[self._used])
        records = _view(int(context[words["out_records"]]), count * RECORD.itemsize).view(RECORD)
        buffer = _view(int(context[words["out_data"]]), used)
        return Batch(records["port"], records["offset"], records["length"], buffer, self)


def _view(address: int, size: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


__all__ = [
    "ActionInfo",
    "BadEntry",
    "Batch",
    "ConstTable",
    "Dataplane",
    "Entry",
    "EntryExists",
    "Exact",
    "KeyField",
    "Lpm",
    "NoSuchEntry",
    "Program",
    "Range",
    "Table",
    "TableError",
    "TableFull",
    "Ternary",
    "UnsupportedProgram",
]
