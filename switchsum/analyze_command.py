"""`switchsum analyze`: where the time of a training step goes, from the traces of torch.profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed, require
from switchsum.printable import printable
from switchsum.written_files import require_folders


def analyze(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of traces, *.json or *.json.gz: one of each rank, execution traces too."),
    ],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write times, shares and collectives here.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page with pictures here.")] = None,
) -> None:
    """Where the time of a training step goes: computation, communication (exposed and hidden), waiting for peers, input.

    Reads what torch.profiler wrote, of NCCL, Gloo and the switchsum backend. Two shares of communication are told, and never
    mixed: what only communication took of a step, and that of Alibaba-PAI's study, which knows no overlap.
    """
    require_folders(json_file, html_file)
    if html_file is not None:
        require("analyze --html", {"matplotlib": "demo"})
    from switchsum.measure import analysis_table
    from switchsum.measure.analysis import Analysis
    from switchsum.measure.traces import folder as traces
    from switchsum.measure.traces.stream import BadTrace

    try:
        analysis = Analysis.of(traces.read(folder), str(folder))
    except BadTrace as error:
        raise CommandFailed(printable(str(error)), EXIT_MISUSED) from error
    for line in analysis_table.lines(analysis):
        typer.echo(printable(line))
    try:
        if json_file is not None:
            analysis.save(json_file)
        if html_file is not None:
            from switchsum.measure import analysis_page, analysis_pictures

            html_file.write_text(analysis_page.render(analysis, analysis_pictures.all_pictures(analysis)), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
