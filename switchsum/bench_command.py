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
    bench_payloads,
    bench_payloads_command,
    bench_preset,
    bench_report_command,
)
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.bench_run import Outputs, Screen, run, under_torchrun
from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.measure.experiment import Case, Plan, Way
    from switchsum.measure.manifest import Manifest

BENCH_MODULES = {"torch": "torch"}
DEFAULT_TRANSPORTS = ("switchsum", "gloo", "limit")
DEFAULT_WORKERS = 4
_TYPES = ("float32", "float16", "bfloat16", "int32")
_OPERATIONS = ("sum", "avg")
_BEGIN, _END, _FACTOR = "4K", "64M", 4
DEDICATED = "dedicated"
PLACEMENTS = ("colocated", DEDICATED)

app = typer.Typer(help="Measure communication: sums through the switch and otherwise, calls of parameter servers.")
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
    repeat: Annotated[int | None, typer.Option(help="Of a preset: runs of each row, at least 5.  [default: 5]")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Of a preset: seconds that anything may be waited for.  [default: 120]")
    ] = None,
) -> None:
    if preset is None:
        options = {"output": output, "rack": rack, "rate": rate, "duration": duration, "repeat": repeat, "timeout": timeout}
        if given := [f"--{name}" for name, value in options.items() if value is not None]:
            behind = context.invoked_subcommand or "a benchmark"
            raise CommandFailed(f"{', '.join(given)} before {behind}: belongs behind it, or to --preset", EXIT_MISUSED)
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
        return
    if context.invoked_subcommand is not None:
        raise CommandFailed(f"--preset {preset} is a grid of its own; leave out {context.invoked_subcommand}", EXIT_MISUSED)
    if preset not in bench_preset.PRESETS:
        raise CommandFailed(f"--preset {preset}: there is {', '.join(bench_preset.PRESETS)}", EXIT_MISUSED)
    if output is None:
        raise CommandFailed(f"--preset {preset} fills a folder: name a new one with --output", EXIT_MISUSED)
    if under_torchrun(os.environ):
        raise CommandFailed(f"--preset {preset} runs on this machine or in a rack, not under torchrun", EXIT_MISUSED)
    require("bench", {**BENCH_MODULES, **bench_grounds.SWITCH_MODULES, "matplotlib": "demo"})
    place = bench_preset.Place(rack, rate)
    timing = bench_preset.Timing(duration, 5 if repeat is None else repeat, 120.0 if timeout is None else timeout)
    raise typer.Exit(bench_preset.paper(output, place, timing, allreduce))


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
            help="What to measure, may be repeated: switchsum, switchsum16, switchsum8 (lanes of 16 and 8 bits), gloo, nccl, "
            "grpc and tcp (parameter servers), limit.  "
            f"[default: {', '.join(DEFAULT_TRANSPORTS)}]"
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="Of grpc: non-serialized or serialized (protobuf); may be repeated.  [default: non-serialized]"),
    ] = None,
    num_ps: Annotated[
        int | None, typer.Option(help="Parameter servers.  [default: as many as workers; if dedicated, 1]")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            help="Parameter servers beside workers (colocated) or on hosts of their own (dedicated).  [default: colocated]"
        ),
    ] = None,
    begin: Annotated[str | None, typer.Option(help="Smallest size of a worker's tensor, such as 4K.  [default: 4K]")] = None,
    end: Annotated[str | None, typer.Option(help="Largest size; K, M and G are binary.  [default: 64M]")] = None,
    factor: Annotated[int | None, typer.Option(help="From one size to the next.  [default: 4]")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="Exactly this size, rounded up to whole numbers, may be repeated; instead of a sweep."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16, bfloat16 or int32.  [default: float32]")] = None,
    payload: Annotated[
        list[str] | None,
        typer.Option(help="Sum the buckets of a captured payload's step, all at once: its name or file; may be repeated."),
    ] = None,
    step: Annotated[
        list[int] | None,
        typer.Option(help="Of the payload's steps, from 0; may be repeated.  [default: the one like most others]"),
    ] = None,
    scheme: Annotated[
        list[str] | None,
        typer.Option(help="Sum the paper's buffers, all at once: uniform, random or skew; may be repeated."),
    ] = None,
    iovec_count: Annotated[list[int] | None, typer.Option(help="Buffers of a scheme; may be repeated.  [default: 10]")] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="Bytes of a scheme's categories; KB, MB decimal.  [default: small=10,medium=10KB,large=1MB]"),
    ] = None,
    bias: Annotated[
        str | None, typer.Option(help="Category with 60 % of a skewed payload's buffers.  [default: large]")
    ] = None,
    redop: Annotated[str, typer.Option(help="sum or avg.")] = "sum",
    repeat: Annotated[int, typer.Option(help="Runs of each transport and size; transports alternate. At least 5.")] = 5,
    duration: Annotated[float, typer.Option(help="Seconds of a run; at least one sum is made.")] = 0.5,
    warmup: Annotated[float, typer.Option(help="Seconds before the first run; at least one sum is made.")] = 0.1,
    check: Annotated[bool, typer.Option("--check", help="Verify every sum, not only one after each run.")] = False,
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
    """Sum tensors over all workers: through the switch, around a ring, by parameter servers; print what nccl-tests would.

    On this machine's loopback, in an emulated rack (--rack), or under torchrun on real hosts: there colocated parameter servers
    are the second half of each host's ranks, dedicated ones the last ranks. Every sum is verified before it is timed; the exit
    status is 1 if one was wrong, or if a link carried something else than the algorithm must move.
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
    ways = _ways(transport, mode)
    cases, found, notes = _cases(
        begin=begin,
        end=end,
        factor=factor,
        size=size,
        dtype=dtype,
        payload=payload,
        step=step,
        scheme=scheme,
        iovec_count=iovec_count,
        sizes=sizes,
        bias=bias,
        seed=seed,
    )
    number = DEFAULT_WORKERS if workers is None else workers
    described = None
    if rack is not None:
        described = bench_grounds.described_rack(rack, workers, rate, loss, elements, switch)
        number, elements = len(described.workers), described.elements
    elif hosted:
        number = int(os.environ["WORLD_SIZE"])
    place = "torchrun" if hosted else "a rack" if described is not None else ""
    number, servers = _processes(number, ways, num_ps, placement, place)
    colocated = bool(place) and placement != DEDICATED and servers > 0
    if number < 2:
        raise CommandFailed(f"{number} worker has nothing to sum with: there must be at least 2; see --workers", EXIT_MISUSED)
    _require_devices(ways, rack is not None, int(os.environ["LOCAL_WORLD_SIZE"]) if hosted else number)
    plan = _plan(
        ways=ways,
        cases=cases,
        workers=number,
        servers=servers,
        redop=redop,
        repeat=repeat,
        duration=duration,
        warmup=warmup,
        elements=elements,
        seed=seed,
        timeout=timeout,
        check=check,
        stages=stages,
    )
    if hosted and os.environ["RANK"] != "0":
        raise typer.Exit(bench_grounds.follow(plan, colocated))
    from switchsum.measure import environment
    from switchsum.measure.allreduce import AllReduce

    machine = environment.describe()
    with terminated_like_interrupted(), ExitStack() as stack, Screen() as screen:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-bench-")))
        if hosted:
            ground = bench_grounds.on_hosts(plan, stack, screen.told, colocated)
        elif described is not None:
            ground = bench_grounds.in_racks(plan, described, colocated, bmv2, folder, stack, screen.told)
        else:
            ground = bench_grounds.on_loopback(plan, loss or 0.0, folder, stack, screen.told)
        ground.notes += notes
        status = run(plan, ground, AllReduce, screen, arguments, machine, found, outputs)
    raise typer.Exit(status)


def _ways(transport: Sequence[str] | None, mode: Sequence[str] | None) -> list[Way]:
    """Transports in the order of the options. Raises CommandFailed."""
    from switchsum.measure.experiment import Way
    from switchsum.measure.rpc_grpc import MODES, NON_SERIALIZED
    from switchsum.measure.transports import DESCRIPTIONS

    chosen = list(dict.fromkeys(transport or DEFAULT_TRANSPORTS))
    for name in chosen:
        if name not in DESCRIPTIONS:
            raise CommandFailed(f"--transport {name}: there are {', '.join(DESCRIPTIONS)}", EXIT_MISUSED)
    for name in mode or ():
        if name not in MODES:
            raise CommandFailed(f"--mode {name}: choose {' or '.join(MODES)}", EXIT_MISUSED)
    if mode and "grpc" not in chosen:
        raise CommandFailed("--mode: only grpc has modes; add --transport grpc", EXIT_MISUSED)
    modes = list(dict.fromkeys(mode or (NON_SERIALIZED,)))
    return [
        Way(name, each, DESCRIPTIONS[name].needs_switch, DESCRIPTIONS[name].compiled)
        for name in chosen
        for each in (modes if name == "grpc" else [""])
    ]


def _cases(
    *,
    begin: str | None,
    end: str | None,
    factor: int | None,
    size: Sequence[str] | None,
    dtype: str | None,
    payload: Sequence[str] | None,
    step: Sequence[int] | None,
    scheme: Sequence[str] | None,
    iovec_count: Sequence[int] | None,
    sizes: str | None,
    bias: str | None,
    seed: int,
) -> tuple[list[Case], list[Manifest], list[str]]:
    """What is summed, the manifests that it is of, and notes about them. Raises CommandFailed."""
    from switchsum.measure import sizes as binary
    from switchsum.measure.experiment import Case
    from switchsum.measure.manifest import ITEM_BYTES, Buffer

    swept = any(value is not None for value in (begin, end, factor, size, dtype))
    if (payload or scheme) and swept:
        raise CommandFailed(
            "--begin, --end, --factor, --size and --dtype choose single tensors; --payload and --scheme bring their own",
            EXIT_MISUSED,
        )
    if payload and scheme:
        raise CommandFailed("--payload and --scheme: choose one of them", EXIT_MISUSED)
    if not scheme and (iovec_count or sizes is not None or bias is not None):
        raise CommandFailed("--iovec-count, --sizes and --bias shape a scheme's payload: add --scheme", EXIT_MISUSED)
    if step and not payload:
        raise CommandFailed("--step chooses among a payload's steps: add --payload", EXIT_MISUSED)
    if not payload and not scheme:
        kind = "float32" if dtype is None else dtype
        if kind not in _TYPES:
            raise CommandFailed(f"--dtype {kind}: choose {', '.join(_TYPES)}", EXIT_MISUSED)
        try:
            first, last = binary.parse(begin or _BEGIN), binary.parse(end or _END)
            wanted = [binary.parse(text) for text in size] if size else binary.sweep(first, last, factor or _FACTOR)
        except binary.BadSize as error:
            raise CommandFailed(str(error), EXIT_MISUSED) from error
        whole = [each + -each % ITEM_BYTES[kind] for each in wanted]
        return [Case(binary.name(each), [Buffer(each, kind)]) for each in whole], [], []
    found = bench_payloads.manifests(
        scheme=scheme or (),
        iovec_count=iovec_count or (),
        sizes=sizes,
        bias=bias,
        seed=seed,
        size=(),
        payload=payload or (),
    )
    cases, notes = [], []
    for manifest in found:
        for number in dict.fromkeys(step or [manifest.usual_step]):
            if not 0 <= number < len(manifest.steps):
                raise CommandFailed(
                    f"--step {number}: payload {manifest.name} has steps 0 to {len(manifest.steps) - 1}", EXIT_MISUSED
                )
            chosen = manifest.steps[number]
            for bucket in chosen.buckets:
                if bucket.dtype not in _TYPES:
                    raise CommandFailed(
                        f"payload {manifest.name}, step {number}: {bucket.dtype} is not summed here; {', '.join(_TYPES)} are",
                        EXIT_MISUSED,
                    )
            usual = number == manifest.usual_step
            case = Case(manifest.name if usual else f"{manifest.name} step {number}", chosen.buckets)
            cases.append(case)
            alike = sum(other.times for other in manifest.steps if other.is_like(chosen))
            every = sum(other.times for other in manifest.steps)
            stands = f"step {number}, which stands for {alike} of {every} steps; " if every > 1 else ""
            notes.append(f"payload {manifest.name}: {stands}{_told(case)}")
    return cases, found, notes


def _told(case: Case) -> str:
    if len(case.buffers) == 1:
        return f"1 tensor of {case.size_bytes} B"
    return f"{len(case.buffers)} tensors of {case.size_bytes} B together, all under way at once"


def _processes(ranks: int, ways: Sequence[Way], num_ps: int | None, placement: str | None, place: str) -> tuple[int, int]:
    """(workers, parameter servers). `ranks`: torchrun's, else the workers; `place`: "torchrun", "a rack" or "" for loopback.

    Raises CommandFailed.
    """
    from switchsum.measure.transports import DESCRIPTIONS
    from switchsum.p4src.layout import MAX_WORKERS

    if placement is not None and placement not in PLACEMENTS:
        raise CommandFailed(f"--placement {placement}: choose {' or '.join(PLACEMENTS)}", EXIT_MISUSED)
    if not any(DESCRIPTIONS[way.transport].needs_servers for way in ways):
        if num_ps is not None or placement is not None:
            raise CommandFailed(
                "--num-ps and --placement are about parameter servers: add --transport grpc or --transport tcp", EXIT_MISUSED
            )
        return ranks, 0
    if not place and placement is not None:
        raise CommandFailed(f"--placement {placement}: on loopback all share one host; use --rack or torchrun", EXIT_MISUSED)
    if num_ps is not None and not 1 <= num_ps <= MAX_WORKERS:
        raise CommandFailed(f"--num-ps {num_ps}: must be from 1 to {MAX_WORKERS}", EXIT_MISUSED)
    if place == "torchrun":
        return _of_torchrun(ranks, num_ps, placement)
    if placement == DEDICATED:
        return ranks, num_ps or 1
    if place and num_ps is not None and num_ps > ranks:
        raise CommandFailed(
            f"--num-ps {num_ps}: {ranks} workers have no more than {ranks} hosts to share; add --placement {DEDICATED}",
            EXIT_MISUSED,
        )
    return ranks, num_ps or ranks


def _of_torchrun(ranks: int, num_ps: int | None, placement: str | None) -> tuple[int, int]:
    """(workers, parameter servers) of a job's ranks. Raises CommandFailed."""
    if placement == DEDICATED:
        servers = num_ps or 1
        if ranks - servers < 2:
            raise CommandFailed(
                f"--num-ps {servers}: of torchrun's {ranks} ranks {ranks - servers} would be workers; there must be at least 2",
                EXIT_MISUSED,
            )
        return ranks - servers, servers
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if here % 2 or ranks % here or num_ps not in (None, ranks // 2):
        raise CommandFailed(
            f"colocated parameter servers take half of each host's ranks, one for each worker; torchrun started {here} here, "
            f"{ranks} in all: start 2 on each host (--nproc-per-node 2) without --num-ps, or add --placement {DEDICATED}",
            EXIT_MISUSED,
        )
    return ranks // 2, ranks // 2


def _require_devices(ways: Sequence[Way], in_a_rack: bool, ranks: int) -> None:
    """`ranks`: on this host. Raises CommandFailed unless each has a CUDA device, if one is needed."""
    from switchsum.measure.transports import DESCRIPTIONS

    if not any(DESCRIPTIONS[way.transport].needs_devices for way in ways):
        return
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not devices:
        raise CommandFailed("--transport nccl: PyTorch finds no CUDA device here", EXIT_MISUSED)
    if in_a_rack:
        raise CommandFailed("--transport nccl: a rack's links carry nothing between devices; leave --rack out", EXIT_MISUSED)
    if devices < ranks:
        raise CommandFailed(
            f"--transport nccl: {ranks} ranks need a CUDA device each, PyTorch finds {devices} here", EXIT_MISUSED
        )


def _plan(
    *,
    ways: Sequence[Way],
    cases: Sequence[Case],
    workers: int,
    servers: int,
    redop: str,
    repeat: int,
    duration: float,
    warmup: float,
    elements: int | None,
    seed: int,
    timeout: float,
    check: bool,
    stages: bool,
) -> Plan:
    """The options as a plan. Raises CommandFailed naming the option that makes no sense."""
    from switchsum.measure.experiment import Plan
    from switchsum.p4src.layout import DEFAULT_ELEMENTS, ELEMENT_CHOICES

    integers = any(buffer.dtype == "int32" for case in cases for buffer in case.buffers)
    choices = ", ".join(map(str, ELEMENT_CHOICES))
    complaints = {
        f"--redop {redop}: choose {' or '.join(_OPERATIONS)}": redop not in _OPERATIONS,
        "--redop avg: an average of int32 has no exact result; use sum": redop == "avg" and integers,
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
    return Plan(
        ways=ways,
        cases=cases,
        workers=workers,
        servers=servers,
        redop=redop,
        elements=elements or DEFAULT_ELEMENTS,
        repeat=repeat,
        duration_s=duration,
        warmup_s=warmup,
        seed=seed,
        timeout_s=timeout,
        check=check,
        stages=stages,
    )
