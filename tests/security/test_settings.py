"""What a host's environment and the commands say about trust."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum.controller.tenants import Tenant, Tenants
from switchsum.host_agent.credentials import Credentials
from switchsum.protos.tls import ClientTls
from switchsum.settings import Settings, credentials
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import make_controller
from tests.security.authority import Authority
from tests.security.test_tokens import bearer, lines, written


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("CA", "CERT", "KEY", "TOKEN", "TOKEN_FILE", "INSECURE"):
        monkeypatch.delenv(f"SWITCHSUM_{name}", raising=False)
    return monkeypatch


def test_the_environment_names_files_and_token(environment: pytest.MonkeyPatch, authority: Authority, tmp_path: Path) -> None:
    assert credentials() == Credentials()
    certificate, key = authority.issue()
    environment.setenv("SWITCHSUM_CA", str(authority.ca))
    environment.setenv("SWITCHSUM_CERT", str(certificate))
    environment.setenv("SWITCHSUM_KEY", str(key))
    environment.setenv("SWITCHSUM_TOKEN_FILE", str(written(tmp_path / "token", "a-token\n")))
    environment.setenv("SWITCHSUM_INSECURE", "1")
    expected = Credentials(ClientTls(authority.ca, certificate, key), "a-token", insecure=True)
    assert credentials() == Settings.from_environment().credentials == expected
    assert "a-token" not in repr(Settings.from_environment())


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"CA": "/absent"}, "SWITCHSUM_CA /absent: cannot be read: No such file or directory"),
        ({"CERT": "/absent"}, "SWITCHSUM_CERT without SWITCHSUM_KEY: a certificate and its key go together"),
        ({"TOKEN": "x", "TOKEN_FILE": "/absent"}, "SWITCHSUM_TOKEN and SWITCHSUM_TOKEN_FILE are both set"),
        ({"TOKEN_FILE": "/absent"}, "SWITCHSUM_TOKEN_FILE /absent: cannot be read: No such file or directory"),
        ({"TOKEN": "hunter2 hunter2"}, "SWITCHSUM_TOKEN: holds no token: those are letters, digits, - and _ in one line"),
        ({"TOKEN": "hunter2\nx: y"}, "SWITCHSUM_TOKEN: holds no token"),
        ({"INSECURE": "yes"}, "SWITCHSUM_INSECURE='yes' must be one of 0, 1"),
    ],
)
def test_a_wrong_variable_is_named_and_no_secret_shown(
    environment: pytest.MonkeyPatch, variables: dict[str, str], complaint: str
) -> None:
    for name, value in variables.items():
        environment.setenv(f"SWITCHSUM_{name}", value)
    with pytest.raises(ValueError, match=re.escape(complaint)) as refused:
        credentials()
    assert "hunter2" not in str(refused.value)


def test_a_token_file_that_is_open_to_others_or_empty(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = written(tmp_path / "token", "x", 0o604)
    environment.setenv("SWITCHSUM_TOKEN_FILE", str(path))
    with pytest.raises(ValueError, match=rf"SWITCHSUM_TOKEN_FILE {path}: others than its owner may use it \(mode 0604\)"):
        credentials()
    written(path, "\n")
    with pytest.raises(ValueError, match="is empty; write the token into it, and nothing else"):
        credentials()


def switchsum(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "switchsum.cli", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("operator", [False, True])
def test_the_token_command_prints_a_token_and_the_line_that_admits_it(tmp_path: Path, operator: bool) -> None:
    first, second = (switchsum("token", "vision", *(["--operator"] if operator else [])).stdout for _ in range(2))
    _, token, _, _, line = first.splitlines()
    assert len(token) == 43
    assert token not in second
    assert Tenants(written(tmp_path / "tokens", line)).of(bearer(token)) == Tenant("vision", operator=operator)


def test_the_commands_check_their_files_before_they_serve(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue(valid_days=-1)
    for command in ("switch", "controller"):
        ended = switchsum(command, "--tls-cert", certificate, "--tls-key", key)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"error: --tls-cert {certificate}: certificate has expired (see `openssl x509")
        assert ended.stderr.count("\n") == 1
    ended = switchsum("controller", "--tokens", tmp_path / "absent")
    assert (ended.returncode, ended.stderr) == (1, f"error: {tmp_path}/absent: cannot be read: No such file or directory\n")


def test_jobs_are_shown_with_the_token_of_the_environment(
    switch: SoftSwitch, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tokens = written(tmp_path / "tokens", lines(vision="right"))
    with make_controller(switch, tokens=tokens) as controller:
        refused = switchsum("jobs", "--controller", controller.address)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"error: the controller at {controller.address} lets nobody in: this controller asks")
        environment.setenv("SWITCHSUM_TOKEN", "right")
        assert switchsum("jobs", "--controller", controller.address).returncode == 0
        environment.setenv("SWITCHSUM_TOKEN_FILE", "/absent")
        assert "are both set" in switchsum("jobs", "--controller", controller.address).stderr
