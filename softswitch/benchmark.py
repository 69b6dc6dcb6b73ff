"""How long compiled code takes for a packet: the measuring half, for any program and any packets.

Protocol: warm up; repeat whole batches until both `repetitions` and a minimum time are reached; report the median of the
repetitions in nanoseconds a packet, with minimum and maximum. What is timed is one native call for a batch, whose output lies
in memory; no sockets.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from switchsum.softswitch.dataplane import Dataplane


@dataclass(frozen=True)
class Timing:
    """Nanoseconds a packet over the repetitions, packets in a repetition."""

    median_ns: float
    min_ns: float
    max_ns: float
    repetitions: int
    packets: int

    def __str__(self) -> str:
        return (
            f"{self.median_ns:.0f} ns a packet (min {self.min_ns:.0f}, max {self.max_ns:.0f}; "
            f"{self.repetitions} repetitions of {self.packets} packets)"
        )


@dataclass(frozen=True)
class Packets:
    """A batch as the dataplane takes it: ports i32[N], offsets i64[N], lengths i32[N], buffer u8[...]."""

    ports: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    buffer: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, frames: list[tuple[int, bytes]]) -> Packets:
        """From (ingress port, frame) pairs, copied into one writable buffer."""
        lengths = np.array([len(frame) for _, frame in frames], np.int32)
        offsets = np.zeros(len(frames), np.int64)
        np.cumsum(lengths[:-1], out=offsets[1:])
        buffer = np.frombuffer(b"".join(frame for _, frame in frames), np.uint8).copy()
        return cls(np.array([port for port, _ in frames], np.int32), offsets, lengths, buffer)


def measure(
    dataplane: Dataplane,
    packets: Packets,
    before_each: Callable[[int], None] = lambda _: None,
    repetitions: int = 15,
    least_seconds: float = 0.3,
) -> Timing:
    """Time `packets` through the dataplane.

    before_each(n): called untimed before repetition n, to change the packets' bytes (a later round, say).
    """
    samples: list[float] = []
    spent = 0.0
    number = 0
    while len(samples) < repetitions or spent < least_seconds:
        before_each(number)
        start = time.perf_counter()
        dataplane.process_batch(packets.ports, packets.offsets, packets.lengths, packets.buffer)
        elapsed = time.perf_counter() - start
        if number >= 2:  # two rounds of warm-up
            samples.append(elapsed * 1e9 / len(packets.ports))
            spent += elapsed
        number += 1
    return Timing(statistics.median(samples), min(samples), max(samples), len(samples), len(packets.ports))
