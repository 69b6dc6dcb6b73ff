"""What lies in deploy/ fits the program: options exist, units are sound, alarms ask for metrics that there are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from switchsum.host_agent.udp_batches import RECEIVE_BUFFER

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMMAND = "/opt/switchsum/bin/switchsum"
# Worst that `systemd-analyze security` may say, in tenths; 100 is a unit without any protection.
EXPOSURE = {"switchsum-controller.service": 15, "switchsum-switch.service": 25}
METRIC = re.compile(r"\bswitchsum_\w+")

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")


def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "switchsum.cli", command, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def command_lines() -> list[tuple[str, str, list[str]]]:
    """(file, command, options) of everything in deploy/ that starts us, or that a unit adds."""
    found = []
    for unit in UNITS:
        (line,) = re.findall(rf"^ExecStart={COMMAND} (.*)$", unit.read_text(), re.MULTILINE)
        command, *words = shlex.split(line)
        found.append((unit.name, command, words))
        settings = DEPLOY / unit.name.replace("switchsum-", "").replace(".service", ".env")
        values = re.findall(r"^\w+=(.*)$", settings.read_text(), re.MULTILINE)
        found += [(settings.name, command, shlex.split(value)) for value in values]
    for array in re.findall(r"CMD (\[.*\])", (DEPLOY / "Containerfile").read_text()):
        words = [word for word in json.loads(array) if word != "switchsum"]
        found.append(("Containerfile", words[0], words[1:]))
    return found


@pytest.mark.parametrize(("file", "command", "words"), command_lines())
def test_options_exist(file: str, command: str, words: list[str]) -> None:
    text = help_of(command)
    known = set(re.findall(r"--[a-z][a-z0-9-]*", text))
    assert {word for word in words if word.startswith("--")} - known == set()


def test_every_variable_of_a_unit_is_set() -> None:
    """Units expand to nothing what nobody sets: each name comes from the unit, from systemd, or from its environment file."""
    for unit in UNITS:
        text = unit.read_text()
        (settings,) = re.findall(r"^EnvironmentFile=/etc/switchsum/(.*)$", text, re.MULTILINE)
        given = set(re.findall(r"^(\w+)=", (DEPLOY / settings).read_text(), re.MULTILINE))
        given |= {"STATE_DIRECTORY"} if "\nStateDirectory=" in text else set()
        given |= {"RUNTIME_DIRECTORY"} if "\nRuntimeDirectory=" in text else set()
        (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        assert set(re.findall(r"\$\{?(\w+)", line)) == given


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with their drop-ins, and a program where they look for one."""
    program = tmp_path / "switchsum"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(COMMAND, str(program)))
    for folder in DEPLOY.glob("*.service.d"):
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit: Path, units: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(units / unit.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if str(units) in line or unit.name in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_are_shut_in(unit: Path, units: Path) -> None:
    """Without the drop-in for interfaces, which opens what it says."""
    shutil.rmtree(units / f"{unit.name}.d", ignore_errors=True)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE[unit.name]}", str(units / unit.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


def test_the_receive_buffer_is_what_ranks_ask_for() -> None:
    (limit,) = re.findall(r"^net\.core\.rmem_max = (\d+)$", (DEPLOY / "sysctl.conf").read_text(), re.MULTILINE)
    assert int(limit) == RECEIVE_BUFFER


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    found: list[dict[str, object]] = group["rules"]
    return found


def test_alarms_ask_for_metrics_that_there_are() -> None:
    documented = set(METRIC.findall((ROOT / "docs" / "metrics.md").read_text()))
    for rule in rules():
        asked = set(METRIC.findall(str(rule["expr"])))
        assert asked
        assert asked - documented == set(), rule["alert"]


def test_every_alarm_is_explained() -> None:
    names = [str(rule["alert"]) for rule in rules()]
    explained = re.findall(r"^\| `(SwitchSum\w+)` \|", (ROOT / "docs" / "operators.md").read_text(), re.MULTILINE)
    assert explained == names
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"}, {"severity": "info"})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")
def test_the_page_makes_certificates(tmp_path: Path) -> None:
    """Every openssl command of the page, in its order."""
    page = (ROOT / "docs" / "operators.md").read_text()
    commands = re.findall(r"^\$ (openssl .*)$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        done = subprocess.run(shlex.split(command), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert done.stdout == "tls.crt: OK\n"
    shown = ["openssl", "x509", "-in", "tls.crt", "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "IP Address:192.168.9.1, DNS:controller.rack1" in names


def test_the_page_installs_what_there_is() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", page))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    files = {str(path.relative_to(ROOT)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert files - named == set()
