"""All checks in their order, and how they are run: each with a limit, and none can end the examination."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from switchsum.doctor import kernel, machine, network, privileges, services, software, variables
from switchsum.doctor.findings import Controller, Finding, Host, Status

Check = Callable[[Host], Iterable[Finding]]
CHECK_S = 10.0  # a check; loading compiled code takes two on a busy machine
ASK_S = 20.0  # a controller; finding out why one that listens does not answer takes a dozen
_HANGS = "see whether a name server, a network disk or a program hangs"

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
    """What a check finds within the limit."""
    name = check.__name__.replace("_", " ")
    findings: list[Finding] = []

    def run() -> None:
        try:
            findings.extend(check(host))
        except BaseException as error:
            text = f"the check failed itself: {type(error).__name__}: {error}"
            findings.append(Finding(name, Status.ERROR, text, "the error names what is missing, broken or forbidden"))

    if not ends(run, name, limit_s):
        text = f"the check did not end within {limit_s:g} s"
        return [*findings, Finding(name, Status.ERROR, text, _HANGS)]
    return findings


def ask(address: str, limit_s: float = ASK_S) -> Controller:
    """services.ask within the limit: a name server may hang."""
    answers: list[Controller] = []

    def run() -> None:
        try:
            answers.append(services.ask(address))
        except BaseException as error:
            text = f"could not be asked: {type(error).__name__}: {error}"
            answers.append(Controller(address, None, text, "the error names what is missing, broken or forbidden"))

    if not ends(run, address, limit_s):
        return Controller(address, None, f"could not be asked within {limit_s:g} s", _HANGS)
    return answers[0]


def ends(action: Callable[[], None], name: str, limit_s: float) -> bool:
    """Whether it does within the limit. A thread that hangs is left behind; the process ends without it."""
    thread = threading.Thread(target=action, name=f"switchsum-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()
