"""The command: groups, roles, JSON, exit status; and that no check can end it, or hold it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from switchsum.doctor import examination
from switchsum.doctor.findings import Finding, Host, Status
from tests.doctor.conftest import WORKER


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    command = [sys.executable, "-m", "switchsum.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**clean, **environment}, check=False)


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_good_host_has_no_errors() -> None:
    """Whatever runs these tests can train."""
    done = doctor("--json")
    found = as_json(done)
    errors = [each for each in found["findings"] if each["status"] == "error"]
    assert (errors, found["errors"], done.returncode) == ([], 0, 0)
    assert [each for each in found["findings"] if each["status"] in ("warning", "error") and not each["remedy"]] == []


def test_an_error_ends_with_status_1_and_says_what_to_do() -> None:
    done = doctor("--role", "worker", SWITCHSUM_TIMEOUT="soon")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(", as worker")
    assert "  error    values: SWITCHSUM_TIMEOUT='soon' must be a number from 0.1 to 86400.0" in lines
    assert "           -> correct it: docs/pytorch.md lists variables and values" in lines
    assert lines[-1].startswith("1 error, ")


def test_controllers_come_from_the_variable_or_the_option() -> None:
    found = as_json(doctor("--json", SWITCHSUM_CONTROLLER="127.0.0.1:1"))
    assert "controller 127.0.0.1:1" in {each["subject"] for each in found["findings"]}
    found = as_json(doctor("--json", "--controller", "127.0.0.1:2", SWITCHSUM_CONTROLLER="127.0.0.1:1"))
    assert {"controller 127.0.0.1:2"} == {s for each in found["findings"] if (s := each["subject"]).startswith("controller ")}


def test_a_role_that_does_not_exist_is_misuse() -> None:
    done = doctor("--role", "nurse")
    assert (done.returncode, done.stderr) == (2, "error: --role nurse: choose worker, controller or rack\n")


def fine(host: Host) -> Iterator[Finding]:
    yield Finding("one", Status.FINE, "is there")


def failing(host: Host) -> Iterator[Finding]:
    yield from fine(host)
    raise FileNotFoundError(2, "No such file or directory", "/proc/nothing")


def hanging(host: Host) -> Iterator[Finding]:
    yield from fine(host)
    time.sleep(3600)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (failing, "the check failed itself: FileNotFoundError: [Errno 2] No such file or directory: '/proc/nothing'"),
        (hanging, "the check did not end within 0.5 s"),
    ],
)
def test_a_check_that_fails_or_hangs_is_a_finding(check: examination.Check, text: str) -> None:
    (group,) = examination.examine(WORKER, {"Here": (check, fine)}, limit_s=0.5)
    first, second, third = group.findings
    assert (first.status, third.status) == (Status.FINE, Status.FINE)
    assert (second.subject, second.status, second.found) == (check.__name__, Status.ERROR, text)
