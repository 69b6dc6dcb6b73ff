"""A rack that is up: namespaces, links, switch and controller, from its file; and their end.

    worker namespaces          the switch's namespace                    controller's namespace
    eth0 10.83.0.11/24 ─────── port1 ┐                               ┌── eth0 10.83.0.254/24
    eth0 10.83.0.12/24 ─────── port2 ┼─ softswitch or BMv2 ── port3 ─┘   switchsum controller
                                     └─ P4Runtime: a Unix socket, which the controller uses

With the kind `bridge` the kernel's bridge joins the ports; there is no program and no controller.

Everything that workers say crosses the switch: contributions, but also ARP, ping, and TCP to the controller and each other.
Shaping is by tbf at both ends of a worker's link; what is lost on purpose, the switch's drop simulator drops.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import TracebackType

from switchsum.bmv2_topologies import namespaces, state
from switchsum.bmv2_topologies.janitor import Janitor
from switchsum.bmv2_topologies.rack_file import CONTROLLER, PREFIX_LENGTH, Link, RackError, RackFile, mac_of
from switchsum.bmv2_topologies.state import Process, Record
from switchsum.bmv2_topologies.switch_process import (
    BRIDGE,
    SwitchFailed,
    SwitchProcess,
    check_offloads,
    end,
    how_it_ended,
    offloads_off,
    start_logged,
)

INTERFACE = "eth0"  # of every host
_BRIDGE_INTERFACE = "br0"
_CONTROLLER_PATIENCE_S = 60.0
_LAST_LINES = 8
# For jobs that ask for no number of slots. BMv2's threads wait for each other: with 16 packets under way it takes twice
# as many packets a second as with 512.
_BMV2_SLOTS = 16


class Rack:
    """Brings a rack up and, as a context manager, down again. Use it from the main thread.

    Raises RackError when one of that name is up, NetworkError or SwitchFailed when something cannot be had.
    """

    def __init__(self, rack: RackFile, *, source: str = "", bmv2: str = "", offload: bool = True, seed: int = 0) -> None:
        """`source`: where the description came from, for `status`. `bmv2`: path of simple_switch_grpc, "" for PATH.
        `offload` False: every packet lies singly on its link, as captures want it. `seed`: of the softswitch's dice."""
        if problem := namespaces.what_is_missing():
            raise namespaces.NetworkError(f"a rack is made of network namespaces, but {problem}")
        self.file = rack
        self._bmv2, self._offload, self._seed = bmv2, offload, seed
        self.folder = state.reserve(rack.name)
        self._janitor = Janitor(rack.name)
        hosts = [*(worker.name for worker in rack.workers), *([CONTROLLER] if rack.has_controller else [])]
        names = [namespace_of(rack.name, host) for host in (rack.switch_name, *hosts)]
        self.record = Record(
            name=rack.name,
            rack=rack.as_json(),
            file=source,
            namespaces=[],
            owner=Process.of(os.getpid()),
            parts={},
            offload=offload,
        )
        self._switch: SwitchProcess | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        try:
            if taken := sorted(set(names) & set(namespaces.names())):
                raise RackError(
                    f"network namespace {taken[0]} exists already and is nobody's; remove it (`ip netns del {taken[0]}`)"
                )
            self.record.namespaces = names
            self.record.save()
            self._cable()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def switch_namespace(self) -> str:
        return namespace_of(self.file.name, self.file.switch_name)

    @property
    def controller_socket(self) -> str:
        """The job service's address for processes outside the rack's network."""
        return f"unix:{self.folder / 'jobs'}"

    def _cable(self) -> None:
        for namespace in self.record.namespaces:
            namespaces.add(namespace)
        links = [(w.name, w.port, w.address, w.link) for w in self.file.workers]
        if self.file.has_controller:
            links.append((CONTROLLER, self.file.controller_port, self.file.controller_address, Link()))
        addresses = {host: str(address) for host, _, address, _ in links}
        off = offloads_off(self.file.kind if self._offload else "bmv2")
        for host, port, address, link in links:
            namespace = namespace_of(self.file.name, host)
            peer = f"type veth peer name {INTERFACE} netns {namespace} address {mac_of(address)}"
            namespaces.ip(
                self.switch_namespace,
                [f"link add port{port} mtu {link.mtu} {peer} mtu {link.mtu}", f"link set port{port} up"],
            )
            lines = [f"link set {INTERFACE} up", f"address add {address}/{PREFIX_LENGTH} dev {INTERFACE}"]
            namespaces.ip(namespace, lines)
            namespaces.set_hosts(namespace, addresses)  # names for people, and for what looks addresses up
            for where, name in ((namespace, INTERFACE), (self.switch_namespace, f"port{port}")):
                namespaces.turn_off(where, name, off)
                if link.rate_bps is not None:
                    shaper = f"tbf rate {link.rate_bps}bit burst {self.file.burst_of(link)} limit {link.queue}"
                    namespaces.tc(where, [f"qdisc replace dev {name} root {shaper}"])

    def _bridge(self) -> None:
        ports = [f"link set port{worker.port} master {_BRIDGE_INTERFACE}" for worker in self.file.workers]
        lines = [f"link add {_BRIDGE_INTERFACE} type bridge", f"link set {_BRIDGE_INTERFACE} up", *ports]
        namespaces.ip(self.switch_namespace, lines)

    def _start(self) -> None:
        if self.file.kind == BRIDGE:
            self._bridge()
            return
        ports = {port: f"port{port}" for port in range(1, self.file.controller_port + 1)}
        check_offloads(
            self.file.kind,
            [(self.switch_namespace, name) for name in ports.values()]
            + [(namespace, INTERFACE) for namespace in self.record.namespaces if namespace != self.switch_namespace],
        )
        self._switch = SwitchProcess(
            self.file.kind,
            self.switch_namespace,
            ports,
            self.folder,
            bmv2=self._bmv2,
            offload=self._offload,
            seed=self._seed,
        )
        self._switch.ready()
        (self.folder / "fabric.yaml").write_text(self.file.fabric().as_yaml())
        command = [sys.executable, "-m", "switchsum.cli", "controller", "--switch", self._switch.address]
        # Once for the workers, and once for whoever looks at the rack from outside its network.
        command += ["--listen", self.file.controller_listen, "--listen", self.controller_socket]
        command += ["--fabric", str(self.folder / "fabric.yaml")]
        command += ["--elements", str(self.file.elements), "--layout", self.file.layout]
        if self.file.kind == "bmv2":
            command += ["--slots", str(_BMV2_SLOTS)]
        namespace = namespace_of(self.file.name, CONTROLLER)
        self._controller = start_logged(namespace, command, self.folder / "controller.log")
        self._await_controller()
        self.record.parts = {
            "switch": Process.of(self._switch.process.pid),
            CONTROLLER: Process.of(self._controller.pid),
        }
        self.record.save()

    def _await_controller(self) -> None:
        assert self._controller is not None
        deadline = time.monotonic() + _CONTROLLER_PATIENCE_S
        while "controller ready" not in (self.folder / "controller.log").read_text(errors="replace"):
            status = self._controller.poll()
            if status is not None:
                raise SwitchFailed(f"the controller {how_it_ended(status)} at its start: {self._last_words('controller')}")
            if time.monotonic() > deadline:
                told = self._last_words("controller")
                raise SwitchFailed(f"the controller was not ready within {_CONTROLLER_PATIENCE_S:g} s: {told}")
            time.sleep(0.05)

    def _last_words(self, part: str) -> str:
        lines = (self.folder / f"{part}.log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        return " / ".join(lines) or "it printed nothing"

    def shaped(self) -> list[tuple[namespaces.Shaper, namespaces.Shaper]] | None:
        """By rank: the shapers of a worker's link, from the worker and to it; None if a link has none."""
        down = namespaces.shapers(self.switch_namespace)
        pairs = []
        for worker in self.file.workers:
            up = namespaces.shapers(namespace_of(self.file.name, worker.name)).get(INTERFACE)
            if up is None:
                return None
            pairs.append((up, down[f"port{worker.port}"]))
        return pairs

    def failure(self) -> str | None:
        """What has ended that should not have, with its last words; None while all is well."""
        switch = self._switch.process if self._switch is not None else None
        for part, process in (("switch", switch), (CONTROLLER, self._controller)):
            if process is not None and (status := process.poll()) is not None:
                kind = f" ({self.file.kind})" if part == "switch" else ""
                return f"the {part}{kind} {how_it_ended(status)}; its log ends: {self._last_words(part)}"
        return None

    def close(self) -> None:
        """Take everything down. May be called twice."""
        # The controller first, so that it can still take its jobs off the switch and tell their workers.
        end([process for process in (self._controller,) if process is not None])
        if self._switch is not None:
            self._switch.close()
        if self.folder.exists():
            state.remove(self.file.name)
            self._janitor.dismiss()

    def __enter__(self) -> Rack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def namespace_of(rack: str, host: str) -> str:
    """The network namespace of a host, or of the switch."""
    return f"switchsum.{rack}.{host}"  # neither name can contain a dot, so no two racks share one
