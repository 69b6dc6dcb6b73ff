"""Starts a switch on veth pairs and runs tests/ptf on it: what `make test-ptf` does. Needs root and iproute2; leaves nothing.

    python -m tests.protocol.run_ptf --switch bmv2 --layout wide --elements 64 -- --failfast conformance.one_worker_is_a_job_too

What stands behind `--` goes to ptf: tests by name, and its options.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from switchsum.bmv2_topologies import namespaces
from switchsum.bmv2_topologies.switch_process import DEVICE_ID, KINDS, LAYOUT, SwitchFailed
from switchsum.bmv2_topologies.wired_switch import WiredSwitch
from switchsum.controller.pipeline import LAYOUTS
from switchsum.p4src.layout import DEFAULT_ELEMENTS, ELEMENT_CHOICES
from tests.protocol.targets import PORTS

TEST_DIR = Path(__file__).resolve().parents[1] / "ptf"
PTF = Path(sys.executable).with_name("ptf")
SWITCH_PORTS = (3, 200, 301, 510)  # not the cases' own numbers, as on a real switch; 510 is the last one there is
QUEUE = 1000  # frames that PTF keeps for a port: more than any case lets wait, and PTF drops silently


def ptf_command(switch: WiredSwitch, layout: str, elements: int, arguments: list[str]) -> list[str]:
    """The command line, for the switch's namespace."""
    parameters = {"address": switch.address, "device_id": DEVICE_ID, "layout": layout, "elements": elements}
    parameters |= {"ports": SWITCH_PORTS}
    command = [str(PTF), "--test-dir", str(TEST_DIR), "--qlen", str(QUEUE)]
    for port, number in zip(PORTS, SWITCH_PORTS, strict=True):
        command += ["--interface", f"0-{port}@host{number}"]
    return [*command, "--test-params", "; ".join(f"{name}={value!r}" for name, value in parameters.items()), *arguments]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--switch", choices=KINDS, default="softswitch")
    parser.add_argument("--layout", choices=LAYOUTS, help="default: the one that runs fastest on this switch")
    parser.add_argument("--elements", type=int, choices=ELEMENT_CHOICES, default=DEFAULT_ELEMENTS)
    parser.add_argument("ptf", nargs="*", help="arguments for ptf, behind --")
    options = parser.parse_args(arguments)
    if not PTF.exists():
        print(f"PTF did not run: there is no {PTF}; install it with `pip install ptf`", file=sys.stderr)
        return 1
    try:
        with (
            WiredSwitch(options.switch, SWITCH_PORTS, bmv2=os.environ.get("SWITCHSUM_BMV2", "")) as switch,
            tempfile.TemporaryDirectory(prefix="switchsum-ptf-") as folder,  # PTF writes its log and a capture beside itself
        ):
            command = ptf_command(switch, options.layout or LAYOUT[options.switch], options.elements, options.ptf)
            inside = namespaces.command_inside(switch.namespace, command)
            return subprocess.run(inside, cwd=folder, check=False).returncode
    except (namespaces.NetworkError, SwitchFailed) as error:
        print(f"PTF did not run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
