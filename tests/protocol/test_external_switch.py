"""`pytest --target`: the cases and the random packets on a switch that is there already, and what is said of wrong options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchsum.bmv2_topologies import namespaces
from switchsum.bmv2_topologies.switch_process import LAYOUT
from switchsum.bmv2_topologies.wired_switch import WiredSwitch
from tests.protocol.conftest import BMV2, marks
from tests.protocol.external_switch import of_options

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = (132, 140, 301, 510)  # not the cases' own, as on a real switch
FILES = ("tests/protocol/test_conformance.py", "tests/protocol/test_differential.py")
SOME = "one_worker_is_a_job_too or last_contribution or drop_simulator_loses_contributions or test_random_packets"
OPTIONS: dict[str, Any] = {
    "target": "192.0.2.1:9559",
    "ports": "132@lo,140@lo",
    "device_id": 1,
    "layout": "lanes",
    "elements": 256,
    "p4info": "",
    "device_config": "",
    "shortest_frame": 60,
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks(kind)) for kind in ("softswitch", "bmv2")])
def test_the_cases_run_on_a_switch_that_is_there(kind: str) -> None:
    with WiredSwitch(kind, NUMBERS, bmv2=str(BMV2)) as switch:
        ports = ",".join(f"{number}@host{number}" for number in NUMBERS)
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", SOME, *FILES]
        command += ["--target", switch.address, "--ports", ports, "--layout", LAYOUT[kind], "--elements", "64"]
        environment = {**os.environ, "SWITCHSUM_PACKETS": "500"}
        inside = namespaces.command_inside(switch.namespace, command)
        done = subprocess.run(inside, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"::(\S+) PASSED", done.stdout)
    assert sorted(passed) == [  # and nothing on another switch
        f"test_case[{switch.address}-drop_simulator_loses_contributions_before_they_count]",
        f"test_case[{switch.address}-last_contribution_multicasts_the_sum]",
        f"test_case[{switch.address}-one_worker_is_a_job_too]",
        f"test_random_packets[{switch.address}]",
    ], done.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ports": ""}, "--ports '': give 4 ports of the switch, each with the interface wired to it, such as 1@eth1,2@eth2"),
        ({"ports": "1@lo,2@lo,3@lo,4@lo"}, "--ports '1@lo,2@lo,3@lo,4@lo': give 4 ports of the switch"),
        ({"ports": "1@a,1@b,3@c,4@d"}, "--ports '1@a,1@b,3@c,4@d': give 4 ports of the switch"),
        ({"ports": "1@a,x@b,3@c,4@d"}, "--ports '1@a,x@b,3@c,4@d': give 4 ports of the switch"),
        ({"ports": "1@lo,2@nowhere,3@c,4@d"}, "--ports: there is no interface nowhere here; `ip link` lists those there are"),
    ],
)
def test_wrong_ports_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        of_options(OPTIONS | given)


def test_half_a_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(number, f"eth{number}") for number in range(1, 5)])
    with pytest.raises(ValueError, match=re.escape("--p4info and --device-config: a program of your own needs both files")):
        of_options(OPTIONS | {"ports": "1@eth1,2@eth2,3@eth3,4@eth4", "p4info": "a"})


def test_pytest_says_it_as_misuse() -> None:
    command = [sys.executable, "-m", "pytest", "tests/protocol/test_conformance.py", "--target", "192.0.2.1:9559"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --ports '': give 4 ports of the switch" in done.stderr
