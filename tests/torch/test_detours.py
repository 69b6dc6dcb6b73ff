"""Switch and controller killed and started again in the middle of sums, which are all right: real processes throughout."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch.launch import free_port, started
from tests.torch.test_faults import LIMIT_S, Lines, command, controller_for, expanded

RANKS = 3


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        yield Network(tmp_path / "fabric.yaml", stack)


class Network:
    """A switch and a controller, each a process that can be started again where it was."""

    def __init__(self, fabric: Path, stack: contextlib.ExitStack) -> None:
        self._fabric, self._stack = fabric, stack
        self._p4runtime = f"127.0.0.1:{free_port()}"
        self._udp_base = free_port() % 20000 + 20000
        self.start_switch()
        self.controller, self.address = stack.enter_context(controller_for(self._p4runtime, fabric, "127.0.0.1:0"))

    def start_switch(self) -> None:
        options = ("--p4runtime", self._p4runtime, "--udp-base", str(self._udp_base), "--ports", str(RANKS))
        self.switch, words = self._stack.enter_context(command("switch", *options))
        ports = expanded(words.next(r"^switch ready: P4Runtime (\S+), ports (.*)")[2])
        self._fabric.write_text("kind: loopback\nports:\n" + "".join(f"  {number}: {at}\n" for number, at in ports))

    def start_controller(self) -> None:
        self.controller, _ = self._stack.enter_context(controller_for(self._p4runtime, self._fabric, self.address))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_sums_go_on_without_the_switch_and_return_to_it(network: Network) -> None:
    with started("sums_through_losses", RANKS, SWITCHSUM_CONTROLLER=network.address, SWITCHSUM_TIMEOUT="20") as ranks:
        spoken = [Lines(rank.stdout) for rank in ranks]

        def all_go(way: str) -> None:
            for lines in spoken:
                lines.next(f"^way: {way} in epoch")

        all_go("switch")
        for _ in range(2):
            kill(network.switch)
            all_go("gloo")
            network.start_switch()
            all_go("switch")
        network.switch.send_signal(signal.SIGSTOP)
        all_go("gloo")
        network.switch.send_signal(signal.SIGCONT)
        all_go("switch")
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank, lines in zip(ranks, spoken, strict=True):
            assert re.search("3 detours", lines.next("times right").string), lines.seen
            assert rank.wait(LIMIT_S) == 0, lines.seen
