"""The simulation bites: each rule of the slot state machine, broken in the compiled program, turns some seed red.

Recorded 2026-11-29: every mutation below fails within the seeds tried here, the unbroken program passes all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchsum.softswitch.program import Program
from tests.protocol.simulation import Simulation, SimulationError
from tests.protocol.switch_under_test import BUILD, SwitchUnderTest

SEEDS = range(400)


def conditional(program: dict[str, Any], fragment: str) -> dict[str, Any]:
    """The one `if` of the ingress pipeline that was compiled from this piece of slots.p4."""
    found = [
        node
        for pipeline in program["pipelines"]
        for node in pipeline["conditionals"]
        if node["source_info"]["source_fragment"] == fragment
    ]
    assert len(found) == 1, f"{fragment!r} occurs {len(found)} times; slots.p4 has changed, so must this test"
    return found[0]  # type: ignore[no-any-return]


FIRST = "epoch != hdr.switchsum.epoch || (age != 0 && age < 0x80000000)"


def take_earlier_phases_for_later(program: dict[str, Any]) -> None:
    later = conditional(program, FIRST)["expression"]["value"]["right"]["value"]["right"]["value"]
    assert later["op"] == "<"
    later["op"] = ">="


def drop_the_epoch_check(program: dict[str, Any]) -> None:
    node = conditional(program, FIRST)
    node["expression"] = node["expression"]["value"]["right"]


def add_stale_packets(program: dict[str, Any]) -> None:
    node = conditional(program, "age != 0")
    node["true_next"] = node["false_next"]


def forget_the_exponent_maximum(program: dict[str, Any]) -> None:
    node = conditional(program, "exponent < hdr.switchsum.exponent")
    node["true_next"] = node["false_next"]


def add_duplicates(program: dict[str, Any]) -> None:
    node = conditional(program, "bitmap & meta.worker_bit == 0")
    node["false_next"] = node["true_next"]


MUTATIONS = [
    take_earlier_phases_for_later,
    drop_the_epoch_check,
    add_stale_packets,
    forget_the_exponent_maximum,
    add_duplicates,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_turns_a_seed_red(mutate: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    source = json.loads((BUILD / "switchsum_lanes_64.json").read_text())
    mutate(source)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(source))
    switch = SwitchUnderTest(program=Program.load(path))
    for seed in SEEDS:
        try:
            Simulation(seed, switch).run()
        except SimulationError:
            return
    pytest.fail(f"{mutate.__name__}: all of {len(SEEDS)} seeds stayed green")
