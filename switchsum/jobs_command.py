"""`switchsum jobs`: what a controller's jobs are doing, and the order to one to go on with fewer slots."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum.failures import CommandFailed
from switchsum.printable import printable
from switchsum.quantities import duration

if TYPE_CHECKING:
    from switchsum.protos import job_pb2 as pb

DEFAULT_CONTROLLER = "127.0.0.1:50099"
Controller = Annotated[
    str | None,
    typer.Option(help=f"HOST:PORT of the controller.  [default: SWITCHSUM_CONTROLLER, or {DEFAULT_CONTROLLER}]"),
]
TIMEOUT_S = 10.0  # of a call; the controller itself waits 5 s for its switch's counters

app = typer.Typer(help="Show a controller's jobs: who, where, how many slots, since when, and why the last ones ended.")


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    controller: Controller = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show a controller's jobs."""
    if context.invoked_subcommand is not None:
        return
    reply = inspect(controller)
    if as_json:
        typer.echo(json.dumps(_plain(reply), indent=2))
        return
    from rich.console import Console

    _print(reply, Console(highlight=False))


@app.command()
def shrink(
    name: Annotated[str, typer.Argument(help="The job, as `switchsum jobs` names it.")],
    slots: Annotated[int, typer.Argument(help="Slots that it shall go on with.")],
    controller: Controller = None,
) -> None:
    """Make a running job go on with fewer slots, in a new epoch, so that others find room."""
    from switchsum.host_agent.errors import SwitchSumError

    client = connect(controller)
    try:
        client.shrink(name, slots, TIMEOUT_S)
    except SwitchSumError as error:
        raise CommandFailed(str(error)) from error
    finally:
        client.close()


def connect(controller: str | None) -> Any:
    """A JobClient for the controller that was named, or is set, or is where one is by default, with the credentials of
    the environment. Raises CommandFailed."""
    from switchsum.host_agent.errors import NotTrusted
    from switchsum.host_agent.job_client import JobClient
    from switchsum.settings import credentials

    try:
        return JobClient(controller or os.environ.get("SWITCHSUM_CONTROLLER") or DEFAULT_CONTROLLER, credentials())
    except (NotTrusted, ValueError) as error:
        raise CommandFailed(str(error)) from error


def inspect(controller: str | None) -> pb.InspectReply:
    """What the controller knows now. Raises CommandFailed."""
    from switchsum.host_agent.errors import SwitchSumError

    client = connect(controller)
    try:
        return client.inspect(TIMEOUT_S)  # type: ignore[no-any-return]
    except SwitchSumError as error:
        raise CommandFailed(str(error)) from error
    finally:
        client.close()


def _print(reply: pb.InspectReply, console: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    tenants = any(job.tenant for job in reply.jobs)
    for heading in ("JOB", *(["TENANT"] if tenants else []), "STATE"):
        table.add_column(heading, overflow="fold")
    for heading in ("EPOCH", "RANKS", "SLOTS", "AGE", "IDLE"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("HOSTS", overflow="fold")
    live = [job for job in reply.jobs if job.state != "ended"]
    for job in live:
        hosts = sorted({worker.host or worker.data_address for worker in job.workers})
        table.add_row(
            *(
                Text(printable(cell))  # what others have named must not be taken for rich's markup either
                for cell in (
                    job.job_name,
                    *([job.tenant or "-"] if tenants else []),
                    job.state,
                    str(job.epoch or "-"),
                    f"{len(job.workers)}/{job.world_size}",
                    str(job.slots),
                    duration(job.age_s),
                    duration(job.idle_s) if job.running else "-",
                    ", ".join(hosts),
                )
            )
        )
    if live:
        console.print(table)
    else:
        console.print("no jobs")
    console.print(f"{reply.slots_free} of {reply.slots_total} slots are free", markup=False)
    if reply.standby:
        console.print("this controller stands by; another one is in charge of the switch", markup=False)
    if reply.switch_problem:
        console.print(f"switch: {printable(reply.switch_problem)}", markup=False)
    ended = [job for job in reply.jobs if job.state == "ended"]
    if ended:
        console.print("ended, the latest first:")
    for job in ended:
        sentence = printable(f"{job.job_name}, epoch {job.epoch}: {job.ended_because}")
        console.print(f"  {sentence}", markup=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    """A message's fields under their names in protos/job.proto. (protobuf's own json_format writes large numbers as strings,
    and its options have other names in other releases.)"""
    if hasattr(value, "DESCRIPTOR"):
        return {field.name: _plain(getattr(value, field.name)) for field in value.DESCRIPTOR.fields}
    if hasattr(value, "items"):
        return dict(sorted(value.items()))
    if isinstance(value, str | int | float | bool):
        return value
    return [_plain(each) for each in value]
