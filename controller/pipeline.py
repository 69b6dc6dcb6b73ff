"""The compiled switch programs that come with the package: choose one, and make sure it is what its name says.

What is checked before a switch gets it: that the files are there and are those that `make p4` recorded in the manifest; that
P4Info names program and version; that the JSON's header is the wire format of `p4src/layout.py` and carries the elements the
file's name promises; that every table the controller writes exists. Each failure is one WrongProgram.
"""

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from switchsum import p4src
from switchsum.controller.errors import WrongProgram
from switchsum.controller.p4names import P4Names
from switchsum.controller.programming import check_program
from switchsum.p4src.layout import ELEMENT_CHOICES, HEADER_DTYPE, WIRE_VERSION

LAYOUTS = ("lanes", "wide")  # one register per element (softswitch, hardware); one wide register (BMv2)
PROGRAM = ("switchsum", "1")  # P4Info's pkg_info: name and version

_INCARNATION_BITS = 32  # of a cookie; the others are the program's digest

_REMEDY = "run `make p4`, or install this release of switchsum again"


@dataclass(frozen=True)
class Build:
    """One compiled program. `cookie` begins with a digest of both files: equal beginnings mean equal programs.

    The rest is chance, drawn for each load: so a controller that finds its program on the switch also knows whether the
    switch has been started anew since, and another controller has loaded it again.
    """

    description: str  # such as "switchsum 1, 256 elements, lanes"
    elements: int
    p4info: p4info_pb2.P4Info
    device_config: bytes
    cookie: int
    names: P4Names

    def incarnation(self) -> int:
        """A cookie under which to load the program."""
        return self.cookie | secrets.randbits(_INCARNATION_BITS)

    def is_incarnation(self, cookie: int) -> bool:
        """Whether this program was loaded under the cookie."""
        return cookie >> _INCARNATION_BITS == self.cookie >> _INCARNATION_BITS


def build_folder() -> Path:
    """Where p4c's output lies, in the source tree as well as installed."""
    return Path(p4src.__path__[0]) / "build"


def load(layout: str, elements: int, folder: Path | None = None) -> Build:
    """The program with this layout of values and this many elements a packet.

    Raises ValueError for a choice that does not exist, WrongProgram for files that are missing or not what they should be.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} does not exist; choose {' or '.join(LAYOUTS)}")
    if elements not in ELEMENT_CHOICES:
        raise ValueError(f"{elements} elements a packet is not compiled; choose {', '.join(map(str, ELEMENT_CHOICES))}")
    folder = folder or build_folder()
    stem = f"switchsum_{layout}_{elements}"
    config = _read(folder / f"{stem}.json")
    info = _read(folder / f"{stem}.p4info.txtpb")
    _check_manifest(folder, {f"{stem}.json": config, f"{stem}.p4info.txtpb": info})
    p4info = parse_p4info(info, folder / f"{stem}.p4info.txtpb")
    _check_json(config, folder / f"{stem}.json", elements)
    names = P4Names(p4info)
    check_program(names)
    return Build(
        description=f"{PROGRAM[0]} {PROGRAM[1]}, {elements} elements, {layout}",
        elements=elements,
        p4info=p4info,
        device_config=config,
        cookie=cookie_of(config, info),
        names=names,
    )


def cookie_of(config: bytes, info: bytes) -> int:
    """Build.cookie for these two files, the part that chance draws left 0."""
    return int.from_bytes(hashlib.sha256(config + info).digest()[:4], "big") << _INCARNATION_BITS


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WrongProgram(f"the compiled switch program {path} cannot be read ({error.strerror}); {_REMEDY}") from None


def _check_manifest(folder: Path, files: dict[str, bytes]) -> None:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(_read(path))
        wire_version, recorded = int(manifest["wire_version"]), dict(manifest["outputs"])
    except (ValueError, KeyError, TypeError):
        raise WrongProgram(f"{path} is not a manifest of `make p4`; {_REMEDY}") from None
    if wire_version != WIRE_VERSION:
        raise WrongProgram(
            f"the compiled switch program in {folder} speaks wire version {wire_version:#x}, this release speaks "
            f"{WIRE_VERSION:#x}; {_REMEDY}"
        )
    for name, content in files.items():
        if recorded.get(f"build/{name}") != hashlib.sha256(content).hexdigest():
            raise WrongProgram(f"{folder / name} is not the file that manifest.json records; {_REMEDY}")


def parse_p4info(content: bytes, path: Path) -> p4info_pb2.P4Info:
    """The P4Info in a file's text. Raises WrongProgram, also for one of another program or version."""
    p4info = p4info_pb2.P4Info()
    try:
        text_format.Parse(content.decode(), p4info, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise WrongProgram(f"{path} is not a P4Info ({error}); {_REMEDY}") from None
    found = (p4info.pkg_info.name, p4info.pkg_info.version)
    if found != PROGRAM:
        raise WrongProgram(
            f"{path} describes program {found[0]!r} version {found[1]!r}; this controller drives {PROGRAM[0]!r} version "
            f"{PROGRAM[1]!r}: {_REMEDY}"
        )
    return p4info


def _check_json(content: bytes, path: Path, elements: int) -> None:
    """Compare the program's headers, as p4c laid them out, with what hosts send."""
    try:
        program: dict[str, Any] = json.loads(content)
        types = {kind["name"]: [(str(f[0]), int(f[1])) for f in kind["fields"]] for kind in program["header_types"]}
    except (ValueError, KeyError, TypeError, IndexError):
        raise WrongProgram(f"{path} is not BMv2 JSON of p4c; {_REMEDY}") from None
    ours = [(name, HEADER_DTYPE[name].itemsize * 8) for name in HEADER_DTYPE.names or ()]
    ours = [("kind" if name == "type" else name, bits) for name, bits in ours]  # `type` is a keyword of P4
    theirs = [field for field in types.get("switchsum_t", []) if not field[0].startswith("_padding")]
    if theirs != ours:
        raise WrongProgram(
            f"{path} was compiled for another header than that of wire version {WIRE_VERSION:#x} "
            f"(program: {theirs}, hosts: {ours}); {_REMEDY}"
        )
    lanes = sum(bits for _, bits in types.get("values_t", [])) // 32
    if lanes != elements:
        raise WrongProgram(f"{path} was compiled for {lanes} elements a packet, not {elements}; {_REMEDY}")
