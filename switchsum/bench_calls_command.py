"""`switchsum bench p2p-latency | p2p-bandwidth | ps-throughput`: TF-gRPC-Bench's three benchmarks from the command line."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum import bench_grounds, bench_payloads
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.bench_run import Outputs, Screen, run, under_torchrun
from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.measure.calls import Calls
    from switchsum.measure.experiment import Plan
    from switchsum.measure.manifest import Manifest


def calls(
    kind: type[Calls],
    *,
    ip: str,
    port: int,
    num_ps: int,
    num_workers: int,
    mode: Sequence[str],
    scheme: Sequence[str],
    iovec_count: Sequence[int],
    sizes: str | None,
    bias: str | None,
    warmup: float,
    duration: float,
    repeat: int,
    seed: int,
    size: Sequence[str],
    payload: Sequence[str],
    transport: Sequence[str],
    check: bool,
    placement: str | None,
    rack: Path | None,
    rate: str | None,
    timeout: float,
    json_file: Path | None,
    csv_file: Path | None,
) -> int:
    """One benchmark; returns the exit status. Options that may be repeated are empty, others None, where they were not given.

    Raises CommandFailed.
    """
    arguments = {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in locals().items()
        if name != "kind"
    }
    outputs = Outputs(json_file, csv_file)
    if "gloo" in transport:
        require("bench", {"torch": "torch"})
    found = bench_payloads.manifests(
        scheme=scheme, iovec_count=iovec_count, sizes=sizes, bias=bias, seed=seed, size=size, payload=payload
    )
    hosted = rack is None and under_torchrun(os.environ)
    plan = _plan(
        kind, found, mode, transport, num_workers, num_ps, repeat, duration, warmup, seed, ip, port, timeout, check, placement
    )
    if mode and "grpc" not in transport:
        raise CommandFailed("--mode: only grpc has modes; add --transport grpc", EXIT_MISUSED)
    if rack is None and placement is not None:
        raise CommandFailed(
            f"--placement {placement}: only in a rack; under torchrun, ranks lie where it starts them", EXIT_MISUSED
        )
    if rack is None and rate:
        raise CommandFailed("--rate belongs to a rack: give its file with --rack", EXIT_MISUSED)
    if hosted or rack is not None:
        plan = replace(plan, ip="")
    if hosted and int(os.environ["WORLD_SIZE"]) != num_workers + num_ps:
        raise CommandFailed(
            f"torchrun started {os.environ['WORLD_SIZE']} ranks; --num-workers {num_workers} and --num-ps {num_ps} need "
            f"{num_workers + num_ps}: the first ones are workers, the last ones parameter servers",
            EXIT_MISUSED,
        )
    if hosted and os.environ["RANK"] != "0":
        return bench_grounds.follow(plan)
    described = None
    if rack is not None:
        described = bench_grounds.described_rack(rack, num_workers, rate, 0.0, None, None)
    from switchsum.measure import environment

    machine = environment.describe()
    with terminated_like_interrupted(), ExitStack() as stack, Screen() as screen:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-bench-")))
        if hosted:
            ground = bench_grounds.on_hosts(plan, stack, screen.told)
        elif described is not None:
            ground = bench_grounds.in_racks(plan, described, placement == "colocated", "", folder, stack, screen.told)
        else:
            ground = bench_grounds.on_loopback(plan, 0.0, folder, stack, screen.told)
        ground.notes += _notes(kind, plan)
        return run(plan, ground, kind, screen, arguments, machine, found, outputs)


def _plan(
    kind: type[Calls],
    found: Sequence[Manifest],
    mode: Sequence[str],
    transport: Sequence[str],
    num_workers: int,
    num_ps: int,
    repeat: int,
    duration: float,
    warmup: float,
    seed: int,
    ip: str,
    port: int,
    timeout: float,
    check: bool,
    placement: str | None,
) -> Plan:
    """The options as a plan. Raises CommandFailed naming the option that makes no sense."""
    from switchsum.measure.calls import RPC_TRANSPORTS, too_large
    from switchsum.measure.experiment import Case, Plan, Way
    from switchsum.measure.manifest import Buffer
    from switchsum.measure.rpc_grpc import MODES, NON_SERIALIZED
    from switchsum.p4src.layout import MAX_WORKERS

    for name in transport:
        if name in ("switchsum", "nccl", "limit"):
            what = "a switch that adds carries no calls" if name == "switchsum" else f"{name} makes no calls"
            raise CommandFailed(f"--transport {name}: {what}; it takes part in `switchsum bench allreduce`", EXIT_MISUSED)
        if name not in RPC_TRANSPORTS:
            raise CommandFailed(f"--transport {name}: there are {', '.join(RPC_TRANSPORTS)}", EXIT_MISUSED)
    for name in mode:
        if name not in MODES:
            raise CommandFailed(f"--mode {name}: choose {' or '.join(MODES)}", EXIT_MISUSED)
    try:
        address = socket.gethostbyname(ip)
    except OSError as error:
        raise CommandFailed(f"--ip {ip}: {error.strerror or error}; give an address of this machine", EXIT_MISUSED) from error
    pair = kind.benchmark != "ps-throughput"
    complaints = {
        f"--num-ps {num_ps}, --num-workers {num_workers}: {kind.benchmark} has one server and one worker; use ps-throughput": (
            pair and (num_ps, num_workers) != (1, 1)
        ),
        f"--num-ps {num_ps}: must be from 1 to {MAX_WORKERS}": not 1 <= num_ps <= MAX_WORKERS,
        f"--num-workers {num_workers}: must be from 1 to {MAX_WORKERS}": not 1 <= num_workers <= MAX_WORKERS,
        f"--repeat {repeat}: fewer than 5 runs show no spread": repeat < 5,
        f"--duration {duration:g}: must be above 0 and at most 3600 seconds": not 0 < duration <= 3600,
        f"--warmup {warmup:g}: must be from 0 to 600 seconds": not 0 <= warmup <= 600,
        f"--port {port}: must be from 0 (any) to 65000": not 0 <= port <= 65000,
        f"--timeout {timeout:g}: must be between 1 and 3600 seconds": not 1 <= timeout <= 3600,
        f"--placement {placement}: choose dedicated or colocated": placement not in (None, "dedicated", "colocated"),
        f"--seed {seed}: must be between 0 and {2**32 - 1}": not 0 <= seed < 2**32,
    }
    for complaint, applies in complaints.items():
        if applies:
            raise CommandFailed(complaint, EXIT_MISUSED)
    ways = [
        Way(name, each)
        for name in dict.fromkeys(transport)
        for each in (dict.fromkeys(mode or (NON_SERIALIZED,)) if name == "grpc" else ("",))
    ]
    plan = Plan(
        ways=ways,
        cases=[Case(each.name, [Buffer(size) for size in each.usual.iovecs]) for each in found],
        workers=num_workers,
        servers=num_ps,
        repeat=repeat,
        duration_s=duration,
        warmup_s=warmup,
        seed=seed,
        ip=address,
        port=port,
        timeout_s=timeout,
        check=check,
    )
    if (problem := too_large(plan)) is not None:
        raise CommandFailed(problem, EXIT_MISUSED)
    return plan


def _notes(kind: type[Calls], plan: Plan) -> list[str]:
    notes = ["units of payloads are decimal: 1 MB = 1e6 bytes"]
    if kind.benchmark == "p2p-latency":
        notes.append("latency is one way: half of the round trip of an echo")
    if kind.window > 1:
        notes.append(f"{kind.window} calls are under way at once; time is from a call's beginning to its acknowledgement")
    if any(way.transport == "grpc" for way in plan.ways):
        notes.append(
            "message: making one message of the buffers and buffers of a message, both sides together, part of time; Python's "
            "gRPC joins the buffers and gives no hold on iovecs: their effects show on tcp"
        )
    return notes


def _command(kind_name: str) -> Any:
    def command(
        ip: Annotated[
            str, typer.Option(help="Where parameter servers listen on this machine; elsewhere, each at its own.")
        ] = "localhost",
        port: Annotated[
            int, typer.Option(help="The first server's; each server of a host and each transport has the next.")
        ] = 50001,
        num_ps: Annotated[int, typer.Option(help="Parameter servers.")] = 1,
        num_workers: Annotated[int, typer.Option(help="Workers; each calls every server.")] = 1,
        mode: Annotated[
            list[str] | None,
            typer.Option(help="Of grpc: non-serialized or serialized (protobuf); may be repeated.  [default: non-serialized]"),
        ] = None,
        scheme: Annotated[
            list[str] | None, typer.Option(help="uniform, random or skew; may be repeated.  [default: uniform]")
        ] = None,
        iovec_count: Annotated[list[int] | None, typer.Option(help="Buffers; may be repeated.  [default: 10]")] = None,
        sizes: Annotated[
            str | None,
            typer.Option(help="Bytes of the categories that are used, decimal.  [default: small=10,medium=10KB,large=1MB]"),
        ] = None,
        bias: Annotated[
            str | None, typer.Option(help="Category with 60 % of a skewed payload's buffers.  [default: large]")
        ] = None,
        warmup: Annotated[float, typer.Option(help="Seconds before the first run.")] = 2.0,
        duration: Annotated[float, typer.Option(help="Seconds of a run.")] = 10.0,
        repeat: Annotated[int, typer.Option(help="Runs of each transport and payload; transports alternate. At least 5.")] = 5,
        seed: Annotated[int, typer.Option(help="Start of every random choice: payloads and their bytes.")] = 0,
        size: Annotated[
            list[str] | None, typer.Option(help="One buffer of this size instead of a scheme, such as 64KB; may be repeated.")
        ] = None,
        payload: Annotated[
            list[str] | None,
            typer.Option(
                help="A captured payload by name or file instead of a scheme; may be repeated: `switchsum bench payloads`."
            ),
        ] = None,
        transport: Annotated[
            list[str] | None, typer.Option(help="grpc, tcp or gloo; may be repeated.  [default: all three]")
        ] = None,
        check: Annotated[bool, typer.Option("--check", help="Verify every call, not only one after each run.")] = False,
        placement: Annotated[
            str | None,
            typer.Option(help="In a rack: dedicated hosts for servers, or colocated with workers.  [default: dedicated]"),
        ] = None,
        rack: Annotated[
            Path | None, typer.Option(help="A rack's YAML file: run over links like its first worker's; needs root.")
        ] = None,
        rate: Annotated[str | None, typer.Option(help="Rate of every link, such as 100M, whatever the file says.")] = None,
        timeout: Annotated[
            float, typer.Option(help="Seconds that anything may be waited for before it counts as failed.")
        ] = 120.0,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write raw samples and environment here.")] = None,
        csv_file: Annotated[Path | None, typer.Option("--csv", help="Write one line for each row and run here.")] = None,
    ) -> None:
        values = {name: value for name, value in locals().items() if name != "kind_name"}
        values |= {
            **{name: tuple(values[name] or ()) for name in ("mode", "scheme", "iovec_count", "size", "payload")},
            "transport": tuple(transport or ("grpc", "tcp", "gloo")),
        }
        raise typer.Exit(calls(kind(kind_name), **values))

    return command


def kind(name: str) -> type[Calls]:
    """By the benchmark's name."""
    from switchsum.measure.calls import Bandwidth, Latency, Throughput

    return {each.benchmark: each for each in (Latency, Bandwidth, Throughput)}[name]


_HELP = {
    "p2p-latency": "One worker and one parameter server: how long a payload takes, one way (TF-gRPC-P2P-Latency).",
    "p2p-bandwidth": "One worker and one parameter server: how much gets through (TF-gRPC-P2P-Bandwidth).",
    "ps-throughput": "Every worker calls every parameter server: calls a second, all together (TF-gRPC-PS-Throughput).",
}
_MORE = """

On this machine's loopback, in an emulated rack (--rack), or under torchrun on real hosts: the first ranks are workers, the last
ones parameter servers. The exit status is 1 if a byte arrived wrong, or if a link carried
something else than the payloads."""


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    for name, told in _HELP.items():
        app.command(name, help=told + _MORE)(_command(name))
