"""The coordinator's view of its ranks: all are asked at once, and whoever fails is named with the cause."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from switchsum import bench_sites
from switchsum.bmv2_topologies import namespaces
from switchsum.measure.channel import Channel, Closed, connect
from switchsum.measure.crew import BenchmarkFailed, Crew
from switchsum.measure.samples import Carried

RANKS = 3


@dataclass
class Place:
    """A site whose troubles the test decides."""

    labels: Sequence[str] = tuple(f"worker {rank}" for rank in range(RANKS))
    hosts: Sequence[int] = (0,) * RANKS
    rendezvous: str = ""
    link_rates_bps: Sequence[int | None] = ()
    switch_pids: Sequence[int] = ()
    obituaries: dict[int, str] = field(default_factory=dict)
    trouble: str | None = None

    def link_counters(self) -> list[Carried] | None:
        return None

    def obituary(self, rank: int) -> str | None:
        return self.obituaries.get(rank)

    def failure(self) -> str | None:
        return self.trouble


@dataclass
class Meeting:
    place: Place
    crew: Crew
    ranks: list[Channel]


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    place = Place()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        ranks = []
        for rank in reversed(range(RANKS)):  # whoever comes first is not rank 0
            channel = connect(f"unix:{tmp_path / 's'}", 10)
            channel.send(rank=rank, rate_bps=10**9, alone=rank != 2)
            ranks.insert(0, channel)
        crew = Crew(place, listener, 10)
    yield Meeting(place, crew, ranks)
    crew.close()
    for each in ranks:
        each.close()


def answering(channel: Channel, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> threading.Thread:
    def serve() -> None:
        try:
            while True:
                channel.send(**answer(channel.receive()))
        except Closed:
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_answers_come_by_rank(meeting: Meeting) -> None:
    for rank, channel in enumerate(meeting.ranks):
        answering(channel, lambda asked, rank=rank: {**asked, "rank": rank})  # type: ignore[misc]
    assert [answer["rank"] for answer in meeting.crew.ask("count", 10, to=3)] == [0, 1, 2]
    answers = meeting.crew.ask_each("count", 10, {rank: {"to": rank} for rank in (2, 0)})
    assert [(answer["do"], answer["rank"], answer["to"]) for answer in answers] == [("count", 2, 2), ("count", 0, 0)]
    large = "x" * 3_000_000  # more than a socket's buffers hold
    assert [answer["text"] for answer in meeting.crew.ask("echo", 10, text=large)] == [large] * RANKS


def test_whoever_fails_is_named_with_the_reason(meeting: Meeting) -> None:
    for rank, channel in enumerate(meeting.ranks):
        answering(channel, lambda _, rank=rank: {"error": "it broke"} if rank == 1 else {})  # type: ignore[misc]
    with pytest.raises(BenchmarkFailed, match=r"^worker 1: it broke$"):
        meeting.crew.ask("go", 10)


def test_a_death_explains_what_the_others_say(meeting: Meeting) -> None:
    """Rank 0 sees its connection break; the cause is that rank 2 was killed."""
    answering(meeting.ranks[0], lambda _: {"error": "connection reset by peer"})
    answering(meeting.ranks[1], lambda _: {})
    meeting.place.obituaries[2] = "was killed by SIGKILL"
    meeting.ranks[2].close()
    with pytest.raises(BenchmarkFailed, match=r"^worker 2 was killed by SIGKILL$"):
        meeting.crew.ask("go", 10)


def test_a_rank_of_another_host_that_goes_is_named_too(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchsum.measure.crew._CAUSE_S", 0.0)
    meeting.ranks[1].close()
    with pytest.raises(BenchmarkFailed, match=r"^worker 1 closed its connection: it ended, or its host is gone$"):
        meeting.crew.ask("go", 10)


def test_a_broken_fabric_is_told_while_answers_are_awaited(meeting: Meeting) -> None:
    meeting.place.trouble = "the switch was killed"
    with pytest.raises(BenchmarkFailed, match=r"^the switch was killed$"):
        meeting.crew.ask("go", 10)


def test_silence_is_told_with_the_option_that_sets_its_limit(meeting: Meeting) -> None:
    answering(meeting.ranks[1], lambda _: {})
    with pytest.raises(BenchmarkFailed, match=r"^worker 0, worker 2 did not answer within 0.3 s \(go\); see --timeout$"):
        meeting.crew.ask("go", 0.3)


def test_who_does_not_start_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        channel = connect(f"unix:{tmp_path / 's'}", 10)
        channel.send(rank=1)
        with pytest.raises(BenchmarkFailed, match=r"^worker 0, worker 2 did not start within 0.3 s$"):
            Crew(Place(), listener, 0.3)
        channel.close()


def test_a_shared_interface_has_no_rate_of_one_rank(meeting: Meeting) -> None:
    assert meeting.crew.link_rate_bps is None  # rank 2 is not alone on its interface
    meeting.place.link_rates_bps = [None, 10**9, 10**8]
    assert meeting.crew.link_rate_bps == 10**8


def test_strangers_are_neither_waited_for_nor_taken_for_ranks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sayings = [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            b"[1]\n",
            b'{"rank": "0"}\n',
            b'{"rank": 3}\n',
            b"\xff\n",
            b"[" * 40_000 + b"\n",
        ]
        strangers = [socket.create_connection(("127.0.0.1", port), 5) for _ in sayings]
        for stranger, said in zip(strangers, sayings, strict=True):
            stranger.sendall(said)
        ranks = [connect(f"127.0.0.1:{port}", 10) for _ in range(RANKS)]
        for rank, channel in enumerate(ranks):
            channel.send(rank=rank)
        crew = Crew(Place(), listener, 30)
    for rank, channel in enumerate(ranks):
        answering(channel, lambda _, rank=rank: {"rank": rank})  # type: ignore[misc]
    assert [answer["rank"] for answer in crew.ask("count", 10)] == [0, 1, 2]
    for stranger in strangers:
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    crew.close()
    for channel in ranks:
        channel.close()


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"namespaces: {namespaces.what_is_missing()}")
def test_a_network_namespace_is_a_host_of_its_own(tmp_path: Path) -> None:
    """Two ranks of this machine share its interfaces; a third, on the same kernel, has others."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        command = [sys.executable, "-m", "switchsum.measure.worker", f"unix:{tmp_path / 's'}"]
        prefixes: list[list[str]] = [[], [], ["unshare", "--net"]]
        ranks = [
            subprocess.Popen([*prefix, *command], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"})
            for rank, prefix in enumerate(prefixes)
        ]
        crew = Crew(Place(), listener, 60)
    hosts = bench_sites.hosts_of(crew.hellos)
    machines = {hello["machine"] for hello in crew.hellos}
    crew.dismiss()
    assert [rank.wait(30) for rank in ranks] == [0, 0, 0]
    assert (hosts, len(machines)) == ([0, 0, 1], 1)
