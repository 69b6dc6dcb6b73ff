"""An analysis as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from switchsum.measure import analysis_table, breakdown, markup, numerals
from switchsum.measure.analysis import Analysis, RankTimes
from switchsum.measure.drawing import Picture

_MOST_STEPS = 200
_NAMES = {
    "step_s": "step",
    "compute_s": "compute",
    "input_s": "input",
    "exposed_s": "exposed",
    "unclassified_s": "unclassified",
    "other_s": "other, idle",
    "loading_s": "input, hidden too",
    "communication_s": "communication",
    "overlapped_s": "hidden",
    "wait_s": "wait",
    "transfer_s": "transfer",
    "exposed_wait_s": "exposed wait",
}


def render(analysis: Analysis, pictures: Sequence[Picture]) -> str:
    """HTML 5."""
    title = "Where the time of a training step goes"
    whole = analysis.whole
    return markup.document(
        title,
        [
            f"<h1>{title}</h1>",
            f"<p>{markup.text(analysis_table.title(analysis))}.</p>",
            "<h2>Shares</h2>",
            markup.bullets(_verdicts(analysis, whole)),
            "<h2>Pictures</h2>",
            *map(markup.figure, pictures),
            "<h2>Ranks</h2>",
            "<p>Milliseconds of a step; means over steps with the half-width of their 95 % interval.</p>",
            _ranks(analysis),
            "<h2>Collectives</h2>",
            _collectives(analysis),
            "<h2>Steps</h2>",
            "<p>Milliseconds, mean over ranks.</p>",
            _steps(whole),
            "<h2>How to read it</h2>",
            markup.bullets(map(markup.text, (*analysis_table.LEGEND, analysis_table.computation(analysis)))),
            "<h2>Notes</h2>",
            markup.bullets(map(markup.text, (*analysis_table.clock_sentences(analysis), *analysis.notes))) or "<p>None.</p>",
        ],
    )


def _verdicts(analysis: Analysis, whole: RankTimes) -> list[str]:
    exposed, pai = (whole.figure(name, 100) for name in ("exposed_share", "pai_share"))
    said = [
        f"Exposed share: <strong>{numerals.interval(exposed, '%')}</strong> of a step passed with nothing but communication.",
        f"PAI's share: <strong>{numerals.interval(pai, '%')}</strong> of a time in which nothing overlaps and nobody waits.",
    ]
    waited = whole.figure("wait_s").mean
    if waited:
        said.append(
            f"Waiting for peers: {numerals.significant(1e3 * waited, 3)} ms of a step. A faster network or a switch does not "
            "help there; more even work does."
        )
    if analysis.unclassified:
        total = 1e3 * sum(analysis.unclassified.values())
        names = ", ".join(analysis.unclassified)
        unknown = markup.bad("Unclassified communication")
        said.append(f"{unknown}: {numerals.significant(total, 3)} ms of a step, {markup.text(names)}; it is in neither share.")
    return said


def _ranks(analysis: Analysis) -> str:
    rows = [*analysis.ranks, *([analysis.over_ranks] if analysis.over_ranks and len(analysis.ranks) > 1 else [])]
    titles = ["rank", "file", "steps", "exposed share (%)", "PAI's share (%)", *(_NAMES[name] for name in breakdown.TIMES)]
    cells = [
        [
            "all" if each.rank is None else str(each.rank),
            markup.text(each.file),
            str(len(each.steps)),
            *(numerals.interval(each.figure(name, 100)) for name in ("exposed_share", "pai_share")),
            *(numerals.interval(each.figure(name, 1e3)) for name in breakdown.TIMES),
        ]
        for each in rows
    ]
    return markup.table(titles, cells, 2)


def _collectives(analysis: Analysis) -> str:
    if not analysis.collectives:
        return "<p>None.</p>"
    titles = ["collective", "ranks", "bytes", "type", "a step", "time (ms)", "wait (ms)", "transfer (ms)", "algbw (GB/s)"]
    cells = [[markup.text(cell) for cell in analysis_table.collective_cells(row)] for row in analysis.collectives]
    return markup.table([*titles, "busbw (GB/s)"], cells, 1)


def _steps(whole: RankTimes) -> str:
    titles = ["step", *(_NAMES[name] if name != "step_s" else "length" for name in breakdown.TIMES), "exposed share (%)"]
    cells = [
        [
            str(step.number),
            *(numerals.significant(1e3 * getattr(step, name)) for name in breakdown.TIMES),
            f"{100 * step.exposed_share:.1f}",
        ]
        for step in whole.steps[:_MOST_STEPS]
    ]
    more = len(whole.steps) - _MOST_STEPS
    return markup.table(titles, cells) + (f"<p>And {more:,} more, which --json has.</p>" if more > 0 else "")
