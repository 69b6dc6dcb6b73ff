"""The compiled switch program, called directly: packets in, packets out, on any clock.

What the controller would install over P4Runtime is put into the tables here, so that protocol tests need no server.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from dataclasses import dataclass
from pathlib import Path

from switchsum.p4src.layout import SERVICE_PORT, RejectReason, Verdict
from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.program import Program
from switchsum.softswitch.tables import Exact

BUILD = Path(__file__).resolve().parents[2] / "p4src" / "build"

SWITCH_MAC = 0x025353000000
SWITCH_IP = int(ipaddress.IPv4Address("10.83.0.1"))
FLOOD_GROUP = 0x7FFF

JOBS = "SwitchIngress.service.membership.jobs"
WORKERS = "SwitchIngress.service.membership.workers"
WORKER_VERDICTS = "SwitchIngress.service.tally.worker_verdicts"
JOB_VERDICTS = "SwitchIngress.service.tally.job_verdicts"
REJECTIONS = "SwitchIngress.service.tally.rejections"
ADDRESSES = "SwitchIngress.own_address.addresses"
STATIONS = "SwitchIngress.forwarding.stations"
PEERS = "SwitchEgress.addressing.peers"
LOSS_IN = "SwitchIngress.drop_simulator.loss"
LOSS_OUT = "SwitchEgress.drop_simulator.loss"


@functools.cache
def load_program(layout: str, elements: int) -> Program:
    """The committed build of p4src/v1model for one way to add values and one packet size."""
    return Program.load(BUILD / f"switchsum_{layout}_{elements}.json")


@dataclass(frozen=True)
class Worker:
    """Where one worker of a job sits."""

    port: int
    ip: int
    udp_port: int
    mac: int

    @classmethod
    def at(cls, port: int, udp_port: int = 40000) -> Worker:
        """The worker behind a switch port, addressed after it."""
        return cls(port, int(ipaddress.IPv4Address("10.83.1.0")) + port, udp_port, 0x020000000000 + port)


def checksum(data: bytes) -> int:
    """Internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@functools.lru_cache(maxsize=4096)
def _headers(worker: Worker, length: int, destination_port: int) -> bytes:
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + length, 0, 0x4000, 64, 17, 0, worker.ip, SWITCH_IP)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = struct.pack("!HHHH", worker.udp_port, destination_port, 8 + length, 0)
    return SWITCH_MAC.to_bytes(6, "big") + worker.mac.to_bytes(6, "big") + b"\x08\x00" + ip + udp


def frame_of(worker: Worker, payload: bytes, destination_port: int = SERVICE_PORT) -> bytes:
    """The Ethernet frame that carries a worker's datagram to the switch."""
    return _headers(worker, len(payload), destination_port) + payload


class SwitchUnderTest:
    """A Dataplane with the switch's own address, and jobs put in and taken out as the controller does."""

    def __init__(self, layout: str = "lanes", elements: int = 64, seed: int = 0, program: Program | None = None) -> None:
        """`program`: another one than the committed build of this layout and size."""
        self.elements = elements
        self.dataplane = Dataplane(program or load_program(layout, elements), seed=seed)
        self.reset()

    def reset(self) -> None:
        """Everything as after power-on, own address and rejection counters installed."""
        self.dataplane.reset_state()
        tables = self.dataplane.tables
        tables[ADDRESSES].insert((Exact(SWITCH_IP),), 0, "SwitchIngress.own_address.own", (SWITCH_MAC,))
        for reason in RejectReason:
            tables[REJECTIONS].insert((Exact(reason),), 0, "SwitchIngress.service.tally.count_rejected", ())

    def install_job(self, job: int, epoch: int, workers: list[Worker], slot_base: int, slots: int, group: int) -> None:
        """Let the workers in, numbered in the order given; the job itself last."""
        tables = self.dataplane.tables
        key = (Exact(job), Exact(epoch))
        for index, worker in enumerate(workers):
            tables[PEERS].insert(
                (*key, Exact(index)), 0, "SwitchEgress.addressing.to_worker", (worker.mac, worker.ip, worker.udp_port)
            )
            tables[WORKERS].insert(
                (*key, Exact(worker.port), Exact(worker.ip), Exact(worker.udp_port)),
                0,
                "SwitchIngress.service.membership.admit_worker",
                (index, 1 << index),
            )
            for verdict in Verdict:
                tables[WORKER_VERDICTS].insert(
                    (*key, Exact(index), Exact(verdict)), 0, "SwitchIngress.service.tally.count_worker", ()
                )
        for verdict in Verdict:
            tables[JOB_VERDICTS].insert((*key, Exact(verdict)), 0, "SwitchIngress.service.tally.count_job", ())
        self.dataplane.multicast_groups.insert(group, [(worker.port, i + 1) for i, worker in enumerate(workers)])
        full = (1 << len(workers)) - 1
        tables[JOBS].insert(key, 0, "SwitchIngress.service.membership.admit_job", (slot_base, slots, full, group))

    def remove_job(self, job: int, epoch: int, group: int) -> None:
        """Take a job out again; its packets are strangers from here on."""
        tables = self.dataplane.tables
        for name in (JOBS, WORKERS, WORKER_VERDICTS, JOB_VERDICTS, PEERS):
            for entry in tables[name].entries():
                if entry.key[:2] == (Exact(job), Exact(epoch)):
                    tables[name].delete(entry.key, 0)
        self.dataplane.multicast_groups.delete(group)

    def process(self, port: int, frame: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """One frame through the whole switch: [(egress port, frame)]."""
        return self.dataplane.process(port, frame, now_us)

    def verdicts(self, job: int, epoch: int, worker: int) -> dict[Verdict, int]:
        """Packets of one worker by verdict."""
        table = self.dataplane.tables[WORKER_VERDICTS]
        return {
            verdict: packets
            for verdict in Verdict
            if (packets := table.read_counter((Exact(job), Exact(epoch), Exact(worker), Exact(verdict)), 0)[0])
        }

    def rejections(self) -> dict[RejectReason, int]:
        """Packets that reached no slot, by reason."""
        table = self.dataplane.tables[REJECTIONS]
        return {reason: packets for reason in RejectReason if (packets := table.read_counter((Exact(reason),), 0)[0])}
