"""The measuring half of the benchmark: what it sends, and how often. No times are asserted."""

from __future__ import annotations

from collections.abc import Callable

from switchsum.softswitch.benchmark import Packets, measure
from switchsum.softswitch.dataplane import Dataplane


def test_every_repetition_sends_the_whole_batch(switch: Callable[..., Dataplane]) -> None:
    dataplane = switch("memory")
    frames = [(3, bytes([n]) + bytes(269)) for n in range(7)] + [(5, bytes(270))]
    packets = Packets.of(frames)
    assert [bytes(packets.buffer[o : o + n]) for o, n in zip(packets.offsets, packets.lengths, strict=True)] == [
        frame for _, frame in frames
    ]
    assert packets.ports.tolist() == [3] * 7 + [5]
    calls: list[int] = []
    timing = measure(dataplane, packets, calls.append, repetitions=4, least_seconds=0)
    assert calls == list(range(6))  # two of them warm up
    assert (timing.repetitions, timing.packets) == (4, 8)
    assert timing.min_ns <= timing.median_ns <= timing.max_ns
    assert dataplane.statistics["packets_in"] == 6 * 8
