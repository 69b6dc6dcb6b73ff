"""The clock that all processes of one machine share: CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from pathlib import Path


def machine() -> str:
    """Tells whether clocks of two processes are the same one: they run on the same kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def wait_until(at_ns: int | None) -> None:
    """A moment on CLOCK_MONOTONIC; None has passed."""
    if at_ns is not None:
        while (wait := at_ns - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
