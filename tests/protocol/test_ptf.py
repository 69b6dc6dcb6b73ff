"""`make test-ptf`: the cases run under PTF as well, all of them, and a case that fails is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.controller import pipeline
from tests.protocol.cases import CASES
from tests.protocol.conftest import marks
from tests.protocol.ptf_parameters import check_interfaces, of_parameters
from tests.protocol.run_ptf import main
from tests.protocol.switch_under_test import BUILD

ROOT = Path(__file__).resolve().parents[2]
SKIPS = {"registers cannot be read over P4Runtime", "an interface does not send frames shorter than 14 bytes"}
COMMAND = "python -m tests.protocol.run_ptf --switch $(SWITCH)"


def run_ptf(*arguments: str) -> tuple[int, str]:
    """Exit status and output of what `make test-ptf` runs, which must leave no network namespace."""
    command = [sys.executable, "-m", "tests.protocol.run_ptf", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output, _ = process.communicate(timeout=300)
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum-wired-{process.pid}-")]
    return process.returncode, output


def results(output: str) -> dict[str, str]:
    """Case -> "ok", "FAIL", "ERROR", or the reason why it was skipped."""
    return dict(re.findall(r"^conformance\.(\w+) \.\.\. (?:skipped ['\"])?(.+?)['\"]?$", output, re.MULTILINE))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in ("softswitch", "bmv2")])
def test_every_case_passes(kind: str) -> None:
    status, output = run_ptf("--switch", kind)
    assert status == 0, output
    found = results(output)
    assert list(found) == [case.name for case in CASES], output
    assert {"ok"} < set(found.values()) <= {"ok"} | SKIPS, output


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=str(namespaces.what_is_missing()))
def test_parameters_are_checked() -> None:
    """The last --test-params win over those of the command."""
    status, output = run_ptf("--", "--test-params", "address='unix:/nowhere'; elments=64")
    assert status != 0
    assert "--test-params: elments is not known; there are address, device_id, layout, elements" in output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--test-params: give the switch's P4Runtime address, such as address='192.0.2.1:9559'"),
        ({"address": "x", "adress": 1}, "--test-params: adress is not known; there are address, device_id, layout"),
        ({"address": "x", "p4info": "a"}, "a program of your own needs both p4info='FILE' and device_config='FILE'"),
        ({"address": "x", "ports": (1, 2, 3)}, "ports=(1, 2, 3) must be 4 different numbers, such as (1, 2, 3, 4)"),
        ({"address": "x", "ports": (1, 2, 3, 3)}, "ports=(1, 2, 3, 3) must be 4 different numbers"),
    ],
)
def test_wrong_parameters_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        of_parameters(given)


def test_missing_interfaces_are_told() -> None:
    with pytest.raises(ValueError, match=r"^ports \[2, 4\] have no interface; add --interface 0-2@NAME --interface 0-4@NAME$"):
        check_interfaces({(0, 1): "eth1", (0, 3): "eth3"})


def test_a_program_of_ones_own_is_taken() -> None:
    """Files as another compiler would leave them: any name, anywhere, no manifest."""
    stem = BUILD / "switchsum_wide_64"
    own = {"p4info": f"{stem}.p4info.txtpb", "device_config": f"{stem}.json", "elements": 64}
    build = of_parameters({"address": "x", **own}).build()
    ours = pipeline.load("wide", 64)
    assert (build.p4info, build.device_config, build.elements) == (ours.p4info, ours.device_config, 64)


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=str(namespaces.what_is_missing()))
def test_a_switch_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SWITCHSUM_BMV2", "/nowhere/simple_switch_grpc")
    assert main(["--switch", "bmv2"]) == 1
    assert "PTF did not run: BMv2 was not found: /nowhere/simple_switch_grpc is no program" in capsys.readouterr().err


def test_the_make_target_runs_that_command() -> None:
    recipe = re.search(r"^test-ptf:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1].endswith(COMMAND)
