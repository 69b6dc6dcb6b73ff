"""`switchsum bench`: communication benchmarks from the command line."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum import bench_capture_command, bench_grounds, bench_payloads_command
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.bench_grounds import Ground
    from switchsum.measure.experiment import Plan

BENCH_MODULES = {"torch": "torch"}
DEFAULT_TRANSPORTS = ("switchsum", "gloo", "limit")
DEFAULT_WORKERS = 4
_TYPES = ("float32", "float16", "bfloat16", "int32")
_OPERATIONS = ("sum", "avg")

app = typer.Typer(help="Measure communication: sums through the switch, over Gloo, and what the path can carry at best.")
app.command()(bench_capture_command.capture)
app.command()(bench_payloads_command.payloads)


@app.callback(invoke_without_command=True)
def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def allreduce(
    workers: Annotated[int | None, typer.Option(help="Workers.  [default: 4, or the rack's]")] = None,
    rack: Annotated[
        Path | None, typer.Option(help="A rack's YAML file: run in its workers, over its links; needs root.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Rate of every worker's link, such as 100M, whatever the file says.")] = None,
    loss: Annotated[
        float | None,
        typer.Option(help="Share of packets that the switch drops in each direction.  [default: 0, or the rack's]"),
    ] = None,
    transport: Annotated[
        list[str] | None,
        typer.Option(
            help="What to measure, may be repeated: switchsum, switchsum16, switchsum8 (lanes of 16 and 8 bits), gloo, limit.  "
            f"[default: {', '.join(DEFAULT_TRANSPORTS)}]"
        ),
    ] = None,
    begin: Annotated[str, typer.Option(help="Smallest size of a worker's tensor; K, M and G are binary.")] = "4K",
    end: Annotated[str, typer.Option(help="Largest size.")] = "64M",
    factor: Annotated[int, typer.Option(help="From one size to the next.")] = 4,
    size: Annotated[list[str] | None, typer.Option(help="Exactly this size, may be repeated; instead of a sweep.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or int32.")] = "float32",
    redop: Annotated[str, typer.Option(help="sum or avg.")] = "sum",
    turns: Annotated[int, typer.Option(help="Runs of each transport and size; transports alternate. At least 5.")] = 5,
    turn_seconds: Annotated[float, typer.Option(help="How long a run takes; at least one iteration is run.")] = 0.5,
    warmup: Annotated[int, typer.Option(help="Iterations before the first run.")] = 3,
    elements: Annotated[
        int | None, typer.Option(help="Numbers per packet: 64, 128 or 256.  [default: 256, or the rack's]")
    ] = None,
    switch: Annotated[str | None, typer.Option(help="softswitch or bmv2, whatever the rack's file says.")] = None,
    bmv2: Annotated[str, typer.Option("--bmv2", help="Path of simple_switch_grpc; without it, the one on PATH.")] = "",
    seed: Annotated[int, typer.Option(help="Start of every random choice: tensors, dropped packets.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that anything may be waited for before it counts as failed.")] = 120.0,
    stages: Annotated[
        bool, typer.Option("--stages", help="Also tell where a worker's time goes, by stage, in one more run.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write raw samples and environment here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw algbw over size into this PNG.")] = None,
) -> None:
    """Sum tensors over all workers, through the switch and otherwise, and print what nccl-tests would, and more.

    On this machine's loopback, in an emulated rack (--rack), or under torchrun on real hosts. Every sum is verified before it
    is timed; the exit status is 1 if one was wrong.
    """
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    require("bench", {**BENCH_MODULES, **({"matplotlib": "demo"} if plot else {})})
    plan = _plan(
        transport=transport,
        begin=begin,
        end=end,
        factor=factor,
        size=size,
        dtype=dtype,
        redop=redop,
        turns=turns,
        turn_seconds=turn_seconds,
        warmup=warmup,
        elements=elements,
        seed=seed,
        timeout=timeout,
        stages=stages,
    )
    for path in (json_file, plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise CommandFailed(f"{path} cannot be written: there is no folder {path.resolve().parent}", EXIT_MISUSED)
    if plot is not None and plot.suffix != ".png":
        raise CommandFailed(f"--plot {plot}: the picture is a PNG; let its name end in .png", EXIT_MISUSED)
    if loss is not None and not 0 <= loss < 1:
        raise CommandFailed(f"--loss {loss:g}: must be at least 0 and below 1", EXIT_MISUSED)
    if rack is None and (rate or switch or bmv2):
        raise CommandFailed("--rate, --switch and --bmv2 belong to a rack: give its file with --rack", EXIT_MISUSED)
    under_torchrun = (
        rack is None and workers is None and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)
    )
    if rack is None and workers is not None and "TORCHELASTIC_RUN_ID" in os.environ:
        raise CommandFailed(f"--workers {workers}: torchrun says how many there are; leave it out", EXIT_MISUSED)
    if under_torchrun and os.environ["RANK"] != "0":
        raise typer.Exit(bench_grounds.follow())
    if under_torchrun and loss is not None:
        raise CommandFailed("--loss: on real hosts the controller says what the switch drops", EXIT_MISUSED)
    if rack is not None:
        described = bench_grounds.described_rack(rack, workers, rate, loss, elements, switch)
        plan = replace(plan, elements=described.elements)
    from switchsum.measure import environment

    machine = environment.describe()
    with terminated_like_interrupted(), ExitStack() as stack, _Screen() as screen:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-bench-")))
        if under_torchrun:
            ground = bench_grounds.on_hosts(plan, stack, screen.told)
        elif rack is not None:
            ground = bench_grounds.in_racks(plan, described, bmv2, folder, stack, screen.told)
        else:
            number = DEFAULT_WORKERS if workers is None else workers
            ground = bench_grounds.on_loopback(plan, number, loss or 0.0, folder, stack, screen.told)
        status = _run(plan, ground, screen, arguments, machine, json_file, plot)
    raise typer.Exit(status)


def _plan(
    *,
    transport: Sequence[str] | None,
    begin: str,
    end: str,
    factor: int,
    size: Sequence[str] | None,
    dtype: str,
    redop: str,
    turns: int,
    turn_seconds: float,
    warmup: int,
    elements: int | None,
    seed: int,
    timeout: float,
    stages: bool,
) -> Plan:
    """The options as a plan. Raises CommandFailed naming the option that makes no sense."""
    from switchsum.measure import sizes
    from switchsum.measure.experiment import Plan
    from switchsum.measure.transports import DESCRIPTIONS
    from switchsum.p4src.layout import DEFAULT_ELEMENTS, ELEMENT_CHOICES

    try:
        wanted = [sizes.parse(text) for text in size] if size else sizes.sweep(sizes.parse(begin), sizes.parse(end), factor)
    except sizes.BadSize as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    chosen = list(dict.fromkeys(transport or DEFAULT_TRANSPORTS))
    for name in chosen:
        if name not in DESCRIPTIONS:
            raise CommandFailed(f"--transport {name}: there are {', '.join(DESCRIPTIONS)}", EXIT_MISUSED)
    choices = ", ".join(map(str, ELEMENT_CHOICES))
    complaints = {
        f"--dtype {dtype}: choose {', '.join(_TYPES)}": dtype not in _TYPES,
        f"--redop {redop}: choose {' or '.join(_OPERATIONS)}": redop not in _OPERATIONS,
        "--redop avg: an average of int32 has no exact result; use sum": redop == "avg" and dtype == "int32",
        f"--turns {turns}: fewer than 5 runs show no spread": turns < 5,
        f"--turn-seconds {turn_seconds:g}: must be above 0 and at most 600": not 0 < turn_seconds <= 600,
        f"--warmup {warmup}: must be from 1 to 1000": not 1 <= warmup <= 1000,
        f"--seed {seed}: must be between 0 and {2**32 - 1}": not 0 <= seed < 2**32,
        f"--timeout {timeout:g}: must be between 1 and 3600 seconds": not 1 <= timeout <= 3600,
        f"--elements {elements}: the switch program is compiled for {choices} elements per packet": (
            elements is not None and elements not in ELEMENT_CHOICES
        ),
    }
    for complaint, applies in complaints.items():
        if applies:
            raise CommandFailed(complaint, EXIT_MISUSED)
    return Plan(
        sizes=wanted,
        transports=chosen,
        dtype=dtype,
        redop=redop,
        elements=elements or DEFAULT_ELEMENTS,
        turns=turns,
        turn_s=turn_seconds,
        warmup=warmup,
        seed=seed,
        timeout_s=timeout,
        stages=stages,
    )


class _Screen:
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
        typer.echo(line)
        if self._live:
            self._progress.start()

    def __enter__(self) -> _Screen:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()


def _run(
    plan: Plan,
    ground: Ground,
    screen: _Screen,
    arguments: dict[str, Any],
    machine: dict[str, Any],
    json_file: Path | None,
    plot: Path | None,
) -> int:
    """The experiment and its outputs; returns the exit status. `machine`: environment.describe() from before it."""
    from switchsum.measure import report, table
    from switchsum.measure.crew import BenchmarkFailed
    from switchsum.measure.experiment import Experiment
    from switchsum.measure.rows import Row

    title = f"switchsum bench allreduce: {ground.title}; {plan.turns} runs; 1 GB/s = 1e9 B/s, sizes in bytes"
    rows: list[Row] = []
    for line in table.header(title):
        screen.show(line)

    def measured(samples: Any) -> None:
        rows.append(Row.of(samples))
        screen.show(table.line(rows[-1]))

    experiment = Experiment(plan, ground.crews, screen.told, measured)
    try:
        series = experiment.run()
    except BenchmarkFailed as error:
        raise CommandFailed(str(error)) from error
    machine["busy_before"] = experiment.busy_before
    when = f"{machine['date']}, {machine['cores']} cores, {100 * experiment.busy_before:.0f} % busy with others before"
    for line in table.footer(rows, [*ground.notes, when]) + table.stage_lines(rows, plan.elements):
        screen.show(line)
    ranks = {name: crew.hellos for name, crew in ground.crews.items()}
    try:
        if json_file is not None:
            written = report.as_json(
                series, rows, title=title, arguments=arguments, environment=machine, ranks=ranks, links=ground.links
            )
            json_file.write_text(json.dumps(written, indent=1))
        if plot is not None:
            from switchsum.measure import plot as plotting

            rate = next((each.link_rate_bps for each in series if each.link_rate_bps is not None), None)
            plotting.write(plot, rows, ground.title, rate, plan.elements)
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    return 1 if table.wrong_elements(rows) else 0
