"""The measuring half of the benchmark: what it sends, and how often. No times are asserted."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.softswitch.benchmark import Packets, measure
from switchsum.softswitch.dataplane import Dataplane, Program
from switchsum.switch_benchmark import BUILD, profile


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


@pytest.mark.parametrize("interfaces", [False, True])
def test_the_profile_drives_real_ports_and_counts_what_they_move(interfaces: bool) -> None:
    if interfaces and (missing := namespaces.what_is_missing()):
        pytest.skip(f"veth pairs need a network namespace, but {missing}")
    stages = profile(Program.load(BUILD / "switchsum_lanes_64.json"), 2, 0.2, interfaces)
    assert stages.packets >= stages.batches > 0
    assert min(stages.receive, stages.program, stages.send, stages.loop, stages.wait) >= 0
    assert f"{stages.packets} packets in batches of" in str(stages)
    if interfaces:
        assert not any(name.startswith(f"switchsum-profile-{os.getpid()}") for name in namespaces.names())
