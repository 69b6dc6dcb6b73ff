"""Results with figures that are known beforehand, where a shape is needed that no machine would promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from switchsum.measure.manifest import from_scheme
from switchsum.measure.results import Results
from switchsum.measure.rows import Row
from switchsum.measure.samples import Carried, Run, Series, Usage

STEADY = (0.999, 1.0, 1.0, 1.0, 1.001)
MADE = "2026-01-02 03:04:05 +0000"


def series(benchmark: str, transport: str, payload: str, size_bytes: int, one_way_s: float, **changes: Any) -> Series:
    """Five runs of two operations each, of about `one_way_s` seconds (STEADY); p2p-latency is there and back."""
    spread: Sequence[float] = changes.pop("spread", STEADY)
    message_s: float | None = changes.pop("message_s", None)
    sums = benchmark == "allreduce"
    workers, servers = changes.get("workers", 2 if sums else 1), changes.get("servers", 0 if sums else 1)
    trips = 2 if benchmark == "p2p-latency" else 1
    runs = []
    for number, factor in enumerate(spread):
        seconds = one_way_s * factor * trips
        runs.append(
            Run(
                number,
                seconds=[[seconds, seconds] for _ in range(workers)],
                made=[] if sums else [2] * workers,
                elapsed_s=2 * seconds,
                usage=[Usage(0.01, 0.02, 3, 4, 10_000_000)] * (workers + servers),
                carried=[Carried(2 * size_bytes, 2 * size_bytes, 100, 100)] * (workers + servers),
                machine_busy_ticks=1,
                machine_ticks=10,
                serialize_s=None if message_s is None else 2 * trips * message_s * factor,
                resent=0,
            )
        )
    made = Series(
        benchmark, transport, "", payload, size_bytes, 10, "uint8", "", 1, 1, [], link_source="payload", wrong=0, runs=runs
    )
    if sums:
        made = replace(made, dtype="float32", redop="sum", buffers=1)
    return replace(made, **{"workers": workers, "servers": servers, "hosts": list(range(workers + servers)), **changes})


def results(*rows: Series, **changes: Any) -> Results:
    """With the manifests of the paper's payloads."""
    payloads = [from_scheme(scheme).as_json() for scheme in ("uniform", "random", "skew")]
    payloads += [
        replace(from_scheme("uniform", n, {"large": 1_000_000}), name=f"large-x{n}").as_json() for n in (2, 4, 6, 8, 10)
    ]
    benchmark = rows[0].benchmark
    made = Results(
        benchmark,
        f"switchsum bench {benchmark}: made up; 5 runs",
        {},
        {"date": MADE, "kernel": "6.1", "cpu": "abacus", "command": ["switchsum", "bench", benchmark], "busy_before": 0.0},
        [Row.of(each) for each in rows],
        list(rows),
        payloads=payloads,
    )
    return replace(made, **changes)


SIZES = {"uniform": 4_030_030, "random": 3_050_020, "skew": 6_030_010}


def latencies(transport: str = "tcp", us_per_mb: float = 80_000.0, **changes: Any) -> list[Series]:
    """p2p-latency of the paper's schemes at so many microseconds for a megabyte."""
    return [series("p2p-latency", transport, name, size, us_per_mb * size / 1e12, **changes) for name, size in SIZES.items()]


def counted(us_per_mb: float, offset_us: float, transport: str = "tcp", **changes: Any) -> list[Series]:
    """p2p-latency of 2, 4, ... 10 buffers of 1 MB."""
    return [
        series("p2p-latency", transport, f"large-x{n}", n * 1_000_000, (offset_us + n * us_per_mb) / 1e6, buffers=n, **changes)
        for n in (2, 4, 6, 8, 10)
    ]
