"""Seeded packets of every sort that can reach a switch: valid, stale, duplicate, damaged, cut, of strangers, of others.

They come in bursts into one port each: between ports the order of arrival is not defined, within one it is.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from switchsum.controller.jobs import Job
from switchsum.p4src.layout import SERVICE_PORT, Flag, PacketType
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC, Worker, checksum, frame_of
from tests.protocol.targets import ETHERNET_BYTES, PORTS, STATIONS, Outputs, arp_request

LARGEST_FRAME_BYTES = ETHERNET_BYTES + 1500
_BURST = 24  # packets at most
_KINDS = {"member": 60, "field": 6, "bytes": 6, "stranger": 6, "cut": 6, "longer": 6, "foreign": 6, "host": 6, "noise": 6}
Place = tuple[int, int]  # index of a job, slot
_VLAN_TYPES = (b"\x81\x00", b"\x88\xa8")


def echo_request(sender: Worker, payload: bytes, target_ip: int) -> bytes:
    """A ping of `target_ip`, sent to the switch's MAC address."""
    icmp = struct.pack("!BBHHH", 8, 0, 0, 0x1234, 1) + payload + bytes(len(payload) % 2)
    icmp = icmp[:2] + struct.pack("!H", checksum(icmp)) + icmp[4:]
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(icmp), 0, 0x4000, 64, 1, 0, sender.ip, target_ip)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return SWITCH_MAC.to_bytes(6, "big") + sender.mac.to_bytes(6, "big") + b"\x08\x00" + ip + icmp


def foreign(source: int, destination: int, payload: bytes) -> bytes:
    """A frame of a protocol that the program does not know, between MAC addresses."""
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + b"\x88\xb5" + payload


class RandomPackets:
    """An endless source. It follows the phases of the jobs' slots from what it is told left the switch."""

    def __init__(self, seed: int, jobs: list[Job], elements: int) -> None:
        """`jobs`: installed, the workers of each those at the first ports; `elements` of the program."""
        self._rng = random.Random(seed)
        self._jobs = jobs
        self._elements = elements
        self._phases = [[2] * len(job.slots) for job in jobs]

    def burst(self) -> tuple[int, list[tuple[bytes, Place]]]:
        """(port, [(frame, slot that it may have been sent to)]). For each frame call left()."""
        port = self._rng.choices(PORTS, [3, 3, 3, 1])[0]
        return port, [self._packet(port) for _ in range(self._rng.randrange(1, _BURST + 1))]

    def left(self, place: Place, outputs: Outputs) -> None:
        """Tell what left because of a frame: a slot whose sum went to all workers goes on to its next phase."""
        job, slot = place
        service = [frame for _, frame in outputs if frame[36:38] == SERVICE_PORT.to_bytes(2, "big")]
        if len(service) == self._jobs[job].world_size:
            self._phases[job][slot] += 1

    def _packet(self, port: int) -> tuple[bytes, Place]:
        while True:
            frame, place = self._draw(port)
            # The kernel takes VLAN tags off frames before a packet socket sees them, at both ends of a link.
            if frame[12:14] not in _VLAN_TYPES:
                return frame[:LARGEST_FRAME_BYTES], place

    def _draw(self, port: int) -> tuple[bytes, Place]:
        rng = self._rng
        kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        number = rng.randrange(len(self._jobs))
        job = self._jobs[number]
        workers = job.world_size
        worker = port - 1 if port <= workers and kind != "stranger" else rng.randrange(workers)
        fields, slot = self._fields(self._phases[number])
        if kind == "field":
            name, bits = rng.choice([("version", 8), ("job", 1), ("epoch", 7), ("worker", 2), ("slot", 16), ("kind", 8)])
            fields[name] = rng.getrandbits(bits)
            if name == "kind":
                fields["values"] = fields.get("values", [])
        defaults = {"job": job.number, "epoch": job.epoch, "worker": worker}
        host = STATIONS[port - 1] if kind in ("foreign", "host") else STATIONS[worker]
        frame = frame_of(host, bytes(SwitchSum(**{**defaults, **fields})))
        if kind == "bytes":
            damaged = bytearray(frame)
            damaged[rng.randrange(66)] ^= 1 << rng.randrange(8)
            frame = bytes(damaged)
        elif kind == "cut":
            frame = frame[: rng.randrange(ETHERNET_BYTES, len(frame))]
        elif kind == "longer":
            frame += rng.randbytes(rng.randrange(1, 60))
        elif kind == "foreign":
            destination = rng.choice([rng.choice(STATIONS).mac, 0xFFFFFFFFFFFF, rng.getrandbits(48)])
            frame = foreign(host.mac, destination, rng.randbytes(rng.randrange(0, 1400)))
        elif kind == "host":
            target = rng.choice([SWITCH_IP, SWITCH_IP, SWITCH_IP + 1])
            ping = echo_request(host, rng.randbytes(rng.randrange(200)), target)
            frame = rng.choice([arp_request(host, rng.getrandbits(32), target), ping])
            frame = frame[: rng.choice([len(frame), rng.randrange(ETHERNET_BYTES, len(frame))])]
        elif kind == "noise":
            frame = frame[: rng.choice([12, 14, 23, 34, 42])] + rng.randbytes(rng.randrange(2, 400))
        return frame, (number, slot)

    def _fields(self, phases: list[int]) -> tuple[dict[str, Any], int]:
        """A packet of one of the slots, mostly of the phase that the slot is in; and the slot."""
        rng = self._rng
        slot = rng.randrange(len(phases))
        if rng.random() < 0.01:
            # Damage may have taken a row far ahead, where all that its slot's phase sends is stale: jumps free it.
            phases[slot] += rng.choice([1, 2, rng.getrandbits(30)])
        phase = (phases[slot] + rng.choices([0, -1, -2], [16, 2, 1])[0]) % 2**32
        fields: dict[str, Any] = {
            "slot": slot,
            "phase": phase,
            "tag": phase ^ 0x1000 if rng.random() < 0.95 else rng.getrandbits(32),
            "exponent": rng.getrandbits(16),
            "flags": rng.choice([0, 0, Flag.WANT_STATUS, 0xFF]),
            "reserved": rng.getrandbits(16),
        }
        if rng.random() < 0.15:
            fields["kind"] = PacketType.PROPOSAL
        else:
            fields["values"] = [rng.getrandbits(32) for _ in range(self._elements)]
        return fields, slot
