"""Racks for tests: each has a name of its own, so that tests may run side by side, and must leave nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from switchsum.bmv2_topologies import namespaces, state
from switchsum.bmv2_topologies.state import Process

RACKS = Path(__file__).resolve().parents[2] / "bmv2_topologies" / "racks"
BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")
PATIENCE_S = 60.0
_numbers = itertools.count()


def needs_bmv2() -> pytest.MarkDecorator:
    return pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2")


KINDS = [
    pytest.param("softswitch", id="softswitch"),
    pytest.param("bmv2", id="bmv2", marks=[pytest.mark.bmv2, needs_bmv2()]),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = namespaces.what_is_missing()
    if problem is None:
        return
    for item in items:
        if "rack_name" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=f"racks are made of network namespaces, but {problem}"))


@dataclass
class RackName:
    """A name that no other rack has, and commands that use it."""

    name: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, file: Path = RACKS / "two.yaml", **options: object) -> subprocess.Popen[str]:
        """`switchsum rack ARGUMENTS` with {file} and {name} filled in."""
        words = [word.format(file=file, name=self.name) for word in arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "switchsum.cli", "rack", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, file: Path = RACKS / "two.yaml") -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, file=file)
        try:
            out, err = process.communicate(timeout=PATIENCE_S * 3)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{process.args} did not end within {PATIENCE_S * 3:g} s; under it:\n{descendants(process.pid)}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def namespaces(self) -> list[str]:
        return [name for name in namespaces.names() if name.startswith(f"switchsum.{self.name}.")]

    def part(self, name: str) -> Process:
        """A part of the rack: "switch" or "controller"."""
        record = state.find(self.name)
        assert record is not None
        return record.parts[name]

    def assert_nothing_is_left(self) -> None:
        """No namespace, process, file, and with the namespaces no interface."""
        eventually(lambda: not self.namespaces() and not (state.FOLDER / self.name).exists(), "rack is gone")
        assert not list(Path("/etc/netns").glob(f"switchsum.{self.name}.*"))
        eventually(lambda: processes_of(self.name) == [], f"no process is left of {processes_of(self.name)}")


def processes_of(name: str) -> list[str]:
    """Command lines of processes that have to do with a rack, those of zombies left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if name in line:
                found.append(line)
    return found


def descendants(pid: int) -> str:
    """A process and its children's children, a line each: what each one runs, and what its threads wait for."""
    lines = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            lines.append(f"{pid}/{task.name} {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}")
            children = (task / "children").read_text().split()
            lines += [descendants(int(child)) for child in children]
    with contextlib.suppress(OSError):
        lines.insert(0, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s until {what}"
        time.sleep(0.05)


@pytest.fixture
def rack_name() -> Iterator[RackName]:
    rack = RackName(f"t{os.getpid() % 100000}-{next(_numbers)}")
    yield rack
    for process in rack.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if rack.name in state.names():
        state.take_down(rack.name)
