"""The ranks of a run, and the starter that forks them (starter.py), as the runner sees them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies.switch_process import dying_with_starter
from tests.faults.training import Task

_START_PATIENCE_S = 300.0  # the very first load compiles


class RankProcess:
    """A rank of one run. `events`: what it told, see training.py; `status`: None while it lives."""

    def __init__(self, rank: int, pid: int) -> None:
        self.rank, self.pid = rank, pid
        self.events: list[dict[str, Any]] = []
        self.status: int | None = None

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [event for event in self.events if "step" in event and "ended" in event]

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event for event in self.events if "error" in event), None)

    @property
    def finished(self) -> dict[str, Any] | None:
        return next((event for event in self.events if "finished" in event), None)


class Starter:
    """The process; use it from the main thread, as a context manager. `fd`: where its lines come from."""

    def __init__(self, log: Path) -> None:
        """Returns when it has loaded everything."""
        with log.open("ab") as opened:
            self._process = subprocess.Popen(
                dying_with_starter([sys.executable, "-m", "tests.faults.starter"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                process_group=0,
            )
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        self._rest = b""
        self._ranks: list[RankProcess] = []
        deadline = time.monotonic() + _START_PATIENCE_S
        while not any("ready" in event for event in self.read()):
            assert time.monotonic() < deadline, f"the starter was not ready within {_START_PATIENCE_S:g} s"

    def start(self, rank: int, namespace: str, host: str, environment: dict[str, str], task: Task, log: Path) -> RankProcess:
        """A rank of a new run, on a host of a rack. Returns when its process is there."""
        order = {"rank": rank, "namespace": namespace, "host": host, "environment": environment}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "task": asdict(task), "log": str(log)}).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            for event in self.read():
                if "started" in event:
                    return next(each for each in self._ranks if each.pid == event["started"])

    def read(self) -> list[dict[str, Any]]:
        """Waits for lines, and hands those of ranks on to them."""
        chunk = os.read(self.fd, 65536)
        if not chunk:
            raise RuntimeError(f"the starter of ranks ended with exit status {self._process.wait()}")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for event in events:
            if "started" in event:
                self._ranks.append(RankProcess(event["rank"], event["started"]))
            elif "exit" in event:
                next(each for each in self._ranks if each.pid == event["pid"]).status = event["exit"]
            elif "rank" in event:
                next(each for each in reversed(self._ranks) if each.rank == event["rank"]).events.append(event)
        return events

    def end_ranks(self) -> None:
        """Kill what is left of them, and wait for that."""
        for rank in self._ranks:
            if rank.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                while rank.status is None:
                    self.read()
        self._ranks.clear()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
