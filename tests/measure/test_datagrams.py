"""The transport `limit`, over real sockets."""

from __future__ import annotations

import socket
import threading

import pytest

from switchsum.measure.datagrams import DatagramRing


def ring(ranks: int, elements: int = 64) -> list[DatagramRing]:
    made = [DatagramRing("127.0.0.1", elements) for _ in range(ranks)]
    for rank, each in enumerate(made):
        after, before = made[(rank + 1) % ranks], made[rank - 1]
        each.connect(("127.0.0.1", after.ports[0]), ("127.0.0.1", before.ports[1]))
    return made


def exchange(members: list[DatagramRing], totals: list[int], **options: int) -> list[int]:
    silences = [0] * len(members)

    def run(rank: int) -> None:
        silences[rank] = members[rank].exchange(totals[rank], **options)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return silences


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("total", [1, 59, 60, 61, 5000])
def test_all_that_is_sent_arrives(ranks: int, total: int) -> None:
    members = ring(ranks)
    for _ in range(2):
        assert exchange(members, [total] * ranks) == [0] * ranks
    for each in members:
        assert each.lost == 0
        assert each.payload_bytes == (2 * total * (24 + 4 * 64),) * 2
        each.close()


def test_one_datagram_for_each_packet_of_a_sum() -> None:
    [alone] = ring(1, elements=256)
    assert [alone.datagrams(count) for count in (1, 256, 257, 1 << 20)] == [1, 1, 2, 4096]
    alone.close()


def test_what_is_lost_is_counted_and_ends_by_silence() -> None:
    """One rank sends less than the other expects: as if the rest had been lost on the way."""
    members = ring(2)
    silences = exchange(members, [1000, 700], silence_ns=100_000_000)
    assert [each.lost for each in members] == [300, 0]
    assert silences[0] >= 100_000_000  # which is not timed
    exchange(members, [200, 200])  # and the next exchange does not count late ones
    assert [each.lost for each in members] == [300, 0]
    for each in members:
        each.close()


def test_a_window_that_fills_with_losses_is_opened_again() -> None:
    members = ring(2)
    exchange(members, [2000, 60], silence_ns=50_000_000)
    assert members[0].lost == 1940
    for each in members:
        each.close()


def test_strangers_do_not_count() -> None:
    members = ring(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(bytes(24 + 4 * 64), ("127.0.0.1", members[0].ports[0]))
        exchange(members, [10, 10])
    assert [each.received for each in members] == [10, 10]
    for each in members:
        each.close()
