"""The training that faults hit: a small network under DistributedDataParallel, on data that follow from rank and step.

Each step also sums integers whose total is known, so that one wrong sum is told at once; the weights at the end tell the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHORT_STEPS, LONG_STEPS = 60, 180
FEATURES, HIDDEN, CLASSES, BATCH = 128, 384, 10, 16
INTEGERS = 2000
# Of a weight. A sum is off by at most n/2 units of the quantizer (docs/numerics.md), some 1e-9 here, and both ways of summing
# round to float32; one missing contribution to one step moves weights by 1e-4 and more.
TOLERANCE = 2e-5
_BUCKET_MB = 0.05  # several sums a step
_GROUP_TIMEOUT_S = 40.0
_RETURN_PATIENCE_S = 30.0

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """What a rank shall do. `pause_s`: after each step, so that a training lasts. `returns`: go on summing after the last step
    until packets flow through the switch again. `folder`: where the weights go, one file a rank."""

    backend: str
    steps: int
    folder: str
    pause_s: float = 0.0
    returns: bool = False


class WrongSum(Exception):
    """The one thing that must never happen."""


def train(task: Task, tell: Tell) -> None:
    """Run it as the rank that torchrun's variables say. `tell` gets what happens, with times of CLOCK_MONOTONIC (seconds):

    {"step", "began", "ended", "packets"} after each step; {"error", "text", "at", "began", "step"} when one fails, which is
    raised again; {"finished", "packets"} at the end.
    """
    step, began = -1, time.monotonic()
    try:
        dist.init_process_group(task.backend, timeout=timedelta(seconds=_GROUP_TIMEOUT_S))
        network = new_network()
        for step in range(task.steps):
            began = time.monotonic()
            network.step(step)
            tell({"step": step, "began": began, "ended": time.monotonic(), "packets": packets_sent()})
            if task.pause_s:
                time.sleep(task.pause_s)
            if step + 1 == SHORT_STEPS or step + 1 == task.steps:
                network.save(Path(task.folder), step + 1)
        if task.returns:
            _sum_until_packets_flow()
        tell({"finished": time.monotonic(), "packets": packets_sent()})
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        tell({"error": type(error).__name__, "text": text[:2500], "at": time.monotonic(), "began": began, "step": step})
        raise
    dist.destroy_process_group()


class Network:
    """The model and its optimizer on one rank of a group."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
        self._parallel = DistributedDataParallel(self.model, bucket_cap_mb=_BUCKET_MB)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self._rank, self._size = dist.get_rank(), dist.get_world_size()

    def step(self, number: int) -> None:
        """Raises WrongSum, or what the backend raises."""
        source = torch.Generator().manual_seed(number * 100 + self._rank)
        inputs = torch.randn(BATCH, FEATURES, generator=source)
        targets = torch.randint(CLASSES, (BATCH,), generator=source)
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._parallel(inputs), targets).backward()
        check_integers(number, self._rank, self._size)
        self._optimizer.step()

    def save(self, folder: Path, steps: int) -> None:
        """In one step: a rank may be killed at any time."""
        path = weights_path(folder, self._rank, steps)
        with path.with_suffix(".new").open("wb") as file:
            np.save(file, torch.cat([each.detach().view(-1) for each in self.model.parameters()]).numpy())
        path.with_suffix(".new").rename(path)


def new_network() -> Network:
    torch.set_num_threads(1)
    return Network()


def weights_path(folder: Path, rank: int, steps: int) -> Path:
    return folder / f"weights-{rank}-{steps}.npy"


def check_integers(number: int, rank: int, size: int) -> None:
    """Sum integers that differ by rank, step and place; raises WrongSum if the total is not what it must be."""
    places = torch.arange(INTEGERS, dtype=torch.int32)
    values = places * (number + 1) + rank * 1000
    dist.all_reduce(values)
    if not torch.equal(values, places * (number + 1) * size + 1000 * size * (size - 1) // 2):
        raise WrongSum(f"rank {rank}: integers of step {number} were summed wrongly")


def packets_sent() -> int:
    """Through the switch, by this process's group; 0 over plain Gloo."""
    if dist.get_backend() != "switchsum":
        return 0
    import switchsum

    return switchsum.statistics().packets_sent


def _sum_until_packets_flow() -> None:
    """All ranks leave after the same sum: the first at whose start packets have flowed on each of them."""
    before = packets_sent()
    deadline = time.monotonic() + _RETURN_PATIENCE_S
    while True:
        flows = torch.tensor([int(packets_sent() > before), int(time.monotonic() > deadline)], dtype=torch.int32)
        dist.all_reduce(flows)
        if flows[0] == dist.get_world_size() or flows[1]:
            return
        time.sleep(0.05)
