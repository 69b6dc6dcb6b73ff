"""What summing gradients costs, by architecture: latency, and seconds for each byte by whatever is the narrowest.

Of S bytes of each of n workers, with full-duplex links of B bytes a second (nominal rate times efficiency) and latency alpha:

    ps            dedicated: the larger of S/B at a worker and nS/(pB) at each of p servers; colocated on the workers' hosts:
                  ((p-1)/p + (n-1)/p) S/B, which is the ring's bytes for p = n; and 2 alpha (push, pull)
    ring          2(n-1)/n S/B + 2(n-1) alpha (Patarasu and Yuan, 2009)
    hierarchical  a ring inside each host, then inside each rack, then between racks, each on the share that the one before left
    switch        S/B + alpha, at most slots * payload / RTT, with 32, 16 or 8 bits for each number

Where latency passes beside the bytes (Cost.overlaps), the larger of alpha's part and the bytes' counts, instead of both.

Several workers of a host sum among themselves first (not in the flat ring), over nvlink or else pcie: 2(g-1)/g S/B of that.
Where pcie is given, ps and switch pass it as well, since both work from the host's memory. One worker sums nothing.

Several racks: their links upwards carry 1/F of what their hosts could send (oversubscription F). Rings are laid rack by rack;
servers are spread evenly over racks; a switch in each rack sums its hosts and sends one stream upwards. A switch knows its
workers by the bits of a bitmap, so more than MOST_PER_SWITCH of them need another level of switches.

The processor: each byte costs CPU seconds, of one core on each host, or of all cores where workers share one machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from switchsum.measure.manifest import ITEM_BYTES
from switchsum.measure.media import Medium
from switchsum.p4src.layout import MAX_WORKERS

LANES = {"switch": 32, "switch16": 16, "switch8": 8}
ARCHITECTURES = ("ps", "ring", "hierarchical", *LANES)
# What the lanes hold; numbers of other types the backend sums by Gloo (switchsum/torch_backend.py, WIRE_DTYPES).
CARRIED = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
MOST_PER_SWITCH = MAX_WORKERS
MOST_WORKERS = 100_000


class BadCluster(ValueError):
    """Workers, servers or racks that do not fit each other; the text says how."""


@dataclass(frozen=True)
class Cluster:
    """Who sums. `servers`: of ps, 0 for as many as hosts; `per_host`: workers that share a host and its link; racks,
    oversubscription: as above. Raises BadCluster."""

    workers: int
    servers: int = 0
    dedicated: bool = False
    per_host: int = 1
    racks: int = 1
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for what in ("workers", "per_host", "racks"):
            if not 1 <= getattr(self, what) <= MOST_WORKERS:
                raise BadCluster(f"{getattr(self, what)} {what.replace('_', ' ')}: must be from 1 to {MOST_WORKERS}")
        if not 0 <= self.servers <= MOST_WORKERS:
            raise BadCluster(f"{self.servers} servers: must be from 0 (as many as hosts) to {MOST_WORKERS}")
        if self.workers % self.per_host:
            raise BadCluster(f"{self.workers} workers are no whole number of hosts with {self.per_host} each")
        if self.racks > self.hosts:
            raise BadCluster(f"{self.racks} racks for {self.hosts} hosts: a rack has at least one")
        if not 1 <= self.oversubscription < math.inf:
            raise BadCluster(f"oversubscription {self.oversubscription:g}: must be at least 1 (1: none)")
        if not self.dedicated and self.servers > self.hosts:
            raise BadCluster(f"{self.servers} servers on {self.hosts} workers' hosts: at most one each, or dedicated ones")

    @property
    def hosts(self) -> int:
        return self.workers // self.per_host

    @property
    def per_rack(self) -> int:
        """Hosts of the fullest rack."""
        return math.ceil(self.hosts / self.racks)

    @property
    def parameter_servers(self) -> int:
        return self.servers or self.hosts


@dataclass(frozen=True)
class Window:
    """Of a switch: so many slots of so many payload bytes can be under way for a round trip of `rtt_s`."""

    slots: int
    payload_bytes: int
    rtt_s: float


@dataclass(frozen=True)
class Processor:
    """CPU seconds for a byte of one worker's payload: its own, and what servers and switch spend on each worker's byte.
    `cores`: that all of them share; None: every worker has a host of its own, and one core sums on it."""

    worker_s_per_byte: float
    elsewhere_s_per_byte: float = 0.0
    cores: int | None = None

    def s_per_byte(self, workers: int) -> float:
        if self.cores is None:
            return self.worker_s_per_byte
        return workers * (self.worker_s_per_byte + self.elsewhere_s_per_byte) / self.cores


@dataclass(frozen=True)
class Cost:
    """Of one sum: `latency_s` once, then for each byte `serial` (by medium, one after the other) and the largest of `limits`,
    which are side by side. `credit_s`: of the "link" limit's time passes at once after a pause, in which it grows by `refill` a
    second: a token bucket fills at the nominal rate. `overlaps`: the latency passes while bytes move, so that the longer
    of both is what a sum takes, instead of both together."""

    latency_s: float
    serial: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    credit_s: float = 0.0
    refill: float = 1.0
    overlaps: bool = False

    def moving(self, size_bytes: float, credit_s: float) -> tuple[float, float]:
        """Seconds of a sum but for its latency, if it finds so much credit, and the credit that it leaves."""
        if not self.limits:
            return 0.0, self.credit_s
        linked = size_bytes * self.limits["link"]
        others = max((size_bytes * each for name, each in self.limits.items() if name != "link"), default=0.0)
        moving = max(others, linked - credit_s, 0.0)
        left = min(self.credit_s, max(0.0, credit_s - linked + moving))
        return size_bytes * sum(self.serial.values()) + moving, left

    def refilled(self, credit_s: float, pause_s: float) -> float:
        return min(self.credit_s, credit_s + self.refill * pause_s)

    def seconds(self, size_bytes: float) -> float:
        """Of a sum after a pause."""
        moving_s = self.moving(size_bytes, self.credit_s)[0]
        return max(self.latency_s, moving_s) if self.overlaps else self.latency_s + moving_s

    @property
    def narrowest(self) -> str:
        """The name of what takes longest for each byte; "" where nothing is summed."""
        each = {**self.limits, **self.serial} if self.limits else {}
        return max(each, key=lambda name: each[name], default="")

    def limit(self, size_bytes: float) -> str:
        """What a sum of that size waits for most: "latency", or the narrowest."""
        if self.limits and self.latency_s > self.moving(size_bytes, self.credit_s)[0]:
            return "latency"
        return self.narrowest


def summed_by(architecture: str, dtype: str) -> str:
    """By which architecture a job that was given `architecture` sums numbers of that type: a ring where no lane holds them."""
    return "ring" if architecture in LANES and dtype not in CARRIED else architecture


def wire_bytes(architecture: str, dtype: str) -> float:
    """Of one byte of payload: the switch's lanes hold any number in 32, 16 or 8 bits, 16-bit floats as well. What they do not
    hold takes the bytes of a ring of many."""
    if architecture not in LANES:
        return 1.0
    lanes = LANES[architecture] / 8 / ITEM_BYTES[dtype]
    return lanes if dtype in CARRIED else 2.0


def link_bytes(architecture: str, cluster: Cluster, dtype: str = "float32") -> float:
    """Through the busier direction of the busiest host's link, for each byte of a worker's payload."""
    hosts, members, racks = cluster.hosts, cluster.per_rack, cluster.racks
    if cluster.workers == 1:
        return 0.0
    if architecture == "ring":
        return _ring(cluster.workers) if hosts > 1 else 0.0
    if hosts == 1:
        return 0.0
    if architecture == "hierarchical":
        return _ring(members) + _ring(racks) / members
    if architecture == "ps":
        servers = cluster.parameter_servers
        return max(1.0, hosts / servers) if cluster.dedicated else (servers - 1 + hosts - 1) / servers
    return wire_bytes(architecture, dtype)


def uplink_bytes(architecture: str, cluster: Cluster, dtype: str = "float32") -> float:
    """Through a rack's link upwards, as link_bytes() of a host's that has that link's share for itself; 0 of a single rack."""
    members, racks, over = cluster.per_rack, cluster.racks, cluster.oversubscription
    if racks == 1 or cluster.workers == 1:
        return 0.0
    if architecture == "ps":  # of each host's payload to the other racks' servers, and of theirs back
        return 2 * over * (racks - 1) / racks
    if architecture == "hierarchical":
        return _ring(members) + over * _ring(racks) / members
    streams = _ring(cluster.workers) if architecture == "ring" else wire_bytes(architecture, dtype)
    return streams * over / members


def levels(cluster: Cluster) -> int:
    """Of switches, one above the other: 1 for up to MOST_PER_SWITCH hosts in one rack."""
    return _levels(cluster.per_rack) + (_levels(cluster.racks) if cluster.racks > 1 else 0)


def rounds(architecture: str, cluster: Cluster) -> int:
    """How many latencies of the link between hosts a sum takes."""
    if cluster.workers == 1 or (cluster.hosts == 1 and architecture != "ring"):
        return 0
    if architecture == "ring":
        return 2 * (cluster.workers - 1) if cluster.hosts > 1 else 0
    if architecture == "hierarchical":
        return 2 * (cluster.per_rack - 1) + 2 * (cluster.racks - 1)
    return 2 if architecture == "ps" else levels(cluster)


def cost(
    architecture: str,
    cluster: Cluster,
    media: Mapping[str, Medium],
    dtype: str = "float32",
    window: Window | None = None,
    processor: Processor | None = None,
) -> Cost:
    """Of one sum. `media`: "ethernet", and "nvlink" or "pcie" where a host has several workers. Raises BadCluster."""
    if cluster.workers == 1:
        return Cost(0.0)
    link = media["ethernet"]
    serial: dict[str, float] = {}
    latency_s = rounds(architecture, cluster) * link.latency_s
    inside = cluster.per_host if architecture != "ring" or cluster.hosts == 1 else 1
    if inside > 1:
        local = media.get("nvlink") or media.get("pcie")
        if local is None:
            raise BadCluster(f"{cluster.per_host} workers per host sum over nvlink or pcie: give the rate of one of them")
        serial[local.name] = _ring(inside) * local.s_per_byte
        latency_s += 2 * (inside - 1) * local.latency_s
    if cluster.hosts == 1:
        return Cost(latency_s, serial, {"link": 0.0})
    if "pcie" in media and (architecture == "ps" or architecture in LANES):
        serial["pcie"] = serial.get("pcie", 0.0) + media["pcie"].s_per_byte
    limits = {"link": link_bytes(architecture, cluster, dtype) * link.s_per_byte}
    if cluster.racks > 1:
        limits["oversubscription"] = uplink_bytes(architecture, cluster, dtype) * link.s_per_byte
    if processor is not None:
        # What the switch's workers compute goes by numbers; the cost was measured with float32.
        numbers = 4 / ITEM_BYTES[dtype] if architecture in LANES else 1.0
        limits["cpu"] = numbers * processor.s_per_byte(cluster.workers)
    if window is not None and architecture in LANES:
        under_way = window.slots * window.payload_bytes
        limits["slots"] = wire_bytes(architecture, dtype) * levels(cluster) * window.rtt_s / under_way
    return Cost(latency_s, serial, limits, link.burst_bytes * link.s_per_byte, 1 / link.efficiency)


def scaled(found: Cost, times: float) -> Cost:
    """One that takes so many times as long."""
    serial, limits = ({name: times * s for name, s in each.items()} for each in (found.serial, found.limits))
    return Cost(times * found.latency_s, serial, limits, times * found.credit_s, times * found.refill, found.overlaps)


def _ring(members: int) -> float:
    return 2 * (members - 1) / members


def _levels(members: int) -> int:
    count = 1
    while members > MOST_PER_SWITCH:
        members = math.ceil(members / MOST_PER_SWITCH)
        count += 1
    return count
