"""The picture: algbw over size for every transport, with its range, and the most that the link's payload allows."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from switchsum.measure import formulas
from switchsum.measure.rows import Row
from switchsum.p4src.layout import HEADER_BYTES

_HEADERS = 14 + 20 + 8 + HEADER_BYTES  # Ethernet, IPv4, UDP, ours: what tbf counts beside the numbers


def payload_rate(rate_bps: float, elements: int) -> float:
    """GB/s of tensor that a link of this rate carries in packets of `elements` numbers."""
    payload = 4 * elements
    return rate_bps / 8 * payload / (payload + _HEADERS) / formulas.GIGA


def write(path: Path, rows: Sequence[Row], title: str, link_rate_bps: int | None, elements: int) -> None:
    """Write a PNG. Raises OSError. Needs matplotlib."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    from switchsum.measure import sizes

    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row.label for row in rows):
        mine = [row for row in rows if row.label == name]
        by_run = [[formulas.algbw(row.size_bytes, seconds) for seconds in row.time.runs] for row in mine]
        middle, least, most = ([of(runs) for runs in by_run] for of in (statistics.median, min, max))
        below = [value - low for value, low in zip(middle, least, strict=True)]
        above = [high - value for value, high in zip(middle, most, strict=True)]
        axes.errorbar(
            [row.size_bytes for row in mine], middle, yerr=[below, above], marker="o", markersize=4, capsize=3, label=name
        )
    if link_rate_bps is not None:
        axes.axhline(
            payload_rate(link_rate_bps, elements),
            color="gray",
            linestyle="--",
            label=f"link's payload, {link_rate_bps / 1e6:g} Mbit/s",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: sizes.name(round(value))))
    axes.set_xlabel("size of a worker's tensor")
    axes.set_ylabel("algbw (GB/s, 1e9 bytes)")
    axes.set_title(title, fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path)
