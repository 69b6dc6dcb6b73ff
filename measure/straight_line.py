"""A straight line through points, by least squares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from switchsum.measure.intervals import student_t


@dataclass(frozen=True)
class Line:
    """y = intercept + slope * x. `slope_ci95`: half-width of the slope's 95 % interval, nan of two points. `r_squared`: the
    share of y's variance that the line explains."""

    slope: float
    intercept: float
    slope_ci95: float
    r_squared: float

    @classmethod
    def through(cls, x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None = None) -> Line:
        """Of at least two different x. `weights`: of each point's squared distance; without, all count alike."""
        weights = weights or [1.0] * len(x)
        mean_x, mean_y = (statistics.fmean(values, weights) for values in (x, y))
        points = list(zip(x, y, weights, strict=True))
        spread_x, spread_y = sum(w * (a - mean_x) ** 2 for a, _, w in points), sum(w * (b - mean_y) ** 2 for _, b, w in points)
        slope = sum(w * (a - mean_x) * (b - mean_y) for a, b, w in points) / spread_x
        intercept = mean_y - slope * mean_x
        missed = sum(w * (b - intercept - slope * a) ** 2 for a, b, w in points)
        degrees = len(x) - 2
        half = student_t(degrees) * math.sqrt(missed / degrees / spread_x) if degrees else math.nan
        return cls(slope, intercept, half, 1 - missed / spread_y if spread_y else 1.0)

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x
