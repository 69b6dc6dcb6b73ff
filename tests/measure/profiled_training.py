"""Trainings of several forms, each made twice, plainly and under switchsum.profile: `profiled_training.py FOLDER RANKS`.

Each rank leaves FOLDER/forms.rank<rank>.json: of each form, whether it ended with the same weights as without a profile, bit
for bit. The features of each form lie in FOLDER/<form>.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import switchsum

BATCH = 4
STEPS = 12
PLAN = {"warmup": 2, "steps": 3, "traced": 1}  # takes 11
TIMED = range(6, 9)


class Convolutional(nn.Module):
    """Batch normalisation has buffers, which DDP broadcasts in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.top = nn.Linear(4 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.relu(self.norm(self.conv(x))).flatten(1))


class Sequential(nn.Module):
    """Embedding, attention and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.recurrent = nn.LSTM(16, 16, batch_first=True)
        self.top = nn.Linear(16, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.top(self.recurrent(x)[0][:, -1])


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 8, sparse=True)
        self.top = nn.Linear(8, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(ids))


def labels() -> torch.Tensor:
    return torch.randint(0, 10, (BATCH,))


def convolutional() -> nn.Module:
    model = DistributedDataParallel(Convolutional())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pictures = TensorDataset(torch.randn(STEPS * BATCH, 1, 8, 8), torch.randint(0, 10, (STEPS * BATCH,)))
    for x, y in DataLoader(pictures, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def sequential() -> nn.Module:
    model = DistributedDataParallel(Sequential(), gradient_as_bucket_view=True, bucket_cap_mb=0.005)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(torch.randint(0, 100, (BATCH, 7))), labels()).backward()
        optimizer.step()
    return model


class Coalescings(TorchDispatchMode):
    """How often rows of sparse gradients were told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += "coalesce" in str(func)
        return func(*args, **(kwargs or {}))


def sparse() -> nn.Module:
    """Each step touches one row more, and rank 1 one more than rank 0. In steps that are timed, none is told from another."""
    model = DistributedDataParallel(Recommender())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = torch.arange(step + 1 + dist.get_rank())
        loss = cross_entropy(model(rows.repeat(BATCH, 2)), labels())
        with Coalescings() if step in TIMED else nullcontext() as coalescings:
            loss.backward()
        assert coalescings is None or not coalescings.number
        optimizer.step()
    return model


def compressed() -> nn.Module:
    model = DistributedDataParallel(nn.Linear(20, 10))
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(BATCH, 20)), labels()).backward()
        optimizer.step()
    return model


def accumulated() -> nn.Module:
    """Two batches a step, of which the first is not summed; and a schedule, which wraps the optimizer's step()."""
    model = DistributedDataParallel(nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = StepLR(optimizer, 3)
    numbers = TensorDataset(torch.randn(2 * STEPS * BATCH, 20))
    batches: Iterator[list[torch.Tensor]] = iter(DataLoader(numbers, batch_size=BATCH))
    for _ in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            cross_entropy(model(next(batches)[0]), labels()).backward()
        cross_entropy(model(next(batches)[0]), labels()).backward()
        optimizer.step()
        schedule.step()
    return model


def adversarial() -> nn.Module:
    """Two optimizers a step."""
    maker, judge = (DistributedDataParallel(nn.Linear(10, 10)) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (judge, maker)]
    for _ in range(STEPS):
        for sign, optimizer in zip((1, -1), optimizers, strict=True):
            optimizer.zero_grad()
            (sign * judge(maker(torch.randn(BATCH, 10))).square().mean()).backward()
            optimizer.step()
    return nn.ModuleList([maker, judge])


def scaled() -> nn.Module:
    """AMP; every third step it finds infinite gradients and leaves the optimizer's step out."""
    model = DistributedDataParallel(nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(torch.randn(BATCH, 20)), labels())
        scaler.scale(loss * (float("inf") if step % 3 == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def by_hand() -> nn.Module:
    """Gradients are averaged without DistributedDataParallel, from weights that are rank 0's."""
    model = nn.Linear(20, 10)
    for weight in model.parameters():
        dist.broadcast(weight.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(BATCH, 20)), labels()).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
    return model


def sharded() -> nn.Module:
    model = fully_shard(nn.Linear(20, 10), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(BATCH, 20)), labels()).backward()
        optimizer.step()
    return nn.ParameterList([weight.to_local().detach() for weight in model.parameters()])


# The last one leaves traces by which FSDP is recognised.
FORMS = (convolutional, sequential, sparse, compressed, accumulated, adversarial, scaled, by_hand, sharded)
RANKS_PER_HOST = {convolutional: "2", sequential: "1"}  # as torchrun would tell


def same_twice(form: Callable[[], nn.Module], folder: Path, rank: int) -> bool:
    """Whether weights and buffers are the same, bit for bit, with a profile in `folder` and without."""
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if form in RANKS_PER_HOST:
        os.environ["LOCAL_WORLD_SIZE"] = RANKS_PER_HOST[form]
    torch.manual_seed(5 + rank)
    plain = form()
    torch.manual_seed(5 + rank)
    with switchsum.profile(folder, **PLAN):
        profiled = form()
    return all(map(torch.equal, plain.state_dict().values(), profiled.state_dict().values()))


def main(folder: Path, ranks: int) -> None:
    torch.set_num_threads(1)
    rank = 0
    forked = []
    for number in range(1, ranks):  # which starts sooner than torchrun does
        process = os.fork()
        if process == 0:
            rank, forked = number, []
            break
        forked.append(process)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    equal = {form.__name__: same_twice(form, folder / form.__name__, rank) for form in FORMS}
    (folder / f"forms.rank{rank}.json").write_text(json.dumps(equal))
    dist.destroy_process_group()
    assert all(os.waitpid(process, 0)[1] == 0 for process in forked)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
