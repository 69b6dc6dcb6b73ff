"""One layout, four readers: protocol.yaml, the P4 program, Python's generated constants, and the engine's own writer."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchsum.host_agent import wire
from switchsum.p4src import generate
from switchsum.p4src.layout import ELEMENT_CHOICES, HEADER_BYTES, HEADER_DTYPE, SLOTS
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.switch_under_test import BUILD

SPEC = yaml.safe_load((generate.HERE / "protocol.yaml").read_text())
P4_NAMES = {"type": "kind"}  # a reserved word in P4


def test_generated_files_are_what_the_source_says() -> None:
    result = subprocess.run([sys.executable, "-m", "switchsum.p4src.generate", "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("elements", ELEMENT_CHOICES)
@pytest.mark.parametrize("layout", ["lanes", "wide"])
def test_the_compiled_program_has_the_same_header_and_sizes(layout: str, elements: int) -> None:
    program = json.loads((BUILD / f"switchsum_{layout}_{elements}.json").read_text())
    headers = {header["name"]: header["fields"] for header in program["header_types"]}
    expected = [[P4_NAMES.get(field["name"], field["name"]), field["bits"], False] for field in SPEC["header"]]
    assert headers["switchsum_t"] == expected
    assert sum(field[1] for field in headers["values_t"]) == 32 * elements
    arrays = [register for register in program["register_arrays"] if "row_v" in register["name"]]
    assert sum(register["bitwidth"] for register in arrays) == 32 * elements
    assert {register["size"] for register in program["register_arrays"]} == {2 * SLOTS}


def test_the_manifest_matches_sources_and_outputs() -> None:
    """Whoever edits p4src/ must run `make p4`; whoever edits compiled files by hand is found out."""
    manifest = json.loads((BUILD / "manifest.json").read_text())
    root = generate.HERE
    sources = sorted(str(path.relative_to(root)) for folder in ("include", "v1model") for path in (root / folder).glob("*.p4"))
    assert sorted(manifest["sources"]) == sources
    for name, digest in {**manifest["sources"], **manifest["outputs"]}.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, f"{name} changed: run `make p4`"


@given(
    kind=st.integers(0, 255),
    job=st.integers(0, 2**16 - 1),
    epoch=st.integers(0, 2**32 - 1),
    slot=st.integers(0, 2**16 - 1),
    exponent=st.integers(0, 2**16 - 1),
    phase=st.integers(0, 2**32 - 1),
    tag=st.integers(0, 2**32 - 1),
    worker=st.integers(0, 255),
    flags=st.integers(0, 255),
)
def test_the_engines_writer_agrees_byte_for_byte(**fields: int) -> None:
    words = np.zeros(wire.HEADER_WORDS, np.uint32)
    wire.write_header(
        words, *(fields[name] for name in ("kind", "job", "epoch", "slot", "exponent", "phase", "tag", "worker", "flags"))
    )
    data = words.tobytes()
    header = np.frombuffer(data, HEADER_DTYPE)[0]
    assert {P4_NAMES.get(name, name): int(header[name]) for name in HEADER_DTYPE.names or ()} == {
        **fields,
        "version": SPEC["wire_version"],
        "reserved": 0,
    }
    assert bytes(SwitchSum(**fields)) == data
    assert wire.is_ours(words, HEADER_BYTES, fields["job"], fields["epoch"])
    assert not wire.is_ours(words, HEADER_BYTES - 1, fields["job"], fields["epoch"])
    assert not wire.is_ours(words, HEADER_BYTES, fields["job"] ^ 1, fields["epoch"])
    assert not wire.is_ours(words, HEADER_BYTES, fields["job"], fields["epoch"] ^ 1)


def test_256_elements_fit_an_ethernet_frame() -> None:
    assert HEADER_BYTES <= 24
    assert HEADER_BYTES % 4 == 0
    assert 20 + 8 + wire.packet_bytes(256) <= 1500
