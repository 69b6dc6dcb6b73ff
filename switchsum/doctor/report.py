"""The findings for people, and for programs."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from switchsum import __version__
from switchsum.doctor.examination import Group
from switchsum.doctor.findings import Host, Role, Status

_STYLES = {Status.FINE: "green", Status.NOTE: "cyan", Status.WARNING: "yellow", Status.ERROR: "bold red"}
_WIDTH = max(len(status.value) for status in Status)


def has_errors(groups: Sequence[Group]) -> bool:
    return any(finding.status is Status.ERROR for group in groups for finding in group.findings)


def print_findings(console: Console, host: Host, groups: Sequence[Group]) -> None:
    """One line for each finding, and one for what to do; never folded, so that commands can be copied."""
    _print(console, Text(f"switchsum {__version__} on {socket.gethostname()}, as {_roles(host)}"))
    for group in groups:
        if not group.findings:
            continue
        _print(console, Text(f"\n{group.name}", "bold"))
        for finding in group.findings:
            line = Text("  ").append(finding.status.value.ljust(_WIDTH), _STYLES[finding.status])
            _print(console, line.append(f"  {finding.subject}: {finding.found}"))
            if finding.remedy and finding.status is not Status.FINE:
                _print(console, Text(f"  {'':{_WIDTH}}  -> {finding.remedy}"))
    _print(console, Text(f"\n{summary(groups)}"))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _roles(host: Host) -> str:
    names = ", ".join(role.value for role in Role if role in host.roles)
    return names if host.asked else f"{names} (what is installed here)"


def summary(groups: Sequence[Group]) -> str:
    """Such as "1 error, 2 warnings, 3 notes, 20 fine"."""
    counted = Counter(finding.status for group in groups for finding in group.findings)
    named = ((Status.ERROR, "error"), (Status.WARNING, "warning"), (Status.NOTE, "note"))
    texts = [f"{counted[status]} {name}{'' if counted[status] == 1 else 's'}" for status, name in named]
    return ", ".join([*texts, f"{counted[Status.FINE]} fine"])


def as_json(host: Host, groups: Sequence[Group]) -> str:
    """An object: release, host, roles, errors, warnings, findings; of each its group, subject, status, found, remedy."""
    findings = [
        {"group": group.name, **dataclasses.asdict(finding), "status": finding.status.value}
        for group in groups
        for finding in group.findings
    ]
    counted = Counter(finding["status"] for finding in findings)
    return json.dumps(
        {
            "release": __version__,
            "host": socket.gethostname(),
            "roles": sorted(role.value for role in host.roles),
            "errors": counted[Status.ERROR.value],
            "warnings": counted[Status.WARNING.value],
            "findings": findings,
        },
        indent=2,
    )
