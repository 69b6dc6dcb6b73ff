"""A study as one page of HTML that needs nothing else: verdicts and advice first, then how they come about."""

from __future__ import annotations

from collections.abc import Sequence

from switchsum.measure import markup, whatif_table
from switchsum.measure.advice import Advice
from switchsum.measure.drawing import Picture
from switchsum.measure.whatif import Study


def render(study: Study, advice: Sequence[Advice], picture: Picture) -> str:
    """HTML 5."""
    title = f"Would a switch help {study.features.name}?"
    titles, rows = whatif_table.cells(study)
    made_up = "SYNTHETIC: this job is made up by a generator or by hand. Nothing about it was measured."
    parts = [
        f"<h1>{markup.text(title)}</h1>",
        f"<p>{markup.bad(made_up)}</p>" if study.features.synthetic else "",
        *(f"<p>{markup.text(line)}</p>" for line in whatif_table.head(study)),
        "<h2>Verdicts</h2>" if study.verdicts else "",
        *(f"<p>{markup.text(each)}</p>" for each in whatif_table.before_verdicts(study) if study.verdicts),
        markup.bullets(map(_coloured, whatif_table.grouped(study.verdicts))) if study.verdicts else "",
        *(
            f"<h2>{number}. {markup.text(each.heading)}</h2>{markup.bullets(map(markup.text, each.sentences))}"
            for number, each in enumerate(advice, 1)
        ),
        "<h2>Predictions</h2>",
        markup.figure(picture),
        f"<p>{markup.text(whatif_table.COLUMNS_NOTE)}</p>",
        markup.table(titles, [[markup.text(cell) for cell in row] for row in rows], 1),
        "<h2>Assumptions</h2>",
        markup.bullets(map(markup.text, study.assumptions)),
    ]
    return markup.document(title, parts)


def _coloured(sentence: str) -> str:
    verdict, colon, rest = sentence.partition(":")
    shown = {"GAIN": markup.good, "LOSS": markup.bad}.get(verdict, markup.text)(verdict)
    return f"{shown}{colon}{markup.text(rest)}"
