"""One benchmark from its plan to its outputs: the table as it grows, progress, files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed
from switchsum.written_files import require_folders

if TYPE_CHECKING:
    from switchsum.bench_grounds import Ground
    from switchsum.measure.experiment import Experiment, Plan
    from switchsum.measure.manifest import Manifest
    from switchsum.measure.results import Results
    from switchsum.measure.samples import Series


@dataclass(frozen=True)
class Outputs:
    """Files that a person asked for; checked at construction. Raises CommandFailed."""

    json_file: Path | None = None
    csv_file: Path | None = None
    plot: Path | None = None

    def __post_init__(self) -> None:
        require_folders(self.json_file, self.csv_file, self.plot)
        if self.plot is not None and self.plot.suffix != ".png":
            raise CommandFailed(f"--plot {self.plot}: the picture is a PNG; let its name end in .png", EXIT_MISUSED)


class Screen:
    """The table on standard output; on a terminal, also progress on standard error, which makes way for each line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._live = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        self._progress = Progress(
            *columns, console=console, disable=not self._live, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._progress.add_task("starting", total=None)

    def told(self, what: str, step: int | None = None, steps: int | None = None) -> None:
        """What is going on, and how far it is."""
        self._progress.update(self._task, description=what, completed=step, total=steps)

    def show(self, line: str) -> None:
        """A line of the table."""
        if self._live:
            self._progress.stop()
        try:
            typer.echo(line)
        except BrokenPipeError:  # whoever read has seen enough; what was measured must not be lost for it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if self._live:
            self._progress.start()

    def __enter__(self) -> Screen:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()


def run(
    plan: Plan,
    ground: Ground,
    kind: type[Experiment],
    screen: Screen,
    arguments: dict[str, Any],
    machine: dict[str, Any],
    manifests: Sequence[Manifest],
    outputs: Outputs,
) -> int:
    """The experiment and its outputs; returns the exit status. `machine`: environment.describe() from before it."""
    from switchsum.measure import conservation, table
    from switchsum.measure.crew import BenchmarkFailed
    from switchsum.measure.results import Results
    from switchsum.measure.rows import Row

    title = f"switchsum bench {kind.benchmark}: {ground.title}; {plan.repeat} runs; 1 GB/s = 1e9 B/s, sizes in bytes"
    rows: list[Row] = []
    series: list[Series] = []
    for line in table.header(title, kind.benchmark):
        screen.show(line)

    def measured(samples: Series) -> None:
        series.append(samples)
        rows.append(Row.of(samples))
        screen.show(table.line(rows[-1]))

    experiment = kind(plan, ground.crews, screen.told, measured)

    def results(complete: bool) -> Results:
        machine["busy_before"] = experiment.busy_before
        return Results(
            benchmark=kind.benchmark,
            title=title,
            arguments=arguments,
            environment=machine,
            complete=complete,
            rows=rows,
            series=series,
            links=ground.links,
            ranks={name: [dict(hello) for hello in crew.hellos] for name, crew in ground.crews.items()},
            payloads=[manifest.as_json() for manifest in manifests],
            timeline=experiment.timeline.as_json(),
        )

    try:
        experiment.run()
    except BaseException as error:  # also Ctrl-C: what was measured is kept
        if rows:
            try:
                written = " and ".join(map(str, _write(results(complete=False), outputs)))
                screen.show(f"# ended before its end{f'; {written}: the rows above' if written else ''}")
            except CommandFailed as unwritten:  # the first error is what matters
                screen.show(f"# ended before its end; {unwritten}")
        elif outputs.json_file or outputs.csv_file:
            screen.show("# ended before its first row was finished: no file was written")
        if isinstance(error, BenchmarkFailed):
            raise CommandFailed(str(error)) from error
        raise
    found = results(complete=True)
    when = f"{machine['date']}, {machine['cores']} cores, {100 * experiment.busy_before:.0f} % busy with others before"
    lines = table.footer(rows, [*ground.notes, when]) + table.resource_lines(rows)
    verdicts = [
        conservation.verdicts(each, case.buffers, plan.elements, way.label, ground.crews[way.name].site.labels)
        for each, (case, way) in zip(series, product(plan.cases, plan.ways), strict=True)
    ]
    found.verdicts = [verdict.as_json() for row in verdicts for verdict in row]
    _write(found, outputs)
    for line in lines + conservation.lines(verdicts) + table.stage_lines(rows, plan.elements):
        screen.show(line)
    return 1 if table.wrong_elements(rows) or any(map(conservation.failed, verdicts)) else 0


def _write(found: Results, outputs: Outputs) -> list[Path]:
    """All files that were asked for; returns them. Raises CommandFailed."""
    from switchsum.measure.results import write_csv

    try:
        if outputs.json_file is not None:
            found.save(outputs.json_file)
        if outputs.csv_file is not None:
            with outputs.csv_file.open("w", newline="") as opened:
                write_csv(opened, found.rows, found.series)
        if outputs.plot is not None:
            from switchsum.measure import pictures
            from switchsum.measure.result_files import measured_in

            drawn = measured_in(outputs.plot, found)
            outputs.plot.write_bytes(pictures.over_size(drawn[0].setting, drawn).png)
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    return [path for path in (outputs.json_file, outputs.csv_file, outputs.plot) if path is not None]


def under_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether we are one rank of a job that torchrun, or who sets the same variables, has started."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment)
