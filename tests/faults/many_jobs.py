"""`python -m tests.faults.many_jobs`: eight teams of ranks on one switch, which join, sum, leave and join again for minutes.

Every sum is checked bit by bit; the slots of running jobs never overlap; a refusal says how many slots were asked for and how
many are free; at the end all slots are free, and neither controller nor switch has grown. Real processes on loopback.

As `... many_jobs team CONTROLLER SEED RANK WORLD_SIZE SECONDS SUMS GO` it is one rank, which begins when
there is a file GO.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.bmv2_topologies.switch_process import dying_with_starter
from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.errors import SwitchFull
from switchsum.host_agent.job_client import JobClient
from switchsum.host_agent.prepare import prepare
from switchsum.host_agent.quantizer import reference_sum
from switchsum.protos import job_pb2 as pb
from tests.faults import stacks

TEAMS = 8
PORTS = 24  # of the switch: one for each rank of eight teams of three
LEASE_S = 10.0
SLOT_CHOICES = (64, 256, 512, 1024)  # more than the switch has, if all are unlucky
MOST_SUMS = 200  # of a job
_ELEMENTS = 256
_READY = "ready"
_LOOK_S = 0.25
_PATIENCE_S = 120.0
_WARM_UP = 0.3  # share of the time after which memory must not grow any more
_GROWTH = 1.1
_REFUSAL = re.compile(r"asks for (\d+).*?; (\d+) of the switch's (\d+) are free")


@dataclass
class Account:
    """What happened. Memory in KiB, over time. `problems`: sentences; empty if all is as it must be."""

    jobs: int = 0
    sums: int = 0
    refusals: int = 0
    looks: int = 0
    most_jobs: int = 0
    memory: dict[str, list[int]] = field(default_factory=lambda: {"switch": [], "controller": []})
    problems: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        grown = ", ".join(f"{name} {spans[0] / 1024:.0f} to {spans[-1] / 1024:.0f} MB" for name, spans in self.memory.items())
        return (
            f"{self.jobs} jobs, {self.sums} sums checked, {self.refusals} refusals with numbers; {self.looks} looks, "
            f"up to {self.most_jobs} jobs at once; memory: {grown}"
        )


def run(seconds: float, seed: int, folder: Path, *, most_sums: int = MOST_SUMS) -> Account:
    """Eight teams for that long; the jobs that are under way then do all their sums. `folder`: for logs."""
    account = Account()
    with contextlib.ExitStack() as stack:
        switch, controller, address = _network(stack, folder)
        dice = random.Random(seed)
        ranks: dict[subprocess.Popen[bytes], Path] = {}  # with their logs
        go = folder / "go"
        for team in range(TEAMS):
            size = dice.choice((2, 2, 3))
            for rank in range(size):
                words = ["-m", "tests.faults.many_jobs", "team", address, str(seed * TEAMS + team), str(rank), str(size)]
                log = folder / f"{team}-{rank}.log"
                ranks[stack.enter_context(_process([*words, str(seconds), str(most_sums), str(go)], log))] = log
        # All at once: a job that found the switch full is refused to its other ranks for some seconds only, and one that had
        # taken longer to start would wait for the others in vain.
        for process, log in ranks.items():
            _await(process, log, _READY)
        go.touch()
        client = JobClient(address)
        stack.callback(client.close)
        deadline = time.monotonic() + seconds + _PATIENCE_S
        while any(rank.poll() is None for rank in ranks):
            _look(client.inspect(), account)
            for name, process in (("switch", switch), ("controller", controller)):
                account.memory[name].append(_resident_kib(process.pid))
            if time.monotonic() > deadline:
                for rank in (rank for rank in ranks if rank.poll() is None):
                    stacks.dump(f"rank-{rank.pid}", rank.pid, folder)
                account.problems.append(f"ranks are not at their end {_PATIENCE_S:g} s after their time; stacks: {folder}")
                break
            time.sleep(_LOOK_S)
        for log in ranks.values():
            _read(log, account)
        reply = client.inspect()
        if reply.slots_free != reply.slots_total or any(job.running for job in reply.jobs):
            account.problems.append(f"{reply.slots_free} of {reply.slots_total} slots are free at the end")
    for name, spans in account.memory.items():
        warm = spans[int(len(spans) * _WARM_UP)]
        if spans[-1] > warm * _GROWTH:
            account.problems.append(f"the {name} grew from {warm} to {spans[-1]} KiB")
    return account


def _network(stack: contextlib.ExitStack, folder: Path) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], str]:
    """Switch, controller and the controller's address."""
    log = folder / "switch.log"
    command = ["-m", "switchsum.cli", "switch", "--p4runtime", "127.0.0.1:0", "--udp-base", "0", "--ports", str(PORTS)]
    switch = stack.enter_context(_process(command, log))
    ready = _await(switch, log, r"switch ready: P4Runtime (\S+), ports (.*)\n")
    fabric = folder / "fabric.yaml"
    fabric.write_text("kind: loopback\nports:\n" + "".join(f"  {number}: {at}\n" for number, at in _ports(ready[2])))
    log = folder / "controller.log"
    command = ["-m", "switchsum.cli", "controller", "--switch", ready[1], "--fabric", str(fabric)]
    command += ["--listen", "127.0.0.1:0", "--lease", str(LEASE_S), "--state", str(folder / "controller.state")]
    controller = stack.enter_context(_process(command, log))
    return switch, controller, _await(controller, log, r"controller ready: job service (\S+),")[1]


def _ports(text: str) -> list[tuple[str, str]]:
    """(port, address) pairs of the switch's own words, "1..24 at 127.0.0.1:40001..40024" or "1=127.0.0.1:40007, ..."."""
    run = re.fullmatch(r"1\.\.(\d+) at (\S+):(\d+)\.\.\d+", text)
    if run is None:
        return re.findall(r"(\d+)=(\S+:\d+)", text)
    return [(str(port), f"{run[2]}:{int(run[3]) + port - 1}") for port in range(1, int(run[1]) + 1)]


@contextlib.contextmanager
def _process(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as opened:
        process = subprocess.Popen(
            dying_with_starter([sys.executable, *arguments]), stdout=opened, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    deadline = time.monotonic() + _PATIENCE_S
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
    return found


def _look(reply: pb.InspectReply, account: Account) -> None:
    running = sorted((job for job in reply.jobs if job.running), key=lambda job: job.slot_base)
    account.looks += 1
    account.most_jobs = max(account.most_jobs, len(running))
    for before, after in itertools.pairwise(running):
        if before.slot_base + before.slots > after.slot_base:
            account.problems.append(f"jobs {before.job_name} and {after.job_name} share slots: {reply}")
    if sum(job.slots for job in running) + reply.slots_free > reply.slots_total:
        account.problems.append(f"more slots are held and free than there are: {reply}")


def _read(log: Path, account: Account) -> None:
    """A rank's own account: its last line."""
    *_, last = log.read_text(errors="replace").splitlines() or ["nothing"]
    try:
        told: dict[str, Any] = json.loads(last)
    except ValueError:
        account.problems.append(f"{log} ends: {last}")
        return
    account.jobs += told["jobs"] if told["rank"] == 0 else 0
    account.sums += told["sums"]
    account.refusals += told["refusals"]


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def team_member(controller: str, seed: int, rank: int, size: int, seconds: float, most_sums: int, go: Path) -> dict[str, int]:
    """One rank: all of a team draw alike, so that they need no words. Raises AssertionError for what must not be."""
    prepare()
    print(_READY, flush=True)
    while not go.exists():
        time.sleep(0.05)
    dice = random.Random(seed)
    end = time.monotonic() + seconds
    told = {"rank": rank, "jobs": 0, "sums": 0, "refusals": 0}
    over = False
    for number in range(10**9):
        slots, patience_s = dice.choice(SLOT_CHOICES), dice.choice((0.0, 0.0, 3.0))
        sums, pause_s = dice.randint(most_sums // 10, most_sums), dice.uniform(0.0, 0.05)
        count, scale = dice.randint(1, 60_000), 10.0 ** dice.randint(-6, 6)
        terms = Terms(
            controller=controller,
            job_name=f"team-{seed}-{number}",
            rank=rank,
            world_size=size,
            slots=slots,
            queue_s=patience_s,
            elements=_ELEMENTS,
            timeout_s=60.0,
            peer_timeout_s=60.0,
        )
        try:
            agent = Agent.join(terms)
        except SwitchFull as error:
            found = _REFUSAL.search(str(error))
            if found is None or int(found[1]) != slots or int(found[2]) >= int(found[3]):
                raise AssertionError(f"a refusal without numbers: {error}") from None
            told["refusals"] += 1
            time.sleep(dice.uniform(0.05, 0.3))
            continue
        source = np.random.default_rng(seed + number)
        everything = (source.standard_normal((size, count), np.float32) * np.float32(scale)).astype(np.float32)
        expected = reference_sum(everything, _ELEMENTS)
        for _ in range(sums):
            assert _total(agent, everything[rank]).tobytes() == expected.tobytes(), "wrong sum"
            told["sums"] += 1
            time.sleep(pause_s)
        over = bool(_total(agent, np.array([time.monotonic() > end], np.int32))[0])
        agent.close()
        told["jobs"] += 1
        if over:
            break
    return told


def _total(agent: Agent, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    target = np.empty_like(values)
    done = threading.Event()
    errors: list[Exception | None] = []

    def finished(error: Exception | None) -> None:
        errors.append(error)
        done.set()

    agent.all_reduce(values, target, "sum", finished)
    done.wait()
    if errors[0] is not None:
        raise errors[0]
    return target


def main() -> int:
    if sys.argv[1:2] == ["team"]:
        controller, seed, rank, size, seconds, most_sums, go = sys.argv[2:]
        print(
            json.dumps(team_member(controller, int(seed), int(rank), int(size), float(seconds), int(most_sums), Path(go))),
            flush=True,
        )
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.faults.many_jobs", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="switchsum-many-jobs-"))
    account = run(options.minutes * 60, options.seed, folder)
    if not account.problems:
        shutil.rmtree(folder)
    print(account.sentence())
    for problem in account.problems[:20]:
        print(f"PROBLEM: {problem}")
    return int(bool(account.problems))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
