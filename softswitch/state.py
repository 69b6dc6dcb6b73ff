"""State of a running program beside its tables: counters, registers, multicast groups and clone sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from switchsum.softswitch.layout import RegisterGroup
from switchsum.softswitch.table_errors import BadEntry, EntryExists, NoSuchEntry

WORD = (1 << 64) - 1
IDENTIFIERS = 1 << 16  # multicast group and clone session ids have 16 bits here


class Counter:
    """An indirect counter array: packets and bytes of each cell, modulo 2^64."""

    def __init__(self, name: str, size: int, lock: threading.RLock) -> None:
        self.name = name
        self.size = size
        self._lock = lock
        self.cells: npt.NDArray[np.uint64] = np.zeros((max(size, 1), 2), np.uint64)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise IndexError(f"counter {self.name!r} has cells 0 to {self.size - 1}, not {index}")

    def read(self, index: int) -> tuple[int, int]:
        """(packets, bytes) of a cell. Raises IndexError."""
        self._check(index)
        with self._lock:
            return int(self.cells[index, 0]), int(self.cells[index, 1])

    def write(self, index: int, packets: int, bytes: int) -> None:
        self._check(index)
        with self._lock:
            self.cells[index] = (packets & WORD, bytes & WORD)


class RegisterMemory:
    """The cells of all registers of one size and width."""

    def __init__(self, group: RegisterGroup) -> None:
        self.group = group
        # 64-byte alignment keeps vectors within cache lines.
        raw = np.zeros(group.bytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.bytes = raw[start : start + group.bytes]


class Register:
    """One register array, a lane of its group's memory."""

    def __init__(self, name: str, memory: RegisterMemory, lane: int, lock: threading.RLock) -> None:
        self.name = name
        self.size = memory.group.rows
        self.width = memory.group.width
        self._memory = memory
        self._lane = lane
        self._lock = lock

    def _place(self, index: int) -> slice:
        if not 0 <= index < self.size:
            raise IndexError(f"register {self.name!r} has cells 0 to {self.size - 1}, not {index}")
        group = self._memory.group
        start = index * group.row_bytes + self._lane * group.cell_bytes
        return slice(start, start + group.cell_bytes)

    def read(self, index: int) -> int:
        """A cell as an unsigned number. Raises IndexError."""
        place = self._place(index)
        with self._lock:
            return int.from_bytes(self._memory.bytes[place].tobytes(), "little")

    def write(self, index: int, value: int) -> None:
        """Set a cell to value modulo 2^width. Raises IndexError."""
        place = self._place(index)
        raw = (value % (1 << self.width)).to_bytes(self._memory.group.cell_bytes, "little")
        with self._lock:
            self._memory.bytes[place] = np.frombuffer(raw, np.uint8)


class _Replication:
    """Replica lists by 16-bit id, in the arrays that native code reads: `index[id]` is an offset into `lists`, or -1."""

    what = "replication"
    lowest = 0
    header = 1  # i32 words before the replicas: their number last

    def __init__(self, context: npt.NDArray[np.int64], index_word: int, lists_word: int, lock: threading.RLock) -> None:
        self._context = context
        self._words = (index_word, lists_word)
        self._lock = lock
        self._index: npt.NDArray[np.int32] = np.full(IDENTIFIERS, -1, np.int32)
        self._all: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        self._publish()

    def _publish(self) -> None:
        self._index[:] = -1
        words: list[int] = []
        for identifier, (replicas, limit) in self._all.items():
            self._index[identifier] = len(words)
            words += [limit, len(replicas)][2 - self.header :]
            for port, instance in replicas:
                words += [port, instance]
        self._lists: npt.NDArray[np.int32] = np.array([*words, 0], np.int32)
        self._context[self._words[0]] = self._index.ctypes.data
        self._context[self._words[1]] = self._lists.ctypes.data

    def _check(self, identifier: int, replicas: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        if not self.lowest <= identifier < IDENTIFIERS:
            raise BadEntry(f"{self.what} {identifier}: ids go from {self.lowest} to {IDENTIFIERS - 1}")
        result = tuple((int(port), int(instance)) for port, instance in replicas)
        for port, instance in result:
            if not 0 <= port < 1 << 31 or not 0 <= instance < 1 << 16:
                raise BadEntry(f"{self.what} {identifier}: replica (port {port}, instance {instance}) is out of range")
        if len(set(result)) != len(result):
            raise BadEntry(f"{self.what} {identifier}: the same port and instance twice")
        return result

    def _known(self, identifier: int) -> None:
        if identifier not in self._all:
            raise NoSuchEntry(f"{self.what} {identifier} does not exist")

    def _put(self, identifier: int, replicas: Iterable[tuple[int, int]], limit: int, new: bool) -> None:
        checked = self._check(identifier, replicas)
        with self._lock:
            if new and identifier in self._all:
                raise EntryExists(f"{self.what} {identifier} exists already")
            if not new:
                self._known(identifier)
            self._all[identifier] = (checked, limit)
            self._publish()

    def delete(self, identifier: int) -> None:
        """Raises NoSuchEntry."""
        with self._lock:
            self._known(identifier)
            del self._all[identifier]
            self._publish()

    def clear(self) -> None:
        with self._lock:
            self._all.clear()
            self._publish()


class MulticastGroups(_Replication):
    """Group id (1 to 65,535) to replicas (egress port, instance)."""

    what = "multicast group"
    lowest = 1  # 0 means no multicast

    def insert(self, identifier: int, replicas: Iterable[tuple[int, int]]) -> None:
        """Raises EntryExists or BadEntry."""
        self._put(identifier, replicas, 0, new=True)

    def modify(self, identifier: int, replicas: Iterable[tuple[int, int]]) -> None:
        """Raises NoSuchEntry or BadEntry."""
        self._put(identifier, replicas, 0, new=False)

    def entries(self) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """(id, replicas) of each group."""
        with self._lock:
            return [(identifier, replicas) for identifier, (replicas, _) in self._all.items()]


class CloneSessions(_Replication):
    """Session id (0 to 65,535) to replicas (egress port, instance) and the length that clones are cut to (0: whole)."""

    what = "clone session"
    header = 2

    def insert(self, identifier: int, replicas: Iterable[tuple[int, int]], truncate_bytes: int = 0) -> None:
        """Raises EntryExists or BadEntry."""
        self._put(identifier, replicas, self._limit(identifier, truncate_bytes), new=True)

    def modify(self, identifier: int, replicas: Iterable[tuple[int, int]], truncate_bytes: int = 0) -> None:
        """Raises NoSuchEntry or BadEntry."""
        self._put(identifier, replicas, self._limit(identifier, truncate_bytes), new=False)

    def _limit(self, identifier: int, truncate_bytes: int) -> int:
        if not 0 <= truncate_bytes < 1 << 30:
            raise BadEntry(f"{self.what} {identifier}: {truncate_bytes} bytes is no length to cut clones to")
        return truncate_bytes

    def entries(self) -> list[tuple[int, tuple[tuple[int, int], ...], int]]:
        """(id, replicas, truncation length) of each session."""
        with self._lock:
            return [(identifier, replicas, limit) for identifier, (replicas, limit) in self._all.items()]
