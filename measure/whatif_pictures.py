"""How a prediction depends on link rate and workers: each architecture in the colour of the transport that stands for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from switchsum.measure import drawing, intervals, media, prediction
from switchsum.measure.costs import MOST_WORKERS, Cluster
from switchsum.measure.drawing import Picture
from switchsum.measure.prediction import Prediction
from switchsum.measure.whatif import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's, as pictures of benchmarks have them: grpc, gloo, nccl, switchsum and its narrow lanes.
COLOURS = {
    "ps": "#E69F00",
    "ring": "#009E73",
    "hierarchical": "#56B4E9",
    "switch": "#D55E00",
    "switch16": "#CC79A7",
    "switch8": "#7A3E9D",
}
MARKERS = dict(zip(COLOURS, "s^*DvP", strict=True))
_POINTS = 25
_WIDER = 4.0  # on either side of the rates that were asked for
_MOST_WORKERS = 64


def sensitivity(study: Study) -> Picture:
    """Speed-up over the link's rate and over the number of workers, with bands of 95 %. Needs matplotlib."""
    first = study.predictions[0]
    asked = [each.rates["ethernet"] for each in study.predictions]
    low, high = min(asked) / _WIDER, max(asked) * _WIDER
    rates = [low * (high / low) ** (point / (_POINTS - 1)) for point in range(_POINTS)]
    most = max(_MOST_WORKERS, *(each.cluster.workers for each in study.predictions))
    powers = (1 << power for power in range(1, math.ceil(math.log2(most)) + 1))
    counts = [count for count in powers if count <= MOST_WORKERS]
    canvas, (over_rate, over_workers) = drawing.canvas([5.2, 5.2], 4.4, share_y=True)
    names = list(dict.fromkeys(each.architecture for each in study.predictions))
    for name in names:
        workers = first.cluster.workers
        at_rates = [_predicted(study, name, {**first.rates, "ethernet": rate}, workers) for rate in rates]
        _line(over_rate, study, name, [8 * rate for rate in rates], at_rates)
        possible = [count for count in counts if _fits(first.cluster, count)]
        _line(over_workers, study, name, possible, [_predicted(study, name, study.base.rates, count) for count in possible])
    none = study.base.step.value / first.alone_s
    for axes, title in (
        (over_rate, f"{_workers(first)}"),
        (over_workers, media.told("ethernet", study.base.rates["ethernet"])),
    ):
        axes.axhline(1, color="#444444", linewidth=0.8)
        axes.axhline(none, color="#444444", linestyle="--", linewidth=1, label="no communication at all")
        axes.set_title(title, fontsize=9)
        axes.grid(True, alpha=0.3)
        axes.set_ylim(bottom=0)
        axes.set_xscale("log", base=2 if axes is over_workers else 10)
    for rate in dict.fromkeys(asked):
        over_rate.axvline(8 * rate, color="#BBBBBB", linestyle=":", linewidth=1)
    if study.now is not None and study.features.link_bps is not None:
        _measured(over_rate, study, study.now)
    _rate_axis(over_rate)
    over_workers.set_xticks(counts, [str(count) for count in counts], fontsize=7, rotation=45)
    over_workers.set_xlabel("workers, each with its own batch")
    base = study.base
    others = f"{base.architecture}, {_workers(base)}, {media.told('ethernet', base.rates['ethernet'])}"
    over_rate.set_ylabel(f"speed-up of a step: {'now' if study.now else others} = 1")
    handles, labels = over_rate.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=8)
    says = [
        "Lines are predictions, bands their 95 % intervals from the calibration and the steps' spread; dotted: the rates asked "
        "for; dashed: a step without any communication, which no network can beat."
    ]
    if study.features.synthetic:
        says.append("The features are synthetic: made up, not measured.")
    title = f"{study.features.name}: what link and architecture would change" + (
        " (SYNTHETIC)" if study.features.synthetic else ""
    )
    alt = f"Lines of the predicted speed-up over link rate and over workers for {', '.join(names)}."
    return drawing.picture("whatif", title, alt, says, canvas)


def _fits(cluster: Cluster, workers: int) -> bool:
    """Whether so many are whole hosts, and at least one a rack."""
    return workers % cluster.per_host == 0 and workers // cluster.per_host >= cluster.racks


def _predicted(study: Study, name: str, rates: Mapping[str, float], workers: int) -> Prediction:
    cluster = study.predictions[0].cluster
    servers = cluster.servers if cluster.dedicated else min(cluster.servers, workers // cluster.per_host)
    return prediction.predict(study.features, name, replace(cluster, workers=workers, servers=servers), rates, study.ground)


def _line(axes: Axes, study: Study, name: str, places: Sequence[float], found: Sequence[Prediction]) -> None:
    ratios = [prediction.speedup(study.base, each) for each in found]
    colour, number = COLOURS[name], list(COLOURS).index(name)
    values = [each.value for each in ratios]
    # Where architectures do alike, the thicker line below and the shifted markers still show each of them.
    width, every = 4.5 - 0.7 * number, (number % max(1, min(4, len(places))), 4)
    axes.plot(places, values, color=colour, linewidth=width, marker=MARKERS[name], markersize=5, markevery=every, label=name)
    axes.fill_between(
        places, [each.low for each in ratios], [each.high for each in ratios], color=colour, alpha=0.2, linewidth=0
    )


def _measured(axes: Axes, study: Study, now: Prediction) -> None:
    steps = study.features.step_s
    mean, half = study.features.mean_step_s, intervals.half_width(steps)
    y = now.step.value / mean
    error = y * half / mean if math.isfinite(half) else 0.0
    x = 8 * now.rates["ethernet"]
    axes.errorbar(x, y, yerr=error, fmt="o", color="black", fillstyle="none", markersize=8, capsize=3, label="measured")


def _rate_axis(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: media.told("ethernet", value / 8)))
    axes.tick_params(axis="x", labelsize=7, rotation=45)
    axes.set_xlabel("link rate of a host")


def _workers(found: Prediction) -> str:
    return f"{found.cluster.workers} worker{'s' if found.cluster.workers > 1 else ''}"
