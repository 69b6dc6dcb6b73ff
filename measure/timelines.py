"""Resources over time as pictures need them: rates instead of counts, and whose run was under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from switchsum.measure.results import Results

Curve = tuple[list[float], list[float]]  # seconds since the first run, values


@dataclass(frozen=True)
class Span:
    """A run of a transport, until the next one's beginning."""

    begin_s: float
    end_s: float
    transport: str


@dataclass(frozen=True)
class Process:
    """`kind`: "rank" or "switch". `crew`: number of the group of ranks that it belongs to."""

    kind: str
    name: str
    label: str
    crew: int
    clock_error_s: float
    cpu_percent: Curve  # of one core
    resident_mb: Curve
    sent_mbit_s: Curve | None


@dataclass(frozen=True)
class Timeline:
    spans: list[Span]
    payloads: list[tuple[float, str]]  # when the runs of each begin
    processes: list[Process]
    machine_percent: Curve | None  # of all cores
    shared_interface: bool  # all ranks have the same one, so only the first rank has a curve of it

    @classmethod
    def of(cls, results: Results) -> Timeline | None:
        """None if nothing was recorded. Raises KeyError, TypeError or ValueError if it is damaged (resources.Timeline)."""
        marks = [(_number(seconds), str(text)) for seconds, text in results.timeline.get("marks", [])]
        tracks = list(results.timeline.get("tracks", []))
        if not marks or not tracks:
            return None
        start = marks[0][0]
        last = max([seconds for track in tracks for seconds in track["samples"]["seconds"]], default=start)
        labels = sorted({row.label for row in results.rows}, key=len, reverse=True)
        spans: list[Span] = []
        payloads: list[tuple[float, str]] = []
        for number, (begin, text) in enumerate(marks):
            rest = text.removeprefix(f"{results.benchmark} ")
            label = next((each for each in labels if rest.startswith(f"{each} ")), "")
            payload = rest.removeprefix(f"{label} ").rpartition(" run ")[0]
            end = marks[number + 1][0] if number + 1 < len(marks) else max(last, begin)
            spans.append(Span(begin - start, end - start, label))
            if not payloads or payloads[-1][1] != payload:
                payloads.append((begin - start, payload))
        hellos = [hello for crew in results.ranks.values() for hello in crew]
        shared = bool(hellos) and all(hello.get("interface") in ("", "lo") for hello in hellos)
        crews = list({tuple(track["transports"]): None for track in tracks if track["kind"] != "machine"})
        processes: list[Process] = []
        machine = None
        for track in tracks:
            samples = {name: list(map(_number, values)) for name, values in track["samples"].items()}
            seconds = [each - start for each in samples["seconds"]]
            if len({len(values) for values in samples.values()}) > 1:
                raise ValueError(f"the columns of {track['name']} have different lengths")
            if track["kind"] == "machine":
                machine = _share(samples, seconds)
                continue
            crew = crews.index(tuple(track["transports"]))
            name = str(track["name"])
            first = not any(each.kind == "rank" for each in processes)
            of_ranks = track["kind"] == "rank"
            processes.append(
                Process(
                    kind=str(track["kind"]),
                    name=name,
                    label=f"{name}: {', '.join(track['transports'])}" if len(crews) > 1 else name,
                    crew=crew,
                    clock_error_s=_number(track["clock_error_s"]),
                    cpu_percent=_rate(seconds, _cpu(samples), 100.0),
                    resident_mb=(seconds, [value / 1e6 for value in samples["resident_bytes"]]),
                    sent_mbit_s=(_rate(seconds, samples["sent_bytes"], 8e-6) if of_ranks and (first or not shared) else None),
                )
            )
        return cls(spans, payloads, processes, machine, shared)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} in the timeline is no number")
    return float(value)


def _cpu(samples: dict[str, list[float]]) -> list[float]:
    if "cpu_s" in samples:
        return samples["cpu_s"]
    return [user + system for user, system in zip(samples["user_s"], samples["system_s"], strict=True)]


def _rate(seconds: Sequence[float], counts: Sequence[float], scale: float) -> Curve:
    """What grew, a second, at the end of each interval."""
    ends, rates = [], []
    for (begin, before), (end, after) in pairwise(zip(seconds, counts, strict=True)):
        if end > begin:
            ends.append(end)
            rates.append(scale * (after - before) / (end - begin))
    return ends, rates


def _share(samples: dict[str, list[float]], seconds: Sequence[float]) -> Curve:
    """Busy ticks of all ticks, in per cent."""
    ends, shares = [], []
    counts = zip(seconds, samples["busy_ticks"], samples["ticks"], strict=True)
    for (_, busy, ticks), (end, busy_after, ticks_after) in pairwise(counts):
        if ticks_after > ticks:
            ends.append(end)
            shares.append(100 * (busy_after - busy) / (ticks_after - ticks))
    return ends, shares
