"""Writes what the switch program and the hosts share from `protocol.yaml`: `python -m switchsum.p4src.generate`.

Outputs `include/protocol.p4` (constants and the header type), `layout.py` (the same for Python) and `switchsum.lua` (the code
of `switchsum.lua.in` with tables of the same, for Wireshark). With `--check` nothing is written and the exit status says
whether the files are what this would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
BANNER = "Generated from p4src/protocol.yaml by p4src/generate.py (make generate). Do not edit."
GROUPS = {  # YAML section -> (P4 constant prefix, P4 width in bits, Python class)
    "packet_types": ("TYPE", 8, "PacketType"),
    "flags": ("FLAG", 8, "Flag"),
    "exponents": ("EXPONENT", 16, "Exponent"),
    "verdicts": ("VERDICT", 8, "Verdict"),
    "reject_reasons": ("REJECT", 8, "RejectReason"),
}
HOSTS_ONLY = {"exponents"}  # to the switch an exponent is a number to take the maximum of
CARRY_VALUES = {"CONTRIBUTION", "RESULT"}  # the packet types that have values after the header
LUA_HEX = {"version", "type", "exponent", "tag", "flags", "reserved"}  # fields that Wireshark shows as bit patterns


def header_bytes(spec: dict[str, Any]) -> int:
    """Length of the fixed header in bytes; raises ValueError when it is not 4-byte aligned or longer than 24."""
    bits = sum(int(field["bits"]) for field in spec["header"])
    if bits % 32 or bits > 24 * 8:
        raise ValueError(f"protocol.yaml: the header has {bits} bits; it must be a multiple of 32, at most 192")
    return bits // 8


def p4_text(spec: dict[str, Any]) -> str:
    """The P4 side: constants as `const bit<W>`, sizes as macros (they size registers), the header type."""
    lines = [f"// {BANNER}", "#ifndef SWITCHSUM_PROTOCOL_P4_", "#define SWITCHSUM_PROTOCOL_P4_", ""]
    lines += [
        f"#define SLOTS {spec['slots']}",
        "#define ROWS (2 * SLOTS)",
        f"#define SWITCHSUM_HEADER_BYTES {header_bytes(spec)}",
        f"const bit<8> WIRE_VERSION = {spec['wire_version']:#04x};",
        f"const bit<16> SERVICE_PORT = {spec['service_port']:#06x};",
    ]
    for section, (prefix, width, _) in GROUPS.items():
        if section in HOSTS_ONLY:
            continue
        lines.append("")
        for name, item in spec[section].items():
            lines.append(f"const bit<{width}> {prefix}_{name} = {item['value']:#x};  // {item['doc']}")
    lines += ["", "header switchsum_t {"]
    for field in spec["header"]:
        declaration = f"bit<{field['bits']}> {field['name'] if field['name'] != 'type' else 'kind'};"
        lines.append(f"    {declaration:<20}  // {field['doc']}")
    lines += ["}", "", "#endif"]
    return "\n".join(lines) + "\n"


def python_text(spec: dict[str, Any]) -> str:
    """The Python side: IntEnums and the numpy dtype of the header (big-endian)."""
    lines = [
        f'"""{BANNER}"""',
        "",
        "from enum import IntEnum",
        "",
        "import numpy as np",
        "",
        f"WIRE_VERSION = 0x{spec['wire_version']:02X}",
        f"SERVICE_PORT = 0x{spec['service_port']:04X}",
        f"MAX_WORKERS = {spec['max_workers']}",
        f"SLOTS = {spec['slots']}",
        f"ELEMENT_CHOICES = ({', '.join(str(e) for e in spec['elements'])})",
        f"DEFAULT_ELEMENTS = {spec['default_elements']}",
        f"HEADER_BYTES = {header_bytes(spec)}",
        "",
        "HEADER_DTYPE = np.dtype(",
        "    [",
    ]
    for field in spec["header"]:
        size = field["bits"] // 8
        code = "u1" if size == 1 else f">u{size}"
        lines.append(f'        ("{field["name"]}", "{code}"),  # {field["doc"]}')
    lines += ["    ]", ")"]
    for section, (_, _, class_name) in GROUPS.items():
        lines += ["", "", f"class {class_name}(IntEnum):", f'    """Values of protocol.yaml\'s `{section}`."""', ""]
        for name, item in spec[section].items():
            lines.append(f"    {name} = 0x{item['value']:X}  # {item['doc']}")
    return "\n".join(lines) + "\n"


def _lua_string(text: str) -> str:
    """`text` as a Lua literal; what JSON escapes in ASCII texts, quotes and backslashes, Lua escapes the same way."""
    return json.dumps(text)


def lua_tables(spec: dict[str, Any]) -> str:
    """What the dissector's code looks up: constants, names by value, and header fields and flags with Wireshark's fields."""

    def entries(items: dict[str, Any]) -> str:
        return ", ".join(f"[{item['value']:#06x}] = {_lua_string(name)}" for name, item in items.items())

    types, elements = spec["packet_types"], spec["elements"]
    carrying = ", ".join(f"[{types[name]['value']:#06x}] = true" for name in sorted(CARRY_VALUES))
    exponents = {name: item for name, item in spec["exponents"].items() if name != "BIAS"}  # BIAS is an offset, no code
    lines = [
        f"local WIRE_VERSION = {spec['wire_version']:#04x}",
        f"local SERVICE_PORT = {spec['service_port']:#06x}",
        f"local HEADER_BYTES = {header_bytes(spec)}",
        f"local ELEMENTS = {{ {', '.join(f'[{e}] = true' for e in elements)} }}",
        f"local LENGTHS = {{ {', '.join(str(header_bytes(spec) + 4 * e) for e in [0, *elements])} }} -- of whole packets",
        f"local ELEMENTS_TEXT = {_lua_string(', '.join(map(str, elements[:-1])) + f' or {elements[-1]}')}",
        f"local ELEMENTS_MAX = {max(elements)}",
        f"local TYPES = {{ {entries(types)} }}",
        f"local CARRIES_VALUES = {{ {carrying} }}",
        f"local EXPONENTS = {{ {entries(exponents)} }}",
        f"local EXPONENT_BIAS = {spec['exponents']['BIAS']['value']:#06x}",
        "local HEADER = { -- offsets and lengths in bytes",
    ]
    offset, offsets = 0, {}
    for field in spec["header"]:
        name, size = field["name"], field["bits"] // 8
        base = "base.HEX" if name in LUA_HEX else "base.DEC"
        arguments = [_lua_string(f"switchsum.{name}"), _lua_string(name.capitalize()), base]
        arguments += ["TYPES" if name == "type" else "nil", "nil", _lua_string(field["doc"])]
        proto = f"ProtoField.uint{field['bits']}({', '.join(arguments)})"
        lines.append(f"    {{ name = {_lua_string(name)}, offset = {offset}, bytes = {size}, proto = {proto} }},")
        offsets[name] = offset
        offset += size
    lines += ["}", f"local HEADER_AT = {{ {', '.join(f'{name} = {at}' for name, at in offsets.items())} }}", "local FLAGS = {"]
    width = next(field["bits"] for field in spec["header"] if field["name"] == "flags")
    for name, item in spec["flags"].items():
        field_name, mask = _lua_string(f"switchsum.flags.{name.lower()}"), f"{item['value']:#04x}"
        proto = f"ProtoField.bool({field_name}, {_lua_string(name)}, {width}, nil, {mask}, {_lua_string(item['doc'])})"
        lines.append(f"    {{ name = {_lua_string(name)}, mask = {mask}, proto = {proto} }},")
    return "\n".join([*lines, "}"])


def lua_text(spec: dict[str, Any]) -> str:
    """Wireshark's side: the dissector's code with the tables in their place."""
    code = (HERE / "switchsum.lua.in").read_text()
    return code.replace("@generated@", BANNER, 1).replace("-- @tables@", lua_tables(spec), 1)


def main(arguments: list[str]) -> int:
    """Write (or with --check compare) the files; returns the exit status."""
    spec = yaml.safe_load((HERE / "protocol.yaml").read_text())
    outputs = {
        HERE / "include" / "protocol.p4": p4_text(spec),
        HERE / "layout.py": python_text(spec),
        HERE / "switchsum.lua": lua_text(spec),
    }
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.name} is not what protocol.yaml says; run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(outputs[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
