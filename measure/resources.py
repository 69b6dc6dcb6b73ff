"""Time series beside a benchmark: what each process uses and its interface carries, how busy the machine is, and the switch.

All figures only grow, except `resident_bytes`; who draws rates takes differences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from switchsum.measure import interfaces, processor
from switchsum.measure.crew import Crew

INTERVAL_S = 0.2
MOST_SAMPLES = 3000  # ten minutes; then every second sample goes, and the next come half as often
_CLOCK_QUESTIONS = 5  # the one that is answered soonest counts

PROCESS_COLUMNS = (
    "seconds", "user_s", "system_s", "resident_bytes", "voluntary_switches", "involuntary_switches",
    "sent_bytes", "received_bytes", "dropped", "resent",
)  # fmt: skip
MACHINE_COLUMNS = ("seconds", "busy_ticks", "ticks")
SWITCH_COLUMNS = ("seconds", "cpu_s", "resident_bytes")


class Sampler:
    """Reads figures every INTERVAL_S in a thread of its own until it is stopped, or what it reads of is gone (OSError).

    A sample of a process costs it 0.11 ms of CPU time and 15 us more for each of its TCP connections, where this was written.
    """

    def __init__(self, columns: Sequence[str], read: Callable[[], Sequence[float]], interval_s: float = INTERVAL_S) -> None:
        """`read` returns the figures of all columns but the first, which is the time on CLOCK_MONOTONIC."""
        self._names, self._read, self._interval_s = columns, read, interval_s
        self._rows: list[tuple[float, ...]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="resources", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._rows.append((began, *self._read()))
            except OSError:
                return
            if len(self._rows) >= MOST_SAMPLES:
                self._rows = self._rows[::2]
                self._interval_s *= 2
            if self._stopped.wait(max(0.0, began + self._interval_s - time.monotonic())):
                return

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self._rows)

    def stop(self) -> dict[str, list[float]]:
        """End it; what was read, by column."""
        self._stopped.set()
        self._thread.join()
        return {name: [row[number] for row in self._rows] for number, name in enumerate(self._names)}


def of_this_process(interface: str, resent: Callable[[], int]) -> Sampler:
    """PROCESS_COLUMNS. `interface`: in this process's network namespace; `resent`: packets and segments so far."""

    def read() -> Sequence[float]:
        used, link = processor.usage(), interfaces.carried(interface)
        switches = (used.voluntary_switches, used.involuntary_switches)
        carried = (link.sent_bytes, link.received_bytes, link.dropped)
        return used.user_s, used.system_s, used.resident_bytes, *switches, *carried, resent()

    return Sampler(PROCESS_COLUMNS, read)


def of_machine() -> Sampler:
    """MACHINE_COLUMNS: clock ticks of all cores."""
    return Sampler(MACHINE_COLUMNS, processor.machine_ticks)


def of_switch(pids: Sequence[int]) -> Sampler:
    """SWITCH_COLUMNS: of its processes together."""
    return Sampler(
        SWITCH_COLUMNS,
        lambda: (sum(map(processor.process_ns, pids)) / 1e9, sum(map(processor.resident_bytes, pids))),
    )


@dataclass(frozen=True)
class Track:
    """One time series. `kind`: "rank", "machine" or "switch"; `name`: of whom; `transports`: that it runs (a machine: all).

    `clock_error_s`: 0 where it was read on the coordinator's own clock; else its clock's offset has been estimated from a
    question's way there and back, taken off, and may be wrong by so much. `samples`: by column.
    """

    kind: str
    name: str
    transports: list[str]
    clock_error_s: float
    samples: dict[str, list[float]]


@dataclass
class Timeline:
    """What was going on when, on the coordinator's CLOCK_MONOTONIC: for pictures of resources over time."""

    marks: list[tuple[float, str]] = field(default_factory=list)  # (seconds, what begins)
    tracks: list[Track] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Watch:
    """The coordinator's own samplers."""

    def __init__(self, crews: Mapping[str, Crew]) -> None:
        """`crews`: by transport."""
        self._machine = of_machine()
        self._transports = list(crews)
        self._switches: list[tuple[list[str], Sampler]] = []
        for crew in {id(crew): crew for crew in crews.values()}.values():
            if pids := crew.site.switch_pids:
                self._switches.append((_transports_of(crew, crews), of_switch(pids)))

    def stop(self) -> list[Track]:
        machine = Track("machine", "machine", self._transports, 0.0, self._machine.stop())
        return [machine, *(Track("switch", "switch", names, 0.0, sampler.stop()) for names, sampler in self._switches)]


def _transports_of(crew: Crew, crews: Mapping[str, Crew]) -> list[str]:
    return [name for name, each in crews.items() if each is crew]


def of_ranks(crews: Mapping[str, Crew], here: str, patience_s: float) -> list[Track]:
    """End the ranks' samplers and fetch what they read. `here`: worker.machine() of this process."""
    tracks = []
    for crew in {id(crew): crew for crew in crews.values()}.values():
        elsewhere = [rank for rank, hello in enumerate(crew.hellos) if hello["machine"] != here]
        clocks = {rank: _clock(crew, rank, patience_s) for rank in elsewhere}
        for rank, answer in enumerate(crew.ask("timeline", patience_s)):
            ahead, error = clocks.get(rank, (0.0, 0.0))
            samples = answer["samples"]
            samples["seconds"] = [seconds - ahead for seconds in samples["seconds"]]
            tracks.append(Track("rank", crew.site.labels[rank], _transports_of(crew, crews), error, samples))
    return tracks


def _clock(crew: Crew, rank: int, patience_s: float) -> tuple[float, float]:
    """How many seconds a rank's clock is ahead of ours, and by how many that may be wrong."""
    found = []
    for _ in range(_CLOCK_QUESTIONS):
        asked = time.monotonic()
        [answer] = crew.ask_each("clock", patience_s, {rank: {}})
        half = (time.monotonic() - asked) / 2
        found.append((half, answer["seconds"] - asked - half))
    error, ahead = min(found)
    return ahead, error
