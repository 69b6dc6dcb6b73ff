"""Every case of tests/protocol/cases on every target: in process, the softswitch on veth pairs, BMv2, the source for Tofino; or
the one of --target.

What each can do and where it is skipped: docs/conformance.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.program import Program
from tests.protocol.cases import CASES, Bench, Case
from tests.protocol.conftest import Wire, on_wires, parametrize
from tests.protocol.switch_under_test import BUILD
from tests.protocol.targets import InProcess, Target, Unsupported
from tests.protocol.test_mutations import MUTATIONS

BUILDS = [("lanes", 64), ("wide", 64), ("lanes", 128), ("wide", 128), ("lanes", 256), ("wide", 256)]
TARGETS = [
    *(pytest.param(("in process", *build), id=f"in_process-{build[0]}-{build[1]}") for build in BUILDS),
    *on_wires("softswitch", [("lanes", 64), ("lanes", 256), ("wide", 128)]),
    *on_wires("bmv2", [("wide", 64), ("wide", 128), ("wide", 256), ("lanes", 64)]),
    *on_wires("tofino", [("lanes", 64)]),
    *on_wires("tofino2", [("lanes", 64)]),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        parametrize(metafunc, "target", TARGETS)


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, wire: Wire) -> Iterator[Target]:
    kind, layout, elements = request.param
    target = InProcess(layout, elements) if kind == "in process" else wire(kind, layout, elements)
    yield target
    target.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(target: Target, case: Case) -> None:
    try:
        with Bench(target) as bench:
            case.run(bench)
    except Unsupported as reason:
        pytest.skip(f"{target.name}: {reason}")


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_cases_see_a_broken_rule(mutate: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    source = json.loads((BUILD / "switchsum_lanes_64.json").read_text())
    mutate(source)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(source))
    broken = InProcess("lanes", 64, Dataplane(Program.load(path)))
    for case in CASES:
        try:
            with Bench(broken) as bench:
                case.run(bench)
        except (AssertionError, ValueError):  # ValueError: more or fewer answers than are unpacked
            return
    pytest.fail(f"{mutate.__name__}: all of {len(CASES)} cases stayed green")
