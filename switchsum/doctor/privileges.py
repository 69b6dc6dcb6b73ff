"""What this user may do: racks need namespaces and traffic control, a switch on interfaces raw sockets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from switchsum.doctor.findings import Finding, Host, Role, Status

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
_COMMAND_S = 5.0
# Queueing disciplines by what needs them: arguments that `tc qdisc add dev lo root` accepts.
_REQUIRED = {"tbf": "tbf rate 1mbit burst 16kb latency 50ms"}
_OPTIONAL = {"htb": "htb", "netem": "netem loss 1%"}


def interfaces_of_the_switch(host: Host) -> Iterator[Finding]:
    """A switch that is to use network interfaces; one on loopback needs nothing."""
    if Role.CONTROLLER not in host.roles:
        return
    effective = _effective()
    missing = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if missing:
        yield Finding(
            "capabilities",
            Status.NOTE,
            f"without {' and '.join(missing)} the embedded switch serves loopback only",
            "for interfaces, run it as root, or with deploy/switchsum-switch.service, which grants just that",
        )
    else:
        yield Finding("capabilities", Status.FINE, f"{' and '.join(_CAPABILITIES)}: the embedded switch may use interfaces")


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def racks(host: Host) -> Iterator[Finding]:
    """What emulated racks are made of, tried in a namespace that is gone afterwards."""
    if Role.RACK not in host.roles:
        return
    from switchsum.bmv2_topologies import namespaces

    problem = namespaces.what_is_missing()
    if problem is not None:
        yield Finding("namespaces", Status.ERROR, problem, "see docs/racks.md for what racks need")
        return
    tried = _try("ip link add probe0 type veth peer name probe1")
    if tried:
        remedy = "run outside the container, or give it CAP_SYS_ADMIN and CAP_NET_ADMIN; for veth: modprobe veth"
        yield Finding("namespaces", Status.ERROR, f"no namespace with veth links can be made: {tried}", remedy)
        return
    yield Finding("namespaces", Status.FINE, "can be made, with veth links")
    for name, arguments in _REQUIRED.items():
        problem = _try(f"tc qdisc add dev lo root {arguments}")
        if problem:
            text = f"links cannot be shaped: {problem}"
            yield Finding(f"tc {name}", Status.ERROR, text, f"modprobe sch_{name}; it is in the distribution's extra modules")
        else:
            yield Finding(f"tc {name}", Status.FINE, "shapes links")
    for name, arguments in _OPTIONAL.items():
        problem = _try(f"tc qdisc add dev lo root {arguments}")
        text = f"not there ({problem}); racks do without" if problem else "there; racks do without"
        yield Finding(f"tc {name}", Status.NOTE if problem else Status.FINE, text)


def _try(command: str) -> str:
    """Run a command in a network namespace of its own; why it failed, "" if it did not."""
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", command], capture_output=True, text=True, timeout=_COMMAND_S, check=False
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1].removeprefix("Error: ").rstrip(".")


def rack_programs(host: Host) -> Iterator[Finding]:
    """Programs that some of the rack's uses need."""
    if Role.RACK not in host.roles:
        return
    if find_spec("mininet") is None and shutil.which("mn") is None:
        yield Finding("Mininet", Status.NOTE, "not installed; only docs/mininet.md needs it", "apt install mininet ethtool")
    else:
        yield Finding("Mininet", Status.FINE, shutil.which("mn") or "installed")
    if shutil.which("tcpdump") is None:
        yield Finding("tcpdump", Status.NOTE, "not installed; only captures need it", "apt install tcpdump")


def user(host: Host) -> Iterator[Finding]:
    """Training needs no root, and as root its files become root's."""
    if host.roles == {Role.WORKER} and os.geteuid() == 0:
        yield Finding("user", Status.NOTE, "root; training needs no privilege", "train as an ordinary user")
