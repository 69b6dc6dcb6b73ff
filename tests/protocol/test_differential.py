"""Thousands of seeded random packets through a switch on veth pairs, or the source for Tofino, and through the program in
process: all of it must agree.

Every byte that leaves, its port, the order on each port, and every counter, packets and bytes. Bursts go into one port at a
time, with marks behind them (targets.py), so what came of a burst is known exactly without a round trip for each packet.

SWITCHSUM_SEED=n draws other packets, SWITCHSUM_PACKETS=n more of them.

Seen red on purpose (2026-11-29): with the lanes build in process and the wide one in BMv2, since random values carry from lane
to lane in wide words only; hosts never send such values.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from switchsum.controller import programming
from switchsum.p4src.layout import RejectReason, Verdict
from tests.protocol.conftest import Wire, on_wires, parametrize
from tests.protocol.random_packets import RandomPackets
from tests.protocol.targets import JOB, PORTS, WORKERS, InProcess, Outputs, Target

SEED = int(os.environ.get("SWITCHSUM_SEED", "1"))
PACKETS = int(os.environ.get("SWITCHSUM_PACKETS", "10000"))
SWITCHES = [
    *on_wires("softswitch", [("lanes", 64), ("wide", 256)]),
    *on_wires("bmv2", [("wide", 64), ("lanes", 64)]),
    *on_wires("tofino", [("lanes", 64)]),
    *on_wires("tofino2", [("lanes", 64)]),
]
TABLES = (programming.WORKER_VERDICTS, programming.JOB_VERDICTS, programming.REJECTIONS)
DROPPED = (programming.DROPPED_IN, programming.DROPPED_OUT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pair" in metafunc.fixturenames:
        parametrize(metafunc, "pair", SWITCHES)


@pytest.fixture
def pair(request: pytest.FixtureRequest, wire: Wire) -> Iterator[tuple[Target, InProcess]]:
    kind, layout, elements = request.param
    target = wire(kind, layout, elements)
    yield target, InProcess(layout, elements)
    target.close()


def by_port(outputs: Outputs) -> dict[int, list[bytes]]:
    return {port: [frame for out, frame in outputs if out == port] for port in PORTS}


def test_random_packets(pair: tuple[Target, InProcess]) -> None:
    target, reference = pair
    jobs = [target.new_job(WORKERS, JOB), target.new_job(WORKERS[:2], JOB + 1)]
    for each in pair:
        for job in jobs:
            each.install(job)
    source = RandomPackets(SEED, jobs, target.elements)
    sent, left = 0, 0
    while sent < PACKETS:
        port, packets = source.burst()
        expected: Outputs = []
        for frame, place in packets:
            outputs = reference.exchange([(port, target.padded(frame))])
            expected += [(out, target.padded(answer)) for out, answer in outputs]
            source.left(place, outputs)
        got = target.exchange([(port, frame) for frame, _ in packets])
        for out, frames in by_port(got).items():
            wanted = by_port(expected)[out]
            assert frames == wanted, (
                f"seed {SEED}, packets {sent} to {sent + len(packets) - 1}, sent into port {port}: "
                f"{difference(frames, wanted)} out of port {out}; the burst was {[frame.hex() for frame, _ in packets]}"
            )
        sent += len(packets)
        left += len(got)
    for table in TABLES:
        assert target.entry_counters(table) == reference.entry_counters(table), f"seed {SEED}"
    for counter in DROPPED:
        counts = [[each.packets_counted(counter, port) for port in PORTS] for each in pair]
        assert counts[0] == counts[1], f"seed {SEED}"
    verdicts = reference.entry_counters(programming.JOB_VERDICTS)
    rejections = reference.entry_counters(programming.REJECTIONS)
    print(f"seed {SEED}: {sent} packets in, {left} out")
    for job in jobs:
        print({verdict.name: verdicts[job.number, job.epoch, verdict.value] for verdict in Verdict})
    print({reason.name: rejections[reason.value,] for reason in RejectReason})
    assert all(packets for packets, _ in verdicts.values()), "not every verdict occurred"
    assert all(packets for packets, _ in rejections.values()), "not every reason to reject occurred"


def difference(got: list[bytes], expected: list[bytes]) -> str:
    """The first place where two lists of frames part."""
    if Counter(got) == Counter(expected):
        return "the right frames in another order came"
    for index, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            return f"frame {index} is {one.hex()}, not {other.hex()}, as it came"
    return f"{len(got)} frames instead of {len(expected)} came"


def test_a_difference_is_told() -> None:
    assert difference([b"a", b"b"], [b"b", b"a"]) == "the right frames in another order came"
    assert difference([b"a", b"b"], [b"a", b"c"]) == "frame 1 is 62, not 63, as it came"
    assert difference([b"a"], [b"a", b"c"]) == "1 frames instead of 2 came"
