"""The `switchsum` command. Each command imports what it needs only when it runs, so that `--help` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from switchsum import (
    __version__,
    analyze_command,
    bench_command,
    doctor_command,
    fleet_command,
    jobs_command,
    log_format,
    metrics_endpoint,
    profile_command,
    rack_command,
    top_command,
    validate_command,
    whatif_command,
)
from switchsum.demo.options import BadOption, DemoOptions
from switchsum.failures import CommandFailed, require

# module -> extra of pyproject.toml that installs it
SWITCH_MODULES = {"llvmlite": "switch", "p4": "switch"}
CONTROLLER_MODULES = {"p4runtime_sh": "switch"}
DEMO_MODULES = {**SWITCH_MODULES, **CONTROLLER_MODULES, "torch": "torch", "sklearn": "demo"}

EXIT_MISUSED = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

DEFAULT_P4RUNTIME = "127.0.0.1:9559"  # the port that IANA assigned to P4Runtime
DEFAULT_LISTEN = "127.0.0.1:50099"
DEFAULT_UDP_BASE = 47000
DEFAULT_PORTS = 8

app = typer.Typer(
    help="Sums PyTorch's gradients inside the network: a P4 switch adds them up, every worker sends and receives once.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(rack_command.app, name="rack")
app.add_typer(bench_command.app, name="bench")
app.command()(doctor_command.doctor)
app.add_typer(jobs_command.app, name="jobs")
app.command()(top_command.top)
app.command()(profile_command.profile)
app.command()(analyze_command.analyze)
app.command()(whatif_command.whatif)
app.command()(fleet_command.fleet)
app.command()(validate_command.validate)


Metrics = Annotated[
    str | None,
    typer.Option(help="[HOST:]PORT where Prometheus finds the metrics: on loopback without HOST, a free one with port 0."),
]
LogFormat = Annotated[str, typer.Option("--log-format", help="Form of the log lines on standard error: text or json.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"switchsum {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    workers: Annotated[int | None, typer.Option(help="Worker processes, 2 to 32.  [default: 4, or the rack's]")] = None,
    loss: Annotated[
        float | None,
        typer.Option(
            help="Share of packets that the switch drops in each direction, from 0 to below 1.  [default: 0.01, or the rack's]"
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Times that the training images are gone through.")] = DemoOptions.epochs,
    elements: Annotated[
        int | None, typer.Option(help="Numbers per packet: 64, 128 or 256.  [default: 256, or the rack's]")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Start of every random choice: split, first weights, order, dropped packets.")
    ] = DemoOptions.seed,
    timeout: Annotated[
        float, typer.Option(help="Seconds that anything may be waited for before it counts as failed, 1 to 3600.")
    ] = DemoOptions.timeout_s,
    rack: Annotated[
        Path | None,
        typer.Option(help="A rack's YAML file: train in its workers, over its links, instead of on loopback; needs root."),
    ] = None,
    switch: Annotated[str | None, typer.Option(help="softswitch or bmv2, whatever the rack's file says.")] = None,
    bmv2: Annotated[str, typer.Option(help="Path of simple_switch_grpc; without it, the one on PATH.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all that the started processes print.")] = False,
) -> None:
    """Train a small network on handwritten digits, once through a lossy switch and once over Gloo, and compare.

    Starts a switch, a controller and the workers as processes of its own on this machine and ends all of them. Needs no
    root and no network. The exit status is 0 only if every sum was right, all ranks ended with the same weights, and both
    accuracies are within one percentage point.
    """
    require("demo", DEMO_MODULES)
    from rich.console import Console

    from switchsum.demo import launch
    from switchsum.demo.rack import RackError

    described = None
    if rack is not None:
        if workers is not None:
            raise BadOption(f"--workers {workers}: the rack's file says how many there are")
        described = rack_command.described(rack, {"kind": switch, "elements": elements, "loss": loss})
        workers, elements = len(described.workers), described.elements
        loss = max(max(worker.loss.into, worker.loss.out) for worker in described.workers)
    elif switch or bmv2:
        raise BadOption("--switch and --bmv2 belong to a rack: give its file with --rack")
    options = DemoOptions(
        workers=DemoOptions.workers if workers is None else workers,
        loss=DemoOptions.loss if loss is None else loss,
        epochs=epochs,
        elements=DemoOptions.elements if elements is None else elements,
        seed=seed,
        timeout_s=timeout,
    )
    try:
        status = launch.run(options, Console(), Console(stderr=True), verbose, described, bmv2)
    except (launch.DemoError, RackError) as error:
        for line in error.details:
            typer.echo(f"  | {line}", err=True)
        raise CommandFailed(str(error)) from error
    raise typer.Exit(status)


@app.command()
def switch(
    p4runtime: Annotated[
        str,
        typer.Option(help="HOST:PORT where the controller reaches the switch (port 0 takes a free one), or unix:PATH."),
    ] = DEFAULT_P4RUNTIME,
    ports: Annotated[int, typer.Option(help="Number of switch ports, numbered from 1.")] = DEFAULT_PORTS,
    host: Annotated[str, typer.Option(help="Address that the ports' UDP sockets are bound to.")] = "127.0.0.1",
    udp_base: Annotated[
        int, typer.Option(help="Switch port p is UDP port UDP_BASE + p; 0 takes free ones.")
    ] = DEFAULT_UDP_BASE,
    interface: Annotated[
        list[str] | None,
        typer.Option(help="PORT@INTERFACE, once for each port: network interfaces instead of UDP sockets; needs root."),
    ] = None,
    offload: Annotated[
        bool, typer.Option(help="Let results leave in runs that the receiving host cuts apart; off for captures.")
    ] = True,
    device_id: Annotated[int, typer.Option(help="The switch's P4Runtime device id.")] = 1,
    seed: Annotated[int, typer.Option(help="Start of the switch's random choices (which packets it drops).")] = 0,
    metrics: Metrics = None,
    log: LogFormat = "text",
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) of the P4Runtime server; without it, no TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    tls_clients: Annotated[
        Path | None,
        typer.Option(help="Authority that a controller's certificate must come from; without it, none is asked for."),
    ] = None,
) -> None:
    """Start the embedded switch by hand; Ctrl-C ends it. It forwards nothing until a controller loads a program."""
    require("switch", SWITCH_MODULES)
    from switchsum.protos.tls import SERVER_NAMES, ServerTls
    from switchsum.softswitch import daemon

    try:
        tls = ServerTls.load(tls_cert, tls_key, tls_clients, SERVER_NAMES)
        embedded = daemon.SoftSwitch(
            grpc=p4runtime,
            ports=daemon.consecutive_ports(host, udp_base, ports),
            interfaces=daemon.parse_interfaces(interface) if interface else None,
            offload=offload,
            seed=seed,
            device_id=device_id,
            credentials=None if tls is None else tls.credentials(),
        )
        for sentence in daemon.exposure(embedded, tls is not None and tls.clients is not None):
            typer.echo(f"warning: {sentence}", err=True)
        daemon.run(embedded, report=log_format.log_process(log), beside=metrics_endpoint.beside("switch", metrics))
    except ValueError as error:
        raise BadOption(str(error)) from error
    except OSError as error:
        raise CommandFailed(error.strerror or str(error)) from error


@app.command()
def controller(
    switch: Annotated[str, typer.Option(help="HOST:PORT or unix:PATH of the switch's P4Runtime server.")] = DEFAULT_P4RUNTIME,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help=f"HOST:PORT where workers reach the controller (port 0 takes a free one), or unix:PATH; may be given several "
            f"times.  [default: {DEFAULT_LISTEN}]"
        ),
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(help="YAML file that tells which switch port reaches whom; without it, an embedded switch's ports."),
    ] = None,
    ports: Annotated[int, typer.Option(help="Number of the embedded switch's ports (without --fabric).")] = DEFAULT_PORTS,
    host: Annotated[str, typer.Option(help="Address of the embedded switch's UDP sockets (without --fabric).")] = "127.0.0.1",
    udp_base: Annotated[
        int, typer.Option(help="Port p of the embedded switch is UDP port UDP_BASE + p (without --fabric).")
    ] = DEFAULT_UDP_BASE,
    device_id: Annotated[int, typer.Option(help="The switch's P4Runtime device id.")] = 1,
    election_id: Annotated[int, typer.Option(help="Rank among the controllers of one switch: the highest is in charge.")] = 1,
    elements: Annotated[int, typer.Option(help="Numbers per packet: 64, 128 or 256.")] = DemoOptions.elements,
    layout: Annotated[
        str, typer.Option(help="How the program holds values: lanes (embedded switch) or wide (BMv2).")
    ] = "lanes",
    program: Annotated[
        Path | None, typer.Option(help="Folder that `make p4-tna` wrote, for a fabric whose switch is a Tofino.")
    ] = None,
    loss: Annotated[
        float, typer.Option(help="Share of packets that the switch drops on purpose in each direction, below 1.")
    ] = 0.0,
    slots: Annotated[
        int,
        typer.Option(help="Slots for a job that asks for no number of its own; fewer where half of the free ones are fewer."),
    ] = 512,
    lease: Annotated[float, typer.Option(help="Seconds until a worker that does not report counts as lost.")] = 5.0,
    idle: Annotated[
        float,
        typer.Option(help="Seconds without a sum after which a job gives its slots back if somebody else lacks them."),
    ] = 600.0,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to wait for the switch at the start.")] = 10.0,
    state: Annotated[
        Path | None,
        typer.Option(help="File in which epochs and running jobs outlive the controller; without it, jobs end with it."),
    ] = None,
    metrics: Metrics = None,
    log: LogFormat = "text",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) of the job service; without it, no TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    tls_clients: Annotated[
        Path | None, typer.Option(help="Authority that a host's certificate must come from; without it, none is asked for.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File of tenants and hashes of their tokens (`switchsum token`); without it, no token is asked for."),
    ] = None,
    switch_ca: Annotated[
        Path | None, typer.Option(help="Authority of the switch's certificate; without it, P4Runtime is spoken without TLS.")
    ] = None,
    switch_cert: Annotated[Path | None, typer.Option(help="Certificate to show to the switch.")] = None,
    switch_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
) -> None:
    """Start a controller by hand; Ctrl-C ends it. It loads the switch program and serves the workers that join."""
    require("controller", CONTROLLER_MODULES)
    from switchsum.controller import daemon
    from switchsum.controller import fabric as fabrics
    from switchsum.controller.errors import ControllerError
    from switchsum.controller.options import ControllerOptions
    from switchsum.controller.switch_session import TLS_NAMES
    from switchsum.protos.tls import SERVER_NAMES, ClientTls, ServerTls

    try:
        network = fabrics.load(fabric) if fabric is not None else fabrics.Fabric.embedded(host, udp_base, ports)
        daemon.run(
            network,
            ControllerOptions(
                switch=switch,
                listen=tuple(listen) if listen else (DEFAULT_LISTEN,),
                device_id=device_id,
                election_id=election_id,
                elements=elements,
                layout=layout,
                loss_in=loss,
                loss_out=loss,
                slots=slots,
                lease_s=lease,
                idle_s=idle,
                connect_timeout_s=connect_timeout,
                state=state,
                program=program,
                tls=ServerTls.load(tls_cert, tls_key, tls_clients, SERVER_NAMES),
                switch_tls=ClientTls.load(switch_ca, switch_cert, switch_key, TLS_NAMES),
                tokens=tokens,
            ),
            report=log_format.log_process(log),
            beside=metrics_endpoint.beside("controller", metrics),
        )
    except ValueError as error:
        raise BadOption(str(error)) from error
    except ControllerError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(error.strerror or str(error)) from error


@app.command()
def tofino_ports(
    fabric: Annotated[Path, typer.Argument(help="YAML file of a fabric whose switch is a Tofino.")],
) -> None:
    """Print what brings a Tofino's ports up: Stratum's chassis configuration, or commands for bf_switchd's shell."""
    require("tofino-ports", CONTROLLER_MODULES)
    from switchsum.controller import fabric as fabrics
    from switchsum.controller import front_panel
    from switchsum.controller.errors import ControllerError

    try:
        network = fabrics.load(fabric)
    except ControllerError as error:
        raise CommandFailed(str(error)) from error
    if not isinstance(network, fabrics.TofinoFabric):
        raise BadOption(f"{fabric}: the switch of this fabric is no Tofino, so there are no ports to bring up (docs/tofino.md)")
    if network.server is front_panel.Server.STRATUM:
        text = front_panel.chassis_config(network.links, network.chip)
    else:
        text = front_panel.shell_commands(network.links)
    typer.echo(text, nl=False)


@app.command()
def token(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant: letters, digits, dots, dashes, underscores.")],
    operator: Annotated[bool, typer.Option("--operator", help="May see and change the jobs of all tenants.")] = False,
) -> None:
    """Make a token for a tenant of a controller with --tokens. It is shown once; the controller's file holds its hash alone."""
    import secrets

    from switchsum.controller.tenants import hash_of, is_name

    if not is_name(tenant):
        raise BadOption(f"{tenant!r} is not a tenant's name: 1 to 64 letters, digits, dots, dashes and underscores")
    made = secrets.token_urlsafe(32)
    rights = ", operator: true" if operator else ""
    typer.echo(f"for the tenant, in SWITCHSUM_TOKEN or in the file SWITCHSUM_TOKEN_FILE (mode 0600):\n{made}\n")
    typer.echo(
        f"for the controller's file (--tokens, mode 0600; limits as in jobs: 4, workers: 64, slots: 1024 may be added):\n"
        f"{tenant}: {{sha256: {hash_of(made)}{rights}}}"
    )


def main() -> None:
    """Entry point: one line for what a person can cause, exit status 2 for misuse, 1 for failure."""
    arguments = sys.argv[1:] or ["--help"]
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core prints lines of its own beside the error that we report
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="switchsum", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)  # errors of usage know the command that they belong to
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        _stop(error.format_message().rstrip(".") + hint, error.exit_code)
    except BadOption as error:
        _stop(str(error), EXIT_MISUSED)
    except CommandFailed as error:
        _stop(str(error), error.status)
    except (KeyboardInterrupt, Abort):
        status = EXIT_INTERRUPTED
    if status == EXIT_INTERRUPTED:  # also what typer makes of a KeyboardInterrupt inside a command
        _stop("interrupted; everything that was started has been stopped", EXIT_INTERRUPTED)
    sys.exit(status or 0)


def _stop(message: str, status: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
