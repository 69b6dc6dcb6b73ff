"""`switchsum bench report` and `switchsum bench diff`: what was measured, as a page and against another measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import EXIT_FAILED, CommandFailed, require
from switchsum.printable import printable
from switchsum.written_files import require_folders

if TYPE_CHECKING:
    from switchsum.measure.result_files import Found

PAGE = "index.html"


def register(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(diff)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of results that --json has written.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder for page and pictures; made if it is not there.  [default: DIR/report]")
    ] = None,
) -> None:
    """Draw what was measured: one self-contained page and its pictures as PNGs.

    The page begins with verdicts: wrong results, bytes that must be conserved, what the processor limited, and the paper's
    findings with intervals.
    """
    if not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder; give the one that has the results of --json", EXIT_MISUSED)
    typer.echo(printable(write_report(folder, output or folder / "report")))


def write_report(folder: Path, output: Path) -> str:
    """Page and pictures of all results in `folder`; returns a sentence that says where they are. Raises CommandFailed."""
    require("bench report", {"matplotlib": "demo"})
    found = _find(folder)
    from switchsum.measure import page, pictures, result_files
    from switchsum.measure.timelines import Timeline

    measured, notes = result_files.latest(found.measured)
    timelines = {path.stem: timeline for path, each in found.files.items() if (timeline := Timeline.of(each)) is not None}
    drawn = pictures.all_pictures(measured, timelines)
    text = page.render(found, measured, drawn, [*found.ignored, *notes])
    try:
        output.mkdir(exist_ok=True)
        for picture in drawn:
            (output / f"{picture.name}.png").write_bytes(picture.png)
        (output / PAGE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    for note in [*found.ignored, *notes]:
        typer.echo(f"note: {printable(note)}", err=True)
    files = f"{len(found.files)} file{'s' if len(found.files) > 1 else ''} of results"
    return f"{output / PAGE}: {files}, {len(measured)} rows, {len(drawn)} pictures beside it"


def diff(
    base: Annotated[Path, typer.Argument(metavar="A", help="Results before: a file of --json, or a folder of them.")],
    test: Annotated[Path, typer.Argument(metavar="B", help="Results after.")],
    fail_slower: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Exit with 1 if the whole interval of a row says more than PERCENT % longer."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows, ratios and verdicts here.")] = None,
) -> None:
    """Compare two measurements, row by row: the ratio of B to A with its 95 % interval.

    A difference is claimed only where the interval excludes 1.
    """
    if fail_slower is not None and not 0 <= fail_slower < float("inf"):
        raise CommandFailed(f"--fail-slower {fail_slower:g}: must be a percentage of at least 0", EXIT_MISUSED)
    require_folders(json_file)
    both = [_find(path) for path in (base, test)]
    from switchsum.measure import comparison

    compared = comparison.compare(*both)
    if not compared.pairs:
        raise CommandFailed(
            f"{base} and {test} have no row in common: rows are the same if benchmark, transport, payload, number and "
            "place of workers and servers, and --check are",
            EXIT_MISUSED,
        )
    typer.echo(f"# base: {printable(str(base))}, test: {printable(str(test))}")
    for line in comparison.lines(compared):
        typer.echo(printable(line))
    for note in (note for found in both for note in found.ignored):
        typer.echo(f"note: {printable(note)}", err=True)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(compared.as_json(), indent=1))
        except OSError as error:
            raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    if fail_slower is not None and any(pair.wrong or pair.slower_by(fail_slower) for pair in compared.pairs):
        raise typer.Exit(EXIT_FAILED)


def _find(path: Path) -> Found:
    from switchsum.measure import result_files
    from switchsum.measure.results import BadResults

    try:
        return result_files.find(path)
    except BadResults as error:
        raise CommandFailed(printable(str(error)), EXIT_MISUSED) from error
