"""Watches the buckets of DistributedDataParallel inside a training's ranks, and records them for `switchsum bench capture`.

Each rank writes a file of its own, a JSON object a line: what the rank is, each module that is trained, each step. A step is a
backward pass in which gradients were summed. Recording does not change what is summed (docs/payloads.md names two exceptions),
and an error in it never reaches the training: it ends the recording, with a line on standard error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from switchsum.autoload import CAPTURE_STOPPED, LOADED

Summed: TypeAlias = torch.futures.Future[torch.Tensor]
Hook = Callable[[Any, dist.GradBucket], Summed]
# Called for every bucket that is ready: it must call the function, which starts the sum, and return what that returns.
Watch = Callable[[DistributedDataParallel, dist.GradBucket, Callable[[], Summed]], Summed]
_installed = False
_watcher: str | None = None


class AlreadyWatched(RuntimeError):
    """DistributedDataParallel takes one hook, so one can watch a training at a time; the text says who does."""


class Recorder:
    """Writes the first `steps` steps of this process into a file in `folder`."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._left = folder, steps
        self._lock = threading.Lock()  # modules on several devices have a thread each in the backward pass
        self._file: TextIO | None = None
        self._told: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        # The step under way: when each bucket was ready, and what is in it; and modules of which buckets are still to come.
        self._buckets: weakref.WeakKeyDictionary[DistributedDataParallel, list[tuple[int, dict[str, Any]]]]
        self._buckets = weakref.WeakKeyDictionary()
        self._unfinished: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._pass = -1  # the backward pass whose end will call us

    def saw(self, module: DistributedDataParallel, bucket: dist.GradBucket, start: Callable[[], Summed]) -> Summed:
        """A bucket is ready, and is about to be summed."""
        now_ns = time.perf_counter_ns()
        with self._lock:
            if self._left > 0:
                try:
                    self._note(module, bucket, now_ns)
                except Exception as error:
                    self._stop(error)
        return start()

    def _note(self, module: DistributedDataParallel, bucket: dist.GradBucket, now_ns: int) -> None:
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass < 0:  # a rank without data answers those that still have some (DDP's join)
            return
        if backward_pass != self._pass:
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)
            self._pass = backward_pass
        if bucket.index() == 0:  # whatever is there is of a pass that an error has ended
            self._buckets[module] = []
            self._unfinished.add(module)
            self._tell_of(module)
        if bucket.is_last():
            self._unfinished.remove(module)
        described = _described(bucket)
        if described["size_bytes"]:  # of a sparse gradient, some row was touched
            self._buckets[module].append((now_ns, described))

    def _ended(self) -> None:
        """A backward pass has ended. It need not be the step's: checkpointed parts have one of their own inside."""
        with self._lock:
            if self._unfinished or self._left <= 0:
                return
            buckets = sorted(chain.from_iterable(self._buckets.values()), key=itemgetter(0))
            self._buckets.clear()
            if not buckets:
                return
            first_ns = buckets[0][0]
            buffers = [{**described, "at_us": round((ready_ns - first_ns) / 1e3, 1)} for ready_ns, described in buckets]
            try:
                self._write({"step": {"buffers": buffers}})
                self._left -= 1
            except Exception as error:
                self._stop(error)

    def _tell_of(self, module: DistributedDataParallel) -> None:
        if module in self._told:
            return
        self._told.add(module)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        described = {
            "class": type(module.module).__name__,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "bucket_cap_bytes": module.bucket_bytes_cap,
            "backend": dist.get_backend(module.process_group),
            "ranks": module.process_group.size(),
        }
        self._write({"module": described})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = (self._folder / f"{dist.get_rank()}-{os.getpid()}.jsonl").open("w", buffering=1)
            rank = {"rank": dist.get_rank(), "began_s": time.time(), "torch": torch.__version__}
            self._file.write(json.dumps({"rank": rank}) + "\n")
        self._file.write(json.dumps(line) + "\n")

    def _stop(self, error: Exception) -> None:
        self._left = 0
        with suppress(OSError):
            (self._folder / CAPTURE_STOPPED).write_text(str(error))
        print(f"switchsum bench capture: recording ends here, the training goes on: {error}", file=sys.stderr)


def _described(bucket: dist.GradBucket) -> dict[str, Any]:
    """A manifest's buffer. Of a sparse gradient, what Gloo sends: the values of each touched row once."""
    buffer = bucket.buffer()
    dtype = str(buffer.dtype).removeprefix("torch.")
    if buffer.is_sparse:
        values = buffer.coalesce().values()
        return {"size_bytes": values.numel() * values.element_size(), "dtype": dtype, "sparse": True}
    tensors = [gradient.numel() * gradient.element_size() for gradient in bucket.gradients() if gradient.numel()]
    return {
        "size_bytes": buffer.numel() * buffer.element_size(),
        "dtype": dtype,
        **({"tensors": tensors} if len(tensors) > 1 else {}),
    }


class _DefaultHook:
    """The one hook that DDP allows. Until the training registers its own, which is then called inside, it averages.

    It does so as DDP does without a hook (reducer.cpp of PyTorch 2.13), bit for bit: `gradients * (1 / n)` where DDP copies a
    gradient into its bucket, `gradients / n` where it need not (that gradient is a view of the bucket already, or sparse) or
    copies all at once (`batched_grad_copy`).
    """

    def __init__(self, watch: Watch, module: DistributedDataParallel) -> None:
        self._watch = watch
        self._module = weakref.ref(module)
        self._theirs: tuple[Hook, Any] | None = None
        self.working: dist.Work | None = None  # where uneven inputs are divided by the ranks that still have some: their number
        self._group = module.process_group
        self._batched = module.batched_grad_copy
        # Where the gradients of views have been accumulated since their bucket was last summed: addresses, by parameter.
        self._places: dict[int, int] = {}
        self._handles = []
        if module.gradient_as_bucket_view and not self._batched and not module._use_python_reducer:
            for parameter in module._module_parameters:
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        self._views = bool(self._handles)

    @property
    def replaced(self) -> bool:
        return self._theirs is not None

    def replace(self, hook: Hook, state: Any) -> None:
        self._theirs = hook, state
        for handle in self._handles:
            handle.remove()

    def __call__(self, state: Any, bucket: dist.GradBucket) -> Summed:
        module = self._module()
        if module is None:
            return self._sum(bucket)
        self._group = module.process_group
        return self._watch(module, bucket, lambda: self._sum(bucket))

    def _sum(self, bucket: dist.GradBucket) -> Summed:
        if self._theirs is not None:
            hook, state = self._theirs
            return hook(state, bucket)
        self._divide(bucket)
        summed = self._group.allreduce([bucket.buffer()]).get_future()
        return summed.then(lambda finished: finished.value()[0])

    def _divide(self, bucket: dist.GradBucket) -> None:
        gradients, ranks = bucket.buffer(), self._divisor()
        if gradients.is_sparse or self._batched:
            gradients.div_(ranks)
        elif self._views:
            here = _address(gradients)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if self._places.pop(id(parameter), here) == here:
                    gradient.div_(ranks)
                else:
                    gradient.mul_(1 / ranks)
        else:
            gradients.mul_(1 / ranks)

    def _divisor(self) -> int:
        if self.working is None:
            return int(self._group.size())
        self.working.wait()
        return int(self.working.get_future().value()[0].item())

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Just before DDP makes this gradient a view of its bucket, if it is none."""
        if parameter.grad is not None and parameter.grad.layout is torch.strided:
            self._places[id(parameter)] = _address(parameter.grad)


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def install(value: str) -> None:
    """Record the buckets of every DistributedDataParallel of this process. `value`: STEPS:FOLDER."""
    global _installed
    if _installed:  # `import torch` comes to autoload.register twice: by the entry point, and by importing this package for it
        return
    steps, _, folder = value.partition(":")
    recorder = Recorder(Path(folder), int(steps))
    (Path(folder) / LOADED).touch()
    _installed = True
    observe(recorder.saw, "`switchsum bench capture`")


def watcher() -> str | None:
    """Who watches this process."""
    return _watcher


def observe(watch: Watch, who: str) -> Callable[[], None]:
    """Let `watch` see the buckets of every DistributedDataParallel that this process makes, until the returned function is
    called; those made before go on being seen. `who`: what watcher() tells meanwhile. Raises AlreadyWatched."""
    global _watcher
    if _watcher is not None:
        raise AlreadyWatched(f"{_watcher} watches this training already; one can at a time")
    _watcher = who
    defaults: weakref.WeakKeyDictionary[DistributedDataParallel, _DefaultHook] = weakref.WeakKeyDictionary()
    plain_init = DistributedDataParallel.__init__
    plain_register = DistributedDataParallel.register_comm_hook
    plain_builtin = DistributedDataParallel._register_builtin_comm_hook
    plain_notify = Join.notify_join_context

    @functools.wraps(plain_init)
    def init(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        plain_init(self, *args, **options)
        if not self._comm_hooks:
            hook = _DefaultHook(watch, self)
            dist._register_comm_hook(self.reducer, None, hook)
            defaults[self] = hook

    def take(module: DistributedDataParallel, name: str, state: Any, hook: Hook) -> None:
        module.logger._set_comm_hook_name(name)
        defaults[module].replace(hook, state)

    def free(module: DistributedDataParallel) -> bool:
        return module in defaults and not defaults[module].replaced

    @functools.wraps(plain_register)
    def register(self: DistributedDataParallel, state: Any, hook: Hook) -> None:
        if free(self):
            self._check_comm_hook(hook)
            self._comm_hooks.append((hook, state))
            take(self, hook.__qualname__, state, hook)
        elif self in defaults:  # a second one: DDP says that there can be only one
            plain_register(self, state, hook)
        else:  # DDP's own, while it is being made
            plain_register(self, state, _seen_by(watch, self, hook))

    @functools.wraps(plain_builtin)
    def builtin(self: DistributedDataParallel, kind: dist.BuiltinCommHookType) -> None:
        hooks = {dist.BuiltinCommHookType.ALLREDUCE: allreduce_hook, dist.BuiltinCommHookType.FP16_COMPRESS: fp16_compress_hook}
        if free(self) and kind in hooks:
            take(self, str(kind), self.process_group, hooks[kind])
        else:
            plain_builtin(self, kind)

    @functools.wraps(plain_notify)
    def notify(joinable: Joinable) -> dist.Work | None:
        working = plain_notify(joinable)
        if working and isinstance(joinable, DistributedDataParallel) and joinable in defaults:
            defaults[joinable].working = None if joinable._divide_by_initial_world_size else working
        return working

    DistributedDataParallel.__init__ = init
    DistributedDataParallel.register_comm_hook = register
    DistributedDataParallel._register_builtin_comm_hook = builtin
    Join.notify_join_context = staticmethod(notify)

    def undo() -> None:
        global _watcher
        _watcher = None
        DistributedDataParallel.__init__ = plain_init
        DistributedDataParallel.register_comm_hook = plain_register
        DistributedDataParallel._register_builtin_comm_hook = plain_builtin
        Join.notify_join_context = staticmethod(plain_notify)

    return undo


def _seen_by(watch: Watch, module: DistributedDataParallel, hook: Hook) -> Hook:
    reference = weakref.ref(module)

    @functools.wraps(hook)
    def seen(state: Any, bucket: dist.GradBucket) -> Summed:
        present = reference()
        if present is None:
            return hook(state, bucket)
        return watch(present, bucket, lambda: hook(state, bucket))

    return seen
