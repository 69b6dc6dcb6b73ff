"""The PyTorch process group: sums through the switch, everything else through an inner Gloo group (DESIGN section 5.6).

Rules that keep a Python process group from hanging or crashing (found by experiment, torch 2.13): every method is overridden,
because the C++ base class would hold the GIL while it runs Gloo; a future that carries an exception is never handed out raw but
behind `then`, because the DDP reducer crashes on a Python exception; the base class gets (rank, size) only.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from switchsum.embedded import EmbeddedSwitch
from switchsum.host_agent.agent import Agent
from switchsum.host_agent.errors import SwitchSumError
from switchsum.host_agent.promptness import prompt
from switchsum.settings import Settings

logger = logging.getLogger(__name__)

# dtypes that the switch sums, and the dtype in which they travel; the rest goes through Gloo
WIRE_DTYPES = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
    torch.int16: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
GLOO_DTYPES = {*WIRE_DTYPES, torch.float64}

_default_group: weakref.ref[ProcessGroupSwitchSum] | None = None
_embedded: EmbeddedSwitch | None = None
_known_controller: str | None = None  # of the first group: its subgroups use the same one


class SwitchSumWork(dist.Work):
    """Handle of one sum. The C++ reducer uses only its future; Python callers wait."""

    def __init__(self, future: torch.futures.Future[list[torch.Tensor]], failures: list[Exception] | None = None) -> None:
        """`failures` gets the sum's exception, if there is one, before `future` ends."""
        super().__init__()
        self._future = future
        self._failures = failures if failures is not None else []
        self._ended = threading.Event()
        future.add_done_callback(lambda _: self._ended.set())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the sum. Raises RuntimeError with the cause when it failed; the engine bounds the time."""
        with prompt:
            self._ended.wait()  # Ctrl-C ends this wait; it would not end the future's, which is C++
            try:
                self._future.wait()
            except RuntimeError:
                for failure in self._failures:  # the future's own error buries the sentence under C++ stack traces
                    raise failure from None
                raise
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        if not self._future.done():
            return False
        try:
            self._future.value()
        except RuntimeError:
            return False
        return True

    def result(self) -> list[torch.Tensor]:
        return list(self._future.value())


@dataclass(frozen=True)
class Statistics:
    """What one process's default group has moved so far. Bytes are UDP payload."""

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    retransmissions: int
    early_repairs: int
    repairs_received: int
    stale: int
    collectives: int


class ProcessGroupSwitchSum(dist.ProcessGroup):
    """One rank's group. Made by `create_process_group`."""

    def __init__(self, agent: Agent, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._agent = agent
        self._process = os.getpid()
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("switchsum-gloo", store), rank, size, timeout)
        self._gloo._set_sequence_number_for_group()
        # Functional collectives and DeviceMesh ask the group for its device's backend by name.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        atexit.register(_shut_down, weakref.ref(self))

    def getBackendName(self) -> str:
        return "switchsum"

    def statistics(self) -> Statistics:
        """Counters of this group's packets."""
        counters = self._agent.counters()
        return Statistics(
            bytes_sent=counters["bytes_sent"],
            bytes_received=counters["bytes_received"],
            packets_sent=counters["packets_sent"],
            packets_received=counters["packets_received"],
            retransmissions=counters["timeouts"] + counters["early_repairs"],
            early_repairs=counters["early_repairs"],
            repairs_received=counters["repairs_received"],
            stale=counters["stale"],
            collectives=counters["collectives"],
        )

    def start_profile(self) -> None:
        """Begin to count where this rank's data path spends its time, see Engine.start_profile."""
        self._agent.start_profile()

    def end_profile(self) -> dict[str, float]:
        """Seconds of each stage since start_profile, see Engine.end_profile."""
        return self._agent.end_profile()

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Sum (or average) in the switch; other operations, and float64, by Gloo."""
        options = opts if opts is not None else dist.AllreduceOptions()
        operation = options.reduceOp
        if len(tensors) != 1 or tensors[0].layout != torch.strided:
            return self._gloo.allreduce(tensors, options)
        tensor = tensors[0]
        if tensor.device.type != "cpu":
            raise ValueError(
                f"all_reduce of a tensor on {tensor.device}: the switchsum backend sums CPU tensors; "
                "move it with .cpu(), or use another backend for this device"
            )
        if tensor.dtype not in GLOO_DTYPES:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in GLOO_DTYPES))
            raise ValueError(f"all_reduce of {tensor.dtype} is not supported; convert the tensor to one of {names}")
        average = operation == dist.ReduceOp.AVG
        if average and not tensor.is_floating_point():
            raise ValueError(f"all_reduce(AVG) of {tensor.dtype} has no exact result; use SUM and divide as you need")
        if operation == dist.ReduceOp.SUM or average:
            if tensor.dtype in WIRE_DTYPES:
                with prompt:
                    return self._sum(tensor, average, waits=not options.asyncOp)
            if average:
                return self._average_by_gloo(tensor)
        return self._gloo.allreduce(tensors, options)

    def _sum(self, tensor: torch.Tensor, average: bool, waits: bool) -> dist.Work:
        """`waits`: whether the caller waits for the sum anyway, and so may move its packets itself."""
        if os.getpid() != self._process:
            raise SwitchSumError(
                "all_reduce in a process that was forked from a rank: threads and sockets of a process group do not survive a "
                "fork; call it in the rank itself"
            )
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        failures: list[Exception] = []
        wire_dtype = WIRE_DTYPES[tensor.dtype]
        in_place = tensor.dtype == wire_dtype and tensor.is_contiguous()
        carried = (tensor if in_place else tensor.to(wire_dtype).contiguous()).detach().view(-1)

        def done(error: SwitchSumError | None) -> None:
            try:
                if error is not None:
                    raise error
                with torch.no_grad():
                    if average:
                        carried.div_(self.size())
                    if not in_place:
                        tensor.copy_(carried.view(tensor.shape))
                future.set_result([tensor])
            except Exception as failure:  # whatever it is, it belongs to whoever waits for this sum
                failures.append(failure)
                future.set_exception(failure)

        if carried.numel() == 0:
            done(None)
        else:
            what = "average" if average else "sum"
            description = f"all_reduce({what}) of {str(tensor.dtype).removeprefix('torch.')}[{tensor.numel()}]"
            array = carried.numpy()
            start = self._agent.all_reduce_now if waits else self._agent.all_reduce
            # A tensor that travels as a copy is known by where it lies itself; the copy's place is chance.
            start(array, array, description, done, tensor.data_ptr())
        if future.done() and not failures:  # summed already: nothing is left that could fail
            return SwitchSumWork(future, failures)
        return SwitchSumWork(future.then(lambda finished: finished.value()), failures)

    def _average_by_gloo(self, tensor: torch.Tensor) -> dist.Work:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        size = self.size()

        def divide(finished: torch.futures.Future[Any]) -> list[torch.Tensor]:
            finished.value()
            return [tensor.div_(size)]

        return SwitchSumWork(self._gloo.allreduce([tensor], options).get_future().then(divide))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """One sum after the other; they queue without gaps."""
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        works = [self.allreduce([tensor], options) for tensor in tensors]
        together = torch.futures.collect_all([work.get_future() for work in works])
        return SwitchSumWork(together.then(lambda finished: [tensors_of.value()[0] for tensors_of in finished.value()]))

    def shutdown(self) -> None:
        """Leave the job and free sockets and threads; what is pending ends with an error."""
        if os.getpid() == self._process:  # a forked child that ends must not take its parent out of the job
            self._agent.close()

    def abort(self) -> None:
        self.shutdown()
        self._gloo.abort()

    def monitored_barrier(self, *arguments: Any, **options: Any) -> Any:
        return self._gloo.monitored_barrier(*arguments, **options)

    def _set_sequence_number_for_group(self) -> None:
        self._gloo._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._gloo._get_sequence_number_for_group())


def _through_gloo(name: str, gloo_names: tuple[str, ...]) -> Callable[..., Any]:
    def method(self: ProcessGroupSwitchSum, *arguments: Any, **options: Any) -> Any:
        for gloo_name in gloo_names:
            if hasattr(self._gloo, gloo_name):
                return getattr(self._gloo, gloo_name)(*arguments, **options)
        raise RuntimeError(f"this PyTorch's Gloo has no {name}; the switchsum backend supports torch 2.13")

    method.__name__ = name
    return method


# Explicit on purpose (see the module's docstring). PyTorch renamed some; both names reach Gloo's method, whichever it has.
for _name, _gloo_names in {
    "broadcast": ("broadcast",),
    "reduce": ("reduce",),
    "allgather": ("allgather",),
    "allgather_coalesced": ("allgather_coalesced",),
    "all_gather_single": ("all_gather_single", "_allgather_base"),
    "_allgather_base": ("_allgather_base", "all_gather_single"),
    "all_gather_single_coalesced": ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    "allgather_into_tensor_coalesced": ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "reduce_scatter": ("reduce_scatter",),
    "reduce_scatter_single": ("reduce_scatter_single", "_reduce_scatter_base"),
    "_reduce_scatter_base": ("_reduce_scatter_base", "reduce_scatter_single"),
    "reduce_scatter_single_coalesced": ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    "alltoall": ("alltoall",),
    "all_to_all_single": ("all_to_all_single", "alltoall_base"),
    "alltoall_base": ("alltoall_base", "all_to_all_single"),
    "send": ("send",),
    "recv": ("recv",),
    "recv_anysource": ("recv_anysource",),
    "barrier": ("barrier",),
}.items():
    setattr(ProcessGroupSwitchSum, _name, _through_gloo(_name, _gloo_names))


def _shut_down(reference: weakref.ref[ProcessGroupSwitchSum]) -> None:
    group = reference()
    if group is not None:
        group.shutdown()


def _machine() -> str:
    """Names this machine and network namespace: loopback means the same on ranks where this is equal."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"


def _find_controller(store: Any, rank: int, size: int, settings: Settings) -> str:
    """The controller's address: as configured, as known from an earlier group, or of an embedded switch started here."""
    global _embedded, _known_controller
    if settings.controller:
        return settings.controller
    if _known_controller is not None:
        return _known_controller
    store.set(f"switchsum/machine/{rank}", _machine())
    machines = [store.get(f"switchsum/machine/{other}") for other in range(size)]
    elsewhere = [other for other, machine in enumerate(machines) if machine != machines[0]]
    if elsewhere:
        raise SwitchSumError(
            "no controller is configured, and the ranks are not all on one machine "
            f"(ranks {elsewhere} are elsewhere than rank 0): set SWITCHSUM_CONTROLLER=HOST:PORT on every rank"
        )
    if rank == 0:
        try:
            _embedded = EmbeddedSwitch(ports=max(size, 8))
            store.set("switchsum/controller", f"ok {_embedded.controller}")
        except Exception as error:
            store.set("switchsum/controller", f"error {error}")
            raise
    status, _, text = store.get("switchsum/controller").decode().partition(" ")
    if status == "error":
        raise SwitchSumError(f"rank 0 could not start the embedded switch: {text}")
    return str(text)


def create_process_group(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroupSwitchSum:
    """What torch calls for `init_process_group("switchsum")` and for each `new_group` of it."""
    global _default_group, _known_controller
    settings = Settings.from_environment()
    controller = _find_controller(store, rank, size, settings)
    if rank == 0:
        store.set("switchsum/job", f"{os.urandom(8).hex()}")
    agent = Agent.join(
        controller=controller,
        job_name=store.get("switchsum/job").decode(),
        rank=rank,
        world_size=size,
        data_address=settings.data_address,
        slots=settings.slots,
        lanes=settings.lanes,
        timeout_s=settings.timeout_s,
        peer_timeout_s=timeout.total_seconds(),
    )
    try:
        group = ProcessGroupSwitchSum(agent, store, rank, size, timeout)
    except BaseException:
        agent.close()
        raise
    _known_controller = controller
    if _default_group is None or _default_group() is None:
        _default_group = weakref.ref(group)
    return group


def statistics() -> Statistics:
    """Counters of this process's default switchsum group. Raises RuntimeError if there is none."""
    group = _default_group() if _default_group is not None else None
    if group is None:
        raise RuntimeError('no switchsum process group in this process: call init_process_group("switchsum") first')
    return group.statistics()
