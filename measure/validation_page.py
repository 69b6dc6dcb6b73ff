"""A validation as one page of HTML that needs nothing else: what came of it first, then every point."""

from __future__ import annotations

from collections.abc import Sequence

from switchsum.measure import markup, validation_table
from switchsum.measure.drawing import Picture
from switchsum.measure.validation import KINDS, Validation


def render(validation: Validation, pictures: Sequence[Picture]) -> str:
    """HTML 5."""
    title = "Are the predictions right?"
    machine = validation.environment
    about = (
        f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), commit {machine['git']}. Calibrated and profiled "
        "at one link rate, predicted for others and for other architectures, then run. A scale model: links, models and "
        "buckets are smaller than a cluster's, and a software switch stands in for a switch of hardware."
    )
    jobs = [
        [markup.text(job.name), markup.text(KINDS[job.name]), f"{job.gradient_bytes / 1e6:.2f}", f"{job.flops / 1e9:.2f}"]
        for job in validation.features
    ]
    parts = [
        f"<h1>{markup.text(title)}</h1>",
        f"<p>{markup.text(about)}</p>",
        markup.bullets(map(_coloured, validation_table.summary(validation))),
        *map(markup.figure, pictures),
        "<h2>Where it errs</h2>",
        markup.table(
            validation_table.GROUP_TITLES, [list(map(markup.text, row)) for row in validation_table.by_group(validation)], 2
        ),
        "<h2>Every point</h2>",
        f"<p>{markup.text(validation_table.NOTE)}</p>",
        markup.table(
            validation_table.TITLES,
            [list(map(markup.text, validation_table.cells(point))) for point in validation.points],
            validation_table.TEXTS,
        ),
        "<h2>Trainings</h2>",
        markup.table(("workload", "kind", "gradients (MB)", "GFLOP a step"), jobs, 2),
        "<h2>Notes</h2>",
        markup.bullets(map(markup.text, validation.notes)),
    ]
    return markup.document(title, parts)


def _coloured(sentence: str) -> str:
    word, colon, rest = sentence.partition(":")
    if word == "MISSED":
        return f"{markup.bad(word)}{colon}{markup.text(rest)}"
    return markup.good(sentence) if sentence == "all aims are met" else markup.text(sentence)
