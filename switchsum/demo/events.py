"""What the demo's processes tell the one that started them: JSON lines on an inherited pipe; and their common lifeline."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """From now on the kernel kills this process when its parent ends, however that happens; call it first of all.

    The parent must have started this process from its main thread: the signal follows the thread, not the process.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


class EventWriter:
    """Sends events on the file descriptor that the parent passed down."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, kind: str, **values: Any) -> None:
        """One event; `values` must be what JSON can carry. A parent that is gone is no error: we are about to die too."""
        try:
            self._file.write(json.dumps({"event": kind, **values}) + "\n")
        except BrokenPipeError:
            os._exit(1)
