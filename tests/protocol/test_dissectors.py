"""What reads our packets in captures, scapy's layer and Wireshark's dissector, shows what was sent, and never breaks.

Wireshark's side is tried by tshark, which loads the same script.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import PcapWriter, rdpcap

from switchsum.p4src import generate, scapy_layer
from switchsum.p4src.layout import (
    ELEMENT_CHOICES,
    HEADER_BYTES,
    HEADER_DTYPE,
    SERVICE_PORT,
    WIRE_VERSION,
    Exponent,
    Flag,
    PacketType,
)
from switchsum.p4src.scapy_layer import SwitchSum

NAMES = {"type": "kind"}  # what the layer calls a field of another name in HEADER_DTYPE
FIELDS = HEADER_DTYPE.names or ()
WITH_VALUES = (PacketType.CONTRIBUTION, PacketType.RESULT)
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def header_of(**fields: int) -> bytes:
    """The header as layout.py lays it out; what is not named is zero, but for the version."""
    header = np.zeros(1, HEADER_DTYPE)
    for name, value in {"version": WIRE_VERSION, **fields}.items():
        header[name] = value
    return header.tobytes()


ANY_HEADER = st.fixed_dictionaries(
    {name: st.integers(0, 256 ** HEADER_DTYPE[name].itemsize - 1) for name in FIELDS if name != "version"}
)
VERSIONS = (WIRE_VERSION, WIRE_VERSION + 1)
LANES = st.lists(st.integers(0, 2**32 - 1), max_size=300)


def sound(slot: int, kind: int, elements: int = 0) -> bytes:
    """A packet that tells its place by its slot; its lanes hold what looks like a header, to tempt."""
    return header_of(type=kind, slot=slot, job=7) + np.full(elements, WIRE_VERSION << 24 | kind << 16, ">u4").tobytes()


JOINED = {
    "two": [sound(0, 1, 64), sound(1, 1, 64)],
    "sixty": [sound(i, 0x81, 256) for i in range(60)],
    "headers": [sound(i, 2) for i in range(60)],
    "the last shorter": [sound(0, 1, 128), sound(1, 1, 128), sound(2, 1, 64)],
    "a header last": [sound(0, 1, 64), sound(1, 2)],
}
NOT_JOINED = {
    "the last longer": sound(0, 1, 64) + sound(1, 1, 128),
    "one byte more": sound(0, 1, 64) + sound(1, 1, 64) + b"\0",
    "a foreign one": sound(0, 1, 64) + header_of(version=WIRE_VERSION + 1, type=1, job=7) + bytes(4 * 64),
    "an unknown type": sound(0, 2) + sound(1, 3),
    "another job": sound(0, 2) + header_of(type=2, job=8),
    "another epoch": sound(0, 2) + header_of(type=2, job=7, epoch=1),
    "reserved bits": sound(0, 2) + header_of(type=2, job=7, reserved=1),
    "values after a PROPOSAL": sound(0, 2) + bytes(HEADER_BYTES),
}


@pytest.fixture
def _strict_scapy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors while parsing are raised; by default scapy turns them into `Raw`."""
    monkeypatch.setattr(conf, "debug_dissector", True)


@pytest.mark.usefixtures("_strict_scapy")
class TestScapyLayer:
    @given(header=ANY_HEADER, lanes=LANES)
    def test_building_and_parsing_agree_with_the_layout(self, header: dict[str, int], lanes: list[int]) -> None:
        data = header_of(**header) + np.array(lanes, ">u4").tobytes()
        assert bytes(SwitchSum(**{NAMES.get(name, name): value for name, value in header.items()}, values=lanes)) == data
        parsed = SwitchSum(data)
        assert {name: getattr(parsed, NAMES.get(name, name)) for name in FIELDS} == {"version": WIRE_VERSION, **header}
        assert parsed.values == lanes
        assert isinstance(parsed.summary(), str)
        assert isinstance(parsed.show(dump=True), str)

    @given(header=ANY_HEADER, rest=st.binary(max_size=40), cut=st.integers(0, HEADER_BYTES), version=st.sampled_from(VERSIONS))
    @example(header={}, rest=b"", cut=HEADER_BYTES, version=WIRE_VERSION)
    @example(header={}, rest=b"", cut=1, version=WIRE_VERSION)
    @example(header={}, rest=b"\0" * 7, cut=0, version=WIRE_VERSION)
    def test_any_payload_is_parsed_and_rebuilt_as_it_was(
        self, header: dict[str, int], rest: bytes, cut: int, version: int
    ) -> None:
        payload = header_of(**header, version=version)[: HEADER_BYTES - cut] + rest
        ours = len(payload) >= HEADER_BYTES and payload[0] == WIRE_VERSION
        assert isinstance(SwitchSum(payload), SwitchSum) == (ours or payload == b"")  # no bytes: a packet to fill in
        parsed = IP(bytes(IP() / UDP(sport=40000, dport=SERVICE_PORT) / payload))
        assert (SwitchSum in parsed) == ours
        assert bytes(parsed[UDP].payload) == payload
        parsed.clear_cache()  # so that the fields are built again
        assert bytes(parsed[UDP].payload) == payload

    @pytest.mark.parametrize("packets", JOINED.values(), ids=JOINED)
    def test_datagrams_that_the_kernel_joined_are_read_one_by_one(self, packets: list[bytes]) -> None:
        parsed = IP(bytes(IP() / UDP(sport=40000, dport=SERVICE_PORT) / b"".join(packets)))
        layers = [layer for layer in parsed.iterpayloads() if isinstance(layer, SwitchSum)]
        assert [layer.slot for layer in layers] == list(range(len(packets)))
        assert [layer.self_build() for layer in layers] == packets
        parsed.clear_cache()
        assert bytes(parsed[UDP].payload) == b"".join(packets)

    @pytest.mark.parametrize("payload", NOT_JOINED.values(), ids=NOT_JOINED)
    def test_what_the_kernel_would_not_join_is_one_packet(self, payload: bytes) -> None:
        parsed = SwitchSum(payload)
        assert len(parsed.values) == (len(payload) - HEADER_BYTES) // 4
        assert SwitchSum not in parsed.payload

    def test_a_datagram_of_greatest_length_is_parsed(self) -> None:
        """Sixteen thousand values, which is more than scapy's own limit for lists; that stays as it is."""
        lanes = list(range((65507 - HEADER_BYTES) // 4))
        assert IP(bytes(IP() / UDP() / SwitchSum(values=lanes)))[SwitchSum].values == lanes
        assert conf.max_list_count == type(conf).max_list_count

    @pytest.mark.parametrize(
        ("fields", "shown"),
        [
            ({"kind": PacketType.STATUS}, "STATUS"),
            ({"kind": 0x55}, "85"),
            ({"flags": Flag.WANT_STATUS | Flag.REPAIR}, "WANT_STATUS+REPAIR"),
            ({"flags": 0x82}, "REPAIR+bit_7"),
            ({"exponent": Exponent.ZERO}, "ZERO"),
            ({"exponent": 1}, "1"),
            ({"exponent": Exponent.BIAS + 7}, "BIAS+7"),
            ({"exponent": Exponent.BIAS - 126}, "BIAS-126"),
            ({"exponent": Exponent.SPECIAL}, "SPECIAL"),
            ({"exponent": Exponent.NONE}, "NONE"),
        ],
        ids=str,
    )
    def test_names_are_shown_and_taken(self, fields: dict[str, int], shown: str) -> None:
        [(name, _)] = fields.items()
        packet = SwitchSum(**fields)
        assert packet.sprintf(f"%{name}%") == shown
        if not shown.isdigit() and "bit" not in shown and "BIAS" not in shown:
            assert bytes(SwitchSum(**{name: shown})) == bytes(packet)

    def test_the_summary_says_what_travels_where(self) -> None:
        packet = SwitchSum(kind=PacketType.RESULT, job=7, epoch=100, worker=2, slot=5, phase=9)
        assert (UDP() / packet).summary() == "UDP / RESULT job 7 epoch 100 worker 2 slot 5 phase 9"

    def test_a_packet_without_ports_goes_to_the_switch(self) -> None:
        assert bytes(UDP(sport=40000) / SwitchSum())[2:4] == SERVICE_PORT.to_bytes(2, "big")

    @pytest.mark.parametrize("ports", [{"sport": 51234, "dport": 40000}, {"sport": 40000, "dport": 51234}])
    def test_another_port_is_read_when_asked_for(self, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
        data = bytes(IP() / UDP(**ports) / SwitchSum(job=7))
        monkeypatch.setattr(UDP, "payload_guess", list(UDP.payload_guess))
        assert SwitchSum not in IP(data)
        scapy_layer.decode_port(51234)
        assert IP(data)[SwitchSum].job == 7


@dataclass
class Dissected:
    """What tshark made of one frame: header fields and flags by name, lanes, expert texts, and the two columns."""

    protocol: str
    info: str
    numbers: dict[str, int]
    lanes: list[int]
    experts: list[str]


FLAG_NAMES = {flag: f"flags.{flag.name.lower()}" for flag in Flag}
NUMBERS = [*FIELDS, *FLAG_NAMES.values(), "count"]
BOOLEANS = {"True": "1", "False": "0"}  # as newer releases write them


def ethernet(payload: Packet | bytes, sport: int = 40000, dport: int = SERVICE_PORT) -> bytes:
    """A frame as a worker sends it."""
    packet = Ether(src="02:00:00:00:00:01", dst="02:53:53:00:00:00") / IP(src="10.83.1.1", dst="10.83.0.1")
    return bytes(packet / UDP(sport=sport, dport=dport) / payload)


def write(capture: Path, frames: Sequence[bytes], most_bytes: int = 65535) -> None:
    """A capture of Ethernet frames, of each at most so many bytes (`snaplen`)."""
    with PcapWriter(str(capture), linktype=1) as writer:
        writer.write_header(None)
        for frame in frames:
            kept = frame[:most_bytes]
            writer.write_packet(kept, sec=0, usec=0, caplen=len(kept), wirelen=len(frame))


def split(occurrences: str) -> list[str]:
    """What tshark wrote for a field that occurs any number of times."""
    return occurrences.split("|") if occurrences else []


def tshark(capture: Path, *options: str) -> list[str]:
    """The lines of its output; an error that Lua reports fails the test."""
    script = f"lua_script:{generate.HERE / 'switchsum.lua'}"
    result = subprocess.run(["tshark", "-n", "-X", script, "-r", str(capture), *options], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "lua" not in result.stderr.lower(), result.stderr
    assert "Lua Error" not in result.stdout
    return result.stdout.splitlines()


def dissect(capture: Path, frames: Sequence[bytes], most_bytes: int = 65535) -> list[Dissected]:
    """All frames through one tshark, which takes about a second to start."""
    write(capture, frames, most_bytes)
    names = ["_ws.col.Protocol", "_ws.col.Info", "_ws.lua.error", *(f"switchsum.{name}" for name in NUMBERS)]
    names += ["switchsum.value", "_ws.expert.message"]
    options = [word for name in names for word in ("-e", name)]
    dissected = []
    for line in tshark(capture, "-T", "fields", *options, "-E", "aggregator=|"):
        protocol, info, error, *numbers, lanes, experts = line.split("\t")
        assert error == ""
        by_name = {name: int(BOOLEANS.get(text, text), 0) for name, text in zip(NUMBERS, numbers, strict=True) if text}
        dissected.append(Dissected(protocol, info, by_name, [int(lane) for lane in split(lanes)], split(experts)))
    assert len(dissected) == len(frames)
    return dissected


def random_packets(rng: random.Random, kind: PacketType, number: int) -> list[tuple[dict[str, int], list[int]]]:
    """Headers by HEADER_DTYPE's names, and lanes as many as fit the type; extreme numbers are as likely as others."""
    packets = []
    for _ in range(number):
        header = {"version": WIRE_VERSION, "type": int(kind), "reserved": 0}
        for name in FIELDS:
            top = 256 ** HEADER_DTYPE[name].itemsize - 1
            header.setdefault(name, rng.choice([0, 1, top // 2 + 1, top, rng.randint(0, top)]))
        lanes = rng.choice(ELEMENT_CHOICES) if kind in WITH_VALUES else 0
        packets.append((header, [rng.choice([0, 2**31, 2**32 - 1, rng.getrandbits(32)]) for _ in range(lanes)]))
    return packets


def frame_of(header: dict[str, int], lanes: list[int], **ports: int) -> bytes:
    layer = SwitchSum(**{NAMES.get(name, name): value for name, value in header.items()}, values=lanes)
    return ethernet(layer, **ports)


@needs_tshark
class TestWireshark:
    @pytest.mark.parametrize("kind", PacketType, ids=lambda kind: kind.name)
    def test_every_field_is_shown_as_sent(self, kind: PacketType, tmp_path: Path) -> None:
        packets = random_packets(random.Random(kind), kind, 40)
        seen = dissect(tmp_path / "random.pcap", [frame_of(header, lanes) for header, lanes in packets])
        for (header, lanes), packet in zip(packets, seen, strict=True):
            flags = {name: int(bool(header["flags"] & flag)) for flag, name in FLAG_NAMES.items()}
            assert packet.numbers == {**header, **flags, "count": len(lanes)}
            assert packet.lanes == lanes
            assert packet.experts == []
            assert packet.protocol == "SwitchSum"
            assert packet.info.startswith(
                f"{kind.name} job {header['job']} epoch {header['epoch']} worker {header['worker']}"
                f" slot {header['slot']} phase {header['phase']}"
            )
            assert [flag.name in packet.info for flag in Flag] == [bool(header["flags"] & flag) for flag in Flag]

    def test_a_header_truncated_anywhere_shows_its_whole_fields(self, tmp_path: Path) -> None:
        header = dict.fromkeys(FIELDS, 1) | {"version": WIRE_VERSION, "type": int(PacketType.PROPOSAL)}
        lengths = range(1, HEADER_BYTES)
        seen = dissect(tmp_path / "cut.pcap", [ethernet(header_of(**header)[:length]) for length in lengths])
        for length, packet in zip(lengths, seen, strict=True):
            dtypes = HEADER_DTYPE.fields or {}
            whole = {name: header[name] for name, (dtype, offset) in dtypes.items() if offset + dtype.itemsize <= length}
            assert {name: value for name, value in packet.numbers.items() if name in FIELDS} == whole
            assert packet.info == f"truncated header: {length} of {HEADER_BYTES} bytes"
            assert packet.info in packet.experts
            assert "count" not in packet.numbers

    def test_what_the_capture_left_out_is_not_called_truncated(self, tmp_path: Path) -> None:
        """`tcpdump -s`: the frame was whole on the wire."""
        frame = frame_of(dict.fromkeys(FIELDS, 0) | {"version": WIRE_VERSION, "type": 1}, list(range(64)))
        overhead = len(frame) - HEADER_BYTES - 4 * 64
        [packet] = dissect(tmp_path / "header.pcap", [frame], overhead + 10)
        assert packet.info == f"header cut by the capture's length limit: 10 of {HEADER_BYTES} bytes"
        [packet] = dissect(tmp_path / "no_values.pcap", [frame], overhead + HEADER_BYTES)
        assert (packet.numbers["count"], packet.lanes, packet.experts) == (64, [], [])
        [packet] = dissect(tmp_path / "values.pcap", [frame], overhead + HEADER_BYTES + 4 * 5 + 2)
        assert (packet.numbers["count"], packet.lanes, packet.experts) == (64, [0, 1, 2, 3, 4], [])

    def test_another_version_is_named_and_nothing_else_believed(self, tmp_path: Path) -> None:
        versions = [version for version in range(256) if version != WIRE_VERSION]
        seen = dissect(tmp_path / "versions.pcap", [ethernet(header_of(version=version, job=7)) for version in versions])
        for version, packet in zip(versions, seen, strict=True):
            assert packet.numbers == {"version": version}
            assert packet.info == f"wire version 0x{version:02x}; this dissector reads 0x{WIRE_VERSION:02x}"
            assert packet.experts == [packet.info]

    @pytest.mark.parametrize(
        ("fields", "rest", "expert", "filter_name"),
        [
            ({"type": 1}, 4 * 64 + 1, "bytes after the last whole value: 1", "odd_length"),
            ({"type": 0x81}, 4 * 256 + 3, "bytes after the last whole value: 3", "odd_length"),
            ({"type": 1}, 0, "number of values: 0; a switch program takes 64, 128 or 256", "wrong_count"),
            ({"type": 1}, 4 * 65, "number of values: 65; a switch program takes 64, 128 or 256", "wrong_count"),
            ({"type": 2}, 4, "bytes after a header that travels alone: 4", "wrong_count"),
            ({"type": 0x84}, 2, "bytes after the last whole value: 2", "odd_length"),
            ({"type": 0x55}, 0, "type 0x55", "unknown_type"),
            ({"type": 0x55}, 4 * 64, "type 0x55", "unknown_type"),
            ({"type": 2, "reserved": 1}, 0, "Reserved bits are set", "reserved_set"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_told_and_can_be_filtered(
        self, fields: dict[str, int], rest: int, expert: str, filter_name: str, tmp_path: Path
    ) -> None:
        capture = tmp_path / "wrong.pcap"
        sound = frame_of(dict.fromkeys(FIELDS, 0) | {"version": WIRE_VERSION, "type": 2}, [])
        packet, other = dissect(capture, [ethernet(header_of(**fields) + bytes(rest)), sound])
        assert expert in packet.experts
        assert packet.numbers["count"] == rest // 4
        assert packet.lanes == [0] * (rest // 4)
        assert other.experts == []
        assert tshark(capture, "-Y", f"switchsum.{filter_name}", "-T", "fields", "-e", "frame.number") == ["1"]

    def test_no_packet_has_more_lanes_than_the_largest_program(self, tmp_path: Path) -> None:
        [packet] = dissect(tmp_path / "long.pcap", [ethernet(header_of(type=1) + bytes(4 * 5000))])
        assert (packet.numbers["count"], len(packet.lanes)) == (5000, max(ELEMENT_CHOICES))

    def test_lanes_are_found_by_a_filter_that_shows_none(self, tmp_path: Path) -> None:
        """Lanes are dissected only when asked for, and a filter asks: here alone, without a visible tree."""
        capture = tmp_path / "lanes.pcap"
        write(capture, [ethernet(header_of(type=1, slot=i) + bytes(4 * 63) + bytes([0, 0, 0, i])) for i in range(3)])
        [line] = tshark(capture, "-Y", "switchsum.value == 2")
        assert "CONTRIBUTION job 0 epoch 0 worker 0 slot 2 phase 0" in line

    def test_random_bytes_raise_no_lua_error(self, tmp_path: Path) -> None:
        """On the service's port and, where a heuristic looks at them, on another."""
        rng = random.Random(0x5353)
        frames = []
        for _ in range(400):
            start = [b"", bytes([WIRE_VERSION]), bytes([WIRE_VERSION, rng.choice(list(PacketType))])][rng.randrange(3)]
            payload = start + rng.randbytes(rng.choice([rng.randrange(40), rng.randrange(1400)]))
            frames.append(ethernet(payload, dport=rng.choice([SERVICE_PORT, 51234])))
        dissect(tmp_path / "random.pcap", frames)
        dissect(tmp_path / "short.pcap", frames, 60)
        tshark(tmp_path / "random.pcap", "-V")

    def test_embedded_switches_are_recognised_on_any_port(self, tmp_path: Path) -> None:
        """Sound packets only: another protocol's datagram that begins alike stays what it is."""
        packets = [packet for kind in PacketType for packet in random_packets(random.Random(kind), kind, 5)]
        frames = [frame_of(*packet, sport=51234, dport=51235) for packet in packets]
        seen = dissect(tmp_path / "loopback.pcap", frames)
        assert [(packet.protocol, packet.lanes) for packet in seen] == [("SwitchSum", lanes) for _, lanes in packets]
        foreign = [
            header_of(type=2) + b"\0",
            header_of(type=2)[:-1],
            header_of(type=1),
            header_of(type=1) + bytes(4 * 65),
            header_of(type=1) + bytes(4 * 64 + 2),
            header_of(type=3),
            header_of(type=2, reserved=1),
            header_of(type=2, version=WIRE_VERSION + 1),
        ]
        seen = dissect(tmp_path / "foreign.pcap", [ethernet(payload, sport=51234, dport=51235) for payload in foreign])
        assert [packet.protocol for packet in seen] == ["UDP"] * len(foreign)

    def test_datagrams_that_the_kernel_joined_are_shown_one_by_one(self, tmp_path: Path) -> None:
        """On the service's port and on another, as captures on loopback show what an embedded switch and its workers send."""
        for ports in ({}, {"sport": 51234, "dport": 51235}):
            frames = [ethernet(b"".join(packets), **ports) for packets in JOINED.values()]
            capture = tmp_path / "joined.pcap"
            write(capture, frames)
            lines = tshark(capture, "-T", "fields", "-e", "switchsum.slot", "-e", "switchsum.count", "-e", "_ws.expert.message")
            expected = []
            for packets in JOINED.values():
                counts = [(len(packet) - HEADER_BYTES) // 4 for packet in packets]
                expected.append([",".join(map(str, range(len(packets)))), ",".join(map(str, counts)), ""])
            assert [line.split("\t") for line in lines] == expected
            [info, *_] = tshark(capture, "-T", "fields", "-e", "_ws.col.Info")
            assert info == "2 packets in one, the last: CONTRIBUTION job 7 epoch 0 worker 0 slot 1 phase 0"

    def test_what_the_kernel_would_not_join_is_one_malformed_packet(self, tmp_path: Path) -> None:
        seen = dissect(tmp_path / "not.pcap", [ethernet(payload) for payload in NOT_JOINED.values()])
        for payload, packet in zip(NOT_JOINED.values(), seen, strict=True):
            assert packet.numbers["slot"] == 0
            assert packet.numbers["count"] == (len(payload) - HEADER_BYTES) // 4
            assert packet.experts != []
        seen = dissect(tmp_path / "foreign.pcap", [ethernet(payload, 51234, 51235) for payload in NOT_JOINED.values()])
        assert [packet.protocol for packet in seen] == ["UDP"] * len(NOT_JOINED)

    def test_details_name_what_codes_and_bits_mean(self, tmp_path: Path) -> None:
        fields: list[dict[str, int]] = [
            {"type": PacketType.STATUS, "tag": 0x80000005, "flags": Flag.WANT_STATUS},
            {"type": PacketType.STATUS, "tag": 0, "exponent": Exponent.ZERO},
            {"type": PacketType.AGREEMENT, "tag": 5, "exponent": Exponent.BIAS - 126},
            {"type": PacketType.PROPOSAL, "exponent": Exponent.SPECIAL},
            {"type": PacketType.PROPOSAL, "exponent": Exponent.NONE},
            {"type": PacketType.PROPOSAL, "exponent": 1},
        ]
        frames = [ethernet(header_of(**packet)) for packet in fields]
        frames.append(ethernet(header_of(type=PacketType.RESULT) + np.arange(64, dtype=">u4").tobytes()))
        capture = tmp_path / "details.pcap"
        write(capture, frames)
        pages = "\n".join(tshark(capture, "-O", "switchsum")).split("Frame ")[1:]
        lines = [[line.strip() for line in page.splitlines()] for page in pages]
        assert "Type: STATUS (0x84)" in lines[0]
        assert "Tag: 0x80000005 (workers in the row: 0, 2, 31)" in lines[0]
        assert ".... ...1 = WANT_STATUS: True" in lines[0]
        assert ".... ..0. = REPAIR: False" in lines[0]
        assert "Tag: 0x00000000 (workers in the row: none)" in lines[1]
        assert "Exponent: 0x0000 (ZERO)" in lines[1]
        assert "Tag: 0x00000005" in lines[2]
        assert "Exponent: 0x0782 (2^-126)" in lines[2]
        assert "Exponent: 0xfffe (SPECIAL)" in lines[3]
        assert "Exponent: 0xffff (NONE)" in lines[4]
        assert "Exponent: 0x0001" in lines[5]
        assert [line for line in lines[6] if line.startswith("Lane ")] == [f"Lane {i}: {i}" for i in range(64)]
        [info, *_] = tshark(capture, "-T", "fields", "-e", "_ws.col.Info")
        assert info == "STATUS job 0 epoch 0 worker 0 slot 0 phase 0 WANT_STATUS has workers 0, 2, 31"

    def test_scapy_reads_the_same_capture(self, tmp_path: Path) -> None:
        packets = [packet for kind in PacketType for packet in random_packets(random.Random(kind), kind, 5)]
        capture = tmp_path / "both.pcap"
        seen = dissect(capture, [frame_of(*packet) for packet in packets])
        layers = [frame[SwitchSum] for frame in rdpcap(str(capture))]
        read = [({name: int(getattr(layer, NAMES.get(name, name))) for name in FIELDS}, layer.values) for layer in layers]
        assert read == packets
        assert [({name: packet.numbers[name] for name in FIELDS}, packet.lanes) for packet in seen] == packets
