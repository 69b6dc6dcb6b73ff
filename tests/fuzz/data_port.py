"""Fuzzes the switch's UDP ports: noise, damaged packets, strangers, and the member of another job who sends what it likes."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

import numpy as np

from switchsum.host_agent.credentials import Credentials
from switchsum.p4src.layout import HEADER_DTYPE, WIRE_VERSION, Flag, PacketType
from tests.controller.worker import Worker
from tests.fuzz.target import ELEMENTS, FUZZER, Target

_BURST = 200
_LARGEST = 65507  # bytes of a UDP payload over IPv4
_TYPES = [*PacketType, 0, 0xFF]


class DataPort:
    """One step is a burst of datagrams."""

    def __init__(self, target: Target, seed: int, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        self._ports = list(target.ports.values())
        member = Worker(target.controller, Credentials(token=FUZZER))
        stack.callback(member.close)
        joined = member.join("fuzzer's own", 0, 1, slots=8)
        stack.callback(member.client.leave)
        self._own_port = (joined.switch_address, joined.switch_port)
        self._member = member.socket
        self._jobs = [(joined.job, joined.epoch), *((job, epoch) for _, job, epoch, *_ in target.standing["jobs"])]
        self._strangers = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for number, stranger in enumerate(self._strangers, 1):
            stack.enter_context(stranger)
            stranger.bind((f"127.0.0.{number}", 0))

    def step(self) -> None:
        for _ in range(_BURST):
            if self._rng.random() < 0.3:  # as a member may: any slot, phase, tag and flag of its own job
                self._member.sendto(self._packet(*self._jobs[0], 0), self._own_port)
            else:
                opened = self._rng.choice([*self._strangers, self._member])
                opened.sendto(self._datagram(), self._rng.choice(self._ports))
        self._member.setblocking(False)
        try:
            while True:
                self._member.recv(1 << 16)
        except BlockingIOError:
            pass

    def _datagram(self) -> bytes:
        rng = self._rng
        kind = rng.randrange(6)
        if kind == 0:
            return rng.randbytes(rng.choice([0, 1, 23, 24, 25, rng.randrange(2000), _LARGEST]))
        job, epoch = rng.choice(self._jobs)
        packet = bytearray(self._packet(job, epoch + rng.choice([0, 0, 1, -1]), rng.choice([0, 1, 2, 255])))
        if kind == 1:
            return bytes(packet[: rng.randrange(len(packet) + 1)])
        if kind == 2:
            return bytes(packet) + rng.randbytes(rng.choice([1, 4, 1000, _LARGEST - len(packet)]))
        if kind == 3:
            for _ in range(rng.randrange(1, 6)):
                packet[rng.randrange(HEADER_DTYPE.itemsize)] = rng.getrandbits(8)
        return bytes(packet)

    def _packet(self, job: int, epoch: int, worker: int) -> bytes:
        rng = self._rng
        header = np.zeros(1, HEADER_DTYPE)
        fields = {
            "version": WIRE_VERSION,
            "type": rng.choice([PacketType.CONTRIBUTION] * 4 + _TYPES),
            "job": job,
            "epoch": epoch % 2**32,
            "slot": rng.choice([rng.randrange(8), rng.getrandbits(16)]),
            "phase": rng.choice([rng.randrange(4), rng.getrandbits(32)]),
            "tag": rng.choice([1, rng.getrandbits(32)]),
            "exponent": rng.getrandbits(16),
            "worker": worker,
            "flags": rng.choice([0, Flag.WANT_STATUS, 0xFF]),
            "reserved": rng.getrandbits(16),
        }
        for name, value in fields.items():
            header[name] = value
        values = 0 if fields["type"] == PacketType.PROPOSAL and rng.random() < 0.9 else ELEMENTS
        return header.tobytes() + rng.randbytes(4 * values)
