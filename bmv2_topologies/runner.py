"""Runs a command in every worker of a rack, under torchrun's conventions, and says how it went."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies import namespaces, state
from switchsum.bmv2_topologies.captures import Captures
from switchsum.bmv2_topologies.rack import INTERFACE, MANAGEMENT_INTERFACE, namespace_of
from switchsum.bmv2_topologies.switch_process import dying_with_starter, end, how_it_ended

MASTER_PORT = 29500  # torchrun's
# When one worker has failed, the others are given this long to notice and to say so: more than twice the controller's lease.
GRACE_S = 15.0
_LOOK_S = 0.2  # how often the rest of the rack is looked at
_READ_BYTES = 65536
_DRAIN_S = 5.0  # for output that is there when the last worker has ended
_MARK = "SWITCHSUM_RACK_RUN"  # environment variable by which we know our processes

Show = Callable[[str, str], None]  # worker's name, a line that it printed
Tell = Callable[[str], None]  # a sentence about a failure, as soon as it is known


@dataclass(eq=False)
class _Run:
    name: str
    rank: int
    process: subprocess.Popen[bytes]
    rest: dict[int, bytes] = field(default_factory=dict)


def environment(rack: Mapping[str, Any], rank: int) -> dict[str, str]:
    """What torchrun would set on a host of its own for each worker, and where our controller is. `rack`: RackFile.as_json()."""
    workers = rack["workers"]
    controllers = [host["listen"] for host in (rack["controller"], rack["standby"]) if host is not None]
    managed = rack["management"] is not None
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": str(len(workers)),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": workers[0]["management_address" if managed else "address"],
        "MASTER_PORT": str(MASTER_PORT),
        **({"SWITCHSUM_CONTROLLER": ",".join(controllers)} if controllers else {}),
        "SWITCHSUM_DATA_ADDRESS": workers[rank]["address"],
        # A host's name may resolve to an address of elsewhere.
        "GLOO_SOCKET_IFNAME": MANAGEMENT_INTERFACE if managed else INTERFACE,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }


def named_host(name: str, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` where the host's name is `name`, so that errors can call the worker by it."""
    return ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"', name, *command]


def _show_line(show: Show, run: _Run, line: bytes) -> None:
    show(run.name, line.decode(errors="replace").rstrip("\r"))


class Workers:
    """The command at work. As a context manager it leaves no process behind, grandchildren included. Main thread only."""

    def __init__(self, rack: Mapping[str, Any], command: Sequence[str]) -> None:
        """Start `command` in every worker. Raises NetworkError when it cannot be run at all."""
        self._rack = rack
        self._mark = uuid.uuid4().hex
        self._selector = selectors.DefaultSelector()
        self._runs: list[_Run] = []
        try:
            for worker in rack["workers"]:
                self._start(worker, command)
        except BaseException:
            self.close()
            raise

    def _start(self, worker: Mapping[str, Any], command: Sequence[str]) -> None:
        namespace = namespace_of(self._rack["name"], worker["name"])
        process = subprocess.Popen(
            dying_with_starter(named_host(worker["name"], namespaces.command_inside(namespace, command))),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment(self._rack, worker["rank"]), _MARK: self._mark},
            process_group=0,  # a terminal's Ctrl-C reaches only us, and we pass it on
        )
        run = _Run(worker["name"], worker["rank"], process)
        self._runs.append(run)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, run)

    def wait(self, show: Show, tell: Tell, rack_failure: Callable[[], str | None]) -> int:
        """Until all have ended; returns the first failing one's exit status. `rack_failure` says what of the rack has ended.

        After the first failure, of a worker or of the rack, the others have GRACE_S to end by themselves.
        """
        deadline: float | None = None
        result = 0
        waiting = list(self._runs)
        rack_failed = False
        while waiting:
            self._pump(show, _LOOK_S)
            for run in list(waiting):
                status = run.process.poll()
                if status is None:
                    continue
                waiting.remove(run)
                if status != 0:
                    self._pump(show, 0)  # its last words first
                    tell(f"worker {run.name} (rank {run.rank}) {how_it_ended(status)}")
                    result = result or (status if status > 0 else 128 - status)
            if not rack_failed and (failure := rack_failure()) is not None:
                rack_failed = True
                tell(failure)
                result = result or 1
            if result and deadline is None:
                deadline = time.monotonic() + GRACE_S
            if deadline is not None and waiting and time.monotonic() > deadline:
                late = ", ".join(run.name for run in waiting)
                tell(f"{late} went on for {GRACE_S:g} s more and {'was' if len(waiting) == 1 else 'were'} stopped")
                end([run.process for run in waiting])
                waiting = []
        self._drain(show)
        return result

    def _pump(self, show: Show, wait_s: float) -> None:
        """Show whole lines that have arrived."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return
        for key, _ in self._selector.select(wait_s):
            run: _Run = key.data
            chunk = os.read(key.fd, _READ_BYTES)  # one each time, so that whoever prints without end holds up nobody
            *lines, rest = (run.rest.pop(key.fd, b"") + chunk).split(b"\n")
            if not chunk:
                self._selector.unregister(key.fileobj)
            if rest and (not chunk or len(rest) > _READ_BYTES):
                lines.append(rest)
            elif rest:
                run.rest[key.fd] = rest
            for line in lines:
                _show_line(show, run, line)

    def _drain(self, show: Show) -> None:
        """Show what has come until now, and lines that were never finished. The pipes may stay open in a child of a child."""
        ready = True
        deadline = time.monotonic() + _DRAIN_S
        while ready and time.monotonic() < deadline:
            ready = bool(self._selector.get_map()) and bool(self._selector.select(0))
            self._pump(show, 0)
        for run in self._runs:
            for line in run.rest.values():
                _show_line(show, run, line)
            run.rest.clear()

    def interrupt(self, show: Show) -> None:
        """Pass Ctrl-C on, and show what they say to it."""
        for run in self._runs:
            if run.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(run.process.pid, signal.SIGINT)
        deadline = time.monotonic() + GRACE_S / 3
        while any(run.process.poll() is None for run in self._runs) and time.monotonic() < deadline:
            self._pump(show, _LOOK_S)
        self._drain(show)

    def close(self) -> None:
        """End them and whatever they started."""
        end([run.process for run in self._runs])
        for run in self._runs:
            namespace = namespace_of(self._rack["name"], run.name)
            with suppress(namespaces.NetworkError):
                state.kill([pid for pid in namespaces.processes(namespace) if self._is_ours(pid)])
            for pipe in (run.process.stdout, run.process.stderr):
                if pipe is not None:
                    pipe.close()
        self._selector.close()

    def _is_ours(self, pid: int) -> bool:
        """Whether we started a process, or one that did: others may use the rack, too."""
        with suppress(OSError):
            return f"{_MARK}={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    rack: Mapping[str, Any],
    command: Sequence[str],
    show: Show,
    tell: Tell,
    rack_failure: Callable[[], str | None],
    captures: Captures | None = None,
) -> int:
    """`command` in every worker; returns the exit status. Raises KeyboardInterrupt on Ctrl-C, after the workers have had it."""
    with captures or nullcontext(), Workers(rack, command) as workers:
        try:
            return workers.wait(show, tell, rack_failure)
        except KeyboardInterrupt:
            workers.interrupt(show)
            raise
