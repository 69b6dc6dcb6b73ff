"""Switches on veth pairs for the tests of this folder: each kind is started once and programmed anew for each target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from switchsum.bmv2_topologies.namespaces import what_is_missing
from switchsum.bmv2_topologies.wired_switch import WiredSwitch
from tests.protocol.targets import PORTS, Wired

pytest.register_assert_rewrite("tests.protocol.cases")  # pytest explains assertions in tests' own modules only
BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")
NO_BMV2 = "simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2" if BMV2 is None else what_is_missing()
NO_VETH = what_is_missing()

Wire = Callable[[str, str, int], Wired]  # (kind, layout, elements) -> a target that is programmed with this build


def marks(kind: str) -> list[Any]:
    """What a test of a switch on veth pairs must be marked with. Every kind needs root and iproute2."""
    if kind == "bmv2":
        return [pytest.mark.bmv2, pytest.mark.skipif(NO_BMV2 is not None, reason=NO_BMV2 or "")]
    return [pytest.mark.skipif(NO_VETH is not None, reason=NO_VETH or "")]


def on_wires(kind: str, builds: Iterable[tuple[str, int]]) -> list[Any]:
    """Parameters (kind, layout, elements) with marks and names, for targets that `wire` makes."""
    return [
        pytest.param((kind, layout, elements), id=f"{kind}-{layout}-{elements}", marks=marks(kind))
        for layout, elements in builds
    ]


@pytest.fixture(scope="session")
def wire() -> Iterator[Wire]:
    """Makes targets; close one before making the next of its kind, since P4Runtime has one primary."""
    with ExitStack() as stack:
        switches: dict[str, WiredSwitch] = {}

        def make(kind: str, layout: str, elements: int) -> Wired:
            if kind not in switches:
                switches[kind] = stack.enter_context(WiredSwitch(kind, PORTS, bmv2=str(BMV2)))
            return Wired(switches[kind], layout, elements)

        yield make
