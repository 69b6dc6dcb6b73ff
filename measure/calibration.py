"""What links and transports really give, from files of `switchsum bench allreduce`; never from the training that is predicted.

A sum of S bytes takes t = rounds * alpha + bytes / (efficiency * rate), with the rounds and bytes of the transport's
architecture (costs) and the link's nominal rate. So t / rounds over bytes / rate / rounds is a straight line: its height is
alpha, its slope 1 / efficiency. Where latency and bytes pass side by side, t is the larger of both instead: a level, then a
line through the origin. Either is fitted by least squares of the relative distance, run by run; intervals are over runs.

A token bucket lets bytes pass that it gathered while the link was idle, in the pause between sums and in a sum's latency: these
are taken off, and taken into account again where it is predicted. Rows in which the link carried more than its rate by that
are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchsum.measure import costs, formulas, result_files
from switchsum.measure.costs import Cluster, Processor
from switchsum.measure.manifest import ITEM_BYTES
from switchsum.measure.media import Medium
from switchsum.measure.result_files import Found
from switchsum.measure.results import Results
from switchsum.measure.rows import Figure, Row
from switchsum.measure.samples import Series
from switchsum.measure.straight_line import Line

SCHEMA = "switchsum-calibration/1"
# By architecture, those that can stand for it, the first that was measured.
TRANSPORTS = {
    "ps": ("tcp", "grpc"),
    "ring": ("nccl", "gloo"),
    "hierarchical": ("nccl", "gloo"),
    "switch": ("switchsum",),
    "switch16": ("switchsum16", "switchsum"),
    "switch8": ("switchsum8", "switchsum"),
}
# Gloo's ring cuts each part in two and moves one while it adds the other: latency and bytes pass side by side.
_OVERLAPPING = ("gloo",)
_PASSES = 20  # after which a latency and the credit that it gathers agree
_OF_TRANSPORT = {name: architecture for architecture, names in reversed(TRANSPORTS.items()) for name in names}


class BadCalibration(ValueError):
    """Measurements that nothing can be learnt from; the text says why and what to measure."""


@dataclass(frozen=True)
class Fit:
    """One transport's. `efficiency`: None where no row had a link with a rate; `missed`: how far a row's time may be from the
    fit, of 1: two standard deviations, nan of two rows, which any line meets; `processor`: the least that a byte cost;
    `cpu_limited`: rows that the processor held back tell the efficiency; `rows`: how many these are."""

    transport: str
    latency_s: Figure
    efficiency: Figure | None
    missed: float
    processor: Processor
    cpu_limited: bool
    rows: int

    @property
    def overlaps(self) -> bool:
        """Whether latency and bytes pass side by side (Cost)."""
        return self.transport in _OVERLAPPING

    def as_json(self) -> dict[str, Any]:
        def figure(of: Figure | None) -> dict[str, Any] | None:
            if of is None:
                return None
            return {"mean": of.mean, "ci95": of.ci95 if math.isfinite(of.ci95) else None, "runs": list(of.runs)}

        return {
            "transport": self.transport,
            "latency_s": figure(self.latency_s),
            "efficiency": figure(self.efficiency),
            "missed": self.missed if math.isfinite(self.missed) else None,
            "processor": vars(self.processor),
            "cpu_limited": self.cpu_limited,
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Calibration:
    """By transport. `rates_bps`, `sources`: of the links and files it comes from; `burst_bytes`: of the links' token buckets,
    0 without; `notes`: what was left out, and why."""

    fits: Mapping[str, Fit]
    rates_bps: tuple[float, ...]
    burst_bytes: float
    sources: tuple[str, ...]
    notes: tuple[str, ...]

    def knows(self, architecture: str) -> bool:
        return any(name in self.fits for name in TRANSPORTS[architecture])

    def fit(self, architecture: str) -> Fit:
        """Of the transport that stands for it. Raises BadCalibration."""
        names = TRANSPORTS[architecture]
        for name in names:
            if name in self.fits:
                return self.fits[name]
        for name in names:
            if why := next((note for note in self.notes if note.startswith(f"{name}: ")), ""):
                raise BadCalibration(f"{architecture} is not calibrated by {', '.join(self.sources)}: {why}")
        what = " --transport ".join(names[-1:])
        raise BadCalibration(
            f"{architecture} is not calibrated: {', '.join(self.sources)} has no rows of {' or '.join(names)} to learn from; "
            f"measure with `switchsum bench allreduce --transport {what} --json FILE`, or leave {architecture} out"
        )

    def medium(
        self,
        architecture: str,
        bytes_per_s: float,
        run: int | None = None,
        efficiency: float | None = None,
        burst_bytes: float = 0.0,
    ) -> Medium:
        """The link between hosts as that architecture finds it, as fitted to all runs or to one. `efficiency`: instead of the
        fitted one. `burst_bytes`: of the link that is meant, which need not be the one that was measured. Raises
        BadCalibration."""
        fit = self.fit(architecture)
        latency = fit.latency_s
        if efficiency is None:
            if fit.efficiency is None:
                raise BadCalibration(
                    f"{fit.transport} was measured over links without a rate, so its efficiency is not known; measure in a "
                    "rack (`switchsum bench allreduce --rack FILE`), or say it with --efficiency"
                )
            efficiency = fit.efficiency.mean if run is None else fit.efficiency.runs[run]
        latency_s = latency.mean if run is None else latency.runs[run]
        return Medium("ethernet", latency_s, bytes_per_s, efficiency, burst_bytes)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "fits": [fit.as_json() for fit in self.fits.values()],
            "rates_bps": list(self.rates_bps),
            "burst_bytes": self.burst_bytes,
            "sources": list(self.sources),
            "notes": list(self.notes),
        }

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """From a file of results, or all in a folder. Raises BadCalibration, BadResults."""
        return cls.of(result_files.find(path))

    @classmethod
    def of(cls, found: Found) -> Calibration:
        """Raises BadCalibration."""
        by_transport: dict[str, list[_Point]] = {}
        notes = list(found.ignored)
        rates: dict[float, None] = {}
        burst = 0.0
        for path, results in found.files.items():
            if results.benchmark != "allreduce":
                notes.append(f"{path.name} is of {results.benchmark}: only sums (allreduce) calibrate")
                continue
            here = _burst_bytes(results)
            if here and not any(run.paused_s for series in results.series for run in series.runs):
                notes.append(
                    f"{path.name} tells no pauses between sums, so what a token bucket gathered there is not known; an older "
                    "version wrote it: measure again"
                )
            for row, series in zip(results.rows, results.series, strict=True):
                name = f"{path.name}: {row.label} {row.payload}"
                if row.wrong or row.lost:
                    notes.append(f"{name}: left out, since it was wrong or lost datagrams")
                elif row.mode == "serialized":
                    notes.append(f"{name}: left out: messages that are copied once more are nobody's first choice")
                elif row.dtype not in ITEM_BYTES:
                    notes.append(f"{name}: left out: its numbers are of several types")
                elif row.transport in _OF_TRANSPORT and row.workers > 1:
                    points = by_transport.setdefault(row.transport, [])
                    if row.limited_by == "burst":
                        notes.append(
                            f"{name}: left out, since it passed at more than the link's rate, on a token bucket's credit"
                        )
                        continue
                    points.append(_Point.of(row, series, here, results))
                    if series.link_rate_bps:
                        rates[series.link_rate_bps] = None
                        burst = max(burst, here)
        fits = {}
        for transport, points in by_transport.items():
            try:
                fits[transport] = _fit(transport, points)
            except BadCalibration as error:
                notes.append(str(error))
        sources = tuple(path.name for path in found.files)
        if not fits:
            why = "; ".join(notes) or "no row is a sum by a transport that stands for an architecture"
            raise BadCalibration(f"{', '.join(sources)}: nothing to calibrate with: {why}")
        return cls(fits, tuple(rates), burst, sources, tuple(notes))


@dataclass(frozen=True)
class _Point:
    """A row. `linked_s`: its bytes at the link's nominal rate, None without one; `pause_s`: of the link before each sum;
    `burst_s`: what the link's token bucket holds at most."""

    rounds: int
    size_bytes: int
    linked_s: float | None
    pause_s: float
    burst_s: float
    seconds: tuple[float, ...]
    cpu_limited: bool
    worker_cpu: float
    elsewhere_cpu: float
    cores: int | None

    @classmethod
    def of(cls, row: Row, series: Series, burst_bytes: float, results: Results) -> _Point:
        cluster = Cluster(row.workers, row.servers, dedicated=row.servers > 0 and not row.colocated)
        architecture = _OF_TRANSPORT[row.transport]
        linked_s, burst_s = None, 0.0
        if series.link_rate_bps:
            linked_s = row.size_bytes * costs.link_bytes(architecture, cluster, row.dtype) * 8 / series.link_rate_bps
            burst_s = burst_bytes * 8 / series.link_rate_bps
        moved = row.size_bytes * row.operations
        elsewhere = (row.user_s + row.system_s) / moved - row.workers * row.worker_cpu / formulas.GIGA
        elsewhere += (row.switch_cpu or 0.0) / formulas.GIGA
        cores = results.environment.get("cores")
        shared = isinstance(cores, int) and cores > 0 and "torchrun" not in results.title
        return cls(
            costs.rounds(architecture, cluster),
            row.size_bytes,
            linked_s,
            sum(run.paused_s for run in series.runs) / row.operations,
            burst_s,
            row.time.runs,
            row.limited_by == "cpu",
            row.worker_cpu / formulas.GIGA,
            max(0.0, elsewhere) / row.workers,
            cores if shared else None,
        )


def _fit(transport: str, points: Sequence[_Point]) -> Fit:
    """Raises BadCalibration."""
    if not points:
        raise BadCalibration(f"{transport}: all sums passed on a token bucket's credit; measure larger sizes")
    points = sorted(points, key=lambda point: point.size_bytes)
    linked = [point for point in points if point.linked_s is not None]
    chosen, held_back = _that_tell(linked or points)
    if len({point.size_bytes for point in chosen}) < 2:
        raise BadCalibration(
            f"{transport}: rows of one size do not tell latency from rate; measure two at least, such as --size 4K --size 16M"
        )
    overlaps = transport in _OVERLAPPING
    latencies, slopes = [], []
    for run in range(min(len(point.seconds) for point in chosen)):
        latency, slope = _fit_run(transport, chosen, [point.seconds[run] / point.rounds for point in chosen])
        latencies.append(latency)
        slopes.append(slope)
    latency, slope = statistics.fmean(latencies), statistics.fmean(slopes)
    misses = []
    for point, x in zip(chosen, _per_round(chosen, 0.0 if overlaps else latency), strict=True):
        fitted = max(latency, slope * x) if overlaps else latency + slope * x
        misses.append(fitted * point.rounds / statistics.fmean(point.seconds) - 1)
    cheapest = min(_large(points), key=lambda point: point.worker_cpu + point.elsewhere_cpu)
    return Fit(
        transport,
        Figure.of(latencies),
        Figure.of([1 / each for each in slopes]) if linked else None,
        2 * math.sqrt(sum(miss**2 for miss in misses) / (len(misses) - 2)) if len(misses) > 2 else math.nan,
        Processor(cheapest.worker_cpu, cheapest.elsewhere_cpu, cheapest.cores),
        bool(linked) and held_back,
        len(chosen),
    )


def _that_tell(points: Sequence[_Point]) -> tuple[Sequence[_Point], bool]:
    """Those that a fit is made of, and whether the processor held back what tells the rate. `points`: by size."""
    free, large = [point for point in points if not point.cpu_limited], _large(points)
    if free and free[-1] in large:
        # Smaller ones tell the latency, whatever it is made of.
        chosen = [point for point in points if not point.cpu_limited or point.size_bytes < free[0].size_bytes]
        if len({point.size_bytes for point in chosen}) > 1:
            return chosen, False
    # The large ones say what this machine gives, then, which is all there is to know.
    return points, any(point.cpu_limited for point in large)


def _large(points: Sequence[_Point]) -> Sequence[_Point]:
    """Down to a quarter of the last one's size. `points`: by size."""
    return [point for point in points if 4 * point.size_bytes >= points[-1].size_bytes]


def _fit_run(transport: str, points: Sequence[_Point], times: Sequence[float]) -> tuple[float, float]:
    """Latency of a round and slope. `times`: of a round, of one run. Raises BadCalibration."""
    overlaps, latency, slope = transport in _OVERLAPPING, 0.0, 0.0
    # What a token bucket gathers in the latency depends on the latency.
    for _ in range(1 if overlaps else _PASSES):
        sizes = _per_round(points, latency)
        if len(set(sizes)) < 2:
            raise BadCalibration(f"{transport}: all sums passed on what a token bucket gathered; measure larger sizes")
        latency, slope = (_level_then_line if overlaps else _line)(sizes, times)
    if slope <= 0 or times[-1] <= times[0]:
        raise BadCalibration(f"{transport}: times do not grow with size, so they tell no rate; measure larger sizes")
    return latency, slope


def _per_round(points: Sequence[_Point], latency_s: float) -> list[float]:
    """Seconds that the bytes of a round take at the link's nominal rate; without a rate, its bytes. `latency_s`: of a round, in
    which the link is idle."""
    found = []
    for point in points:
        if point.linked_s is None:
            found.append(point.size_bytes / point.rounds)
            continue
        credit_s = min(point.linked_s, point.burst_s, point.pause_s + point.rounds * latency_s)
        found.append((point.linked_s - credit_s) / point.rounds)
    return found


def _line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Height, at least 0, and slope."""
    line = Line.through(sizes, times, [1 / time**2 for time in times])
    if line.intercept < 0:  # the latency is below what these sizes can show
        return 0.0, _through_origin(sizes, times)
    return line.intercept, line.slope


def _level_then_line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Of the larger of a level and a line through the origin: the level, 0 if even the smallest lies on the line, and the
    slope, for the largest at least."""
    ordered = sorted(zip(sizes, times, strict=True))
    found = []
    for number in range(len(ordered)):
        flat = [time for _, time in ordered[:number]]
        level = sum(1 / time for time in flat) / sum(1 / time**2 for time in flat) if flat else 0.0
        slope = _through_origin(*zip(*ordered[number:], strict=True))
        missed = sum((max(level, slope * x) / time - 1) ** 2 for x, time in ordered)
        found.append((missed, level, slope))
    return min(found)[1:]


def _through_origin(sizes: Sequence[float], times: Sequence[float]) -> float:
    return sum(x / time for x, time in zip(sizes, times, strict=True)) / sum(
        (x / time) ** 2 for x, time in zip(sizes, times, strict=True)
    )


def _burst_bytes(results: Results) -> float:
    """The smallest of the workers' links; 0 where none is shaped."""
    links = [each.get("link") for each in results.links if isinstance(each, dict)]
    bursts = [link.get("burst_bytes") for link in links if isinstance(link, dict)]
    return float(min((each for each in bursts if isinstance(each, int | float) and each >= 0), default=0.0))
