"""What is written down about a rack that is up, so that it can be found, shown and removed by whoever comes later.

One folder a rack, /run/switchsum/NAME: its description and owner (rack.json), logs, the switch's socket. It is made before the
first namespace and removed after the last, so what a crash leaves can always be told.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies import namespaces
from switchsum.bmv2_topologies.rack_file import RackError

FOLDER = Path("/run/switchsum")
_RECORD = "rack.json"
_KILL_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Process:
    """A process id that cannot be mistaken for a later process's: with the kernel's start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises ProcessLookupError when it is gone."""
        return cls(pid, int(_stat(pid)[19]))

    @property
    def alive(self) -> bool:
        try:
            found = _stat(self.pid)
        except ProcessLookupError:
            return False
        return int(found[19]) == self.started and found[0] != "Z"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: the state, then numbers (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise ProcessLookupError(pid) from None


@dataclass
class Record:
    """One rack. `rack`: RackFile.as_json(); `owner`: the process that keeps it; `parts`: switch and controllers by name."""

    name: str
    rack: dict[str, Any]
    file: str
    namespaces: list[str]
    owner: Process
    parts: dict[str, Process]
    offload: bool

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def kept(self) -> bool:
        """Whether the owner is alive; if not, a crash left this."""
        return self.owner.alive

    def failures(self) -> list[str]:
        """What is not there any more, as sentences."""
        existing = set(namespaces.names())
        gone = [f"its {name} (process {part.pid}) is gone" for name, part in self.parts.items() if not part.alive]
        return gone + [f"its namespace {name} is gone" for name in self.namespaces if name not in existing]

    def save(self) -> None:
        """Write it, in one step."""
        draft = self.folder / f"{_RECORD}.new"
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.rename(self.folder / _RECORD)


def reserve(name: str) -> Path:
    """Make the folder of a rack that is coming up. Raises RackError when there is one of this name."""
    try:
        while True:
            FOLDER.mkdir(mode=0o755, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # whoever removed the last rack has just removed it again
                (FOLDER / name).mkdir()
                break
    except FileExistsError:
        record = find(name)
        if record is None or not record.kept:
            raise RackError(f"rack {name} was left behind by a crash; remove it: `switchsum rack down {name}`") from None
        raise RackError(
            f"rack {name} is up already (process {record.owner.pid}): take it down (`switchsum rack down {name}`), "
            "or give this one another name (--name)"
        ) from None
    return FOLDER / name


def find(name: str) -> Record | None:
    """The rack of this name; None if there is none, or if its maker died before it had written anything."""
    try:
        values = json.loads((FOLDER / name / _RECORD).read_text())
        owner = Process(**values.pop("owner"))
        parts = {part: Process(**process) for part, process in values.pop("parts").items()}
        return Record(owner=owner, parts=parts, **values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def names() -> list[str]:
    """Of all racks, crashed ones included."""
    return sorted(entry.name for entry in FOLDER.iterdir() if entry.is_dir()) if FOLDER.is_dir() else []


def remove(name: str) -> list[str]:
    """Kill what runs in a rack's namespaces, remove them and the folder; tells what was there. What is gone is no error."""
    record = find(name)
    told = []
    existing = set(namespaces.names())
    mine = [each for each in (record.namespaces if record else []) if each in existing]
    killed = kill([pid for namespace in mine for pid in namespaces.processes(namespace)])
    if killed:
        told.append(f"{killed} processes")
    for namespace in mine:
        namespaces.delete(namespace)
    if mine:
        told.append(f"{len(mine)} namespaces")
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        FOLDER.rmdir()  # if this was the last
    return told


def kill(pids: Sequence[int]) -> int:
    """SIGKILL processes that may be nobody's children any more, and wait until they are gone; returns how many there were."""
    processes = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            processes.append(Process.of(pid))
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(processes)


def take_down(name: str, patience_s: float = 15.0) -> str:
    """Have a rack's owner take it down, or do so in its place; returns what happened, as half a sentence."""
    record = find(name)
    if record is None or not record.kept:
        return f"removed what a crash had left ({', '.join(remove(name)) or 'an empty folder'})"
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while (FOLDER / name).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if not (FOLDER / name).exists():
        return "down"
    kill([record.owner.pid])
    return f"its process did not end within {patience_s:g} s and was killed; removed {', '.join(remove(name)) or 'its folder'}"
