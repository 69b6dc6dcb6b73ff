"""Where the demo trains: on this machine's loopback, or in an emulated rack.

On loopback, softswitch and controller are each a child process (`python -m switchsum.demo.rack ROLE SETTINGS`).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from switchsum.demo.events import EventWriter, die_with_parent
from switchsum.demo.family import Child, Family
from switchsum.demo.options import DemoOptions
from switchsum.demo.report import SwitchCounts

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.protos.job_pb2 import InspectReply

# Compiling the switch program and loading gRPC take a few seconds, more where the processor is shared with others.
START_PATIENCE_S = 90.0
ACCOUNT_PATIENCE_S = 3.0  # when something has failed already


class RackError(Exception):
    """Switch or controller did not come up, or is gone; `details` are lines that it printed."""

    def __init__(self, message: str, details: list[str]) -> None:
        super().__init__(message)
        self.details = details


class Place(ABC):
    """A running switch and controller, and what a worker needs to run beside them."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a worker waits for controller and switch."""
        self._timeout_s = timeout_s
        self._controller = ""  # where we reach the job service

    @abstractmethod
    def environment(self, rank: int, world_size: int, store: socket.socket | None) -> dict[str, str]:
        """Torchrun's variables for a worker, and where its controller is. `store`: what rendezvous() returned."""

    def prefix(self, rank: int) -> Sequence[str]:
        """The command that puts a worker into its place."""
        return ()

    @abstractmethod
    def rendezvous(self, backlog: int) -> socket.socket | None:
        """A listening socket for rank 0's rendezvous store; None if rank 0 finds its port free anyway."""

    def failure(self) -> str | None:
        """What has ended that should not have; None while all is well."""
        return None

    def counts(self) -> SwitchCounts:
        """The counters of the job that ended last, and of the drop simulator. Raises ControllerUnreachable."""
        from switchsum.p4src.layout import Verdict

        reply = self._inspect(self._timeout_s)
        return SwitchCounts(
            dropped_in=sum(reply.dropped_in.values()),
            dropped_out=sum(reply.dropped_out.values()),
            repaired=sum(job.verdicts[Verdict.REPAIR.name] for job in reply.jobs),
            stale=sum(job.verdicts[Verdict.STALE.name] for job in reply.jobs),
        )

    def account(self) -> str:
        """Why the controller ended the job, in its own words; "" if it did not, or cannot be asked any more."""
        from switchsum.host_agent.errors import SwitchSumError

        try:
            jobs = self._inspect(ACCOUNT_PATIENCE_S).jobs
        except SwitchSumError:
            return ""
        return "; ".join(job.ended_because for job in jobs if not job.running)

    def _inspect(self, timeout_s: float) -> InspectReply:
        from switchsum.host_agent.job_client import JobClient

        client = JobClient(self._controller)
        try:
            return client.inspect(timeout_s)
        finally:
            client.close()

    @abstractmethod
    def close(self) -> None:
        """End switch and controller."""


class Emulated(Place):
    """A rack from a file (bmv2_topologies): the workers' only way to anywhere is their link to its switch."""

    def __init__(self, described: RackFile, bmv2: str, options: DemoOptions) -> None:
        """`bmv2`: path of simple_switch_grpc, "" for PATH. Raises RackError if the rack does not come up."""
        from switchsum.bmv2_topologies import rack_file
        from switchsum.bmv2_topologies.namespaces import NetworkError
        from switchsum.bmv2_topologies.rack import Rack
        from switchsum.bmv2_topologies.switch_process import SwitchFailed

        super().__init__(options.timeout_s)
        try:
            self._rack = Rack(described, bmv2=bmv2, seed=options.seed)
        except (rack_file.RackError, NetworkError, SwitchFailed) as error:
            raise RackError(str(error), []) from error
        self._controller = self._rack.controller_socket

    def environment(self, rank: int, world_size: int, store: socket.socket | None) -> dict[str, str]:
        from switchsum.bmv2_topologies import runner

        return {**runner.environment(self._rack.record.rack, rank), "SWITCHSUM_TIMEOUT": f"{self._timeout_s:g}"}

    def prefix(self, rank: int) -> Sequence[str]:
        from switchsum.bmv2_topologies import namespaces, rack

        described = self._rack.file
        return namespaces.command_inside(rack.namespace_of(described.name, described.workers[rank].name), [])

    def rendezvous(self, backlog: int) -> socket.socket | None:
        return None  # a namespace of its own has no other user of the port

    def failure(self) -> str | None:
        return self._rack.failure()

    def close(self) -> None:
        self._rack.close()


class Loopback(Place):
    """An embedded switch on this machine, as child processes. Raises RackError if switch or controller does not come up."""

    def __init__(self, family: Family, options: DemoOptions, log_level: str) -> None:
        super().__init__(options.timeout_s)
        self._family = family
        self._log_level = log_level
        self._children: list[Child] = []
        switch = self._start("switch", {"ports": options.workers, "seed": options.seed})
        controller = self._start(
            "controller",
            {
                "switch": switch["p4runtime"],
                "ports": switch["ports"],
                "elements": options.elements,
                "loss": options.loss,
            },
        )
        self._controller = str(controller["address"])

    def environment(self, rank: int, world_size: int, store: socket.socket | None) -> dict[str, str]:
        assert store is not None
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.getsockname()[1]),
            "GLOO_SOCKET_IFNAME": "lo",  # works without any network, whatever the host's name resolves to
            "OMP_NUM_THREADS": "1",
            "SWITCHSUM_CONTROLLER": self._controller,
            "SWITCHSUM_TIMEOUT": f"{self._timeout_s:g}",
        }

    def rendezvous(self, backlog: int) -> socket.socket | None:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)

    def close(self) -> None:
        """End both processes, the controller first, so that it can still tidy up the switch."""
        for child in reversed(self._children):
            self._family.end([child])

    def _start(self, role: str, settings: dict[str, Any]) -> Mapping[str, Any]:
        common = {"parent_pid": os.getpid(), "log_level": self._log_level}

        def arguments(events_fd: int) -> list[str]:
            return [role, json.dumps({**settings, **common, "events_fd": events_fd})]

        child = self._family.start(role, "switchsum.demo.rack", arguments, {})
        self._children.append(child)
        while True:
            try:
                notice = self._family.hear(START_PATIENCE_S)
            except TimeoutError:
                raise RackError(f"the {role} did not come up within {START_PATIENCE_S:g} s", list(child.output)) from None
            if notice.kind == "ended":
                raise RackError(
                    f"the {notice.child.name} {notice.child.how_it_ended} before it was ready",
                    list(notice.child.output),
                )
            if notice.kind == "error":
                raise RackError(f"the {role} did not come up: {notice.values['message']}", list(child.output))
            if notice.child is child and notice.kind == "ready":
                return notice.values


def _serve_switch(settings: Mapping[str, Any], events: EventWriter) -> None:
    from switchsum.softswitch.daemon import SoftSwitch

    with SoftSwitch(ports=settings["ports"], seed=settings["seed"]) as switch:
        events.send("ready", p4runtime=switch.grpc_address, ports=list(switch.port_addresses.items()))
        _wait_for_sigterm()


def _serve_controller(settings: Mapping[str, Any], events: EventWriter) -> None:
    from switchsum.controller.daemon import ControllerDaemon
    from switchsum.controller.fabric import Fabric
    from switchsum.controller.options import ControllerOptions

    fabric = Fabric.loopback({port: (host, udp_port) for port, (host, udp_port) in settings["ports"]})
    options = ControllerOptions(
        switch=settings["switch"],
        listen=("127.0.0.1:0",),
        elements=settings["elements"],
        loss_in=settings["loss"],
        loss_out=settings["loss"],
    )
    with ControllerDaemon(fabric, options) as controller:
        events.send("ready", address=controller.address)
        _wait_for_sigterm()


def _wait_for_sigterm() -> None:
    signal.sigwait({signal.SIGTERM})


def main(arguments: list[str]) -> int:
    """Entry point of the child."""
    role, settings = arguments[0], json.loads(arguments[1])
    die_with_parent(settings["parent_pid"])
    # Blocked before any thread starts, so that all threads inherit it and sigwait() is the one that gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    logging.basicConfig(level=settings["log_level"], format="%(levelname)s %(name)s: %(message)s")
    events = EventWriter(settings["events_fd"])
    try:
        {"switch": _serve_switch, "controller": _serve_controller}[role](settings, events)
    except (OSError, RuntimeError, ValueError) as error:
        events.send("error", message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
