"""A rack that is up: namespaces, links, switch and controller, from its file; and their end.

    worker namespaces          the switch's namespace                    controller's namespace
    eth0 10.83.0.11/24 ─────── port1 ┐                               ┌── eth0 10.83.0.254/24
    eth0 10.83.0.12/24 ─────── port2 ┼─ softswitch or BMv2 ── port3 ─┘   switchsum controller
                                     └─ P4Runtime: a Unix socket, which the controller uses

With the kind `bridge` the kernel's bridge joins the ports; there is no program and no controller.

Everything that workers say crosses the switch: contributions, but also ARP, ping, and TCP to the controller and each other.
In a rack with a management network a bridge, in a namespace of its own, joins the hosts' eth1, and TCP goes there.
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
from switchsum.bmv2_topologies.rack_file import (
    CONTROLLER,
    CONTROLLER_PORT,
    MANAGEMENT,
    PREFIX_LENGTH,
    STANDBY,
    Link,
    RackError,
    RackFile,
    mac_of,
)
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
MANAGEMENT_INTERFACE = "eth1"  # of every host where there is a management network
SWITCH = "switch"  # a rack's parts are this and its controllers
_BRIDGE_INTERFACE = "br0"
_CONTROLLER_PATIENCE_S = 60.0
_LAST_LINES = 8
_ELECTION_ID = {CONTROLLER: 2, STANDBY: 1}
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
        hosts = [*(worker.name for worker in rack.workers), *(controller.name for controller in rack.controllers)]
        networks = [rack.switch_name, *([MANAGEMENT] if rack.management else [])]
        names = [namespace_of(rack.name, each) for each in (*networks, *hosts)]
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
        self._controllers: dict[str, subprocess.Popen[bytes]] = {}
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
        links += [(c.name, c.port, c.address, Link()) for c in self.file.controllers]
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
        if self.file.management is not None:
            bridge = namespace_of(self.file.name, MANAGEMENT)
            for host, port, address, _ in links:
                namespace = namespace_of(self.file.name, host)
                peer = f"type veth peer name {MANAGEMENT_INTERFACE} netns {namespace}"
                namespaces.ip(bridge, [f"link add port{port} {peer}", f"link set port{port} up"])
                managed = f"{self.file.management_of(address)}/{PREFIX_LENGTH} dev {MANAGEMENT_INTERFACE}"
                namespaces.ip(namespace, [f"link set {MANAGEMENT_INTERFACE} up", f"address add {managed}"])
            self._bridge(bridge, [port for _, port, _, _ in links])

    def _bridge(self, namespace: str, ports: list[int]) -> None:
        joined = [f"link set port{port} master {_BRIDGE_INTERFACE}" for port in ports]
        namespaces.ip(namespace, [f"link add {_BRIDGE_INTERFACE} type bridge", f"link set {_BRIDGE_INTERFACE} up", *joined])

    def _start(self) -> None:
        if self.file.kind == BRIDGE:
            self._bridge(self.switch_namespace, [worker.port for worker in self.file.workers])
            return
        networks = (self.switch_namespace, namespace_of(self.file.name, MANAGEMENT))
        ends = [(self.switch_namespace, name) for name in self._ports.values()]
        ends += [(namespace, INTERFACE) for namespace in self.record.namespaces if namespace not in networks]
        check_offloads(self.file.kind, ends)
        (self.folder / "fabric.yaml").write_text(self.file.fabric().as_yaml())
        for part in (SWITCH, *(controller.name for controller in self.file.controllers)):
            self.start(part)

    @property
    def _ports(self) -> dict[int, str]:
        count = len(self.file.workers) + len(self.file.controllers)
        return {port: f"port{port}" for port in range(1, count + 1)}

    def start(self, part: str) -> None:
        """Start a part of the rack, again if it has ended: "switch", "controller" or "standby"; returns when it is ready.

        A switch that is started again is empty, and a controller finds its state. Raises SwitchFailed.
        """
        log = self.folder / f"{part}.log"
        if log.exists():
            log.replace(log.with_suffix(".before.log"))  # what an earlier one said
        if part == SWITCH:
            self._switch = SwitchProcess(
                self.file.kind,
                self.switch_namespace,
                self._ports,
                self.folder,
                bmv2=self._bmv2,
                offload=self._offload,
                seed=self._seed,
            )
            self._switch.ready()
        else:
            self._controllers[part] = start_logged(namespace_of(self.file.name, part), self._controller_command(part), log)
            self._await_controller(part)
        self.record.parts[part] = Process.of(self.processes[part].pid)
        self.record.save()

    def _controller_command(self, part: str) -> list[str]:
        assert self._switch is not None
        (controller,) = (each for each in self.file.controllers if each.name == part)
        command = [sys.executable, "-m", "switchsum.cli", "controller", "--switch", self._switch.address]
        # For the workers in each network, and for whoever looks at the rack from outside its networks.
        addresses = [controller.address, *([self.file.management_of(controller.address)] if self.file.management else [])]
        listen = [f"{address}:{CONTROLLER_PORT}" for address in addresses]
        listen.append(self.controller_socket if part == CONTROLLER else f"{self.controller_socket}-{part}")
        command += [word for address in listen for word in ("--listen", address)]
        command += ["--fabric", str(self.folder / "fabric.yaml"), "--election-id", str(_ELECTION_ID[part])]
        command += ["--elements", str(self.file.elements), "--layout", self.file.layout]
        command += ["--state", str(self.folder / "controller.state")]  # one for both: a standby goes on where the other ended
        if self.file.lease_s is not None:
            command += ["--lease", str(self.file.lease_s)]
        if self.file.kind == "bmv2":
            command += ["--slots", str(_BMV2_SLOTS)]
        return command

    def _await_controller(self, part: str) -> None:
        deadline = time.monotonic() + _CONTROLLER_PATIENCE_S
        while "controller ready" not in (self.folder / f"{part}.log").read_text(errors="replace"):
            status = self._controllers[part].poll()
            if status is not None:
                raise SwitchFailed(f"the {part} {how_it_ended(status)} at its start: {self._last_words(part)}")
            if time.monotonic() > deadline:
                told = self._last_words(part)
                raise SwitchFailed(f"the {part} was not ready within {_CONTROLLER_PATIENCE_S:g} s: {told}")
            time.sleep(0.05)

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """By part, of those that were started last."""
        switch = {} if self._switch is None else {SWITCH: self._switch.process}
        return {**switch, **self._controllers}

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
        for part, process in self.processes.items():
            if (status := process.poll()) is not None:
                kind = f" ({self.file.kind})" if part == SWITCH else ""
                return f"the {part}{kind} {how_it_ended(status)}; its log ends: {self._last_words(part)}"
        return None

    def close(self) -> None:
        """Take everything down. May be called twice."""
        # Controllers first, so that they can still take their jobs off the switch and tell their workers.
        end(list(self._controllers.values()))
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
