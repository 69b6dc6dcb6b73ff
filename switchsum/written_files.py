"""Files that a command is asked to write: their folders must be there before it begins."""

from __future__ import annotations

from pathlib import Path

from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed


def require_folders(*paths: Path | None) -> None:
    """Of those that were named. Raises CommandFailed."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise CommandFailed(f"{path} cannot be written: there is no folder {path.resolve().parent}", EXIT_MISUSED)
