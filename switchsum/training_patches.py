"""Leads what a training calls to a StepProfiler: optimizers, backward passes, loaders, DistributedDataParallel, collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from switchsum.bucket_recorder import observe

if TYPE_CHECKING:
    from switchsum.step_profiler import StepProfiler


class Patches:
    """Lets a StepProfiler see what a training does, until undo(). `who`: as observe() takes it. Raises AlreadyWatched."""

    def __init__(self, profiler: StepProfiler, who: str) -> None:
        self._profiler = profiler
        self._undo: list[Callable[[], None]] = [observe(profiler.summing, who)]
        self._see_optimizers()
        self._around(torch.amp.GradScaler, "step", lambda step, scaler, optimizer, *_, **__: profiler.scaled(optimizer, step))
        self._around(torch.autograd, "backward", lambda run, *_, **__: profiler.backward(run))
        for begin in ("_prepare_trace", "_start_trace"):
            self._around(torch.autograd.profiler.profile, begin, lambda run, which: profiler.profiling(which, run))
        self._around(torch.autograd.profiler.profile, "__exit__", lambda end, which, *_: profiler.profiled(which, end))
        self._around(torch.utils.data.DataLoader, "__iter__", lambda fetch, *_: profiler.fetched(fetch))
        self._around(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", lambda fetch, *_: profiler.fetched(fetch))
        # In DDP's forward pass buffers, such as those of batch normalisation, become rank 0's.
        self._around(DistributedDataParallel, "_distributed_broadcast_coalesced", lambda wait, *_, **__: profiler.waited(wait))
        profiler.on_begin = self._see_waits  # backends written in Python have been loaded by then

    def undo(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def _around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """From now on, `call` runs instead: it gets what calls the original, and the arguments that are bound to that."""
        plain = vars(owner)[name]

        @functools.wraps(plain)
        def instead(*args: Any, **options: Any) -> Any:
            return call(lambda: plain(*args, **options), *args, **options)

        setattr(owner, name, instead)
        self._undo.append(lambda: setattr(owner, name, plain))

    def _see_optimizers(self) -> None:
        """A class of optimizers gets PyTorch's hooks around its step() when the first one is made. Ours goes around these:
        inside them a step of the profiler would end before that of the optimizer."""
        profiler, plain = self._profiler, Optimizer.profile_hook_step

        def told_of(step: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(step)
            def stepping(optimizer: Optimizer, *args: Any, **options: Any) -> Any:
                return profiler.stepping(optimizer, lambda: step(optimizer, *args, **options))

            return stepping

        Optimizer.profile_hook_step = staticmethod(lambda step: told_of(plain(step)))
        self._undo.append(lambda: setattr(Optimizer, "profile_hook_step", staticmethod(plain)))
        for kind in _subclasses(Optimizer):
            step = vars(kind).get("step")
            if getattr(step, "hooked", False):
                kind.step = told_of(step)
                self._undo.append(functools.partial(setattr, kind, "step", step))

    def _see_waits(self) -> None:
        for work in (dist.Work, *_subclasses(dist.Work)):
            if "wait" in vars(work) and not hasattr(work.wait, "__wrapped__"):
                self._around(work, "wait", lambda wait, *_, **__: self._profiler.waited(wait))


def _subclasses(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
