"""Hashes, the random extern and checksums, against independent implementations. Program: programs/hashing.p4."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP, Ether
from scapy.packet import Raw

from switchsum.softswitch.dataplane import Dataplane, Program
from tests.softswitch.bmv2_json import const, field, program
from tests.softswitch.conftest import compiled

Switch = Callable[..., Dataplane]
CRC16, CRC32, CSUM16, XOR16, IDENTITY, MIXED, RANDOM, UPDATE, NOTHING = range(9)


def ip_packet(payload: bytes = b"", src: str = "10.1.2.3", dst: str = "172.16.255.1", **fields: int) -> bytes:
    """IPv4/UDP with all checksums right, by scapy."""
    return bytes(Ether(bytes(Ether() / IP(src=src, dst=dst, **fields) / UDP(sport=4660, dport=22136) / Raw(payload)))[IP])


def send(dataplane: Dataplane, op: int, inner: bytes, low: int = 0, high: int = 0) -> tuple[int, int, bytes]:
    """(hash, checksum_error, packet as it left)"""
    [(_, data)] = dataplane.process(1, struct.pack(">BII", op, low, high) + inner)
    value, wrong = struct.unpack(">QB", data[:9])
    return value, wrong, data[9:]


def crc16_arc(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def internet_checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def xor16(data: bytes) -> int:
    result = 0
    for word in struct.unpack(f">{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)):
        result ^= word
    return result


def test_the_references_know_the_published_check_values() -> None:
    """CRC catalogue: the CRC of "123456789"."""
    assert crc16_arc(b"123456789") == 0xBB3D
    assert zlib.crc32(b"123456789") == 0xCBF43926


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4), st.integers(0, 255), st.integers(0, 255))
def test_hashes_equal_their_references(src: bytes, dst: bytes, ttl: int, tos: int) -> None:
    dataplane = Dataplane(compiled("hashing"))
    inner = bytearray(ip_packet(b"xy"))
    inner[12:16], inner[16:20], inner[8], inner[1] = src, dst, ttl, tos
    frame = bytes(inner)
    assert send(dataplane, CRC16, frame)[0] == crc16_arc(src + dst + b"\x11" + b"\x12\x34") % 0x10000
    assert send(dataplane, CRC32, frame)[0] == zlib.crc32(src + dst + b"\x11")
    assert send(dataplane, CSUM16, frame)[0] == internet_checksum(src + dst + bytes([ttl]))
    assert send(dataplane, XOR16, frame)[0] == xor16(src + dst + bytes([ttl]))
    assert send(dataplane, IDENTITY, frame)[0] == int.from_bytes(src + bytes([tos]), "big")


def test_fields_that_are_not_whole_bytes_are_joined_and_padded(switch: Switch) -> None:
    """src, 3 bits of flags, 3 bits that p4c copies from a header which may be invalid (then zero), dst, zeros behind."""
    dataplane = switch("hashing")
    for protocol in (17, 6):
        inner = bytearray(ip_packet(b"", flags=5))
        inner[9] = protocol
        inner[20] = 0xA0  # the odd header's a = 5, if it is parsed
        bits = f"{int.from_bytes(inner[12:16], 'big'):032b}101" + ("101" if protocol == 6 else "000")
        bits += f"{int.from_bytes(inner[16:20], 'big'):032b}"
        bits += "0" * (-len(bits) % 8)
        expected = zlib.crc32(int(bits, 2).to_bytes(len(bits) // 8, "big"))
        assert send(dataplane, MIXED, bytes(inner), 100, 1000)[0] == (expected % 1000 + 100)
        assert send(dataplane, MIXED, bytes(inner), 100, 0)[0] == 100  # max 0 counts as 1


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_fields_of_invalid_headers_are_left_out(first: bool, second: bool) -> None:
    """simple_switch skips them, wherever that leaves the bits behind them. Hand-written: p4c copies fields first."""
    headers: dict[str, list[list[Any]]] = {
        "c": [["value", 32]],
        "p": [["x", 3], ["y", 13]],
        "q": [["x", 10], ["y", 6]],
        "whole": [["b", 8]],
    }
    inputs = [
        {"type": "field", "value": ["p", "x"]},
        {"type": "hexstr", "value": "0x5", "bitwidth": 3},
        {"type": "header", "value": "whole"},
        {"type": "field", "value": ["q", "x"]},
    ]
    hashed = {
        "op": "modify_field_with_hash_based_offset",
        "parameters": [field("c", "value"), const(0), {"type": "calculation", "value": "calc"}, const(1 << 32)],
    }
    removals = [
        {"op": "remove_header", "parameters": [{"type": "header", "value": name}]}
        for name, there in (("p", first), ("q", second))
        if not there
    ]
    document = program(headers, [*removals, hashed], ["c"])
    document["calculations"] = [{"name": "calc", "id": 0, "algo": "crc32", "input": inputs}]
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    [(_, data)] = dataplane.process(1, bytes(4) + bytes.fromhex("dead beef 7c"))
    bits = (f"{0xDEAD >> 13:03b}" if first else "") + "101" + f"{0x7C:08b}" + (f"{0xBEEF >> 6:010b}" if second else "")
    bits += "0" * (-len(bits) % 8)
    assert int.from_bytes(data, "big") == zlib.crc32(int(bits, 2).to_bytes(len(bits) // 8, "big"))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sums_of_fields_of_any_width_equal_the_sum_of_their_bytes(data: st.DataObject) -> None:
    """csum16 over two headers that may be invalid, of whole words or not, and a constant; fields of up to 80 bits."""
    headers: dict[str, list[list[Any]]] = {"c": [["value", 16]]}
    inputs: list[dict[str, Any]] = []
    removals, bits = [], ""
    values = bytearray()
    for name in ("p", "q"):
        widths = data.draw(st.lists(st.integers(1, 80), min_size=1, max_size=6))
        padding = -sum(widths) % data.draw(st.sampled_from((8, 16)))
        widths += [padding] if padding else []
        headers[name] = [[f"f{i}", width] for i, width in enumerate(widths)]
        number = data.draw(st.integers(0, (1 << sum(widths)) - 1) | st.sampled_from((0, (1 << sum(widths)) - 1)))
        values += number.to_bytes(sum(widths) // 8, "big")
        inputs += [{"type": "field", "value": [name, f"f{i}"]} for i in range(len(widths))]
        if data.draw(st.booleans()):
            removals.append({"op": "remove_header", "parameters": [{"type": "header", "value": name}]})
        else:
            bits += f"{number:0{sum(widths)}b}"
        if name == "p":
            inputs.append({"type": "hexstr", "value": "0x1234567", "bitwidth": 28})
            bits += f"{0x1234567:028b}"
    hashed = {
        "op": "modify_field_with_hash_based_offset",
        "parameters": [field("c", "value"), const(0), {"type": "calculation", "value": "calc"}, const(1 << 32)],
    }
    document = program(headers, [*removals, hashed], ["c"])
    document["calculations"] = [{"name": "calc", "id": 0, "algo": "csum16", "input": inputs}]
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    [(_, answer)] = dataplane.process(1, bytes(2) + bytes(values))
    bits += "0" * (-len(bits) % 8)
    assert int.from_bytes(answer, "big") == internet_checksum(int(bits, 2).to_bytes(len(bits) // 8, "big"))


# --- checksums


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 100, 1001])
def test_checksums_are_verified_with_payload(switch: Switch, size: int) -> None:
    dataplane = switch("hashing")
    good = ip_packet(bytes(range(256)) * 4 + bytes(3), id=77)[: 28 + size]
    good = ip_packet(good[28:])
    assert send(dataplane, NOTHING, good)[1] == 0
    for position in (1, 19, 26, *([len(good) - 1] if size else [])):
        bad = bytearray(good)
        bad[position] ^= 0x10
        assert send(dataplane, NOTHING, bytes(bad))[1] == 1, position


def test_a_condition_that_fails_skips_the_checksum(switch: Switch) -> None:
    inner = bytearray(ip_packet(b"abc"))
    inner[26:28] = b"\0\0"
    assert send(switch("hashing"), NOTHING, bytes(inner))[1] == 0


@pytest.mark.parametrize("size", [0, 1, 5, 64, 1400])
def test_checksums_are_updated_before_the_packet_leaves(switch: Switch, size: int) -> None:
    """Egress lowers the TTL; scapy computes what both checksums must be then."""
    payload = bytes(n * 7 & 0xFF for n in range(size))
    _, _, left = send(switch("hashing"), UPDATE, ip_packet(payload, ttl=64))
    assert left == ip_packet(payload, ttl=63)


# --- random


def test_random_numbers_follow_the_seed_and_fill_their_range(switch: Switch) -> None:
    def draws(seed: int, low: int, high: int, count: int) -> list[int]:
        dataplane = switch("hashing", seed)
        return [send(dataplane, RANDOM, inner, low, high)[0] for _ in range(count)]

    inner = ip_packet()

    assert draws(1, 0, 0xFFFFFFFF, 20) == draws(1, 0, 0xFFFFFFFF, 20)
    assert draws(1, 0, 0xFFFFFFFF, 20) != draws(2, 0, 0xFFFFFFFF, 20)
    assert set(draws(3, 10, 13, 200)) == {10, 11, 12, 13}
    assert draws(4, 9, 9, 3) == [9, 9, 9]
    assert draws(5, 9, 8, 1) == [0]  # an empty range leaves the target alone
    thousand = draws(6, 0, 999, 2000)
    assert 400 < sum(thousand) / 2000 < 600


def test_reset_state_restarts_the_random_extern(switch: Switch) -> None:
    dataplane = switch("hashing", 9)
    first = [send(dataplane, RANDOM, ip_packet(), 0, 1 << 31)[0] for _ in range(5)]
    dataplane.reset_state()
    assert [send(dataplane, RANDOM, ip_packet(), 0, 1 << 31)[0] for _ in range(5)] == first
