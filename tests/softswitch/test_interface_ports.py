"""Switch ports that are network interfaces: real veth pairs, the kernel's own offloads, and what the program sees of them."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from switchsum.bmv2_topologies import namespaces
from switchsum.softswitch.interface_ports import InterfacePorts
from switchsum.softswitch.packets import Arrivals, Departures

MISSING = namespaces.what_is_missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"veth pairs need a network namespace, but {MISSING}")

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
ETH_P_ALL = 3
PATIENCE_S = 10.0
Frames = list[tuple[int, bytes]]


@dataclass
class Program:
    """Stands where the compiled program stands: keeps what came in, and sends what `reply` says."""

    reply: Callable[[Frames], Frames] = lambda frames: []
    seen: Frames = field(default_factory=list)

    def forward(self, arrivals: Arrivals, now_us: int) -> Departures:
        came = arrivals.frames()
        self.seen += came
        return Departures.of(self.reply(came))


@dataclass
class Rig:
    """Two hosts, 10.9.0.1 and 10.9.0.2, at ports 1 and 2. Each host's interface lies in a namespace of its own."""

    name: str
    program: Program
    ports: InterfacePorts

    def host(self, number: int) -> str:
        return f"{self.name}-{number}"

    def udp(self, number: int) -> socket.socket:
        def opened() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.settimeout(PATIENCE_S)
            made.bind((f"10.9.0.{number}", 7000))
            return made

        return namespaces.inside(self.host(number), opened)

    def raw(self, number: int) -> socket.socket:
        def opened() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            made.bind(("eth0", ETH_P_ALL))
            made.settimeout(PATIENCE_S)
            return made

        return namespaces.inside(self.host(number), opened)

    def see(self, count: int) -> Frames:
        """Wait until the program has seen so many IPv4 UDP frames."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := [each for each in self.program.seen if Ether(each[1]).haslayer(UDP)]) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} frames; {self.ports.statistics}"
            time.sleep(0.01)
        return found


MACS = {1: "02:00:00:00:00:01", 2: "02:00:00:00:00:02"}


@pytest.fixture
def make_rig(request: pytest.FixtureRequest) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(offload: bool = True, off: tuple[str, ...] = ("tso",)) -> Rig:
        name = f"switchsum-ports-{os.getpid()}-{len(made)}"
        namespaces.add(name)
        program = Program()
        for number in (1, 2):
            host = f"{name}-{number}"
            namespaces.add(host)
            namespaces.ip(name, [f"link add port{number} type veth peer name eth0 netns {host} address {MACS[number]}"])
            namespaces.ip(name, [f"link set port{number} up"])
            neighbour = f"neigh add 10.9.0.{3 - number} lladdr {MACS[3 - number]} dev eth0"
            namespaces.ip(host, ["link set eth0 up", f"address add 10.9.0.{number}/24 dev eth0", neighbour])
            namespaces.turn_off(host, "eth0", off)
        ports = namespaces.inside(name, lambda: InterfacePorts(lambda: program, {1: "port1", 2: "port2"}, offload=offload))
        ports.start()
        rig = Rig(name, program, ports)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.ports.close()
        for namespace in (rig.host(1), rig.host(2), rig.name):
            namespaces.delete(namespace)


def segmented(sender: socket.socket, payload: bytes, size: int, to: tuple[str, int] = ("10.9.0.2", 7000)) -> None:
    sender.sendmsg([payload], [(SOL_UDP, UDP_SEGMENT, struct.pack("H", size))], 0, to)


def assert_checksums(frame: bytes) -> None:
    """Both are what scapy computes anew."""
    packet = Ether(frame)
    again = Ether(frame)
    del again[IP].chksum, again[UDP].chksum
    rebuilt = Ether(bytes(again))
    assert (packet[IP].chksum, packet[UDP].chksum) == (rebuilt[IP].chksum, rebuilt[UDP].chksum)


def test_a_frame_enters_as_it_is_on_the_wire(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    frames = [bytes.fromhex("ffffffffffff020000000009") + b"\x88\xb5" + bytes(n) for n in (46, 1, 1486)]
    with rig.raw(2) as raw:
        for frame in frames:
            raw.send(frame)
        deadline = time.monotonic() + PATIENCE_S
        while [frame for _, frame in rig.program.seen if frame in frames] != frames and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [each for each in rig.program.seen if each[1] in frames] == [(2, frame) for frame in frames]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000, 1472])
def test_checksums_that_the_host_left_to_its_card_are_filled_in(make_rig: Callable[..., Rig], size: int) -> None:
    rig = make_rig()
    with rig.udp(1) as sender:
        sender.sendto(os.urandom(size), ("10.9.0.2", 7000))
    [(port, frame)] = rig.see(1)
    assert port == 1
    assert Ether(frame)[UDP].len == 8 + size
    assert_checksums(frame)


@pytest.mark.parametrize(
    ("size", "total"), [(1048, 60 * 1048), (1048, 5 * 1048 + 17), (100, 101), (1, 60), (1472, 2944), (7, 7)]
)
def test_a_run_is_cut_into_the_datagrams_that_were_sent(make_rig: Callable[..., Rig], size: int, total: int) -> None:
    """The same frames, byte for byte but for identification and its checksum, as from a host without the offload."""
    rig, plain = make_rig(), make_rig(off=("tx-checksum", "tso", "gso"))
    payload = np.random.default_rng(size).bytes(total)
    for each in (rig, plain):
        with each.udp(1) as sender:
            segmented(sender, payload, size)
    count = -(-total // size)
    cut, sent = rig.see(count), plain.see(count)
    assert len(cut) == len(sent) == count
    for (port, frame), (_, expected) in zip(cut, sent, strict=True):
        assert port == 1
        assert frame[:18] + frame[20:24] + frame[26:] == expected[:18] + expected[20:24] + expected[26:]
        assert_checksums(frame)
    assert b"".join(bytes(Ether(frame)[UDP].payload) for _, frame in cut) == payload
    assert rig.ports.statistics["received_packets"] >= count


def datagram(body: bytes, port: int) -> bytes:
    """A frame from host 2 to host 1."""
    ip = IP(src="10.9.0.2", dst="10.9.0.1", flags="DF")
    return bytes(Ether(src=MACS[2], dst=MACS[1]) / ip / UDP(sport=9, dport=port, chksum=0) / Raw(body))


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("gro", [True, False])
def test_runs_leave_whole_and_arrive_as_the_receiver_likes(make_rig: Callable[..., Rig], offload: bool, gro: bool) -> None:
    rig = make_rig(offload)
    datagrams = [bytes([n]) * (500 if n < 70 else 300) for n in range(80)]
    frames = [datagram(body, 7000) for body in datagrams]
    rig.program.reply = lambda came: [(1, f) for f in frames] if any(port == 2 for port, _ in came) else []
    with rig.udp(1) as receiver, rig.raw(2) as trigger:
        if gro:
            receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        trigger.send(bytes(12) + b"\x88\xb5" + bytes(46))
        got: list[bytes] = []
        messages = 0
        while sum(map(len, got)) < sum(map(len, datagrams)):
            data, ancillary, _, address = receiver.recvmsg(65536, 64)
            assert address == ("10.9.0.2", 9)
            size = struct.unpack("i", ancillary[0][2])[0] if ancillary else len(data)
            got += [data[at : at + size] for at in range(0, len(data), size)]
            messages += 1
    assert got == datagrams
    assert messages == (3 if offload and gro else 80)  # 60 and 10 of one size, 10 of the other
    assert rig.ports.statistics["sent_packets"] == 80


def test_a_damaged_frame_is_not_mended_by_joining_others(make_rig: Callable[..., Rig]) -> None:
    """Whoever cuts a run apart computes header checksums anew: one that is wrong must not be in it."""
    rig = make_rig()
    good = [datagram(bytes([n]) * 100, 7000) for n in range(20)]
    frames = [frame[:24] + b"\xde\xad" + frame[26:] if n % 4 == 1 else frame for n, frame in enumerate(good)]
    rig.program.reply = lambda came: [(1, f) for f in frames] if any(port == 2 for port, _ in came) else []
    with rig.udp(1) as receiver, rig.raw(2) as trigger:
        trigger.send(bytes(12) + b"\x88\xb5" + bytes(46))
        got = [receiver.recv(65536)[0] for _ in range(15)]
        receiver.settimeout(0.3)
        with pytest.raises(TimeoutError):
            receiver.recv(65536)
    assert got == [n for n in range(20) if n % 4 != 1]


def test_what_exceeds_the_mtu_does_not_pass_in_a_run_either(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    frames = [datagram(bytes(2000), 7000) for _ in range(30)]
    rig.program.reply = lambda came: [(1, f) for f in frames] if any(port == 2 for port, _ in came) else []
    with rig.udp(1) as receiver, rig.raw(2) as trigger:
        trigger.send(bytes(12) + b"\x88\xb5" + bytes(46))
        deadline = time.monotonic() + PATIENCE_S
        while rig.ports.statistics["dropped_oversized"] < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        receiver.settimeout(0.3)
        with pytest.raises(TimeoutError):
            receiver.recv(65536)
    assert rig.ports.statistics["dropped_oversized"] == 30


def test_frames_of_one_port_keep_their_order_whatever_they_are(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    other = bytes.fromhex("0200000000010200000000028888")
    frames = [datagram(bytes([n]) * 90, 7000 + n % 3 // 2) if n % 5 else other + bytes([n]) * 60 for n in range(100)]
    rig.program.reply = lambda came: [(1, f) for f in frames] if any(port == 2 for port, _ in came) else []
    with rig.raw(1) as receiver, rig.raw(2) as trigger:
        trigger.send(bytes(12) + b"\x88\xb5" + bytes(46))
        numbers: list[int] = []
        while len(numbers) < 100:
            data, address = receiver.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING or Ether(data).src != MACS[2]:
                continue
            # A run is one frame here: the raw socket stands where the card would cut it apart.
            step = 90 if data[12:14] == b"\x08\x00" else len(data)
            body = data[42:] if data[12:14] == b"\x08\x00" else data[14:15]
            numbers += [body[at] for at in range(0, len(body), step)]
    assert numbers == list(range(100))


def test_what_cannot_be_carried_is_counted_by_reason(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(off=())
    with rig.raw(1) as raw:
        raw.send(
            bytes(Ether(src=MACS[1], dst=MACS[2]) / Dot1Q(vlan=5) / IP(src="10.9.0.1", dst="10.9.0.2") / UDP() / Raw(bytes(80)))
        )
        rig.program.reply = lambda came: [(7, bytes(60)), (511, bytes(60)), (2, bytes(13)), (2, bytes(1600))]
        raw.send(bytes(12) + b"\x88\xb5" + bytes(46))
        deadline = time.monotonic() + PATIENCE_S
        while rig.ports.statistics["dropped_unknown_port"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    rig.program.reply = lambda came: []
    counted = rig.ports.statistics
    assert counted["dropped_vlan"] == 1
    assert not any(Ether(frame).haslayer(UDP) for _, frame in rig.program.seen)
    assert counted["dropped_unknown_port"] >= 2
    assert counted["dropped_short_frame"] >= 1
    assert counted["dropped_oversized"] >= 1  # the interface's MTU is 1500


def test_runs_of_tcp_segments_are_refused_and_counted(make_rig: Callable[..., Rig]) -> None:
    """A host with TCP segmentation offload on: the handshake passes, its first large write is dropped and counted."""
    rig = make_rig(off=())
    rig.program.reply = lambda came: [(3 - port, frame) for port, frame in came]

    def listener() -> socket.socket:
        return socket.create_server(("10.9.0.2", 7001))

    with namespaces.inside(rig.host(2), listener) as server:
        accepted: list[socket.socket] = []
        thread = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
        thread.start()
        client = namespaces.inside(rig.host(1), lambda: socket.create_connection(("10.9.0.2", 7001), timeout=PATIENCE_S))
        thread.join()
        client.setblocking(False)
        client.send(bytes(100_000))
        deadline = time.monotonic() + PATIENCE_S
        while not rig.ports.statistics["dropped_segmentation"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any(Ether(frame).haslayer(TCP) for _, frame in rig.program.seen)
        client.close()
        accepted[0].close()
    assert rig.ports.statistics["dropped_segmentation"] >= 1


def test_tcp_crosses_whole_once_its_offload_is_off(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.program.reply = lambda came: [(3 - port, frame) for port, frame in came]
    data = np.random.default_rng(1).bytes(3_000_000)
    with namespaces.inside(rig.host(2), lambda: socket.create_server(("10.9.0.2", 7001))) as server:
        received: list[bytes] = []

        def serve() -> None:
            peer, _ = server.accept()
            while piece := peer.recv(1 << 20):
                received.append(piece)
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = namespaces.inside(rig.host(1), lambda: socket.create_connection(("10.9.0.2", 7001), timeout=PATIENCE_S))
        client.sendall(data)
        client.close()
        thread.join()
    assert b"".join(received) == data


def test_bad_interfaces_are_named() -> None:
    with pytest.raises(
        OSError, match=r"port 1: cannot open interface nothere: there is no such interface in this network name"
    ):
        InterfacePorts(lambda: None, {1: "nothere"})
    with pytest.raises(ValueError, match="port 511: v1model's ports are 0 to 510; 511 means drop"):
        InterfacePorts(lambda: None, {511: "lo"})
    with pytest.raises(ValueError, match="port 1: interface lo is the other port's too"):
        InterfacePorts(lambda: None, {1: "lo", 2: "lo"})
    with pytest.raises(ValueError, match="a switch needs at least one port"):
        InterfacePorts(lambda: None, {})


def test_closing_leaves_no_thread_and_no_socket(make_rig: Callable[..., Rig]) -> None:
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    rig = make_rig()
    rig.ports.close()
    rig.ports.close()
    assert set(threading.enumerate()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
