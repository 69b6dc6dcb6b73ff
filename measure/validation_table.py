"""A validation as text: a line a point as it is measured, and how good predictions were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchsum.measure import media
from switchsum.measure.validation import LEAST_RIGHT, MOST_ERROR, MOST_MEAN_ERROR, Errors, Point, Validation, judge

TITLES = (
    "workload", "arch", "link", "predicted (ms)", "95 %", "measured (ms)", "+-95 %", "error %", "Amdahl %", "no change %",
    "link %", "busy %", "limit",
)  # fmt: skip
TEXTS = 3
_WIDTHS = (14, 6, 11, 14, 17, 13, 7, 7, 8, 11, 6, 6, 5)
NOTE = (
    "Times of a step. error: predicted over measured, less 1; Amdahl, no change: the same of the two guesses; link: share of "
    "its rate that the fullest link carried while it was measured; busy: of the machine's cores; limit: what held it back "
    "when it was measured (link, a burst's credit, cpu). * what was profiled: repeated, not predicted."
)


def head() -> str:
    return _joined(TITLES)


def line(point: Point) -> str:
    return _joined(cells(point))


def cells(point: Point) -> list[str]:
    forecast, measured = point.forecast, point.measured
    return [
        forecast.workload,
        forecast.architecture,
        media.told("ethernet", forecast.rate_bps / 8) + ("*" if forecast.anchor else ""),
        f"{1e3 * forecast.step.value:.1f}",
        f"{1e3 * forecast.step.low:.1f} to {1e3 * forecast.step.high:.1f}",
        f"{1e3 * measured.step.mean:.1f}",
        f"{1e3 * measured.step.ci95:.1f}",
        *(f"{100 * point.error(each):+.1f}" for each in (forecast.step.value, forecast.amdahl_s, forecast.unchanged_s)),
        "-" if measured.link_share is None else f"{100 * measured.link_share:.0f}",
        f"{100 * measured.busy:.0f}",
        measured.limited_by,
    ]


def summary(validation: Validation) -> list[str]:
    """Sentences: errors, order, guesses, and what falls short of its aim."""
    points = validation.predicted
    if not points:
        return ["nothing but what was profiled has been measured, so nothing can be said of predictions"]
    found = judge(validation.points)
    model = found["model"]
    ends = "" if validation.complete else f" (ended early, {len(validation.points)} of {len(validation.forecasts)} were run)"
    told = [
        f"{len(points)} predictions{ends}: mean absolute error {100 * model.mean:.1f} % (aim: at most "
        f"{100 * MOST_MEAN_ERROR:g}), worst {100 * model.worst:.1f} % (aim: at most {100 * MOST_ERROR:g}), of "
        f"{_which(_worst(points))}",
        f"order of architectures: {_pairs(model)} (aim: at least {100 * LEAST_RIGHT:g} %), of those whose intervals do not "
        "overlap",
        f"the measured mean lies in the predicted 95 % interval in {100 * validation.coverage:.0f} % of the points",
        *(
            f"guessing by {name}: mean {100 * each.mean:.1f} %, worst {100 * each.worst:.1f} %, order {_pairs(each)}"
            for name, each in found.items()
            if name != "model"
        ),
    ]
    held = sum(point.measured.limited_by == "cpu" for point in points)
    if held:
        told.append(
            f"{held} of the points were held back by the processor when they were run: there sums slow down computing, of "
            "which the model knows only that the work of both has to fit"
        )
    missed = validation.missed()
    return told + ([f"MISSED: {each}" for each in missed] or ["all aims are met"])


def by_group(validation: Validation) -> list[list[str]]:
    """Rows: mean and worst error of the model and of the guesses, by workload, architecture and rate."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in validation.predicted:
        forecast = point.forecast
        for kind, name in (
            ("workload", forecast.workload),
            ("architecture", forecast.architecture),
            ("link", media.told("ethernet", forecast.rate_bps / 8)),
        ):
            groups.setdefault((kind, name), []).append(point)
    rows = []
    for (kind, name), points in sorted(groups.items(), key=lambda each: ("workload", "architecture", "link").index(each[0][0])):
        found: Mapping[str, Errors] = judge(points)
        signed = sum(point.error(point.forecast.step.value) for point in points) / len(points)
        errors = [f"{100 * each.mean:.1f} ({100 * each.worst:.1f})" for each in found.values()]
        rows.append([kind, name, str(len(points)), f"{100 * signed:+.1f}", *errors])
    return rows


GROUP_TITLES = ("by", "", "points", "mean signed %", "model % (worst)", "Amdahl % (worst)", "no change % (worst)")


def _worst(points: Sequence[Point]) -> Point:
    return max(points, key=lambda each: abs(each.error(each.forecast.step.value)))


def _which(point: Point) -> str:
    forecast = point.forecast
    return f"{forecast.workload} over {forecast.architecture} at {media.told('ethernet', forecast.rate_bps / 8)}"


def _pairs(errors: Errors) -> str:
    return f"{errors.right} of {errors.pairs} pairs right" if errors.pairs else "no pair can be told apart"


def _joined(words: Sequence[str]) -> str:
    return "  ".join(
        word.ljust(width) if number < TEXTS else word.rjust(width)
        for number, (word, width) in enumerate(zip(words, _WIDTHS, strict=True))
    ).rstrip()
