"""Nothing listens beyond loopback unless it is told to, and what is told to says what that means."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from switchsum import cli
from switchsum.controller import options
from switchsum.embedded import EmbeddedSwitch
from switchsum.host_agent.agent import Agent, Terms
from switchsum.protos.tls import ServerTls, leaves_host
from switchsum.softswitch.daemon import SoftSwitch, exposure
from tests.controller.conftest import make_controller
from tests.controller.test_service import eventually
from tests.security.authority import Authority
from tests.security.sockets import beyond_loopback, family, listening


def test_this_test_can_see_a_socket_that_is_open_to_all() -> None:
    here = {os.getpid()}
    with socket.socket() as tcp, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        tcp.bind(("0.0.0.0", 0))
        tcp.listen()
        udp.bind(("::", 0))
        expected = {("tcp", "0.0.0.0", tcp.getsockname()[1]), ("udp6", "::", udp.getsockname()[1])}
        assert expected <= beyond_loopback(listening(here))


def test_an_embedded_switch_and_its_workers_stay_on_loopback() -> None:
    embedded = EmbeddedSwitch(2)
    try:
        kinds = {kind for kind, *_ in listening(family(embedded.pid))}
        assert kinds >= {"tcp", "udp"} or kinds >= {"tcp6", "udp"}
        before = listening({os.getpid()})
        agents: list[Agent] = []

        def join(rank: int) -> None:
            agents.append(Agent.join(Terms(controller=embedded.controller, job_name="job", rank=rank, world_size=2)))

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(agents) == 2
        assert beyond_loopback(listening(family(embedded.pid))) == set()
        assert listening({os.getpid()}) <= before  # connected sockets take from the switch alone
        for agent in agents:
            agent.close()
    finally:
        embedded.close()


@pytest.mark.slow
def test_a_benchmark_stays_on_loopback(tmp_path: Path) -> None:
    """Switch, controller and workers as `switchsum bench` starts them, Gloo's sockets included."""
    words = ["bench", "allreduce", "--workers", "2", "--size", "4K", "--repeat", "5", "--duration", "0.05"]
    seen: set[tuple[str, str, int]] = set()
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "switchsum.cli", *words], stdout=output, stderr=output)

        def ended() -> bool:
            seen.update(listening(family(process.pid)))
            return process.poll() is not None

        try:
            eventually(ended, 500.0)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "output").read_text()
    assert len(seen) > 4
    assert beyond_loopback(seen) == set()


def test_the_defaults_of_the_commands_are_on_loopback() -> None:
    for address in (cli.DEFAULT_P4RUNTIME, cli.DEFAULT_LISTEN, options.DEFAULT_LISTEN, options.DEFAULT_SWITCH):
        assert not leaves_host(address)


def test_what_leaves_loopback_is_told(authority: Authority) -> None:
    with SoftSwitch(ports=1) as switch:
        assert exposure(switch, asks_for_certificates=False) == []
    with SoftSwitch(grpc="0.0.0.0:0", ports={1: ("0.0.0.0", 0)}) as switch:
        told = exposure(switch, asks_for_certificates=False)
        assert told[0].startswith(
            f"P4Runtime listens at {switch.grpc_address} and asks nobody who they are: whoever can reach it"
        )
        assert told[1].startswith("the ports listen at 0.0.0.0: whoever can reach them can send packets into the program")
        assert exposure(switch, asks_for_certificates=True) == told[1:]
    tls = ServerTls(*authority.issue())
    process = subprocess.Popen(
        [sys.executable, "-m", "switchsum.cli", "switch", "--p4runtime", "0.0.0.0:0", "--udp-base", "0",
         "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("switch ready: P4Runtime 0.0.0.0:")
    process.terminate()
    assert process.stderr.read().startswith("warning: P4Runtime listens at 0.0.0.0:")
    assert process.wait() == 0


def test_a_controller_beyond_loopback_says_so_once(switch: SoftSwitch, caplog: pytest.LogCaptureFixture) -> None:
    with make_controller(switch, listen=("127.0.0.1:0", "0.0.0.0:0")):
        pass
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert told.getMessage().startswith("the job service listens at 0.0.0.0:0 and asks nobody who they are")
