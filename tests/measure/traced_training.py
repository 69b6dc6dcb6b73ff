"""A short training of two ranks under torch.profiler: `traced_training.py FOLDER BACKEND` leaves rank0.json.gz, rank1.json.gz.

The traces in tests/measure/traces/ of Gloo and of the switchsum backend were made with it, on loopback.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

RANKS = 2
STEPS = 3  # in the trace
WARM_UP = 2
WIDTH = 256
LAYERS = 4
BATCH = 16


def train(folder: Path, rank: int) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.Linear(WIDTH, 1))
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.6)  # two buckets
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    batches = DataLoader(torch.randn((WARM_UP + STEPS + 1) * BATCH, WIDTH), batch_size=BATCH)
    observed = ExecutionTraceObserver()
    observed.register_callback(str(folder / f"et{rank}.json"))
    when = schedule(wait=1, warmup=WARM_UP - 1, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=when,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
        execution_trace_observer=observed,
    ) as recorded:
        for batch in batches:
            optimizer.zero_grad()
            for _ in range(1 + 3 * rank):  # rank 1 is the slower one
                loss = parallel(batch).square().mean()
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
            dist.broadcast(torch.ones(10, dtype=torch.int64), 0)
            dist.barrier()
            recorded.step()


def main(folder: Path, backend: str) -> None:
    torch.set_num_threads(1)
    rank = 0 if (child := os.fork()) else 1
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    train(folder, rank)
    dist.destroy_process_group()
    if rank == 0:
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
