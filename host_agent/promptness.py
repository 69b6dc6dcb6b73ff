"""Python threads take turns every 5 ms; while a sum is under way that is too long to wait.

A thread that wants the interpreter lock (GIL) waits for one switch interval before it makes the running thread yield. Packets
move without the lock, but handing over a tensor and waking up whoever waits for its sum needs it: beside a thread that runs
pure Python, a sum of 0.1 ms would take 10 ms and more. So while any sum is pending or waited for, the interval is PROMPT_S;
otherwise it is what the program chose. The price is paid only where threads compete for the lock: one forced switch, a few
microseconds, in each interval.
"""

from __future__ import annotations

import sys
import threading

PROMPT_S = 50e-6


class _Promptness:
    """Counts who needs short turns; the first sets the interval, the last restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needed = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._needed += 1
            if self._needed == 1 and sys.getswitchinterval() > PROMPT_S:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(PROMPT_S)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._needed -= 1
            if self._needed == 0 and self._before:
                # Compared as microseconds, which is how the interpreter keeps it. Another value is somebody else's choice.
                if round(sys.getswitchinterval() * 1e6) == round(PROMPT_S * 1e6):
                    sys.setswitchinterval(self._before)
                self._before = 0.0


prompt = _Promptness()  # one for the interpreter, as the interval is: `with prompt: ...`, from any thread
