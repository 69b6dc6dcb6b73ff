"""Everything of the program around the service: own address, ARP, ping, layer 2, and the drop simulator."""

from __future__ import annotations

import struct

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from switchsum.controller import programming
from switchsum.p4src.layout import SERVICE_PORT, PacketType
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.cases.bench import Bench, case, dotted, mac
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC, checksum
from tests.protocol.targets import PORTS, STATIONS, arp_request

OWN_IP, OWN_MAC = dotted(SWITCH_IP), mac(SWITCH_MAC)
HOSTS = [mac(station.mac) for station in STATIONS]
ADDRESSES = [dotted(station.ip) for station in STATIONS]
LOSSES = {
    "on_the_way_in": (programming.LOSS_IN, programming.SET_LOSS_IN, programming.DROPPED_IN, 1),
    "on_the_way_out": (programming.LOSS_OUT, programming.SET_LOSS_OUT, programming.DROPPED_OUT, 2),
}


def between_hosts(*, source: int = 0, destination: int = 1) -> IP:
    """An IPv4 header from one host to another."""
    return IP(src=ADDRESSES[source], dst=ADDRESSES[destination])


@case()
def arp_for_the_switch_is_answered(bench: Bench) -> None:
    for port, host in zip(PORTS, STATIONS, strict=True):
        [(out, data)] = bench.raw((port, arp_request(host, host.ip)))
        reply = Ether(data)
        assert out == port
        assert (reply.dst, reply.src) == (mac(host.mac), OWN_MAC)
        answer = reply[ARP]
        expected = (2, OWN_MAC, OWN_IP, mac(host.mac), dotted(host.ip))
        assert (answer.op, answer.hwsrc, answer.psrc, answer.hwdst, answer.pdst) == expected


@case()
def arp_for_others_is_flooded_but_not_back(bench: Bench) -> None:
    request = bench.target.padded(arp_request(STATIONS[0], STATIONS[0].ip, target_ip=STATIONS[1].ip))
    assert sorted(bench.raw((1, request))) == [(2, request), (3, request), (4, request)]


@case()
def unknown_station_is_flooded_but_not_back(bench: Bench) -> None:
    for destination in ("ff:ff:ff:ff:ff:ff", "02:aa:bb:cc:dd:ee"):
        frame = bytes(Ether(dst=destination, src=HOSTS[2], type=0x88B5) / Raw(b"to all" * 10))
        assert sorted(bench.raw((3, frame))) == [(1, frame), (2, frame), (4, frame)]


@case()
def ping_is_answered_with_a_right_checksum(bench: Bench) -> None:
    """The checksum is updated, not computed (RFC 1624): identifiers bring it around its end-around carry."""
    variants = [(size, identifier) for size in (0, 1, 56, 1400) for identifier in (0, 0x1234, 0xF7FF, 0xFFFF)]
    requests = [
        Ether(dst=OWN_MAC, src=HOSTS[0])
        / IP(src=ADDRESSES[0], dst=OWN_IP)
        / ICMP(id=identifier, seq=size)
        / Raw(b"\xa5" * size)
        for size, identifier in variants
    ]
    outputs = bench.raw(*((1, bytes(request)) for request in requests))
    assert [port for port, _ in outputs] == [1] * len(variants)
    for (size, identifier), (_, data) in zip(variants, outputs, strict=True):
        reply = Ether(data)
        assert (reply.dst, reply[IP].src, reply[IP].dst, reply[ICMP].type) == (HOSTS[0], OWN_IP, ADDRESSES[0], 0)
        assert (reply[ICMP].id, reply[ICMP].seq) == (identifier, size)
        assert bytes(reply[ICMP].payload)[:size] == b"\xa5" * size
        icmp = data[34 : 14 + reply[IP].len]
        assert checksum(data[14:34]) == checksum(icmp.ljust(len(icmp) + len(icmp) % 2, b"\0")) == 0  # as receivers check them


@case()
def other_packets_for_the_switch_go_nowhere(bench: Bench) -> None:
    frames = [
        bytes(Ether(dst=OWN_MAC, src=HOSTS[0]) / IP(src=ADDRESSES[0], dst=OWN_IP) / upper)
        for upper in (TCP(dport=22), UDP(dport=53), ICMP(type=13), ICMP(code=3))
    ]
    assert bench.raw(*((1, frame) for frame in frames)) == []
    assert bench.rejections() == {}


@case()
def known_station_gets_foreign_traffic_unchanged(bench: Bench) -> None:
    """Every byte as it was, in the order sent, whatever the protocol; fragments and options are not looked into."""
    ethernet = Ether(dst=HOSTS[1], src=HOSTS[0])
    packets = [
        ethernet / between_hosts() / upper / Raw(b"x" * size)
        for size in (0, 10, 200, 1400)
        for upper in (TCP(dport=5000), UDP(dport=53), UDP(dport=SERVICE_PORT), ICMP())
    ]
    fragment, options = between_hosts(), between_hosts()
    fragment.flags = "MF"
    options.options = b"\x01\x01\x01\x00"
    packets += [ethernet / fragment / Raw(b"y" * 64), ethernet / options / UDP() / Raw(b"z" * 64)]
    packets += [Ether(dst=HOSTS[1], src=HOSTS[0], type=0x86DD) / Raw(b"6" * 64)]
    frames = [bench.target.padded(bytes(packet)) for packet in packets]
    assert bench.raw(*((1, frame) for frame in frames)) == [(2, frame) for frame in frames]
    assert bench.rejections() == {}


@case()
def contribution_between_hosts_is_theirs(bench: Bench) -> None:
    """Our port and format, but another address: forwarded like anything else, every byte as it was."""
    packet = SwitchSum(kind=PacketType.CONTRIBUTION, values=list(range(bench.elements)))
    frame = bytes(Ether(dst=HOSTS[1], src=HOSTS[0]) / between_hosts() / UDP(dport=SERVICE_PORT) / packet)
    assert bench.raw((1, frame)) == [(2, frame)]
    assert bench.rejections() == {}


@case()
def frame_without_a_whole_ethernet_header_is_harmless(bench: Bench) -> None:
    for frame in (b"", b"\0" * 6, b"\xff" * 13):
        assert all(data == frame for _, data in bench.raw((1, frame)))


@case(LOSSES)
def drop_simulator_loses_its_share(bench: Bench, table: str, action: str, counter: str, lossy: int) -> None:
    """A quarter of 1,000 frames, give or take five standard deviations, on the configured port only; and it counts them."""
    ethernet = Ether(dst=HOSTS[1], src=HOSTS[0], type=0x88B5)
    frames = [bytes(ethernet / Raw(struct.pack("!I", number) + bytes(56))) for number in range(1000)]

    def lost() -> int:
        return bench.target.packets_counted(counter, lossy)

    before = lost()
    others = {port: bench.target.packets_counted(counter, port) for port in PORTS if port != lossy}
    with bench.losing(table, action, lossy, programming.loss_threshold(0.25)):
        outputs = bench.send_with_losses(1, frames, lost)
    delivered = [frame for _, frame in outputs]
    assert {port for port, _ in outputs} == {2}
    assert len(delivered) + lost() - before == len(frames)
    assert abs(len(delivered) - 750) < 5 * (1000 * 0.25 * 0.75) ** 0.5
    assert delivered == sorted(set(delivered))  # in order, none twice
    assert set(delivered) <= set(frames)
    assert {port: bench.target.packets_counted(counter, port) for port in others} == others
    assert bench.raw((1, frames[0])) == [(2, frames[0])]  # off again


@case()
def drop_simulator_loses_contributions_before_they_count(bench: Bench) -> None:
    def lost() -> int:
        return bench.target.packets_counted(programming.DROPPED_IN, 1)

    with bench.losing(programming.LOSS_IN, programming.SET_LOSS_IN, 1, 2**32 - 1):
        assert bench.send_with_losses(1, [bench.frame(0)] * 50, lost) == []
    assert bench.job_verdicts() == {}
    bench.check_untouched()
