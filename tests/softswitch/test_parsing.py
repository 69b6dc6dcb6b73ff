"""The parser: selects, lookahead, stacks, varbits, advance and errors. Program: programs/parsing.p4."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from switchsum.softswitch.dataplane import Dataplane, Program
from tests.softswitch.bmv2_json import assign, const, field, op, program

Switch = Callable[..., Dataplane]
SHORT, STACK, HEADER_TOO_SHORT, BAD_MARKER = 1, 3, 4, 5


def marker(kind: int, count: int = 0, value: int = 0) -> bytes:
    return struct.pack(">BBH", kind, count, value)


def label(number: int, bottom: int, ttl: int = 64) -> bytes:
    return (number << 12 | bottom << 8 | ttl).to_bytes(4, "big")


def parse(dataplane: Dataplane, frame: bytes) -> tuple[dict[str, int], bytes]:
    """What the program reports, and the rest of the packet as it left."""
    [(port, data)] = dataplane.process(2, frame)
    assert port == 1
    names = ("error", "labels", "last_label", "peeked", "flags")
    return dict(zip(names, struct.unpack(">BBHBB", data[:6]), strict=True)), data[6:]


@pytest.mark.parametrize(
    ("frame", "error", "flags", "peeked", "skipped"),
    [
        (marker(5, 0), 0, 0, 0, 0),
        (marker(4, 3) + b"abc", 0, 2, 0, 3),
        (marker(4, 2) + b"abc", 0, 2, 0, 2),
        (marker(4, 3) + b"ab", SHORT, 0, 0, 0),
        (marker(4, 255) + bytes(255), 0, 2, 0, 255),
        (marker(5, 0, 0xDEAD), BAD_MARKER, 0, 0, 0),
        (marker(3, 5) + bytes.fromhex("abcdef"), 0, 1, 0xCD, 0),
        (marker(3, 9) + bytes.fromhex("abddef"), 0, 0, 0xDD, 0),
        (marker(3, 9) + bytes.fromhex("12fdef"), SHORT, 0, 0xFD, 0),
        (marker(3, 9) + bytes.fromhex("12fdef") + bytes(6), 0, 2, 0xFD, 9),
        (marker(3, 4) + bytes.fromhex("abcdef"), 0, 0, 0, 0),
        (marker(3, 5) + bytes.fromhex("abcd"), SHORT, 0, 0, 0),
        (marker(2, 0x1F) + bytes.fromhex("4012"), SHORT, 0, 0, 0),
        (b"", SHORT, 0, 0, 0),
        (b"\x05\x00\x00", SHORT, 0, 0, 0),
    ],
)
def test_what_the_parser_finds_or_refuses(
    switch: Switch, frame: bytes, error: int, flags: int, peeked: int, skipped: int
) -> None:
    """A packet with a parser error is not lost: ingress sees the error, and what was not parsed leaves as it came."""
    dataplane = switch("parsing")
    report, rest = parse(dataplane, frame)
    assert (report["error"], report["flags"], report["peeked"]) == (error, flags, peeked)
    assert rest == frame[:4] + frame[4 + skipped :]
    assert dataplane.statistics["parser_errors"] == (1 if error else 0)


def test_a_select_without_a_match_accepts(switch: Switch) -> None:
    """P4 says NoMatch, but p4c's JSON has no default transition and simple_switch then accepts without an error."""
    for frame in (marker(5, 1), marker(200), marker(3, 10)):
        report, rest = parse(switch("parsing"), frame)
        assert report["error"] == 0
        assert rest == frame


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stack_takes_headers_until_the_bottom(switch: Switch, depth: int) -> None:
    labels = [label(100 + n, n == depth - 1) for n in range(depth)]
    frame = marker(1) + b"".join(labels) + b"payload"
    report, rest = parse(switch("parsing"), frame)
    assert (report["error"], report["labels"], report["last_label"]) == (0, depth, 100 + depth - 1)
    assert rest == frame


def test_a_stack_that_overflows_is_an_error_behind_its_last_header(switch: Switch) -> None:
    frame = marker(1) + b"".join(label(n, 0) for n in range(5))
    report, rest = parse(switch("parsing"), frame)
    assert (report["error"], report["labels"], report["last_label"]) == (STACK, 3, 2)
    assert rest == frame


@pytest.mark.parametrize("words", [0, 1, 9, 10])
def test_varbits_of_every_length_pass_unchanged(switch: Switch, words: int) -> None:
    data = bytes(range(1, 1 + 4 * words))
    frame = marker(2, 0x10) + bytes([0x40 | words, 0x77]) + data + b"\xbe\xef" + b"rest"
    report, rest = parse(switch("parsing"), frame)
    assert report["error"] == 0
    assert rest == frame


def test_a_varbit_longer_than_declared_is_refused(switch: Switch) -> None:
    frame = marker(2, 0x10) + bytes([0x4B, 0x77]) + bytes(60)
    report, rest = parse(switch("parsing"), frame)
    assert report["error"] == HEADER_TOO_SHORT
    assert rest == frame


def test_nothing_of_one_packet_is_left_in_the_next(switch: Switch) -> None:
    dataplane = switch("parsing")
    parse(dataplane, marker(1) + label(5, 0) + label(6, 1))
    report, _ = parse(dataplane, marker(5, 0))
    assert report == {"error": 0, "labels": 0, "last_label": 0, "peeked": 0, "flags": 0}


@pytest.mark.parametrize("mentioned", [False, True])
def test_a_long_header_that_is_missing_is_zero_whatever_came_before(mentioned: bool) -> None:
    """The packet ends before it, or in it; `mentioned`: the parser also writes a field of it first, which stays."""
    headers: dict[str, list[list[Any]]] = {"first": [["x", 32]], "long": [[f"v{i}", 32] for i in range(64)]}
    copied = assign(field("first", "x"), op("+", field("long", "v3"), field("long", "v63")))
    document = program(headers, [copied], ["first"], extracted=["first", "long"])
    if mentioned:
        setting = {"op": "set", "parameters": [field("long", "v3"), const(5)]}
        document["parsers"][0]["parse_states"][0]["parser_ops"].insert(0, setting)
    dataplane = Dataplane(Program.from_text(json.dumps(document)))
    whole = b"abcd" + struct.pack(">64I", *range(100, 164))
    for frame, expected in ((whole, 103 + 163), (whole[:4], 5 * mentioned), (whole, 266), (whole[:-1], 5 * mentioned)):
        [(_, data)] = dataplane.process(1, frame)
        assert data[:4] == struct.pack(">I", expected)
