"""TLS and mutual TLS of both services over real connections: who gets through, and what the others are told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.errors import SwitchError
from switchsum.controller.fabric import RackFabric, Station
from switchsum.controller.options import ControllerOptions
from switchsum.doctor import services
from switchsum.host_agent.credentials import Credentials
from switchsum.host_agent.errors import ControllerUnreachable, NotTrusted
from switchsum.protos.tls import ClientTls, ServerTls
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import ELEMENTS, make_controller
from tests.controller.test_service import send, sums
from tests.controller.worker import Worker
from tests.security.authority import Authority
from tests.security.conftest import MakeWorker

BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")


def client(authority: Authority, *, certificate: bool = False) -> ClientTls:
    return ClientTls(authority.ca, *authority.issue("host")) if certificate else ClientTls(authority.ca)


def sums_alone(worker: Worker) -> bool:
    """Joins a world of one and sums."""
    joined = worker.join("alone", 0, 1)
    send(worker, 7)
    return sums(worker) == [7] * joined.elements


def complaint(worker: Worker) -> str:
    with pytest.raises(NotTrusted) as refused:
        worker.join("alone", 0, 1, timeout_s=20.0)
    return str(refused.value)


def test_a_host_joins_over_tls(switch: SoftSwitch, authority: Authority, worker: MakeWorker) -> None:
    with make_controller(switch, tls=ServerTls(*authority.issue("127.0.0.1"))) as controller:
        assert sums_alone(worker(controller, Credentials(client(authority))))


def test_a_host_joins_over_mutual_tls(switch: SoftSwitch, authority: Authority, worker: MakeWorker) -> None:
    tls = ServerTls(*authority.issue("127.0.0.1"), authority.ca)
    with make_controller(switch, tls=tls) as controller:
        assert sums_alone(worker(controller, Credentials(client(authority, certificate=True))))


def test_a_host_without_certificate_or_with_a_strange_one_is_told(
    switch: SoftSwitch, authority: Authority, worker: MakeWorker, tmp_path: Path
) -> None:
    strange = Authority(tmp_path, "strange")
    tls = ServerTls(*authority.issue("127.0.0.1"), authority.ca)
    with make_controller(switch, tls=tls) as controller:
        who = f"the controller at {controller.address}"
        assert complaint(worker(controller, Credentials(client(authority)))) == (
            f"{who} asks for a client certificate: name one, and its key, in SWITCHSUM_CERT and SWITCHSUM_KEY"
        )
        certificate, key = strange.issue("host")
        told = complaint(worker(controller, Credentials(ClientTls(authority.ca, certificate, key))))
        assert told.startswith(f"{who} does not accept the certificate {certificate} (")
        assert told.endswith("have one issued by an authority that it was told to accept")


def test_each_end_is_told_when_the_other_speaks_otherwise(switch: SoftSwitch, authority: Authority, worker: MakeWorker) -> None:
    with make_controller(switch, tls=ServerTls(*authority.issue("127.0.0.1"))) as controller:
        assert complaint(worker(controller)) == (
            f"the controller at {controller.address} speaks TLS only: name the file with the authority of its certificate in "
            "SWITCHSUM_CA"
        )
    with make_controller(switch) as controller:
        assert complaint(worker(controller, Credentials(client(authority)))) == (
            f"the controller at {controller.address} speaks without TLS, but SWITCHSUM_CA asks for it: start it with a "
            "certificate, or unset SWITCHSUM_CA"
        )


def test_an_unknown_authority_a_wrong_name_and_an_old_certificate_have_sentences(
    switch: SoftSwitch, authority: Authority, worker: MakeWorker, tmp_path: Path
) -> None:
    strange = Authority(tmp_path, "strange")
    credentials = Credentials(client(authority))
    with make_controller(switch, tls=ServerTls(*strange.issue("127.0.0.1"))) as controller:
        told = complaint(worker(controller, credentials))
        assert told.startswith(
            f"the certificate of the controller at {controller.address} does not come from the authority in SWITCHSUM_CA "
            f"({authority.ca}): "
        )
    with make_controller(switch, tls=ServerTls(*authority.issue("controller.example", "10.1.2.3"))) as controller:
        assert complaint(worker(controller, credentials)) == (
            f"the certificate of the controller at {controller.address} is for controller.example, 10.1.2.3, not for "
            "127.0.0.1: reach it by a name that its certificate has, or issue one for this name"
        )
    with make_controller(switch, tls=ServerTls(*authority.issue("127.0.0.1", valid_days=-1))) as controller:
        assert complaint(worker(controller, credentials)) == (
            f"the certificate of the controller at {controller.address} is refused: certificate has expired; renew it there, "
            "or set this host's clock"
        )


def test_the_doctor_asks_with_the_credentials_of_the_environment(
    switch: SoftSwitch, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_controller(switch, tls=ServerTls(*authority.issue("127.0.0.1"))) as controller:
        assert "speaks TLS only" in services.ask(controller.address).problem
        monkeypatch.setenv("SWITCHSUM_CA", "/absent")
        assert services.ask(controller.address).problem.startswith("is not asked: SWITCHSUM_CA /absent: cannot be read")
        monkeypatch.setenv("SWITCHSUM_CA", str(authority.ca))
        assert services.ask(controller.address).reply is not None


def test_nobody_there_is_still_told_as_before(authority: Authority, worker: MakeWorker) -> None:
    with pytest.raises(ControllerUnreachable, match=r"no controller answers at 127.0.0.1:1 within 1.5 s; start one"):
        worker("127.0.0.1:1", Credentials(client(authority))).join("alone", 0, 1, timeout_s=1.5)


# --- P4Runtime ------------------------------------------------------------------------------------------------------------


@dataclass
class Secured:
    """A switch that asks for certificates, and the files of a controller that it lets in."""

    switch: SoftSwitch
    tls: ClientTls


@pytest.fixture
def secured(authority: Authority) -> Iterator[Secured]:
    tls = ServerTls(*authority.issue("127.0.0.1"), authority.ca)
    with SoftSwitch(ports=2, credentials=tls.credentials()) as switch:
        yield Secured(switch, client(authority, certificate=True))


def switch_complaint(switch: SoftSwitch, tls: ClientTls | None) -> str:
    with pytest.raises(SwitchError) as refused, make_controller(switch, switch_tls=tls, connect_timeout_s=20.0):
        pass
    return str(refused.value)


def test_a_controller_programs_a_switch_over_mutual_tls(secured: Secured, worker: MakeWorker) -> None:
    with make_controller(secured.switch, switch_tls=secured.tls) as controller:
        assert sums_alone(worker(controller))


def test_a_controller_that_a_switch_does_not_trust_is_told(secured: Secured, authority: Authority, tmp_path: Path) -> None:
    who = f"the switch at {secured.switch.grpc_address}"
    assert switch_complaint(secured.switch, None) == (
        f"{who} speaks TLS only: name the file with the authority of its certificate in --switch-ca"
    )
    assert switch_complaint(secured.switch, client(authority)) == (
        f"{who} asks for a client certificate: name one, and its key, in --switch-cert and --switch-key"
    )
    assert "does not come from the authority in --switch-ca" in switch_complaint(
        secured.switch, ClientTls(Authority(tmp_path, "strange").ca)
    )
    assert secured.switch.dataplane is None  # nobody loaded a program


def test_a_controller_with_tls_before_a_switch_without(switch: SoftSwitch, authority: Authority) -> None:
    assert switch_complaint(switch, client(authority)) == (
        f"the switch at {switch.grpc_address} speaks without TLS, but --switch-ca asks for it: start it with a certificate, or "
        "unset --switch-ca"
    )


@pytest.mark.bmv2
@pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2")
def test_bmv2_is_programmed_over_mutual_tls(authority: Authority, tmp_path: Path, worker: MakeWorker) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    certificate, key = authority.issue("127.0.0.1")
    command = [str(BMV2), "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address, "--grpc-server-ssl"]
    command += [
        "--grpc-server-cacert",
        str(authority.ca),
        "--grpc-server-cert",
        str(certificate),
        "--grpc-server-key",
        str(key),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, "--grpc-server-with-client-auth"], stdout=log, stderr=log, cwd=tmp_path)

    def controller(tls: ClientTls) -> ControllerDaemon:
        options = ControllerOptions(
            switch=address, listen=("127.0.0.1:0",), layout="wide", elements=ELEMENTS, connect_timeout_s=30.0, switch_tls=tls
        )
        return ControllerDaemon(RackFabric((1,), (Station(0x7F000001, 0x02000000000B, 1),)), options)

    try:
        with controller(client(authority, certificate=True)) as programmed:
            assert worker(programmed).join("alone", 0, 1).elements == ELEMENTS
        with pytest.raises(SwitchError, match="asks for a client certificate"), controller(client(authority)):
            pass
    finally:
        process.terminate()
        process.wait(timeout=20)
