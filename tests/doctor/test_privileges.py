"""What root may, and what nobody may."""

from __future__ import annotations

import shutil

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.doctor import privileges
from switchsum.doctor.findings import Host, Role, Status
from tests.doctor.conftest import LAN_PREFIX, WORKER, as_nobody, needs_root, only, statuses

RACK = Host(frozenset({Role.RACK}), asked=True)


def program(check: str, role: str) -> str:
    return (
        "from switchsum.doctor import privileges; from switchsum.doctor.findings import *\n"
        f"host = Host(frozenset({{Role.{role}}}))\n"
        f"for each in privileges.{check}(host): print(each.subject, each.status.value, each.found, sep='|')"
    )


@needs_root
def test_nobody_makes_no_rack() -> None:
    assert as_nobody(program("racks", "RACK")) == "namespaces|error|only root may make network namespaces (try sudo)\n"


@needs_root
def test_nobody_serves_loopback_only() -> None:
    line = as_nobody(program("interfaces_of_the_switch", "CONTROLLER"))
    assert line == "capabilities|note|without CAP_NET_ADMIN and CAP_NET_RAW the embedded switch serves loopback only\n"


def test_where_racks_run_they_are_found_possible() -> None:
    if (problem := namespaces.what_is_missing()) is not None:
        pytest.skip(f"needs network namespaces, but {problem}")
    before = namespaces.names()
    found = statuses(privileges.racks(RACK))
    assert found.pop("namespaces") is Status.FINE
    assert found.pop("tc tbf") is Status.FINE
    assert set(found) == {"tc htb", "tc netem"}
    assert set(found.values()) <= {Status.FINE, Status.NOTE}
    # Tests of the network may run beside this one.
    assert {name for name in namespaces.names() if not name.startswith(LAN_PREFIX)} <= set(before)


def test_without_ip_there_are_no_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert shutil.which("ip") is None
    assert only(privileges.racks(RACK)).status is Status.ERROR
    assert set(statuses(privileges.rack_programs(RACK)).values()) <= {Status.NOTE, Status.FINE}


@needs_root
def test_training_as_root_is_noted() -> None:
    assert only(privileges.user(WORKER)).status is Status.NOTE
    assert list(privileges.user(RACK)) == []
