"""Two measurements side by side: the ratio of each row's headline figure, with its interval.

A difference is claimed only where the interval excludes 1. The interval knows the spread of runs inside each measurement, not
how the machine changed between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchsum.measure import page
from switchsum.measure.intervals import Ratio, ratio
from switchsum.measure.result_files import Found, Measured, latest
from switchsum.measure.results import Results

SCHEMA = "switchsum-bench-diff/1"


@dataclass(frozen=True)
class Pair:
    """The same row in both. `ratio`: of the headline figures, test over base."""

    base: Measured
    test: Measured
    ratio: Ratio

    @property
    def longer(self) -> Ratio:
        """How many times as long the test's operations take, whatever the unit says."""
        if self.base.row.unit == "us":
            return self.ratio
        return Ratio(1 / self.ratio.value, 1 / self.ratio.high, 1 / self.ratio.low)

    @property
    def wrong(self) -> bool:
        return bool(self.base.row.wrong or self.test.row.wrong)

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong results, not compared"
        if not self.ratio.differs:
            return "no difference shown"
        return "slower" if self.longer.value > 1 else "faster"

    def slower_by(self, percent: float) -> bool:
        """Whether all of the interval of `longer` lies beyond so many per cent more."""
        return self.longer.low > 1 + percent / 100


@dataclass(frozen=True)
class Comparison:
    """`environment`: what differs and may matter, as (name, base's, test's). `notes`: rows that were left out."""

    pairs: list[Pair]
    only_base: list[Measured]
    only_test: list[Measured]
    environment: list[tuple[str, str, str]]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "environment": [{"what": what, "base": base, "test": test} for what, base, test in self.environment],
            "rows": [
                {
                    **_who(pair.base),
                    "unit": pair.base.row.unit,
                    **{
                        side: {"mean": figure.mean, "ci95": _known(figure.ci95)}
                        for side, figure in (("base", pair.base.row.headline), ("test", pair.test.row.headline))
                    },
                    "ratio": {name: _known(value) for name, value in vars(pair.ratio).items()},
                    "verdict": pair.verdict,
                }
                for pair in self.pairs
            ],
            "only_in_base": [_who(each) for each in self.only_base],
            "only_in_test": [_who(each) for each in self.only_test],
            "notes": self.notes,
        }


def compare(base: Found, test: Found) -> Comparison:
    """Rows that are the same measurement (Row.key); where one of the two has a row at several link rates, at the same rate."""
    sides, notes = [], []
    for found in (base, test):
        rows, left_out = latest(found.measured)
        sides.append(rows)
        notes += left_out
    keys = [[each.row.key for each in rows] for rows in sides]
    repeated = {key for side in keys for key in side if side.count(key) > 1}
    first, second = (
        {(each.row.key, each.series.link_rate_bps if each.row.key in repeated else None): each for each in rows}
        for rows in sides
    )
    pairs = [
        Pair(each, second[key], ratio(second[key].row.headline.runs, each.row.headline.runs))
        for key, each in first.items()
        if key in second
    ]
    return Comparison(
        pairs,
        [each for key, each in first.items() if key not in second],
        [each for key, each in second.items() if key not in first],
        _differences(base, test),
        notes,
    )


_ENVIRONMENT: Mapping[str, Callable[[Results], str]] = {
    "kernel": lambda results: str(results.environment.get("kernel", "")),
    "CPU": lambda results: str(results.environment.get("cpu", "")),
    "cores": lambda results: str(results.environment.get("cores", "")),
    "commit": lambda results: str(results.environment.get("git", "")),
    "Python": lambda results: str(results.environment.get("python", "")),
    "packages": lambda results: page.pairs(results.environment.get("packages")),
    "variables": lambda results: page.pairs(results.environment.get("variables")),
    "links": page.links,
}


def _differences(base: Found, test: Found) -> list[tuple[str, str, str]]:
    told = []
    for name, of in _ENVIRONMENT.items():
        both = [" / ".join(sorted({of(results) for results in found.files.values()})) for found in (base, test)]
        if both[0] != both[1]:
            told.append((name, both[0] or "-", both[1] or "-"))
    return told


def _known(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None


def _who(each: Measured) -> dict[str, Any]:
    row = each.row
    names = (
        "benchmark",
        "transport",
        "mode",
        "payload",
        "size_bytes",
        "buffers",
        "dtype",
        "redop",
        "workers",
        "servers",
        "colocated",
        "check",
    )
    return {**{name: getattr(row, name) for name in names}, "link_rate_bps": each.series.link_rate_bps}


def lines(comparison: Comparison) -> list[str]:
    """For a terminal."""
    from switchsum.measure import numerals

    told = [f"# {what}: {base} | {test}" for what, base, test in comparison.environment]
    rows: list[Sequence[str]] = [("benchmark", "transport", "payload", "Mbit/s", "base", "test", "test/base", "verdict")]
    for pair in comparison.pairs:
        base, test = pair.base.row, pair.test.row
        figures = [
            numerals.time(row.headline) if row.unit == "us" else numerals.interval(row.headline, row.unit)
            for row in (base, test)
        ]
        rates = dict.fromkeys(each.series.link_rate_bps for each in (pair.base, pair.test))
        links = ", ".join("-" if rate is None else f"{rate / 1e6:g}" for rate in rates)
        rows.append((base.benchmark, pair.base.label, base.payload, links, *figures, numerals.ratio(pair.ratio), pair.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told += [f"# {table[0]}", *(f"  {line}" for line in table[1:])]
    for where, measured in (("base", comparison.only_base), ("test", comparison.only_test)):
        told += [
            f"# only in {where}: {each.row.benchmark} {each.label} {each.row.payload}, {each.setting.told}" for each in measured
        ]
    told += [f"# {note}" for note in comparison.notes]
    counts = {verdict: sum(pair.verdict == verdict for pair in comparison.pairs) for verdict in ("faster", "slower")}
    told.append(
        f"# of {len(comparison.pairs)} rows in both: {counts['faster']} faster, {counts['slower']} slower; intervals are of "
        "95 %, so about 1 row in 20 differs by chance"
    )
    return told
