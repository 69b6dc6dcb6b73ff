"""A rack for Mininet: its hosts, its switch and our controller, from the rack's YAML file.

    mn --custom bmv2_topologies/mininet_rack.py --topo switchsum,bmv2_topologies/racks/four.yaml \\
       --switch switchsum --host switchsum --controller none

Runs in Mininet's Python, which has none of our dependencies: standard library and Mininet only. Whatever needs more is asked of
the `switchsum` command: SWITCHSUM_COMMAND, else that of this checkout's .venv, else the one on PATH.

Nothing outlives Mininet, however it ends: the kernel signals what was started here when the thread that started it ends, so
build and start a network in a thread that stays.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mininet.link import Intf
from mininet.log import info, warn
from mininet.node import Host, Switch
from mininet.topo import Topo

COMMAND_VARIABLE = "SWITCHSUM_COMMAND"
MASTER_PORT = 29500  # torchrun's default
BMV2 = "simple_switch_grpc"
DEVICE_ID = 1

PATIENCE_S = 90.0  # the softswitch's very first start compiles, on a machine that may be busy
_GRACE_S = 5.0
_NAME_BYTES = 15  # of an interface, in the kernel
# ethtool's names of what must be off at both ends of each link (reasons: switch_process.py)
_OFFLOADS_OFF = {"bmv2": ("tx", "tso", "gso", "gro"), "softswitch": ("tso",)}
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
# `mn --custom` executes this file without __file__.
_HERE = Path(sys._getframe().f_code.co_filename).resolve().parent


class RackError(SystemExit):
    """Something that a person can cause or mend; uncaught, it ends the script with one line and exit status 1.

    As Mininet's own checks do. An ordinary exception would make `mn` tidy up by killing every `ping` and `controller` of this
    machine, and exit with status 0.
    """

    def __init__(self, text: str) -> None:
        info("\n")  # Mininet is usually in the middle of a line of names
        super().__init__(f"error: {text}")


def find_command() -> str:
    """The path of our command. Raises RackError if there is none."""
    named = os.environ.get(COMMAND_VARIABLE)
    candidates = [named] if named else [str(_HERE.parent / ".venv" / "bin" / "switchsum"), "switchsum"]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise RackError(
        f"{COMMAND_VARIABLE}={named} is no program"
        if named
        else f"there is no switchsum command: neither {candidates[0]} nor on PATH; install switchsum there (`make` does), or "
        f"set {COMMAND_VARIABLE} to the command's path (sudo needs --preserve-env={COMMAND_VARIABLE})"
    )


def load_rack(file: str) -> dict[str, Any]:
    """What `switchsum rack show FILE` prints. Raises RackError with its words if the file is wrong."""
    done = subprocess.run([find_command(), "rack", "show", file], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"`switchsum rack show {file}` failed without a word"]
        raise RackError(lines[-1].removeprefix("error: "))
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def interface_name(node: str, number: int) -> str:
    """Mininet's name for a node's interface, cut to what the kernel allows: it is alone in its namespace."""
    suffix = f"-eth{number}"
    return node[: _NAME_BYTES - len(suffix)] + suffix


class _RackNode:
    """What the rack's hosts and its switch have in common: no IPv6, and processes that end with Mininet."""

    environment: Mapping[str, str] = {}

    def _popen(self, cmd: Sequence[str], **params: Any) -> Any:
        """How Mininet starts a node's shell and everything for popen(). A shell hangs up on its jobs before it ends."""
        params.setdefault("preexec_fn", _dies_with(os.getpid(), signal.SIGKILL if self.shell else signal.SIGHUP))
        params.setdefault("env", {**os.environ, **self.environment})
        return super()._popen(cmd, **params)  # type: ignore[misc]

    def startShell(self, *args: Any, **params: Any) -> None:
        super().startShell(*args, **params)  # type: ignore[misc]
        self.cmd("for scope in all default; do f=/proc/sys/net/ipv6/conf/$scope/disable_ipv6; [ ! -e $f ] || echo 1 >$f; done")

    shell: Any
    cmd: Callable[..., str]


def _dies_with(starter: int, number: signal.Signals) -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel sends that signal when the starting thread ends."""

    def ask() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != starter:  # it ended before we asked
            os._exit(1)

    return ask


class RackHost(_RackNode, Host):
    """A worker, or the controller's host. Every command in it finds `environment`, which makes a worker a rank of the job."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None, **params: Any) -> None:
        self.environment = environment or {}
        super().__init__(name, **params)


class RackIntf(Intf):
    """One end of a rack's link."""

    def config(
        self,
        offloads_off: Sequence[str] = (),
        mtu: int | None = None,
        rate_bps: int | None = None,
        burst_bytes: int = 0,
        limit_bytes: int = 0,
        **params: Any,
    ) -> Any:
        """Also turns offloads off, sets the MTU (bytes) and shapes what is sent: bits a second, burst and queue in bytes.

        Raises RackError with the failing command's words.
        """
        if mtu is not None:
            self._run("ip", "link", "set", self.name, "mtu", str(mtu))
        if offloads_off:
            self._run("ethtool", "-K", self.name, *(word for offload in offloads_off for word in (offload, "off")))
        if rate_bps is not None:
            shaping = ["rate", f"{rate_bps}bit", "burst", str(burst_bytes), "limit", str(limit_bytes)]
            self._run("tc", "qdisc", "replace", "dev", self.name, "root", "tbf", *shaping)
        return super().config(**params)

    def _run(self, *command: str) -> None:
        _, printed, status = self.node.pexec(*command)
        if status:
            raise RackError(f"`{' '.join(command)}` failed in {self.node}: {printed.strip() or f'exit status {status}'}")


class RackTopo(Topo):
    """The rack that a file describes: its workers, the host `controller`, and its switch."""

    def build(self, file: str = "") -> None:
        """Raises RackError without root or file, when the file is wrong, or there is no switchsum command to read it."""
        if os.geteuid() != 0:
            raise RackError("only root may make network namespaces, so Mininet needs sudo")
        if not file:
            raise RackError("which rack? Write --topo switchsum,FILE, such as bmv2_topologies/racks/two.yaml")
        rack = load_rack(str(file))
        self.rack = rack
        switch, controller, workers = rack["switch"], rack["controller"], rack["workers"]
        if controller is None:
            raise RackError(f"{file}: a rack of kind {switch['kind']} has no switch of ours; Mininet has bridges of its own")
        if rack["management"] or rack["standby"]:
            raise RackError(f"{file}: a rack has one network and one controller in Mininet: leave `management`, `standby` out")
        self.addSwitch(switch["name"], dpid="1", rack=rack)
        for station in (*workers, controller):
            interface = interface_name(station["name"], 0)
            environment = {"SWITCHSUM_CONTROLLER": controller["listen"], "GLOO_SOCKET_IFNAME": interface}
            if station is not controller:
                environment.update(
                    RANK=str(station["rank"]),
                    WORLD_SIZE=str(len(workers)),
                    GROUP_RANK=str(station["rank"]),
                    LOCAL_RANK="0",
                    LOCAL_WORLD_SIZE="1",
                    MASTER_ADDR=workers[0]["address"],
                    MASTER_PORT=str(MASTER_PORT),
                    SWITCHSUM_DATA_ADDRESS=station["address"],
                )
            address = f"{station['address']}/{rack['prefix_length']}"
            self.addHost(station["name"], ip=address, mac=station["mac"], environment=environment)
            self.addLink(
                station["name"],
                switch["name"],
                port1=0,
                port2=station["port"],
                intfName1=interface,
                intfName2=interface_name(switch["name"], station["port"]),
                addr1=station["mac"],
                cls1=RackIntf,
                cls2=RackIntf,
                offloads_off=_OFFLOADS_OFF[switch["kind"]],
                **station.get("link", {}),
            )


class RackSwitch(_RackNode, Switch):
    """The rack's switch, in a network namespace of its own, and our controller, in that of the host `controller`."""

    # Mininet's Switch expects a loopback interface of the root namespace unless it has a namespace, and then no attribute.
    controlIntf = None

    def __init__(
        self,
        name: str,
        rack: Mapping[str, Any] | None = None,
        bmv2: str = BMV2,
        offload: bool = True,
        logs: str = "",
        patience_s: float = PATIENCE_S,
        **params: Any,
    ) -> None:
        """`rack`: from RackTopo. `bmv2`: program, if the rack's switch is one. `offload`: see `switchsum switch --help`.

        `logs`: folder for switch.log and controller.log; without it they are kept only if something fails. `patience_s`: how
        long each of the two may take to be ready. Raises RackError without a rack, or when the rack's BMv2 is not there.
        """
        if rack is None:
            raise RackError("the switch `switchsum` needs the rack's file: --topo switchsum,FILE")
        self.rack = rack
        self._command = find_command()
        self._bmv2 = shutil.which(bmv2)
        if rack["switch"]["kind"] == "bmv2" and self._bmv2 is None:
            raise RackError(
                f"BMv2 was not found: {bmv2} is no program, or not on PATH; install p4lang's behavioral-model with its "
                "P4Runtime server, give its path (--switch switchsum,bmv2=PATH), or write kind: softswitch in the rack's file"
            )
        self._offload = bool(offload)
        self._logs = logs
        self._patience_s = float(patience_s)
        self._folder: Path | None = None  # of this start: socket, fabric, and the logs unless they go elsewhere
        self._log_folder = Path()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # "switch" and "controller" while they run
        params["inNamespace"] = True  # only the rack reaches its ports, and the kernel removes them with the namespace
        super().__init__(name, **params)

    def start(self, _controllers: Sequence[Any]) -> None:
        """Start the switch, wait until it is ready, and then the same for the controller.

        Raises RackError, with the last lines of the log, when one ends or is not ready in time, or when a host of the rack is
        no RackHost.
        """
        self._end()
        controller_host = self._hosts()[self.rack["controller"]["name"]]
        self._folder = Path(tempfile.mkdtemp(prefix="switchsum-mininet-"))
        try:
            self._log_folder = Path(self._logs).resolve() if self._logs else self._folder
            self._log_folder.mkdir(parents=True, exist_ok=True)
            p4runtime = self._folder / "p4runtime"
            fabric = self._folder / "fabric.yaml"
            fabric.write_text(self.rack["fabric"])
            self._launch("switch", self, self._switch_command(p4runtime), lambda: _accepts(p4runtime))
            options = {
                "--switch": f"unix:{p4runtime}",
                "--listen": self.rack["controller"]["listen"],
                "--fabric": str(fabric),
                "--elements": str(self.rack["switch"]["elements"]),
                "--layout": self.rack["switch"]["layout"],
                "--device-id": str(DEVICE_ID),
                "--connect-timeout": str(self._patience_s),
                **({"--lease": str(self.rack["lease_s"])} if self.rack["lease_s"] else {}),
            }
            command = [self._command, "controller", *(word for option in options.items() for word in option)]
            self._launch("controller", controller_host, command, lambda: "controller ready:" in self._log("controller"))
        except BaseException:
            self._end(keep=True)
            raise
        info(f"(logs: {self._log_folder}) ")

    def connected(self) -> bool:
        """For `mn --wait`: whether switch and controller run."""
        return bool(self.processes) and all(process.poll() is None for process in self.processes.values())

    def stop(self, deleteIntfs: bool = True) -> None:
        """End both processes and wait for that."""
        self._end()
        super().stop(deleteIntfs)

    def _hosts(self) -> dict[str, RackHost]:
        """The rack's hosts by name."""
        hosts = {}
        for interface in self.intfList():
            ends = (interface.link.intf1, interface.link.intf2)
            (node,) = (end.node for end in ends if end.node is not self)
            hosts[node.name] = node
        for station in (*self.rack["workers"], self.rack["controller"]):
            if not isinstance(hosts[station["name"]], RackHost):
                raise RackError(f"{station['name']} is a {type(hosts[station['name']]).__name__}; add --host switchsum")
        return hosts

    def _switch_command(self, p4runtime: Path) -> list[str]:
        """The command line that serves P4Runtime at a Unix socket, which does not care for network namespaces."""
        address = f"unix:{p4runtime}"
        ports = [f"{port}@{interface}" for port, interface in sorted(self.intfs.items())]
        if self.rack["switch"]["kind"] == "bmv2":
            links = [word for port in ports for word in ("-i", port)]
            return [str(self._bmv2), "--no-p4", "--device-id", str(DEVICE_ID), *links, "--", "--grpc-server-addr", address]
        links = [word for port in ports for word in ("--interface", port)]
        options = ["--device-id", str(DEVICE_ID), *([] if self._offload else ["--no-offload"])]
        return [self._command, "switch", "--p4runtime", address, *options, *links]

    def _launch(self, what: str, node: Any, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        """Run a command in a node's namespace until _end(); returns when it is ready."""
        with self._log_path(what).open("wb") as log:
            process = node.popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,  # BMv2 writes files beside itself
            )
        self.processes[what] = process
        deadline = time.monotonic() + self._patience_s
        while not is_ready():
            status = process.poll()
            if status is not None:
                raise RackError(f"the {what} {_how_it_ended(status)} at its start{self._last_words(what)}")
            if time.monotonic() > deadline:
                raise RackError(f"the {what} was not ready within {self._patience_s:g} s{self._last_words(what)}")
            time.sleep(0.05)

    def _log_path(self, what: str) -> Path:
        return self._log_folder / f"{what}.log"

    def _log(self, what: str) -> str:
        return self._log_path(what).read_text(errors="replace")

    def _last_words(self, what: str) -> str:
        lines = self._log(what).strip().splitlines()[-5:]
        return f"; its log {self._log_path(what)} ends: {' / '.join(lines)}" if lines else "; it printed nothing"

    def _end(self, keep: bool = False) -> None:
        """End what runs, the controller first. `keep`: the logs, which also stay if they tell of an early end."""
        for what, process in reversed(self.processes.items()):
            status = process.poll()
            if status is not None and not keep:
                warn(f"*** the {what} {_how_it_ended(status)} before it was stopped{self._last_words(what)}\n")
                keep = True
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        if self._folder is not None and (self._logs or not keep):
            shutil.rmtree(self._folder)
        self._folder = None


def _accepts(path: Path) -> bool:
    """Whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as opened:
        return opened.connect_ex(str(path)) == 0


def _how_it_ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


topos = {"switchsum": RackTopo}
switches = {"switchsum": RackSwitch}
hosts = {"switchsum": RackHost}
