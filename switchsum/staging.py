"""Sums of tensors in a GPU's memory: staged through pinned buffers on a stream beside the one that computes.

The copy out waits, on the GPU, for what was computed before; the host waits for nobody. The sum takes its place in the queue at
once, so that all ranks keep one order, and starts when the numbers have come. The copy back ends the collective's future, which
makes the waiting stream wait on the GPU, as PyTorch's own CUDA futures do.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from switchsum.host_agent.agent import Agent
from switchsum.host_agent.errors import SwitchSumError
from switchsum.works import SwitchSumWork, as_made, divide, numbers_of


class Staging:
    """The way out of and back into one device."""

    def __init__(self, device: torch.device) -> None:
        """`device`: CUDA's. With the CPU, whose streams PyTorch has in name, everything but the GPU's part can be tested."""
        self._device = device
        self._gpus = [] if device.type == "cpu" else [device]
        self._module: Any = torch.get_device_module(device)  # torch.cuda
        self._stream = self._module.Stream(device) if self._gpus else self._module.Stream()
        # One thread waits for copies, in the order in which they were issued, which is also the stream's.
        self._copies: queue.SimpleQueue[tuple[Any, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._release, name="switchsum-staging", daemon=True)
        self._thread.start()

    def sum(
        self, agent: Agent, tensor: torch.Tensor, wire_dtype: torch.dtype, divisor: int, what: str, ends: Callable[[], None]
    ) -> dist.Work:
        """`tensor` becomes the sum over all ranks, divided by `divisor`. See Agent.all_reduce; `ends`: profiled.later()."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=self._gpus)
        failures: list[Exception] = []
        pinned = torch.empty(tensor.numel(), dtype=wire_dtype, pin_memory=bool(self._gpus))
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream), torch.no_grad():
            # The cast is the GPU's work, and so is making it contiguous.
            pinned.copy_(tensor.detach().reshape(-1).to(wire_dtype), non_blocking=True)
            copied = self._module.Event()
            copied.record(self._stream)
        if self._gpus:
            tensor.record_stream(self._stream)  # its memory must not be given to others while we copy

        def done(error: SwitchSumError | None) -> None:
            ends()
            try:
                if error is not None:
                    raise error
                with self._module.stream(self._stream), as_made(tensor):
                    arrived = pinned.to(self._device, non_blocking=True)
                    if divisor != 1:
                        divide(arrived, divisor)
                    tensor.copy_(arrived.view(tensor.shape))
                    future.set_result([tensor])  # here: it records the stream that whoever waits must wait for
            except Exception as failure:  # whatever it is, it belongs to whoever waits for this sum
                failures.append(failure)
                future.set_exception(failure)

        array = numbers_of(pinned)
        self._copies.put((copied, agent.all_reduce_when_ready(array, array, what, done)))
        return SwitchSumWork(what, future.then(lambda finished: finished.value()), failures)

    def close(self) -> None:
        """End the thread, when all copies out are done."""
        self._copies.put(None)
        self._thread.join()

    def _release(self) -> None:
        while (work := self._copies.get()) is not None:
            copied, release = work
            copied.synchronize()
            release()
