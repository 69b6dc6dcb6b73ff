"""The switches that the conformance cases run on, behind one interface: frames in, frames out, entries, counters.

Each is programmed with what the controller would install (controller/programming.py), so the tables in the tests are the real
ones. A program is committed once; a case starts from a job with a new epoch in slots of its own, which voids what rows hold.
"""

from __future__ import annotations

import select
import socket
import struct
import time
import unittest
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address

from p4.v1 import p4runtime_pb2

from switchsum.controller import programming
from switchsum.controller.fabric import RackFabric, Station
from switchsum.controller.jobs import Application, Attachment, Job, Member
from switchsum.controller.p4names import Entry, Group, Item
from switchsum.controller.pipeline import Build
from switchsum.controller.slots import Demand
from switchsum.controller.switch_session import DELETE, INSERT, MODIFY, SwitchSession
from switchsum.p4src.layout import SERVICE_PORT, SLOTS
from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.tables import Exact
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC, Worker, load_program

PORTS = (1, 2, 3, 4)  # three workers and a bystander
STATIONS = [Worker.at(port) for port in PORTS]
WORKERS = STATIONS[:3]
RACK = RackFabric(PORTS, tuple(Station(w.ip, w.mac, w.port) for w in STATIONS))
JOB = 7
SLOTS_OF_A_JOB = 4
PATIENCE_S = 10.0
ETHERNET_BYTES = 14
_MARK_TYPE = b"\x88\xb6"  # IEEE 802: local experimental EtherType 2

Outputs = list[tuple[int, bytes]]
Counts = dict[tuple[int, ...], tuple[int, int]]  # an entry's key -> packets, bytes


class Unsupported(unittest.SkipTest):
    """A case asks for something that this target cannot do; the text says why. Both pytest and PTF take it for a skip."""


def job_of(workers: list[Worker], slots: range, epoch: int, number: int) -> Job:
    """A complete job as the controller's registry would hold it, the workers ranked in the order given."""
    members = {}
    for rank, worker in enumerate(workers):
        address = str(IPv4Address(worker.ip))
        application = Application("train", rank, len(workers), "", 0, address, worker.udp_port, len(slots), 0)
        members[rank] = Member(
            f"member {rank}", application, Attachment(worker.port, worker.mac, RACK.data_address, SERVICE_PORT)
        )
    demand = Demand(len(slots), len(slots))
    return Job("train", len(workers), slots, number, "", demand, born_at=0.0, epoch=epoch, members=members)


def arp_request(sender: Worker, sender_ip: int, target_ip: int = SWITCH_IP) -> bytes:
    """Who has `target_ip`? Asked by `sender`, which claims to be `sender_ip`."""
    mac = sender.mac.to_bytes(6, "big")
    return (
        b"\xff" * 6 + mac + b"\x08\x06" + struct.pack("!HHBBH6sI6sI", 1, 0x0800, 6, 4, 1, mac, sender_ip, bytes(6), target_ip)
    )


def arp_reply(asker: Worker, asker_ip: int) -> bytes:
    """The switch's answer to arp_request(asker, asker_ip)."""
    own, mac = SWITCH_MAC.to_bytes(6, "big"), asker.mac.to_bytes(6, "big")
    return mac + own + b"\x08\x06" + struct.pack("!HHBBH6sI6sI", 1, 0x0800, 6, 4, 2, own, SWITCH_IP, mac, asker_ip)


class Target(ABC):
    """A programmed switch with ports PORTS and a host, simulated by the tests, at each."""

    reads_registers = False
    shortest_frame_bytes = ETHERNET_BYTES  # shorter ones cannot be sent
    padded_to_bytes = 0  # what a link makes of shorter frames

    def __init__(self, name: str, elements: int) -> None:
        """`elements`: of the program, in each packet."""
        self.name = name
        self.elements = elements
        self._epoch = 100
        self._slot = 40

    @abstractmethod
    def write(self, updates: Iterable[tuple[int, Item]]) -> None:
        """Apply (INSERT | DELETE, item) updates in any order."""

    @abstractmethod
    def inject(self, port: int, frame: bytes) -> None:
        """Send a frame as the host at that port, without waiting for what becomes of it."""

    @abstractmethod
    def collect(self, wait_s: float) -> Outputs:
        """What has come out, after waiting for at least one frame for at most `wait_s`."""

    @abstractmethod
    def entry_counters(self, table: str) -> Counts:
        """The direct counters of all entries of a table."""

    @abstractmethod
    def packets_counted(self, counter: str, index: int) -> int:
        """Packets in one cell of an indirect counter by port."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the switch."""

    @abstractmethod
    def exchange(self, frames: Iterable[tuple[int, bytes]]) -> Outputs:
        """Send (port, frame) pairs in a burst. Returns exactly what left because of them, in order for each port.

        Frames of different ports may overtake each other on their way in.
        """

    def register(self, name: str, index: int) -> tuple[int, int]:
        """Value and bits of a cell. Raises Unsupported."""
        raise Unsupported("registers cannot be read over P4Runtime")

    def registers(self) -> list[str]:
        """Their names. Raises Unsupported."""
        raise Unsupported("registers cannot be read over P4Runtime")

    def padded(self, frame: bytes) -> bytes:
        """The frame as it arrives at the other end of a link. Raises Unsupported for one that no link carries."""
        if len(frame) < self.shortest_frame_bytes:
            raise Unsupported(f"an interface does not send frames shorter than {self.shortest_frame_bytes} bytes")
        return frame.ljust(self.padded_to_bytes, b"\0")

    def new_job(self, workers: list[Worker], number: int = JOB) -> Job:
        """A job that is not installed yet, of an epoch and in slots that no case used before (rows: since the last lap)."""
        self._epoch += 10  # cases count up from theirs, and down by one
        self._slot = self._slot + SLOTS_OF_A_JOB if self._slot + 2 * SLOTS_OF_A_JOB <= SLOTS else 0
        return job_of(workers, range(self._slot, self._slot + SLOTS_OF_A_JOB), self._epoch, number)

    def install(self, job: Job) -> None:
        """Let a job in, in the controller's order."""
        for step in programming.job_steps(job):
            self.write([(INSERT, item) for item in step])

    def remove(self, job: Job) -> None:
        """Take it out again."""
        for step in reversed(programming.job_steps(job)):
            self.write([(DELETE, item) for item in step])


class InProcess(Target):
    """The compiled program, called directly: neither server nor interface."""

    reads_registers = True
    shortest_frame_bytes = 0

    def __init__(self, layout: str, elements: int, dataplane: Dataplane | None = None) -> None:
        """`dataplane`: one with another program than the committed build of this layout and size."""
        super().__init__("in process", elements)
        self.dataplane = dataplane or Dataplane(load_program(layout, elements))
        self._pending: Outputs = []
        self.write([(INSERT, item) for item in programming.fabric_items(RACK, 0.0, 0.0)])

    def write(self, updates: Iterable[tuple[int, Item]]) -> None:
        for kind, item in updates:
            if isinstance(item, Group):
                if kind == DELETE:
                    self.dataplane.multicast_groups.delete(item.number)
                else:
                    self.dataplane.multicast_groups.insert(item.number, sorted(item.replicas))
                continue
            table = self.dataplane.tables[item.table]
            key = tuple(Exact(value) for value in item.key)
            if item.is_default:
                table.set_default(item.action, item.params)
            elif kind == DELETE:
                table.delete(key, 0)
            else:
                table.insert(key, 0, item.action, item.params)

    def close(self) -> None:
        self._pending = []

    def inject(self, port: int, frame: bytes) -> None:
        self._pending += self.dataplane.process(port, self.padded(frame))

    def collect(self, wait_s: float) -> Outputs:
        outputs, self._pending = self._pending, []
        return outputs

    def exchange(self, frames: Iterable[tuple[int, bytes]]) -> Outputs:
        return [output for port, frame in frames for output in self.dataplane.process(port, self.padded(frame))]

    def entry_counters(self, name: str) -> Counts:
        table = self.dataplane.tables[name]
        keys = [entry.key for entry in table.entries()]
        return {tuple(field.value for field in key): table.read_counter(key, 0) for key in keys}  # type: ignore[union-attr]

    def packets_counted(self, counter: str, index: int) -> int:
        return self.dataplane.counters[counter].read(index)[0]

    def register(self, name: str, index: int) -> tuple[int, int]:
        register = self.dataplane.registers[name]
        return register.read(index), register.width

    def registers(self) -> list[str]:
        return list(self.dataplane.registers)


def _ignore(_: object) -> None:
    """A session that is lost shows in the next call."""


def renumbered(item: Item, number: Mapping[int, int]) -> Item:
    """An entry or a group of the cases' ports, for a switch that calls port p number[p]."""
    if isinstance(item, Group):
        return Group(item.number, frozenset((number[port], instance) for port, instance in item.replicas))
    if item.table == programming.WORKERS:
        job, epoch, port, *sender = item.key
        return replace(item, key=(job, epoch, number[port], *sender))
    if item.table in (programming.LOSS_IN, programming.LOSS_OUT):
        return replace(item, key=(number[item.key[0]],))
    if item.action == programming.FORWARD:
        return replace(item, params=(number[item.params[0]],))
    return item


class P4RuntimeTarget(Target):
    """A switch behind P4Runtime and real links; inject() and collect() are the links."""

    def __init__(self, name: str, address: str, device_id: int, build: Build, numbers: Mapping[int, int]) -> None:
        """Commit the program to the switch at this P4Runtime address and give it the fabric's items; close() ends the session.

        `numbers`: what the switch calls PORTS. Raises SwitchError's family.
        """
        super().__init__(name, build.elements)
        self._names = build.names
        self._numbers = numbers
        self._marks = 0
        self._session = SwitchSession(address, device_id, 1, timeout_s=20.0, on_lost=_ignore, on_role=_ignore)
        try:
            self._session.commit(build)
            items = programming.fabric_items(RACK, 0.0, 0.0)
            self.write([(MODIFY if isinstance(item, Entry) and item.is_default else INSERT, item) for item in items])
        except BaseException:
            self._session.close()
            raise

    def write(self, updates: Iterable[tuple[int, Item]]) -> None:
        self._session.write(self._names, [(kind, renumbered(item, self._numbers)) for kind, item in updates])

    def entry_counters(self, table: str) -> Counts:
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = self._names.table_id(table)
        entity.table_entry.counter_data.SetInParent()
        found = [reply.table_entry for reply in self._session.read([entity]) if not reply.table_entry.is_default_action]
        counts = [(entry.counter_data.packet_count, entry.counter_data.byte_count) for entry in found]
        return {self._names.key(entry)[1]: count for entry, count in zip(found, counts, strict=True)}

    def packets_counted(self, counter: str, index: int) -> int:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self._names.counter_id(counter)
        entity.counter_entry.index.index = self._numbers[index]
        [found] = self._session.read([entity])
        return int(found.counter_entry.data.packet_count)

    def exchange(self, frames: Iterable[tuple[int, bytes]]) -> Outputs:
        """Behind the frames of each port go two marks: an ARP request, answered on that port, and a frame that is flooded
        to the others. A switch keeps the order between any two ports, so once both came out nothing more will.
        """
        used = set()
        for port, frame in frames:
            self.inject(port, self.padded(frame))
            used.add(port)
        awaited: Counter[tuple[int, bytes]] = Counter()
        for port in sorted(used):
            awaited.update(self._mark(port))
        outputs: Outputs = []
        deadline = time.monotonic() + PATIENCE_S
        while awaited:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.name}: after {PATIENCE_S:g} s, what was sent behind the frames has not come out of "
                    f"ports {sorted({port for port, _ in awaited})}; it gave {len(outputs)} other frames"
                )
            for output in self.collect(0.1):
                if output in awaited:
                    awaited -= Counter([output])
                else:
                    outputs.append(output)
        return outputs

    def _mark(self, port: int) -> Outputs:
        """Send both marks into a port; returns what must come of them."""
        self._marks += 1
        host = STATIONS[port - 1]
        self.inject(port, self.padded(arp_request(host, self._marks)))
        flooded = self.padded(b"\xff" * 6 + host.mac.to_bytes(6, "big") + _MARK_TYPE + self._marks.to_bytes(8, "big"))
        self.inject(port, flooded)
        reply = self.padded(arp_reply(host, self._marks))
        return [(port, reply), *((other, flooded) for other in PORTS if other != port)]

    def close(self) -> None:
        self._session.close()


class OnInterfaces(P4RuntimeTarget):
    """A switch whose ports are wired to interfaces of this machine."""

    def __init__(
        self,
        name: str,
        address: str,
        device_id: int,
        build: Build,
        numbers: Mapping[int, int],
        sockets: Mapping[int, socket.socket],
    ) -> None:
        """`sockets`: a non-blocking packet socket of the interface at each of PORTS; they stay the caller's."""
        super().__init__(name, address, device_id, build, numbers)
        self._sockets = sockets
        self._port_of = {raw: port for port, raw in sockets.items()}

    def inject(self, port: int, frame: bytes) -> None:
        self._sockets[port].send(frame)

    def collect(self, wait_s: float) -> Outputs:
        ready, _, _ = select.select(list(self._port_of), [], [], wait_s)
        outputs = []
        for raw in ready:
            try:
                while True:
                    outputs.append((self._port_of[raw], raw.recv(65536)))
            except BlockingIOError:
                pass
        return outputs
