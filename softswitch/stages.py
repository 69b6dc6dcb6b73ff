"""Where the serving thread's time goes, stage by stage: measured when someone asks for it (see Ports.measure)."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Stages:
    """Nanoseconds of the serving thread since construction: CPU time of each stage, and the time it waited for packets.

    Stages follow one another: `close_stage` charges what passed since the last call. One clock reading costs 0.3 us, four of
    them a batch.
    """

    receive: int = 0  # from the kernel's buffers to packets as the program takes them
    program: int = 0  # parser, pipelines, deparser
    send: int = 0  # to the kernel
    loop: int = 0  # what is left: Python between the three
    wait: int = 0  # asleep, or another process had the core
    batches: int = 0
    packets: int = 0  # that came in

    def __post_init__(self) -> None:
        self._cpu = self._wall = 0

    def start(self) -> None:
        """To be called in the serving thread, before the first stage."""
        self._cpu, self._wall = time.thread_time_ns(), time.perf_counter_ns()

    def close_stage(self, name: str) -> None:
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        setattr(self, name, getattr(self, name) + cpu - self._cpu)
        self.wait += max(0, wall - self._wall - (cpu - self._cpu))
        self._cpu, self._wall = cpu, wall

    def __str__(self) -> str:
        busy = self.receive + self.program + self.send + self.loop
        each = max(self.packets, 1)
        parts = ", ".join(f"{name} {getattr(self, name) / each:.0f}" for name in ("receive", "program", "send", "loop", "wait"))
        return (
            f"{busy / each:.0f} ns of CPU a packet ({parts}); {self.packets} packets in batches of "
            f"{self.packets / max(self.batches, 1):.0f}"
        )
