"""The conformance cases of tests/protocol/cases under p4lang's Packet Test Framework, against any switch with P4Runtime.

    ptf --test-dir tests/ptf --interface 0-1@eth1 ... --interface 0-4@eth4 --qlen 1000 \\
        --test-params "address='192.0.2.1:9559'; layout='lanes'; elements=256"

Four ports of the switch must be wired to four interfaces, given as 1 to 4. Parameters: docs/conformance.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ptf
import ptf.testutils
from ptf.base_tests import BaseTest
from ptf.dataplane import DataPlane

sys.path.append(str(Path(__file__).resolve().parents[2]))  # PTF looks for modules in --test-dir alone

from tests.protocol.cases import CASES, Bench, Case
from tests.protocol.external_switch import ExternalSwitch
from tests.protocol.ptf_parameters import check_interfaces, of_parameters
from tests.protocol.targets import Outputs, P4RuntimeTarget


class PtfTarget(P4RuntimeTarget):
    """The switch behind PTF's dataplane: device 0, ports PORTS. Packets in and out are in PTF's capture file."""

    def __init__(self, switch: ExternalSwitch, dataplane: DataPlane) -> None:
        """Commits the program. Raises SwitchError's family."""
        super().__init__(switch.address, switch.address, switch.device_id, switch.build(), switch.numbers)
        self.padded_to_bytes = switch.shortest_frame_bytes
        self._dataplane = dataplane

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
    check_interfaces(ptf.config["port_map"])
    _targets.append(PtfTarget(of_parameters(ptf.testutils.TEST_PARAMS), ptf.dataplane_instance))


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
