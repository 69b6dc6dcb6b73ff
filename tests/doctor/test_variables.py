"""Environment variables: malformed ones, misspelled ones, and that the list of known ones is complete."""

from __future__ import annotations

import re

import pytest

from switchsum.doctor import variables
from switchsum.doctor.findings import Status
from tests.doctor.conftest import ROOT, WORKER, about, only


def test_a_value_that_no_rank_would_accept_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_LANES", "12")
    finding = only(variables.values(WORKER))
    assert finding.status is Status.ERROR
    assert finding.found == "SWITCHSUM_LANES='12' must be one of 32, 16, 8"


def test_values_that_can_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_LANES", "16")
    finding = only(variables.values(WORKER))
    assert finding.status is Status.FINE
    assert "SWITCHSUM_LANES" in finding.found


def test_a_misspelled_name_is_noticed_and_its_value_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_CONTROLER", "secret:1")
    finding = about(variables.names(WORKER), "SWITCHSUM_CONTROLER")
    assert finding.status is Status.WARNING
    assert finding.remedy == 'export SWITCHSUM_CONTROLLER="$SWITCHSUM_CONTROLER"; unset SWITCHSUM_CONTROLER'
    assert "secret" not in str(finding)


def test_a_name_like_no_other_is_to_be_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_XYZZY_42", "1")
    assert about(variables.names(WORKER), "SWITCHSUM_XYZZY_42").remedy == "unset SWITCHSUM_XYZZY_42"


def test_pytorch_that_does_not_look_for_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert only(variables.autoload(WORKER)).status is Status.WARNING


def test_every_variable_that_a_part_reads_is_known() -> None:
    folders = ("bmv2_topologies", "controller", "host_agent", "measure", "protos", "softswitch", "switchsum")
    sources = {path for folder in folders for path in (ROOT / folder).rglob("*.py")} - {ROOT / "switchsum/doctor/variables.py"}
    read = {name for path in sources for name in re.findall(r'"(SWITCHSUM_[A-Z0-9_]+[A-Z0-9])"', path.read_text())}
    assert read == variables.KNOWN
