"""`python -m switchsum.bmv2_topologies.janitor NAME`: removes a rack whose keeper died without doing so.

The keeper holds the other end of our standard input. A line on it says that all is removed already; its bare end says that the
keeper was killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from switchsum.bmv2_topologies import state


class Janitor:
    """The keeper's side: start it before anything is made, and dismiss it when all is removed."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "switchsum.bmv2_topologies.janitor", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path("/"),
            start_new_session=True,  # no Ctrl-C, and no terminal that closes
        )

    def dismiss(self) -> None:
        """All is removed."""
        with contextlib.suppress(OSError):  # somebody killed it
            self._process.communicate(b"done\n")
        self._process.wait()


def main(name: str) -> int:
    if not os.read(0, 1):
        state.remove(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
