"""Predicted against measured: a point for each training, architecture and rate, and how far each prediction was off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from switchsum.measure import drawing, media
from switchsum.measure.drawing import Picture
from switchsum.measure.validation import MOST_ERROR, MOST_MEAN_ERROR, Point, Validation
from switchsum.measure.whatif_pictures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = dict(zip(("convolution", "translation", "language", "speech", "recommendation", "graph"), "osD^vP", strict=True))
_GREY = "#666666"


def scatter(validation: Validation) -> Picture:
    """Needs matplotlib."""
    points = validation.points
    canvas, (model, amdahl) = drawing.canvas([5.2, 5.2], 5.4, share_x=True, share_y=True)
    _against(model, points, lambda each: each.forecast.step.value, "the model")
    _against(amdahl, points, lambda each: each.forecast.amdahl_s, "Amdahl with nominal rates")
    model.set_ylabel("predicted step (ms)")
    handles, labels = model.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    says = [
        f"A point is one training over one architecture at one rate, predicted before it was run. Bars are intervals of 95 %; "
        f"the dark band is {100 * MOST_MEAN_ERROR:g} % around what was measured, the light one {100 * MOST_ERROR:g} %. Grey "
        "rings: what was profiled, so nothing was predicted there."
    ]
    alt = f"Predicted over measured step time of {len(points)} points, both axes logarithmic, with the line of equality."
    return drawing.picture("predicted-measured", "Predicted against measured step time", alt, says, canvas)


def _against(axes: Axes, points: Sequence[Point], predicted: Callable[[Point], float], title: str) -> None:
    forecasts = [each for point in points for each in (point.forecast.step.value, point.forecast.amdahl_s)]
    shown = [1e3 * each for each in (*forecasts, *(point.measured.step.mean for point in points))]
    low, high = 0.7 * min(shown), 1.4 * max(shown)  # also of what was predicted far from it
    for share, alpha in ((MOST_ERROR, 0.10), (MOST_MEAN_ERROR, 0.18)):
        below, above = ([each * (1 + sign * share) for each in (low, high)] for sign in (-1, 1))
        axes.fill_between([low, high], below, above, color=_GREY, alpha=alpha, linewidth=0)
    axes.plot([low, high], [low, high], color=_GREY, linewidth=1)
    for point in points:
        forecast, step = point.forecast, point.measured.step
        value = 1e3 * predicted(point)
        bars = [[1e3 * (forecast.step.value - forecast.step.low)], [1e3 * (forecast.step.high - forecast.step.value)]]
        axes.errorbar(
            [1e3 * step.mean],
            [value],
            yerr=bars if title == "the model" else None,
            xerr=[1e3 * step.ci95],
            color=COLOURS[forecast.architecture],
            marker=_MARKERS.get(forecast.workload, "x"),
            markersize=5,
            elinewidth=0.8,
            markeredgecolor=_GREY if forecast.anchor else None,
            markerfacecolor="none" if forecast.anchor else None,
        )
    for name in dict.fromkeys(point.forecast.architecture for point in points):
        axes.plot([], [], color=COLOURS[name], linewidth=4, label=name)
    for name in dict.fromkeys(point.forecast.workload for point in points):
        axes.plot([], [], color=_GREY, marker=_MARKERS.get(name, "x"), linestyle="none", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("measured step (ms)")
    axes.grid(True, which="both", alpha=0.2)


def errors(validation: Validation) -> Picture:
    """Signed errors, by rate. Needs matplotlib."""
    points = validation.predicted
    rates = sorted({point.forecast.rate_bps for point in points})
    names = list(dict.fromkeys(point.forecast.workload for point in points))
    canvas, panels = drawing.canvas([10.4 / len(rates)] * len(rates), 3.8, share_y=True)
    for axes, rate in zip(panels, rates, strict=True):
        axes.axhspan(-100 * MOST_MEAN_ERROR, 100 * MOST_MEAN_ERROR, color=_GREY, alpha=0.15, linewidth=0)
        axes.axhline(0, color=_GREY, linewidth=1)
        for point in points:
            if point.forecast.rate_bps == rate:
                place = list(COLOURS).index(point.forecast.architecture)
                axes.plot(
                    [names.index(point.forecast.workload) + 0.12 * (place - 1)],
                    [100 * point.error(point.forecast.step.value)],
                    color=COLOURS[point.forecast.architecture],
                    marker="o",
                    markersize=5,
                )
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
        axes.set_title(media.told("ethernet", rate / 8), fontsize=10)
        axes.grid(True, axis="y", alpha=0.3)
    panels[0].set_ylabel("predicted over measured, less 1 (%)")
    for name in dict.fromkeys(point.forecast.architecture for point in points):
        panels[0].plot([], [], color=COLOURS[name], marker="o", linestyle="none", label=name)
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    alt = f"Signed errors of {len(points)} predictions, a panel for each of {len(rates)} rates."
    says = [f"Above 0: predicted too long. The band is {100 * MOST_MEAN_ERROR:g} %, the aim for the mean."]
    return drawing.picture("errors", "How far each prediction was off", alt, says, canvas)
