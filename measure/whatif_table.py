"""A study as text: the predictions as a table, verdicts, advice, and what all of it assumes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from switchsum.measure import media, numerals, prediction, verdicts
from switchsum.measure.advice import Advice
from switchsum.measure.numerals import seconds
from switchsum.measure.prediction import Interval, Prediction
from switchsum.measure.rows import Figure
from switchsum.measure.verdicts import Verdict
from switchsum.measure.whatif import Study

_WIDTH = 118
COLUMNS_NOTE = (
    "Milliseconds of a step. sums: T_weights, one sum after the other; ideal: all overlaps; replay: the schedule of buckets; "
    "sum: nothing overlaps (PAI's model); step: the replay, or else the sum, with its 95 % interval. sums wait for: what makes "
    "the sums as long as they are, also where the step does not wait for the sums."
)


def lines(study: Study, advice: Sequence[Advice]) -> list[str]:
    told = [*(f"# {line}" for line in head(study)), "", *_table(study), "", *_wrapped(COLUMNS_NOTE), ""]
    if study.verdicts:
        sentences = [*before_verdicts(study), *grouped(study.verdicts)]
        told += ["Verdicts:", *(line for each in sentences for line in _wrapped(each, "  "))]
    for each in advice:
        told += ["", f"{each.heading}:", *(line for sentence in each.sentences for line in _wrapped(sentence, "  "))]
    told += ["", "Assumptions:", *(line for each in study.assumptions for line in _wrapped(each, "  - "))]
    return told


def before_verdicts(study: Study) -> list[str]:
    """What they compare, and how far they can be trusted."""
    told = [f"Each beside {study.usual}, by which the job sums, with the same links and workers."]
    if study.ground.calibration is None:
        told.append("All on paper: nothing of the link was measured.")
    return [*told, study.doubt] if study.doubt else told


def grouped(found: Sequence[Verdict]) -> list[str]:
    """A sentence for each: those of one architecture that end alike, and for the same cause, together."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for each in found:
        groups.setdefault((each.test.architecture, each.verdict, each.cause), []).append(each)
    return [_sentence(each) for each in groups.values()]


def _sentence(alike: Sequence[Verdict]) -> str:
    """Fewest workers and slowest links first. The reason of the last stands for all: it is the farthest on that way."""
    alike = sorted(alike, key=lambda each: (each.test.cluster.workers, tuple(each.test.rates.values())))
    first, last = alike[0], alike[-1]
    where, ratio = _where(last.test), _ratio(last.ratio)
    if len(alike) > 1:
        where = f"from {_where(first.test)} to {where} ({len(alike)} settings)"
        values = [each.ratio.value for each in alike]
        low, high = f"{min(values):.3f}", f"{max(values):.3f}"
        ratio = low if low == high else f"{low} to {high}"
    why = f"; {last.why}" if last.why else ""
    if len({each.why for each in alike}) > 1:
        why = f"; with {_where(last.test)}: {last.why}"
    return f"{last.verdict.upper()}: {last.test.architecture} against {last.against}, {where}: {ratio} times as fast{why}."


def head(study: Study) -> list[str]:
    """What the job is, what was measured, and what the model says of that."""
    features = study.features
    measured = Figure.of(features.step_s)
    step = numerals.time(Figure(1e6 * measured.mean, 1e6 * measured.ci95, ()))
    link = media.told("ethernet", features.link_bps / 8) if features.link_bps else "a link of unknown rate"
    synthetic = ", SYNTHETIC (made up, not measured)" if features.synthetic else ""
    told = [
        f"{features.name}: {features.architecture}, {features.workers} worker{'s' if features.workers > 1 else ''}, "
        f"{features.backend or 'no backend'} over {link}{synthetic}",
        f"gradients on the wire: {prediction.summed_bytes(features) / 1e6:,.4g} MB of {features.wire_dtype} in "
        f"{len(features.buckets) or 'unknown'} buckets; measured step{_whose(study)} {step}, "
        f"{100 * features.exposed_share:.1f} % exposed communication",
    ]
    if study.now is not None and study.off is not None:
        now = study.now
        share = 100 * now.weights.value / now.sum_s
        told.append(
            f"the model says of it: {seconds(now.step.value)} ({100 * study.off:+.1f} %), sums {share:.1f} % of a step "
            "without overlap; the table's speed-ups are relative to this"
        )
    else:
        told.append(
            f"{study.unchecked}, so the model could not be checked against it; the table's speed-ups are relative to "
            f"{study.base.architecture}, {_where(study.base)}"
        )
    if study.alone:
        told.append("one worker sums with nobody: add --workers N to ask what N of them would do")
    elif study.unjudged:
        told.append(study.unjudged)
    return told


def _whose(study: Study) -> str:
    """Which rank's step, as far as the features say."""
    ranks, rank = study.features.source.get("ranks"), study.features.source.get("rank")
    if isinstance(ranks, list) and len(ranks) == 1 and isinstance(ranks[0], dict):
        rank = ranks[0].get("rank")
    if isinstance(ranks, list) and len(ranks) > 1:
        return " (the slowest rank's, its waiting for others taken off)"
    if study.features.workers == 1 or study.features.synthetic:
        return ""
    return f" (rank {rank}'s alone)" if isinstance(rank, int) else " (one rank's alone)"


def cells(study: Study) -> tuple[list[str], list[list[str]]]:
    """Titles of the columns, and a row for each prediction."""
    swept = list(study.predictions[0].rates)
    replayed = study.predictions[0].replay_s is not None
    titles = ["arch", "workers", *swept, "input", "compute", "rest", "sums", "ideal", *(["replay"] if replayed else []), "sum",
              "step", "speed-up", "sums wait for"]  # fmt: skip
    rows = [[
        each.architecture, str(each.cluster.workers), *(media.told(name, each.rates[name]) for name in swept),
        _ms(each.input_s), _ms(each.compute_s), _ms(each.rest_s), _ms(each.weights.value), _ms(each.ideal_s),
        *([_ms(each.replay_s or 0.0)] if replayed else []), _ms(each.sum_s), _around(each.step),
        _ratio(prediction.speedup(study.base, each)), each.limit or "-",
    ] for each in study.predictions]  # fmt: skip
    return titles, rows


def _table(study: Study) -> list[str]:
    titles, rows = cells(study)
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]]


def _ms(value: float) -> str:
    return numerals.significant(1e3 * value)


def _around(found: Interval) -> str:
    if math.isclose(found.low, found.high, rel_tol=1e-9):
        return f"{_ms(found.value)} (interval not known)"
    return f"{_ms(found.value)} ({_ms(max(0.0, found.low))} to {_ms(found.high)})"


def _ratio(found: Interval) -> str:
    return verdicts.told(found, 3)


def _workers(found: Prediction) -> str:
    racks = f" in {found.cluster.racks} racks" if found.cluster.racks > 1 else ""
    return f"{found.cluster.workers} worker{'s' if found.cluster.workers > 1 else ''}{racks}"


def _rates(found: Prediction) -> str:
    return ", ".join(f"{name} {media.told(name, rate)}" for name, rate in found.rates.items())


def _where(found: Prediction) -> str:
    return f"{_workers(found)}, {_rates(found)}"


def _wrapped(sentence: str, indent: str = "") -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False)
