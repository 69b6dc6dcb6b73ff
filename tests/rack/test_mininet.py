"""The rack under Debian's mininet: `mn` and scripts of its own, run as people run them, in Mininet's Python."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "bmv2_topologies" / "mininet_rack.py"
TWO = ROOT / "bmv2_topologies" / "racks" / "two.yaml"
SWITCHSUM = Path(sys.executable).with_name("switchsum")
SYSTEM_PYTHON = "/usr/bin/python3"  # the one that Debian's mn runs in
BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")
PATIENCE_S = 120
MARKER = "SWITCHSUM_TEST_RUN"


def missing() -> str | None:
    """Why nothing here can run, or None."""
    if os.geteuid() != 0:
        return "only root can run Mininet"
    for command in ("mn", "mnexec", "ethtool", "tc", "ping"):
        if shutil.which(command) is None:
            return f"there is no `{command}`"
    if subprocess.run([SYSTEM_PYTHON, "-c", "import mininet.net"], capture_output=True, check=False).returncode:
        return f"{SYSTEM_PYTHON} has no mininet (Debian's package mininet)"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

KINDS = [
    "softswitch",
    pytest.param(
        "bmv2",
        marks=[
            pytest.mark.bmv2,
            pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2"),
        ],
    ),
]


class Runner:
    """Runs programs with an environment that tells all their descendants, and where their temporary files lie."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.mark = uuid.uuid4().hex
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")},
            "SWITCHSUM_COMMAND": str(SWITCHSUM),
            "TMPDIR": str(temporary),
            MARKER: self.mark,
        }

    def start(self, *command: str | Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """In its own session, so that signals reach it alone; everything that it prints goes to its standard output."""
        return subprocess.Popen(
            [*before, *map(str, command)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def mn(self, rack: Path | None = TWO, *options: str, switch: str = "switchsum", host: str = "switchsum") -> list[str]:
        """A command line as the documentation has it."""
        topology = "switchsum" if rack is None else f"switchsum,{rack}"
        classes = ["--topo", topology, "--switch", switch, "--host", host, "--controller", "none"]
        return ["mn", "--custom", str(MODULE), *classes, *options]

    def run(self, *command: str | Path) -> tuple[int, str]:
        """Exit status and everything printed; nothing that was started may be left."""
        process = self.start(*command)
        printed, _ = process.communicate(timeout=PATIENCE_S)
        self.assert_nothing_left()
        return process.returncode, printed

    def processes(self) -> list[str]:
        """Command lines of all descendants that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARKER}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it ended, or is nobody's that was started here
                continue
        return found

    def assert_nothing_left(self) -> None:
        """No process, and so none of their namespaces, which have no names; no link among this machine's own."""
        eventually(lambda: not self.processes(), lambda: f"still there: {self.processes()}")
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        assert "tor-eth" not in links
        assert "w0-eth" not in links


def eventually(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.05)


@pytest.fixture
def runner() -> Iterator[Runner]:
    # not below tmp_path, which is too long for a Unix socket's name
    with tempfile.TemporaryDirectory(prefix="mn-") as folder:
        yield Runner(Path(folder))


def rack_of(kind: str, folder: Path, text: str = "") -> Path:
    """The rack two.yaml with another kind of switch, and more lines."""
    path = folder / f"{kind}.yaml"
    path.write_text(f"{TWO.read_text()}switches: {{tor: {{kind: {kind}}}}}\n{text}")
    return path


def failing(folder: Path, part: str, action: str) -> str:
    """A switchsum command whose `switchsum PART` does something else, in shell; the rest is the real one."""
    path = folder / "switchsum"
    path.write_text(f'#!/bin/sh\n[ "$1" != {part} ] || {{ {action}; }}\nexec {SWITCHSUM} "$@"\n')
    path.chmod(0o755)
    return str(path)


def last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_mn_pings_all(kind: str, runner: Runner, tmp_path: Path) -> None:
    switch = f"switchsum,bmv2={BMV2}" if kind == "bmv2" else "switchsum"
    status, printed = runner.run(*runner.mn(rack_of(kind, tmp_path), "--test", "pingall", switch=switch))
    assert "Results: 0% dropped (6/6 received)" in printed, printed
    assert status == 0
    assert "before it was stopped" not in printed
    assert list(runner.temporary.iterdir()) == []


def test_names_may_be_longer_than_an_interface_s(runner: Runner, tmp_path: Path) -> None:
    lines = "switches: {one-in-the-middle: {}}\nworkers: {worker-number-one: {address: 10.83.0.11}}\n"
    status, printed = runner.run(*runner.mn(write(tmp_path, lines, "long.yaml"), "--test", "pingall"))
    assert "Results: 0% dropped (2/2 received)" in printed, printed
    assert status == 0


SCRIPT = f"""
import json
import os
import sys

from mininet.log import setLogLevel
from mininet.net import Mininet

sys.path.insert(0, "{MODULE.parent}")
from mininet_rack import RackError, RackHost, RackSwitch, RackTopo

rack, *arguments = sys.argv[1:]


def network(**switch):
    return Mininet(
        topo=RackTopo(rack), switch=lambda name, **params: RackSwitch(name, **switch, **params), host=RackHost, controller=None
    )
"""

SUM = """
import torch
import torch.distributed as dist

dist.init_process_group("switchsum")
mine = torch.arange(5000, dtype=torch.int32) * (dist.get_rank() + 1)
dist.all_reduce(mine)
print(f"rank {dist.get_rank()}: {torch.equal(mine, torch.arange(5000, dtype=torch.int32) * 3)}", flush=True)
dist.destroy_process_group()
"""

SUM_IN_ALL_HOSTS = f"""{SCRIPT}
net = network(bmv2=arguments[0])
try:
    net.start()
    ranks = [net[name].popen(arguments[1:], stderr=None) for name in ("w0", "w1")]
    for process in ranks:
        print(process.communicate(timeout=90)[0].decode(), end="")
finally:
    net.stop()
"""


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_sums_in_all_hosts(kind: str, runner: Runner, tmp_path: Path) -> None:
    script, rank = write(tmp_path, SUM_IN_ALL_HOSTS), write(tmp_path, SUM, "rank.py")
    rack = rack_of(kind, tmp_path, "loss: {in: 0.02, out: 0.02}\n")
    status, printed = runner.run(SYSTEM_PYTHON, script, rack, BMV2 or "", sys.executable, rank)
    assert status == 0, printed
    assert [line for line in printed.splitlines() if line.startswith("rank ")] == ["rank 0: True", "rank 1: True"], printed


@pytest.mark.slow
def test_the_documentation_s_script_trains(runner: Runner, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "mininet.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0].replace(".venv/bin/python", sys.executable)
    status, printed = runner.run("env", "-C", ROOT, SYSTEM_PYTHON, write(tmp_path, example), TWO)
    assert status == 0, printed
    assert "% over switchsum" in printed
    assert last_line(printed) == "exit statuses: [0, 0]"


LOOK = f"""{SCRIPT}
net = network(bmv2="/bin/true")  # is not started
seen = {{}}
try:
    for node, interface in (("w0", "w0-eth0"), ("tor", "tor-eth1"), ("controller", "controller-eth0"), ("tor", "tor-eth3")):
        offloads = dict(line.split(": ") for line in net[node].cmd("ethtool -k", interface).splitlines() if ": " in line)
        (queue, *_) = json.loads(net[node].cmd("tc -j qdisc show dev", interface))
        (link,) = json.loads(net[node].cmd("ip -j addr show dev", interface))
        seen[interface] = {{
            "off": sorted(name for name in {{"tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload",
                                          "generic-receive-offload"}} if offloads[name].startswith("off")),
            "queue": {{key: queue["options"][key] for key in ("rate", "burst")}} if queue["kind"] == "tbf" else None,
            "mtu": link["mtu"],
            "mac": link["address"],
            "addresses": [f"{{entry['local']}}/{{entry['prefixlen']}}" for entry in link["addr_info"]],
        }}
    wanted = ("RANK", "WORLD", "LOCAL", "MASTER", "GLOO", "SWITCHSUM_C", "SWITCHSUM_D")
    # Mininet takes what is in PS1 for the end of a command's output
    for how, text in (("cmd", net["w1"].cmd("env -u PS1")), ("popen", net["w1"].popen("env").communicate()[0].decode())):
        variables = dict(line.strip().partition("=")[::2] for line in text.splitlines())
        seen[how] = {{name: value for name, value in variables.items() if name.startswith(wanted)}}
finally:
    net.stop()
print(json.dumps(seen))
"""

ALL_OFF = ["generic-receive-offload", "generic-segmentation-offload", "tcp-segmentation-offload", "tx-checksumming"]


@pytest.mark.parametrize(("kind", "off"), [("softswitch", ["tcp-segmentation-offload"]), ("bmv2", ALL_OFF)])
def test_links_and_hosts_are_those_of_the_file(kind: str, off: list[str], runner: Runner, tmp_path: Path) -> None:
    rack = rack_of(kind, tmp_path, "link: {rate: 80 Mbit/s, mtu: 1600, burst: 32 KiB}\n")
    status, printed = runner.run(SYSTEM_PYTHON, write(tmp_path, LOOK), rack)
    assert status == 0, printed
    seen: dict[str, Any] = json.loads(last_line(printed))
    for interface in ("w0-eth0", "tor-eth1"):
        # tc counts in bytes, and stores the burst as a time: rounding
        assert seen[interface]["queue"]["rate"] == 80_000_000 // 8
        assert abs(seen[interface]["queue"]["burst"] - (32 << 10)) < 64
        assert seen[interface]["mtu"] == 1600
    for interface in ("w0-eth0", "tor-eth1", "controller-eth0", "tor-eth3"):
        assert set(off) <= set(seen[interface]["off"])
    assert (seen["tor-eth3"]["queue"], seen["tor-eth3"]["mtu"]) == (None, 1500)
    assert seen["w0-eth0"]["mac"] == "02:00:0a:53:00:0b"
    assert [seen[name]["addresses"] for name in ("w0-eth0", "controller-eth0", "tor-eth1")] == [
        ["10.83.0.11/24"],
        ["10.83.0.254/24"],
        [],
    ]
    assert seen["cmd"] == seen["popen"]
    assert seen["popen"] == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.83.0.11",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "w1-eth0",
        "SWITCHSUM_COMMAND": str(SWITCHSUM),
        "SWITCHSUM_CONTROLLER": "10.83.0.254:50099",
        "SWITCHSUM_DATA_ADDRESS": "10.83.0.12",
    }


def test_logs_are_kept_on_request(runner: Runner, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    status, printed = runner.run(*runner.mn(TWO, "--test", "none", switch=f"switchsum,logs={logs}"))
    assert status == 0, printed
    assert f"(logs: {logs})" in printed
    assert (logs / "switch.log").read_text().startswith("switch ready: ")
    assert "\ncontroller ready: " in "\n" + (logs / "controller.log").read_text()
    assert list(runner.temporary.iterdir()) == []


def test_kill_minus_9_leaves_nothing(runner: Runner) -> None:
    process = runner.start(*runner.mn())
    assert process.stdin
    assert process.stdout
    printed = ""
    while "Starting CLI" not in printed:
        printed += process.stdout.readline() or pytest.fail(printed)
    process.stdin.write("w0 sleep 1000 &\nw1 sleep 1000\n")
    process.stdin.flush()

    def expected() -> list[str]:
        words = (" controller --switch", " switch --p4runtime", "sleep 1000")
        return [line for line in runner.processes() if any(word in line for word in words)]

    eventually(lambda: len(expected()) == 4, lambda: f"only {runner.processes()}")
    process.kill()
    process.communicate()
    runner.assert_nothing_left()


def test_ctrl_c_during_the_start_leaves_nothing(runner: Runner, tmp_path: Path) -> None:
    """On Ctrl-C `mn` kills what looks like Mininet's anywhere on the machine, and removes links: here it cannot."""
    runner.environment["SWITCHSUM_COMMAND"] = failing(tmp_path, "switch", "exec sleep 1000")
    harmless = tmp_path / "bin"
    harmless.mkdir()
    for name, status in (("killall", 0), ("pkill", 0), ("pgrep", 1), ("rm", 0)):
        write(harmless, f"#!/bin/sh\nexit {status}\n", name).chmod(0o755)
    runner.environment["PATH"] = f"{harmless}:{runner.environment['PATH']}"
    process = runner.start(*runner.mn(), before=("unshare", "--net"))
    eventually(lambda: any("sleep 1000" in line for line in runner.processes()), lambda: "the switch was not started")
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert "Keyboard Interrupt" in printed
    runner.assert_nothing_left()


@pytest.mark.parametrize("part", ["switch", "controller"])
def test_what_does_not_come_up_is_named_with_its_last_words(part: str, runner: Runner, tmp_path: Path) -> None:
    runner.environment["SWITCHSUM_COMMAND"] = failing(tmp_path, part, "echo no luck; echo today >&2; exit 3")
    status, printed = runner.run(*runner.mn(TWO, "--test", "pingall"))
    (folder,) = runner.temporary.iterdir()
    log = folder / f"{part}.log"
    assert log.read_text() == "no luck\ntoday\n"
    assert last_line(printed) == f"error: the {part} ended with exit status 3 at its start; its log {log} ends: no luck / today"
    assert status == 1


def test_patience_ends(runner: Runner, tmp_path: Path) -> None:
    runner.environment["SWITCHSUM_COMMAND"] = failing(tmp_path, "switch", "exec sleep 1000")
    status, printed = runner.run(*runner.mn(TWO, "--test", "none", switch="switchsum,patience_s=0.5"))
    assert last_line(printed) == "error: the switch was not ready within 0.5 s; it printed nothing"
    assert status == 1


def test_a_switch_that_ended_is_told_at_the_end(runner: Runner, tmp_path: Path) -> None:
    script = write(tmp_path, f"{SCRIPT}\nnet = network()\nnet.start()\nnet['tor'].processes['switch'].kill()\nnet.stop()\n")
    status, printed = runner.run(SYSTEM_PYTHON, script, TWO)
    assert "*** the switch was killed by SIGKILL before it was stopped; its log " in printed
    assert status == 0


def error_of(runner: Runner, *command: str | Path) -> str:
    status, printed = runner.run(*command)
    assert status == 1, printed
    assert "Traceback" not in printed
    return last_line(printed).removeprefix("error: ")


def test_a_bad_file_s_error_is_passed_on(runner: Runner, tmp_path: Path) -> None:
    bad = write(tmp_path, "workers:\n  w0: {address: 10.83.0.300}\n", "bad.yaml")
    shown = subprocess.run([SWITCHSUM, "rack", "show", bad], capture_output=True, text=True, check=False)
    assert str(bad) in shown.stderr
    assert error_of(runner, *runner.mn(bad, "--test", "none")) == shown.stderr.strip().removeprefix("error: ")


def test_errors_before_the_start_say_what_to_do(runner: Runner, tmp_path: Path) -> None:
    no_file = runner.mn(None, "--test", "none")
    assert error_of(runner, *no_file) == ("which rack? Write --topo switchsum,FILE, such as bmv2_topologies/racks/two.yaml")
    assert error_of(runner, *runner.mn(TWO, "--test", "none", host="proc")) == "w0 is a Host; add --host switchsum"
    other_topology = ["mn", "--custom", MODULE, "--topo", "single,2", "--switch", "switchsum", "--controller", "none"]
    assert error_of(runner, *other_topology) == "the switch `switchsum` needs the rack's file: --topo switchsum,FILE"
    rack = rack_of("bmv2", tmp_path)
    assert error_of(runner, *runner.mn(rack, "--test", "none", switch="switchsum,bmv2=/nowhere")) == (
        "BMv2 was not found: /nowhere is no program, or not on PATH; install p4lang's behavioral-model with its P4Runtime "
        "server, give its path (--switch switchsum,bmv2=PATH), or write kind: softswitch in the rack's file"
    )


def test_not_root(runner: Runner, tmp_path: Path) -> None:
    script = write(tmp_path, f"{SCRIPT}\nos.seteuid(65534)\nRackTopo(rack)\n")
    assert error_of(runner, SYSTEM_PYTHON, script, TWO) == "only root may make network namespaces, so Mininet needs sudo"


def test_no_switchsum_command(runner: Runner, tmp_path: Path) -> None:
    runner.environment["SWITCHSUM_COMMAND"] = "/nowhere/switchsum"
    assert error_of(runner, *runner.mn()) == "SWITCHSUM_COMMAND=/nowhere/switchsum is no program"
    del runner.environment["SWITCHSUM_COMMAND"]
    (tmp_path / "lonely").mkdir()
    lonely = Path(shutil.copy(MODULE, tmp_path / "lonely"))
    runner.environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    script = write(tmp_path, SCRIPT.replace(str(MODULE.parent), str(lonely.parent)) + "\nRackTopo(rack)\n")
    assert error_of(runner, SYSTEM_PYTHON, script, TWO) == (
        f"there is no switchsum command: neither {tmp_path}/.venv/bin/switchsum nor on PATH; install switchsum there (`make` "
        "does), or set SWITCHSUM_COMMAND to the command's path (sudo needs --preserve-env=SWITCHSUM_COMMAND)"
    )
