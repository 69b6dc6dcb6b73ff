"""Processor time: of single processes to the nanosecond, of the machine in clock ticks."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from switchsum.measure.samples import Usage

_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_ns(pid: int) -> int:
    """CPU time of a process, all threads, user and system. Raises ProcessLookupError when it is gone.

    The clock's number is what clock_getcpuclockid(3) makes of a process id.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        raise ProcessLookupError(pid) from None


def resident_bytes(pid: int) -> int:
    """Memory of a process. Raises OSError when it is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def machine_ticks() -> tuple[int, int]:
    """(busy, all) clock ticks of all cores since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def usage() -> Usage:
    """Of this process, all threads, since its start; its memory now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_utime, used.ru_stime, used.ru_nvcsw, used.ru_nivcsw, resident_bytes(os.getpid()))


def used_since(before: Usage) -> Usage:
    """What usage() grew by."""
    return usage().since(before)
