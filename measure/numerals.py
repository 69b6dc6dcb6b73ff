"""Numbers as people read them."""

from __future__ import annotations

import math

from switchsum.measure.intervals import Ratio
from switchsum.measure.rows import Figure


def significant(value: float, digits: int = 4) -> str:
    """Without an exponent, thousands apart; "-" for what is not known."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def interval(figure: Figure, unit: str = "") -> str:
    """The mean and the half-width of its interval, both to the same place."""
    ci95, unit = figure.ci95, f" {unit}" if unit else ""
    if not math.isfinite(ci95) or not figure.mean:
        return f"{significant(figure.mean)} ± -{unit}"
    # Two digits of the half-width, but never more of the mean than make sense, nor fewer than three.
    least = math.floor(math.log10(ci95)) - 1 if ci95 else -6
    first = math.floor(math.log10(abs(figure.mean)))
    decimals = max(0, min(max(-least, 2 - first), 4 - first))
    return f"{figure.mean:,.{decimals}f} ± {ci95:,.{decimals}f}{unit}"


def ratio(value: Ratio) -> str:
    if math.isnan(value.low):
        return f"{significant(value.value, 3)} (interval not known)"
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def microseconds(value: float) -> tuple[float, str]:
    """The unit in which a time of so many microseconds is best told: how many microseconds it has, and its name."""
    return next((each for each in ((1e6, "s"), (1e3, "ms")) if value >= each[0]), (1.0, "µs"))


def time(figure: Figure) -> str:
    """A time given in microseconds, with its interval."""
    size, unit = microseconds(figure.mean)
    return interval(Figure(figure.mean / size, figure.ci95 / size, ()), unit)


def seconds(value: float) -> str:
    """A time given in seconds, without an interval."""
    size, unit = microseconds(1e6 * value)
    return f"{significant(1e6 * value / size, 3)} {unit}"
