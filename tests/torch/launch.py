"""Runs a function of scenarios.py or programs.py on several ranks, each a process of its own, with torchrun's environment."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
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


@functools.cache
def _starter() -> socket.socket:
    """The line to the process that forks this process's ranks (starter.py), which ends when the line does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.starter", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    return ours


class Rank:
    """A rank's process, with what tests need of subprocess.Popen, whose methods these are. `stdin`, `stdout`: its pipes, the
    latter with its standard error; `returncode`: its exit status, negative for a signal, None until somebody waited for it."""

    def __init__(self, module: str, function: str, environment: dict[str, str], *, anew: bool) -> None:
        order = {"module": module, "function": function, "environment": environment, "anew": anew}
        (read, to_rank), (from_rank, write) = os.pipe(), os.pipe()
        self._told, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with told:
            socket.send_fds(_starter(), [json.dumps(order).encode()], [read, write, told.fileno()])
        os.close(read)
        os.close(write)
        self.stdin, self.stdout = os.fdopen(to_rank, "w"), os.fdopen(from_rank)
        self.returncode: int | None = None
        self.pid = self._next()
        self._printed: list[str] = []
        self._reader = threading.Thread(target=lambda: self._printed.append(self.stdout.read()), daemon=True)

    def _next(self) -> int:
        text = self._told.recv(100)
        assert text, "the process that starts ranks has ended"
        return int(text)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._next()
            except TimeoutError as error:
                raise subprocess.TimeoutExpired("rank", timeout or 0) from error
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        deadline = time.monotonic() + timeout
        self.stdin.close()
        if self._reader.ident is None:
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired("rank", timeout)
        self.wait(max(0.1, deadline - time.monotonic()))
        return self._printed[0], None

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


@contextlib.contextmanager
def started(scenario: str, ranks: int, *, anew: bool = False, **environment: str) -> Iterator[list[Rank]]:
    """The ranks' processes; whatever happens, none is left behind. `scenario`: "NAME" or "MODULE.NAME"; `anew`: each by a
    Python interpreter of its own, which loads everything, as torchrun does, instead of as a fork that has it loaded."""
    module, _, function = scenario.rpartition(".")
    port = free_port()
    processes: list[Rank] = []
    try:
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
            processes.append(Rank(f"tests.torch.{module or 'scenarios'}", function, variables, anew=anew))
        yield processes
    finally:
        for process in processes:
            process.end()


def collect(processes: list[Rank], timeout_s: float) -> list[Outcome]:
    """Wait for all ranks; a rank that is not done in time has status None."""
    began = time.monotonic()
    outcomes = []
    for process in processes:
        remaining = max(0.1, timeout_s - (time.monotonic() - began))
        try:
            output, _ = process.communicate(timeout=remaining)
            outcomes.append(Outcome(process.returncode, output, time.monotonic() - began))
        except subprocess.TimeoutExpired:
            process.end()
            output, _ = process.communicate(timeout=LIMIT_S)
            outcomes.append(Outcome(None, output, time.monotonic() - began))
    return outcomes


def run(scenario: str, ranks: int, timeout_s: float = LIMIT_S, *, anew: bool = False, **environment: str) -> list[Outcome]:
    """Run a scenario to its end."""
    with started(scenario, ranks, anew=anew, **environment) as processes:
        return collect(processes, timeout_s)


def check(outcomes: list[Outcome]) -> None:
    """Every rank must have ended well."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.status == 0, f"rank {rank} ended with {outcome.status}:\n{outcome.output}"
