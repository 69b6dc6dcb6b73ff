"""The traffic manager: unicast, drops, multicast, clones, resubmit, recirculate, truncate. Program: programs/traffic.p4."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.packets import HEAD_BYTES, RECORD, Arrivals
from switchsum.softswitch.tables import BadEntry, EntryExists, NoSuchEntry

Switch = Callable[..., Dataplane]
NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6


class Left(NamedTuple):
    """A packet that left, by its trace header."""

    out: int
    instance_type: int
    port: int
    rid: int
    length: int
    ingress_port: int
    kept: int
    stamp: int
    op: int
    hops: int
    argument: int
    rest: bytes


def packet(op: int, hops: int = 0, argument: int = 0) -> bytes:
    return struct.pack(">BBH", op, hops, argument) + b"tail"


def send(dataplane: Dataplane, frame: bytes, port: int = 7, now_us: int = 0) -> list[Left]:
    result = []
    for out, data in dataplane.process(port, frame, now_us):
        stage, kind, egress, rid, length, ingress, kept = struct.unpack(">BBHHIHH", data[:14])
        assert stage == 1
        stamp = int.from_bytes(data[14:20], "big")
        op, hops, argument = struct.unpack(">BBH", data[20:24])
        result.append(Left(out, kind, egress, rid, length, ingress, kept, stamp, op, hops, argument, data[24:]))
    return result


def drops(dataplane: Dataplane) -> dict[str, int]:
    return {name: count for name, count in dataplane.statistics.items() if name.startswith("drop") and count}


def test_unicast_and_what_standard_metadata_says(switch: Switch) -> None:
    [left] = send(switch("traffic"), packet(0), port=300, now_us=123456789012)
    assert left == Left(1, NORMAL, 1, 0, 8, 300, 0, 123456789012, 0, 0, 0, b"tail")


@pytest.mark.parametrize(("op", "reason"), [(1, "drop_ingress"), (10, "drop_egress")])
def test_dropped_packets_are_counted_by_where(switch: Switch, op: int, reason: str) -> None:
    dataplane = switch("traffic")
    assert send(dataplane, packet(op)) == []
    assert drops(dataplane) == {reason: 1}
    assert dataplane.statistics["packets_in"] == 1


def test_multicast_copies_each_start_from_what_ingress_left(switch: Switch) -> None:
    """Egress counts `hops` up in its copy; a copy that saw another's work would say 2. Seen red without the restore."""
    dataplane = switch("traffic")
    dataplane.multicast_groups.insert(5, [(1, 10), (2, 11), (2, 12), (300, 65535)])
    left = send(dataplane, packet(2, 40, 5))
    assert [(p.out, p.port, p.rid, p.instance_type, p.hops) for p in left] == [
        (1, 1, 10, REPLICATED, 41), (2, 2, 11, REPLICATED, 41), (2, 2, 12, REPLICATED, 41), (300, 300, 65535, REPLICATED, 41)
    ]  # fmt: skip
    assert drops(dataplane) == {}


def test_a_copy_that_egress_drops_takes_no_other_with_it(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.multicast_groups.insert(5, [(1, 1), (2, 13), (3, 3)])
    assert [(p.out, p.hops) for p in send(dataplane, packet(2, 0, 5))] == [(1, 1), (3, 1)]
    assert drops(dataplane) == {"drop_egress": 1}


def test_groups_change_and_vanish(switch: Switch) -> None:
    dataplane = switch("traffic")
    groups = dataplane.multicast_groups
    groups.insert(5, [(1, 0)])
    groups.insert(6, [(9, 0), (8, 0)])
    groups.modify(5, [(2, 0), (3, 0)])
    assert [p.out for p in send(dataplane, packet(2, 0, 5))] == [2, 3]
    assert [p.out for p in send(dataplane, packet(2, 0, 6))] == [9, 8]
    groups.delete(5)
    assert send(dataplane, packet(2, 0, 5)) == []
    assert [p.out for p in send(dataplane, packet(2, 0, 6))] == [9, 8]
    assert drops(dataplane) == {"drop_no_multicast_group": 1}
    assert groups.entries() == [(6, ((9, 0), (8, 0)))]


def test_an_empty_group_is_a_silent_end(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.multicast_groups.insert(5, [])
    assert send(dataplane, packet(2, 0, 5)) == []
    assert drops(dataplane) == {}


def test_group_and_session_operations_that_cannot_be_done(switch: Switch) -> None:
    dataplane = switch("traffic")
    groups, sessions = dataplane.multicast_groups, dataplane.clone_sessions
    groups.insert(5, [(1, 0)])
    with pytest.raises(EntryExists, match="multicast group 5"):
        groups.insert(5, [(2, 0)])
    with pytest.raises(NoSuchEntry, match="multicast group 6"):
        groups.modify(6, [(2, 0)])
    with pytest.raises(NoSuchEntry, match="clone session 6"):
        sessions.delete(6)
    with pytest.raises(BadEntry, match="ids go from 1 to 65535"):
        groups.insert(0, [(1, 0)])
    with pytest.raises(BadEntry, match="twice"):
        groups.modify(5, [(1, 0), (1, 0)])
    assert groups.entries() == [(5, ((1, 0),))]


def test_an_ingress_clone_is_the_packet_as_it_came(switch: Switch) -> None:
    """Headers as parsed anew, user metadata zero but for the field list; the packet itself goes on as ingress made it."""
    dataplane = switch("traffic")
    dataplane.clone_sessions.insert(100, [(20, 3), (21, 4)])
    original, first, second = send(dataplane, packet(3, 1, 100))
    assert (original.out, original.instance_type, original.hops, original.kept) == (1, NORMAL, 9, 0x5A5A)
    assert (first.out, first.rid, first.instance_type, first.hops, first.kept) == (20, 3, INGRESS_CLONE, 1, 0x5A5A)
    assert (second.out, second.rid, second.hops) == (21, 4, 1)
    assert (first.length, first.rest) == (8, b"tail")


def test_a_dropped_packet_can_leave_a_clone(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.clone_sessions.insert(0, [(20, 0)])
    assert [(p.out, p.instance_type) for p in send(dataplane, packet(11, 1, 0))] == [(20, INGRESS_CLONE)]


def test_an_egress_clone_has_the_headers_that_egress_left(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.clone_sessions.insert(100, [(20, 3)])
    original, clone = send(dataplane, packet(4, 1, 100))
    assert (original.out, original.hops, original.kept) == (1, 8, 0x4321)
    # The field list is read when egress is over, like simple_switch does.
    assert (clone.out, clone.instance_type, clone.hops, clone.kept, clone.rid) == (20, EGRESS_CLONE, 8, 0x4321, 3)


def test_clones_are_cut_to_the_sessions_length(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.clone_sessions.insert(100, [(20, 3)], truncate_bytes=26)
    original, clone = dataplane.process(7, packet(3, 1, 100))
    assert (len(original[1]), len(clone[1])) == (28, 26)


def test_a_session_that_is_missing_costs_the_clone_only(switch: Switch) -> None:
    dataplane = switch("traffic")
    assert [p.out for p in send(dataplane, packet(3, 1, 100))] == [1]
    assert drops(dataplane) == {"drop_no_clone_session": 1}


def test_resubmitted_packets_start_anew_with_the_kept_fields(switch: Switch) -> None:
    """The change of `argument` in ingress is undone, since the bytes are parsed again; `rounds` survives."""
    [left] = send(switch("traffic"), packet(5, 3, 1))
    assert (left.kept, left.argument, left.hops) == (3, 1, 3)


def test_recirculated_packets_carry_their_new_headers(switch: Switch) -> None:
    [left] = send(switch("traffic"), packet(6, 3))
    assert (left.hops, left.kept, left.length) == (0, 3, 8)


@pytest.mark.parametrize("op", [8, 9])
def test_a_packet_that_comes_back_for_ever_is_stopped(switch: Switch, op: int) -> None:
    dataplane = switch("traffic")
    assert send(dataplane, packet(op)) == []
    assert drops(dataplane) == {"drop_came_back_too_often": 1}
    assert [p.out for p in send(dataplane, packet(0))] == [1]


def test_clones_of_clones_are_stopped_by_the_copies_they_make(switch: Switch) -> None:
    """Each egress copy clones itself twice: without a bound, 2^64 packets."""
    dataplane = switch("traffic")
    dataplane.clone_sessions.insert(1, [(1, 0), (2, 0)])
    left = dataplane.process(7, packet(12, 0, 1))
    assert len(left) == 65536 + 1
    assert set(drops(dataplane)) == {"drop_too_many_copies"}


@pytest.mark.parametrize(("limit", "length"), [(0, 0), (1, 1), (23, 23), (28, 28), (29, 28), (65535, 28)])
def test_truncate_cuts_what_leaves(switch: Switch, limit: int, length: int) -> None:
    frame = packet(7, 0, limit)
    [(_, data)] = switch("traffic").process(7, frame)
    assert len(data) == length


def test_batches_equal_single_packets(switch: Switch) -> None:
    """One call for many packets, in order, with growth of the output far beyond its first size."""
    frames = [packet(op, hops, 5) for op in (0, 1, 2, 3, 4, 5, 6, 7, 10) for hops in range(4)] * 20
    frames += [packet(2, 1, 5) + bytes(60000)] * 40
    one, many = switch("traffic"), switch("traffic")
    for dataplane in (one, many):
        dataplane.multicast_groups.insert(5, [(1, 10), (2, 11), (3, 12)])
        dataplane.clone_sessions.insert(5, [(9, 1)])
    expected = [out for frame in frames for out in one.process(4, frame, 99)]
    lengths = np.array([len(f) for f in frames], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    ports = np.full(len(frames), 4, np.int32)
    batch = many.process_batch(ports, offsets, lengths, np.frombuffer(b"".join(frames), np.uint8), 99)
    assert batch.frames() == expected
    assert many.statistics == one.statistics


def arrived(frames: list[tuple[int, bytes]]) -> Arrivals:
    """As a port receives them: what follows the heads lies side by side, wherever there is a whole head."""
    arrivals = Arrivals(len(frames), HEAD_BYTES + sum(len(frame) for _, frame in frames))
    end = HEAD_BYTES
    for index, (port, frame) in enumerate(frames):
        apart = HEAD_BYTES if len(frame) >= HEAD_BYTES else 0
        rest = np.frombuffer(frame[apart:], np.uint8)
        arrivals.buffer[end : end + len(rest)] = rest
        arrivals.ports[index], arrivals.offsets[index], arrivals.lengths[index] = port, end - apart, len(frame)
        if apart:
            arrivals.head_of[index] = index
            arrivals.heads[64 * index : 64 * index + HEAD_BYTES] = np.frombuffer(frame[:HEAD_BYTES], np.uint8)
        end += len(rest)
        arrivals.count += 1
    return arrivals


def test_what_the_ports_forward_equals_single_packets(switch: Switch) -> None:
    """Heads apart on both sides, every way through the traffic manager, packets that are too short or too long included."""
    rng = random.Random(5)
    frames = []
    for number in range(3000):
        op = rng.choice((0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 10, 12))
        tail = rng.randbytes(rng.choice((0, 1, 37, 38, 39, 60, 700, 1048, rng.randrange(1500))))
        frames.append((number % 5, packet(op, rng.randrange(4), rng.choice((5, 6, 30, 41, 42, 43, 200))) + tail))
    frames += [
        (1, packet(2, 1, 5) + rng.randbytes(60000)),
        (1, packet(2, 1, 5) + rng.randbytes(65527)),
        (2, packet(2, 1, 5)),
    ] * 9
    one, many = switch("traffic"), switch("traffic")
    for dataplane in (one, many):
        dataplane.multicast_groups.insert(5, [(1, 10), (2, 11), (3, 12), (4, 13), (1, 14), (513, 15)])
        dataplane.multicast_groups.insert(6, [(1, 10), (3, 12)])
        dataplane.clone_sessions.insert(5, [(9, 1)])
        dataplane.clone_sessions.insert(6, [(1, 1), (2, 7)], 50)
    for start in range(0, len(frames), 500):
        part = frames[start : start + 500]
        expected = [out for port, frame in part for out in one.process(port, frame, 99)]
        assert many.forward(arrived(part), 99).frames() == expected
    assert many.statistics == one.statistics
    assert one.statistics["drop_too_long"] == 45


def test_what_leaves_by_one_port_lies_side_by_side(switch: Switch) -> None:
    dataplane = switch("traffic")
    dataplane.multicast_groups.insert(5, [(1, 10), (2, 11)])
    leaving = dataplane.forward(arrived([(3, packet(2, n, 5) + bytes([n]) * 1000) for n in range(50)]), 0)
    records = leaving.records.view(RECORD)[: leaving.count]
    for port in (1, 2):
        mine = records[records["port"] == port]
        assert len(mine) == 50
        assert (np.diff(mine["offset"]) == mine["length"][:-1] - HEAD_BYTES).all()


def test_batches_outside_the_buffer_are_refused(switch: Switch) -> None:
    dataplane = switch("traffic")
    buffer = np.zeros(100, np.uint8)

    def batch(offset: int, length: int) -> None:
        dataplane.process_batch(np.zeros(1, np.int32), np.array([offset]), np.array([length]), buffer)

    for offset, length in ((0, 101), (100, 1), (-1, 5), (50, -1), (2**62, 1)):
        with pytest.raises(ValueError, match="packet 0"):
            batch(offset, length)
    with pytest.raises(ValueError, match="65536"):
        dataplane.process(0, bytes(65536))
    assert dataplane.statistics["packets_in"] == 0
    batch(100, 0)
    assert dataplane.statistics["packets_in"] == 1
