"""`switchsum bench --preset paper`: the grid of TF-gRPC-Bench's figures, and sums of the same payloads, into one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
_LARGEST_BYTES = 6_030_010  # of the paper's payloads: skew
_ROUND_TRIPS = 2  # of that payload in a run
_SHORTEST_S, _PAPERS_S = 0.5, 10.0

# Figures of the paper by the files that answer them, and what it has none of: size, and sums.
_DEFAULTS: dict[str, Any] = {
    "ip": "localhost",
    "port": 50001,
    "num_ps": 1,
    "num_workers": 1,
    "mode": (),
    "scheme": (),
    "iovec_count": (),
    "sizes": None,
    "bias": None,
    "seed": 0,
    "size": (),
    "payload": (),
    "transport": TRANSPORTS,
    "check": False,
    "placement": None,
    "csv_file": None,
}
_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "latency-serialized": ("p2p-latency", {"size": ("64KB",), "mode": MODES}),
    "latency-schemes": ("p2p-latency", {"scheme": SCHEMES}),
    "latency-iovecs": (
        "p2p-latency",
        {"scheme": ("uniform",), "sizes": "large=1MB", "iovec_count": (2, 4, 6, 8, 10), "transport": ("grpc", "tcp")},
    ),
    "bandwidth-schemes": ("p2p-bandwidth", {"scheme": SCHEMES}),
    "bandwidth-sizes": ("p2p-bandwidth", {"size": ("1KB", "16KB", "256KB", "4MB")}),
    "throughput-schemes": ("ps-throughput", {"num_ps": 2, "num_workers": 3, "scheme": SCHEMES}),
}

# Sums by parameter servers, ring and switch: the schemes' payloads, then sizes.
_SUM_WAYS: dict[str, Any] = {"transport": ["switchsum", "gloo", "grpc", "tcp"], "workers": 3}
_SUMS: dict[str, dict[str, Any]] = {
    "allreduce-schemes": {**_SUM_WAYS, "scheme": list(SCHEMES)},
    "allreduce-sizes": {**_SUM_WAYS, "size": ["64K", "256K", "1M", "4M"]},
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


@dataclass(frozen=True)
class Timing:
    """`duration_s`: of a run; None for what suits the place."""

    duration_s: float | None
    repeat: int
    timeout_s: float


def paper(output: Path, place: Place, timing: Timing, allreduce: Callable[..., None]) -> int:
    """Measure everything; returns the exit status: 1 if anything was wrong or a part failed. Raises CommandFailed.

    A part that fails is told, and the others are measured all the same. `allreduce`: the command.
    """
    from switchsum.bench_report_command import write_report

    if output.exists() and not output.is_dir():
        raise CommandFailed(f"{output} is a file; name a new folder", EXIT_MISUSED)
    if output.exists() and any(output.iterdir()):
        raise CommandFailed(f"{output} is not empty: a report is made of all results in a folder; name a new one", EXIT_MISUSED)
    seconds = timing.duration_s if timing.duration_s is not None else _duration_s(place)
    common: dict[str, Any] = {"duration": seconds, "warmup": seconds / 2, "repeat": timing.repeat, "timeout": timing.timeout_s}
    common |= {"rack": place.rack, "rate": place.rate}
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandFailed(f"{output} cannot be made: {error.strerror}", EXIT_MISUSED) from error
    parts: dict[str, Callable[[], int]] = {}
    for name, (benchmark, options) in _CALLS.items():
        chosen = {**_DEFAULTS, **options, **common, "json_file": output / f"{name}.json"}
        parts[name] = partial(bench_calls_command.calls, bench_calls_command.kind(benchmark), **chosen)
    for name, options in _SUMS.items():
        parts[name] = partial(_sum, allreduce, **common, **options, json_file=output / f"{name}.json")
    status, failed = 0, []
    for number, (name, measure) in enumerate(parts.items()):
        typer.echo(f"# {number + 1} of {len(parts)}: {name}")
        try:
            status |= measure()
        except CommandFailed as error:
            if error.status == EXIT_MISUSED:  # what is wrong with one part's options is wrong with all
                raise
            typer.echo(f"# {name} failed: {error}")
            failed.append(name)
    if any(output.glob("*.json")):
        typer.echo(f"# the report: {write_report(output, output / 'report')}")
    if failed:
        raise CommandFailed(f"{', '.join(failed)} failed; what was measured is in {output}")
    return status


def _sum(allreduce: Callable[..., None], **options: Any) -> int:
    """The command's exit status."""
    try:
        allreduce(**options)
    except typer.Exit as ended:
        return ended.exit_code
    return 0
