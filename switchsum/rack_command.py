"""`switchsum rack`: emulated racks from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from switchsum.failures import CommandFailed, require, terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.bmv2_topologies.state import Record

RACK_MODULES = {"llvmlite": "switch", "p4": "switch", "p4runtime_sh": "switch"}

app = typer.Typer(
    help="Emulate racks: workers in network namespaces, shaped links, BMv2 or the embedded switch between them. Needs root.",
)


@app.callback(invoke_without_command=True)
def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


FileArgument = Annotated[Path, typer.Argument(help="The rack's YAML file, such as bmv2_topologies/racks/four.yaml.")]
SwitchOption = Annotated[str | None, typer.Option("--switch", help="softswitch, bmv2 or bridge, whatever the file says.")]
ElementsOption = Annotated[int | None, typer.Option(help="Numbers per packet: 64, 128 or 256, whatever the file says.")]
LossOption = Annotated[
    float | None, typer.Option(help="Share of packets lost in each direction of each worker's link, whatever the file says.")
]
Bmv2Option = Annotated[str, typer.Option("--bmv2", help="Path of simple_switch_grpc; without it, the one on PATH.")]
NameOption = Annotated[str | None, typer.Option("--name", help="Another name, for a second rack of the same file.")]
SeedOption = Annotated[int, typer.Option(help="Start of the embedded switch's random choices (which packets it drops).")]
OffloadOption = Annotated[
    bool,
    typer.Option(help="Let hosts leave segmentation to the link; without it each packet lies singly on it, as captures want."),
]


@app.command()
def up(
    file: FileArgument,
    switch: SwitchOption = None,
    elements: ElementsOption = None,
    loss: LossOption = None,
    bmv2: Bmv2Option = "",
    name: NameOption = None,
    offload: OffloadOption = True,
    seed: SeedOption = 0,
) -> None:
    """Bring a rack up and leave it up, until `switchsum rack down`."""
    changes = {"kind": switch, "elements": elements, "loss": loss, "name": name}
    wanted = described(file, changes)
    from rich.console import Console

    from switchsum.bmv2_topologies import keeper
    from switchsum.bmv2_topologies.switch_process import SwitchFailed

    try:
        with Console(stderr=True).status(f"bringing rack {wanted.name} up ({wanted.kind})"):
            keeper.start(file, changes, bmv2=bmv2, offload=offload, seed=seed)
    except SwitchFailed as error:
        raise CommandFailed(str(error)) from error
    _print_record(wanted.name)


class _DashesFirst(TyperCommand):
    """Without `--`, options of the command that shall run would be taken for ours, and nobody would notice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" not in args and "--help" not in args:
            ctx.fail("write -- before COMMAND: switchsum rack run FILE -- COMMAND")
        return list(super().parse_args(ctx, args))


@app.command(cls=_DashesFirst)
def run(
    file: FileArgument,
    command: Annotated[list[str], typer.Argument(help="Runs in every worker; write -- before it.", metavar="COMMAND...")],
    switch: SwitchOption = None,
    elements: ElementsOption = None,
    loss: LossOption = None,
    bmv2: Bmv2Option = "",
    name: NameOption = None,
    pcap: Annotated[Path | None, typer.Option(help="Folder for one pcap file of each link (tcpdump).")] = None,
    offload: OffloadOption = True,
    seed: SeedOption = 0,
) -> None:
    """Run a command in every worker, with RANK, WORLD_SIZE, MASTER_ADDR and the controller's address set as torchrun would.

    In the rack of this name if it is up, else in one that is brought up for the purpose and taken down afterwards. The exit
    status is the first failing worker's.
    """
    from rich.console import Console

    changes_given = (switch, elements, loss) != (None, None, None)
    wanted = described(file, {"kind": switch, "elements": elements, "loss": loss, "name": name})
    from switchsum.bmv2_topologies import runner, state
    from switchsum.bmv2_topologies.captures import Captures
    from switchsum.bmv2_topologies.namespaces import NetworkError
    from switchsum.bmv2_topologies.rack import Rack
    from switchsum.bmv2_topologies.rack_file import RackError
    from switchsum.bmv2_topologies.switch_process import SwitchFailed

    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    width = max(len(worker.name) for worker in wanted.workers)

    if shutil.which(command[0]) is None:
        hint = "; write its words apart, not as one" if " " in command[0] else ""
        raise CommandFailed(f"there is no program {command[0]!r} to run in the workers{hint}", status=127)

    def tell(sentence: str) -> None:
        typer.echo(f"error: {sentence}", err=True)

    def show(worker: str, line: str) -> None:
        typer.echo(f"[{worker:<{width}}] {line}")

    record = state.find(wanted.name)
    captures = None
    try:
        with terminated_like_interrupted():
            if record is not None and record.kept:
                _check_usable(record, wanted if changes_given else None, file, pcap)
                captures = Captures(record.rack, pcap) if pcap else None
                status = runner.run(record.rack, command, show, tell, lambda: _what_is_gone(record), captures)
            else:
                with errors.status(f"bringing rack {wanted.name} up ({wanted.kind})"):
                    rack = Rack(wanted, source=str(file.resolve()), bmv2=bmv2, offload=offload and pcap is None, seed=seed)
                with rack:
                    captures = Captures(rack.record.rack, pcap) if pcap else None
                    status = runner.run(rack.record.rack, command, show, tell, rack.failure, captures)
    except (RackError, NetworkError, SwitchFailed, OSError) as error:
        raise CommandFailed(str(error)) from error
    if captures is not None:
        for path, packets in captures.packets.items():
            typer.echo(f"captured {packets} packets: {path}", err=True)
        for sentence in captures.failures:
            tell(sentence)
        status = status or int(bool(captures.failures))
    raise typer.Exit(status)


@app.command()
def status(name: Annotated[str | None, typer.Argument(help="One rack; without it, all.")] = None) -> None:
    """Show the racks that are up, and those that a crash left behind. The exit status is 1 if one is broken."""
    from switchsum.bmv2_topologies import state

    names = [name] if name else state.names()
    if not names:
        typer.echo("no rack is up")
    if name and name not in state.names():
        raise CommandFailed(f"no rack {name} is up; up: {', '.join(state.names()) or 'none'}")
    sound = [_print_record(each) for each in names]
    raise typer.Exit(int(not all(sound)))


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="The rack's name, or its file.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All racks, and whatever crashes left of earlier ones.")] = False,
) -> None:
    """Take a rack down: no process, namespace or interface of it stays."""
    from switchsum.bmv2_topologies import namespaces, state

    if problem := namespaces.what_is_missing():
        raise CommandFailed(f"a rack is made of network namespaces, but {problem}")
    if (name is None) == (not everything):
        raise CommandFailed("say which rack: `switchsum rack down NAME`, or --all; `switchsum rack status` lists them")
    if name is not None and name not in state.names() and Path(name).is_file():
        records = [record for each in state.names() if (record := state.find(each)) is not None]
        from_file = [record.name for record in records if record.file == str(Path(name).resolve())]
        if len(from_file) > 1:
            raise CommandFailed(f"several racks are up from {name}; say which one: {', '.join(from_file)}")
        name = from_file[0] if from_file else name
    if name is not None and name not in state.names():
        raise CommandFailed(f"no rack {name} is up; up: {', '.join(state.names()) or 'none'}")
    for each in [name] if name else state.names():
        told = state.take_down(each)
        typer.echo(f"rack {each}: {told}")
    if not name and not state.names():
        typer.echo("no rack is left")


@app.command()
def show(
    file: FileArgument,
    switch: SwitchOption = None,
    elements: ElementsOption = None,
    loss: LossOption = None,
    name: NameOption = None,
) -> None:
    """Check a rack's file and print the rack, with everything resolved, as JSON; for scripts, and for Mininet."""
    wanted = described(file, {"kind": switch, "elements": elements, "loss": loss, "name": name})
    typer.echo(json.dumps(wanted.as_json(), indent=1))


def described(file: Path, changes: dict[str, Any]) -> RackFile:
    """A rack's file with options applied (RackFile.changed). Raises CommandFailed."""
    require("rack", RACK_MODULES)
    from switchsum.bmv2_topologies import rack_file

    try:
        return rack_file.load(file).changed(**changes)
    except rack_file.RackError as error:
        raise CommandFailed(str(error), status=2) from error


def _check_usable(record: Record, wanted: RackFile | None, file: Path, pcap: Path | None) -> None:
    """Raise RackError unless the rack that is up is sound and as asked for; `wanted`: None for any variant of the file."""
    from switchsum.bmv2_topologies.rack_file import RackError

    remedy = f"take it down first (`switchsum rack down {record.name}`), or use another --name"
    if record.file != str(file.resolve()):
        raise RackError(f"rack {record.name} is up, but from {record.file}; {remedy}")
    if wanted is not None and record.rack != wanted.as_json():
        raise RackError(f"rack {record.name} is up, but otherwise than these options say; {remedy}")
    if failures := record.failures():
        raise RackError(f"rack {record.name} is up, but {'; '.join(failures)}; {remedy}; logs: {record.folder}")
    if pcap is not None and record.offload:
        raise RackError(f"rack {record.name} is up with offloads, which captures would show; {remedy}, with --no-offload")


def _what_is_gone(record: Record) -> str | None:
    """What a rack that somebody else keeps has lost, with the last words of its logs."""
    if not (failures := record.failures()):
        return None
    logs = [f"{path} ends: {path.read_text(errors='replace').strip()[-300:]}" for path in sorted(record.folder.glob("*.log"))]
    return f"rack {record.name} is broken: {'; '.join([*failures, *logs])}"


def _print_record(name: str) -> bool:
    """Returns whether the rack is sound."""
    from switchsum.bmv2_topologies import rack, state

    record = state.find(name)
    if record is None or not record.kept:
        typer.echo(f"rack {name}: left behind by a crash; remove it: switchsum rack down {name}")
        return False
    rack_as_json = record.rack
    failures = record.failures()
    problem = f"BROKEN: {'; '.join(failures)}" if failures else "up"
    switch = rack_as_json["switch"]
    program = f", {switch['elements']} elements a packet" if rack_as_json["controller"] is not None else ""
    typer.echo(f"rack {name}: {problem}; {switch['kind']}{program}, from {record.file}")
    for worker in rack_as_json["workers"]:
        rate = worker["link"]["rate_bps"]
        speed = f"{rate / 1e6:g} Mbit/s" if rate else "not shaped"
        speed += f", MTU {worker['link']['mtu']}"
        losses = f", loss {worker['loss']['in']:g} in, {worker['loss']['out']:g} out" if any(worker["loss"].values()) else ""
        namespace = rack.namespace_of(name, worker["name"])
        typer.echo(f"  {worker['name']:<12} {worker['address']:<15} {speed}{losses}; namespace {namespace}")
    if (controller := rack_as_json["controller"]) is not None:
        typer.echo(f"  controller   {controller['listen']}; logs in {record.folder}")
    if (standby := rack_as_json["standby"]) is not None:
        typer.echo(f"  standby      {standby['listen']}")
    if rack_as_json["management"] is not None:
        typer.echo(f"  management   {rack_as_json['management']}; namespace {rack.namespace_of(name, 'management')}")
    return not failures
