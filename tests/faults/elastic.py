"""A run under torchrun: the agents of all hosts restart their workers after the fault, which join again and finish.

Also the program of those workers: `python -m tests.faults.elastic FOLDER STEPS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.course import LIMIT_S, Course
from tests.faults.ground import Blow, Ground
from tests.faults.plan import Plan
from tests.faults.ranks import RankProcess
from tests.faults.training import Network, new_network, packets_sent

_CHECKPOINT_STEPS = 5
_RESTARTS = 2
_LOOK_S = 0.02
_RENDEZVOUS_PORT = 100  # more than that of the ranks


def run(plan: Plan, ground: Ground, folder: Path, port: int) -> Course:
    """As course.run. `ranks` of the result are the last incarnation's; their first errors are kept."""
    course = Course(plan)
    file = ground.rack.file
    agents = []
    for rank in range(plan.workers):
        address = file.management_of(file.workers[rank].address)
        host = file.management_of(file.workers[0].address)
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(plan.workers), "--nproc-per-node", "1"]
        command += ["--max-restarts", str(_RESTARTS), "--rdzv-backend", "c10d", "--rdzv-id", f"run-{plan.seed}"]
        command += ["--rdzv-endpoint", f"{host}:{port + _RENDEZVOUS_PORT}", "--local-addr", str(address)]
        command += ["--rdzv-conf", f"is_host={int(rank == 0)}"]
        command += ["-m", "tests.faults.elastic", str(folder), str(plan.steps)]
        ours = ground.environment(rank, plan.workers, plan.policy, port)
        environment = {name: value for name, value in ours.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
        with (folder / f"rank-{rank}.log").open("wb") as log:
            agents.append(
                subprocess.Popen(
                    ground.host_command(rank, command),
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            )
    try:
        _conduct(course, ground, folder, agents)
    except AssertionError as error:
        course.problems.append(str(error))
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    return course


def _conduct(course: Course, ground: Ground, folder: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    plan = course.plan
    began = time.monotonic()
    while any(agent.poll() is None for agent in agents):
        time.sleep(_LOOK_S)
        if not course.blows:
            firsts = _lives(folder, 0)
            if len(firsts) == plan.workers and all(_done(rank) >= plan.step for rank in firsts):
                time.sleep(plan.delay_s)
                course.ranks = firsts
                course.steps_before = {rank.rank: _done(rank) for rank in firsts}
                victim = firsts[plan.victims[0]]
                host = ground.rack.file.workers[_host_of(victim)].name
                course.blows.append(Blow(host, plan.scenario.strokes[0].action))
                ground.strike(course.blows[0], firsts)
        if time.monotonic() - began > LIMIT_S:
            course.hung = [number for number, agent in enumerate(agents) if agent.poll() is None]
            return
    assert course.blows, "torchrun ended before the fault"
    firsts, seconds = _lives(folder, 0), _lives(folder, 1)
    assert len(seconds) == plan.workers, f"only {len(seconds)} of {plan.workers} ranks were started again"
    for rank in seconds:
        rank.status = agents[_host_of(rank)].returncode
        earlier = next(each for each in firsts if _host_of(each) == _host_of(rank))
        rank.events = earlier.events + rank.events
    course.ranks = seconds


def _lives(folder: Path, number: int) -> list[RankProcess]:
    """The ranks that told something in their first life (0), second (1), in the order of their ranks."""
    found = []
    for path in folder.glob(f"events-{number}-*.jsonl"):
        lines = path.read_text().split("\n")[:-1]
        if lines:
            events = [json.loads(line) for line in lines]
            process = RankProcess(events[0]["rank"], events[0]["pid"])
            process.events = events
            found.append(process)
    return sorted(found, key=lambda process: process.rank)


def _host_of(process: RankProcess) -> int:
    return int(process.events[0]["host"])


def _done(process: RankProcess) -> int:
    return max((step["step"] for step in process.steps), default=-1)


def main(folder: Path, steps: int) -> None:
    """Train from the last checkpoint on, and tell what happens in a file of this life's own."""
    host = int(os.environ["SWITCHSUM_DATA_ADDRESS"].rpartition(".")[2]) - 11
    # Torchrun's own count does not rise for workers that are started again because another host's were.
    life = len(list(folder.glob(f"events-*-{host}.jsonl")))
    with (folder / f"events-{life}-{host}.jsonl").open("a", buffering=1) as file:

        def tell(event: dict[str, Any]) -> None:
            file.write(json.dumps(event) + "\n")

        tell({"rank": int(os.environ["RANK"]), "pid": os.getpid(), "host": host})
        step, began = -1, time.monotonic()
        try:
            dist.init_process_group("switchsum")
            network = new_network()
            first = _load(network, folder)
            for step in range(first, steps):
                began = time.monotonic()
                network.step(step)
                tell({"step": step, "began": began, "ended": time.monotonic(), "packets": packets_sent()})
                if dist.get_rank() == 0 and (step + 1) % _CHECKPOINT_STEPS == 0:
                    _store(network, folder, step + 1)
            network.save(folder, steps)
            tell({"finished": time.monotonic(), "packets": packets_sent()})
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            tell({"error": type(error).__name__, "text": text, "at": time.monotonic(), "began": began, "step": step})
            raise
        dist.destroy_process_group()


def _store(network: Network, folder: Path, step: int) -> None:
    torch.save({"step": step, "model": network.model.state_dict()}, folder / "checkpoint.new")
    (folder / "checkpoint.new").rename(folder / "checkpoint")


def _load(network: Network, folder: Path) -> int:
    """The step to go on with: rank 0's, which saw the last checkpoint."""
    if not (folder / "checkpoint").exists():
        return 0
    found = torch.load(folder / "checkpoint")
    network.model.load_state_dict(found["model"])
    return int(found["step"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
