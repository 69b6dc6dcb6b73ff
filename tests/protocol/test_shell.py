"""p4lang's p4runtime-shell, which is not ours, drives the softswitch as it drives BMv2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchsum.bmv2_topologies.wired_switch import WiredSwitch
from switchsum.controller import pipeline, programming
from switchsum.softswitch.daemon import SoftSwitch
from tests.protocol.conftest import BMV2, NO_BMV2

ELEMENTS = 64

SHELL_SESSION = """
import sys
import p4runtime_sh.shell as sh

address, info, config = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(info, config))
for table in sorted(table.name for table in sh.P4Objects(sh.P4Type.table)):
    print("table", table, len(list(sh.TableEntry(table).read())))
station = sh.TableEntry("SwitchIngress.forwarding.stations")(action="SwitchIngress.forwarding.forward")
station.match["mac"] = "02:00:00:00:00:01"
station.action["port"] = "1"
station.insert()
for found in sh.TableEntry("SwitchIngress.forwarding.stations").read():
    print("entry", *str(found).split())
sh.teardown()
"""


def shell_session(address: str) -> list[str]:
    """A session of p4runtime-shell that commits the wide build, lists its tables and reads an entry back."""
    stem = pipeline.build_folder() / f"switchsum_wide_{ELEMENTS}"
    files = (f"{stem}.p4info.txtpb", f"{stem}.json")
    assert all(Path(name).exists() for name in files)
    done = subprocess.run(
        [sys.executable, "-c", SHELL_SESSION, address, *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("table", "entry")]


def test_a_shell_lists_the_softswitchs_tables() -> None:
    with SoftSwitch(ports=1) as softswitch:
        lines = shell_session(softswitch.grpc_address)
    assert lines[:-1] == [f"table {table} 0" for table in sorted(programming.TABLES)]
    assert "SwitchIngress.forwarding.stations" in lines[-1]


@pytest.mark.bmv2
@pytest.mark.skipif(NO_BMV2 is not None, reason=NO_BMV2 or "")
def test_a_shell_lists_the_same_tables_on_both_switches() -> None:
    with WiredSwitch("bmv2", (), bmv2=str(BMV2)) as bmv2, SoftSwitch(ports=1) as softswitch:
        assert shell_session(bmv2.address) == shell_session(softswitch.grpc_address)
