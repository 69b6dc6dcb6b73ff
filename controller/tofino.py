"""The program for a Tofino as its P4Runtime server takes it: P4Info, and a device configuration with the compiler's output.

The device configuration of P4Runtime is the target's own; each server has another. Both are protobuf messages of a few
length-delimited fields, written here as such (protobuf.dev, "Encoding"), since no package brings their classes.

    python -m switchsum.controller.tofino tofino stratum build/tna > device-config.bin      for other clients of P4Runtime
"""

import argparse
import json
import struct
import sys
from pathlib import Path

from switchsum.controller.errors import WrongProgram
from switchsum.controller.front_panel import Chip, Server
from switchsum.controller.p4names import P4Names
from switchsum.controller.pipeline import PROGRAM, Build, build_folder, cookie_of, parse_p4info
from switchsum.controller.programming import check_program

ELEMENTS = 64  # of a packet, on either chip
PIPELINE = "pipe"  # the name of the instance of Pipeline in p4src/tna/switchsum.p4, and of the compiler's folder
PIPES = (0, 1, 2, 3)  # what p4c-gen-bfrt-conf writes for a program of one pipeline

_REMEDY = "run `make p4-tna BFP4C=/path/to/p4c-barefoot`, and give the folder that it writes, build/tna (--program)"


def load(chip: Chip, server: Server, folder: Path) -> Build:
    """The program that `make p4-tna` wrote into `folder`, packed for this server.

    Raises WrongProgram for files that are missing, or that are not of the program whose P4Info this release has.
    """
    stem = f"switchsum_{chip.value}_{ELEMENTS}"
    into = folder / stem
    info = _read(into / f"{stem}.p4info.txtpb")
    if info != _read(build_folder() / "tna" / f"{stem}.p4info.txtpb"):
        raise WrongProgram(f"{into} holds another program than this release drives; {_REMEDY}")
    schema = _read(into / "bf-rt.json")
    context = _read(into / PIPELINE / "context.json")
    binary = _read(into / PIPELINE / f"{chip.value}.bin")
    _check_context(context, into / PIPELINE / "context.json", chip)
    p4info = parse_p4info(info, into / f"{stem}.p4info.txtpb")
    names = P4Names(p4info)
    check_program(names)
    pack = {Server.STRATUM: for_stratum, Server.BF_SWITCHD: for_bf_switchd}[server]
    config = pack(PROGRAM[0], schema, context, binary)
    return Build(
        description=f"{PROGRAM[0]} {PROGRAM[1]}, {ELEMENTS} elements, {chip.value}, for {server.value}",
        elements=ELEMENTS,
        p4info=p4info,
        device_config=config,
        cookie=cookie_of(config, info),
        names=names,
    )


def for_stratum(name: str, schema: bytes, context: bytes, binary: bytes) -> bytes:
    """Stratum's BfPipelineConfig: the program's name, bf-rt.json, and one profile for all pipes.

    Source: stratum/stratum, stratum/hal/lib/barefoot/bf.proto; filled as by stratum/hal/bin/barefoot/bf_pipeline_builder.cc.
    """
    profile = _field(1, PIPELINE.encode()) + _field(2, context) + _field(3, binary) + _field(4, bytes(PIPES))
    return _field(1, name.encode()) + _field(2, schema) + _field(3, profile)


def for_bf_switchd(name: str, schema: bytes, context: bytes, binary: bytes) -> bytes:
    """A p4.tmp.P4DeviceConfig with its device_data: five parts, each behind its length as 32 bits, little-endian.

    Source: p4lang/open-p4studio, _pi_update_device_start in pkgsrc/bf-drivers/src/pi/pi_imp.c, which reads on after the three
    parts that p4runtime_update_config.py there sends; the message: p4lang/PI, proto/p4/tmp/p4config.proto. By the last two
    bfrt_python sees the tables, too.
    """
    parts = (name.encode(), binary, context, PIPELINE.encode(), schema)
    return _field(3, b"".join(struct.pack("<I", len(part)) + part for part in parts))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field: bytes, strings, messages, and packed numbers below 128."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WrongProgram(f"the compiled switch program {path} cannot be read ({error.strerror}); {_REMEDY}") from None


def _check_context(content: bytes, path: Path, chip: Chip) -> None:
    try:
        context = json.loads(content)
        found = str(context["program_name"]), str(context["target"])
    except (ValueError, KeyError, TypeError):
        raise WrongProgram(f"{path} is not the context.json of bfas; {_REMEDY}") from None
    if found != (PROGRAM[0], chip.value):
        raise WrongProgram(
            f"{path} is of the program {found[0]!r} for {found[1]}, not {PROGRAM[0]!r} for {chip.value}; {_REMEDY}"
        )


def main(arguments: list[str] | None = None) -> int:
    """Write a device configuration to standard output. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Pack what `make p4-tna` wrote for a P4Runtime server.")
    parser.add_argument("chip", choices=[chip.value for chip in Chip])
    parser.add_argument("server", choices=[server.value for server in Server])
    parser.add_argument("folder", type=Path, help="build/tna")
    options = parser.parse_args(arguments)
    try:
        build = load(Chip(options.chip), Server(options.server), options.folder)
    except WrongProgram as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(build.device_config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
