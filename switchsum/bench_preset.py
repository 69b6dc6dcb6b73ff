"""`switchsum bench --preset paper`: the grid of TF-gRPC-Bench's figures, and sums of the same payloads, into one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from switchsum import bench_calls_command, bench_grounds
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed

PRESETS = ("paper",)
SCHEMES = ("uniform", "random", "skew")
TRANSPORTS = ("grpc", "tcp", "gloo")
MODES = ("serialized", "non-serialized")
_LARGEST_BYTES = 6_030_030  # of the paper's payloads: skew
_ROUND_TRIPS = 2  # of that payload in a run
_SHORTEST_S, _PAPERS_S = 0.5, 10.0

# Figures of the paper by the files that answer them, and what it has none of: size, and sums.
_DEFAULTS: dict[str, Any] = {
    "ip": "localhost",
    "port": 50001,
    "num_ps": 1,
    "num_workers": 1,
    "mode": ("non-serialized",),
    "scheme": SCHEMES,
    "iovec_count": (10,),
    "sizes": "small=10,medium=10KB,large=1MB",
    "bias": "large",
    "seed": 0,
    "size": (),
    "payload": (),
    "transport": TRANSPORTS,
    "check": False,
    "placement": "dedicated",
    "timeout": 120.0,
    "csv_file": None,
}
_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "latency-serialized": ("p2p-latency", {"size": ("64KB",), "mode": MODES}),
    "latency-schemes": ("p2p-latency", {}),
    "latency-iovecs": (
        "p2p-latency",
        {"scheme": ("uniform",), "sizes": "large=1MB", "iovec_count": (2, 4, 6, 8, 10), "transport": ("grpc", "tcp")},
    ),
    "bandwidth-schemes": ("p2p-bandwidth", {}),
    "bandwidth-sizes": ("p2p-bandwidth", {"size": ("1KB", "16KB", "256KB", "4MB")}),
    "throughput-schemes": ("ps-throughput", {"num_ps": 2, "num_workers": 3}),
}


@dataclass(frozen=True)
class Place:
    """Where the grid runs. `rate`: as --rate has it."""

    rack: Path | None
    rate: str | None


def _duration_s(place: Place) -> float:
    """Of a run: the paper's ten seconds, or less where a few round trips of its largest payload take less."""
    if place.rack is None:
        return _SHORTEST_S
    described = bench_grounds.described_rack(place.rack, 1, place.rate, 0.0, None, None)
    rate = described.workers[0].link.rate_bps
    return min(_PAPERS_S, max(_SHORTEST_S, _ROUND_TRIPS * 2 * 8 * _LARGEST_BYTES / rate)) if rate else _SHORTEST_S


def paper(
    output: Path,
    place: Place,
    duration: float | None,
    repeat: int,
    allreduce: Callable[..., None],
) -> int:
    """Measure everything; returns the exit status: 1 if anything was wrong. Raises CommandFailed."""
    from switchsum.bench_report_command import write_report

    if output.exists() and any(output.iterdir()):
        raise CommandFailed(f"{output} is not empty: a report is made of all results in a folder; name a new one", EXIT_MISUSED)
    seconds = duration if duration is not None else _duration_s(place)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"{output} cannot be made: {error.strerror}", EXIT_MISUSED) from error
    common = {"duration": seconds, "warmup": seconds / 2, "repeat": repeat, "rack": place.rack, "rate": place.rate}
    status = 0
    for number, (name, (benchmark, options)) in enumerate(_CALLS.items()):
        typer.echo(f"# {number + 1} of {len(_CALLS) + 2}: {name}")
        chosen = {**_DEFAULTS, **options, **common, "json_file": output / f"{name}.json"}
        status |= bench_calls_command.calls(bench_calls_command.kind(benchmark), **chosen)
    # Sums by parameter servers, ring and switch: the schemes' payloads, then sizes.
    sums = {**common, "transport": ["switchsum", "gloo", "grpc", "tcp"], "workers": 3}
    for number, (name, options) in enumerate(
        {
            "allreduce-schemes": {"scheme": list(SCHEMES)},
            "allreduce-sizes": {"size": ["64K", "256K", "1M", "4M"]},
        }.items()
    ):
        typer.echo(f"# {len(_CALLS) + 1 + number} of {len(_CALLS) + 2}: {name}")
        try:
            allreduce(**sums, **options, json_file=output / f"{name}.json")
        except typer.Exit as ended:
            status |= ended.exit_code
    typer.echo(f"# the report: {write_report(output, output / "report")}")
    return status
