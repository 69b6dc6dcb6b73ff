"""How collectives appear in torch.profiler: as PyTorch's own backends show them, so that its tools find them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.distributed import distributed_c10d

# As c10::toString() has them, which PyTorch's own backends put into a trace, and whose sizes TraceLens knows.
_DTYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
# What NCCL's events call differently from c10d's methods.
_NAMES = {"alltoall": "all_to_all", "alltoall_base": "all_to_all"}

_open: dict[int, Callable[[], None]] = {}  # what ends ranges that have not ended
_ending = threading.RLock()


def _nothing() -> None:
    pass


def _end_ranges_before_the_profiler() -> None:
    """A range that ends after the profiler has stopped writes to memory which is no longer the profiler's.

    Whoever stops it while collectives are under way would crash the process, so stopping it ends their ranges first.
    """
    stop = profiler._disable_profiler
    if hasattr(stop, "switchsum"):
        return

    def end_and_stop() -> Any:
        with _ending:
            for end in list(_open.values()):
                end()
        return stop()

    end_and_stop.switchsum = True  # type: ignore[attr-defined]
    profiler._disable_profiler = end_and_stop


class profiled:
    """`with profiled(group, "allreduce", "all_reduce", tensors) as span: ...`: a collective is issued.

    A trace gets two events: `c10d::allreduce_` where the collective is issued, with the metadata (message sizes, dtype, group,
    number) that NCCL's events have in PyTorch, and `switchsum:all_reduce` from there until the collective has ended, which is
    how Gloo names its own. Without a profiler this costs next to nothing.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        method: str,
        public: str,
        tensors: list[torch.Tensor],
        counts: tuple[int, int] | None = None,
    ) -> None:
        """`group`: has an iterator `collectives`, which counts them. `method`: the collective's name in c10d; `public`: in
        torch.distributed; `counts`: elements in and out, where they are not those of `tensors`."""
        self._counts = counts
        self._group = group
        self._method = method
        self._public = public
        self._tensors = tensors
        self._range: Any = None
        self._number = next(group.collectives)  # counted without a profiler too, so that it is the same on all ranks

    def __enter__(self) -> profiled:
        if torch.autograd._profiler_enabled():
            _end_ranges_before_the_profiler()
            name = f"c10d::{self._method}{'_' if self._tensors else ''}"
            with torch._C._profiler._RecordFunctionFast(name, self._tensors, self._metadata()):
                pass
            self._range = torch.profiler.record_function(f"switchsum:{self._public}")
            self._range.__enter__()
        return self

    def later(self) -> Callable[[], None]:
        """What ends the range, from any thread, once. Else it ends with the `with` statement."""
        if self._range is None:
            return _nothing
        ended: torch.futures.Future[None] = torch.futures.Future()
        self._range._call_end_callbacks_on_future(ended)
        self._range = None

        def end() -> None:
            with _ending:
                if _open.pop(id(ended), None) is not None:
                    ended.set_result(None)

        _open[id(ended)] = end
        return end

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, trace)

    def _metadata(self) -> dict[str, Any]:
        """Keys as of PyTorch's `record_param_comms` events."""
        count = sum(tensor.numel() for tensor in self._tensors)
        came, went = self._counts if self._counts is not None else (count, count)
        world = distributed_c10d._world
        ranks = world.pg_group_ranks.get(self._group, {})
        dtype = self._tensors[0].dtype if self._tensors else torch.uint8
        name = _NAMES.get(self._method, self._method)
        # Of all_to_all they are not known here; of the others there are none.
        splits = {} if name == "all_to_all" else {"In split size": "[]", "Out split size": "[]"}
        return {
            "Collective name": name,
            "In msg nelems": came,
            "Out msg nelems": went,
            "dtype": _DTYPES.get(dtype, str(dtype).removeprefix("torch.")),
            "Seq": self._number,
            **splits,
            "Group size": self._group.size(),
            "Rank": self._group.rank(),
            "Process Group Name": world.pg_names.get(self._group, ""),
            "Process Group Description": "switchsum",
            "Process Group Ranks": str(sorted(ranks)),
        }
