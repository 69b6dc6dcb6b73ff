"""Where a process stands, for whoever looks into a hang."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

_PATIENCE_S = 60.0


def dump(name: str, pid: int, folder: Path) -> None:
    """Write its stacks, Python's and C's, to folder/NAME.stacks with py-spy; without py-spy, do nothing."""
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return
    with (folder / f"{name}.stacks").open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
        command = [spy, "dump", "--native", "--pid", str(pid)]
        subprocess.run(command, stdout=file, stderr=file, check=False, timeout=_PATIENCE_S)
