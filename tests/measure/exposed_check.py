"""Is the exposed share right? A training without communication, and one whose sums take a known time longer in odd steps.

`python -m tests.measure.exposed_check [--delay-ms 50] [--steps 30]` trains two ranks over Gloo on loopback under
torch.profiler, and reads the traces as `switchsum analyze` does. Exit status 0: without communication, and with one rank, the
share is 0 %, and a delay shows with at most 5 % error.
"""

import argparse
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from switchsum.measure.analysis import Analysis, RankTimes
from switchsum.measure.breakdown import StepTimes
from switchsum.measure.rows import Figure
from switchsum.measure.traces import folder

LARGEST_ERROR = 0.05
WIDTH = 512
WARM_UP = 3

Hook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def taking_longer(delay_s: float) -> Hook:
    """A hook that sums over Gloo, and odd steps' last bucket so much longer; its range tells so, as a backend's does."""
    steps = count()

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        span, ended = record_function("switchsum:all_reduce"), torch.futures.Future()
        span.__enter__()
        buffer = bucket.buffer().div_(dist.get_world_size())
        summed = dist.all_reduce(buffer, async_op=True).get_future()
        span._call_end_callbacks_on_future(ended)

        def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if longer:
                time.sleep(delay_s)
            ended.set_result(None)
            return done.value()[0]

        longer = bucket.is_last() and next(steps) % 2
        return summed.then(finish)

    return hook


def train(path: Path, rank: int, world: int, steps: int, delay_s: float | None, communicates: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/meeting", rank=rank, world_size=world)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))))
    if delay_s is not None:
        model.register_comm_hook(None, taking_longer(delay_s))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batch = torch.randn(64, WIDTH)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WARM_UP - 1, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path / f"rank{rank}.json.gz")),
    ) as recorded:
        for _ in range(WARM_UP + steps + 1):
            optimizer.zero_grad()
            with nullcontext() if communicates else model.no_sync():
                model(batch).square().mean().backward()
            optimizer.step()
            recorded.step()
    dist.destroy_process_group()


def measured(steps: int, world: int = 2, delay_s: float | None = None, communicates: bool = True) -> Analysis:
    """Train in forks, one a rank; analyze what they leave."""
    with tempfile.TemporaryDirectory() as path:
        ranks = []
        for rank in range(world):
            process = os.fork()
            if process == 0:
                status = 1
                try:
                    train(Path(path), rank, world, steps, delay_s, communicates)
                    status = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            ranks.append(process)
        ended = [os.waitpid(process, 0)[1] for process in ranks]
        if any(ended):
            raise SystemExit("a rank failed")
        return Analysis.of(folder.read(Path(path)), "exposed_check")


def told(name: str, steps: Sequence[StepTimes]) -> Figure:
    times = RankTimes(None, "", tuple(steps))
    step, exposed, share = (times.figure(each) for each in ("step_s", "exposed_s", "exposed_share"))
    print(
        f"{name:28} step {1e3 * step.mean:7.2f} ms, exposed {1e3 * exposed.mean:7.2f} +- {1e3 * exposed.ci95:.2f} ms, "
        f"{100 * share.mean:5.1f} %"
    )
    return exposed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    delay_s = asked.delay_ms / 1e3
    silent = told("no communication", measured(asked.steps, communicates=False).whole.steps)
    alone = told("one rank", measured(asked.steps, world=1).whole.steps)
    steps = measured(2 * asked.steps, delay_s=delay_s).whole.steps
    real = told("sums, even steps", [step for step in steps if step.number % 2 == 0])
    delayed = told(f"{asked.delay_ms:g} ms longer, odd steps", [step for step in steps if step.number % 2])
    risen = delayed.mean - real.mean
    error = risen / delay_s - 1
    right = silent.mean == alone.mean == 0 and abs(error) <= LARGEST_ERROR
    half = math.hypot(real.ci95, delayed.ci95)
    print(f"the delay shows as {1e3 * risen:.2f} +- {1e3 * half:.2f} ms, {100 * error:+.1f} %: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
