"""Processor, memory, disk, and the folders that compiled code is kept in."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from switchsum.doctor.findings import Finding, Host, Role, Status

_GOVERNORS = Path("/sys/devices/system/cpu")
_PROC = Path("/proc")
_RANK_BYTES = 300 << 20  # what PyTorch and a small network take
_CACHE_BYTES = 64 << 20  # compiled code takes about 10 MB
_SLOW_GOVERNORS = ("powersave", "conservative")


def processor(host: Host) -> Iterator[Finding]:
    """A rank keeps one core busy with packets while it waits for a sum."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    text = f"{cores} may be used, load {load:.1f}"
    if cores < 2:
        yield Finding(
            "cores",
            Status.WARNING,
            f"{text}: training and packets share one",
            "give this machine, or this container, two cores for each rank",
        )
    else:
        yield Finding("cores", Status.FINE, text)


def governor(host: Host, folder: Path = _GOVERNORS) -> Iterator[Finding]:
    """How the kernel chooses the processor's frequency. Virtual machines tell nothing."""
    slow = {}
    for path in sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor")):
        driver = path.with_name("scaling_driver")
        # intel_pstate and amd-pstate-epp call their dynamic mode powersave.
        dynamic = driver.exists() and driver.read_text().strip() in ("intel_pstate", "amd-pstate-epp")
        if (name := path.read_text().strip()) in _SLOW_GOVERNORS and not dynamic:
            slow[path.parent.parent.name] = name
    if slow:
        text = f"{next(iter(slow.values()))} on {len(slow)} processors: answers are late while they run slowly"
        yield Finding("frequency governor", Status.WARNING, text, "cpupower frequency-set -g performance")


def memory(host: Host, folder: Path = _PROC) -> Iterator[Finding]:
    """Free memory, and whether the machine swaps. (No part locks memory, so limits on that do not matter.)"""
    found = {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (line.partition(":") for line in (folder / "meminfo").read_text().splitlines())
    }
    available, swapped = found["MemAvailable"], found["SwapTotal"] - found["SwapFree"]
    if available < _RANK_BYTES:
        yield Finding(
            "memory",
            Status.WARNING,
            f"{available >> 20} MiB are free; a rank takes {_RANK_BYTES >> 20} or more, and the kernel kills what does not fit",
            "end what is not needed, or start fewer ranks",
        )
    elif swapped > available:
        yield Finding(
            "memory",
            Status.WARNING,
            f"{swapped >> 20} MiB are swapped out, {available >> 20} MiB free: a rank that is silent for a lease while it "
            "swaps counts as lost",
            "end what is not needed",
        )
    else:
        yield Finding("memory", Status.FINE, f"{available >> 20} MiB free, {swapped >> 20} MiB swapped out")


def packet_loops(host: Host) -> Iterator[Finding]:
    """numba's cache of the host agent's compiled code: where it lies, and whether it is filled."""
    try:
        engine = importlib.import_module("switchsum.host_agent.engine")
        transport = importlib.import_module("switchsum.host_agent.transport")
    except RuntimeError as error:  # numba's, when it finds no folder that it may write
        yield Finding(
            "numba's cache",
            Status.ERROR,
            f"there is no folder that it may write: {error}",
            "export NUMBA_CACHE_DIR=/var/tmp/numba-$USER",
        )
        return
    folder = Path(engine.receive.stats.cache_path)
    written = Path(str(transport.__file__)).stat().st_mtime
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    compiled = [path for path in folder.glob(f"transport._run-*.{tag}.nbi") if path.stat().st_mtime >= written]
    if compiled:
        yield Finding("numba's cache", Status.FINE, f"packet loops are compiled, in {folder}")
    else:
        yield Finding(
            "numba's cache",
            Status.NOTE,
            f"{folder} can be written; the first rank will compile for half a minute",
            f"{sys.executable} -c 'from switchsum.host_agent.prepare import prepare; prepare()'",
        )
    yield from disk(folder)


def disk(folder: Path) -> Iterator[Finding]:
    """Room for compiled code."""
    free = shutil.disk_usage(folder).free
    if free < _CACHE_BYTES:
        yield Finding(
            f"disk {folder}",
            Status.WARNING,
            f"{free >> 20} MiB are free, compiled code may need {_CACHE_BYTES >> 20}",
            "make room there, or name another folder: export NUMBA_CACHE_DIR=FOLDER",
        )
    else:
        yield Finding(f"disk {folder}", Status.FINE, f"{free >> 20} MiB free")


def temporary(host: Host) -> Iterator[Finding]:
    """Where lock files, and the logs of racks and demos lie."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        yield Finding("temporary folder", Status.ERROR, str(error), "export TMPDIR=FOLDER, one that this user may write to")
        return
    yield from disk(Path(folder))


def switch_cache(host: Host) -> Iterator[Finding]:
    """Where the embedded switch keeps what it compiled; without it each start takes a second more."""
    if not host.roles & {Role.CONTROLLER, Role.RACK}:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "switchsum"
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        yield Finding("embedded switch's cache", Status.FINE, f"{folder} can be written")
    else:
        yield Finding(
            "embedded switch's cache",
            Status.NOTE,
            f"{folder} cannot be written: the switch compiles its program at every start, for a second",
            "export XDG_CACHE_HOME=FOLDER, one that this user may write to",
        )
