"""Where and when something was measured: whatever a reader of the figures might want to know later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "numpy", "numba", "llvmlite", "grpcio", "switchsum")


def describe() -> dict[str, Any]:
    """For JSON. Call it before the experiment: the load is that of the last minutes."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": sys.argv,
        "kernel": os.uname().release,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git": _commit(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith("SWITCHSUM_")},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the checkout that we run from, with "-dirty" if files differ from it; "" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).resolve().parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
