"""A loop around torch.distributed's all_reduce as anybody would write it, to compare `switchsum bench allreduce` with.

`python -m tests.measure.plain_loop ELEMENTS SECONDS` on each rank, with torchrun's variables. For each line of its input a rank
makes as many sums as rank 0 says that fill SECONDS, and prints their times in seconds as a JSON list.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def main(elements: int, seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    values = torch.rand(elements)
    tensor = values.clone()

    def once() -> float:
        tensor.copy_(values)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(tensor)
        return time.perf_counter() - started

    warm = [once() for _ in range(3)]
    count = torch.tensor([max(1, round(seconds / sorted(warm)[1]))])
    dist.broadcast(count, 0)
    for _ in sys.stdin:
        print(json.dumps([once() for _ in range(int(count))]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
