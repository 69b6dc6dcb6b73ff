"""Python threads take turns every 5 ms; while sums are under way that is too long to wait.

A thread that wants the interpreter lock (GIL) waits for one switch interval before it makes the running thread yield. Packets
move without the lock, but handing over a tensor and waking up whoever waits for its sum needs it: beside a thread that runs
pure Python, a sum of 0.1 ms would take 10 ms and more. So while a sum is pending or waited for, and for LINGER_S after, the
interval is PROMPT_S; otherwise it is what the program chose. The price is paid only where threads compete for the lock: one
forced switch, a few microseconds, in each interval.
"""

from __future__ import annotations

import os
import sys
import threading
import time

PROMPT_S = 50e-6
# Between one sum and the next the lock may be lost as well, and got back only after an interval.
LINGER_S = 0.02


class _Promptness:
    """Counts who needs short turns; the first sets the interval, and a thread restores it when nobody has for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shortened = threading.Condition(self._lock)
        self._needed = 0
        self._before = 0.0  # the program's own interval while ours is set, else 0
        self._last = 0.0  # when somebody needed it last
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._needed += 1
            if not self._before and sys.getswitchinterval() > PROMPT_S:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(PROMPT_S)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._restore, name="switchsum-turns", daemon=True)
                    self._thread.start()
                self._shortened.notify()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._needed -= 1
            self._last = time.monotonic()

    def _restore(self) -> None:
        while True:
            with self._lock:
                self._shortened.wait_for(lambda: self._before)
                if not self._needed and time.monotonic() - self._last > LINGER_S:
                    # Compared as microseconds, which is how the interpreter keeps it. Another value is somebody else's choice.
                    if round(sys.getswitchinterval() * 1e6) == round(PROMPT_S * 1e6):
                        sys.setswitchinterval(self._before)
                    self._before = 0.0
            time.sleep(LINGER_S)

    def after_fork(self) -> None:
        """A child has no sums under way, and no thread of ours."""
        if self._before:
            sys.setswitchinterval(self._before)
        self.__init__()  # type: ignore[misc]


prompt = _Promptness()  # one for the interpreter, as the interval is: `with prompt: ...`, from any thread
os.register_at_fork(after_in_child=prompt.after_fork)
