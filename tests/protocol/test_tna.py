"""The program for Tofino, as compiled: the controller sees in it what it sees in v1model's, and the figures are in step."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from switchsum.controller.p4names import P4Names
from switchsum.controller.programming import check_program
from switchsum.p4src import build_tna, generate, tna_report
from switchsum.p4src.layout import HEADER_BYTES, SLOTS
from tests.protocol import p4info_diff
from tests.protocol.p4info_diff import actions, counters, load, tables
from tests.protocol.switch_under_test import BUILD

STEMS = [build_tna.stem(chip, elements) for chip, elements in build_tna.PROGRAMS]
REPORTS = Path(__file__).with_name("tofino_reports")
DOCUMENT = generate.HERE.parent / "docs" / "tofino.md"

# Not written by the controller: how each architecture reaches the same answer. Both lists are whole.
HIDDEN_IN_V1MODEL = {
    "SwitchIngress.service.answer",
    "SwitchIngress.service.answer_sender_without_values",
    "SwitchIngress.service.inspect",
    "SwitchIngress.service.values.add",
    "SwitchIngress.service.values.overwrite",
    "SwitchIngress.service.values.recall",
}
SLOT_ACTIONS = (
    "again",
    "begin",
    "compare_tag",
    "complete",
    "contribute",
    "find_row",
    "give_back",
    "join_row",
    "late",
    "mismatch",
    "out_of_range",
    "refuse",
    "repair",
    "start_row",
    "start_tag",
)
HIDDEN_IN_TNA = {
    *(f"Switch{gress}.drop_simulator.{name}" for gress in ("Ingress", "Egress") for name in ("subtract", "lose")),
    *(f"SwitchIngress.service.slots.{name}" for name in SLOT_ACTIONS),
    *(f"SwitchIngress.service.{name}" for name in ("answer_all", "answer_mismatch", "answer_status", "discard")),
    "SwitchIngress.service.membership.inspect",
}
OTHER_PARAMETERS = {"SwitchIngress.service.answer_sender"}


@pytest.mark.parametrize("stem", STEMS)
def test_the_controller_sees_the_same_program(stem: str) -> None:
    ours = load(BUILD / "tna" / f"{stem}.p4info.txtpb")
    reference = load(BUILD / "switchsum_lanes_64.p4info.txtpb")
    check_program(P4Names(ours))
    assert (ours.pkg_info.name, ours.pkg_info.version) == (reference.pkg_info.name, reference.pkg_info.version)
    assert tables(ours) == tables(reference)
    assert counters(ours) == counters(reference)
    mine, others = (
        {name: params for name, params in actions(p4info).items() if ".values.pair_" not in name}
        for p4info in (ours, reference)
    )
    assert others.keys() - mine.keys() == HIDDEN_IN_V1MODEL
    assert mine.keys() - others.keys() - {"SwitchIngress.service.go_round"} == HIDDEN_IN_TNA
    assert {name for name in mine.keys() & others.keys() if mine[name] != others[name]} == OTHER_PARAMETERS
    assert {register.size for register in ours.registers} == {2 * SLOTS}


def test_the_manifest_matches_sources_and_outputs() -> None:
    manifest = json.loads((BUILD / "tna" / "manifest.json").read_text())
    root = generate.HERE
    sources = sorted(str(path.relative_to(root)) for folder in ("include", "tna") for path in (root / folder).glob("*.p4"))
    assert sorted(manifest["sources"]) == sources
    for name, digest in {**manifest["sources"], **manifest["outputs"]}.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, f"{name} changed: run `make p4-tna`"


def test_the_figures_are_those_of_the_compilers_reports() -> None:
    """The reports are p4c-barefoot's of the Tofino program, without the fields that nothing reads."""
    committed = tna_report.load(BUILD / "tna" / f"{STEMS[0]}.fit.json")
    assert tna_report.read(REPORTS, STEMS[0]) == committed
    assert committed.stages.used == committed.stages.of == 12
    assert sum(committed.stateful_by_stage) == committed.stateful_alus.used == 36


def test_the_document_shows_the_figures() -> None:
    fits = [tna_report.load(BUILD / "tna" / f"{stem}.fit.json") for stem in STEMS]
    assert tna_report.table(fits) in DOCUMENT.read_text()


def test_the_document_shows_how_the_p4infos_differ() -> None:
    assert p4info_diff.table(STEMS) in DOCUMENT.read_text(), "docs/tofino.md: run `python -m tests.protocol.p4info_diff`"


def slots_by_rate() -> str:
    """The table of how many slots keep a link full, in Markdown: twice rate times round trip, over the bytes of a packet."""
    octets = 14 + 20 + 8 + HEADER_BYTES + 4 * 64 + 24  # Ethernet, IPv4, UDP; the last: preamble, FCS, gap
    lines = ["| link | round trip 20 us | 100 us | all 2,048 slots are enough up to |", "|---|---:|---:|---:|"]
    for gbps in (10, 25, 100, 400):
        needed = [math.ceil(2 * gbps * 1e9 * round_trip_s / 8 / octets) for round_trip_s in (20e-6, 100e-6)]
        cells = [f"{slots:,}" if slots <= SLOTS else f"({slots:,})" for slots in needed]
        longest_us = SLOTS * octets * 8 / 2 / (gbps * 1e3)
        lines.append(f"| {gbps} Gbit/s | {' | '.join(cells)} | {longest_us:.1f} us |")
    return "\n".join(lines)


def test_the_document_shows_how_many_slots_a_link_needs() -> None:
    assert slots_by_rate() in DOCUMENT.read_text(), slots_by_rate()


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    for name in ("resources.json", "phv.json", "power.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match="not the reports of p4c-barefoot -g"):
        tna_report.read(tmp_path, "any")


def test_a_compiler_whose_parsers_do_not_select_is_found_out() -> None:
    state = "parser ingress:\n  states:\n    parse_ethernet:\n{}      next: end\ndeparser ingress:\n  match: [ half ]\n"
    assert build_tna.parser_selects(state.format("      match: [ half ]\n      0x0800:\n"))
    assert not build_tna.parser_selects(state.format("      *:\n"))
