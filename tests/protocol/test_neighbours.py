"""Everything of the program around the service: own address, ARP, ping, layer 2, and the drop simulator."""

from __future__ import annotations

import ipaddress

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from switchsum.p4src.layout import SERVICE_PORT, PacketType
from switchsum.p4src.scapy_layer import SwitchSum
from switchsum.softswitch.tables import Exact
from tests.protocol.switch_under_test import (
    FLOOD_GROUP,
    LOSS_IN,
    LOSS_OUT,
    STATIONS,
    SWITCH_IP,
    SWITCH_MAC,
    SwitchUnderTest,
    Worker,
)

OWN_IP = str(ipaddress.IPv4Address(SWITCH_IP))
OWN_MAC = "02:53:53:00:00:00"
HOST, OTHER = "02:00:00:00:00:01", "02:00:00:00:00:02"
PORTS = [1, 2, 3]


@pytest.fixture(params=["lanes", "wide"])
def switch(request: pytest.FixtureRequest) -> SwitchUnderTest:
    switch = SwitchUnderTest(request.param, 64)
    stations = switch.dataplane.tables[STATIONS]
    stations.set_default("SwitchIngress.forwarding.flood", (FLOOD_GROUP,))
    stations.insert((Exact(int(OTHER.replace(":", ""), 16)),), 0, "SwitchIngress.forwarding.forward", (2,))
    switch.dataplane.multicast_groups.insert(FLOOD_GROUP, [(port, 1) for port in PORTS])
    return switch


def test_arp_for_the_switch_is_answered(switch: SwitchUnderTest) -> None:
    request = Ether(dst="ff:ff:ff:ff:ff:ff", src=HOST) / ARP(op=1, hwsrc=HOST, psrc="10.83.1.1", pdst=OWN_IP)
    [(port, data)] = switch.process(1, bytes(request))
    reply = Ether(data)
    assert port == 1
    assert (reply.dst, reply.src) == (HOST, OWN_MAC)
    answer = reply[ARP]
    assert (answer.op, answer.hwsrc, answer.psrc, answer.hwdst, answer.pdst) == (2, OWN_MAC, OWN_IP, HOST, "10.83.1.1")


def test_arp_for_others_is_flooded_but_not_back(switch: SwitchUnderTest) -> None:
    request = bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=HOST) / ARP(op=1, hwsrc=HOST, psrc="10.83.1.1", pdst="10.83.1.2"))
    assert sorted(switch.process(1, request)) == [(2, request), (3, request)]


@pytest.mark.parametrize("size", [0, 1, 56, 1400])
@pytest.mark.parametrize("identifier", [0, 0x1234, 0xF7FF, 0xFFFF])
def test_ping_is_answered_with_a_right_checksum(switch: SwitchUnderTest, size: int, identifier: int) -> None:
    """The checksum is updated, not computed (RFC 1624): identifiers bring it around its end-around carry."""
    packet = Ether(dst=OWN_MAC, src=HOST) / IP(src="10.83.1.1", dst=OWN_IP) / ICMP(id=identifier, seq=7) / Raw(b"\xa5" * size)
    [(port, data)] = switch.process(1, bytes(packet))
    reply = Ether(data)
    assert port == 1
    assert (reply.dst, reply[IP].src, reply[IP].dst, reply[ICMP].type) == (HOST, OWN_IP, "10.83.1.1", 0)
    assert bytes(reply[Raw].load) == b"\xa5" * size if size else Raw not in reply
    for layer in (IP, ICMP):
        again = reply[layer].copy()
        del again.chksum
        assert layer(bytes(again)).chksum == reply[layer].chksum


def test_other_packets_for_the_switch_go_nowhere(switch: SwitchUnderTest) -> None:
    for upper in (TCP(dport=22), UDP(dport=53), ICMP(type=13), ICMP(code=3)):
        assert switch.process(1, bytes(Ether(dst=OWN_MAC, src=HOST) / IP(src="10.83.1.1", dst=OWN_IP) / upper)) == []


@pytest.mark.parametrize("size", [0, 10, 200, 1400])
def test_a_known_station_gets_foreign_traffic_unchanged(switch: SwitchUnderTest, size: int) -> None:
    for upper in (TCP(dport=5000), UDP(dport=53), UDP(dport=SERVICE_PORT), ICMP()):
        ip = IP(src="10.83.1.1", dst="10.83.1.2")
        frame = bytes(Ether(dst=OTHER, src=HOST) / ip / upper / Raw(b"x" * size))
        assert switch.process(1, frame) == [(2, frame)]
    fragment = bytes(Ether(dst=OTHER, src=HOST) / IP(src="10.83.1.1", dst="10.83.1.2", flags="MF") / Raw(b"y" * 64))
    options = bytes(Ether(dst=OTHER, src=HOST) / IP(dst="10.83.1.2", options=b"\x01\x01\x01\x00") / UDP() / Raw(b"z" * 64))
    ipv6 = bytes(Ether(dst=OTHER, src=HOST, type=0x86DD) / Raw(b"6" * 64))
    for frame in (fragment, options, ipv6, b"\0" * 6):
        outputs = switch.process(1, frame)
        assert all(data == frame for _, data in outputs)
    assert switch.process(1, ipv6) == [(2, ipv6)]


def test_a_contribution_between_hosts_is_theirs(switch: SwitchUnderTest) -> None:
    """Our port and format, but another address: forwarded like anything else, every byte as it was."""
    packet = SwitchSum(kind=PacketType.CONTRIBUTION, values=list(range(64)))
    frame = bytes(Ether(dst=OTHER, src=HOST) / IP(src="10.83.1.1", dst="10.83.1.2") / UDP(dport=SERVICE_PORT) / packet)
    assert switch.process(1, frame) == [(2, frame)]


@pytest.mark.parametrize("direction", [LOSS_IN, LOSS_OUT])
def test_the_drop_simulator_loses_its_share(switch: SwitchUnderTest, direction: str) -> None:
    """A quarter of 4,000 packets, give or take five standard deviations, on the configured port only; and it counts them."""
    control = direction.removesuffix(".loss")
    port = 1 if direction == LOSS_IN else 2
    switch.dataplane.tables[direction].insert((Exact(port),), 0, f"{control}.set_threshold", (2**30,))
    frame = bytes(Ether(dst=OTHER, src=HOST) / Raw(b"x" * 50))
    delivered = sum(len(switch.process(1, frame)) for _ in range(4000))
    assert abs(delivered - 3000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert switch.dataplane.counters[f"{control}.dropped"].read(port)[0] == 4000 - delivered
    assert switch.process(3, frame) == [(2, frame)] or direction == LOSS_OUT


def test_the_drop_simulator_loses_everything_at_the_top(switch: SwitchUnderTest) -> None:
    switch.install_job(7, 1, [Worker.at(1)], 0, 4, 9)
    switch.dataplane.tables[LOSS_IN].insert((Exact(1),), 0, "SwitchIngress.drop_simulator.set_threshold", (2**32 - 1,))
    packet = SwitchSum(job=7, epoch=1, values=[0] * 64)
    frame = Ether(dst=OWN_MAC, src=HOST) / IP(src="10.83.1.1", dst=OWN_IP) / UDP(sport=40000, dport=SERVICE_PORT) / packet
    for _ in range(50):
        assert switch.process(1, bytes(frame)) == []
    assert int(OWN_MAC.replace(":", ""), 16) == SWITCH_MAC
    assert switch.verdicts(7, 1, 0) == {}
