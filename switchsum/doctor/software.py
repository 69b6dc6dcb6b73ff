"""What is installed: Python packages and their versions, compiled switch programs, BMv2, p4c."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from switchsum import __version__
from switchsum.doctor.findings import Finding, Host, Role, Status

PIP = f"{sys.executable} -m pip install"
# extra of pyproject.toml -> the role that cannot do without
EXTRAS = {"": None, "torch": Role.WORKER, "switch": Role.CONTROLLER}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:(==|>=)\s*([\d.]+))?[^;]*(?:;.*extra == ['\"](\w+)['\"])?")
_WITH_SWITCH = {Role.CONTROLLER, Role.RACK}
_COMMAND_S = 5.0
# p4runtime 1.4.1, which p4runtime-shell 0.0.6 needs, was generated for an older protobuf than this.
_PROTOBUF_LIMIT = (3, 21)


@dataclass(frozen=True)
class Requirement:
    """One line of the package's requirements. `operator`: "==", ">=" or "" for any version."""

    name: str
    operator: str
    version: str
    extra: str

    @property
    def specifier(self) -> str:
        return f"{self.name}{self.operator}{self.version}"


def parse_requirement(text: str) -> Requirement | None:
    """What pyproject.toml's requirements look like in a wheel; None for another form."""
    match = _REQUIREMENT.match(text)
    return Requirement(match[1], match[2] or "", match[3] or "", match[4] or "") if match else None


def packages(host: Host) -> Iterator[Finding]:
    """Each requirement of the package itself, and of the extras that the host's roles need."""
    try:
        lines = importlib.metadata.requires("switchsum") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "switchsum",
            Status.WARNING,
            f"{__version__} runs from its sources and is not installed in {sys.prefix}: PyTorch will not find the backend",
            f"{PIP} --editable .",
        )
        return
    yield Finding("switchsum", Status.FINE, f"{importlib.metadata.version('switchsum')}, Python {platform.python_version()}")
    for requirement in filter(None, map(parse_requirement, lines)):
        if requirement.extra in EXTRAS:
            yield _judged(requirement, host)
    if "switchsum" not in {point.name for point in importlib.metadata.entry_points(group="torch.backends")}:
        yield Finding(
            "backend",
            Status.WARNING,
            "the package has no entry point for PyTorch: scripts must import switchsum after torch",
            f"{PIP} --force-reinstall --no-deps PATH/TO/switchsum",
        )


def _judged(requirement: Requirement, host: Host) -> Finding:
    role = EXTRAS[requirement.extra]
    needed = role is None or role in host.roles or (requirement.extra == "switch" and Role.RACK in host.roles)
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        remedy = f"{PIP} '{requirement.specifier}'"
        if needed and (role is None or host.asked):
            return Finding(requirement.name, Status.ERROR, "is not installed", remedy)
        if needed:
            return Finding(requirement.name, Status.WARNING, "is not installed: this host cannot train", remedy)
        purpose = "a training host does without" if role is Role.CONTROLLER else "a controller's host does without"
        return Finding(requirement.name, Status.NOTE, f"is not installed; {purpose}")
    if fits(version, requirement):
        return Finding(requirement.name, Status.FINE, version)
    tried = requirement.operator == "=="
    text = f"{version} is installed; {'tested is' if tried else 'needed is at least'} {requirement.version}"
    remedy = f"{PIP} '{requirement.specifier}'"
    return Finding(requirement.name, Status.WARNING if tried else Status.ERROR, text, remedy)


def fits(version: str, requirement: Requirement) -> bool:
    """Whether a version does; local labels such as +cpu do not count."""
    found, wanted = numbers(version), numbers(requirement.version)
    length = max(len(found), len(wanted))
    padded = [(*each, *(0,) * (length - len(each))) for each in (found, wanted)]
    return not requirement.operator or (padded[0] == padded[1] if requirement.operator == "==" else padded[0] >= padded[1])


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (2, 13, 0) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number)  # type: ignore[index]


def protobuf(host: Host) -> Iterator[Finding]:
    """The combination that p4runtime-shell cannot bear, which pip lets pass when packages are installed one after another."""
    try:
        importlib.metadata.version("p4runtime-shell")
        version = importlib.metadata.version("protobuf")
    except importlib.metadata.PackageNotFoundError:
        return
    if numbers(version)[:2] >= _PROTOBUF_LIMIT:
        yield Finding(
            "protobuf and p4runtime-shell",
            Status.WARNING if host.roles == {Role.WORKER} else Status.ERROR,
            f"protobuf is {version}; p4runtime-shell, and so the controller, works with those before 3.21 only",
            f"{PIP} 'protobuf<3.21'",
        )


def programs(host: Host) -> Iterator[Finding]:
    """Every compiled switch program against its manifest, as the controller checks the one that it loads."""
    if not host.roles & _WITH_SWITCH:
        return
    if find_spec("p4") is None:
        yield Finding("switch programs", Status.NOTE, "not examined: that needs the package p4runtime")
        return
    from switchsum.controller import pipeline
    from switchsum.controller.errors import WrongProgram
    from switchsum.p4src.layout import ELEMENT_CHOICES

    wrong = 0
    for layout in pipeline.LAYOUTS:
        for elements in ELEMENT_CHOICES:
            try:
                pipeline.load(layout, elements)
            except WrongProgram as error:
                wrong += 1
                yield Finding(f"program {layout} {elements}", Status.ERROR, str(error), "install this release again")
    if not wrong:
        yield Finding("switch programs", Status.FINE, f"as their manifest records them, in {pipeline.build_folder()}")


def bmv2(host: Host) -> Iterator[Finding]:
    """The other switch, for racks."""
    if not host.roles & _WITH_SWITCH:
        return
    from switchsum.bmv2_topologies import switch_process

    named = os.environ.get("SWITCHSUM_BMV2", "")
    if not named and shutil.which(switch_process.BMV2) is None:
        yield Finding(
            "BMv2",
            Status.NOTE,
            f"{switch_process.BMV2} is not on PATH; the embedded switch does without",
            "install p4lang's behavioral-model with its P4Runtime server where racks shall run on BMv2",
        )
        return
    try:
        found = switch_process.find_bmv2(named)
    except switch_process.SwitchFailed as error:
        yield Finding("BMv2", Status.ERROR if Role.RACK in host.roles and named else Status.WARNING, str(error))
        return
    yield Finding("BMv2", Status.FINE, f"{found}, {_first_line([found, '--version'])}")


def p4c(host: Host) -> Iterator[Finding]:
    """The compiler, which only those need who change the switch program."""
    if not host.roles & _WITH_SWITCH:
        return
    named = os.environ.get("P4C", "p4c-bm2-ss")
    found = shutil.which(named)
    if found is None:
        yield Finding("p4c", Status.NOTE, f"{named} is not on PATH; only who changes the switch program needs it")
    else:
        yield Finding("p4c", Status.FINE, f"{found}, {_first_line([found, '--version'])}")


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\d+\.\d+", line)), "which tells no version")
