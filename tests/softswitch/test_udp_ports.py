"""The UDP ports: frames in and out by hand, then datagrams through a compiled program, then what must not disturb it.

The program is tests/p4runtime/entries.p4: the first payload byte selects its action.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from switchsum.softswitch.datagrams import MAX_DATAGRAM_BYTES, Count, Intake, Outlet
from switchsum.softswitch.dataplane import Dataplane, Program
from switchsum.softswitch.packets import Departures
from switchsum.softswitch.serving import Traffic
from switchsum.softswitch.sockets import WOKEN, make_counts, traffic_of
from switchsum.softswitch.tables import Exact
from switchsum.softswitch.udp_ports import UdpPorts

SWITCH_IP = "10.83.0.1"
SERVICE_PORT = 0x5353
REFLECT, FORWARD, REPLICATE, UNKNOWN = 1, 2, 3, 4
TIMEOUT_S = 10
SOL_UDP, UDP_SEGMENT = 17, 103


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.load(Path(__file__).parents[1] / "p4runtime" / "entries.json")


def udp_socket(host: str = "127.0.0.1") -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((host, 0))
    opened.settimeout(TIMEOUT_S)
    return opened


# --- frames in -------------------------------------------------------------------------------------------------------


@dataclass
class Gathering:
    """An intake over two ports, driven by hand."""

    sockets: dict[int, socket.socket] = field(default_factory=lambda: {1: udp_socket(), 7: udp_socket()})
    counts: np.ndarray = field(default_factory=lambda: make_counts(Count))  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        self.wake_reader, self.wake_writer = socket.socketpair()
        for opened in self.sockets.values():
            opened.setsockopt(SOL_UDP, 104, 1)  # UDP_GRO
        self.intake = Intake(self.sockets, self.wake_reader, socket.inet_aton(SWITCH_IP), SERVICE_PORT, self.counts)

    def frames(self, expected: int) -> list[tuple[int, bytes]]:
        """(port, frame) of the next `expected` frames, in their order."""
        found: list[tuple[int, bytes]] = []
        while len(found) < expected:
            self.intake.receive()
            found += self.intake.arrivals.frames()
        return found


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    gathering = Gathering()
    yield gathering
    for opened in (*gathering.sockets.values(), gathering.wake_reader, gathering.wake_writer):
        opened.close()


@pytest.mark.parametrize("size", [0, 1, 2, 41, 1048, 1472, MAX_DATAGRAM_BYTES])
def test_a_datagram_becomes_the_frame_that_the_module_describes(gathering: Gathering, size: int) -> None:
    payload = bytes(n & 0xFF for n in range(size))
    with udp_socket("127.1.2.3") as host:
        host.sendto(payload, gathering.sockets[7].getsockname())
        ((port, frame),) = gathering.frames(1)
        sender = host.getsockname()
    assert port == 7
    parsed = Ether(frame)
    assert (parsed.dst, parsed.src, parsed.type) == ("02:53:53:00:00:00", "02:00:7f:01:02:03", 0x0800)
    assert (parsed[IP].src, parsed[IP].dst, parsed[IP].ttl, parsed[IP].flags) == (sender[0], SWITCH_IP, 64, "DF")
    assert (parsed[IP].len, parsed[UDP].len) == (28 + size, 8 + size)
    assert (parsed[UDP].sport, parsed[UDP].dport, parsed[UDP].chksum) == (sender[1], SERVICE_PORT, 0)
    assert frame[42:] == payload
    found = parsed[IP].chksum
    del parsed[IP].chksum
    assert Ether(bytes(parsed))[IP].chksum == found


@pytest.mark.parametrize("last", [1048, 5])
def test_a_segmented_send_becomes_one_frame_for_each_datagram(gathering: Gathering, last: int) -> None:
    parts = [bytes([n]) * 1048 for n in range(59)] + [b"z" * last]
    with udp_socket() as host:
        option = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", 1048))]
        host.sendmsg([b"".join(parts)], option, 0, gathering.sockets[1].getsockname())
        frames = gathering.frames(len(parts))
    assert [frame[42:] for _, frame in frames] == parts
    assert {Ether(frame)[IP].len for _, frame in frames} == {28 + 1048, 28 + last}
    traffic = traffic_of(gathering.counts, Count)
    assert list(traffic[1]) == [len(parts), sum(map(len, parts)), 0, 0]
    assert traffic.sum() == traffic[1].sum()


def test_many_datagrams_on_several_ports_keep_their_order(gathering: Gathering) -> None:
    with udp_socket() as host:
        for number in range(100):
            for port in (1, 7):
                host.sendto(bytes([number]) * (1 + number), gathering.sockets[port].getsockname())
        frames = gathering.frames(200)
    for port in (1, 7):
        assert [frame[42:] for at, frame in frames if at == port] == [bytes([n]) * (1 + n) for n in range(100)]


def test_a_busy_port_does_not_silence_the_others(gathering: Gathering) -> None:
    option = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", 1))]
    with udp_socket() as host:
        for port, runs in ((1, 30), (7, 3)):
            for _ in range(runs):
                host.sendmsg([bytes(60)], option, 0, gathering.sockets[port].getsockname())
        frames = gathering.frames(33 * 60)
    assert sum(port == 7 for port, _ in frames[: 7 * 60]) == 3 * 60


def test_an_oversized_datagram_is_counted_and_the_next_one_arrives(gathering: Gathering) -> None:
    with udp_socket() as host:
        for size in (MAX_DATAGRAM_BYTES + 1, 65507, 3):
            host.sendto(bytes(size), gathering.sockets[1].getsockname())
        assert [len(frame) for _, frame in gathering.frames(1)] == [45]
    assert gathering.counts[Count.DROPPED_OVERSIZED] == 2


def test_a_wake_up_ends_the_wait(gathering: Gathering) -> None:
    gathering.wake_writer.send(b"x")
    assert gathering.intake.receive() == WOKEN


# --- frames out ------------------------------------------------------------------------------------------------------


def send(frames: list[tuple[int, bytes]], sockets: dict[int, socket.socket], *, offload: bool = True) -> dict[str, int]:
    """Send (port, frame) pairs through an outlet; returns what it counted."""
    counts = make_counts(Count)
    Outlet(sockets, counts, offload=offload).send(Departures.of(frames))
    traffic = {
        f"{name} of port {number}": int(traffic_of(counts, Count)[number, column])
        for number in sockets
        for name, column in (("packets", 2), ("bytes", 3))
    }
    return {name: number for name, number in (traffic | {c.name: int(counts[c]) for c in Count}).items() if number}


def frame_to(receiver: socket.socket, payload: bytes = b"payload", **ip: object) -> Ether:
    host, port = receiver.getsockname()
    return Ether() / IP(src=SWITCH_IP, **({"dst": host} | ip)) / UDP(sport=SERVICE_PORT, dport=port) / Raw(payload)


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    with udp_socket() as opened:
        yield opened


@pytest.fixture
def outlets() -> Iterator[dict[int, socket.socket]]:
    sockets = {3: udp_socket(), 4: udp_socket()}
    yield sockets
    for opened in sockets.values():
        opened.close()


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1048])
def test_a_frame_is_sent_from_its_ports_socket(
    receiver: socket.socket, outlets: dict[int, socket.socket], size: int, checksum: bool
) -> None:
    """With a right UDP checksum or with none."""
    frame = frame_to(receiver, bytes(n & 0xFF for n in range(size)))
    if not checksum:
        frame[UDP].chksum = 0
    counted = send([(4, bytes(frame))], outlets)
    payload, sender = receiver.recvfrom(2000)
    assert payload == bytes(n & 0xFF for n in range(size))
    assert sender == outlets[4].getsockname()
    assert counted == {"packets of port 4": 1} | ({"bytes of port 4": size} if size else {})


def test_padding_behind_the_datagram_is_not_sent(receiver: socket.socket, outlets: dict[int, socket.socket]) -> None:
    send([(3, bytes(frame_to(receiver, b"short")) + bytes(20))], outlets)
    assert receiver.recv(100) == b"short"


@pytest.mark.parametrize("offload", [True, False])
def test_runs_to_several_destinations_arrive_whole_and_in_order(outlets: dict[int, socket.socket], offload: bool) -> None:
    with contextlib.ExitStack() as stack:
        receivers = [stack.enter_context(udp_socket()) for _ in range(3)]
        payloads = [bytes([n]) * (300 if n % 50 else 10) for n in range(120)]
        frames = [(3, bytes(frame_to(receiver, payload))) for payload in payloads for receiver in receivers]
        counted = send(frames, outlets, offload=offload)
        assert counted == {"packets of port 3": 360, "bytes of port 3": 3 * sum(map(len, payloads))}
        for receiver in receivers:
            assert [receiver.recv(2000) for _ in payloads] == payloads


def test_a_kernel_that_refuses_runs_gets_every_datagram_alone(outlets: dict[int, socket.socket]) -> None:
    """As kernels before 4.18 do, or this one where the socket computes no checksums."""
    for opened in outlets.values():
        opened.setsockopt(socket.SOL_SOCKET, 11, 1)  # SO_NO_CHECK
    with udp_socket() as one, udp_socket() as two:
        payloads = [bytes([n]) * 300 for n in range(70)]
        frames = [(3, bytes(frame_to(one, payload))) for payload in payloads]  # side by side
        frames += [(4, bytes(frame_to(receiver, payload))) for payload in payloads for receiver in (one, two)]
        assert send(frames, outlets) == {
            "packets of port 3": 70,
            "bytes of port 3": 21000,
            "packets of port 4": 140,
            "bytes of port 4": 42000,
        }
        assert [one.recv(2000) for _ in range(140)] == payloads + payloads
        assert [two.recv(2000) for _ in payloads] == payloads


def altered(frame: Ether, position: int, *values: int) -> bytes:
    """The frame with bytes at `position` replaced and its IPv4 checksum made right again."""
    raw = bytearray(bytes(frame))
    raw[position : position + len(values)] = bytes(values)
    raw[24:26] = b"\0\0"
    total = sum(struct.unpack("!10H", raw[14:34]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    raw[24:26] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(raw)


def test_every_reason_to_drop_a_frame_is_counted_once_and_the_sound_frame_is_sent(
    receiver: socket.socket, outlets: dict[int, socket.socket]
) -> None:
    sound = frame_to(receiver)
    wrong_ip_checksum = bytearray(bytes(sound))
    wrong_ip_checksum[25] ^= 1
    with_options = frame_to(receiver, options=b"\x01\x01\x01\x01")
    bad = {
        "DROPPED_SHORT_FRAME": [(3, b""), (3, bytes(sound)[:41])],
        "DROPPED_UNKNOWN_PORT": [(5, bytes(sound)), (-1, bytes(sound)), (512, bytes(sound))],
        "DROPPED_NOT_IPV4_UDP": [
            (3, bytes(Ether(type=0x0806) / Raw(bytes(60)))),
            (3, altered(sound, 23, 6)),
            (3, altered(sound, 14, 0x65)),
        ],
        "DROPPED_IP_OPTIONS": [(3, bytes(with_options))],
        "DROPPED_FRAGMENT": [(3, altered(sound, 20, 0x20, 0)), (3, altered(sound, 20, 0, 1))],
        "DROPPED_NOT_LOOPBACK": [(3, bytes(frame_to(receiver, dst="10.0.0.1")))],
        "DROPPED_IP_CHECKSUM": [(3, bytes(wrong_ip_checksum))],
        "DROPPED_TRUNCATED": [
            (3, bytes(sound)[:-1]),
            (3, altered(sound, 38, 0, 7)),
            (3, altered(sound, 38, 0, 16)),
            (3, altered(sound, 16, 0, 27)),
        ],
        "DROPPED_UDP_PORT_ZERO": [(3, altered(sound, 36, 0, 0))],
        "DROPPED_UDP_CHECKSUM": [(3, bytes(sound)[:-1] + b"?")],
    }
    frames = [frame for group in bad.values() for frame in group]
    counted = send([*frames, (3, bytes(sound))], outlets)
    assert counted == {reason: len(group) for reason, group in bad.items()} | {"packets of port 3": 1, "bytes of port 3": 7}
    assert receiver.recv(100) == b"payload"


def test_a_host_that_is_gone_does_not_stop_the_others(receiver: socket.socket, outlets: dict[int, socket.socket]) -> None:
    with udp_socket() as gone:
        dead = bytes(frame_to(gone))
    for _ in range(3):  # the ICMP answer to the first would show at a later call
        send([(3, dead), (3, bytes(frame_to(receiver)))], outlets)
        assert receiver.recv(100) == b"payload"


# --- through a compiled program ---------------------------------------------------------------------------------------


@dataclass
class Rig:
    """Ports 1 to 3 around a dataplane that a test may replace."""

    dataplane: Dataplane | None
    ports: UdpPorts


def prepared(program: Program) -> Dataplane:
    dataplane = Dataplane(program)
    dataplane.tables["Serve.op"].insert((Exact(REFLECT),), 0, "Serve.reflect", ())
    return dataplane


@pytest.fixture(params=[True, False], ids=["offload", "plain"])
def rig(request: pytest.FixtureRequest, program: Program) -> Iterator[Rig]:
    rig = Rig(prepared(program), None)  # type: ignore[arg-type]
    addresses = dict.fromkeys((1, 2, 3), ("127.0.0.1", 0))
    rig.ports = UdpPorts(lambda: rig.dataplane, addresses, SWITCH_IP, SERVICE_PORT, offload=request.param)
    rig.ports.start()
    yield rig
    rig.ports.close()


def test_reflected_datagrams_come_back_unchanged(rig: Rig) -> None:
    with udp_socket() as host:
        for size in (2, 3, 500, 1048, MAX_DATAGRAM_BYTES):
            request = bytes([REFLECT]) + bytes(n & 0xFF for n in range(size - 1))
            host.sendto(request, rig.ports.addresses[2])
            assert host.recvfrom(10000) == (request, rig.ports.addresses[2])


def test_a_burst_comes_back_in_order(rig: Rig) -> None:
    requests = [bytes([REFLECT]) + n.to_bytes(2, "big") * 500 for n in range(60)]
    with udp_socket() as host:
        option = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(requests[0])))]
        host.sendmsg(requests, option, 0, rig.ports.addresses[1])
        assert [host.recv(2000) for _ in requests] == requests


def test_forwarding_and_multicast_reach_other_hosts_from_their_ports(rig: Rig) -> None:
    assert rig.dataplane is not None
    with udp_socket() as sender, udp_socket() as one, udp_socket("127.0.0.5") as two:
        loopback = int.from_bytes(socket.inet_aton("127.0.0.1"), "big")
        table = rig.dataplane.tables["Serve.op"]
        table.insert((Exact(FORWARD),), 0, "Serve.forward", (3, loopback, one.getsockname()[1]))
        table.insert((Exact(REPLICATE),), 0, "Serve.replicate", (9,))
        rig.dataplane.multicast_groups.insert(9, [(1, 1), (2, 2)])
        member = rig.dataplane.tables["Deliver.member"]
        for instance, host in ((1, one), (2, two)):
            address = int.from_bytes(socket.inet_aton(host.getsockname()[0]), "big")
            member.insert((Exact(instance),), 0, "Deliver.deliver_to", (address, host.getsockname()[1]))
        sender.sendto(bytes([FORWARD, 7]), rig.ports.addresses[1])
        assert one.recvfrom(100) == (bytes([FORWARD, 7]), rig.ports.addresses[3])
        sender.sendto(bytes([REPLICATE, 8]), rig.ports.addresses[1])
        assert one.recvfrom(100) == (bytes([REPLICATE, 8]), rig.ports.addresses[1])
        assert two.recvfrom(100) == (bytes([REPLICATE, 8]), rig.ports.addresses[2])


def wait_for(rig: Rig, statistic: str) -> None:
    """Until the ports' thread has counted it; the count comes a moment after the packet."""
    deadline = time.monotonic() + TIMEOUT_S
    while not rig.ports.statistics[statistic]:
        assert time.monotonic() < deadline, f"nothing counted as {statistic}"
        time.sleep(0.001)


def exchange(rig: Rig, host: socket.socket) -> None:
    """One datagram there and back; whatever was sent before it on that port has been handled by then."""
    host.sendto(bytes([REFLECT, 0xEE]), rig.ports.addresses[1])
    while host.recv(100) != bytes([REFLECT, 0xEE]):
        pass


def test_truncated_and_foreign_datagrams_are_dropped_and_the_port_lives_on(rig: Rig) -> None:
    with udp_socket() as host:
        for datagram in (b"", b"\x01", bytes([UNKNOWN, 0]), b"\xff" * 1400, bytes(20000)):
            host.sendto(datagram, rig.ports.addresses[1])
        exchange(rig, host)
    wait_for(rig, "sent_packets")
    statistics = rig.ports.statistics
    sizes = (0, 1, 2, 1400, 20000, 2)
    assert rig.ports.traffic[1] == Traffic(6, sum(sizes), 1, 2)
    assert {port: traffic for port, traffic in rig.ports.traffic.items() if traffic != Traffic(0, 0, 0, 0)}.keys() == {1}
    assert 1 <= rig.ports.batches <= 6
    assert statistics["received_packets"] == 6
    assert statistics["sent_packets"] == 1
    assert statistics["dropped_oversized"] == 1
    assert statistics["internal_errors"] == 0


def test_without_a_pipeline_packets_are_counted_and_dropped(rig: Rig, program: Program) -> None:
    with udp_socket() as host:
        rig.dataplane = None
        host.sendto(bytes([REFLECT, 1]), rig.ports.addresses[1])
        wait_for(rig, "dropped_no_pipeline")
        rig.dataplane = prepared(program)
        exchange(rig, host)
    assert rig.ports.statistics["dropped_no_pipeline"] == 1


def test_replacing_the_dataplane_under_traffic_loses_no_packet(rig: Rig, program: Program) -> None:
    """Every request of a closed loop is answered while the program's state is replaced again and again."""
    with udp_socket() as host:
        for round_ in range(200):
            if round_ % 10 == 0:
                rig.dataplane = prepared(program)
            request = bytes([REFLECT]) + round_.to_bytes(2, "big")
            host.sendto(request, rig.ports.addresses[1])
            assert host.recv(100) == request


def test_a_defect_in_the_dataplane_costs_one_batch_and_is_counted(
    rig: Rig, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """An object has no method forward: the same kind of surprise as a defect. The thread survives and says so."""
    with udp_socket() as host:
        rig.dataplane = object()  # type: ignore[assignment]
        host.sendto(bytes([REFLECT, 1]), rig.ports.addresses[1])
        wait_for(rig, "internal_errors")
        rig.dataplane = prepared(program)
        exchange(rig, host)
    assert "a batch of packets was lost" in caplog.text


# --- opening and closing ----------------------------------------------------------------------------------------------


def test_closing_leaves_no_thread_and_frees_the_address() -> None:
    threads = threading.active_count()
    ports = UdpPorts(lambda: None, {1: ("127.0.0.1", 0)}, SWITCH_IP, SERVICE_PORT)
    ports.start()
    address = ports.addresses[1]
    ports.close()
    ports.close()
    assert threading.active_count() == threads
    again = UdpPorts(lambda: None, {1: address}, SWITCH_IP, SERVICE_PORT)
    assert again.addresses == {1: address}
    again.close()


def test_a_taken_address_is_named_and_nothing_stays_open() -> None:
    with udp_socket() as taken, udp_socket() as probe:
        free = probe.getsockname()
        probe.close()
        with pytest.raises(OSError, match=f"port 2: cannot bind UDP 127.0.0.1:{taken.getsockname()[1]}"):
            UdpPorts(lambda: None, {1: free, 2: taken.getsockname()}, SWITCH_IP, SERVICE_PORT)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reopened:
            reopened.bind(free)


@pytest.mark.parametrize(
    ("ports", "switch_ip", "service_port", "named"),
    [
        ({}, SWITCH_IP, SERVICE_PORT, "at least one port"),
        ({511: ("127.0.0.1", 0)}, SWITCH_IP, SERVICE_PORT, "511 means drop"),
        ({-1: ("127.0.0.1", 0)}, SWITCH_IP, SERVICE_PORT, "0 to 510"),
        ({1: ("127.0.0.1", 0)}, "switch", SERVICE_PORT, "IPv4 address"),
        ({1: ("127.0.0.1", 0)}, SWITCH_IP, 65536, "service port 65536"),
    ],
)
def test_bad_arguments_are_named(ports: dict[int, tuple[str, int]], switch_ip: str, service_port: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        UdpPorts(lambda: None, ports, switch_ip, service_port)


def test_a_port_number_beyond_udp_is_named() -> None:
    with pytest.raises(OSError, match=r"port 1: cannot bind UDP 127\.0\.0\.1:70000"):
        UdpPorts(lambda: None, {1: ("127.0.0.1", 70000)}, SWITCH_IP, SERVICE_PORT)
