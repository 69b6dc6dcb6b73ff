"""The pictures of an analysis: shares of each rank, what communication was hidden or waited, and one step over time.

One colour per part in all of them (Okabe and Ito's, which colour-blind people can tell apart); waiting is hatched.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from switchsum.measure import drawing, numerals, spans
from switchsum.measure.analysis import Analysis, RankTimes
from switchsum.measure.drawing import Picture
from switchsum.measure.spans import Spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RANKS = 16
_HATCH = "////"
_EXPOSED, _HIDDEN, _PAI = "#D55E00", "#009E73", "#7A3E9D"
_COMPUTE, _INPUT, _UNCLASSIFIED = "#0072B2", "#E69F00", "#CC79A7"
# Of a step, in the order in which they are stacked: label, field, colour.
_PARTS = (
    ("compute", "compute_s", _COMPUTE),
    ("input", "input_s", _INPUT),
    ("exposed communication", "exposed_s", _EXPOSED),
    ("unclassified", "unclassified_s", _UNCLASSIFIED),
    ("other, idle", "other_s", "#C8C8C8"),
)


def all_pictures(analysis: Analysis) -> list[Picture]:
    """Needs matplotlib."""
    drawn = [shares(analysis)]
    if any(each.figure("communication_s").mean for each in analysis.ranks):
        drawn.append(communication(analysis))
    return [*drawn, timeline(analysis)]


def shares(analysis: Analysis) -> Picture:
    """A stack of what a step consists of, per rank, and beside it the two shares."""
    rows = _rows(analysis)
    canvas, (stack, both) = drawing.canvas([7.2, 4.2], 1.6 + 0.42 * len(rows))
    for place, each in enumerate(rows):
        step, left = each.figure("step_s").mean, 0.0
        for label, name, colour in _PARTS:
            width = 100 * each.figure(name).mean / step
            stack.barh(place, width, 0.7, left, color=colour, label=label if not place else None)
            if name == "exposed_s":
                waited = 100 * each.figure("exposed_wait_s").mean / step
                look: dict[str, Any] = {"color": _EXPOSED, "edgecolor": "white", "hatch": _HATCH, "linewidth": 0}
                stack.barh(place, waited, 0.7, left, label="of it, waiting for peers" if not place else None, **look)
                shown = each.figure("exposed_share")
                stack.errorbar(left + width, place, xerr=_known(100 * shown.ci95), color="black", capsize=2, linewidth=1)
            left += width
        for part, (name, colour, label) in enumerate(
            (("exposed_share", _EXPOSED, "exposed"), ("pai_share", _PAI, "PAI's, without overlap"))
        ):
            figure, at = each.figure(name), place + (part - 0.5) * 0.36
            both.barh(at, 100 * figure.mean, 0.34, color=colour, label=label if not place else None)
            both.errorbar(100 * figure.mean, at, xerr=_known(100 * figure.ci95), color="black", capsize=2, linewidth=1)
    _rank_axis(stack, rows)
    _rank_axis(both, rows)
    stack.set_xlim(0, 100)
    both.set_xlim(0, 100)
    stack.set_xlabel("% of a step")
    both.set_xlabel("communication share (%)")
    handles, labels = stack.get_legend_handles_labels()
    more, names = both.get_legend_handles_labels()
    canvas.legend([*handles, *more], [*labels, *names], loc="outside lower center", ncols=4, fontsize=8)
    whole = analysis.whole
    says = [
        f"A step takes {numerals.time(whole.figure('step_s', 1e6))}; of that, nothing but communication runs for "
        f"{numerals.interval(whole.figure('exposed_share', 100), '%')} (exposed share).",
        f"PAI's share, of a time without overlap and waiting: {numerals.interval(whole.figure('pai_share', 100), '%')}. "
        "The two answer different questions, and are not to be compared.",
        "Means over steps with 95 % intervals; on the left, that of the exposed share.",
    ]
    alt = "Stacked bars: shares of a step, by rank; beside them the exposed share and PAI's."
    return drawing.picture("shares", "Where the time of a step goes", alt, [*says, *_left_out(analysis)], canvas)


def communication(analysis: Analysis) -> Picture:
    """Milliseconds of a step in which communication was hidden, or exposed, and in either case waited or transferred."""
    rows = _rows(analysis)
    canvas, (axes,) = drawing.canvas([8.4], 1.6 + 0.42 * len(rows))
    for place, each in enumerate(rows):
        waited, exposed_wait = each.figure("wait_s").mean, each.figure("exposed_wait_s").mean
        hidden, exposed = each.figure("overlapped_s").mean, each.figure("exposed_s").mean
        left = 0.0
        for label, seconds, colour, hatch in (
            ("hidden, transfer", hidden - max(0.0, waited - exposed_wait), _HIDDEN, None),
            ("hidden, waiting for peers", max(0.0, waited - exposed_wait), _HIDDEN, _HATCH),
            ("exposed, transfer", exposed - exposed_wait, _EXPOSED, None),
            ("exposed, waiting for peers", exposed_wait, _EXPOSED, _HATCH),
        ):
            axes.barh(
                place, 1e3 * seconds, 0.7, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0,
                label=label if not place else None,
            )  # fmt: skip
            left += 1e3 * seconds
        whole = each.figure("communication_s")
        axes.errorbar(1e3 * whole.mean, place, xerr=_known(1e3 * whole.ci95), color="black", capsize=2, linewidth=1)
    _rank_axis(axes, rows)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms of a step")
    handles, labels = axes.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    all_of = analysis.whole
    says = [
        f"Communication is under way for {numerals.time(all_of.figure('communication_s', 1e6))} of a step; computation or "
        f"input hides {numerals.interval(all_of.figure('overlap_share', 100), '%')} of it.",
        f"For {numerals.time(all_of.figure('wait_s', 1e6))} of a step all collectives under way wait for a peer: no faster "
        "network would help there. A rank's duration of a collective less the shortest of all ranks is waiting.",
        "The interval is that of all communication, over steps.",
    ]
    alt = "Stacked bars: hidden and exposed communication, each with waiting, by rank."
    return drawing.picture("communication", "Communication: hidden, exposed, waiting", alt, says, canvas)


def timeline(analysis: Analysis) -> Picture:
    """One step of all ranks on one clock: that with the median length, of those that all have."""
    steps = sorted(analysis.whole.steps, key=lambda step: step.step_s)
    number = steps[len(steps) // 2].number
    ranks = [each.rank for each in analysis.ranks if each.rank is not None][:MOST_RANKS]
    offsets = analysis.clocks.offset_us if analysis.clocks else {}
    windows = {}
    for rank in ranks:
        trace = analysis.traces[rank]
        step = next((step for step in trace.steps if step.number == number), None)
        if step is not None:
            ahead = trace.base_us - offsets.get(rank, 0.0)
            windows[rank] = (step.begin, step.end, ahead)
    start = min(begin + ahead for begin, _, ahead in windows.values())
    canvas, (axes,) = drawing.canvas([9.5], 1.7 + 0.75 * len(windows))
    for place, (rank, (begin, end, ahead)) in enumerate(windows.items()):
        parts = analysis.parts[rank]
        upper, middle, lower = place - 0.4, place - 0.13, place + 0.14
        everything = np.array([[begin, end]])
        for part, at, colour, hatch in (
            *((everything, at, "#EEEEEE", None) for at in (upper, middle, lower)),
            (parts.compute, upper, _COMPUTE, None),
            (parts.input, upper, _INPUT, None),
            (parts.transfer, middle, _HIDDEN, None),
            (parts.wait, middle, _HIDDEN, _HATCH),
            (parts.unclassified, middle, _UNCLASSIFIED, None),
            (parts.exposed, lower, _EXPOSED, None),
        ):
            inside = _merged(spans.clip(part, begin, end), end - begin)
            pieces = [((one + ahead - start) / 1e3, (two - one) / 1e3) for one, two in inside]
            axes.broken_barh(pieces, (at, 0.25), facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0)
    axes.set_yticks(range(len(windows)), [f"rank {rank}" for rank in windows], fontsize=8)
    axes.set_ylim(len(windows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms since the step began on the first rank to begin")
    from matplotlib.patches import Patch

    keys = [
        Patch(facecolor=_COMPUTE, label="compute"),
        Patch(facecolor=_INPUT, label="input"),
        Patch(facecolor=_HIDDEN, label="communication: transfer"),
        Patch(facecolor=_HIDDEN, hatch=_HATCH, edgecolor="white", label="waiting for peers"),
        Patch(facecolor=_EXPOSED, label="nothing but communication"),
    ]
    canvas.legend(handles=keys, loc="outside lower center", ncols=5, fontsize=8)
    says = [
        f"Step {number}, the one of median length. Of each rank: above what was computed or loaded, in the middle "
        "communication, below the time in which there was nothing else."
    ]
    if analysis.clocks is not None:
        says.append(
            f"Clocks are aligned at the ends of collectives, which then agree within "
            f"{analysis.clocks.residual_median_us:.0f} µs (median; at most {analysis.clocks.residual_largest_us:.0f} µs)."
        )
    alt = f"Timeline of step {number} of all ranks: computation, communication, and communication alone."
    return drawing.picture("timeline", f"Step {number} over time", alt, [*says, *_left_out(analysis)], canvas)


def _merged(part: Spans, step: float) -> Spans:
    """Gaps too narrow to be seen are closed, so that a picture of a million operators is no larger than another."""
    if len(part) < 2:
        return part
    narrow = step / 3000
    wide = spans.union(part[:, 0], part[:, 1] + narrow)
    return np.column_stack([wide[:, 0], wide[:, 1] - narrow])


def _rows(analysis: Analysis) -> list[RankTimes]:
    together = [analysis.over_ranks] if analysis.over_ranks and len(analysis.ranks) > 1 else []
    return [*analysis.ranks[:MOST_RANKS], *together]


def _left_out(analysis: Analysis) -> list[str]:
    ranks = len(analysis.ranks)
    return [f"Drawn are the first {MOST_RANKS} of {ranks} ranks; the table has all."] if ranks > MOST_RANKS else []


def _rank_axis(axes: Axes, rows: list[RankTimes]) -> None:
    axes.set_yticks(range(len(rows)), ["all" if each.rank is None else f"rank {each.rank}" for each in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _known(half_width: float) -> float:
    return half_width if math.isfinite(half_width) else 0.0
