"""Files of results: raw samples, figures, arguments, environment as JSON; one line a run as CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from switchsum.measure.rows import Figure, Row
from switchsum.measure.samples import Carried, Run, Series, Usage
from switchsum.measure.table import wrong_elements

SCHEMA = "switchsum-bench/2"
BENCHMARKS = ("p2p-latency", "p2p-bandwidth", "ps-throughput", "allreduce")
_KINDS = {
    **dict.fromkeys(("benchmark", "title"), str),
    **dict.fromkeys(("arguments", "environment", "ranks", "timeline"), dict),
    **dict.fromkeys(("links", "payloads", "verdicts"), list),
    "complete": bool,
}
_TEXTS = ("benchmark", "transport", "mode", "payload", "dtype", "redop", "link_source")


class BadResults(ValueError):
    """A file is not one of ours; the text says which, and why."""


class WrongSchema(BadResults):
    """It is JSON, but nothing that a benchmark of this version has written."""


@dataclass
class Results:
    """What one benchmark leaves. `links`: what is known of the workers' links; `ranks`: by crew, what each process said of
    itself; `payloads`: manifests by name; `timeline`: of resources (resources.Timeline); `verdicts`: of conservation;
    `complete`: whether all rows were measured."""

    benchmark: str
    title: str
    arguments: dict[str, Any]
    environment: dict[str, Any]
    rows: list[Row]
    series: list[Series]
    links: list[dict[str, Any]] = field(default_factory=list)
    ranks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    payloads: list[dict[str, Any]] = field(default_factory=list)
    timeline: dict[str, Any] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        rest = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("rows", "series")}
        both = zip(self.rows, self.series, strict=True)
        results = [{**asdict(row), "samples": asdict(samples)} for row, samples in both]
        return {"schema": SCHEMA, **rest, "results": results, "out_of_bounds": wrong_elements(self.rows)}

    def save(self, path: Path) -> None:
        """Raises OSError."""
        path.write_text(json.dumps(self.as_json(), indent=1))

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises BadResults."""
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise BadResults(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise BadResults(f"{path} is not JSON: {error}; measure again") from error
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise WrongSchema(f"{path} is not a result of switchsum bench: its schema is not {SCHEMA}; write it with --json")
        try:
            series = [_series(each["samples"]) for each in found["results"]]
            rest = {each.name: found[each.name] for each in fields(cls) if each.name not in ("rows", "series")}
            for name, kind in _KINDS.items():
                if not isinstance(rest[name], kind):
                    raise ValueError(f"{name} is no {kind.__name__}")
            if not all(isinstance(each, dict) for each in rest["verdicts"]):
                raise ValueError("a verdict is no object")
            if not series:
                raise ValueError("it has no rows")
            return cls(rows=[Row.of(each) for each in series], series=series, **rest)
        except (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            raise BadResults(f"{path} is damaged: {type(error).__name__}: {error}; measure again") from error


def _series(found: Mapping[str, Any]) -> Series:
    runs = [
        Run(
            **{
                **run,
                "usage": [Usage(**each) for each in run["usage"]],
                "carried": [Carried(**each) for each in run["carried"]],
                "payload": [Carried(**each) for each in run["payload"]],
            }
        )
        for run in found["runs"]
    ]
    made = Series(**{**found, "runs": runs, "stages": [(seconds, packets) for seconds, packets in found["stages"]]})
    _check(made)
    return made


def _check(series: Series) -> None:
    """Raises ValueError where figures that follow would be nonsense."""
    for name in _TEXTS:
        if not isinstance(getattr(series, name), str):
            raise ValueError(f"{name} is no text")
    if series.benchmark not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {series.benchmark!r}")
    for name in ("size_bytes", "buffers", "workers"):
        if not isinstance(getattr(series, name), int) or getattr(series, name) < 1:
            raise ValueError(f"{name} is no number of at least 1")
    for rate in (series.link_rate_bps, *series.link_rates_bps):
        if rate is not None and not (isinstance(rate, int) and rate > 0):
            raise ValueError(f"a link's rate {rate!r} is no positive number of bits a second")
    if not isinstance(series.check, bool):
        raise ValueError("check is neither true nor false")
    for run in series.runs:
        times = [run.elapsed_s, *(seconds for worker in run.seconds for seconds in worker)]
        counts = [value for each in [*run.usage, *run.carried] for value in vars(each).values()]
        if not all(0 < each < math.inf for each in times):  # NaN fails, too
            raise ValueError(f"a time of run {run.number} is no positive number of seconds")
        if not all(0 <= each < math.inf for each in (*counts, run.paused_s, run.serialize_s or 0, run.switch_cpu_s or 0)):
            raise ValueError(f"a count of run {run.number} is no number")


_CSV = (
    "benchmark", "transport", "mode", "payload", "size_bytes", "buffers", "dtype", "redop", "workers", "servers", "colocated",
)  # fmt: skip


def write_csv(opened: TextIO, rows: Sequence[Row], series: Sequence[Series]) -> None:
    """One line for each row and run: what was measured, the run's headline figure and its mean time (seconds), what it used."""
    writer = csv.writer(opened)
    writer.writerow(
        [*_CSV, "run", "unit", "value", "seconds", "operations", "user_s", "system_s", "sent_bytes", "received_bytes",
         "dropped", "resent", "wrong"]
    )  # fmt: skip
    for row, samples in zip(rows, series, strict=True):
        what = [getattr(row, name) for name in _CSV]
        for number, run in enumerate(samples.runs):
            used = [sum(getattr(each, name) for each in run.usage) for name in ("user_s", "system_s")]
            carried = [sum(getattr(each, n) for each in run.carried) for n in ("sent_bytes", "received_bytes", "dropped")]
            figures: list[Figure] = [row.headline, row.time]
            values = [figure.runs[number] for figure in figures]
            writer.writerow([*what, run.number, row.unit, *values, run.operations, *used, *carried, run.resent, row.wrong])
