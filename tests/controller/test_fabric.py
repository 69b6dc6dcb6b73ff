"""The fabric's description: what a good file means, and that a bad one is told line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchsum.controller import fabric
from switchsum.controller.errors import FabricError
from switchsum.controller.jobs import Attachment

RACK = """\
kind: rack
switch: {address: 10.83.0.1, mac: "02:53:53:00:00:00"}
ports:
  1: [{address: 10.83.0.11, mac: "02:00:00:00:00:0b"}]
  2:
    - {address: 10.83.0.12, mac: "02:00:00:00:00:0c"}
    - {address: 10.83.0.13, mac: "02:00:00:00:00:0d"}
  9: []
"""
LOOPBACK = """\
kind: loopback
ports:
  1: 127.0.0.1:41001
  2: 127.0.0.2:41002
"""


def test_a_rack_knows_its_hosts_by_address() -> None:
    rack = fabric.parse(RACK, "rack.yaml")
    assert rack.ports == (1, 2, 9)
    assert rack.carries_other_traffic
    assert [(station.mac, station.port) for station in rack.stations] == [
        (0x02000000000B, 1),
        (0x02000000000C, 2),
        (0x02000000000D, 2),
    ]
    assert rack.attach("10.83.0.13", {}, {}) == Attachment(2, 0x02000000000D, "10.83.0.1", 0x5353)


def test_a_stranger_to_the_rack_is_told_who_is_known() -> None:
    with pytest.raises(
        ValueError,
        match=r"10\.9\.9\.9 belongs to no host of this fabric \(known: 10\.83\.0\.11, 10\.83\.0\.12, 10\.83\.0\.13\)",
    ):
        fabric.parse(RACK, "rack.yaml").attach("10.9.9.9", {}, {})


def test_a_loopback_fabric_takes_the_least_used_port() -> None:
    loopback = fabric.parse(LOOPBACK, "local.yaml")
    assert not loopback.carries_other_traffic
    assert loopback.attach("127.0.0.1", {}, {}) == Attachment(1, 0x02007F000001, "127.0.0.1", 41001)
    assert loopback.attach("127.0.0.1", {}, {1: 1}).port == 2
    assert loopback.attach("127.0.0.1", {2: 1}, {1: 5, 2: 1}).port == 1  # the job's own spread comes first


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "f.yaml line 1: the file is empty"),
        ("kind: [", "f.yaml line 1: not YAML: "),
        ("- a", "f.yaml line 1: must be a mapping"),
        ("kind: rack", "f.yaml line 1: the field ports is missing"),
        (RACK + "extra: 1\n", "f.yaml line 9, extra: is not a field; there are kind, links, loss, ports, server, switch"),
        (RACK + "kind: rack\n", "f.yaml line 9, kind: is there twice"),
        (RACK.replace("kind: rack", "kind: mesh"), "f.yaml line 1, kind: 'mesh' is not a kind of fabric; write loop"),
        (RACK.replace("kind: rack", "kind: {a: 1}"), "f.yaml line 1, kind: must be a single value"),
        (RACK.replace("10.83.0.12", "10.83.0.300"), "f.yaml line 6, ports.2[0].address: '10.83.0.300' is not an IPv4 address"),
        (RACK.replace("00:0d", "00"), "f.yaml line 7, ports.2[1].mac: '02:00:00:00:00' is not a MAC address in quotes"),
        (RACK.replace("10.83.0.13", "10.83.0.11"), "f.yaml line 7, ports.2[1].address: 10.83.0.11 belongs to port 1 already"),
        (RACK.replace("10.83.0.13", "10.83.0.1"), "f.yaml line 7, ports.2[1].address: 10.83.0.1 belongs to the switch already"),
        (RACK.replace("00:0c", "00:0b"), "f.yaml line 6, ports.2[0].mac: 02:00:00:00:00:0b belongs to port 1 already"),
        (RACK.replace("  9: []", "  9: here"), "f.yaml line 8, ports.9: must be a list"),
        (RACK.replace("  9: []", "  511: []"), "f.yaml line 8, ports.511: '511' is not a port number from 1 to 510"),
        (RACK.replace("  9: []", "  01: []"), "f.yaml line 8, ports.01: '01' is not a port number"),
        (RACK.replace("02:53:53:00:00:00", "switch"), "f.yaml line 2, switch.mac: 'switch' is not a MAC address"),
        (RACK.replace(', mac: "02:00:00:00:00:0b"', ""), "f.yaml line 4, ports.1[0]: the field mac is missing"),
        (LOOPBACK.replace("41001", "70000"), "f.yaml line 3, ports.1: '127.0.0.1:70000' is not HOST:PORT on loopback"),
        (LOOPBACK.replace("127.0.0.1", "10.0.0.1"), "f.yaml line 3, ports.1: '10.0.0.1:41001' is not HOST:PORT on loopback"),
        (LOOPBACK.replace("127.0.0.2:41002", "127.0.0.1:41001"), "f.yaml line 3, ports.1: two ports have this socket"),
        ("kind: loopback\nports: {}\n", "f.yaml line 2, ports: no port is listed"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_line_and_field(text: str, complaint: str) -> None:
    with pytest.raises(FabricError) as caught:
        fabric.parse(text, "f.yaml")
    assert str(caught.value).startswith(complaint)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"nothing\.yaml: cannot be read"):
        fabric.load(tmp_path / "nothing.yaml")
    (tmp_path / "rack.yaml").write_text(RACK)
    assert fabric.load(tmp_path / "rack.yaml").ports == (1, 2, 9)
