"""The compiled program is checked before a switch gets it; each kind of wrong file ends in one clear error."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from switchsum.controller import pipeline
from switchsum.controller.errors import WrongProgram
from switchsum.p4src.layout import ELEMENT_CHOICES

STEM = "switchsum_lanes_64"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of one build, to be spoiled."""
    for name in (f"{STEM}.json", f"{STEM}.p4info.txtpb", "manifest.json"):
        shutil.copy(pipeline.build_folder() / name, tmp_path / name)
    return tmp_path


def record(folder: Path, **changes: object) -> None:
    """Make the manifest agree with the files as they are now, so that the next check is reached."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in (f"{STEM}.json", f"{STEM}.p4info.txtpb"):
        manifest["outputs"][f"build/{name}"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize("layout", pipeline.LAYOUTS)
@pytest.mark.parametrize("elements", ELEMENT_CHOICES)
def test_every_committed_build_is_what_its_name_says(layout: str, elements: int) -> None:
    build = pipeline.load(layout, elements)
    assert build.description == f"switchsum 1, {elements} elements, {layout}"
    assert build.cookie not in (0, pipeline.load("wide" if layout == "lanes" else "lanes", elements).cookie)


def test_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="layout 'tall' does not exist; choose lanes or wide"):
        pipeline.load("tall", 64)
    with pytest.raises(ValueError, match="100 elements a packet is not compiled; choose 64, 128, 256"):
        pipeline.load("lanes", 100)


def edit(name: str, old: str, new: str, count: int = -1) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, count))
        record(folder)

    return spoil


def rename_a_header_field(folder: Path) -> None:
    path = folder / f"{STEM}.json"
    program = json.loads(path.read_text())
    header = next(kind for kind in program["header_types"] if kind["name"] == "switchsum_t")
    header["fields"][0], header["fields"][1] = header["fields"][1], header["fields"][0]
    path.write_text(json.dumps(program))
    record(folder)


def put_other_elements(folder: Path) -> None:
    shutil.copy(pipeline.build_folder() / "switchsum_lanes_128.json", folder / f"{STEM}.json")
    record(folder)


INFO = f"{STEM}.p4info.txtpb"
UDP_PORT_FIELD = 'name: "udp_port"\n    bitwidth: 16\n    match_type: EXACT'


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: (folder / f"{STEM}.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "is not a manifest of `make p4`"),
        (lambda folder: record(folder, wire_version=0x52), "speaks wire version 0x52, this release speaks 0x51"),
        (lambda folder: (folder / f"{STEM}.json").write_text("{}"), f"{STEM}.json is not the file that manifest.json records"),
        (edit(INFO, 'version: "1"', 'version: "2"'), "describes program 'switchsum' version '2'; this"),
        (edit(INFO, "pkg_info {", "pkg_info ["), "is not a P4Info"),
        (edit(INFO, "membership.jobs", "membership.tasks"), "has no table SwitchIngress.service.membership.jobs"),
        (edit(INFO, '"SwitchIngress.drop_simulator.dropped"', '"x"', 1), "has no counter SwitchIngress.drop_simulator.dropped"),
        (edit(INFO, UDP_PORT_FIELD, UDP_PORT_FIELD.replace("EXACT", "TERNARY")), "has the fields"),
        (
            edit(INFO, '"SwitchIngress.service.membership.admit_job"', '"x"', 1),
            "has no action SwitchIngress.service.membership",
        ),
        (edit(f"{STEM}.json", '"header_types"', '"other"'), "is not BMv2 JSON of p4c"),
        (rename_a_header_field, "was compiled for another header than that of wire version 0x51"),
        (put_other_elements, "was compiled for 128 elements a packet, not 64"),
    ],
)
def test_a_wrong_program_is_refused_by_name(folder: Path, spoil: Callable[[Path], None], complaint: str) -> None:
    pipeline.load("lanes", 64, folder)  # as copied, it is right
    spoil(folder)
    with pytest.raises(WrongProgram) as caught:
        pipeline.load("lanes", 64, folder)
    assert complaint in str(caught.value)
