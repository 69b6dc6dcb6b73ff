"""BMv2 and the softswitch run the same compiled program: the same packets in, the same packets out, byte for byte.

Both are programmed by the controller's own code over P4Runtime. BMv2 gets its packets through veth pairs in a namespace of its
own (bmv2_topologies/wired_switch.py). Needs root and simple_switch_grpc (SWITCHSUM_BMV2, or on PATH); skipped elsewhere.

Seen red on purpose (2026-11-29): with the lanes build in the softswitch and the wide one in BMv2, random packets differ, since
random values carry from lane to lane in wide words only; hosts never send such values.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchsum.bmv2_topologies.namespaces import what_is_missing
from switchsum.bmv2_topologies.wired_switch import WiredSwitch, programmed
from switchsum.controller import pipeline, programming
from switchsum.controller.fabric import RackFabric, Station
from switchsum.controller.jobs import Application, Job, Member
from switchsum.controller.p4names import Entry
from switchsum.controller.switch_session import DELETE, INSERT, SwitchSession
from switchsum.p4src.layout import Flag, PacketType, RejectReason, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from switchsum.softswitch.daemon import SoftSwitch
from switchsum.softswitch.dataplane import Dataplane
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC, Worker, checksum, frame_of

BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")
MISSING = "simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2" if BMV2 is None else what_is_missing()


def needs_bmv2(test: Any) -> Any:
    """Marks a test or a class of tests that cannot run without BMv2."""
    return pytest.mark.bmv2(pytest.mark.skipif(MISSING is not None, reason=MISSING or "")(test))


ELEMENTS = 64
PORTS = (1, 2, 3, 4)  # three workers and a bystander
STATIONS = [Worker.at(port) for port in PORTS]
WORKERS = STATIONS[:3]
RACK = RackFabric(PORTS, tuple(Station(w.ip, w.mac, w.port) for w in STATIONS))
JOB, EPOCH, SLOTS = 7, 100, range(40, 44)
RANDOM_PACKETS = 500
PATIENCE_S = 10.0

Outputs = list[tuple[int, bytes]]


def the_job() -> Job:
    members = {}
    for rank, worker in enumerate(WORKERS):
        address = ".".join(str(byte) for byte in worker.ip.to_bytes(4, "big"))
        application = Application("train", rank, len(WORKERS), "", 0, address, worker.udp_port, len(SLOTS), ELEMENTS)
        members[rank] = Member(f"member {rank}", application, RACK.attach(address, {}, {}))
    return Job("train", len(WORKERS), SLOTS, JOB, EPOCH, members=members)


class Pair:
    """Both switches with the same program and entries; send() gives one packet to both and compares what comes out."""

    def __init__(self, bmv2: WiredSwitch, softswitch: SoftSwitch) -> None:
        self.build = pipeline.load("wide", ELEMENTS)
        items = programming.fabric_items(RACK, 0.0, 0.0)
        items += [item for step in programming.job_steps(the_job()) for item in step]
        self.sessions: list[SwitchSession] = []
        for address in (bmv2.address, softswitch.grpc_address):
            self.sessions.append(programmed(address, self.build, items))
        self._bmv2 = bmv2
        self._softswitch = softswitch
        self._marks = 0

    @property
    def dataplane(self) -> Dataplane:
        dataplane = self._softswitch.dataplane
        assert dataplane is not None
        return dataplane

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def inject(self, port: int, frame: bytes) -> None:
        """To BMv2 alone."""
        self._bmv2.sockets[port].send(frame)

    def arrived(self, wait_s: float) -> Outputs:
        """What BMv2 sent: everything that is there, after waiting for at least one frame."""
        ports = {raw: port for port, raw in self._bmv2.sockets.items()}
        ready, _, _ = select.select(list(ports), [], [], wait_s)
        outputs = []
        for raw in ready:
            try:
                while True:
                    outputs.append((ports[raw], raw.recv(65536)))
            except BlockingIOError:
                pass
        return outputs

    def send(self, port: int, frame: bytes) -> Outputs:
        """The softswitch's outputs, after BMv2 gave the same.

        An ARP request follows each packet on the same port: BMv2 keeps the order there, so its answer says that the packet
        is dealt with, even if nothing comes of it.
        """
        self._marks += 1
        mark = arp_request(STATIONS[port - 1], sender_ip=self._marks)
        outputs = self.dataplane.process(port, frame)
        expected = outputs + self.dataplane.process(port, mark)
        self.inject(port, frame)
        self.inject(port, mark)
        got: Outputs = []
        end = time.monotonic() + PATIENCE_S
        while len(got) < len(expected) and time.monotonic() < end:
            got += self.arrived(0.1)
        assert sorted(got) == sorted(expected), f"packet on port {port}: {frame.hex()}"
        for each in PORTS:
            assert [f for p, f in got if p == each] == [f for p, f in expected if p == each], "order"
        return outputs

    def counters(self, session: SwitchSession, table: str) -> dict[tuple[int, ...], tuple[int, int]]:
        entity = p4runtime_pb2.Entity()
        entity.direct_counter_entry.table_entry.table_id = self.build.names.table_id(table)
        found = [reply.direct_counter_entry for reply in session.read([entity])]
        return {self.build.names.key(entry.table_entry)[1]: (entry.data.packet_count, entry.data.byte_count) for entry in found}

    def check_counters(self) -> dict[str, dict[tuple[int, ...], int]]:
        """Both count the same, packets and bytes. Returns packets by table and key."""
        found = {}
        for table in (programming.WORKER_VERDICTS, programming.JOB_VERDICTS, programming.REJECTIONS):
            theirs, ours = (self.counters(session, table) for session in self.sessions)
            assert ours == theirs
            found[table] = {key: packets for key, (packets, _) in ours.items()}
        return found


@pytest.fixture(scope="module")
def switches() -> Iterator[tuple[WiredSwitch, SoftSwitch]]:
    with WiredSwitch("bmv2", PORTS, bmv2=str(BMV2)) as bmv2, SoftSwitch(ports=len(PORTS)) as softswitch:
        yield bmv2, softswitch


@pytest.fixture
def pair(switches: tuple[WiredSwitch, SoftSwitch]) -> Iterator[Pair]:
    """Freshly programmed for each test: committing a program empties tables, counters and registers."""
    pair = Pair(*switches)
    yield pair
    pair.close()


def packet(sender: int, **fields: Any) -> bytes:
    defaults: dict[str, Any] = {"job": JOB, "epoch": EPOCH, "worker": sender, "slot": 1, "phase": 1, "tag": 0xABCD}
    defaults["exponent"] = 10 + sender
    if fields.get("kind", PacketType.CONTRIBUTION) == PacketType.CONTRIBUTION:
        defaults["values"] = [1000 * (sender + 1) + i for i in range(ELEMENTS)]
    return frame_of(WORKERS[sender], bytes(SwitchSum(**{**defaults, **fields})))


def arp_request(sender: Worker, sender_ip: int, target_ip: int = SWITCH_IP) -> bytes:
    ethernet = b"\xff" * 6 + sender.mac.to_bytes(6, "big") + b"\x08\x06"
    body = struct.pack("!HHBBH6sI6sI", 1, 0x0800, 6, 4, 1, sender.mac.to_bytes(6, "big"), sender_ip, bytes(6), target_ip)
    return ethernet + body


def echo_request(sender: Worker, payload: bytes, target_ip: int = SWITCH_IP) -> bytes:
    icmp = struct.pack("!BBHHH", 8, 0, 0, 0x1234, 1) + payload + bytes(len(payload) % 2)
    icmp = icmp[:2] + struct.pack("!H", checksum(icmp)) + icmp[4:]
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(icmp), 0, 0x4000, 64, 1, 0, sender.ip, target_ip)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return SWITCH_MAC.to_bytes(6, "big") + sender.mac.to_bytes(6, "big") + b"\x08\x00" + ip + icmp


def foreign(source: int, destination_mac: int, payload: bytes) -> bytes:
    return destination_mac.to_bytes(6, "big") + source.to_bytes(6, "big") + b"\x88\xb5" + payload  # a local experiment's type


@needs_bmv2
class TestSamePackets:
    def test_the_state_machine(self, pair: Pair) -> None:
        assert pair.send(1, packet(0)) == []  # first
        assert pair.send(1, packet(0)) == []  # duplicate
        [(port, status)] = pair.send(1, packet(0, flags=Flag.WANT_STATUS))
        assert (port, Ether(status)[SwitchSum].kind, Ether(status)[SwitchSum].tag) == (1, PacketType.STATUS, 0b001)
        assert pair.send(3, packet(2, exponent=99)) == []  # add
        [(port, mismatch)] = pair.send(2, packet(1, tag=0xEEEE))
        assert (port, Ether(mismatch)[SwitchSum].kind) == (2, PacketType.MISMATCH)
        results = pair.send(2, packet(1))  # complete
        assert sorted(port for port, _ in results) == [1, 2, 3]
        for _, frame in results:
            result = Ether(frame)[SwitchSum]
            assert (result.kind, result.exponent) == (PacketType.RESULT, 99)
            assert result.values == [6000 + 3 * i for i in range(ELEMENTS)]
        [(port, repair)] = pair.send(1, packet(0, values=[5] * ELEMENTS))
        assert (port, Ether(repair)[SwitchSum].flags) == (1, Flag.REPAIR)
        assert Ether(repair)[SwitchSum].values == [6000 + 3 * i for i in range(ELEMENTS)]
        assert pair.send(1, packet(0, phase=3)) == []  # overwrites
        assert pair.send(2, packet(1, phase=1)) == []  # stale
        assert pair.send(2, packet(1, slot=len(SLOTS))) == []
        for worker in range(3):
            agreed = pair.send(worker + 1, packet(worker, kind=PacketType.PROPOSAL, slot=2))
        assert [Ether(frame)[SwitchSum].kind for _, frame in agreed] == [PacketType.AGREEMENT] * 3
        verdicts = pair.check_counters()[programming.JOB_VERDICTS]
        assert verdicts == {
            (JOB, EPOCH, Verdict.CONTRIBUTION): 5,
            (JOB, EPOCH, Verdict.COMPLETION): 2,
            (JOB, EPOCH, Verdict.DUPLICATE): 2,
            (JOB, EPOCH, Verdict.REPAIR): 1,
            (JOB, EPOCH, Verdict.STALE): 1,
            (JOB, EPOCH, Verdict.MISMATCH): 1,
            (JOB, EPOCH, Verdict.SLOT_RANGE): 1,
        }

    def test_rejections(self, pair: Pair) -> None:
        good = packet(0)
        broken = good[:24] + bytes([good[24] ^ 1]) + good[25:]  # the IPv4 checksum's first byte
        for port, frame in [
            (1, packet(0, job=JOB + 1)),
            (1, packet(0, epoch=EPOCH - 1)),
            (2, packet(0)),
            (1, packet(0, worker=1)),
            (1, packet(0, version=0x50)),
            (1, packet(0, kind=PacketType.RESULT)),
            (1, packet(0, values=[1, 2, 3])),
            (1, packet(0, values=[1] * (ELEMENTS + 1))),
            (1, good[:-1]),
            (1, good[:50]),
            (1, broken),
        ]:
            assert pair.send(port, frame) == []
        assert pair.check_counters()[programming.REJECTIONS] == {
            (RejectReason.MALFORMED,): 4,
            (RejectReason.CHECKSUM,): 1,
            (RejectReason.VERSION,): 1,
            (RejectReason.TYPE,): 1,
            (RejectReason.UNKNOWN_JOB,): 2,
            (RejectReason.UNKNOWN_WORKER,): 1,
            (RejectReason.WORKER_INDEX,): 1,
        }

    def test_the_switch_as_host_and_bridge(self, pair: Pair) -> None:
        [(port, reply)] = pair.send(4, arp_request(STATIONS[3], STATIONS[3].ip))
        assert (port, Ether(reply).op, Ether(reply).psrc) == (4, 2, "10.83.0.1")
        for size in (0, 1, 56, 1000):
            [(port, reply)] = pair.send(2, echo_request(STATIONS[1], bytes(i % 256 for i in range(size))))
            again = Ether(reply)
            del again[IP].chksum, again["ICMP"].chksum
            assert (port, bytes(Ether(bytes(again)))) == (2, reply)  # both checksums are right
        known = foreign(STATIONS[0].mac, STATIONS[1].mac, b"to one")
        assert pair.send(1, known) == [(2, known)]
        for destination in (0xFFFFFFFFFFFF, 0x02AABBCCDDEE):
            frame = foreign(STATIONS[0].mac, destination, b"to all")
            assert sorted(pair.send(1, frame)) == [(2, frame), (3, frame), (4, frame)]
        other = arp_request(STATIONS[0], STATIONS[0].ip, target_ip=STATIONS[2].ip)
        assert sorted(pair.send(1, other)) == [(2, other), (3, other), (4, other)]
        assert UDP in Ether(packet(0))

    def test_random_packets(self, pair: Pair) -> None:
        """What matters is that all branches come up: the counters at the end say so."""
        rng = random.Random(20261129)
        rounds = [2] * len(SLOTS)
        for _number in range(RANDOM_PACKETS):
            port, frame, slot = random_packet(rng, rounds)
            outputs = pair.send(port, frame)
            if slot is not None and len(outputs) == 3:
                rounds[slot] += 1
        counted = pair.check_counters()
        verdicts = counted[programming.JOB_VERDICTS]
        assert all(verdicts[JOB, EPOCH, verdict] for verdict in Verdict), verdicts
        rejections = counted[programming.REJECTIONS]
        assert all(rejections[reason,] for reason in RejectReason), rejections

    @pytest.mark.parametrize("side", ["in", "out"])
    def test_the_drop_simulator(self, pair: Pair, side: str) -> None:
        """Their dice differ, the shares and the counters do not."""
        lossy, clean = (3, 1) if side == "in" else (1, 3)
        table, action, counter = (
            (programming.LOSS_IN, programming.SET_LOSS_IN, programming.DROPPED_IN)
            if side == "in"
            else (programming.LOSS_OUT, programming.SET_LOSS_OUT, programming.DROPPED_OUT)
        )
        entry = Entry(table, (lossy,), action, (programming.loss_threshold(0.5),))
        for session in pair.sessions:
            session.write(pair.build.names, [(INSERT, entry)])
        frames = [foreign(STATIONS[2].mac, STATIONS[0].mac, struct.pack("!I", i)) for i in range(200)]
        got: list[bytes] = []
        for frame in frames:  # one at a time: in a burst BMv2 leaves frames lying until others follow
            pair.inject(3, frame)
            pair.inject(4, arp_request(STATIONS[3], STATIONS[3].ip))
            end = time.monotonic() + PATIENCE_S
            answered = False
            while not answered and time.monotonic() < end:
                outputs = pair.arrived(0.1)
                got += [each for port, each in outputs if port == 1]
                answered = any(port == 4 for port, _ in outputs)
        end = time.monotonic() + PATIENCE_S
        while len(got) + dropped(pair, pair.sessions[0], counter, lossy) < len(frames) and time.monotonic() < end:
            got += [frame for port, frame in pair.arrived(0.1) if port == 1]
        got += [frame for port, frame in pair.arrived(0.1) if port == 1]
        ours = [frame for each in frames for _, frame in pair.dataplane.process(3, each)]
        for session, passed in zip(pair.sessions, (got, ours), strict=True):
            lost = dropped(pair, session, counter, lossy)
            assert 60 <= lost <= 140  # beyond five standard deviations of 200 fair coins
            assert len(passed) + lost == len(frames)
            assert set(passed) <= set(frames)
            assert passed == sorted(passed)
            assert dropped(pair, session, counter, clean) == 0
        for session in pair.sessions:
            session.write(pair.build.names, [(DELETE, entry)])
        assert pair.send(3, frames[0]) == [(1, frames[0])]


def dropped(pair: Pair, session: SwitchSession, counter: str, port: int) -> int:
    entity = p4runtime_pb2.Entity()
    entity.counter_entry.counter_id = pair.build.names.counter_id(counter)
    entity.counter_entry.index.index = port
    [found] = session.read([entity])
    return int(found.counter_entry.data.packet_count)


def random_packet(rng: random.Random, rounds: list[int]) -> tuple[int, bytes, int | None]:
    """(port, frame, slot of a member's packet). `rounds`: the phase each slot has reached."""
    worker = rng.randrange(3)
    slot = rng.randrange(len(rounds))
    phase = rounds[slot] + rng.choices([0, -1, -2, 2], [16, 3, 2, 1])[0]
    fields: dict[str, Any] = {
        "slot": slot,
        "phase": phase % 2**32,
        "tag": 0x1000 + phase if rng.random() < 0.95 else rng.getrandbits(32),
        "exponent": rng.getrandbits(16),
        "flags": rng.choice([0, 0, Flag.WANT_STATUS, 0xFF]),
        "reserved": rng.getrandbits(16),
    }
    if rng.random() < 0.15:
        fields["kind"] = PacketType.PROPOSAL
    else:
        fields["values"] = [rng.getrandbits(32) for _ in range(ELEMENTS)]
    kind = rng.choices(["member", "field", "bytes", "port", "cut", "longer", "foreign", "host", "noise"], [60, *[6] * 8])[0]
    port = worker + 1
    if kind == "field":
        name, bits = rng.choice([("version", 8), ("job", 1), ("epoch", 7), ("worker", 2), ("slot", 16), ("kind", 8)])
        fields[name] = rng.getrandbits(bits)
        if name == "kind":
            fields["values"] = fields.get("values", [])
    frame = packet(worker, **fields)
    if kind == "member":
        return port, frame, slot
    if kind == "bytes":
        damaged = bytearray(frame)
        damaged[rng.randrange(66)] ^= 1 << rng.randrange(8)
        frame = bytes(damaged)
    elif kind == "port":
        port = rng.choice(PORTS)
    elif kind == "cut":
        frame = frame[: rng.randrange(14, len(frame))]
    elif kind == "longer":
        frame += rng.randbytes(rng.randrange(1, 60))
    elif kind == "foreign":
        destination = rng.choice([STATIONS[rng.randrange(4)].mac, 0xFFFFFFFFFFFF, rng.getrandbits(48)])
        frame = foreign(STATIONS[worker].mac, destination, rng.randbytes(rng.randrange(0, 1400)))
    elif kind == "host":
        target = rng.choice([SWITCH_IP, SWITCH_IP, SWITCH_IP + 1])
        payload = rng.randbytes(rng.randrange(200))
        frame = rng.choice(
            [arp_request(STATIONS[worker], rng.getrandbits(32), target), echo_request(STATIONS[worker], payload, target)]
        )
        frame = frame[: rng.choice([len(frame), rng.randrange(14, len(frame))])]
    elif kind == "noise":
        frame = frame[: rng.choice([12, 14, 23, 34, 42])] + rng.randbytes(rng.randrange(2, 400))
    return port, frame, None


SHELL_SESSION = """
import sys
import p4runtime_sh.shell as sh

address, info, config = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(info, config))
for table in sorted(table.name for table in sh.P4Objects(sh.P4Type.table)):
    print("table", table, len(list(sh.TableEntry(table).read())))
station = sh.TableEntry("SwitchIngress.forwarding.stations")(action="SwitchIngress.forwarding.forward")
station.match["mac"] = "02:00:00:00:00:01"
station.action["port"] = "1"
station.insert()
for found in sh.TableEntry("SwitchIngress.forwarding.stations").read():
    print("entry", *str(found).split())
sh.teardown()
"""


def shell_session(address: str) -> list[str]:
    """A session of p4runtime-shell that commits the wide build, lists its tables and reads an entry back."""
    stem = pipeline.build_folder() / f"switchsum_wide_{ELEMENTS}"
    files = (f"{stem}.p4info.txtpb", f"{stem}.json")
    assert all(Path(name).exists() for name in files)
    done = subprocess.run(
        [sys.executable, "-c", SHELL_SESSION, address, *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("table", "entry")]


def test_a_shell_lists_the_softswitchs_tables() -> None:
    with SoftSwitch(ports=1) as softswitch:
        lines = shell_session(softswitch.grpc_address)
    assert lines[:-1] == [f"table {table} 0" for table in sorted(programming.TABLES)]
    assert "SwitchIngress.forwarding.stations" in lines[-1]


@needs_bmv2
def test_a_shell_lists_the_same_tables_on_both_switches() -> None:
    with WiredSwitch("bmv2", (), bmv2=str(BMV2)) as bmv2, SoftSwitch(ports=1) as softswitch:
        assert shell_session(bmv2.address) == shell_session(softswitch.grpc_address)
