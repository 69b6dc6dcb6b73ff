"""What the `switchsum` command says: each thing a person can get wrong gives one line that names it, and status 2."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum import cli
from tests.in_process import command_line

MISUSE = {
    "demo --workers 40": "--workers 40: 32 is the limit, because each slot of the switch remembers who has contributed "
    "in a bitmap of 32 bits",
    "demo --workers 1": "--workers 1: a sum needs at least 2 workers",
    "demo --loss 1": "--loss 1: must be at least 0 and below 1; it is the share of packets dropped, and at 1 nothing "
    "would ever arrive",
    "demo --loss -0.1": "--loss -0.1: must be at least 0 and below 1; it is the share of packets dropped, and at 1 "
    "nothing would ever arrive",
    "demo --loss nan": "--loss nan: must be at least 0 and below 1; it is the share of packets dropped, and at 1 "
    "nothing would ever arrive",
    "demo --epochs 0": "--epochs 0: must be at least 1",
    "demo --elements 100": "--elements 100: the switch program is compiled for 64, 128, 256 elements per packet",
    "demo --seed -1": "--seed -1: must be between 0 and 4294967295",
    "demo --timeout 0": "--timeout 0: must be between 1 and 3600 seconds",
    "demo --timeout inf": "--timeout inf: must be between 1 and 3600 seconds",
    "demo --lost 0.1": "No such option: --lost (Possible options: --loss) (see `switchsum demo --help`)",
    "demo digits": "Got unexpected extra argument(s) (digits) (see `switchsum demo --help`)",
    "train": "No such command 'train' (see `switchsum --help`)",
    "switch --ports 0": "0 ports: a switch needs at least one",
    "controller --ports 0": "0 ports: a switch has 1 to 510",
    "controller --ports 511": "511 ports: a switch has 1 to 510",
    "controller --udp-base 0": "UDP ports 1 to 8 do not exist; give the base that the switch got",
    "controller --host nowhere": "host 'nowhere' is not an IPv4 address of loopback, such as 127.0.0.1, where an embedded "
    "switch's ports are; describe any other network in a file (--fabric)",
    "controller --host 10.0.0.1": "host '10.0.0.1' is not an IPv4 address of loopback, such as 127.0.0.1, where an embedded "
    "switch's ports are; describe any other network in a file (--fabric)",
    "controller --idle 0": "idle 0.0 is out of range: 0.1 to 604800 seconds",
    "switch --tls-cert c.pem": "--tls-cert without --tls-key: a certificate and its key go together",
    "controller --tls-clients ca.pem": "--tls-clients without --tls-cert: only a server with TLS can ask for certificates",
    "controller --switch-cert c.pem --switch-key k.pem": "--switch-cert without --switch-ca: name the authority of the "
    "server's certificate",
    "token a/b": "'a/b' is not a tenant's name: 1 to 64 letters, digits, dots, dashes and underscores",
    "controller --program out": "program is for a Tofino: describe it in the fabric's file (--fabric), or leave the option out",
    "switch --udp-base 65530": "UDP ports 65531 to 65538 do not exist; choose a base of 1 to 65527",
}


def run(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; its exit status."""
    return command_line(monkeypatch, *arguments.split())


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=MISUSE.keys())
def test_misuse_is_one_line_and_status_2(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, monkeypatch) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_a_value_of_the_wrong_kind_names_option_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo --workers many", monkeypatch) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: Invalid value for '--workers': ")
    assert errors.count("\n") == 1


def test_a_tofino_s_ports_are_told_to_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fabric.yaml"
    link = "{panel: 1/0, speed: 100G, fec: rs, autonegotiation: off}"
    file.write_text(f"kind: tofino\nserver: stratum\nports: {{132: []}}\nlinks: {{132: {link}}}\n")
    assert run(f"tofino-ports {file}", monkeypatch) == 0
    assert 'id: 1 name: "1/0" slot: 1 port: 1 speed_bps: 100000000000 node: 1' in capsys.readouterr().out
    file.write_text(file.read_text().replace("stratum", "bf_switchd"))
    assert run(f"tofino-ports {file}", monkeypatch) == 0
    assert capsys.readouterr().out == "ucli\npm\nport-add 1/0 100G RS\nan-set 1/0 2\nport-enb 1/0\nshow\nexit\nexit\n"
    file.write_text(file.read_text().replace("100G", "100"))
    assert run(f"tofino-ports {file}", monkeypatch) == 1
    assert "links.132.speed: '100' is not a speed; there are 1G, 10G" in capsys.readouterr().err
    file.write_text("kind: rack\nports: {1: []}\n")
    assert run(f"tofino-ports {file}", monkeypatch) == 2
    assert capsys.readouterr().err == (
        f"error: {file}: the switch of this fabric is no Tofino, so there are no ports to bring up (docs/tofino.md)\n"
    )


def test_without_a_command_help_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("", monkeypatch) == 0
    bare = capsys.readouterr().out
    assert run("--help", monkeypatch) == 0
    assert bare == capsys.readouterr().out
    assert {line.split()[0] for line in bare.split("Commands:\n")[1].splitlines()} == {
        "demo",
        "switch",
        "controller",
        "tofino-ports",
        "token",
        "rack",
        "bench",
        "doctor",
        "jobs",
        "top",
        "profile",
        "analyze",
        "whatif",
        "fleet",
        "validate",
    }
    assert run("rack", monkeypatch) == 0
    bare = capsys.readouterr().out
    assert run("rack --help", monkeypatch) == 0
    assert bare == capsys.readouterr().out
    assert {line.split()[0] for line in bare.split("Commands:\n")[1].splitlines()} == {"up", "run", "status", "down", "show"}


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", monkeypatch) == 0
    assert capsys.readouterr().out == "switchsum 0.1.0\n"


def test_help_loads_nothing_heavy() -> None:
    """`--help` must answer at once: no torch (seconds), compiler or gRPC on the way."""
    script = (
        "import sys; sys.argv = ['switchsum', 'demo', '--help']\n"
        "from switchsum.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded:', [m for m in ('torch', 'numba', 'llvmlite', 'grpc', 'sklearn') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "--workers" in done.stdout
    assert done.stdout.endswith("loaded: []\n")


def test_a_port_in_use_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert run(f"switch --p4runtime 127.0.0.1:0 --ports 1 --udp-base {port - 1}", monkeypatch) == 1
    assert capsys.readouterr() == (
        "",
        f"error: port 1: cannot bind UDP 127.0.0.1:{port}: [Errno 98] Address already in use\n",
    )


def test_a_missing_switch_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:  # bound but not listening: connections are refused, and nobody else takes the port
        closed.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*closed.getsockname())
        options = f"--switch {address} --listen 127.0.0.1:0 --connect-timeout 0.5"
        assert run(f"controller {options}", monkeypatch) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"error: no switch answers P4Runtime at {address} within 0.5 s; start it (`switchsum switch`")
    assert errors.count("\n") == 1


def test_a_state_file_that_cannot_be_is_one_line_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"controller --listen 127.0.0.1:0 --state {tmp_path}", monkeypatch) == 1
    assert capsys.readouterr() == (
        "",
        f"error: the state file {tmp_path} cannot be opened (Is a directory); give another path\n",
    )


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a training host that has no switch software; modules that do not exist stand in for it."""
    monkeypatch.setattr(cli, "SWITCH_MODULES", {"no_such_compiler": "switch", "no_such_shell": "switch"})
    assert run("switch", monkeypatch) == 1
    assert capsys.readouterr().err == (
        "error: `switchsum switch` needs no_such_compiler, no_such_shell, which is not installed: "
        "pip install 'switchsum[switch]'\n"
    )
