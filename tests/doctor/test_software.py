"""Packages that are missing, too old, or do not bear each other; damaged programs; a BMv2 that is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from switchsum.doctor import software
from switchsum.doctor.findings import Finding, Host, Role, Status
from tests.doctor.conftest import ROOT, WORKER, about, only

CONTROLLER = Host(frozenset({Role.CONTROLLER}), asked=True)
RACK = Host(frozenset({Role.RACK}), asked=True)
REQUIRES = ("numpy>=1.26", 'torch==2.13.0; extra == "torch"', 'llvmlite>=0.44; extra == "switch"', 'ruff>=0.12; extra == "dev"')


def install(folder: Path, name: str, version: str, *requirements: str) -> None:
    """What pip leaves behind for importlib.metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {requirement}" for requirement in requirements)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's site-packages, empty: nothing else is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_missing_package_is_an_error_with_its_command(site: Path) -> None:
    install(site, "switchsum", "0.1.0", *REQUIRES)
    finding = about(software.packages(WORKER), "numpy")
    assert finding == Finding("numpy", Status.ERROR, "is not installed", f"{sys.executable} -m pip install 'numpy>=1.26'")


def test_what_a_role_needs_is_an_error_only_for_that_role(site: Path) -> None:
    install(site, "switchsum", "0.1.0", *REQUIRES)
    assert about(software.packages(WORKER), "torch").status is Status.ERROR
    assert about(software.packages(WORKER), "llvmlite").status is Status.NOTE
    assert about(software.packages(CONTROLLER), "torch").status is Status.NOTE
    assert about(software.packages(CONTROLLER), "llvmlite").status is Status.ERROR
    assert about(software.packages(RACK), "llvmlite").status is Status.ERROR
    assert about(software.packages(Host(frozenset({Role.WORKER}))), "torch").status is Status.WARNING
    assert "ruff" not in {finding.subject for finding in software.packages(WORKER)}


def test_versions(site: Path) -> None:
    install(site, "switchsum", "0.1.0", *REQUIRES)
    install(site, "numpy", "1.25.2")
    install(site, "torch", "2.12.1+cpu")
    old, other = (about(software.packages(WORKER), name) for name in ("numpy", "torch"))
    assert (old.status, old.found) == (Status.ERROR, "1.25.2 is installed; needed is at least 1.26")
    assert (other.status, other.found) == (Status.WARNING, "2.12.1+cpu is installed; tested is 2.13.0")
    assert other.remedy.endswith(" -m pip install 'torch==2.13.0'")


@pytest.mark.parametrize(
    ("version", "requirement", "does"),
    [
        ("2.13.0+cpu", "torch==2.13.0", True),
        ("2.13", "torch==2.13.0", True),
        ("1.85.3", "grpcio>=1.60", True),
        ("1.6", "grpcio>=1.60", False),
        ("6", "pyyaml>=6", True),
        ("2.0.0rc1", "numpy>=1.26", True),
    ],
)
def test_how_versions_compare(version: str, requirement: str, does: bool) -> None:
    parsed = software.parse_requirement(requirement)
    assert parsed is not None
    assert software.fits(version, parsed) is does


def test_every_requirement_of_this_project_is_understood() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["torch"], *extras["switch"]]:
        parsed = software.parse_requirement(text)
        assert parsed is not None
        assert parsed.specifier == text


def test_sources_that_are_not_installed(site: Path) -> None:
    finding = only(software.packages(WORKER))
    assert finding.status is Status.WARNING
    assert "PyTorch will not find the backend" in finding.found


def test_without_the_entry_point_pytorch_does_not_know_the_backend(site: Path) -> None:
    install(site, "switchsum", "0.1.0")
    assert about(software.packages(WORKER), "backend").status is Status.WARNING


def test_a_protobuf_that_p4runtime_shell_cannot_bear(site: Path) -> None:
    install(site, "p4runtime-shell", "0.0.6")
    install(site, "protobuf", "5.29.3")
    finding = only(software.protobuf(CONTROLLER))
    assert finding.status is Status.ERROR
    assert finding.remedy == f"{sys.executable} -m pip install 'protobuf<3.21'"
    assert only(software.protobuf(WORKER)).status is Status.WARNING


def test_a_protobuf_that_it_can(site: Path) -> None:
    install(site, "p4runtime-shell", "0.0.6")
    install(site, "protobuf", "3.20.3")
    assert list(software.protobuf(CONTROLLER)) == []


def test_a_damaged_switch_program_is_named(tmp_path: Path) -> None:
    """In a copy of the package."""
    for folder in ("switchsum", "controller", "p4src", "protos"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    program = tmp_path / "p4src" / "build" / "switchsum_lanes_64.json"
    program.write_bytes(program.read_bytes().replace(b"{", b"[", 1))
    script = (
        "import json; from switchsum.doctor import software; from switchsum.doctor.findings import Host, Role\n"
        "host = Host(frozenset({Role.CONTROLLER}))\n"
        "print(json.dumps([(each.subject, each.status.value, each.found) for each in software.programs(host)]))"
    )
    linked = {"bmv2_topologies", "host_agent", "measure", "softswitch"}
    for name in linked:
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    ((subject, status, found),) = json.loads(done.stdout)
    assert (subject, status) == ("program lanes 64", "error")
    assert "is not the file that manifest.json records" in found


def test_the_switch_programs_here_are_right() -> None:
    assert only(software.programs(CONTROLLER)).status is Status.FINE


def test_a_bmv2_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHSUM_BMV2", "/bin/true")
    assert only(software.bmv2(RACK)).status is Status.ERROR
    finding = only(software.bmv2(CONTROLLER))
    assert finding.status is Status.WARNING
    assert "was built without the P4Runtime server or another program" in finding.found


def test_without_bmv2_and_p4c_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHSUM_BMV2", raising=False)
    monkeypatch.delenv("P4C", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert only(software.bmv2(RACK)).status is Status.NOTE
    assert [*software.bmv2(WORKER), *software.p4c(WORKER)] == []
    assert only(software.p4c(RACK)).status is Status.NOTE


@pytest.mark.bmv2
@pytest.mark.skipif(not os.environ.get("SWITCHSUM_BMV2"), reason="SWITCHSUM_BMV2 names no simple_switch_grpc")
def test_bmv2_tells_its_build() -> None:
    finding = only(software.bmv2(RACK))
    assert finding.status is Status.FINE
    assert "1.15" in finding.found
