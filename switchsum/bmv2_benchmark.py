"""How many contributions a second BMv2 takes without loss: the other column of `python -m switchsum.switch_benchmark --bmv2`.

Four workers behave as hosts do: each sends its next contribution for a slot when the slot's result arrives, so BMv2 is never
given more than `window` slots a worker and is never idle either. A repetition is a fixed number of contributions; every result
must arrive, with the right sums. What is timed is BMv2 together with the four workers, one Python thread on the same machine.
"""

from __future__ import annotations

import select
import statistics
import struct
import time
from pathlib import Path

import numpy as np

from switchsum.bmv2_topologies.wired_switch import WiredSwitch, programmed
from switchsum.controller import pipeline
from switchsum.controller.p4names import Entry, Group, Item
from switchsum.p4src.layout import HEADER_BYTES, HEADER_DTYPE
from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.tables import Exact

WINDOWS = (1, 4, 16, 64)  # slots in flight
REPETITIONS = 7
CONTRIBUTIONS = 4096  # in a repetition
_SILENCE_S = 0.1
_LOST_S = 1.0
_BEFORE_SERVICE = 14 + 20 + 8


def items_of(dataplane: Dataplane) -> list[Item]:
    """What a dataplane's tables and groups hold, for another switch. All keys of the switch program are exact."""
    items: list[Item] = [Group(number, frozenset(replicas)) for number, replicas in dataplane.multicast_groups.entries()]
    for name, table in dataplane.tables.items():
        for entry in table.entries():
            key = tuple(part.value for part in entry.key if isinstance(part, Exact))
            items.append(Entry(name, key, entry.action, tuple(entry.params)))
    return items


class _Lost(Exception):
    """A contribution or a result did not arrive."""


class _Workers:
    """The hosts. `frames[worker][slot]`: a contribution whose phase is filled in; `sums`: the values of every result."""

    def __init__(self, switch: WiredSwitch, frames: list[list[bytes]], sums: bytes) -> None:
        self._ports = {raw: port for port, raw in switch.sockets.items()}
        self._sockets = switch.sockets
        offset = _BEFORE_SERVICE + int(HEADER_DTYPE.fields["phase"][1])  # type: ignore[index]
        self._frames = [[(frame[:offset], frame[offset + 4 :]) for frame in mine] for mine in frames]
        self._slot_at = _BEFORE_SERVICE + int(HEADER_DTYPE.fields["slot"][1])  # type: ignore[index]
        self._phase_at = offset
        self._sums = sums
        self._phase = 0

    def run(self, window: int) -> float:
        """Contributions a second over one repetition. Raises _Lost, or RuntimeError for a wrong sum."""
        workers = len(self._frames)
        first = self._phase
        last = first + CONTRIBUTIONS // (workers * window) - 1
        self._phase = last + 1
        start = progress = time.perf_counter()
        for slot in range(window):
            for worker in range(workers):
                self._send(worker, slot, first)
        awaited = workers * window * (last - first + 1)
        sockets = list(self._ports)
        while awaited:
            ready, _, _ = select.select(sockets, [], [], _SILENCE_S)
            if not ready and time.perf_counter() - progress > _LOST_S:
                raise _Lost
            for raw in ready:
                worker = self._ports[raw]
                try:
                    while True:
                        frame = raw.recv(2048)
                        if frame[_BEFORE_SERVICE + HEADER_BYTES :] != self._sums:
                            raise RuntimeError("BMv2's sum is wrong")
                        slot = int.from_bytes(frame[self._slot_at : self._slot_at + 2], "big")
                        phase = int.from_bytes(frame[self._phase_at : self._phase_at + 4], "big")
                        awaited -= 1
                        if phase < last:
                            self._send(worker, slot, phase + 1)
                except BlockingIOError:
                    progress = time.perf_counter()
        return CONTRIBUTIONS / (time.perf_counter() - start)

    def drain(self) -> None:
        """Wait until nothing comes any more."""
        while ready := select.select(list(self._ports), [], [], 0.3)[0]:
            for raw in ready:
                raw.recv(2048)

    def _send(self, worker: int, slot: int, phase: int) -> None:
        before, after = self._frames[worker][slot]
        self._sockets[worker].send(before + struct.pack("!I", phase) + after)


def rates(
    binary: str, build: Path, dataplane: Dataplane, frames: list[list[bytes]], sums: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> list[str]:
    """A line for each window. `dataplane` holds the entries; frames[worker][slot], worker i at port i; sums u64[elements].

    Raises RuntimeError when no namespace can be made or a sum is wrong, SwitchError's family when BMv2 refuses the program.
    """
    _, layout, elements = build.stem.split("_")
    program = pipeline.load(layout, int(elements), build.parent)
    lines = []
    with WiredSwitch("bmv2", range(len(frames)), bmv2=binary) as switch:
        session = programmed(switch.address, program, items_of(dataplane))
        workers = _Workers(switch, frames, sums.astype(">u4").tobytes())
        for window in WINDOWS:
            samples: list[float] = []
            lossy = 0
            for repetition in range(REPETITIONS + 1):  # one warms up
                try:
                    rate = workers.run(window)
                except _Lost:
                    lossy += 1
                    workers.drain()
                    continue
                if repetition:
                    samples.append(rate)
            what = (
                f"{statistics.median(samples):.0f} contributions a second (min {min(samples):.0f}, max {max(samples):.0f}; "
                f"{len(samples)} repetitions of {CONTRIBUTIONS})"
                if samples
                else "no repetition without loss"
            )
            lines.append(f"BMv2, {window} slots in flight: {what}; {lossy} with loss left out")
        session.close()
    return lines
