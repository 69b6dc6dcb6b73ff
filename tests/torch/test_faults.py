"""Processes killed and stopped in the middle of sums, and foreign datagrams on every socket: real processes throughout.

Each rank must end with one error that names the cause; a controller or switch that lives on must serve the next job.
"""

from __future__ import annotations

import contextlib
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.fabric import Fabric
from switchsum.controller.options import ControllerOptions
from switchsum.host_agent.job_client import JobClient
from switchsum.p4src.layout import HEADER_DTYPE, WIRE_VERSION
from switchsum.softswitch.daemon import SoftSwitch
from tests.torch.launch import ROOT, Rank, check, free_port, run, started

LIMIT_S = 180.0  # for anything a test waits for, numba compiling included; far below the 30 minutes of a hang
RANKS = 2

pytestmark = pytest.mark.slow


class Lines:
    """A process's output, line by line, with a limit on the wait."""

    def __init__(self, output: IO[str] | None) -> None:
        assert output is not None
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._thread.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("(end of output)")

    def next(self, pattern: str) -> re.Match[str]:
        """The next line that matches; fails with all that was said instead."""
        while True:
            try:
                self.seen.append(self._lines.get(timeout=LIMIT_S))
            except queue.Empty:
                pytest.fail(f"no line {pattern!r} within {LIMIT_S:g} s, only: {self.seen}")
            if found := re.search(pattern, self.seen[-1]):
                return found
            assert self.seen[-1] != "(end of output)", f"ended without a line {pattern!r}: {self.seen}"


@contextlib.contextmanager
def command(*words: str) -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """`switchsum WORDS...` as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "switchsum.cli", *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process, Lines(process.stdout)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def controller_for(switch: str, fabric: Path, listen: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`switchsum controller` and the address of its job service."""
    options = ("--switch", switch, "--fabric", str(fabric), "--listen", listen, "--lease", "2")
    with command("controller", *options) as (process, lines):
        yield process, lines.next(r"^controller ready: job service (\S+),")[1]


def wait_until_served(controller: str) -> None:
    """Until the controller has its switch again."""
    client = JobClient(controller)
    deadline = time.monotonic() + LIMIT_S
    try:
        while problem := client.inspect(LIMIT_S).switch_problem:
            assert time.monotonic() < deadline, problem
            time.sleep(0.1)
    finally:
        client.close()


def test_each_process_killed_or_stopped_is_told_and_the_rest_serves_on(tmp_path: Path) -> None:
    """One pair of ranks lives through six jobs: a rank and the daemons stopped and continued, the controller killed and
    started again, at last the switch killed. (A killed rank: test_backend.py.)"""
    fabric = tmp_path / "fabric.yaml"
    with contextlib.ExitStack() as stack:
        switch, words = stack.enter_context(command("switch", "--p4runtime", "127.0.0.1:0", "--udp-base", "0", "--ports", "2"))
        ready = words.next(r"^switch ready: P4Runtime (\S+), ports (.*)")
        ports = re.findall(r"(\d+)=(\S+:\d+)", ready[2]) or expanded(ready[2])
        fabric.write_text("kind: loopback\nports:\n" + "".join(f"  {number}: {address}\n" for number, address in ports))
        controller, address = stack.enter_context(controller_for(ready[1], fabric, "127.0.0.1:0"))
        ranks = stack.enter_context(
            started(
                "sums_until_each_job_ends", RANKS, SWITCHSUM_CONTROLLER=address, SWITCHSUM_TIMEOUT="5", SWITCHSUM_ON_LOSS="fail"
            )
        )
        spoken = [Lines(rank.stdout) for rank in ranks]

        def job(victim: Rank | subprocess.Popen[str], number: signal.Signals, cause: str) -> None:
            port = free_port()
            for rank in ranks:
                print(port, file=rank.stdin, flush=True)
            for lines in spoken:
                lines.next("^sums$")
            victim.send_signal(number)
            for rank, lines in zip(ranks, spoken, strict=True):
                if rank is victim:
                    rank.send_signal(signal.SIGCONT)
                assert re.search(cause, lines.next("^error: (.*)")[1]), (cause, lines.seen)

        job(ranks[1], signal.SIGSTOP, rf"pid {ranks[1].pid}\) did not renew its lease for 2 s: it died, hangs or is cut off")
        job(switch, signal.SIGSTOP, "the switch (at .* does not answer|has not answered for 5 s)")
        switch.send_signal(signal.SIGCONT)
        wait_until_served(address)
        job(controller, signal.SIGSTOP, f"lost the controller at {address}")
        controller.send_signal(signal.SIGCONT)
        wait_until_served(address)
        job(controller, signal.SIGTERM, "controller was stopped")
        controller.wait(LIMIT_S)
        controller, _ = stack.enter_context(controller_for(ready[1], fabric, address))
        job(controller, signal.SIGKILL, f"lost the controller at {address}")
        controller.wait(LIMIT_S)
        controller, _ = stack.enter_context(controller_for(ready[1], fabric, address))
        job(switch, signal.SIGKILL, f"the switch at {ready[1]} is gone")
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank, lines in zip(ranks, spoken, strict=True):
            lines.next(r"end of output")
            assert rank.wait(LIMIT_S) == 0, lines.seen
            assert {line.partition(":")[0] for line in lines.seen} == {"sums", "error", "(end of output)"}, "\n".join(
                lines.seen
            )
        controller.send_signal(signal.SIGINT)
        assert controller.wait(LIMIT_S) == 0


def expanded(text: str) -> list[tuple[str, str]]:
    """ "1..2 at 127.0.0.1:40001..40002" as (port, address) pairs: what the switch says when its ports are consecutive."""
    found = re.fullmatch(r"(\d+)\.\.(\d+) at (\S+):(\d+)\.\.\d+", text)
    assert found is not None, text
    first, last, lowest = int(found[1]), int(found[2]), int(found[4])
    return [(str(port), f"{found[3]}:{lowest + port - first}") for port in range(first, last + 1)]


@pytest.fixture
def network() -> Iterator[tuple[SoftSwitch, str]]:
    """A switch and a controller of this process."""
    with (
        SoftSwitch(ports=RANKS) as switch,
        ControllerDaemon(
            Fabric.loopback(switch.port_addresses),
            ControllerOptions(switch=switch.grpc_address, listen=("127.0.0.1:0",), lease_s=2),
        ) as controller,
    ):
        yield switch, controller.address


def test_foreign_datagrams_on_every_socket_change_nothing(network: tuple[SoftSwitch, str]) -> None:
    """Thrown at the switch's ports from strangers, and at the workers' sockets from the switch's own."""
    switch, controller = network
    with started("sums_under_fire", RANKS, SWITCHSUM_CONTROLLER=controller, SWITCHSUM_TIMEOUT="20") as ranks:
        spoken = [Lines(rank.stdout) for rank in ranks]
        for lines in spoken:
            lines.next("^sums$")
        client = JobClient(controller)
        (job,) = client.inspect(LIMIT_S).jobs
        client.close()
        chance = random.Random(1)
        workers = [(worker.data_address, worker.data_port) for worker in job.workers]
        own = list(switch._ports._sockets.values())  # a stranger cannot send from there, a faulty switch could
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for _ in range(2000):
                stranger.sendto(anything(chance, job.job, job.epoch), chance.choice(list(switch.port_addresses.values())))
                chance.choice(own).sendto(foreign(chance, job.job, job.epoch), chance.choice(workers))
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank, lines in zip(ranks, spoken, strict=True):
            lines.next("times right")
            assert rank.wait(LIMIT_S) == 0, lines.seen
    assert switch.statistics["received_packets"] > 2000


@pytest.mark.parametrize("scenario", ["forked_children_do_no_harm", "one_rank_ends_early"])
def test_a_job_survives_its_children_and_does_not_wait_for_the_gone(network: tuple[SoftSwitch, str], scenario: str) -> None:
    outcomes = run(scenario, RANKS, LIMIT_S, SWITCHSUM_CONTROLLER=network[1])
    check(outcomes)
    assert not any("fork" in outcome.output for outcome in outcomes)  # gRPC would have its say on each fork


def test_ctrl_c_ends_a_wait(network: tuple[SoftSwitch, str]) -> None:
    """Torchrun hands SIGINT on to all ranks; one that waited in C++ would not have seen it."""
    with started("ctrl_c_ends_a_wait", RANKS, SWITCHSUM_CONTROLLER=network[1]) as ranks:
        spoken = [Lines(rank.stdout) for rank in ranks]
        for lines in spoken:
            lines.next("^ready$")
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        for rank, lines in zip(ranks, spoken, strict=True):
            lines.next("^interrupted$")
            assert rank.wait(LIMIT_S) == 0, lines.seen


def header(chance: random.Random, **fields: int) -> bytearray:
    """A SwitchSum header with these fields and anything in the others."""
    record = np.frombuffer(bytearray(chance.randbytes(HEADER_DTYPE.itemsize)), HEADER_DTYPE)
    for name, value in fields.items():
        record[name] = value
    return bytearray(record.tobytes())


def anything(chance: random.Random, job: int, epoch: int) -> bytes:
    """What a stranger may send to a switch port: even a header that is right in every field."""
    length = chance.choice([0, 1, 23, 24, 25, 1047, 1048, 1049, 4096, 9000, 65507, chance.randrange(2000)])
    makers: list[Callable[[], bytes | bytearray]] = [
        lambda: chance.randbytes(length),
        lambda: bytes(length),
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch)[:length],
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch, worker=chance.randrange(4)) + chance.randbytes(1024),
        lambda: (
            header(chance, version=WIRE_VERSION, type=chance.randrange(8), job=job, epoch=epoch, slot=chance.randrange(256))
            + chance.randbytes(length % 60000)
        ),
    ]
    return bytes(chance.choice(makers)())


def foreign(chance: random.Random, job: int, epoch: int) -> bytes:
    """What is no answer of this epoch's switch: random, of another epoch, job or version, cut short or too long."""
    length = chance.choice([0, 1, 3, 23, 24, 1047, 1048, 1049, 65507, chance.randrange(2000)])
    makers: list[Callable[[], bytes | bytearray]] = [
        lambda: chance.randbytes(length),
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch - 1) + chance.randbytes(1024),
        lambda: header(chance, version=WIRE_VERSION, job=job + 1, epoch=epoch) + chance.randbytes(1024),
        lambda: header(chance, version=WIRE_VERSION ^ 1, job=job, epoch=epoch) + chance.randbytes(1024),
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch)[: length % 24],
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch) + chance.randbytes(1025 + length % 60000),
        lambda: header(chance, version=WIRE_VERSION, job=job, epoch=epoch, slot=chance.randrange(2048, 65536)) + bytes(1024),
    ]
    return bytes(chance.choice(makers)())
