"""Profiles a training from inside one of its processes, for `switchsum profile` and as a context manager.

A step ends with an optimizer's step. Some are skipped; one is counted, operation by operation; some are timed, undisturbed; a
few are traced by torch.profiler. Then features and trace are written, and the training goes on alone. Profiling does not change
what is computed (docs/payloads.md names two exceptions), and an error in it never reaches the training: it ends the profiling,
with a line on standard error.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from switchsum.autoload import LOADED
from switchsum.bucket_recorder import AlreadyWatched, Summed, watcher
from switchsum.operation_counter import StepCounts
from switchsum.profile_features import Job, Recorded, features, parameters_of
from switchsum.profile_plan import DEFAULT_STEPS, DEFAULT_TRACED, DEFAULT_WARMUP, LEAST_STEPS, ProfilePlan, name_like
from switchsum.step_times import Clock, DeviceClock, HostClock, ReadyBucket, StepMarks, Sums
from switchsum.training_patches import Patches

_HERE = "switchsum.profile"
_ANOTHER = "the training runs torch.profiler itself; profile it without that"
_UNCOUNTED = "so operations are not counted: FLOPs are those that torch.profiler knows, and memory_bytes is 0"

Result = TypeVar("Result")


class Rounds:
    """Which optimizer's step ends a training's step: the last one of a round, which is over when one of them steps again."""

    def __init__(self) -> None:
        self._seen: list[weakref.ref[Optimizer]] = []
        self._last: weakref.ref[Optimizer] | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        return [optimizer for reference in self._seen if (optimizer := reference()) is not None]

    def is_new(self, optimizer: Optimizer) -> bool:
        """Whether rounds were known already and this one was in none: another training begins."""
        return self._last is not None and weakref.ref(optimizer) not in self._seen

    def ends_with(self, optimizer: Optimizer) -> bool:
        """Told of every step of every optimizer, in order."""
        reference = weakref.ref(optimizer)
        if self._last is None:
            if reference not in self._seen:
                self._seen.append(reference)
                return False
            self._last = self._seen[-1]
        return reference == self._last


class StepProfiler:
    """Follows one process of a training by the calls that Patches lead here."""

    def __init__(self, plan: ProfilePlan) -> None:
        self._plan = plan
        self.on_begin: Callable[[], None] = lambda: None  # called where the first step begins
        self._over = False
        self._optimizer_steps = 0
        self._began_s = time.time()
        self._thread = 0
        # Those of the training that warm up or record. torch.profiler crashes where two of them do at once.
        self._others: weakref.WeakSet[torch.autograd.profiler.profile] = weakref.WeakSet()
        self._begin()

    def _begin(self) -> None:
        """A training begins; what was recorded of another one is forgotten."""
        self._rounds = Rounds()
        self._number = -1  # of the step under way; what came before the first optimizer's step is none
        self._clock: Clock = HostClock()
        self._marks: StepMarks | None = None  # of a step that is timed
        self._modules: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._sums: weakref.WeakKeyDictionary[DistributedDataParallel, Sums] = weakref.WeakKeyDictionary()
        self._busy = self._in_backward = self._stepping = False
        self._recorded = Recorded(_rank())
        self._counts: StepCounts | None = None
        self._counting = False
        self._job: Job | None = None
        self._trace: Any = None
        self._last_s = 0.0

    # Called by the training, through patches.

    def stepping(self, optimizer: Optimizer, step: Callable[[], Result]) -> Result:
        """An optimizer's step; one inside it is a part of it."""
        if self._over or self._stepping:
            return step()
        self._stepping = True
        try:
            result = step()
        finally:
            self._stepping = False
        self._stepped(optimizer)
        return result

    def _stepped(self, optimizer: Optimizer) -> None:
        self._optimizer_steps += 1
        try:
            if self._rounds.is_new(optimizer):
                self._leave()
                self._begin()
            if self._rounds.ends_with(optimizer):
                self._next_step()
        except Exception as error:
            self.stop(error)

    def scaled(self, optimizer: Optimizer, step: Callable[[], Result]) -> Result:
        """GradScaler.step, which leaves the optimizer's step out where gradients were not finite; a training's step it is."""
        before = self._optimizer_steps
        result = step()
        if self._optimizer_steps == before and not self._over:
            self._stepped(optimizer)
        return result

    def fetched(self, fetch: Callable[[], Result]) -> Result:
        """Waiting for a DataLoader."""
        batch = self._spent("fetches", fetch)
        if self._counting and self._counts is not None:
            try:
                self._counts.loaded(batch)
            except Exception as error:  # of a batch that is no collection, but says so
                self.stop(error)
        return batch

    def waited(self, wait: Callable[[], Result]) -> Result:
        """Blocked in a collective."""
        if not dist.is_initialized() or dist.get_world_size() == 1:  # one rank waits for nobody
            return wait()
        return self._spent("waits", wait)

    def _spent(self, on: str, call: Callable[[], Result]) -> Result:
        marks = self._marks
        if marks is None or self._busy or threading.get_ident() != self._thread:
            return call()
        self._busy, begin = True, self._clock.mark()
        try:
            return call()
        finally:
            self._busy = False
            getattr(marks, on).append((begin, self._clock.mark()))

    def backward(self, run: Callable[[], Result]) -> Result:
        """A backward pass."""
        marks = self._marks
        if marks is None or self._in_backward or threading.get_ident() != self._thread:
            return run()  # a pass inside another one, of checkpointed parts
        self._in_backward, begin = True, self._clock.mark()
        try:
            return run()
        finally:
            self._in_backward = False
            marks.passes.append((begin, self._clock.mark()))

    def summing(self, module: DistributedDataParallel, bucket: dist.GradBucket, start: Callable[[], Summed]) -> Summed:
        """A bucket is ready; `start` begins its sum."""
        begun: Callable[[Summed], object] | None = None
        if not self._over:
            try:
                begun = self._ready(module, bucket)
            except Exception as error:
                self.stop(error)
        if begun is None:
            return start()
        self._busy = True  # what the hook waits for inside is part of the sum
        try:
            summed = start()
        finally:
            self._busy = False
        try:
            begun(summed)
        except Exception as error:
            self.stop(error)
        return summed

    def _ready(self, module: DistributedDataParallel, bucket: dist.GradBucket) -> Callable[[Summed], object] | None:
        """What to do when the bucket's sum has begun."""
        if torch._C._current_graph_task_id() < 0 or module.process_group.size() == 1:
            return None  # outside a pass, this rank answers those that have more data (DDP's join)
        self._modules.add(module)
        marks, counts = self._marks, self._counts
        if self._counting and counts is not None:
            size, before = _size(bucket), counts.collective_bytes  # a sparse sum has the rows of all ranks
            return lambda _: counts.sent(*size, before)
        if marks is None:
            return None
        buffer = bucket.buffer()
        stored = buffer._values() if buffer.is_sparse else buffer
        ready = self._clock.mark()
        marks.buckets.append(ReadyBucket(int(stored.nbytes), _name(stored.dtype), ready, buffer.is_sparse))
        if bucket.index() == 0 or module not in self._sums:
            self._sums[module] = Sums()
            marks.sums.append(self._sums[module])
        sums = self._sums[module]
        if bucket.is_last():
            # DDP's own callback, which waits for the sums, will come after this one.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: setattr(sums, "computed", self._clock.mark()))

        def begun(summed: Summed) -> None:
            marks.waits.append((ready, self._clock.mark()))
            summed.add_done_callback(lambda _: sums.done.append(self._clock.mark()))

        return begun

    def profiling(self, profiler: torch.autograd.profiler.profile, start: Callable[[], Result]) -> Result:
        """A profiler warms up, or begins to record. There can be one, and under another one steps are not as they are."""
        watching = self._counting or self._marks is not None or self._trace is not None
        ours = self._trace is not None and profiler is self._trace.profiler
        if not ours:
            self._others.add(profiler)
            if watching and not self._over:
                self.stop(RuntimeError(_ANOTHER))
        return start()

    def profiled(self, profiler: torch.autograd.profiler.profile, end: Callable[[], Result]) -> Result:
        """A profiler has recorded."""
        self._others.discard(profiler)
        return end()

    # Steps.

    def _next_step(self) -> None:
        plan, now = self._plan, self._clock.mark()
        if self._marks is not None:
            self._marks.ended = now
            self._recorded.timed.append(self._marks)
            self._marks = None
        self._number += 1
        number = self._number
        if number == 0:
            self._first_step()
        if number == plan.counted:
            self._check_alone()
            self._counts, self._counting = StepCounts(self._can_count()), True
        elif self._counting and self._counts is not None:
            self._counting = False
            self._counts.end()
            if self._counts.failure:
                self._recorded.lines.append(f"an operation cannot be counted ({self._counts.failure}), {_UNCOUNTED}")
            self._job = Job.of(list(self._modules), self._rounds.optimizers, self._counts)
        elif plan.first_timed <= number < plan.first_traced:
            if number == plan.first_timed:
                self._check_alone()
            self._sums.clear()
            self._marks = StepMarks(now if number > plan.first_timed else self._clock.mark())
        elif number == plan.first_traced:
            self._check_alone()
            self._start_trace()
        elif self._trace is not None:
            if number > plan.first_traced + 1:
                self._recorded.traced_s.append(time.perf_counter() - self._last_s)
            if number == plan.end:
                self._finish()
                return
            self._trace.step()
        self._last_s = time.perf_counter()

    def _first_step(self) -> None:
        self._thread = threading.get_ident()
        self._recorded.rank = _rank()  # which the script may take back before it ends
        if any(parameter.is_cuda for parameter in parameters_of(self._rounds.optimizers)):
            self._clock = DeviceClock()
        self.on_begin()
        self._note("began")

    def _check_alone(self) -> None:
        if torch.autograd._profiler_enabled() or self._others:
            raise RuntimeError(_ANOTHER)

    def _can_count(self) -> bool:
        compiled = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        if compiled and compiled["frames"]["ok"]:
            self._recorded.lines.append(
                f"the training is compiled (torch.compile), and to see its operations would change them, {_UNCOUNTED}"
            )
            return False
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            self._recorded.lines.append(f"the training runs under a TorchDispatchMode of its own, {_UNCOUNTED}")
            return False
        return True

    def _start_trace(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=self._plan.traced, repeat=1)
        trace = torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True, with_flops=True)
        self._trace = trace
        trace.start()

    def _leave(self) -> None:
        """End whatever is under way in the middle."""
        self._marks = None
        if self._counting and self._counts is not None:
            self._counting = False
            self._counts.end()
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.stop()

    # The end.

    @property
    def _trace_path(self) -> Path:
        return self._plan.folder / f"rank{self._recorded.rank}.trace.json.gz"

    def _finish(self) -> None:
        trace, self._trace = self._trace, None
        trace.stop()
        self._recorded.traced_flops = Counter({event.key: event.flops for event in trace.key_averages() if event.flops})
        self._write()  # small beside the trace, for which the disk may be too full
        path = self._trace_path
        hidden = path.with_name(f".{os.getpid()}.{path.name}")
        try:
            trace.export_chrome_trace(str(hidden))
            hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)
        self._over = True
        self._note("complete")

    def _write(self) -> None:
        assert self._job is not None  # steps are timed after one was counted
        assert self._counts is not None
        made = features(self._plan, self._job, self._counts, self._recorded, self._clock)
        with suppress(OSError):  # a file that cannot be removed cannot be replaced either, which is told then
            self._trace_path.unlink()  # of another run, which these features are not of
        made.save(self._plan.folder / f"features.rank{self._recorded.rank}.json")

    def close(self) -> None:
        """The process, or the block that is profiled, ends; what there is of features is written."""
        if self._over:
            return
        timed, needed = len(self._recorded.timed), self._plan.needed
        try:
            self._leave()
            if timed >= LEAST_STEPS:
                self._recorded.lines.append(
                    f"it ended after {self._made} steps, so {timed} were timed and none was traced, and a full profile "
                    f"takes {needed}; let it run for longer, or ask for fewer (steps, warmup, traced)"
                )
                self._write()
            elif self._plan.notes is None:
                self._recorded.lines.append(
                    f"it made {self._made} steps, and a profile takes {needed}, so nothing was written; let it run for longer, "
                    "or ask for fewer (steps, warmup, traced)"
                )
            self._over = True
            if self._number >= 0 or self._plan.notes is None:  # a process that trains nothing need not say so to the command
                self._note("ended")
        except Exception as error:
            self.stop(error)

    @property
    def _made(self) -> int:
        """Steps of the training so far."""
        return self._number + 2 if self._number >= 0 else min(self._optimizer_steps, 1)

    def stop(self, error: Exception) -> None:
        """Profiling has met an error, and ends."""
        self._over = True
        rank = self._recorded.rank
        print(f"switchsum profile: rank {rank}: profiling ends here, the training goes on: {error}", file=sys.stderr)
        try:
            self._leave()
            self._note("failed", str(error))
        except Exception as another:  # of a disk that is full, say, once more
            print(f"switchsum profile: rank {rank}: {another}", file=sys.stderr)

    def _note(self, state: str, error: str = "") -> None:
        """Tell the command; without one, say what there is to say."""
        rank, lines = self._recorded.rank, self._recorded.lines
        if self._plan.notes is None:
            for line in lines if state in ("complete", "ended") else ():
                print(f"switchsum profile: rank {rank}: {line}", file=sys.stderr)
            return
        note = {"rank": rank, "began_s": self._began_s, "state": state, "steps": self._made, "error": error, "lines": lines}
        path = self._plan.notes / f"{rank}-{os.getpid()}.json"
        hidden = path.with_suffix(".part")
        hidden.write_text(json.dumps(note))
        hidden.replace(path)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _size(bucket: dist.GradBucket) -> tuple[int, str]:
    """Bytes and dtype; of a sparse gradient, of the rows that were touched."""
    buffer = bucket.buffer()
    with _disable_current_modes():  # to tell these rows apart is no operation of the training's
        values = buffer.coalesce().values() if buffer.is_sparse else buffer
    return int(values.nbytes), _name(values.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_installed = False


def install(text: str) -> None:
    """Profile this process. `text`: ProfilePlan.as_text(). Raises OSError where its folders are gone."""
    global _installed
    if _installed:  # `import torch` comes to autoload.register twice
        return
    plan = ProfilePlan.from_text(text)
    assert plan.notes is not None
    (plan.notes / LOADED).touch()
    _installed = True
    profiler = StepProfiler(plan)
    try:
        Patches(profiler, "`switchsum profile`")
    except AlreadyWatched as error:
        profiler.stop(error)
    atexit.register(profiler.close)


@contextmanager
def profile(
    folder: str | Path,
    *,
    name: str | None = None,
    steps: int = DEFAULT_STEPS,
    warmup: int = DEFAULT_WARMUP,
    traced: int = DEFAULT_TRACED,
    link_bps: float | None = None,
) -> Iterator[None]:
    """`with switchsum.profile("folder"): train()`, in every rank: what `switchsum profile` writes, of the training inside.

    Model, optimizer and the loop are made inside: what DistributedDataParallel sums is seen of models that it wrapped there.
    `folder` is made if need be, and files of this rank that are there are replaced. `name`: of the job; the script's without.
    `steps` are timed after `warmup` steps that are not, and `traced` come last. `link_bps`: of the worker's link, if known.
    Under `switchsum profile` or `switchsum bench capture`, which watch the training then, it does nothing but say so. Raises
    ValueError for arguments that make no sense, OSError where the folder cannot be made, and AlreadyWatched inside another one.
    """
    called = name_like(Path(sys.argv[0]).stem) if name is None else name
    plan = ProfilePlan(Path(folder).absolute(), called, steps, warmup, traced, link_bps)
    other = watcher()
    if other == _HERE:
        raise AlreadyWatched("this runs inside another switchsum.profile; one can watch a training at a time, so leave one out")
    if other is not None:
        print(f"switchsum.profile: {other} watches this training, so nothing is written to {plan.folder}", file=sys.stderr)
        yield
        return
    plan.folder.mkdir(parents=True, exist_ok=True)
    profiler = StepProfiler(plan)
    patches = Patches(profiler, _HERE)
    try:
        yield
    finally:
        profiler.close()
        patches.undo()
