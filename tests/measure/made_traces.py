"""Traces written by hand, whose times are known. Those of NCCL follow what its events are known to hold: none was run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
STEP_US = 1000
TRAINS, WORKER = 1, 2  # threads


def event(category: str, name: str, begin: float, duration: float, thread: int = TRAINS, **arguments: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": begin, "dur": duration, "args": arguments}


def steps(count: int, first: int = 3) -> list[Event]:
    """One after the other, from 0 on."""
    return [event("user_annotation", f"ProfilerStep#{first + n}", n * STEP_US, STEP_US) for n in range(count)]


def operator(begin: float, duration: float, name: str = "aten::mm", thread: int = TRAINS) -> Event:
    return event("cpu_op", name, begin, duration, thread)


def gloo(begin: float, duration: float, elements: int = 100) -> list[Event]:
    """A sum as Gloo's traces have it: where it is issued, and its range on a thread of Gloo's."""
    shape: dict[str, Any] = {"Input Dims": [[elements]], "Input type": ["float"]}
    return [
        event("cpu_op", "c10d::allreduce_", begin, 1, **{"Input Dims": [[[elements]]], "Input type": ["TensorList"]}),
        event("user_annotation", "gloo:all_reduce", begin, duration, WORKER, **shape),
    ]


def metadata(elements: int = 250_000, ranks: Sequence[int] = (0, 1), **more: Any) -> dict[str, Any]:
    """What PyTorch attaches to NCCL's events."""
    return {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": len(ranks),
        "Process Group Name": "0",
        "Process Group Ranks": str(list(ranks)),
        "In split size": "[]",
        "Out split size": "[]",
        **more,
    }


def kernel(begin: float, duration: float, name: str = "ampere_sgemm_128x64_tn", stream: int = 7, **arguments: Any) -> Event:
    return event("kernel", name, begin, duration, stream, stream=stream, correlation=1, **arguments)


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def nccl_events(rank: int) -> list[Event]:
    """WRITTEN BY HAND, no GPU was there. Two steps of two ranks; rank 1 comes 100 us late to each sum.

    Step 3: copy to the device 0-100, kernels 100-500 and 600-700, sum 400-900 (500-900 on rank 1): transfer 400, of rank 0
    100 wait. Its kernel has metadata. Step 4: the same, but the kernel has none, and record_param_comms has.
    """
    made = []
    for number in range(2):
        start = number * STEP_US
        late = 100 * rank
        made += [
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, 100, 7),
            kernel(start + 100, 400),
            kernel(start + 600, 100),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", start + 950, 10, 7),
            operator(start, 990),  # the host is busy throughout, which is no computation of a device
            event("user_annotation", "nccl:all_reduce", start + 300, 20),
        ]
        told = metadata(Seq=5 + number)
        known = told if not number else {"External id": 77}
        made.append(kernel(start + 400 + late, 500 - late, NCCL, 20, **known))
        made.append(event("cpu_op", "record_param_comms", start + 300, 10, **told, **{"External id": 77 if number else 12}))
    return [*steps(2), *made]


def write(
    path: Path, events: Sequence[Event], rank: int | None = 0, world: int | None = 2, backend: str = "gloo", **more: Any
) -> Path:
    told: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        groups = [{"pg_name": "0", "ranks": list(range(world or 1))}]
        told["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world, "pg_config": groups}
    path.write_text(json.dumps({**told, "traceEvents": list(events), "traceName": path.name, **more}))
    return path
