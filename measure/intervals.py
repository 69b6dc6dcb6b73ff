"""Intervals of 95 % over runs: of a mean, and of the ratio of two means.

A run is the unit: operations inside one run share whatever the machine did meanwhile, so they are not independent samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95 %, by degrees of freedom from 1.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.95996


def student_t(degrees: float) -> float:
    """Of 95 %, two-sided. Between whole degrees the lower one counts, so that intervals are never too narrow."""
    whole = max(1, math.floor(degrees))
    if whole <= len(_T):
        return _T[whole - 1]
    # Cornish-Fisher's expansion in 1/degrees (Abramowitz and Stegun 26.7.5): right to four digits from 30 on.
    z = _NORMAL
    return z + (z**3 + z) / (4 * whole) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * whole**2)


@dataclass(frozen=True)
class Ratio:
    """`value` with its interval, nan where it is not known; `differs`: the interval excludes 1."""

    value: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        return self.low > 1 or self.high < 1


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % t-interval around the mean of `values`; nan for fewer than two."""
    if len(values) < 2:
        return math.nan
    return student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def ratio(test: Sequence[float], base: Sequence[float]) -> Ratio:
    """mean(test) / mean(base), all values positive, with Welch's interval of the difference of logarithms.

    The centre is the ratio of geometric means, which for the spread of a few per cent that runs have is that of the means.
    """
    logs = [[math.log(value) for value in values] for values in (test, base)]
    middle = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if min(map(len, logs)) < 2:
        return Ratio(math.exp(middle), math.nan, math.nan)
    shares = [statistics.variance(values) / len(values) for values in logs]
    if not sum(shares):
        return Ratio(math.exp(middle), math.exp(middle), math.exp(middle))
    degrees = sum(shares) ** 2 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, logs, strict=True))
    half = student_t(degrees) * math.sqrt(sum(shares))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
