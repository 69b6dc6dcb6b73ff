"""Time series and counters against other sources that the kernel has of the same."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from switchsum.measure import interfaces, processor, resources, tcp_counters
from switchsum.measure.channel import Closed, connect
from switchsum.measure.crew import Crew

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def test_a_sampler_keeps_a_bounded_number_of_samples_from_first_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MOST_SAMPLES", 16)
    enough = threading.Event()
    read = 0

    def figures() -> Sequence[float]:
        nonlocal read
        read += 1
        if read == 40:
            enough.set()
        return (read,)

    sampler = resources.Sampler(("seconds", "count"), figures, interval_s=0.001)
    assert enough.wait(60)
    found = sampler.stop()
    assert 8 <= len(found["count"]) <= 16
    assert found["count"][0] == 1
    assert found["count"][-1] >= 36
    assert found["seconds"] == sorted(found["seconds"])
    assert len(found["seconds"]) == len(found["count"])


def test_a_sampler_ends_with_the_process_that_it_looks_at() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        sampler = resources.of_switch([child.pid])
        while not sampler.samples:
            time.sleep(0.01)
    found = sampler.stop()
    assert found["cpu_s"]
    assert min(found["resident_bytes"]) > 0


def test_usage_is_what_proc_tells_of_the_process() -> None:
    def fields() -> list[str]:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()

    def switches(kind: str) -> int:
        tasks = Path("/proc/self/task").glob("*/status")
        return sum(int(re.search(rf"^{kind}_ctxt_switches:\s*(\d+)", task.read_text(), re.MULTILINE)[1]) for task in tasks)  # type: ignore[index]

    before, seconds = processor.usage(), processor.process_ns(os.getpid()) / 1e9
    told = (fields(), switches("voluntary"), switches("nonvoluntary"))
    block = bytearray(os.urandom(1 << 20) * 16)
    while processor.process_ns(os.getpid()) / 1e9 - seconds < 0.1:
        block.count(7)
        time.sleep(0.001)
    used = processor.used_since(before)
    taken = processor.process_ns(os.getpid()) / 1e9 - seconds
    assert used.user_s + used.system_s == pytest.approx(taken, abs=0.01)
    after = (fields(), switches("voluntary"), switches("nonvoluntary"))
    assert used.user_s == pytest.approx((int(after[0][11]) - int(told[0][11])) * TICK_S, abs=3 * TICK_S)
    assert used.system_s == pytest.approx((int(after[0][12]) - int(told[0][12])) * TICK_S, abs=3 * TICK_S)
    assert 0 <= used.voluntary_switches - (after[1] - told[1]) + 5 <= 10
    assert 0 <= used.involuntary_switches - (after[2] - told[2]) + 5 <= 10
    assert used.resident_bytes == pytest.approx(int(after[0][21]) * os.sysconf("SC_PAGE_SIZE"), rel=0.05)
    assert used.resident_bytes > len(block)


def _through(connected: socket.socket, accepted: socket.socket, count: int) -> None:
    sender = threading.Thread(target=connected.sendall, args=(bytes(count),))
    sender.start()
    left = count
    while left:
        left -= len(accepted.recv(1 << 16))
    sender.join()


def test_tcp_counters_do_not_go_backwards_when_a_connection_closes() -> None:
    before, link = tcp_counters.read(), interfaces.carried("lo")
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        _through(connected, accepted, 1 << 20)
        told = subprocess.run(
            ["ss", "-tinH", f"dport = :{server.getsockname()[1]}"], capture_output=True, text=True, check=False
        )
        opened = tcp_counters.read()
        assert opened.received - before.received == 1 << 20
        assert opened.sent - before.sent == 1 << 20
        if sent := re.search(r"bytes_sent:(\d+)", told.stdout):
            assert int(sent[1]) == 1 << 20
        connected.close()
        accepted.close()
        closed = tcp_counters.read()
        assert closed == opened
        with socket.create_connection(server.getsockname()) as connected:
            accepted, _ = server.accept()
            with accepted:
                _through(connected, accepted, 1000)
                assert tcp_counters.read().received == closed.received + 1000
    assert interfaces.carried("lo").sent_bytes - link.sent_bytes > (1 << 20) + 1000


def test_a_process_samples_itself() -> None:
    sampler = resources.of_this_process("lo", lambda: 7)
    while not sampler.samples:
        time.sleep(0.01)
    found = sampler.stop()
    assert tuple(found) == resources.PROCESS_COLUMNS
    assert {len(values) for values in found.values()} == {len(found["seconds"])}
    assert found["resent"][0] == 7
    assert found["seconds"][-1] <= time.monotonic()
    assert found["user_s"][-1] <= processor.usage().user_s
    assert found["sent_bytes"][-1] <= interfaces.carried("lo").sent_bytes


class TwoHosts:
    """The site of a crew whose second rank the test plays, on another machine."""

    labels = ("worker 0", "worker 1")
    hosts = (0, 1)
    rendezvous = ""
    link_rates_bps = ()
    switch_pids = ()

    def link_counters(self) -> None:
        return None

    def obituary(self, rank: int) -> None:
        return None

    def failure(self) -> None:
        return None


def test_times_of_another_machine_are_brought_to_the_coordinators_clock(tmp_path: Path) -> None:
    ahead = 5000.0
    seen: list[float] = []

    def rank(number: int, machine: str, shift: float) -> None:
        channel = connect(f"unix:{tmp_path / 's'}", 10)
        channel.send(rank=number, machine=machine)
        with suppress(Closed):
            while True:
                command = channel.receive()["do"]
                now = time.monotonic() + shift
                if command == "clock":
                    assert shift
                    channel.send(seconds=now)
                else:
                    seen.append(now - shift)
                    channel.send(samples={"seconds": [now], "user_s": [1.0]})
        channel.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        ranks = [threading.Thread(target=rank, args=each) for each in ((0, "here", 0.0), (1, "there", ahead))]
        for each in ranks:
            each.start()
        crew = Crew(TwoHosts(), listener, 10)
    first, second = resources.of_ranks({"gloo": crew, "limit": crew}, "here", 10)
    crew.close()
    for each in ranks:
        each.join()
    assert (first.kind, first.name, first.transports, first.clock_error_s) == ("rank", "worker 0", ["gloo", "limit"], 0.0)
    assert first.samples["seconds"][0] in seen
    assert 0 < second.clock_error_s < 10
    assert min(abs(second.samples["seconds"][0] - each) for each in seen) <= second.clock_error_s
    assert second.samples["user_s"] == [1.0]
