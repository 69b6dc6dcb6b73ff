"""`switchsum bench`: communication benchmarks from the command line."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from rich.progress import Progress

    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.measure.crew import Crew
    from switchsum.measure.experiment import Plan

EXIT_MISUSED = 2
BENCH_MODULES = {"torch": "torch"}
SWITCH_MODULES = {"llvmlite": "switch", "p4": "switch", "p4runtime_sh": "switch"}
DEFAULT_TRANSPORTS = ("switchsum", "gloo", "limit")
DEFAULT_WORKERS = 4
_TYPES = ("float32", "float16", "bfloat16", "int32")
_OPERATIONS = ("sum", "avg")

# What suits Gloo and costs the switch nothing: whole TCP runs of 64 KB pass a link in one piece, a send buffer fits its queue.
_BURST_BYTES = 128 << 10
_QUEUE_BYTES = 512 << 10
_QUEUE_S = 0.008

app = typer.Typer(help="Measure communication: sums through the switch, over Gloo, and what the path can carry at best.")


@app.callback(invoke_without_command=True)
def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dataclass
class _Ground:
    """Where the experiment stands: who runs each transport, and what a reader must know about the place."""

    crews: dict[str, Crew]
    title: str
    notes: list[str] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)


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
    )
    for path in (json_file, plot):
        if path is not None and not path.resolve().parent.is_dir():
            raise CommandFailed(f"{path} cannot be written: there is no folder {path.resolve().parent}", EXIT_MISUSED)
    if loss is not None and not 0 <= loss < 1:
        raise CommandFailed(f"--loss {loss:g}: must be at least 0 and below 1", EXIT_MISUSED)
    if rack is None and (rate or switch or bmv2):
        raise CommandFailed("--rate, --switch and --bmv2 belong to a rack: give its file with --rack", EXIT_MISUSED)
    under_torchrun = (
        rack is None and workers is None and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)
    )
    if under_torchrun and os.environ["RANK"] != "0":
        raise typer.Exit(_follow())
    if under_torchrun and loss is not None:
        raise CommandFailed("--loss: on real hosts the controller says what the switch drops", EXIT_MISUSED)
    if rack is not None:
        described = _rack(rack, workers, rate, loss, elements, switch)
        plan = _with_elements(plan, described.elements)
    with terminated_like_interrupted(), ExitStack() as stack, _progress() as progress:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-bench-")))
        if under_torchrun:
            opened = _on_hosts(plan, stack)
        elif rack is not None:
            opened = _in_racks(plan, described, bmv2, folder, stack, progress)
        else:
            opened = _on_loopback(plan, DEFAULT_WORKERS if workers is None else workers, loss or 0.0, folder, stack)
        status = _run(plan, opened, progress, arguments, json_file, plot)
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
    )


def _with_elements(plan: Plan, elements: int) -> Plan:
    from dataclasses import replace

    return replace(plan, elements=elements)


def _needs_switch(plan: Plan) -> bool:
    from switchsum.measure.transports import DESCRIPTIONS

    return any(DESCRIPTIONS[name].needs_switch for name in plan.transports)


def _rack(
    file: Path, workers: int | None, rate: str | None, loss: float | None, elements: int | None, switch: str | None
) -> RackFile:
    """The rack with our switch, options applied. Raises CommandFailed."""
    require("bench", SWITCH_MODULES)
    from switchsum.bmv2_topologies import namespaces, rack_file
    from switchsum.bmv2_topologies.switch_process import KINDS

    try:
        described = rack_file.load(file)
        if workers is not None:
            described = described.with_workers(workers)
        rate_bps = None
        if rate is not None:
            try:
                rate_bps = rack_file.parse_rate(rate)
            except ValueError as error:
                raise CommandFailed(f"--rate {error}", EXIT_MISUSED) from error
        fastest = max((worker.link.rate_bps or 0 for worker in described.workers), default=0) if rate_bps is None else rate_bps
        described = described.with_links(
            rate_bps=rate_bps,
            burst_bytes=max(_BURST_BYTES, *(worker.link.burst_bytes for worker in described.workers)),
            queue_bytes=max(_QUEUE_BYTES, int(_QUEUE_S * fastest / 8)),
        )
        described = described.changed(kind=switch, elements=elements, loss=loss, name=f"bench-{os.getpid()}")
    except rack_file.RackError as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    if described.kind not in KINDS:
        raise CommandFailed(f"a {described.kind} sums nothing: choose --switch {' or '.join(KINDS)}", EXIT_MISUSED)
    if len(described.workers) < 2:
        raise CommandFailed("a sum needs at least 2 workers; give --workers", EXIT_MISUSED)
    if problem := namespaces.what_is_missing():
        raise CommandFailed(f"a rack is made of network namespaces, but {problem}")
    return described


def _on_loopback(plan: Plan, workers: int, loss: float, folder: Path, stack: ExitStack) -> _Ground:
    from switchsum.bench_sites import LoopbackSite
    from switchsum.demo.family import Family
    from switchsum.demo.options import BadOption, DemoOptions
    from switchsum.demo.rack import RackError
    from switchsum.measure.crew import BenchmarkFailed

    if _needs_switch(plan):
        require("bench", SWITCH_MODULES)
    try:
        options = DemoOptions(workers=workers, loss=loss, elements=plan.elements, seed=plan.seed, timeout_s=plan.timeout_s)
    except BadOption as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    _prepare()
    family = stack.enter_context(Family())
    try:
        site = LoopbackSite(family, folder / "workers", options, _needs_switch(plan))
        site.start()
        crew = site.crew()
    except (RackError, BenchmarkFailed) as error:
        raise CommandFailed(str(error)) from error
    stack.callback(crew.close)
    notes = ["all on this machine's loopback: link up and down are UDP or TCP payload, and only the processor is a limit"]
    if loss:
        notes.append(f"the switch dropped {100 * loss:g} % of the packets in each direction; gloo and limit ran without loss")
    return _Ground(dict.fromkeys(plan.transports, crew), f"{workers} workers on loopback", notes)


def _in_racks(plan: Plan, described: RackFile, bmv2: str, folder: Path, stack: ExitStack, progress: Progress) -> _Ground:
    from switchsum.bench_sites import Racks, RackSite
    from switchsum.bmv2_topologies.namespaces import NetworkError
    from switchsum.bmv2_topologies.rack_file import RackError
    from switchsum.bmv2_topologies.switch_process import SwitchFailed
    from switchsum.demo.family import Family
    from switchsum.measure.crew import BenchmarkFailed
    from switchsum.measure.transports import DESCRIPTIONS

    _prepare()
    crews: dict[bool, Crew] = {}
    progress.console.print(f"bringing up racks of {len(described.workers)} workers", highlight=False)
    try:
        racks = stack.enter_context(Racks(described, bmv2=bmv2, seed=plan.seed))
        family = stack.enter_context(Family())  # entered last: workers end before their racks go
        sites = {}
        for switched in sorted({DESCRIPTIONS[name].needs_switch for name in plan.transports}):
            rack = racks.switched() if switched else racks.bridged()
            sites[switched] = RackSite(family, folder / ("switch" if switched else "bridge"), rack, plan.timeout_s)
        for site in sites.values():
            site.start()
        for switched, site in sites.items():
            crews[switched] = site.crew()
            stack.callback(crews[switched].close)
    except (RackError, NetworkError, SwitchFailed, BenchmarkFailed, OSError) as error:
        raise CommandFailed(str(error)) from error
    notes = []
    link = described.workers[0].link
    if link.rate_bps is not None:
        notes.append(
            f"links: tbf of {link.rate_bps / 1e6:g} Mbit/s, burst {described.burst_of(link)} B, queue {link.queue} B in each "
            "direction, alike at switch and bridge; link up, down and % are what tbf counted (Ethernet and all headers); more "
            "than 100 %: the burst's credit from the pause before each iteration"
        )
    else:
        notes.append("links are as fast as the machine; link up and down are the interfaces' bytes")
    if False in sites:
        notes.append(
            f"{', '.join(name for name in plan.transports if not DESCRIPTIONS[name].needs_switch)}: over a plain bridge"
        )
    losses = {(worker.loss.into, worker.loss.out) for worker in described.workers}
    if losses != {(0.0, 0.0)} and True in sites:
        told = " or ".join(f"{100 * into:g} % in, {100 * out:g} % out" for into, out in sorted(losses))
        notes.append(f"the switch dropped {told} of each worker's packets; rows over the bridge ran without loss")
    title = f"{len(described.workers)} workers in a rack, {described.kind}"
    chosen = {name: crews[DESCRIPTIONS[name].needs_switch] for name in plan.transports}
    return _Ground(chosen, title, notes, described.as_json()["workers"])


def _on_hosts(plan: Plan, stack: ExitStack) -> _Ground:
    from switchsum.bench_sites import HostsSite, publish
    from switchsum.demo.family import Family
    from switchsum.measure.crew import BenchmarkFailed

    _prepare()
    family = stack.enter_context(Family())
    site = HostsSite(family, os.environ)
    if len(site.labels) < 2:
        raise CommandFailed("WORLD_SIZE is 1: a sum needs at least 2 ranks", EXIT_MISUSED)
    publish(site.address)
    site.start()
    try:
        crew = site.crew()
    except BenchmarkFailed as error:
        raise CommandFailed(str(error)) from error
    stack.callback(crew.close)
    hosts = len({hello["machine"] for hello in crew.hellos})
    note = "link up and down: the interface's bytes where a rank has it for itself, else UDP or TCP payload"
    return _Ground(
        dict.fromkeys(plan.transports, crew), f"{len(site.labels)} ranks on {hosts} host{'s' if hosts > 1 else ''}", [note]
    )


def _follow() -> int:
    """A rank other than 0 under torchrun: does what rank 0 says."""
    from switchsum.bench_sites import publish
    from switchsum.measure import worker

    _prepare()
    status = worker.main(publish(None))
    if status:
        raise CommandFailed(f"rank {os.environ['RANK']}: rank 0 ended the benchmark; its output says why")
    return status


def _prepare() -> None:
    """Compile once, before workers start side by side."""
    from switchsum.host_agent.prepare import prepare
    from switchsum.measure import datagrams

    prepare()
    datagrams.prepare()


@contextmanager
def _progress() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield progress


def _run(
    plan: Plan, opened: _Ground, progress: Progress, arguments: dict[str, Any], json_file: Path | None, plot: Path | None
) -> int:
    """The experiment and its outputs; returns the exit status."""
    from switchsum.measure import environment, report, table
    from switchsum.measure.crew import BenchmarkFailed
    from switchsum.measure.experiment import Experiment
    from switchsum.measure.rows import Row

    described = environment.describe()
    title = f"switchsum bench allreduce: {opened.title}; {plan.turns} runs; 1 GB/s = 1e9 B/s, sizes in bytes"
    task = progress.add_task("starting", total=None)

    def told(what: str, step: int, steps: int) -> None:
        progress.update(task, description=what, completed=step, total=steps)

    rows: list[Row] = []
    for line in table.header(title):
        typer.echo(line)

    def measured(samples: Any) -> None:
        rows.append(Row.of(samples))
        progress.console.file.flush()
        typer.echo(table.line(rows[-1]))

    experiment = Experiment(plan, opened.crews, told, measured)
    try:
        series = experiment.run()
    except BenchmarkFailed as error:
        raise CommandFailed(str(error)) from error
    described["busy_before"] = experiment.busy_before
    machine = f"{described['date']}, {described['cores']} cores, {100 * experiment.busy_before:.0f} % busy with others before"
    for line in table.footer(rows, [*opened.notes, machine]):
        typer.echo(line)
    ranks = {name: crew.hellos for name, crew in opened.crews.items()}
    try:
        if json_file is not None:
            written = report.as_json(
                series, rows, title=title, arguments=arguments, environment=described, ranks=ranks, links=opened.links
            )
            json_file.write_text(json.dumps(written, indent=1))
        if plot is not None:
            from switchsum.measure import plot as plotting

            rate = next((each.link_rate_bps for each in series if each.link_rate_bps is not None), None)
            plotting.write(plot, rows, opened.title, rate, plan.elements)
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}") from error
    return 1 if table.wrong_elements(rows) else 0
