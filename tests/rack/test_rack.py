"""`switchsum rack` on real namespaces: what works in a rack, what is told when a part dies, and that nothing ever stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum.bmv2_topologies import namespaces, rack_file, state
from switchsum.bmv2_topologies.rack import Rack
from switchsum.bmv2_topologies.switch_process import SwitchFailed, check_offloads, find_bmv2
from tests.rack.conftest import BMV2, KINDS, RACKS, RackName, eventually

PYTHON = sys.executable
needs_ping, needs_tcpdump = (
    pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed") for tool in ("ping", "tcpdump")
)
SHAPED = """\
link: {rate: 50 Mbit/s, burst: 32 KiB, mtu: 1400}
workers:
  left: {address: 10.83.0.11}
  right: {address: 10.83.0.12, link: {rate: 20 Mbit/s}, loss: {in: 0.02, out: 0.02}}
"""
# TCP in both directions at once, between all workers, and to the controller: what gRPC and Gloo need.
TALK = """
import os, socket, threading
n, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
server = socket.create_server(("", 5000))
def serve():
    for _ in range(n - 1):
        peer, _ = server.accept()
        received = 0
        while data := peer.recv(65536):
            received += len(data)
        peer.sendall(str(received).encode())
        peer.close()
thread = threading.Thread(target=serve); thread.start()
import time; time.sleep(0.5)
for other in range(n):
    if other != rank:
        with socket.create_connection((f"w{other}", 5000), timeout=20) as peer:
            peer.sendall(bytes(1_000_000)); peer.shutdown(socket.SHUT_WR)
            assert peer.recv(100) == b"1000000"
thread.join()
host, port = os.environ["SWITCHSUM_CONTROLLER"].split(":")
socket.create_connection((host, int(port)), timeout=20).close()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SWITCHSUM_DATA_ADDRESS")
print(socket.gethostname(), *(os.environ[name] for name in names))
"""


def bmv2_options(kind: str) -> list[str]:
    return ["--switch", kind, *(["--bmv2", str(BMV2)] if kind == "bmv2" else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_are_ranks_and_speak_with_each_other_and_the_controller(rack_name: RackName, kind: str) -> None:
    done = rack_name.run(
        "run", "{file}", "--name", "{name}", *bmv2_options(kind), "--", PYTHON, "-c", TALK.replace("{", "{{").replace("}", "}}")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        "[w0] w0 0 0 2 1 10.83.0.11 29500 10.83.0.11",
        "[w1] w1 1 0 2 1 10.83.0.11 29500 10.83.0.12",
    ]
    rack_name.assert_nothing_is_left()


@pytest.mark.parametrize("elements", [64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_right_with_loss(rack_name: RackName, kind: str, elements: int) -> None:
    options = [*bmv2_options(kind), "--elements", str(elements), "--loss", "0.05"]
    done = rack_name.run(
        "run", "{file}", "--name", "{name}", *options, "--", PYTHON, "-m", "tests.rack.job", "sum", str(elements),
        file=RACKS / "four.yaml",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n"))[1:] == [f"[w{rank}] right" for rank in range(4)]


def test_links_are_shaped_and_lossy_as_the_file_says(rack_name: RackName, tmp_path: Path) -> None:
    file = tmp_path / "shaped.yaml"
    file.write_text(SHAPED)
    done = rack_name.run("up", "{file}", "--name", "{name}", file=file)
    assert done.returncode == 0, done.stderr
    assert f"rack {rack_name.name}: up; softswitch, 256 elements a packet, from {file}" in done.stdout
    assert "10.83.0.12      20 Mbit/s, MTU 1400, loss 0.02 in, 0.02 out" in done.stdout
    switch, left = f"switchsum.{rack_name.name}.tor", f"switchsum.{rack_name.name}.left"
    for namespace, interface, rate in ((left, "eth0", "50Mbit"), (switch, "port1", "50Mbit"), (switch, "port2", "20Mbit")):
        qdisc = namespaces.run("tc", "-n", namespace, "qdisc", "show", "dev", interface)
        assert re.search(rf"tbf \w+: root refcnt \d+ rate {rate} burst 32Kb", qdisc)
        assert "mtu 1400" in namespaces.run("ip", "-n", namespace, "link", "show", interface)
    assert "noqueue" in namespaces.run("tc", "-n", switch, "qdisc", "show", "dev", "port3")
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", PYTHON, "-m", "tests.rack.job", "sum", "256", file=file)
    assert (done.returncode, done.stdout.count("right\n")) == (0, 2)
    assert rack_name.run("down", "{name}").stdout == f"rack {rack_name.name}: down\n"
    rack_name.assert_nothing_is_left()


BRIDGED = """import os, subprocess
assert "SWITCHSUM_CONTROLLER" not in os.environ
print(subprocess.run(["ping", "-c", "1", "-W", "5", "w1"], capture_output=True).returncode)"""


@needs_ping
def test_a_bridge_joins_the_same_workers_without_a_switch_program(rack_name: RackName) -> None:
    options = ["--name", "{name}", "--switch", "bridge"]
    done = rack_name.run("run", "{file}", *options, "--", PYTHON, "-c", BRIDGED)
    assert (done.returncode, done.stderr, sorted(done.stdout.split("\n"))) == (0, "", ["", "[w0] 0", "[w1] 0"])
    rack_name.assert_nothing_is_left()
    done = rack_name.run("up", "{file}", *options, file=RACKS / "four-100m.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"rack {rack_name.name}: up; bridge, from {RACKS / 'four-100m.yaml'}\n")
    assert "controller" not in done.stdout
    bridge, worker = f"switchsum.{rack_name.name}.tor", f"switchsum.{rack_name.name}.w1"
    for namespace, interface in ((bridge, "port2"), (worker, "eth0")):
        qdisc = namespaces.run("tc", "-n", namespace, "qdisc", "show", "dev", interface)
        assert re.search(r"tbf \w+: root refcnt \d+ rate 100Mbit burst 128Kb", qdisc)
        assert namespaces.shapers(namespace)[interface].dropped == 0
        assert "tso" in namespaces.offloads(namespace, interface)
    assert rack_name.run("down", "{name}").stdout == f"rack {rack_name.name}: down\n"
    rack_name.assert_nothing_is_left()


def test_a_rack_that_is_up_is_known_by_its_name_and_file(rack_name: RackName) -> None:
    assert rack_name.run("up", "{file}", "--name", "{name}", "--loss", "0.001").returncode == 0
    assert f"rack {rack_name.name}: up; softswitch" in rack_name.run("status").stdout
    again = rack_name.run("up", "{file}", "--name", "{name}")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert f"error: rack {rack_name.name} is up already (process " in again.stderr
    other = rack_name.run("run", "{file}", "--name", "{name}", "--loss", "0.5", "--", "true")
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert f"rack {rack_name.name} is up, but otherwise than these options say; take it down first" in other.stderr
    foreign = rack_name.run("run", "{file}", "--name", "{name}", "--", "true", file=RACKS / "four.yaml")
    assert f"is up, but from {RACKS / 'two.yaml'}" in foreign.stderr
    assert rack_name.run("run", "{file}", "--name", "{name}", "--", "true").returncode == 0
    refused = rack_name.run("run", "{file}", "--name", "{name}", "--pcap", "/tmp/never-made", "--", "true")
    assert "is up with offloads, which captures would show" in refused.stderr
    os.kill(rack_name.part("switch").pid, signal.SIGKILL)
    eventually(lambda: not rack_name.part("switch").alive, "the switch is gone")
    broken = rack_name.run("run", "{file}", "--name", "{name}", "--", "true")
    assert "but its switch (process" in broken.stderr
    status = rack_name.run("status", "{name}")
    assert (status.returncode, "BROKEN: its switch (process" in status.stdout) == (1, True)
    assert rack_name.run("down", "{name}").returncode == 0
    gone = rack_name.run("status", "{name}")
    assert (gone.returncode, f"no rack {rack_name.name} is up" in gone.stderr) == (1, True)
    rack_name.assert_nothing_is_left()


MANAGED = """\
management: 10.84.0.0/24
workers:
  w0: {address: 10.83.0.11}
  w1: {address: 10.83.0.12}
"""


@needs_ping
def test_a_management_network_does_not_need_the_switch(rack_name: RackName, tmp_path: Path) -> None:
    """And a switch or a controller that is started again serves the workers as before."""
    described = rack_file.parse(MANAGED, "managed.yaml").changed(name=rack_name.name)
    with Rack(described) as rack:
        namespace = f"switchsum.{rack_name.name}.w0"
        listen = rack.record.rack["controller"]["listen"].split(":")
        knock = [PYTHON, "-c", f"import socket; socket.create_connection(({listen[0]!r}, {listen[1]}), 20).close()"]
        ping = ["ping", "-c", "1", "-W", "5", "10.83.0.12"]
        rack.processes["switch"].kill()
        rack.processes["switch"].wait()
        assert rack.failure() is not None
        namespaces.run(*namespaces.command_inside(namespace, knock))
        rack.start("switch")
        rack.processes["controller"].kill()
        rack.processes["controller"].wait()
        rack.start("controller")
        assert rack.failure() is None
        namespaces.run(*namespaces.command_inside(namespace, ping))
        assert rack.record.failures() == []
    rack_name.assert_nothing_is_left()


def started_job(rack: RackName, *options: str, file: Path = RACKS / "two.yaml") -> subprocess.Popen[str]:
    """A rack with a job that goes on for ever; returns once every worker has had a right sum."""
    process = rack.start(
        "run", "{file}", "--name", "{name}", *options, "--", PYTHON, "-m", "tests.rack.job", "train", "256", file=file
    )
    assert process.stdout is not None
    workers = 2 if file.stem == "two" else 4
    told = ""
    while told.count("right\n") < workers:  # where the packet loops are compiled first, a line says so
        line = process.stdout.readline()
        assert line, told
        told += line
    return process


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_switch_is_named_and_everything_ends(rack_name: RackName, kind: str) -> None:
    process = started_job(rack_name, *bmv2_options(kind))
    os.kill(rack_name.part("switch").pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert f"error: the switch ({kind}) was killed by SIGKILL" in err
    rack_name.assert_nothing_is_left()


def test_a_killed_controller_is_named_and_everything_ends(rack_name: RackName) -> None:
    process = started_job(rack_name)
    os.kill(rack_name.part("controller").pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert "error: the controller was killed by SIGKILL" in err
    rack_name.assert_nothing_is_left()


def test_a_killed_worker_is_named_by_the_others_and_everything_ends(rack_name: RackName) -> None:
    process = started_job(rack_name, file=RACKS / "four.yaml")
    [victim] = namespaces.processes(f"switchsum.{rack_name.name}.w2")
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert "error: worker w2 (rank 2) was killed by SIGKILL" in err
    told = [line for line in out.splitlines() if "rank 2" in line and "w2" in line]
    assert len(told) == 3, out  # each of the others names the rank and its host
    rack_name.assert_nothing_is_left()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_command_ends_nothing_stays(rack_name: RackName, how: signal.Signals) -> None:
    process = started_job(rack_name)
    process.send_signal(how)
    _, err = process.communicate(timeout=120)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    if how == signal.SIGINT:
        assert err == "error: interrupted; everything that was started has been stopped\n"
    rack_name.assert_nothing_is_left()


def test_grandchildren_go_too(rack_name: RackName) -> None:
    leave = "import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", PYTHON, "-c", leave)
    assert done.returncode == 0, done.stderr
    rack_name.assert_nothing_is_left()


def test_what_a_crash_left_is_told_and_removed(rack_name: RackName) -> None:
    """Keeper and janitor both killed: nobody is left to tidy up."""
    assert rack_name.run("up", "{file}", "--name", "{name}").returncode == 0
    record = state.find(rack_name.name)
    assert record is not None
    for folder in Path("/proc").iterdir():
        if is_janitor(folder, rack_name.name):
            os.kill(int(folder.name), signal.SIGKILL)
    os.kill(record.owner.pid, signal.SIGKILL)
    eventually(lambda: not record.owner.alive, "the keeper is gone")
    assert rack_name.namespaces()
    told = f"rack {rack_name.name}: left behind by a crash; remove it: switchsum rack down {rack_name.name}\n"
    assert rack_name.run("status", "{name}").stdout == told
    refused = rack_name.run("run", "{file}", "--name", "{name}", "--", "true")
    assert (refused.returncode, "was left behind by a crash; remove it" in refused.stderr) == (1, True)
    down = rack_name.run("down", "{name}")
    assert "removed what a crash had left" in down.stdout
    rack_name.assert_nothing_is_left()


def test_a_command_that_does_not_exist_is_told(rack_name: RackName) -> None:
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "error: there is no program 'no-such-command' to run in the workers\n")
    joined = rack_name.run("run", "{file}", "--name", "{name}", "--", "ping -c 1 w1")
    assert joined.stderr.endswith("write its words apart, not as one\n")
    rack_name.assert_nothing_is_left()


def test_without_dashes_no_option_of_the_command_is_taken_for_ours(rack_name: RackName) -> None:
    done = rack_name.run("run", "{file}", "echo", "--loss", "0.5")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: write -- before COMMAND: switchsum rack run FILE -- COMMAND")


def test_two_commands_at_once_do_not_end_each_others_processes(rack_name: RackName) -> None:
    assert rack_name.run("up", "{file}", "--name", "{name}").returncode == 0
    long = rack_name.start("run", "{file}", "--name", "{name}", "--", "sh", "-c", "echo begun; sleep 4; echo done")
    assert long.stdout is not None
    assert long.stdout.readline().endswith("begun\n")
    assert rack_name.run("run", "{file}", "--name", "{name}", "--", "true").returncode == 0
    out, err = long.communicate(timeout=60)
    assert (long.returncode, err, out.count("done\n")) == (0, "", 2)


def test_a_foreign_namespace_of_the_same_name_is_left_alone(rack_name: RackName) -> None:
    foreign = f"switchsum.{rack_name.name}.w1"
    namespaces.add(foreign)
    try:
        done = rack_name.run("run", "{file}", "--name", "{name}", "--", "true")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert (
            f"network namespace {foreign} exists already and is nobody's; remove it (`ip netns del {foreign}`)" in done.stderr
        )
        assert rack_name.namespaces() == [foreign]
    finally:
        namespaces.delete(foreign)


def test_a_worker_that_prints_without_end_holds_up_nobody(rack_name: RackName) -> None:
    chatty = "if [ $RANK = 0 ]; then head -c 300000 /dev/zero; echo; yes | head -c 600000; else echo failing; exit 7; fi"
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", "sh", "-c", chatty)
    assert (done.returncode, done.stderr) == (7, "error: worker w1 (rank 1) ended with exit status 7\n")
    lines = done.stdout.split("\n")
    assert "[w1] failing" in lines
    assert sum(line == "[w0] y" for line in lines) == 300_000
    assert sum(line.count("\0") for line in lines) == 300_000


def test_a_line_that_was_never_finished_is_shown(rack_name: RackName) -> None:
    """Also while a child of the worker keeps its pipe open."""
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", "sh", "-c", "sleep 1000 & printf foo")
    assert sorted(done.stdout.split()) == ["[w0]", "[w1]", "foo", "foo"]
    rack_name.assert_nothing_is_left()


def test_a_killed_janitor_is_no_failure(rack_name: RackName) -> None:
    process = started_job(rack_name)
    [janitor] = [int(folder.name) for folder in Path("/proc").iterdir() if is_janitor(folder, rack_name.name)]
    os.kill(janitor, signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted; everything that was started has been stopped\n")
    rack_name.assert_nothing_is_left()


def is_janitor(folder: Path, name: str) -> bool:
    try:
        return b"bmv2_topologies.janitor\0" + name.encode() in (folder / "cmdline").read_bytes()
    except OSError:
        return False


@needs_tcpdump
def test_a_capture_that_broke_off_is_told(rack_name: RackName, tmp_path: Path) -> None:
    options = ["--pcap", str(tmp_path / "captures"), "--", "sh", "-c", "echo begun; sleep 3"]
    process = rack_name.start("run", "{file}", "--name", "{name}", *options)
    assert process.stdout is not None
    process.stdout.readline()
    victims = [
        pid
        for pid in namespaces.processes(f"switchsum.{rack_name.name}.tor")
        if b"port1" in cmdline(pid) and b"tcpdump" in cmdline(pid)
    ]
    os.kill(victims[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "w0.pcap is incomplete: tcpdump was killed by SIGKILL too early" in err
    occupied = rack_name.run("run", "{file}", "--name", "{name}", "--pcap", str(RACKS / "two.yaml"), "--", "true")
    assert (occupied.returncode, occupied.stderr.count("\n")) == (1, 1)
    rack_name.assert_nothing_is_left()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_failing_worker_gives_the_exit_status(rack_name: RackName) -> None:
    done = rack_name.run("run", "{file}", "--name", "{name}", "--", "sh", "-c", "exit $((RANK * 7))")
    assert (done.returncode, done.stderr) == (7, "error: worker w1 (rank 1) ended with exit status 7\n")


def test_bmv2_that_is_not_there_is_told(rack_name: RackName, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 1.14.0\n")
    odd = tmp_path / "odd"
    odd.write_text("#!/bin/sh\necho hello\n")
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho 1.15.5\n")
    for path in (old, odd, bare):
        path.chmod(0o755)
    done = rack_name.run("run", "{file}", "--name", "{name}", "--switch", "bmv2", "--bmv2", "/no/such", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: BMv2 was not found: /no/such is no program; install p4lang's behavioral-model")
    for path, complaint in (
        (old, "is BMv2 1.14.0; 1.15 or later is needed"),
        (odd, "does not look like simple_switch_grpc"),
        (bare, "has no --no-p4, --device-id, --grpc-server-addr"),
    ):
        with pytest.raises(SwitchFailed, match=complaint):
            find_bmv2(str(path))
    rack_name.assert_nothing_is_left()


def test_harmful_offloads_are_detected(rack_name: RackName) -> None:
    namespace = f"switchsum.{rack_name.name}.x"
    namespaces.add(namespace)
    try:
        namespaces.ip(namespace, ["link add veth1 type veth peer name veth2"])
        with pytest.raises(
            SwitchFailed, match=r"interface veth1 in namespace .* has gso, tso, tx-checksum offload on, with which bmv2"
        ):
            check_offloads("bmv2", [(namespace, "veth1")])
        with pytest.raises(SwitchFailed, match=r"run `ip netns exec .* ethtool -K veth1 tso off`"):
            check_offloads("softswitch", [(namespace, "veth1")])
        namespaces.turn_off(namespace, "veth1", ("tx-checksum", "tso", "gso", "gro"))
        check_offloads("bmv2", [(namespace, "veth1")])
        assert namespaces.offloads(namespace, "veth1") == set()
    finally:
        namespaces.delete(namespace)


@needs_tcpdump
def test_captures_hold_every_link_packet_by_packet(rack_name: RackName, tmp_path: Path) -> None:
    from scapy.utils import rdpcap

    from switchsum.p4src.layout import PacketType
    from switchsum.p4src.scapy_layer import SwitchSum

    folder = tmp_path / "captures"
    done = rack_name.run(
        "run", "{file}", "--name", "{name}", "--elements", "64", "--pcap", str(folder),
        "--", PYTHON, "-m", "tests.rack.job", "sum", "64",
    )  # fmt: skip
    assert done.returncode == 0
    assert len(re.findall(r"^captured \d+ packets: ", done.stderr, re.MULTILINE)) == 3, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["controller.pcap", "w0.pcap", "w1.pcap"]
    for rank in range(2):
        ours = [packet[SwitchSum] for packet in rdpcap(str(folder / f"w{rank}.pcap")) if SwitchSum in packet]
        chunks = -(-30_000 // 64)
        for kind in (PacketType.CONTRIBUTION, PacketType.RESULT):
            phases = {(packet.slot, packet.phase) for packet in ours if packet.kind == kind}
            assert len(phases) == chunks


def test_without_root_one_sentence_says_so() -> None:
    """In a user namespace without a mapping, nobody is root."""
    unprivileged = ["unshare", "--user", PYTHON, "-m", "switchsum.cli", "rack"]
    if subprocess.run([*unprivileged[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel makes no user namespaces")
    for arguments in (["up", str(RACKS / "two.yaml")], ["run", str(RACKS / "two.yaml"), "--", "true"], ["down", "--all"]):
        done = subprocess.run([*unprivileged, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "error: a rack is made of network namespaces, but only root may make network namespaces" in done.stderr


def test_show_prints_the_rack_for_scripts() -> None:
    import json

    done = subprocess.run(
        [PYTHON, "-m", "switchsum.cli", "rack", "show", str(RACKS / "four-100m.yaml"), "--loss", "0.5"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout)
    assert [worker["address"] for worker in shown["workers"]] == [f"10.83.0.{number}" for number in range(11, 15)]
    assert shown["workers"][0]["link"]["rate_bps"] == 100_000_000
    assert shown["workers"][0]["loss"] == {"in": 0.5, "out": 0.5}
    bad = subprocess.run(
        [PYTHON, "-m", "switchsum.cli", "rack", "show", "no-such.yaml"], capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert bad.stderr.startswith("error: no-such.yaml: cannot be read: ")


def test_an_interrupted_start_leaves_nothing(rack_name: RackName) -> None:
    """Ctrl-C while `rack up` waits: the process that brings the rack up is not the terminal's, and must end all the same."""
    process = rack_name.start("up", "{file}", "--name", "{name}")
    eventually(rack_name.namespaces, "the rack is coming up")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted; everything that was started has been stopped\n")
    rack_name.assert_nothing_is_left()
