"""The PyTorch process group: sums through the switch, everything else through an inner Gloo group (DESIGN section 5.6).

Rules that keep a Python process group from hanging or crashing (found by experiment, torch 2.13): every method is overridden,
because the C++ base class would hold the GIL while it runs Gloo; a future that carries an exception is never handed out raw but
behind `then`, because the DDP reducer crashes on a Python exception; the base class gets (rank, size) only.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from switchsum.embedded import EmbeddedSwitch
from switchsum.gloo_peers import GlooPeers
from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.credentials import IN_THE_CLEAR
from switchsum.host_agent.errors import ControllerUnreachable, SwitchFull, SwitchSumError
from switchsum.host_agent.policy import OnLoss
from switchsum.host_agent.promptness import prompt
from switchsum.log_format import log_library
from switchsum.profiling import profiled
from switchsum.rank_metrics import RankMetrics
from switchsum.settings import Settings
from switchsum.staging import Staging
from switchsum.works import Agreement, SwitchSumWork, WorkOfMany, as_made, divide, numbers_of

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
# dtypes that Gloo sums
GLOO_DTYPES = {*WIRE_DTYPES, torch.float64, torch.bool} - {torch.int16}

_LOST_S = 3.0  # for a new group to try the switch that others of this process have lost
_KEPT_NUMEL = 16  # handles of such sums are kept for a while

_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_COUNTERS = (
    "bytes_sent",
    "bytes_received",
    "packets_sent",
    "packets_received",
    "early_repairs",
    "repairs_received",
    "stale",
    "collectives",
    "detours",
    "gloo_sums",
)

_groups: weakref.WeakSet[ProcessGroupSwitchSum] = weakref.WeakSet()
_default_group: weakref.ref[ProcessGroupSwitchSum] | None = None
_embedded: EmbeddedSwitch | None = None
_metrics = RankMetrics()
_told_full = False  # whether a group was told that the switch is full: once is enough


@dataclass(frozen=True)
class Statistics:
    """What one process's default group has moved so far. Bytes are UDP payload. `detours`: how often the switch was lost;
    `gloo_sums`: sums that went without it meanwhile."""

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    retransmissions: int
    early_repairs: int
    repairs_received: int
    stale: int
    collectives: int
    detours: int
    gloo_sums: int


class ProcessGroupSwitchSum(dist.ProcessGroup):
    """One rank's group. Made by `create_process_group`."""

    def __init__(self, link: _Link | None, store: Any, rank: int, size: int, timeout: timedelta, gloo_below: int) -> None:
        """`link`: None if nothing of this group goes through the switch: it has one rank, or the switch is full.

        `gloo_below`: bytes; smaller tensors are summed by Gloo.
        """
        super().__init__(rank, size)
        self._link = link
        self._agent = agent = link.agent if link is not None else None
        self._agreement = Agreement(agent) if agent is not None else None
        self._store = store
        self._timeout = timeout
        self._gloo_below = gloo_below
        self._process = os.getpid()
        self.collectives = itertools.count(1)  # those that were issued, see profiling.profiled
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("switchsum-gloo", store), rank, size, timeout)
        self._gloo._set_sequence_number_for_group()
        # Functional collectives and DeviceMesh ask the group for its device's backend by name.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, self._gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._stagings: dict[torch.device, Staging] = {}
        self._nccl: Any = None
        self._coalescing = threading.local()
        # DDP's Join sums one number, hands the handle to C++ and drops it; its methods would be gone with the Python object.
        self._kept: deque[dist.Work] = deque(maxlen=64)
        self.controller = link.controller if link is not None else ""  # its address, while this group is a job there
        _groups.add(self)

    def getBackendName(self) -> str:
        return "switchsum"

    @property
    def agent(self) -> Agent | None:
        """This rank's membership; None if nothing of this group goes through the switch."""
        return self._agent

    def statistics(self) -> Statistics:
        """Counters of this group's packets; zeros if nothing of it goes through the switch."""
        counters = self._agent.counters() if self._agent is not None else dict.fromkeys((*_COUNTERS, "timeouts"), 0)
        return Statistics(
            retransmissions=counters["timeouts"] + counters["early_repairs"], **{name: counters[name] for name in _COUNTERS}
        )

    def start_profile(self) -> None:
        """Begin to count where this rank's data path spends its time, see Engine.start_profile."""
        self._need_agent().start_profile()

    def end_profile(self) -> dict[str, float]:
        """Seconds of each stage since start_profile, see Engine.end_profile."""
        return self._need_agent().end_profile()

    def _need_agent(self) -> Agent:
        if self._agent is None:
            raise SwitchSumError("nothing of this group goes through the switch: it has one rank, or the switch was full")
        return self._agent

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Sum (or average) in the switch; other operations, and float64, by Gloo."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        options = _options(dist.AllreduceOptions, opts)
        if tensors[0].is_cuda and self._has_nccl:
            return self._noted(self._of_device(tensors[0]).allreduce(tensors, options))
        return self._noted(self._all_reduce(tensors, options))

    def _all_reduce(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        operation, tensor = options.reduceOp, tensors[0]
        what = f"all_reduce({_name_of(operation)}) of {_described(tensors)}"
        with profiled(self, "allreduce", "all_reduce", tensors) as span:
            average = operation == dist.ReduceOp.AVG
            summed = len(tensors) == 1 and tensor.layout == torch.strided and (average or operation == dist.ReduceOp.SUM)
            self._check(tensor, average)
            if summed and self._agent is not None and self._worth_the_switch(tensor):
                if tensor.is_cuda:
                    return self._sum_on_device(self._agent, tensor, average, what, span)
                with prompt:
                    work = self._sum(self._agent, tensor, average, what, span, waits=not options.asyncOp)
                if options.asyncOp and tensor.numel() <= _KEPT_NUMEL:
                    self._kept.append(work)
                return work
            # By its own name: a rank that sums in the switch must not take this rank's agreement for a contribution.
            return self._by_gloo(f"{what} by Gloo", lambda: self._all_reduce_by_gloo(tensors, options), options, span)

    def _check(self, tensor: torch.Tensor, average: bool) -> None:
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"all_reduce of a tensor on {tensor.device}: the switchsum backend sums tensors on cpu and cuda; "
                "move it with .cpu(), or use another backend for this device"
            )
        if tensor.dtype not in {*WIRE_DTYPES, *GLOO_DTYPES}:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in {*WIRE_DTYPES, *GLOO_DTYPES}))
            raise ValueError(f"all_reduce of {tensor.dtype} is not supported; convert the tensor to one of {names}")
        if average and tensor.dtype == torch.bool:
            raise ValueError("all_reduce(AVG) of torch.bool has no result of that dtype; convert the tensor to a number's")
        self._check_process("all_reduce")

    def _check_process(self, what: str) -> None:
        if os.getpid() != self._process:
            raise SwitchSumError(
                f"{what} in a process that was forked from a rank: threads and sockets of a process group do not survive a "
                "fork; call it in the rank itself"
            )

    def _worth_the_switch(self, tensor: torch.Tensor) -> bool:
        if tensor.dtype not in WIRE_DTYPES:
            return False
        return tensor.numel() * tensor.element_size() >= self._gloo_below or tensor.dtype not in GLOO_DTYPES

    def _sum(self, agent: Agent, tensor: torch.Tensor, average: bool, what: str, span: profiled, *, waits: bool) -> dist.Work:
        """`waits`: whether the caller waits for the sum anyway, and so may move its packets itself."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        failures: list[Exception] = []
        wire_dtype = WIRE_DTYPES[tensor.dtype]
        in_place = tensor.dtype == wire_dtype and tensor.is_contiguous() and not tensor.is_neg()
        carried = (tensor if in_place else tensor.to(wire_dtype).contiguous().resolve_neg()).detach().view(-1)
        size = self.size()
        ends = span.later()

        def done(error: SwitchSumError | None) -> None:
            ends()
            try:
                if error is not None:
                    raise error
                with as_made(tensor):
                    if average:
                        divide(carried, size)
                    if not in_place:
                        # One element of those that an expanded tensor has in one place.
                        own = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
                        tensor[own].copy_(carried.view(tensor.shape)[own])
                future.set_result([tensor])
            except Exception as failure:  # whatever it is, it belongs to whoever waits for this sum
                failures.append(failure)
                future.set_exception(failure)

        array = numbers_of(carried)
        start = agent.all_reduce_now if waits else agent.all_reduce
        # A tensor that travels as a copy is known by where it lies itself; the copy's place is chance.
        start(array, array, what, done, tensor.data_ptr())
        if future.done() and not failures:  # summed already: nothing is left that could fail
            return SwitchSumWork(what, future, failures)
        return SwitchSumWork(what, future.then(lambda finished: finished.value()), failures)

    def _sum_on_device(self, agent: Agent, tensor: torch.Tensor, average: bool, what: str, span: profiled) -> dist.Work:
        staging = self._stagings.get(tensor.device)
        if staging is None:
            staging = self._stagings[tensor.device] = Staging(tensor.device)
        return staging.sum(agent, tensor, WIRE_DTYPES[tensor.dtype], self.size() if average else 1, what, span.later())

    def _all_reduce_by_gloo(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        average = options.reduceOp == dist.ReduceOp.AVG
        tensor = tensors[0]
        taken = tensor.dtype in GLOO_DTYPES and (tensor.is_floating_point() or not average)
        if taken and (tensor.layout != torch.strided or tensor.is_contiguous()):
            return self._gloo.allreduce(tensors, options)  # type: ignore[no-any-return]
        # What Gloo does not take: a dtype, an average of integers, a tensor with gaps.
        wider = tensor.to(tensor.dtype if taken else WIRE_DTYPES[tensor.dtype]).contiguous()
        wider_options = dist.AllreduceOptions()
        wider_options.reduceOp = dist.ReduceOp.SUM if average and not taken else options.reduceOp
        size = self.size()  # Gloo's thread must not hold the group, see _Item.begin

        def finish(finished: torch.futures.Future[Any]) -> list[torch.Tensor]:
            finished.value()
            with as_made(tensor):
                if average and not taken:
                    divide(wider, size)
                tensor.copy_(wider)
            return tensors

        return SwitchSumWork("all_reduce", self._gloo.allreduce([wider], wider_options).get_future().then(finish))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """One sum after the other; they queue without gaps."""
        if tensors and tensors[0].is_cuda and self._has_nccl:
            return self._noted(self._of_device(tensors[0]).allreduce_coalesced(tensors, opts))
        options = dist.AllreduceOptions()
        options.asyncOp = True
        if opts is not None:
            options.reduceOp = opts.reduceOp
        return self._noted(WorkOfMany([self._all_reduce([tensor], options) for tensor in tensors]))

    def barrier(self, opts: Any = None) -> dist.Work:
        """All ranks have come here: a one-packet sum in the switch."""
        options = _options(dist.BarrierOptions, opts)
        if self._agreement is None:
            return self._noted(self._gloo.barrier(options))
        self._check_process("barrier")
        with profiled(self, "barrier", "barrier", []) as span:
            limit = options.timeout if options.timeout > timedelta() else None
            waits = not options.asyncOp and limit is None
            work = self._agreement.run("barrier", lambda: None, waits=waits, ends=span.later())
            if limit is not None and isinstance(work, SwitchSumWork):
                work.limit = limit
            return self._noted(work)

    def _by_gloo(self, what: str, start: Callable[[], dist.Work], options: Any, span: profiled) -> dist.Work:
        """`options`: of the collective; None for the defaults."""
        self._check_process(what)
        if self._agreement is None:
            return start()
        return self._agreement.run(what, start, waits=options is not None and not options.asyncOp, ends=span.later())

    @property
    def _has_nccl(self) -> bool:
        """Whether the user asked for NCCL on CUDA tensors: "cpu:switchsum,cuda:nccl". Torch hands a Python group everything."""
        return "cuda:nccl" in str(distributed_c10d._world.pg_backend_config.get(self, ""))

    def _of_device(self, tensor: torch.Tensor | None) -> Any:
        """Who runs collectives of such tensors, other than sums."""
        if tensor is None or not tensor.is_cuda or not self._has_nccl:
            return self._gloo
        if self._nccl is None:
            if not dist.is_nccl_available():
                raise RuntimeError('"cuda:nccl" was asked for, but this PyTorch was built without NCCL; use "switchsum" alone')
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            store = dist.PrefixStore("switchsum-nccl", self._store)
            self._nccl = dist.ProcessGroupNCCL(store, self.rank(), self.size(), options)
            self._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, self._nccl)
        return self._nccl

    def _start_coalescing(self, device: torch.device) -> None:
        """What is issued until _end_coalescing has one handle. Nothing is held back for it: sums queue without gaps anyway."""
        self._coalescing.works = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalescing.works = self._coalescing.works, None
        return WorkOfMany(works)

    def _noted(self, work: dist.Work) -> dist.Work:
        works = getattr(self._coalescing, "works", None)
        if works is not None:
            works.append(work)
        return work

    def shutdown(self) -> None:
        """Leave the job and free sockets and threads; what is pending ends with an error."""
        if os.getpid() != self._process:
            return  # a forked child that ends must not take its parent out of the job
        self.controller = ""
        _metrics.remove(self._agent)
        if self._link is not None and self._agreement is not None:
            self._agreement.finish()
            try:
                self._link.close()
            finally:
                self._agreement.close()
        for staging in self._stagings.values():
            staging.close()
        if self._nccl is not None:
            self._nccl.shutdown()

    def abort(self) -> None:
        self.shutdown()
        self._gloo.abort()
        if self._nccl is not None:
            self._nccl.abort()

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """All ranks have come here, or rank 0 tells which have not. `timeout`: None for the group's."""
        limit = timeout if timeout is not None else self._timeout
        if self._agreement is not None:
            self._agreement.settle(limit.total_seconds())  # Gloo counts collectives, on each rank from the same beginning
        self._gloo.monitored_barrier(limit, wait_all_ranks)

    def _set_sequence_number_for_group(self) -> None:
        self._gloo._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._gloo._get_sequence_number_for_group())


def _options(kind: Any, given: Any) -> Any:
    """torch's callers give options, people sometimes a bare ReduceOp."""
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        options.reduceOp = given
    return options


def _name_of(operation: Any) -> str:
    """ReduceOp has no readable name of its own."""
    return next((name.lower() for name in _OPERATIONS if operation == getattr(dist.ReduceOp, name)), "unknown operation")


def _first(tensors: Any) -> torch.Tensor | None:
    """The first tensor in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if isinstance(tensors, list | tuple):
        return next((found for each in tensors if (found := _first(each)) is not None), None)
    return None


def _numel(tensors: Any) -> int:
    return tensors.numel() if isinstance(tensors, torch.Tensor) else sum(map(_numel, tensors))


def _described(tensors: Any) -> str:
    """ "float32[10]": what must be equal on all ranks, of a tensor or of nested lists of tensors."""
    first = _first(tensors)
    if first is None:
        return "nothing"
    dtype = str(first.dtype).removeprefix("torch.")
    if first.layout != torch.strided:
        return f"{str(first.layout).removeprefix('torch.')} {dtype}"
    return f"{dtype}[{_numel(tensors)}]"


def _delegated(public: str, names: tuple[str, ...], agreed: int | None) -> Callable[..., Any]:
    """A collective that Gloo (for CUDA tensors NCCL, if asked for) runs.

    `public`: its name in torch.distributed; `names`: the backend's method, newest name first; `agreed`: the argument that has
    as many elements on all ranks, None if there is none.
    """

    def method(self: ProcessGroupSwitchSum, *arguments: Any, **keywords: Any) -> Any:
        first = _first([*arguments, *keywords.values()])
        backend = self._of_device(first)

        def start() -> Any:
            return _call(backend, names, arguments, keywords)

        if backend is not self._gloo:
            return self._noted(start())
        options: Any = next((each for each in (*arguments, *keywords.values()) if hasattr(each, "asyncOp")), None)
        operation = f"({_name_of(options.reduceOp)})" if hasattr(options, "reduceOp") else ""
        root = f", root {options.rootRank}" if hasattr(options, "rootRank") else ""
        tensors = arguments[agreed] if agreed is not None and agreed < len(arguments) else None
        numbers = f" of {_described(tensors)}" if tensors is not None else ""
        # All but these two take outputs and inputs.
        out, of = (arguments[0], arguments[0]) if public in ("broadcast", "reduce") else (arguments[0], arguments[1])
        shown = [first] if first is not None else []
        with profiled(self, names[-1], public, shown, (_numel(of), _numel(out))) as span:
            return self._noted(self._by_gloo(f"{public}{operation}{numbers}{root}", start, options, span))

    return method


def _call(backend: Any, names: tuple[str, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dist.Work:
    """The backend's method of the first of these names that it has."""
    name = next((name for name in names if hasattr(backend, name)), None)
    if name is not None:
        return getattr(backend, name)(*arguments, **keywords)  # type: ignore[no-any-return]
    single = _SINGLE.get(names)
    if single is None:
        raise RuntimeError(f"this PyTorch's {backend.name()} has no {names[0]}; the switchsum backend supports torch 2.13")
    outputs, inputs, *options = arguments
    works = [_call(backend, single, (into, of, *options), keywords) for into, of in zip(outputs, inputs, strict=True)]
    return WorkOfMany(works)


_ALL_GATHER_SINGLE = ("all_gather_single", "_allgather_base")
_ALL_GATHERS = ("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
_REDUCE_SCATTER_SINGLE = ("reduce_scatter_single", "_reduce_scatter_base")
_REDUCE_SCATTERS = ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
# Gloo has these in C++, for several tensors at once, but Python cannot call them.
_SINGLE: dict[tuple[str, ...], tuple[str, ...]] = {_ALL_GATHERS: _ALL_GATHER_SINGLE, _REDUCE_SCATTERS: _REDUCE_SCATTER_SINGLE}

# Explicit on purpose (see the module's docstring). PyTorch renamed some; both names reach Gloo's method, whichever it has.
for _public, _names, _agreed in (
    ("broadcast", ("broadcast",), 0),
    ("reduce", ("reduce",), 0),
    ("all_gather", ("allgather",), 1),
    ("all_gather_coalesced", ("allgather_coalesced",), 1),
    ("all_gather_single", _ALL_GATHER_SINGLE, 1),
    ("all_gather_single_coalesced", _ALL_GATHERS, 1),
    ("gather", ("gather",), 1),
    ("scatter", ("scatter",), 0),
    ("reduce_scatter", ("reduce_scatter",), 1),
    ("reduce_scatter_single", _REDUCE_SCATTER_SINGLE, 1),
    ("reduce_scatter_single_coalesced", _REDUCE_SCATTERS, 1),
    ("all_to_all", ("alltoall",), None),
    ("all_to_all_single", ("all_to_all_single", "alltoall_base"), None),
):
    for _name in _names:
        setattr(ProcessGroupSwitchSum, _name, _delegated(_public, _names, _agreed))


def _point_to_point(name: str) -> Callable[..., Any]:
    """Two ranks' affair, so the others need not agree."""

    def method(self: ProcessGroupSwitchSum, *arguments: Any, **keywords: Any) -> Any:
        self._check_process(name)
        return self._noted(getattr(self._of_device(_first(arguments)), name)(*arguments, **keywords))

    return method


for _name in ("send", "recv", "recv_anysource"):
    setattr(ProcessGroupSwitchSum, _name, _point_to_point(_name))


@atexit.register
def _shut_down() -> None:
    """For programs that end without destroy_process_group(): leaving says goodbye, so that nobody takes us for lost."""
    for group in list(_groups):
        group.shutdown()


def _spare_gloo() -> None:
    """In a forked child: Gloo's destructor would wait, at the child's end, for threads of the parent's. So it never runs."""
    for group in list(_groups):
        peers = group._link.peers if group._link is not None else None
        for gloo in (group._gloo, peers.group if peers is not None else None):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(gloo))


os.register_at_fork(after_in_child=_spare_gloo)


def _machine() -> str:
    """Names this machine and network namespace: loopback means the same on ranks where this is equal."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"


def _live_controller() -> str:
    """The controller of an embedded switch that this process can vouch for, "" if there is none."""
    if _embedded is not None and _embedded.running:
        return _embedded.controller
    return next((g.controller for g in _groups if g.controller and g._agent is not None and g._agent.failure is None), "")


def _find_controller(store: Any, rank: int, size: int, settings: Settings) -> str:
    """The controller's address: as configured, of a group that one of the ranks is in, or of an embedded switch started here.

    Every rank of the new group goes through the same exchange: some may be new while others have had a group before.
    """
    global _embedded
    store.set(f"switchsum/rank/{rank}", json.dumps([settings.controller, _machine(), _live_controller()]))
    told = [json.loads(store.get(f"switchsum/rank/{other}")) for other in range(size)]
    configured, machines, running = zip(*told, strict=True)
    if any(configured):
        without = [other for other in range(size) if not configured[other]]
        if without:
            raise SwitchSumError(
                f"SWITCHSUM_CONTROLLER is set on some ranks, but not on ranks {without}: set it on every rank, or on none"
            )
        return settings.controller
    elsewhere = [other for other, machine in enumerate(machines) if machine != machines[0]]
    if elsewhere:
        raise SwitchSumError(
            "no controller is configured, and the ranks are not all on one machine "
            f"(ranks {elsewhere} are elsewhere than rank 0): set SWITCHSUM_CONTROLLER=HOST:PORT on every rank"
        )
    known = next((controller for controller in running if controller), "")
    if known:
        return str(known)
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
    global _default_group
    settings = Settings.from_environment()
    log_library(settings.log, "SWITCHSUM_LOG")
    _offer_monitored_barrier()
    # The store may outlive a group (torchrun's does), and another one of the same name must not read what that one wrote.
    store = dist.PrefixStore(str(store.add(f"switchsum/groups/{rank}", 1)), store)
    link: _Link | None = None
    try:
        if size > 1:
            _metrics.open(settings.metrics, rank)  # before the barrier: what is wrong with it must not keep the others waiting
            link = _join(store, rank, size, timeout, settings)
        if link is not None:
            _metrics.add(store.get("switchsum/job").decode(), rank, link.agent)
        group = ProcessGroupSwitchSum(link, store, rank, size, timeout, settings.gloo_below)
    except BaseException:
        _metrics.remove(None if link is None else link.agent)
        if link is not None:
            link.close()
        raise
    if _default_group is None or _default_group() is None:
        _default_group = weakref.ref(group)
    return group


@dataclass(frozen=True)
class _Link:
    """A group's tie to the switch, and to its ranks without it."""

    agent: Agent
    peers: GlooPeers | None  # None: the job fails without the switch
    controller: str

    def close(self) -> None:
        try:
            self.agent.close()
        finally:
            if self.peers is not None:
                self.peers.close()


def _join(store: Any, rank: int, size: int, timeout: timedelta, settings: Settings) -> _Link | None:
    """Membership in a job of the switch. None for a group beside the default one when the switch has no room for it, or is
    lost just now and the job may go on without."""
    global _told_full
    controller = _find_controller(store, rank, size, settings)
    if rank == 0:
        store.set("switchsum/job", f"{settings.job}-{os.urandom(4).hex()}" if settings.job else os.urandom(8).hex())
    agent: Agent | None = None
    refusal: SwitchSumError | None = None
    peers = GlooPeers(store, rank, size) if settings.on_loss is not OnLoss.FAIL else None
    lost = any(group.agent is not None and group.agent.path == "gloo" for group in _groups)
    try:
        terms = Terms(
            controller=controller,
            job_name=store.get("switchsum/job").decode(),
            rank=rank,
            world_size=size,
            data_address=settings.data_address,
            slots=settings.slots,
            least_slots=settings.least_slots,
            queue_s=settings.queue_s,
            lanes=settings.lanes,
            timeout_s=min(settings.timeout_s, _LOST_S) if lost else settings.timeout_s,
            peer_timeout_s=timeout.total_seconds(),
            on_loss=settings.on_loss,
            credentials=settings.credentials if settings.controller else IN_THE_CLEAR,  # an embedded switch asks for nothing
        )
        agent = Agent.join(terms, peers)
    except SwitchSumError as error:
        refusal = error
    if dist.is_initialized():  # a program may make many groups; that the switch is too small for all must not end it
        without = isinstance(refusal, SwitchFull) or (lost and isinstance(refusal, ControllerUnreachable))
        store.set(f"switchsum/joined/{rank}", f"full {refusal}" if without else "done")
        answers = [store.get(f"switchsum/joined/{other}").decode().partition(" ") for other in range(size)]
        full = next((sentence for verdict, _, sentence in answers if verdict == "full"), None)
        if full is not None:
            if agent is not None:
                agent.close()
            if rank == 0:
                logger.log(
                    logging.INFO if _told_full else logging.WARNING,
                    "a process group of %d ranks, and maybe later ones, goes through Gloo alone: %s", size, full,
                    extra={"job": store.get("switchsum/job").decode(), "rank": rank},
                )  # fmt: skip
            _told_full = True
            if peers is not None:
                peers.close()
            return None
    if agent is None:
        if peers is not None:
            peers.close()
        assert refusal is not None
        raise refusal
    return _Link(agent, peers, controller)


def _offer_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier() asks for the name "gloo" before it asks the group; ours can do it, too."""
    original = distributed_c10d.monitored_barrier
    if hasattr(original, "switchsum"):
        return

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        asked = distributed_c10d._get_default_group() if group is None else group
        if not isinstance(asked, ProcessGroupSwitchSum):
            original(group, timeout, wait_all_ranks)
        else:
            asked.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.switchsum = True  # type: ignore[attr-defined]
    distributed_c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def statistics() -> Statistics:
    """Counters of this process's default switchsum group. Raises RuntimeError if there is none."""
    group = _default_group() if _default_group is not None else None
    if group is None:
        raise RuntimeError('no switchsum process group in this process: call init_process_group("switchsum") first')
    return group.statistics()
