"""A Tofino without a Tofino: what its P4Runtime servers are sent, read back; ports from YAML; a server that knows fewer calls.

Compiled output of p4c-barefoot is not committed but for P4Info, so the other files of a build are short ones here.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from p4.v1 import p4runtime_pb2_grpc

from switchsum.controller import fabric, front_panel, tofino
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.errors import FabricError, WrongProgram
from switchsum.controller.fabric import TofinoFabric
from switchsum.controller.front_panel import Chip, Server
from switchsum.controller.options import ControllerOptions
from switchsum.controller.pipeline import build_folder
from switchsum.controller.switch_session import SwitchSession
from switchsum.softswitch import p4runtime_server
from switchsum.softswitch.daemon import SoftSwitch

RACK = """\
kind: tofino
server: stratum
ports:
  132: [{address: 10.83.0.11, mac: "02:00:00:00:00:0b"}]
  140: [{address: 10.83.0.12, mac: "02:00:00:00:00:0c"}]
  141: []
  0: [{address: 10.83.0.13, mac: "02:00:00:00:00:0d"}]
links:
  132: {panel: 1/0, speed: 100G, fec: rs, autonegotiation: off}
  140: {panel: 2/0, speed: 25G, fec: none, autonegotiation: auto}
  141: {panel: 2/1, speed: 10G, fec: fc, autonegotiation: on}
  0: {panel: 32/0, speed: 40G, fec: none, autonegotiation: auto}
"""
SCHEMA, BINARY = b'{"tables": []}', bytes(range(256)) * 3


def parsed(text: str = RACK) -> TofinoFabric:
    described = fabric.parse(text, "rack.yaml")
    assert isinstance(described, TofinoFabric)
    return described


def context(chip: Chip) -> bytes:
    return json.dumps({"program_name": "switchsum", "target": chip.value}).encode()


@pytest.fixture(params=list(Chip), ids=lambda chip: chip.value)
def compiled(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Chip, Path]:
    """What `make p4-tna` leaves, for one chip: (chip, folder)."""
    chip = request.param
    stem = f"switchsum_{chip.value}_64"
    pipe = tmp_path / stem / "pipe"
    pipe.mkdir(parents=True)
    shutil.copy(build_folder() / "tna" / f"{stem}.p4info.txtpb", tmp_path / stem)
    (tmp_path / stem / "bf-rt.json").write_bytes(SCHEMA)
    (pipe / "context.json").write_bytes(context(chip))
    (pipe / f"{chip.value}.bin").write_bytes(BINARY)
    return chip, tmp_path


def message(fields: dict[str, list[tuple[str, int, int, bool]]]) -> Callable[[str], Any]:
    """Classes of these messages, by name: (field, number, type, repeated)."""
    file = descriptor_pb2.FileDescriptorProto(name="read_back.proto", package="read_back", syntax="proto3")
    for name, own in fields.items():
        described = file.message_type.add(name=name)
        for field_name, number, kind, is_repeated in own:
            field = described.field.add(name=field_name, number=number, type=kind)
            field.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            if kind == field.TYPE_MESSAGE:
                field.type_name = ".read_back.Profile"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName(f"read_back.{name}"))()


FIELD = descriptor_pb2.FieldDescriptorProto
STRATUM = {  # stratum/hal/lib/barefoot/bf.proto
    "Profile": [
        ("profile_name", 1, FIELD.TYPE_STRING, False),
        ("context", 2, FIELD.TYPE_BYTES, False),
        ("binary", 3, FIELD.TYPE_BYTES, False),
        ("pipe_scope", 4, FIELD.TYPE_UINT32, True),
    ],
    "BfPipelineConfig": [
        ("p4_name", 1, FIELD.TYPE_STRING, False),
        ("bfruntime_info", 2, FIELD.TYPE_BYTES, False),
        ("profiles", 3, FIELD.TYPE_MESSAGE, True),
    ],
}
PI = {"P4DeviceConfig": [("device_data", 3, FIELD.TYPE_BYTES, False)]}  # proto/p4/tmp/p4config.proto


def test_stratum_reads_what_was_packed(compiled: tuple[Chip, Path]) -> None:
    chip, folder = compiled
    build = tofino.load(chip, Server.STRATUM, folder)
    assert build.description == f"switchsum 1, 64 elements, {chip.value}, for stratum"
    config = message(STRATUM)("BfPipelineConfig")
    assert config.ParseFromString(build.device_config) == len(build.device_config)
    assert (config.p4_name, config.bfruntime_info) == ("switchsum", SCHEMA)
    [profile] = config.profiles
    assert (profile.profile_name, list(profile.pipe_scope)) == ("pipe", [0, 1, 2, 3])
    assert (profile.context, profile.binary) == (context(chip), BINARY)
    assert config.SerializeToString() == build.device_config


def test_bf_switchd_reads_what_was_packed(compiled: tuple[Chip, Path]) -> None:
    chip, folder = compiled
    build = tofino.load(chip, Server.BF_SWITCHD, folder)
    config = message(PI)("P4DeviceConfig")
    assert config.ParseFromString(build.device_config) == len(build.device_config)
    parts, rest = [], config.device_data
    while rest:
        (length,) = struct.unpack_from("<I", rest)
        parts.append(rest[4 : 4 + length])
        assert len(parts[-1]) == length
        rest = rest[4 + length :]
    assert parts == [b"switchsum", BINARY, context(chip), b"pipe", SCHEMA]
    assert build.cookie != tofino.load(chip, Server.STRATUM, folder).cookie


def test_the_configuration_can_be_written_for_others(
    compiled: tuple[Chip, Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    chip, folder = compiled
    assert tofino.main([chip.value, "stratum", str(folder)]) == 0
    assert capsysbinary.readouterr().out == tofino.load(chip, Server.STRATUM, folder).device_config
    assert tofino.main([chip.value, "stratum", str(folder / "none")]) == 1
    assert b"cannot be read (No such file or directory); run `make p4-tna" in capsysbinary.readouterr().err


def test_the_bytes_are_these() -> None:
    assert tofino.for_stratum("p", b"s", b"c", b"b" * 200) == (
        b"\x0a\x01p\x12\x01s\x1a\xda\x01\x0a\x04pipe\x12\x01c\x1a\xc8\x01" + b"b" * 200 + b"\x22\x04\0\1\2\3"
    )
    assert tofino.for_bf_switchd("p", b"s", b"c", b"b") == (b"\x1a\x1c\1\0\0\0p\1\0\0\0b\1\0\0\0c\4\0\0\0pipe\1\0\0\0s")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("pipe/tofino.bin", None, r"tofino\.bin cannot be read \(No such file or directory\); run `make p4-tna BFP4C="),
        ("pipe/context.json", b"{", r"context\.json is not the context\.json of bfas; run `make p4-tna"),
        (
            "pipe/context.json",
            b'{"program_name": "switchsum", "target": "tofino2"}',
            r"context\.json is of the program 'switchsum' for tofino2, not 'switchsum' for tofino; run",
        ),
        ("switchsum_tofino_64.p4info.txtpb", b"", "switchsum_tofino_64 holds another program than this release drives; run"),
    ],
)
@pytest.mark.parametrize("compiled", [Chip.TOFINO], indirect=True)
def test_a_wrong_file_is_told(compiled: tuple[Chip, Path], name: str, content: bytes | None, complaint: str) -> None:
    path = compiled[1] / "switchsum_tofino_64" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(WrongProgram, match=complaint):
        tofino.load(Chip.TOFINO, Server.STRATUM, compiled[1])


def test_a_rack_with_a_tofino_is_read_and_written() -> None:
    rack = parsed()
    assert (rack.chip, rack.server, rack.ports) == (Chip.TOFINO, Server.STRATUM, (0, 132, 140, 141))
    assert rack.links[141].as_fields() == {"panel": "2/1", "speed": "10G", "fec": "fc", "autonegotiation": "on"}
    again = fabric.parse(rack.as_yaml(), "again.yaml")
    assert isinstance(again, TofinoFabric)
    assert (again.links, set(again.stations)) == (rack.links, set(rack.stations))
    assert (again.chip, again.server, again.ports) == (rack.chip, rack.server, rack.ports)


def test_a_job_stays_in_one_pipe() -> None:
    rack = parsed()
    assert rack.attach("10.83.0.12", {132: 1}, {0: 3}).port == 140
    with pytest.raises(
        ValueError,
        match=r"10\.83\.0\.13 is at port 0, in pipe 0 of the switch, others of the job are at port 132, in pipe 1: a Tofino",
    ):
        rack.attach("10.83.0.13", {132: 1}, {})


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("server: stratum\n", "", "line 1, kind: a tofino also needs the field server"),
        ("server: stratum", "server: onos", "line 2, server: 'onos' is not a P4Runtime server; there are stratum, bf_switchd"),
        ("kind: tofino\nserver: stratum", "kind: rack\nserver: stratum", "only kinds tofino and tofino2 have it"),
        ("  141: []", "  200: []", r"line 6, ports.200: a pipe of a Tofino has ports 0 to 71, the next 128 to 199, and so on"),
        ("  141: []", "  600: []", "'600' is not a port number from 0 to 511"),
        ("  141: {", "  142: {", r"line 11, links.142: there is no such port"),
        ("panel: 2/1", "panel: 2/0", r"line 10, links.140: two ports are 2/0 of the front panel"),
        ("panel: 2/1", "panel: 2", r"line 11, links.141.panel: '2' is not a port of the front panel, such as 1/0"),
        (
            "speed: 25G",
            "speed: 25",
            r"links.140.speed: '25' is not a speed; there are 1G, 10G, 25G, 40G, 50G, 100G, 200G, 400G",
        ),
        ("fec: rs", "fec: on", r"links.132.fec: 'on' is not an error correction; there are none, fc, rs"),
        ("autonegotiation: off", "autonegotiation: 0", r"'0' is not a way to negotiate; there are auto, on, off"),
        ("fec: rs, autonegotiation: off", "fec: rs", r"line 9, links.132: the field autonegotiation is missing"),
        ("speed: 100G, fec: rs", "speed: 400G, fec: rs", "links.132: Stratum brings up ports to 100G; for 400G use bf_switchd"),
        (
            "speed: 100G, fec: rs",
            "speed: 100G, fec: fc",
            "Stratum cannot do fec: fc at 100G; write fec: none or rs, or use bf_sw",
        ),
        ("speed: 100G, fec: rs", "speed: 1G, fec: rs", "Stratum cannot do fec: rs at 1G; write fec: none, or use bf_switchd"),
    ],
)
def test_a_bad_description_is_told_line_and_field(old: str, new: str, complaint: str) -> None:
    assert old in RACK
    with pytest.raises(FabricError, match=complaint):
        fabric.parse(RACK.replace(old, new, 1), "rack.yaml")


def test_a_port_without_a_link_is_told() -> None:
    with pytest.raises(FabricError, match=r"line 6, ports.141: it has no link; say under links which port of the front panel"):
        fabric.parse("".join(line for line in RACK.splitlines(True) if "2/1" not in line), "rack.yaml")


def test_stratum_gets_a_chassis_configuration() -> None:
    rack = parsed()
    assert front_panel.chassis_config(rack.links, rack.chip) == (
        'description: "SwitchSum, switchsum tofino-ports"\n'
        'chassis { platform: PLT_GENERIC_BAREFOOT_TOFINO name: "tofino" }\n'
        "nodes { id: 1 slot: 1 index: 1 }\n"
        "singleton_ports {\n"
        '  id: 32 name: "32/0" slot: 1 port: 32 speed_bps: 40000000000 node: 1\n'
        "  config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_UNKNOWN fec_mode: FEC_MODE_OFF }\n"
        "}\n"
        "singleton_ports {\n"
        '  id: 1 name: "1/0" slot: 1 port: 1 speed_bps: 100000000000 node: 1\n'
        "  config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_FALSE fec_mode: FEC_MODE_ON }\n"
        "}\n"
        "singleton_ports {\n"
        '  id: 201 name: "2/0" slot: 1 port: 2 channel: 1 speed_bps: 25000000000 node: 1\n'
        "  config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_UNKNOWN fec_mode: FEC_MODE_OFF }\n"
        "}\n"
        "singleton_ports {\n"
        '  id: 202 name: "2/1" slot: 1 port: 2 channel: 2 speed_bps: 10000000000 node: 1\n'
        "  config_params { admin_state: ADMIN_STATE_ENABLED autoneg: TRI_STATE_TRUE fec_mode: FEC_MODE_ON }\n"
        "}\n"
    )


def test_bf_switchd_gets_commands_for_its_shell() -> None:
    rack = parsed(RACK.replace("server: stratum", "server: bf_switchd").replace("speed: 100G", "speed: 400G"))
    assert front_panel.shell_commands(rack.links).splitlines() == [
        "ucli",
        "pm",
        *("port-add 32/0 40G NONE", "an-set 32/0 0", "port-enb 32/0"),
        *("port-add 1/0 400G RS", "an-set 1/0 2", "port-enb 1/0"),
        *("port-add 2/0 25G NONE", "an-set 2/0 0", "port-enb 2/0"),
        *("port-add 2/1 10G FC", "an-set 2/1 1", "port-enb 2/1"),
        "show",
        "exit",
        "exit",
    ]


@pytest.mark.parametrize(
    ("rack", "options", "complaint"),
    [
        (
            RACK,
            {"elements": 64},
            r"the fabric's switch is a Tofino: give the folder that `make p4-tna` wrote, build/tna \(--prog",
        ),
        (
            RACK,
            {"program": Path("out")},
            r"elements 256, layout 'lanes': the program for a Tofino has 64 elements a packet, in lanes",
        ),
        ("kind: loopback\nports: {1: 127.0.0.1:41001}", {"program": Path("out")}, "program is for a Tofino: describe it in"),
    ],
)
def test_options_that_do_not_fit_the_fabric_are_refused(rack: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ControllerDaemon(fabric.parse(rack, "rack.yaml"), ControllerOptions(listen=("127.0.0.1:0",), **options))


def test_a_server_that_does_not_know_capabilities_is_a_switch_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As open-p4studio's, whose service leaves this call to gRPC's own answer."""
    monkeypatch.setattr(p4runtime_server._Servicer, "Capabilities", p4runtime_pb2_grpc.P4RuntimeServicer.Capabilities)
    with SoftSwitch(grpc="127.0.0.1:0", ports=1) as switch:
        session = SwitchSession(switch.grpc_address, 1, 1, timeout_s=5.0, on_lost=lambda _: None, on_role=lambda _: None)
        try:
            assert session.primary
            session.probe(5.0)
        finally:
            session.close()
