"""How collectives appear in torch.profiler: as PyTorch's own backends show them, so that its tools find them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


class profiled:
    """`with profiled(group, "allreduce", tensors) as span: work = span.of(...)`. Costs next to nothing without a profiler.

    A trace gets two events: `c10d::allreduce_` where the collective is issued, with the metadata (message sizes, dtype, group)
    that PyTorch's C++ backends attach to theirs, and `switchsum:allreduce` from there until the collective has ended.
    """

    def __init__(self, group: dist.ProcessGroup, collective: str, tensors: list[torch.Tensor]) -> None:
        self._group = group
        self._collective = collective
        self._tensors = tensors
        self._range: Any = None

    def __enter__(self) -> profiled:
        if torch.autograd._profiler_enabled():
            name = f"c10d::{self._collective}{'_' if self._tensors else ''}"
            with torch._C._profiler._RecordFunctionFast(name, self._tensors, self._metadata()):
                pass
            self._range = torch.profiler.record_function(f"switchsum:{self._collective}")
            self._range.__enter__()
        return self

    def of(self, work: dist.Work) -> dist.Work:
        """`work` ends the range, unless it has ended already."""
        if self._range is not None and not work.is_completed():
            self._range._call_end_callbacks_on_future(work.get_future())
            self._range = None
        return work

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, trace)

    def _metadata(self) -> dict[str, Any]:
        """Keys as of PyTorch's `record_param_comms` events."""
        count = sum(tensor.numel() for tensor in self._tensors)
        world = distributed_c10d._world
        ranks = world.pg_group_ranks.get(self._group, {})
        return {
            "Collective name": self._collective,
            "In msg nelems": count,
            "Out msg nelems": count,
            "dtype": str(self._tensors[0].dtype).removeprefix("torch.") if self._tensors else "none",
            "Group size": self._group.size(),
            "Rank": self._group.rank(),
            "Process Group Name": world.pg_names.get(self._group, ""),
            "Process Group Description": "switchsum",
            "Process Group Ranks": str(sorted(ranks)),
        }
