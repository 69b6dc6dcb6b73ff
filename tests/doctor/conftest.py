"""Hosts to examine: network namespaces of a test's own, and commands as another user."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.doctor.findings import Finding, Host, Role, Status

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "65534"
LAN_PREFIX = "switchsum-doctor-"
WORKER = Host(frozenset({Role.WORKER}), asked=True)
_numbers = itertools.count()

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces and become another user")


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = findings
    return finding


def about(findings: Iterable[Finding], subject: str) -> Finding:
    return only(finding for finding in findings if finding.subject == subject)


def statuses(findings: Iterable[Finding]) -> dict[str, Status]:
    return {finding.subject: finding.status for finding in findings}


class Lan:
    """A namespace with one interface, d0 (10.83.0.11/24), whose other end is in a second namespace, as p0 (10.83.0.1/24)."""

    def __init__(self) -> None:
        stem = f"{LAN_PREFIX}{os.getpid()}-{next(_numbers)}"
        self.here, self.there = f"{stem}-a", f"{stem}-b"
        namespaces.add(self.here)
        namespaces.add(self.there)
        namespaces.ip(self.here, [f"link add d0 type veth peer name p0 netns {self.there}"])
        for name, interface, address in ((self.here, "d0", "10.83.0.11"), (self.there, "p0", "10.83.0.1")):
            namespaces.ip(name, [f"address add {address}/24 dev {interface}", f"link set {interface} up"])
        # The kernel may take a second to let packets into the end that came up first.
        deadline = time.monotonic() + 10
        while {self._state(self.here, "d0"), self._state(self.there, "p0")} != {"UP"}:
            assert time.monotonic() < deadline, f"{self.here} and {self.there} have no link"
            time.sleep(0.02)

    @staticmethod
    def _state(namespace: str, interface: str) -> str:
        [found] = json.loads(namespaces.run("ip", "-n", namespace, "-j", "link", "show", interface))
        return str(found["operstate"])

    def examine(self, check: Callable[[Host], Iterable[Finding]], host: Host) -> list[Finding]:
        return namespaces.inside(self.here, lambda: list(check(host)))

    def follow(self, remedy: str) -> None:
        """Do what a finding says."""
        subprocess.run(["ip", "netns", "exec", self.here, "sh", "-c", remedy], check=True, timeout=10)

    def close(self) -> None:
        namespaces.delete(self.here)
        namespaces.delete(self.there)


@pytest.fixture
def lan() -> Iterator[Lan]:
    if (problem := namespaces.what_is_missing()) is not None:
        pytest.skip(f"needs network namespaces, but {problem}")
    made = Lan()
    yield made
    made.close()


def as_nobody(program: str, **environment: str) -> str:
    """What a Python program prints when a user without any rights runs it, with this environment and no other."""
    command = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", sys.executable, "-c", program]
    variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=variables, cwd="/")
    return done.stdout
