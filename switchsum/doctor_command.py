"""`switchsum doctor`: examines a host from the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from switchsum.demo.options import BadOption

if TYPE_CHECKING:
    from switchsum.doctor.findings import Role

_FOUND_ERRORS = 1


def doctor(
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="What this host is for: worker, controller or rack; may be repeated. What such a host cannot do "
            "without is then an error.  [default: what is installed here allows]"
        ),
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of a controller; may be repeated.  [default: $SWITCHSUM_CONTROLLER]"),
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(help="Network interface towards the switch; may be repeated.  [default: the one that leads there]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Examine this host: kernel, buffers, network, versions, controller, switch, privileges; and say what to do.

    Changes nothing, and takes seconds. The exit status is 1 if an error was found, else 0.
    """
    from rich.console import Console

    from switchsum.doctor import examination, report
    from switchsum.doctor.findings import Host

    roles = _named(role) if role else _guessed()
    addresses = controller or [text for text in os.environ.get("SWITCHSUM_CONTROLLER", "").split(",") if text]
    host = Host(roles, bool(role), tuple(map(examination.ask, addresses)), tuple(interface or ()))
    groups = examination.examine(host)
    if as_json:
        typer.echo(report.as_json(host, groups))
    else:
        report.print_findings(Console(), host, groups)
    if report.has_errors(groups):
        raise typer.Exit(_FOUND_ERRORS)


def _named(texts: list[str]) -> frozenset[Role]:
    from switchsum.doctor.findings import Role

    choices = [each.value for each in Role]
    for text in texts:
        if text not in choices:
            raise BadOption(f"--role {text}: choose {', '.join(choices[:-1])} or {choices[-1]}")
    return frozenset(map(Role, texts))


def _guessed() -> frozenset[Role]:
    """A worker always; a controller and racks where their packages are, racks as root only."""
    from importlib.util import find_spec

    from switchsum.doctor.findings import Role

    roles = {Role.WORKER}
    if find_spec("p4runtime_sh") is not None:
        roles |= {Role.CONTROLLER, Role.RACK} if os.geteuid() == 0 else {Role.CONTROLLER}
    return frozenset(roles)
