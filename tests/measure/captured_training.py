"""A training with DistributedDataParallel in most of its forms, to be captured: `captured_training.py FOLDER WHAT [RANKS]`.

Rank 0 leaves in FOLDER the weights that each form ended with, and of each the bytes of gradients of a step, and how many steps.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 3
CAP_MB = 0.02  # so that buckets are several


class Network(nn.Module):
    def __init__(self, checkpointed: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(50, 50) for _ in range(6))
        self.aside = nn.Linear(50, 10) if unused else nn.Identity()
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.checkpointed else layer(x)
            x = torch.tanh(x)
        return x


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(1000, 8, sparse=True)
        self.top = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(ids))


class Uses:
    """A hook of the training's own, with a state that counts."""

    def __init__(self) -> None:
        self.calls = 0


def their_hook(state: Uses, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    state.calls += 1
    return fp16_compress_hook(None, bucket)


def inputs(step: int) -> torch.Tensor:
    return torch.randn(4, 50, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()), requires_grad=True)


def train(
    models: Iterable[nn.Module], of_step: Callable[[int], torch.Tensor] | None = None, set_to_none: bool = True
) -> list[torch.Tensor]:
    """The weights after STEPS steps."""
    models = list(models)
    weights = [weight for model in models for weight in model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none)
        x = inputs(step)
        loss = of_step(step) if of_step is not None else sum((model(x) ** 2).mean() for model in models)
        loss.backward()
        optimizer.step()
    return weights


def wrapped(module: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=CAP_MB, **options)


def plain() -> list[torch.Tensor]:
    return train([wrapped(Network())])


def views_of_buckets() -> list[torch.Tensor]:
    return train([wrapped(Network(), gradient_as_bucket_view=True)])


def views_that_stay() -> list[torch.Tensor]:
    return train([wrapped(Network(), gradient_as_bucket_view=True)], set_to_none=False)


def views_of_which_some_stay() -> list[torch.Tensor]:
    model = wrapped(Network(unused=True), gradient_as_bucket_view=True, find_unused_parameters=True)

    def loss(step: int) -> torch.Tensor:
        for layer in model.module.layers[step % 2 :: 2]:
            layer.weight.grad = None
        with model.no_sync():
            (model(inputs(1000 + step)) ** 2).mean().backward()
        return (model(inputs(step)) ** 2).mean()

    return train([model], loss, set_to_none=False)


def copied_at_once() -> list[torch.Tensor]:
    return train([wrapped(Network(), batched_grad_copy=True)])


def static_graph() -> list[torch.Tensor]:
    return train([wrapped(Network(), static_graph=True)])


def unused_parameters() -> list[torch.Tensor]:
    return train([wrapped(Network(unused=True), find_unused_parameters=True)])


def checkpointed() -> list[torch.Tensor]:
    return train([wrapped(Network(checkpointed=True))])


def two_in_one_backward_pass() -> list[torch.Tensor]:
    return train([wrapped(Network()), wrapped(Network())])


def a_hook_of_its_own() -> list[torch.Tensor]:
    model, uses = wrapped(Network()), Uses()
    model.register_comm_hook(uses, their_hook)
    weights = train([model])
    assert uses.calls > STEPS
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(uses, their_hook)
    return weights


def a_builtin_hook() -> list[torch.Tensor]:
    model = wrapped(Network())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train([model])


def accumulated() -> list[torch.Tensor]:
    model = wrapped(Network())

    def loss(step: int) -> torch.Tensor:
        with model.no_sync():
            (model(inputs(1000 + step)) ** 2).mean().backward()
        return (model(inputs(step)) ** 2).mean()

    return train([model], loss)


def sparse() -> list[torch.Tensor]:
    """Every rank and step touches rows of its own, some of them twice."""
    model = wrapped(Recommender())

    def loss(step: int) -> torch.Tensor:
        ids = torch.arange(4 + step + dist.get_rank()).repeat(2).view(2, -1)
        return (model(ids) ** 2).mean()

    return train([model], loss)


def an_error_in_between() -> list[torch.Tensor]:
    """After a step, a backward pass fails behind its first bucket; the training goes on with the weights in a new module."""
    network = Network()
    model = wrapped(network)
    (model(inputs(0)) ** 2).mean().backward()
    handle = network.layers[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (model(inputs(0)) ** 2).mean().backward()
    handle.remove()
    del model
    return train([wrapped(network)])


def uneven(of_last_rank: int = 1, **options: Any) -> list[torch.Tensor]:
    """The last rank has nothing left after so many steps, and answers the others (DDP's join)."""
    model = wrapped(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(**options):
        for step in range(of_last_rank if dist.get_rank() == dist.get_world_size() - 1 else STEPS):
            optimizer.zero_grad()
            (model(inputs(step)) ** 2).mean().backward()
            optimizer.step()
    return list(model.parameters())


def uneven_by_those_that_work() -> list[torch.Tensor]:
    """Sums are divided by the number of ranks that still have something."""
    return uneven(0, divide_by_initial_world_size=False)


def another_group() -> list[torch.Tensor]:
    """All ranks but the last go on without it."""
    model = wrapped(Network())
    smaller = dist.new_group(list(range(dist.get_world_size() - 1)))
    if dist.get_rank() < dist.get_world_size() - 1:
        model._update_process_group(smaller)
        return train([model])
    return list(model.parameters())


FORMS = (
    plain,
    views_of_buckets,
    views_that_stay,
    views_of_which_some_stay,
    copied_at_once,
    static_graph,
    unused_parameters,
    checkpointed,
    two_in_one_backward_pass,
    a_hook_of_its_own,
    a_builtin_hook,
    accumulated,
    sparse,
    an_error_in_between,
    uneven,
    uneven_by_those_that_work,
    another_group,
)


def work(folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    if what == "forms":
        weights, forms = {}, []
        for form in FORMS:
            torch.manual_seed(5)
            ended_with = form()
            weights[form.__name__] = [weight.detach().clone() for weight in ended_with]
            steps = STEPS + 1 if form is an_error_in_between else STEPS
            forms.append([form.__name__, sum(weight.nbytes for weight in ended_with), steps])
        if dist.get_rank() == 0:
            torch.save(weights, folder / "weights.pt")
            (folder / "forms.json").write_text(json.dumps(forms))
    elif what == "alone":  # no DDP
        dist.all_reduce(torch.ones(3))
    elif what == "waits":
        plain()
        (folder / "trained").touch()
        time.sleep(60)
    elif what == "bare":  # of what is recorded, something is missing, as it might be in another PyTorch
        model = wrapped(Network())
        del model.bucket_bytes_cap
        train([model])
    elif what == "fails":  # after ranks have trained models of their own
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        model = wrapped(nn.Linear(50, 10 + dist.get_rank()), process_group=groups[dist.get_rank()])
        train([model])
        dist.barrier()  # torchrun ends all when one has failed
        raise SystemExit(7)


def main(folder: Path, what: str, ranks: int) -> None:
    """`ranks`: fork so many, which starts sooner than torchrun does; 0: torchrun has started us."""
    rank = 0
    forked = []
    for number in range(1, ranks):
        process = os.fork()
        if process == 0:
            rank, forked = number, []
            break
        forked.append(process)
    where = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": ranks} if ranks else {}
    dist.init_process_group("gloo", **where)
    work(folder, what)
    dist.destroy_process_group()
    assert all(os.waitpid(process, 0)[1] == 0 for process in forked)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
