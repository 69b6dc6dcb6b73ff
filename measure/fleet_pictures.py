"""The pictures of a fleet: shares by class, distributions of the share of communication, and who would gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchsum.measure import drawing, fleet
from switchsum.measure.drawing import Picture
from switchsum.measure.fleet import LEVELS, PARTS, Fleet, Job
from switchsum.measure.verdicts import MATTERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of parts and levels: Tol's muted colours, so that none is taken for a transport or an architecture.
_PART_COLOURS = {"input": "#DDCC77", "computing": "#332288", "sums": "#882255"}
_LEVEL_COLOURS = {"job": "#332288", "cNode": "#999933"}
_RED = "#a8200d"
_LEVELS_SAY = "Job level: every job counts once; cNode level: as often as it has workers."


def all_pictures(found: Fleet) -> list[Picture]:
    """Those that the fleet suffices for. Needs matplotlib."""
    pictures = [by_class(found), distributions(found)] if found.modelled else []
    return [*pictures, *([gains(found)] if found.changes else [])]


def by_class(found: Fleet) -> Picture:
    """Stacked bars, a bar for each class and one for all, at both levels."""
    classes = {name: found.of_class(name) for name in found.classes}
    groups: dict[str, list[Job]] = {"all": list(found.jobs), **classes}
    groups = {name: jobs for name, jobs in groups.items() if fleet.mean_shares(jobs, "job") is not None}
    canvas, panels = drawing.canvas([5.0, 5.0], 4.2, share_y=True)
    for axes, level in zip(panels, LEVELS, strict=True):
        bottoms = [0.0] * len(groups)
        for part in PARTS:
            shares = [(fleet.mean_shares(jobs, level) or {})[part] for jobs in groups.values()]
            heights = [100 * share for share in shares]
            axes.bar(range(len(groups)), heights, 0.75, bottoms, color=_PART_COLOURS[part], label=part)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        named = [f"{name} ({sum(job.base is not None for job in jobs)})" for name, jobs in groups.items()]
        axes.set_xticks(range(len(groups)), named, fontsize=8, rotation=30, ha="right")
        axes.set_title(f"{level} level", fontsize=9)
        _stamp(axes, found)
    panels[0].set_ylabel("share of T_input + T_compute + T_weights (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    says = ["Means of the jobs' shares, as the model has them without overlap; in brackets, how many jobs. " + _LEVELS_SAY]
    for level in LEVELS:
        shares_of_all = fleet.mean_shares(found.jobs, level)
        assert shares_of_all is not None
        told = ", ".join(f"{part} {100 * share:.1f} %" for part, share in shares_of_all.items())
        says.append(f"All, {level} level: {told}{_made_up(found)}.")
    return drawing.picture(
        "shares", "What steps are made of, by class", "Stacked bars of shares by class of architecture.", says, canvas
    )


def distributions(found: Fleet) -> Picture:
    """Of the two shares of communication, each in a panel of its own, since they are not the same thing."""
    canvas, panels = drawing.canvas([5.0, 5.0], 4.2, share_y=True)
    modelled = found.modelled
    for axes, jobs, values, what in (
        (panels[0], modelled, [100 * job.shares["sums"] for job in modelled], "share of sums, no overlap: the model's (%)"),
        (
            panels[1],
            list(found.jobs),
            [100 * job.features.exposed_share for job in found.jobs],
            "share of exposed communication: measured (%)",
        ),
    ):
        for level in LEVELS:
            places, shares = fleet.distribution(jobs, values, level)
            style = "-" if level == "job" else "--"
            axes.step(
                places, [100 * share for share in shares], where="post", color=_LEVEL_COLOURS[level], linestyle=style,
                label=f"{level} level",
            )  # fmt: skip
        axes.set_xlabel(what)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 102)
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=8, loc="lower right")
        _stamp(axes, found)
    panels[0].set_ylabel("of all, have at most so much (%)")
    says = ["Cumulative distributions. The two shares must not be compared: one knows no overlap, the other one leaves out "
            "what computing hides. " + _LEVELS_SAY]  # fmt: skip
    over = [job for job in modelled if job.shares["sums"] > 0.8]
    says.append(f"Sums take more than 80 % in {len(over)} of {len(modelled)} modelled jobs{_made_up(found)}.")
    return drawing.picture(
        "communication", "How much of a step is communication", "Cumulative distributions over jobs.", says, canvas
    )


def gains(found: Fleet) -> Picture:
    """Bars: of those that could make a change, who would gain."""
    canvas, panels = drawing.canvas([9.0], 1.6 + 0.55 * len(found.changes))
    axes = panels[0]
    says = [
        f"Of the jobs that sum over the network, those whose step would get shorter by {100 * MATTERS:g} % or more by that "
        "change alone, everything else as it is, with the whole interval above 1; speed-ups are middle values. " + _LEVELS_SAY
    ]
    for number, level in enumerate(LEVELS):
        shares = [100 * fleet.gaining(found.jobs, name, level) for name in found.changes]
        places = [place + (number - 0.5) * 0.38 for place in range(len(shares))]
        axes.barh(places, shares, 0.36, color=_LEVEL_COLOURS[level], label=f"{level} level")
    able = {name: sum(name in job.gains for job in found.jobs) for name in found.changes}
    for name in found.changes:
        least, median, most = fleet.speedups(found.jobs, name)
        says.append(
            f"{name}: {100 * fleet.gaining(found.jobs, name, 'job'):.0f} % of {able[name]} jobs; speed-up {least:.2f} to "
            f"{most:.2f}, median {median:.2f}{_made_up(found)}."
        )
    axes.set_yticks(range(len(able)), [f"{name} ({number} jobs)" for name, number in able.items()], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("would gain (%)")
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="lower right")
    _stamp(axes, found)
    return drawing.picture(
        "gains", "Who would gain by what", "Bars: share of jobs that would gain by each change.", says, canvas
    )


def _stamp(axes: Axes, found: Fleet) -> None:
    if found.synthetic:
        axes.text(
            0.02, 0.98, "SYNTHETIC", transform=axes.transAxes, color=_RED, fontsize=9, fontweight="bold", va="top", zorder=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip


def _made_up(found: Fleet) -> str:
    if not found.synthetic:
        return ""
    return " (synthetic: made up)" if found.synthetic == len(found.jobs) else " (partly synthetic)"
