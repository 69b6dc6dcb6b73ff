"""What an experiment leaves: every operation of every rank, and what was counted beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Usage:
    """What one process used during a run: CPU seconds of all its threads, context switches, and its memory at the end."""

    user_s: float
    system_s: float
    voluntary_switches: int
    involuntary_switches: int
    resident_bytes: int

    def after(self, earlier: Usage) -> Usage:
        """Both stretches together; the memory at the later one's end, which is this."""
        return self._and(earlier, 1)

    def since(self, before: Usage) -> Usage:
        """What was used between two moments; the memory at the later one, which is this."""
        return self._and(before, -1)

    def _and(self, other: Usage, sign: int) -> Usage:
        return Usage(
            self.user_s + sign * other.user_s,
            self.system_s + sign * other.system_s,
            self.voluntary_switches + sign * other.voluntary_switches,
            self.involuntary_switches + sign * other.involuntary_switches,
            self.resident_bytes,
        )


@dataclass(frozen=True)
class Carried:
    """What one link carried during a run; or one process's UDP or TCP payload, then packets are datagrams, 0 over TCP (a
    datagram's SwitchSum header is part of its payload). `dropped`: packets that the link's queues or the interface dropped."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int = 0
    received_packets: int = 0
    dropped: int = 0

    def since(self, before: Carried) -> Carried:
        """What was carried between two counts."""
        return Carried(
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            self.sent_packets - before.sent_packets,
            self.received_packets - before.received_packets,
            self.dropped - before.dropped,
        )


@dataclass
class Run:
    """One transport and payload without another's in between: the unit of statistics."""

    number: int
    # By worker: its operations, one after the other; of very many (`made`), evenly chosen ones.
    seconds: list[list[float]] = field(default_factory=list)
    made: list[int] = field(default_factory=list)  # by worker, where workers operate each by itself
    elapsed_s: float = 0.0  # from the common start to the last worker's end; of allreduce, the sum of its operations
    paused_s: float = 0.0  # of allreduce: between its operations, in all
    usage: list[Usage] = field(default_factory=list)  # by process: workers, then servers
    carried: list[Carried] = field(default_factory=list)  # by host; by process where the source is "payload"
    switch_cpu_s: float | None = None  # None: no switch on this machine, or none in this transport's way
    machine_busy_ticks: int = 0
    machine_ticks: int = 0
    serialize_s: float | None = None  # all processes together; None where buffers need not become one message
    payload: list[Carried] = field(default_factory=list)  # by process, as the transport or TCP counts it
    resent: int | None = None  # packets or TCP segments, all processes
    resent_bytes: list[int] = field(default_factory=list)  # by process, what was sent again carried at most
    lost: int = 0

    @property
    def operations(self) -> int:
        """Of all workers together; a sum of all workers is one."""
        return sum(self.made) if self.made else len(self.seconds[0])

    @property
    def slowest_s(self) -> list[float]:
        """Of operations in which all workers take part: the time of each, the slowest worker's."""
        return [max(each) for each in zip(*self.seconds, strict=True)]


@dataclass
class Series:
    """One row's samples.

    size_bytes: of one operation's payload (allreduce: of one worker's tensors). buffers: iovecs, or tensors. hosts: by
    process (workers, then servers), the number of the host that it is on. link_rate_bps: the slowest link's, each direction;
    link_rates_bps: by host, in the order of their numbers; empty where all have link_rate_bps.
    """

    benchmark: str  # "p2p-latency", "p2p-bandwidth", "ps-throughput", "allreduce"
    transport: str
    mode: str  # "serialized", "non-serialized"; "" where there is no choice
    payload: str
    size_bytes: int
    buffers: int
    dtype: str
    redop: str  # "" where nothing is summed
    workers: int
    servers: int
    hosts: list[int]
    lanes: int = 32  # bits of a number on its way through the switch
    link_rate_bps: int | None = None
    link_rates_bps: list[int | None] = field(default_factory=list)
    check: bool = False  # whether every operation was verified, instead of one after each run
    link_source: str = ""  # "tbf", "interface" or "payload"
    wrong: int | None = None  # elements, or bytes where nothing is summed; None: nothing can be checked
    checked: int = 0
    largest_error: float | None = None  # of a sum, relative to the sum of magnitudes; None where it is exact
    warmup_s: list[float] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    # Of a run of its own, by rank: seconds of each stage of the data path, and packets that the rank received in it.
    stages: list[tuple[dict[str, float], int]] = field(default_factory=list)


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None if none of them is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
