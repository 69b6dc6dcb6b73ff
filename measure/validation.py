"""Whether predictions are right: steps of small trainings predicted for links and architectures, and then measured.

The model is given two things: sums measured alone, by `switchsum bench`, at one rate (calibration), and each training's
features, profiled at that rate over a ring (Gloo). What it says of other rates and architectures is written down before they
are run. Beside it stand two guesses that anybody could make:

* Amdahl: the communication that was exposed when it was profiled becomes as many times shorter or longer as the nominal rate
  and the architecture's bytes on the link say; all else stays.
* No change: a step takes what it took.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from switchsum.measure import costs, prediction, strict_json
from switchsum.measure.costs import Cluster
from switchsum.measure.features import Features
from switchsum.measure.prediction import Ground, Interval
from switchsum.measure.rows import Figure, Row

SCHEMA = "switchsum-validation/1"
KINDS = {
    "convolution": "a residual network",
    "translation": "sequence to sequence, LSTM",
    "language": "BERT-like, a transformer",
    "speech": "recurrent layers and CTC",
    "recommendation": "embedding-heavy",
    "graph": "a graph network",
}
TRANSPORTS = {"ps": "tcp", "ring": "gloo", "switch": "switchsum"}
PROFILED = "ring"  # the architecture over which trainings are profiled

# What is aimed at (facts/measurement.md, 6.5): mean and worst error of a step's time, and pairs in the right order.
MOST_MEAN_ERROR, MOST_ERROR, LEAST_RIGHT = 0.10, 0.20, 0.95


@dataclass(frozen=True)
class Measured:
    """A step's seconds, mean of each run; what the link carried of its rate, the machine's busy share, and what limited it.
    `wrong`: weights that differed between ranks."""

    step: Figure
    link_share: float | None
    busy: float
    limited_by: str
    resent: int | None
    wrong: int

    @classmethod
    def of(cls, row: Row) -> Measured:
        return cls(row.time, row.link_share, row.busy, row.limited_by, row.resent, row.wrong or 0)


@dataclass(frozen=True)
class Forecast:
    """Of one training, seconds a step. `ideal_s`, `sum_s`: bounds with all and no overlap; `amdahl_s`, `unchanged_s`: the
    guesses. `anchor`: it is what was profiled, so this repeats a measurement."""

    workload: str
    architecture: str
    rate_bps: float
    step: Interval
    ideal_s: float
    sum_s: float
    amdahl_s: float
    unchanged_s: float
    limit: str
    anchor: bool

    @classmethod
    def of(cls, features: Features, architecture: str, rate_bps: float, cluster: Cluster, ground: Ground) -> Forecast:
        """`features`: profiled over a ring on links of features.link_bps. Raises CannotPredict, BadCalibration."""
        assert features.link_bps is not None
        found = prediction.predict(features, architecture, cluster, {"ethernet": rate_bps / 8}, ground)
        step_s, exposed_s = features.mean_step_s, statistics.fmean(features.exposed_s)
        before, after = (costs.link_bytes(each, cluster, features.wire_dtype) for each in (PROFILED, architecture))
        times = features.link_bps / rate_bps * after / before
        return cls(
            features.name,
            architecture,
            rate_bps,
            found.step,
            found.ideal_s,
            found.sum_s,
            step_s - exposed_s + exposed_s * times,
            step_s,
            found.limit,
            architecture == PROFILED and rate_bps == features.link_bps,
        )


@dataclass(frozen=True)
class Point:
    """What was predicted, and what was then measured."""

    forecast: Forecast
    measured: Measured

    def error(self, predicted_s: float) -> float:
        """Relative to what was measured; above 0: the step was predicted too long."""
        return predicted_s / self.measured.step.mean - 1

    @property
    def covered(self) -> bool:
        """Whether the measured mean lies in the predicted interval."""
        return self.forecast.step.low <= self.measured.step.mean <= self.forecast.step.high

    @property
    def _interval(self) -> tuple[float, float]:
        step = self.measured.step
        return step.mean - step.ci95, step.mean + step.ci95

    def faster(self, other: Point) -> bool | None:
        """Whether it was measured faster; None if the intervals overlap."""
        mine, theirs = self._interval, other._interval
        if mine[1] < theirs[0]:
            return True
        return False if theirs[1] < mine[0] else None


@dataclass(frozen=True)
class Errors:
    """Of one way to predict: mean absolute error, the worst, and pairs of architectures in the right order, of all that can be
    told apart."""

    mean: float
    worst: float
    right: int
    pairs: int

    @property
    def right_share(self) -> float:
        return self.right / self.pairs if self.pairs else math.nan


def judge(points: Sequence[Point]) -> dict[str, Errors]:
    """By way to predict, "model" first. Points that repeat the profile count in pairs alone: nothing was predicted there."""
    ways = {
        "model": lambda each: each.forecast.step.value,
        "Amdahl": lambda each: each.forecast.amdahl_s,
        "no change": lambda each: each.forecast.unchanged_s,
    }
    return {name: _errors(points, way) for name, way in ways.items()}


def _errors(points: Sequence[Point], predicted: Any) -> Errors:
    errors = [abs(point.error(predicted(point))) for point in points if not point.forecast.anchor]
    right = pairs = 0
    for one, other in itertools.combinations(points, 2):
        mine, theirs = one.forecast, other.forecast
        if (mine.workload, mine.rate_bps) != (theirs.workload, theirs.rate_bps):
            continue
        faster = one.faster(other)
        if faster is not None:
            pairs += 1
            right += (predicted(one) < predicted(other)) if faster else (predicted(one) > predicted(other))
    return Errors(statistics.fmean(errors), max(errors), right, pairs)


@dataclass
class Validation:
    """All of it. `features`: by workload, of all ranks together; `forecasts`: as written before anything was run; `notes`:
    sentences about where it ran; `complete`: whether every forecast was held against a measurement."""

    arguments: Mapping[str, Any]
    environment: Mapping[str, Any]
    calibration: Mapping[str, Any]
    features: Sequence[Features]
    forecasts: Sequence[Forecast]
    notes: list[str] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.points) == len(self.forecasts)

    @property
    def predicted(self) -> list[Point]:
        return [point for point in self.points if not point.forecast.anchor]

    @property
    def coverage(self) -> float:
        """Share of points whose measured mean lies in the predicted interval."""
        return statistics.fmean([point.covered for point in self.predicted])

    def missed(self) -> list[str]:
        """Which aims were not met; empty: all were."""
        found = judge(self.points)
        model, others = found["model"], [found["Amdahl"], found["no change"]]
        told = []
        if model.mean > MOST_MEAN_ERROR:
            told.append(f"mean error {100 * model.mean:.1f} % is above {100 * MOST_MEAN_ERROR:g} %")
        if model.worst > MOST_ERROR:
            told.append(f"worst error {100 * model.worst:.1f} % is above {100 * MOST_ERROR:g} %")
        if model.pairs and model.right_share < LEAST_RIGHT:
            told.append(f"{model.right} of {model.pairs} pairs are in the right order, less than {100 * LEAST_RIGHT:g} %")
        if model.mean >= min(each.mean for each in others):
            told.append("a naive guess has a smaller mean error")
        if wrong := sum(point.measured.wrong for point in self.points):
            told.append(f"{wrong} weights differed between ranks: these trainings are not to be trusted")
        return told

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "arguments": dict(self.arguments),
            "environment": dict(self.environment),
            "calibration": dict(self.calibration),
            "features": [each.as_json() for each in self.features],
            "forecasts": [asdict(each) for each in self.forecasts],
            "notes": self.notes,
            "points": [{"forecast": asdict(each.forecast), "measured": asdict(each.measured)} for each in self.points],
            "complete": self.complete,
            "errors": {name: asdict(each) for name, each in judge(self.points).items()} if self.predicted else {},
            "coverage": self.coverage if self.predicted else None,
            "missed": self.missed() if self.predicted else [],
        }

    def save(self, path: Path) -> None:
        """All of it or, if that fails, nothing. Raises OSError."""
        strict_json.write_text(path, json.dumps(_finite(self.as_json()), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """JSON has no nan: what is not known is null."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(file: TextIO, points: Sequence[Point]) -> None:
    """One line a point: what the scatter plot is drawn from. Seconds."""
    columns = (
        "workload", "architecture", "rate_bps", "profiled_here", "predicted_s", "predicted_low_s", "predicted_high_s",
        "measured_s", "measured_ci95_s", "error", "amdahl_s", "unchanged_s", "link_share", "busy", "limited_by",
    )  # fmt: skip
    writer = csv.writer(file)
    writer.writerow(columns)
    for point in points:
        forecast, measured = point.forecast, point.measured
        writer.writerow(
            [
                forecast.workload,
                forecast.architecture,
                f"{forecast.rate_bps:g}",
                forecast.anchor,
                *(f"{each:.6g}" for each in (forecast.step.value, forecast.step.low, forecast.step.high)),
                f"{measured.step.mean:.6g}",
                f"{measured.step.ci95:.3g}",
                f"{point.error(forecast.step.value):.4f}",
                f"{forecast.amdahl_s:.6g}",
                f"{forecast.unchanged_s:.6g}",
                "" if measured.link_share is None else f"{measured.link_share:.4f}",
                f"{measured.busy:.3f}",
                measured.limited_by,
            ]
        )
