"""Runs a function of scenarios.py or programs.py on several ranks, each a process of its own, as torchrun does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 180.0  # compiling included, on a busy machine
ROOT = Path(__file__).resolve().parents[2]


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for first in range(20000, 60000, 50):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError(f"no {count} free ports in a row")


@dataclass
class Outcome:
    """How one rank ended."""

    status: int | None
    output: str
    seconds: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(scenario: str, ranks: int, **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks' processes; whatever happens, none is left behind. `scenario`: "NAME" or "MODULE.NAME"."""
    module, _, function = scenario.rpartition(".")
    port = free_port()
    processes = []
    for rank in range(ranks):
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")},
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        command = [sys.executable, "-m", f"tests.torch.{module or 'scenarios'}", function]
        processes.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # with the children that it may start, which hold its output open
            )
        )
    try:
        yield processes
    finally:
        for process in processes:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a rank and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def collect(processes: list[subprocess.Popen[str]], timeout_s: float) -> list[Outcome]:
    """Wait for all ranks; a rank that is not done in time has status None."""
    began = time.monotonic()
    outcomes = []
    for process in processes:
        remaining = max(0.1, timeout_s - (time.monotonic() - began))
        try:
            output, _ = process.communicate(timeout=remaining)
            outcomes.append(Outcome(process.returncode, output, time.monotonic() - began))
        except subprocess.TimeoutExpired:
            end(process)
            output, _ = process.communicate()
            outcomes.append(Outcome(None, output, time.monotonic() - began))
    return outcomes


def run(scenario: str, ranks: int, timeout_s: float = LIMIT_S, **environment: str) -> list[Outcome]:
    """Run a scenario to its end."""
    with started(scenario, ranks, **environment) as processes:
        return collect(processes, timeout_s)


def check(outcomes: list[Outcome]) -> None:
    """Every rank must have ended well."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.status == 0, f"rank {rank} ended with {outcome.status}:\n{outcome.output}"
