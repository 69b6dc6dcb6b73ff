"""All checks in their order, and how they are run: each with a limit, and none can end the examination."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from switchsum.doctor import kernel, machine, network, privileges, services, software, variables
from switchsum.doctor.findings import Finding, Host, Status

Check = Callable[[Host], Iterable[Finding]]
CHECK_S = 10.0  # a check; loading compiled code takes two on a busy machine

CHECKS: Mapping[str, tuple[Check, ...]] = {
    "Variables": (variables.values, variables.names, variables.autoload),
    "Software": (software.packages, software.protobuf, software.programs, software.bmv2, software.p4c),
    "Kernel": (kernel.release, kernel.offloads, kernel.batches, kernel.buffers, kernel.clock),
    "Machine": (
        machine.processor,
        machine.governor,
        machine.memory,
        machine.packet_loops,
        machine.temporary,
        machine.switch_cache,
    ),
    "Network": (network.data_address, network.links, network.gloo),
    "Controller and switch": (services.controllers, services.ipv4, services.switch, services.ports),
    "Privileges": (privileges.user, privileges.interfaces_of_the_switch, privileges.racks, privileges.rack_programs),
}


@dataclass(frozen=True)
class Group:
    """What was found about one matter."""

    name: str
    findings: tuple[Finding, ...]


def examine(host: Host, checks: Mapping[str, tuple[Check, ...]] = CHECKS, limit_s: float = CHECK_S) -> list[Group]:
    """Run all, one after the other: they import what others import too, and Python's import locks do not bear that at once."""
    return [
        Group(name, tuple(finding for check in members for finding in outcome(check, host, limit_s)))
        for name, members in checks.items()
    ]


def outcome(check: Check, host: Host, limit_s: float) -> list[Finding]:
    """What a check finds within the limit. A thread that hangs is left behind; the process ends without it."""
    name = check.__name__.replace("_", " ")
    findings: list[Finding] = []

    def run() -> None:
        try:
            findings.extend(check(host))
        except BaseException as error:
            text = f"the check failed itself: {type(error).__name__}: {error}"
            findings.append(Finding(name, Status.ERROR, text, "the error names what is missing, broken or forbidden"))

    thread = threading.Thread(target=run, name=f"switchsum-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not thread.is_alive():
        return findings
    text = f"the check did not end within {limit_s:g} s"
    remedy = "see whether a name server, a network disk or a program hangs"
    return [*findings, Finding(name, Status.ERROR, text, remedy)]
