"""Switches for the tests of this folder: on veth pairs, each kind started once and programmed anew for each target; the source
for Tofino, executed; or the one that --target names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from switchsum.bmv2_topologies.namespaces import what_is_missing
from switchsum.bmv2_topologies.switch_process import DEVICE_ID
from switchsum.bmv2_topologies.wired_switch import WiredSwitch, packet_socket
from switchsum.controller import pipeline
from tests.protocol import external_switch
from tests.protocol.targets import PORTS, OnInterfaces, Target
from tests.protocol.tna_switch import NO_CPP, TnaSwitch

pytest.register_assert_rewrite("tests.protocol.cases")  # pytest explains assertions in tests' own modules only
BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")
NO_BMV2 = "simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2" if BMV2 is None else what_is_missing()
NO_VETH = what_is_missing()

EXTERNAL = "external"
CHIPS = {"tofino": 1, "tofino2": 2}

Wire = Callable[[str, str, int], Target]  # (kind, layout, elements) -> a target that is programmed with this build


def marks(kind: str) -> list[Any]:
    """What a test of a switch of this kind must be marked with. Those on veth pairs need root and iproute2."""
    if kind in CHIPS:
        return [pytest.mark.skipif(NO_CPP is not None, reason=NO_CPP or "")]
    if kind == "bmv2":
        return [pytest.mark.bmv2, pytest.mark.skipif(NO_BMV2 is not None, reason=NO_BMV2 or "")]
    return [pytest.mark.skipif(NO_VETH is not None, reason=NO_VETH or "")]


def on_wires(kind: str, builds: Iterable[tuple[str, int]]) -> list[Any]:
    """Parameters (kind, layout, elements) with marks and names, for targets that `wire` makes."""
    return [
        pytest.param((kind, layout, elements), id=f"{kind}-{layout}-{elements}", marks=marks(kind))
        for layout, elements in builds
    ]


def parametrize(metafunc: pytest.Metafunc, name: str, targets: list[Any]) -> None:
    """Give a test these targets by an indirect fixture; if --target names a switch, that one instead."""
    config = metafunc.config
    if config.getoption("target"):
        build = config.getoption("layout"), config.getoption("elements")
        targets = [pytest.param((EXTERNAL, *build), id=config.getoption("target"), marks=pytest.mark.external)]
    metafunc.parametrize(name, targets, indirect=True)


@pytest.fixture(scope="session")
def wire(pytestconfig: pytest.Config) -> Iterator[Wire]:
    """Makes targets; close one before making the next of its kind, since P4Runtime has one primary."""
    with ExitStack() as stack:
        switches: dict[str, WiredSwitch] = {}

        def external() -> OnInterfaces:
            switch, interfaces = external_switch.of_options(vars(pytestconfig.option))
            sockets = {port: stack.enter_context(packet_socket(name)) for port, name in interfaces.items()}
            address = switch.address
            target = OnInterfaces(address, address, switch.device_id, switch.build(), switch.numbers, sockets)
            target.padded_to_bytes = switch.shortest_frame_bytes
            return target

        def make(kind: str, layout: str, elements: int) -> Target:
            if kind == EXTERNAL:
                return external()
            if kind in CHIPS:
                return TnaSwitch(CHIPS[kind])
            if kind not in switches:
                switches[kind] = stack.enter_context(WiredSwitch(kind, PORTS, bmv2=str(BMV2)))
            switch, numbers = switches[kind], {port: port for port in PORTS}
            return OnInterfaces(kind, switch.address, DEVICE_ID, pipeline.load(layout, elements), numbers, switch.sockets)

        yield make
