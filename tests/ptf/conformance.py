"""The conformance cases of tests/protocol/cases under p4lang's Packet Test Framework, against any switch with P4Runtime.

    ptf --test-dir tests/ptf --interface 0-1@eth1 ... --interface 0-4@eth4 --qlen 1000 \\
        --test-params "address='192.0.2.1:9559'; layout='lanes'; elements=256"

Four ports of the switch must be wired to four interfaces, given as 1 to 4. Parameters: docs/conformance.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ptf
import ptf.testutils
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from ptf.base_tests import BaseTest
from ptf.dataplane import DataPlane

sys.path.append(str(Path(__file__).resolve().parents[2]))  # PTF looks for modules in --test-dir alone

from switchsum.controller import pipeline, programming
from switchsum.controller.p4names import Group, Item, P4Names
from switchsum.controller.pipeline import Build
from tests.protocol.cases import CASES, Bench, Case
from tests.protocol.targets import PORTS, Outputs, P4RuntimeTarget

DEFAULTS: dict[str, Any] = {
    "address": None,
    "device_id": 1,
    "layout": "lanes",
    "elements": 256,
    "p4info": "",
    "device_config": "",
    "shortest_frame": 60,
    "ports": PORTS,
}


class Parameters:
    """--test-params, checked. Raises ValueError naming what is wrong."""

    def __init__(self, given: dict[str, Any] | None) -> None:
        values = {**DEFAULTS, **(given or {})}
        unknown = sorted(set(values) - set(DEFAULTS))
        if unknown:
            raise ValueError(f"--test-params: {unknown[0]} is not known; there are {', '.join(DEFAULTS)}")
        if not values["address"]:
            raise ValueError("--test-params: give the switch's P4Runtime address, such as address='192.0.2.1:9559'")
        if bool(values["p4info"]) != bool(values["device_config"]):
            raise ValueError("--test-params: a program of your own needs both p4info='FILE' and device_config='FILE'")
        self.address = str(values["address"])
        self.device_id = int(values["device_id"])
        self.shortest_frame_bytes = int(values["shortest_frame"])
        self.port_numbers = {port: int(number) for port, number in zip(PORTS, values["ports"], strict=False)}
        if len(set(self.port_numbers.values())) != len(PORTS):
            raise ValueError(
                f"--test-params: ports={values['ports']!r} must be {len(PORTS)} different numbers, such as {PORTS}"
            )
        self._files = values["p4info"], values["device_config"]
        self._layout, self._elements = values["layout"], int(values["elements"])

    def build(self) -> Build:
        """Our compiled program, or that of another compiler from the same sources."""
        if not self._files[0]:
            return pipeline.load(self._layout, self._elements)
        info, config = map(Path, self._files)
        p4info = text_format.Parse(info.read_text(), p4info_pb2.P4Info(), allow_unknown_field=True)
        names = P4Names(p4info)
        programming.check_program(names)
        return Build(info.name, self._elements, p4info, config.read_bytes(), 0, names)


def renumbered(item: Item, number: dict[int, int]) -> Item:
    """An entry or a group of the cases' ports, for a switch that calls port p number[p]."""
    if isinstance(item, Group):
        return Group(item.number, frozenset((number[port], instance) for port, instance in item.replicas))
    if item.table == programming.WORKERS:
        job, epoch, port, *sender = item.key
        return replace(item, key=(job, epoch, number[port], *sender))
    if item.table in (programming.LOSS_IN, programming.LOSS_OUT):
        return replace(item, key=(number[item.key[0]],))
    if item.action == programming.FORWARD:
        return replace(item, params=(number[item.params[0]],))
    return item


class PtfTarget(P4RuntimeTarget):
    """The switch behind PTF's dataplane: device 0, ports PORTS. Packets in and out are in PTF's capture file."""

    def __init__(self, parameters: Parameters, dataplane: DataPlane) -> None:
        """Commits the program. Raises SwitchError's family."""
        self._numbers = parameters.port_numbers
        super().__init__(parameters.address, parameters.address, parameters.device_id, parameters.build())
        self.padded_to_bytes = parameters.shortest_frame_bytes
        self._dataplane = dataplane

    def write(self, updates: Iterable[tuple[int, Item]]) -> None:
        super().write([(kind, renumbered(item, self._numbers)) for kind, item in updates])

    def packets_counted(self, counter: str, index: int) -> int:
        return super().packets_counted(counter, self._numbers[index])

    def inject(self, port: int, frame: bytes) -> None:
        self._dataplane.send(0, port, frame)

    def collect(self, wait_s: float) -> Outputs:
        outputs: Outputs = []
        while True:
            found = self._dataplane.poll(device_number=0, timeout=0.0 if outputs else wait_s)
            if not isinstance(found, DataPlane.PollSuccess):
                return outputs
            outputs.append((found.port, bytes(found.packet)))


_targets: list[PtfTarget] = []  # one, while the module's tests run


def setUpModule() -> None:
    """Program the switch, once for all cases. Raises ValueError for parameters, SwitchError's family for the switch."""
    given = {port for device, port in ptf.config["port_map"] if device == 0}
    if not given >= set(PORTS):
        needed = " ".join(f"--interface 0-{port}@NAME" for port in PORTS)
        raise ValueError(f"ports {sorted(set(PORTS) - given)} have no interface; give {needed}")
    _targets.append(PtfTarget(Parameters(ptf.testutils.TEST_PARAMS), ptf.dataplane_instance))


def tearDownModule() -> None:
    _targets.pop().close()


class Conformance(BaseTest):
    """One case."""

    case: Case

    def setUp(self) -> None:
        super().setUp()
        ptf.dataplane_instance.flush()  # the hosts' kernels may have spoken since


def _test(case: Case) -> type:
    def run(self: Conformance) -> None:
        with Bench(_targets[0]) as bench:
            self.case.run(bench)

    return type(case.name, (Conformance,), {"case": case, "runTest": run, "__doc__": case.description})


globals().update({test.__name__: test for test in map(_test, CASES)})
