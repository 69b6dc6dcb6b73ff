"""Communication that takes longer by a known time: `torchrun --nproc-per-node 2 tests/measure/known_delay.py DELAY_MS`.

The sum of each step's last bucket ends DELAY_MS later than it does. Rank 0 prints the median of its own steps.
"""

import statistics
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, WIDTH = 40, 128, 768


def delayed(delay_s: float, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    summed = allreduce_hook(dist.group.WORLD, bucket)
    if not delay_s or not bucket.is_last():
        return summed

    def later(summed: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        time.sleep(delay_s)
        return summed.value()

    return summed.then(later)


def main(delay_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 10)), bucket_cap_mb=4)
    model.register_comm_hook(delay_s, delayed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(STEPS * BATCH, WIDTH), torch.randint(0, 10, (STEPS * BATCH,)))
    ended = []
    for x, y in DataLoader(data, batch_size=BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        ended.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(f"{1e3 * statistics.median(end - begin for begin, end in pairwise(ended[9:29])):.2f} ms a step")
    del model, optimizer
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1e3)
