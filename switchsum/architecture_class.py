"""Of which class a training is: PAI's (Wang et al., IISWC 2019), and those that have come since; and which rule says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

NOT_MODELLED = "which is not modelled, so nothing can be predicted for it"


def classify(
    modules: Iterable[DistributedDataParallel], optimizers: Iterable[Optimizer], parameters: Iterable[torch.Tensor]
) -> tuple[str, str]:
    """(architecture, rule) of this process's training. `modules`: whose gradients were summed over several ranks.

    The first rule that applies decides. Nothing is imported that the training has not imported itself.
    """
    modules, optimizers, kinds = list(modules), list(optimizers), {type(parameter).__name__ for parameter in parameters}
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    sharding = sys.modules.get("torch.distributed.fsdp")
    if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in optimizers):
        return "other", f"its optimizer is a ZeroRedundancyOptimizer (ZeRO), {NOT_MODELLED}"
    if any(type(optimizer).__module__.startswith("deepspeed") for optimizer in optimizers):
        return "other", f"its optimizer is DeepSpeed's (ZeRO), {NOT_MODELLED}"
    if "FlatParameter" in kinds or (sharding is not None and sharding.FSDPModule.__subclasses__()):
        return "fsdp", f"its parameters are sharded by FSDP, {NOT_MODELLED}"
    if "DTensor" in kinds:
        return "other", f"its parameters are DTensors without FSDP (tensor parallelism), {NOT_MODELLED}"
    if ranks == 1:
        return "1w1g", "it is one process"
    if not modules:
        return "other", f"it has {ranks} ranks, but no DistributedDataParallel that sums over them, {NOT_MODELLED}"
    summed = f"DistributedDataParallel sums over {modules[0].process_group.size()} ranks"
    if any(_through_the_switch(module) for module in modules):
        return "switch", f"{summed} through the switch"
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not local.isdecimal():
        return "ddp", f"{summed}; whether on one host is not known (LOCAL_WORLD_SIZE is not set)"
    if int(local) >= ranks:
        return "allreduce-local", f"{summed}, all on one host (LOCAL_WORLD_SIZE)"
    return "allreduce-cluster", f"{summed}, {local} on this host (LOCAL_WORLD_SIZE)"


def _through_the_switch(module: DistributedDataParallel) -> bool:
    hooks = (hook for hook, _ in module._comm_hooks)
    return dist.get_backend(module.process_group) == "switchsum" or any(
        hook.__module__ == "switchsum.gradient_hook" for hook in hooks
    )
