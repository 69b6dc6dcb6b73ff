"""`switchsum bench`: communication benchmarks from the command line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchsum import (
    bench_calls_command,
    bench_capture_command,
    bench_grounds,
    bench_payloads_command,
    bench_preset,
    bench_report_command,
)
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.bench_run import Outputs, Screen, run, under_torchrun
from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
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
def _preset(
    context: typer.Context,
    preset: Annotated[
        str | None, typer.Option(help="Instead of one benchmark, a whole grid: paper, the one of TF-gRPC-Bench's figures.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Of a preset: a new folder for its results and their report.")] = None,
    rack: Annotated[Path | None, typer.Option(help="Of a preset: a rack's YAML file to run it in; needs root.")] = None,
    rate: Annotated[str | None, typer.Option(help="Of a preset: rate of every link, whatever the file says.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Of a preset: seconds of a run.  [default: the paper's 10, less on fast links]")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Of a preset: runs of each row, at least 5.")] = 5,
) -> None:
    if preset is None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
        return
    if context.invoked_subcommand is not None:
        raise CommandFailed(f"--preset {preset} is a grid of its own; leave out {context.invoked_subcommand}", EXIT_MISUSED)
    if preset not in bench_preset.PRESETS:
        raise CommandFailed(f"--preset {preset}: there is {', '.join(bench_preset.PRESETS)}", EXIT_MISUSED)
    if output is None:
        raise CommandFailed(f"--preset {preset} fills a folder: name a new one with --output", EXIT_MISUSED)
    require("bench", {**BENCH_MODULES, "matplotlib": "demo"})
    place = bench_preset.Place(rack, rate)
    raise typer.Exit(bench_preset.paper(output, place, duration, repeat, allreduce))


bench_calls_command.register(app)
bench_report_command.register(app)


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
    repeat: Annotated[int, typer.Option(help="Runs of each transport and size; transports alternate. At least 5.")] = 5,
    duration: Annotated[float, typer.Option(help="Seconds of a run; at least one sum is made.")] = 0.5,
    warmup: Annotated[float, typer.Option(help="Seconds before the first run; at least one sum is made.")] = 0.1,
    elements: Annotated[
        int | None, typer.Option(help="Numbers per packet: 64, 128 or 256.  [default: 256, or the rack's]")
    ] = None,
    switch: Annotated[str | None, typer.Option(help="softswitch or bmv2, whatever the rack's file says.")] = None,
    bmv2: Annotated[str, typer.Option("--bmv2", help="Path of simple_switch_grpc; without it, the one on PATH.")] = "",
    seed: Annotated[int, typer.Option(help="Start of every random choice: tensors, dropped packets.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that anything may be waited for before it counts as failed.")] = 120.0,
    stages: Annotated[
        bool, typer.Option("--stages", help="Also tell where a worker's time goes, by stage, in one more run.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write raw samples and environment here.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write one line for each row and run here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw algbw, busbw and linkbw over size into this PNG.")] = None,
) -> None:
    """Sum tensors over all workers, through the switch and otherwise, and print what nccl-tests would, and more.

    On this machine's loopback, in an emulated rack (--rack), or under torchrun on real hosts. Every sum is verified before it
    is timed; the exit status is 1 if one was wrong.
    """
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    require("bench", {**BENCH_MODULES, **({"matplotlib": "demo"} if plot else {})})
    outputs = Outputs(json_file, csv_file, plot)
    if loss is not None and not 0 <= loss < 1:
        raise CommandFailed(f"--loss {loss:g}: must be at least 0 and below 1", EXIT_MISUSED)
    if rack is None and (rate or switch or bmv2):
        raise CommandFailed("--rate, --switch and --bmv2 belong to a rack: give its file with --rack", EXIT_MISUSED)
    hosted = rack is None and workers is None and under_torchrun(os.environ)
    if rack is None and workers is not None and "TORCHELASTIC_RUN_ID" in os.environ:
        raise CommandFailed(f"--workers {workers}: torchrun says how many there are; leave it out", EXIT_MISUSED)
    if hosted and loss is not None:
        raise CommandFailed("--loss: on real hosts the controller says what the switch drops", EXIT_MISUSED)
    number = DEFAULT_WORKERS if workers is None else workers
    described = None
    if rack is not None:
        described = bench_grounds.described_rack(rack, workers, rate, loss, elements, switch)
        number, elements = len(described.workers), described.elements
    elif hosted:
        number = int(os.environ["WORLD_SIZE"])
    if number < 2:
        raise CommandFailed(f"{number} worker has nothing to sum with: there must be at least 2; see --workers", EXIT_MISUSED)
    plan = _plan(
        workers=number,
        transport=transport,
        begin=begin,
        end=end,
        factor=factor,
        size=size,
        dtype=dtype,
        redop=redop,
        repeat=repeat,
        duration=duration,
        warmup=warmup,
        elements=elements,
        seed=seed,
        timeout=timeout,
        stages=stages,
    )
    if hosted and os.environ["RANK"] != "0":
        raise typer.Exit(bench_grounds.follow(plan))
    from switchsum.measure import environment
    from switchsum.measure.allreduce import AllReduce

    machine = environment.describe()
    with terminated_like_interrupted(), ExitStack() as stack, Screen() as screen:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-bench-")))
        if hosted:
            ground = bench_grounds.on_hosts(plan, stack, screen.told)
        elif described is not None:
            ground = bench_grounds.in_racks(plan, described, False, bmv2, folder, stack, screen.told)
        else:
            ground = bench_grounds.on_loopback(plan, loss or 0.0, folder, stack, screen.told)
        status = run(plan, ground, AllReduce, screen, arguments, machine, [], outputs)
    raise typer.Exit(status)


def _plan(
    *,
    workers: int,
    transport: Sequence[str] | None,
    begin: str,
    end: str,
    factor: int,
    size: Sequence[str] | None,
    dtype: str,
    redop: str,
    repeat: int,
    duration: float,
    warmup: float,
    elements: int | None,
    seed: int,
    timeout: float,
    stages: bool,
) -> Plan:
    """The options as a plan. Raises CommandFailed naming the option that makes no sense."""
    from switchsum.measure import sizes
    from switchsum.measure.experiment import Case, Plan, Way
    from switchsum.measure.manifest import ITEM_BYTES, Buffer
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
        f"--repeat {repeat}: fewer than 5 runs show no spread": repeat < 5,
        f"--duration {duration:g}: must be above 0 and at most 600 seconds": not 0 < duration <= 600,
        f"--warmup {warmup:g}: must be from 0 to 600 seconds": not 0 <= warmup <= 600,
        f"--seed {seed}: must be between 0 and {2**32 - 1}": not 0 <= seed < 2**32,
        f"--timeout {timeout:g}: must be between 1 and 3600 seconds": not 1 <= timeout <= 3600,
        f"--elements {elements}: the switch program is compiled for {choices} elements per packet": (
            elements is not None and elements not in ELEMENT_CHOICES
        ),
    }
    for complaint, applies in complaints.items():
        if applies:
            raise CommandFailed(complaint, EXIT_MISUSED)
    descriptions = [DESCRIPTIONS[name] for name in chosen]
    return Plan(
        ways=[Way(each.name, needs_switch=each.needs_switch, compiled=each.compiled) for each in descriptions],
        cases=[Case(sizes.name(each), [Buffer(each + -each % ITEM_BYTES[dtype], dtype)]) for each in wanted],
        workers=workers,
        redop=redop,
        elements=elements or DEFAULT_ELEMENTS,
        repeat=repeat,
        duration_s=duration,
        warmup_s=warmup,
        seed=seed,
        timeout_s=timeout,
        stages=stages,
    )
