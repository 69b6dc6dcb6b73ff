"""Switch and controller killed and started again in the middle of sums, which are all right: real processes throughout."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch.launch import Rank, free_port, started
from tests.torch.test_faults import LIMIT_S, Lines, command, controller_for, expanded

RANKS = 3

pytestmark = pytest.mark.slow


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


class Job:
    """Ranks that sum, and say so when the way of their sums changes."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.spoken = [Lines(rank.stdout) for rank in ranks]

    def goes(self, way: str) -> None:
        """Wait until all ranks do."""
        for lines in self.spoken:
            lines.next(f"^way: {way} in epoch")

    def ends_well(self, said: str) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank, lines in zip(self.ranks, self.spoken, strict=True):
            assert said in lines.next("times right").string, lines.seen
            assert rank.wait(LIMIT_S) == 0, lines.seen


@contextlib.contextmanager
def job(network: Network, **environment: str) -> Iterator[Job]:
    with started("sums_through_losses", RANKS, SWITCHSUM_CONTROLLER=network.address, **environment) as ranks:
        yield Job(ranks)


def test_sums_go_on_without_the_switch_and_return_to_it(network: Network) -> None:
    with job(network) as sums:
        sums.goes("switch")
        for _ in range(2):
            kill(network.switch)
            sums.goes("gloo")
            network.start_switch()
            sums.goes("switch")
        network.switch.send_signal(signal.SIGSTOP)
        sums.goes("gloo")
        network.switch.send_signal(signal.SIGCONT)
        sums.goes("switch")
        sums.ends_well("3 detours")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_lost_meanwhile_is_named(network: Network, number: signal.Signals) -> None:
    """With neither a controller nor a switch: nobody but the ranks can tell."""
    with job(network) as sums:
        sums.goes("switch")
        kill(network.controller)
        sums.goes("gloo")
        network.start_controller()
        sums.goes("switch")
        kill(network.controller)
        kill(network.switch)
        sums.goes("gloo")
        lost = sums.ranks.pop(1)
        lost.send_signal(number)
        del sums.spoken[1]
        named = rf"PeersLost: lost rank 1 \(host \S+, pid {lost.pid}\) while sums went without the switch"
        # Rank 0, which has the group's store, may be gone with its error before another rank has read there who is missing.
        gone = "PeersLost: a sum without the switch failed: .*; the group's store, in rank 0 or torchrun"
        for pattern, rank, lines in zip((named, f"{named}|{gone}"), sums.ranks, sums.spoken, strict=True):
            lines.next(pattern)
            assert rank.wait(LIMIT_S) == 1, lines.seen


def test_who_waits_goes_on_in_the_switch_alone(network: Network) -> None:
    with job(network, SWITCHSUM_ON_LOSS="wait", SWITCHSUM_JOB="patient") as sums:
        sums.goes("switch")
        kill(network.switch)
        sums.spoken[0].next("^job 'patient-[0-9a-f]{8}', rank 0: sums wait until the switch is back: .*switch")
        network.start_switch()
        sums.spoken[0].next("rank 0: sums go through the switch again, in epoch")
        sums.ends_well("1 detours, 0 sums over Gloo")


def test_who_fails_is_told_why(network: Network) -> None:
    with job(network, SWITCHSUM_ON_LOSS="fail") as sums:
        sums.goes("switch")
        kill(network.switch)
        for rank, lines in zip(sums.ranks, sums.spoken, strict=True):
            lines.next("(EpochEnded|SwitchSilent): .*the switch")
            assert rank.wait(LIMIT_S) == 1, lines.seen
