"""`make test-ptf`: the cases run under PTF as well, all of them, and a case that fails is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum.bmv2_topologies import namespaces
from tests.protocol.cases import CASES
from tests.protocol.conftest import marks

ROOT = Path(__file__).resolve().parents[2]
SKIPS = {"registers cannot be read over P4Runtime", "an interface does not send frames shorter than 14 bytes"}
COMMAND = "python -m tests.protocol.run_ptf --switch $(SWITCH)"


def run_ptf(*arguments: str) -> tuple[int, str]:
    """Exit status and output of what `make test-ptf` runs."""
    command = [sys.executable, "-m", "tests.protocol.run_ptf", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def results(output: str) -> dict[str, str]:
    """Case -> "ok", "FAIL", "ERROR", or the reason why it was skipped."""
    return dict(re.findall(r"^conformance\.(\w+) \.\.\. (?:skipped ['\"])?(.+?)['\"]?$", output, re.MULTILINE))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in ("softswitch", "bmv2")])
def test_every_case_passes(kind: str) -> None:
    before = namespaces.names()
    status, output = run_ptf("--switch", kind)
    assert status == 0, output
    found = results(output)
    assert list(found) == [case.name for case in CASES], output
    assert {"ok"} < set(found.values()) <= {"ok"} | SKIPS, output
    assert not set(namespaces.names()) - set(before)


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=str(namespaces.what_is_missing()))
def test_parameters_are_checked() -> None:
    """The last --test-params win over those of the command."""
    status, output = run_ptf("--", "--test-params", "address='unix:/nowhere'; elments=64")
    assert status != 0
    assert "--test-params: elments is not known; there are address, device_id, layout, elements" in output


def test_the_make_target_runs_that_command() -> None:
    recipe = re.search(r"^test-ptf:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1].endswith(COMMAND)
