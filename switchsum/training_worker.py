"""`python -m switchsum.training_worker ADDRESS`: a rank of `switchsum validate`, which trains and profiles as well."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchsum.measure import processor
from switchsum.measure.payload import checksums
from switchsum.measure.transports import Collective
from switchsum.measure.worker import Worker, run

if TYPE_CHECKING:
    import torch

# Of DDP: with links slower than a cluster's and models smaller, buckets are smaller, too, or there would be but one.
BUCKET_MB = 1
_PROFILE_WARMUP = 4


class TrainingWorker(Worker):
    """Trains one workload at a time, over each transport with a model of its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._trainings: dict[str, Callable[[], None]] = {}
        self._models: dict[str, torch.nn.Module] = {}

    def do_build(self, workload: str, seed: int) -> dict[str, Any]:
        """The models of one workload, the same on all ranks and over all transports."""
        for way in self._transports:
            self._trainings[way] = self._build(way, workload, seed)
        return {}

    def _build(self, way: str, workload: str, seed: int) -> Callable[[], None]:
        """Returns what takes a step."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from switchsum.measure.workloads import WORKLOADS
        from switchsum.push_pull_hook import Pusher, push_and_pull

        chosen = WORKLOADS[workload]
        torch.manual_seed(seed)
        model = chosen.model()
        self._models[way] = model
        transport = self._transports[way]
        group = transport.group if isinstance(transport, Collective) else None
        trained = DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET_MB)
        if group is None:
            trained.register_comm_hook(Pusher(transport), push_and_pull)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = chosen.batches(seed + 1 + self._rank)

        def step() -> None:
            loss = trained(*next(batches))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def do_train(self, way: str, steps: int) -> dict[str, Any]:
        """When each step began, and the last one ended, on the monotonic clock. All ranks begin together; afterwards the
        gradients hold them together."""
        import torch.distributed as dist

        step = self._trainings[way]
        dist.barrier()
        before, marks = processor.usage(), [time.monotonic_ns()]
        for _ in range(steps):
            step()
            marks.append(time.monotonic_ns())
        return {"marks_ns": marks, "usage": asdict(processor.used_since(before))}

    def do_weights(self, way: str) -> dict[str, Any]:
        """What tells whether ranks hold the same weights."""
        import torch

        with torch.no_grad():
            weights = torch.cat([parameter.flatten() for parameter in self._models[way].parameters()])
        return {"checksums": checksums(weights), "count": weights.numel()}

    def do_profile(self, way: str, workload: str, seed: int, folder: str, steps: int, link_bps: float | None) -> dict[str, Any]:
        """What `switchsum.profile` writes of a training."""
        from switchsum.profile_plan import ProfilePlan
        from switchsum.step_profiler import profile

        needed = ProfilePlan(Path(folder), workload, steps, _PROFILE_WARMUP, 1).needed
        with profile(folder, name=workload, steps=steps, warmup=_PROFILE_WARMUP, traced=1, link_bps=link_bps):
            step = self._build(way, workload, seed)
            for _ in range(needed):
                step()
        return {}


if __name__ == "__main__":
    run(TrainingWorker, sys.argv[1])
