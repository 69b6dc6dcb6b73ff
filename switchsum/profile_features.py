"""Features of a training, from what a StepProfiler has recorded of it."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from switchsum.architecture_class import NOT_MODELLED, classify
from switchsum.measure import environment
from switchsum.measure.features import Bucket, Features
from switchsum.operation_counter import StepCounts
from switchsum.profile_plan import ProfilePlan
from switchsum.step_times import Clock, StepMarks, StepTimes

_MATMULS = ("mm", "addmm", "bmm", "baddbmm")
_AGREE = 0.01  # share by which two counters of FLOPs may differ


@dataclass(frozen=True)
class Job:
    """What is the same in every step; asked while its ranks are still connected."""

    architecture: str
    architecture_rule: str
    workers: int
    backend: str
    dense_bytes: int
    embedding_bytes: int
    dtype: str
    on_device: bool

    @classmethod
    def of(cls, modules: Sequence[DistributedDataParallel], optimizers: Sequence[Optimizer], counts: StepCounts) -> Job:
        """`modules`: whose gradients are summed over several ranks; `counts`: of a step that has ended."""
        parameters = parameters_of(optimizers)
        tables = counts.operations.embeddings if counts.operations is not None else set()
        sizes = {id(each): each.numel() * each.element_size() for each in parameters}
        embedded = sum(sizes[id(each)] for each in parameters if _address(each) in tables)
        dtypes: Counter[torch.dtype] = Counter()
        for each in parameters:
            dtypes[each.dtype] += sizes[id(each)]
        if counts.operations is not None and counts.operations.flops_by_dtype:
            dtypes = counts.operations.flops_by_dtype
        connected = dist.is_initialized()
        architecture, rule = classify(modules, optimizers, parameters)
        return cls(
            architecture=architecture,
            architecture_rule=rule,
            workers=modules[0].process_group.size() if modules else dist.get_world_size() if connected else 1,
            backend=str(dist.get_backend(modules[0].process_group if modules else None)) if connected else "none",
            dense_bytes=sum(sizes.values()) - embedded,
            embedding_bytes=embedded,
            dtype=str(dtypes.most_common(1)[0][0]).removeprefix("torch."),
            on_device=any(each.is_cuda for each in parameters),
        )


@dataclass
class Recorded:
    """`traced_flops`: torch.profiler's, by operation, of all `traced_s` steps; empty where there is no trace. `lines`: what a
    reader should know."""

    rank: int
    timed: list[StepMarks] = field(default_factory=list)
    traced_s: list[float] = field(default_factory=list)
    traced_flops: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def features(plan: ProfilePlan, job: Job, counts: StepCounts, recorded: Recorded, clock: Clock) -> Features:
    """Adds to recorded.lines. Raises BadFeatures."""
    clock.settle()
    times = [StepTimes.of(marks, clock) for marks in recorded.timed]
    if NOT_MODELLED in job.architecture_rule:
        recorded.lines.append(f"architecture {job.architecture}: {job.architecture_rule}")
    buckets = _buckets(recorded.timed, times, counts)
    operations = counts.operations
    theirs = _traced_flops(recorded)
    if operations is None:
        flops = sum(theirs.values())
    else:
        flops = operations.total_flops
        if recorded.traced_s:
            recorded.lines += _disagreements(counts, theirs)
    plain_s = statistics.fmean(each.step_s for each in times)
    traced_s = statistics.fmean(recorded.traced_s) if recorded.traced_s else None
    source = {
        "command": list(plan.command) or sys.argv,
        "rank": recorded.rank,
        "environment": environment.describe(),
        "steps": {"skipped": plan.warmup, "timed": len(times), "traced": len(recorded.traced_s)},
        "profiling": {
            "plain_step_s": plain_s,
            "traced_step_s": traced_s,
            "traced_to_plain": None if traced_s is None else traced_s / plain_s,
            "counted_step_s": counts.seconds,
        },
        "flops_by_operation": {} if operations is None else dict(operations.flops),
        "flops_of_profiler": theirs,
        "other_collective_bytes": None if operations is None else counts.other_collective_bytes,
        "clock": type(clock).__name__,
        "lines": list(recorded.lines),
    }
    return Features(
        name=plan.name,
        architecture=job.architecture,
        architecture_rule=job.architecture_rule,
        workers=job.workers,
        batch_size=counts.loaded_samples or counts.called_samples or 1,
        flops=float(flops),
        memory_bytes=float(operations.memory_bytes if operations is not None else 0),
        input_bytes=float(operations.copied_bytes if job.on_device and operations is not None else counts.loaded_bytes),
        dense_parameter_bytes=job.dense_bytes,
        embedding_parameter_bytes=job.embedding_bytes,
        gradient_bytes=sum(bucket.size_bytes for bucket in buckets),
        dtype=job.dtype,
        buckets=buckets,
        step_s=tuple(each.step_s for each in times),
        compute_s=tuple(each.compute_s for each in times),
        input_s=tuple(each.input_s for each in times),
        exposed_s=tuple(each.exposed_s for each in times),
        forward_s=statistics.fmean(each.forward_s for each in times),
        backward_s=statistics.fmean(each.backward_s for each in times),
        link_bps=plan.link_bps,
        backend=job.backend,
        synthetic=False,
        source=source,
    )


def parameters_of(optimizers: Sequence[Optimizer]) -> list[torch.Tensor]:
    """Each once."""
    found = (parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"])
    return list({id(parameter): parameter for parameter in found}.values())


def _address(parameter: torch.Tensor) -> int:
    try:
        return int(parameter.data_ptr())
    except RuntimeError:  # of a parameter without memory of its own, such as one that is sharded
        return 0


def _buckets(timed: Sequence[StepMarks], times: Sequence[StepTimes], counts: StepCounts) -> tuple[Bucket, ...]:
    """Of the form that most steps have, with the bytes that were on the wire in the step that was counted."""
    forms = [tuple(bucket.form for bucket in marks.buckets) for marks in timed]
    usual = Counter(forms).most_common(1)[0][0]
    alike = [each.ready_s for each, form in zip(times, forms, strict=True) if form == usual]
    wire = counts.wire
    if len(wire) != len(usual):
        wire = [(bucket.size_bytes, bucket.dtype) for bucket in timed[forms.index(usual)].buckets]
    both = zip(wire, zip(*alike, strict=True), strict=True)
    return tuple(Bucket(size, dtype, statistics.median(ready_s)) for (size, dtype), ready_s in both if size)


def _traced_flops(recorded: Recorded) -> dict[str, float]:
    """Of a step, of the operations for which torch.profiler has formulas as good as ours; the backward pass of a convolution is
    not among them."""
    steps = max(1, len(recorded.traced_s))
    matmul = sum(recorded.traced_flops[f"aten::{name}"] for name in _MATMULS)
    return {"matmul": matmul / steps, "conv2d": recorded.traced_flops["aten::conv2d"] / steps}


def _disagreements(counts: StepCounts, theirs: Mapping[str, float]) -> list[str]:
    assert counts.operations is not None
    ours = {
        "matmul": sum(counts.operations.flops[f"aten.{name}"] for name in _MATMULS),
        "conv2d": counts.operations.conv2d_flops,
    }
    return [
        f"FLOPs of {what} in a step: {counted:.4g} by operations, {theirs[what]:.4g} by torch.profiler; they should agree, "
        "unless the steps' batches differ in size"
        for what, counted in ours.items()
        if abs(theirs[what] - counted) > _AGREE * max(theirs[what], counted)
    ]
