"""Two real workers sum through the real softswitch over UDP, while an attacker on the same machine sends what it can think of.

The program's rules alone, on every target that runs it: tests/protocol/cases/spoofing.py.
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.job_client import JobClient
from switchsum.p4src.layout import HEADER_DTYPE, WIRE_VERSION, PacketType, RejectReason
from switchsum.protos import job_pb2 as pb
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import ELEMENTS, make_controller
from tests.controller.test_service import eventually

ROUNDS = 40
SIZE = 5000  # numbers in each sum: about 80 packets a worker
PACKETS_A_ROUND = 120
CAPTURED = 400  # contributions that the attacker remembers
MEMORY_BOUND = 24 << 20  # bytes; one copy of what the attacker sends would be more
_SO_ATTACH_FILTER = 26  # Python's socket module has no name for it
INT32 = npt.NDArray[np.int32]

Attack = tuple[socket.socket, tuple[str, int], bytes, "RejectReason | None"]  # None: it counts as a verdict of the job


@dataclass
class World:
    """Two agents of one job, side by side in this process, and where they are."""

    agents: list[Agent]
    report: pb.JobReport
    ports: list[tuple[str, int]]  # the switch's UDP sockets, in the workers' order

    @classmethod
    def join(cls, controller: ControllerDaemon, switch: SoftSwitch, name: str) -> World:
        agents: dict[int, Agent] = {}

        def join(rank: int) -> None:
            agents[rank] = Agent.join(Terms(controller=controller.address, job_name=name, rank=rank, world_size=2))

        both(join)
        report = next(job for job in inspect(controller).jobs if job.job_name == name)
        ports = [switch.port_addresses[worker.switch_port] for worker in report.workers]
        return cls([agents[0], agents[1]], report, ports)

    def sum(self, sources: list[INT32]) -> list[INT32]:
        """All workers' results of one collective."""
        targets = [np.zeros_like(source) for source in sources]

        def work(rank: int) -> None:
            failures: list[Exception] = []
            done = threading.Event()

            def finished(error: Exception | None) -> None:
                failures.extend([error] if error else [])
                done.set()

            self.agents[rank].all_reduce(sources[rank], targets[rank], "spoofed sum", finished)
            assert done.wait(60.0)
            assert failures == []

        both(work)
        return targets

    def sent(self) -> int:
        """Packets that both have sent so far."""
        return sum(agent.counters()["packets_sent"] for agent in self.agents)

    def close(self) -> None:
        both(lambda rank: self.agents[rank].close())


def both(work: Callable[[int], None]) -> None:
    """Run for rank 0 and 1 at once; raises what they raise."""
    failures: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def inspect(controller: ControllerDaemon) -> pb.InspectReply:
    client = JobClient(controller.address)
    try:
        return client.inspect()
    finally:
        client.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Tap:
    """What the workers of a job send to the switch, off the loopback interface. Root only."""

    def __init__(self, world: World) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        _attach(self._socket, [port for _, port in world.ports])
        self._socket.bind(("lo", 0x0800))
        self._socket.setblocking(False)
        self._report = world.report
        self._ways = {
            (worker.data_port, port): worker.rank for worker, (_, port) in zip(world.report.workers, world.ports, strict=True)
        }

    def contributions(self) -> list[bytes]:
        """The good ones that came by since the last call; segments of one send are cut apart."""
        found = []
        size = HEADER_DTYPE.itemsize + 4 * ELEMENTS
        while True:
            try:
                frame = self._socket.recv(1 << 16)
            except BlockingIOError:
                return found
            start = (frame[0] & 15) * 4
            if frame[9] != socket.IPPROTO_UDP or frame[12:16] != b"\x7f\0\0\1":
                continue
            rank = self._ways.get(struct.unpack_from("!HH", frame, start))
            data = frame[start + 8 :]
            packets = (data[at : at + size] for at in range(0, len(data), size))
            found += [packet for packet in packets if rank is not None and len(packet) == size and self._is_good(packet, rank)]

    def _is_good(self, packet: bytes, rank: int) -> bool:
        """Not one of the attacker's, who uses the workers' sockets as well, with one field that is wrong."""
        [header] = np.frombuffer(packet[: HEADER_DTYPE.itemsize], HEADER_DTYPE)
        expected = (WIRE_VERSION, PacketType.CONTRIBUTION, self._report.job, self._report.epoch, rank)
        found = tuple(int(header[name]) for name in ("version", "type", "job", "epoch", "worker"))
        return found == expected and int(header["slot"]) < self._report.slots

    def close(self) -> None:
        self._socket.close()


def _attach(opened: socket.socket, ports: list[int]) -> None:
    """Let through what goes to these UDP ports alone: others use the loopback interface as well, and would fill the buffer."""
    count = len(ports)
    program = [(0x30, 0, 0, 9), (0x15, 0, count + 2, socket.IPPROTO_UDP)]  # load the protocol; if it is not UDP, refuse
    program += [(0xB1, 0, 0, 0), (0x48, 0, 0, 2)]  # X: length of the IPv4 header; load the destination port behind it
    program += [(0x15, count - number, 0, port) for number, port in enumerate(ports)]
    program += [(0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF)]  # refuse; accept
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(code)))


class Attacker:
    """Has sockets of its own at loopback addresses, and the workers' own, which forging would come to."""

    def __init__(self, world: World, seed: int, past: list[bytes], stack: ExitStack) -> None:
        """`past`: contributions of an epoch that is over."""
        self._rng = random.Random(seed)
        self._world = world
        self._job, self._epoch = world.report.job, world.report.epoch
        self._workers = [agent._queue._transport._socket for agent in world.agents]
        addresses = [("127.0.0.1", 0), *(("127.0.0.2", worker.data_port) for worker in world.report.workers), ("127.0.0.3", 0)]
        self._strangers = []
        for address in addresses:
            opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            opened.bind(address)
            self._strangers.append(opened)
        self._past = past
        self.captured: list[bytes] = []  # contributions of the present epoch

    def poison(self, rank: int, **fields: int) -> bytes:
        """A contribution that is good but for these fields, in any slot and phase."""
        header = np.zeros(1, HEADER_DTYPE)
        defaults = {
            "version": WIRE_VERSION,
            "type": PacketType.CONTRIBUTION,
            "job": self._job,
            "epoch": self._epoch,
            "worker": rank,
            "slot": self._rng.randrange(self._world.report.slots),
            "phase": self._rng.choice([self._rng.randrange(1, 9), self._rng.getrandbits(32)]),
            "tag": self._rng.getrandbits(32),
            "exponent": 0xFFFF,
        }
        for name, value in (defaults | fields).items():
            header[name] = value
        return header.tobytes() + self._rng.randbytes(4 * ELEMENTS)

    def attacks(self) -> Iterator[Attack]:
        """One of each kind, for both workers."""
        rng = self._rng
        for rank, port in enumerate(self._world.ports):
            own, other = self._workers[rank], self._world.ports[1 - rank]
            stranger = rng.choice(self._strangers)
            yield stranger, port, self.poison(rank), RejectReason.UNKNOWN_WORKER
            yield own, other, self.poison(rank), RejectReason.UNKNOWN_WORKER
            yield own, port, self.poison(rank, epoch=self._epoch - rng.randrange(1, 5)), RejectReason.UNKNOWN_JOB
            yield own, port, self.poison(rank, epoch=self._epoch + rng.randrange(1, 5)), RejectReason.UNKNOWN_JOB
            yield own, port, self.poison(rank, job=self._job % 255 + 1), RejectReason.UNKNOWN_JOB
            yield own, port, self.poison(rank, worker=rng.choice([1 - rank, 2, 255])), RejectReason.WORKER_INDEX
            yield own, port, self.poison(rank, version=rng.choice([0, 0x50, 0x52, 0xFF])), RejectReason.VERSION
            yield own, port, self.poison(rank, type=rng.choice([0, 3, PacketType.RESULT, 0xFF])), RejectReason.TYPE
            whole = self.poison(rank)
            yield own, port, whole[: rng.randrange(1, len(whole))], RejectReason.MALFORMED
            yield stranger, port, whole + rng.randbytes(rng.choice([1, 4, 400, 8000])), RejectReason.MALFORMED
            yield own, port, self.poison(rank, slot=self._world.report.slots + rng.randrange(1000)), None
            if self.captured:
                copy = rng.choice(self.captured)
                yield stranger, port, copy, RejectReason.UNKNOWN_WORKER
                if copy[HEADER_DTYPE.fields["worker"][1]] == rank:  # type: ignore[index]
                    yield own, port, copy, None
            yield rng.choice([own, stranger]), port, rng.choice(self._past), RejectReason.UNKNOWN_JOB
        for worker in self._world.report.workers:  # a worker's socket takes from the switch alone
            forged = self.poison(worker.rank, type=PacketType.RESULT)
            yield rng.choice(self._strangers), ("127.0.0.1", worker.data_port), forged, None

    def send(self, packets: int) -> Counter[RejectReason | None]:
        """What must be counted for it."""
        sent: Counter[RejectReason | None] = Counter()
        ports = {port for _, port in self._world.ports}
        while packets > 0:
            for opened, address, data, reason in self.attacks():
                opened.sendto(data, address)
                packets -= 1
                if address[1] in ports:
                    sent[reason] += 1
        return sent


def rejected(controller: ControllerDaemon) -> Counter[str]:
    return Counter(dict(inspect(controller).rejected))


@pytest.fixture
def controller(switch: SoftSwitch) -> Iterator[ControllerDaemon]:
    with make_controller(switch) as controller:
        yield controller


@pytest.mark.skipif(os.geteuid() != 0, reason="capturing packets on loopback needs root")
@pytest.mark.parametrize("seed", [1, 2])
def test_spoofed_packets_enter_no_sum(controller: ControllerDaemon, switch: SoftSwitch, seed: int) -> None:
    with ExitStack() as stack:
        numbers = np.random.default_rng(seed)

        def round_of(world: World) -> None:
            sources = [numbers.integers(-(2**29), 2**29, SIZE, dtype=np.int32) for _ in range(2)]
            for target in world.sum(sources):
                np.testing.assert_array_equal(target, sources[0] + sources[1])

        past = World.join(controller, switch, "past")
        with closing(Tap(past)) as tap:
            round_of(past)
            captured = tap.contributions()
        past.close()
        world = World.join(controller, switch, "present")
        stack.callback(world.close)
        tap = stack.enter_context(closing(Tap(world)))
        attacker = Attacker(world, seed, captured, stack)
        assert captured
        before = rejected(controller)
        sent: Counter[RejectReason | None] = Counter()
        memory = 0
        for number in range(ROUNDS):
            if number == ROUNDS // 4:
                memory = resident_bytes()
            attack = threading.Thread(target=lambda: sent.update(attacker.send(PACKETS_A_ROUND)))
            attack.start()
            round_of(world)
            attack.join()
            attacker.captured = (attacker.captured + tap.contributions())[-CAPTURED:]
        growth = resident_bytes() - memory
        round_of(world)
        expected = Counter({reason.name: packets for reason, packets in sent.items() if reason is not None})
        eventually(lambda: rejected(controller) - before == expected)
        assert set(expected) == {reason.name for reason in RejectReason} - {RejectReason.CHECKSUM.name}
        # Every packet of the job is in the tally: the workers' own, and those that were sent in their names.
        counted = next(job for job in inspect(controller).jobs if job.job_name == "present").verdicts
        assert sum(counted.values()) == world.sent() + sent[None]
        assert counted["SLOT_RANGE"] >= ROUNDS
        assert growth < MEMORY_BOUND
