"""Lets tests that ask for GPUs run without any: what they want on a GPU is on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.testing._internal.distributed.distributed_test as tests
from torch.overrides import TorchFunctionMode


def _is_gpu(value: Any) -> bool:
    """Whether this, as an argument for a device, means a GPU: "cuda:1", torch.device("cuda", 1), or a rank."""
    return type(value) is int or str(value).startswith("cuda")


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0].clone()  # a copy, as it would be
        if _is_gpu(options.get("device", "cpu")):
            options["device"] = "cpu"
        if function is torch.Tensor.to and len(args) > 1 and _is_gpu(args[1]):
            args = (args[0], "cpu", *args[2:])
        return function(*args, **options)


def replaced_by_the_cpu() -> TorchFunctionMode:
    """A context manager; what it changes outside of this thread lasts as long as the process, which is a rank's."""
    module_to, ddp_init = torch.nn.Module.to, torch.nn.parallel.DistributedDataParallel.__init__

    def on_cpu(module: torch.nn.Module, *arguments: Any, **options: Any) -> torch.nn.Module:
        options.pop("device", None)
        rest = [argument for argument in arguments if not _is_gpu(argument)]
        return module_to(module, *rest, **options) if rest or options else module

    def ddp_on_cpu(
        ddp: Any, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, **options: Any
    ) -> None:
        ddp_init(ddp, module, **options)

    torch.nn.Module.to = on_cpu
    torch.nn.Module.cuda = lambda module, device=None: module
    torch.nn.parallel.DistributedDataParallel.__init__ = ddp_on_cpu
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: 0
    tests.init_multigpu_helper = lambda world_size, backend: {rank: [rank] for rank in range(world_size)}
    return _OnCpu()
