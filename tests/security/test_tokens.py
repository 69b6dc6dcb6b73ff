"""Tokens: who is let in, what the others are told, and a file that can be changed while jobs run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import grpc
import pytest

from switchsum.controller.errors import TenantsError
from switchsum.controller.gate import exposure
from switchsum.controller.options import ControllerOptions
from switchsum.controller.tenants import Limits, Tenant, Tenants, hash_of
from switchsum.host_agent.credentials import Credentials
from switchsum.host_agent.errors import JoinRefused, NotTrusted
from switchsum.host_agent.job_client import JobClient
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub
from switchsum.protos.tls import ClientTls, ServerTls
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import make_controller
from tests.controller.test_service import eventually
from tests.security.authority import Authority
from tests.security.conftest import MakeWorker

MISSING = (
    "this controller asks for a token: set SWITCHSUM_TOKEN, or SWITCHSUM_TOKEN_FILE, to the one that its operator gave you"
)
UNKNOWN = (
    "this controller does not know the token: it was withdrawn, or is another controller's; ask the operator for a new one"
)


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """As an editor does: whole, under the name that it had."""
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.chmod(mode)
    os.replace(fresh, path)
    return path


def lines(**tokens: str) -> str:
    return "".join(f"{name}: {{sha256: {hash_of(token)}}}\n" for name, token in tokens.items())


def bearer(token: str) -> list[tuple[str, str]]:
    return [("user-agent", "x"), ("authorization", f"Bearer {token}")]


# --- the file -------------------------------------------------------------------------------------------------------------


def test_tenants_have_limits_rights_and_two_tokens_while_one_is_replaced(tmp_path: Path) -> None:
    text = (
        f"vision: {{sha256: [{hash_of('old')}, {hash_of('new').upper()}], jobs: 4, workers: 64, slots: 1024}}\n"
        f"ops: {{sha256: {hash_of('root')}, operator: true}}\n"
    )
    tenants = Tenants(written(tmp_path / "tokens", text))
    vision = Tenant("vision", Limits(jobs=4, workers=64, slots=1024))
    assert tenants.of(bearer("old")) == tenants.of(bearer("new")) == vision
    assert tenants.of(bearer("root")) == Tenant("ops", operator=True)
    assert tenants.of([("authorization", "bearer root")]) == Tenant("ops", operator=True)
    assert tenants.of(bearer("x")) == tenants.of(bearer(hash_of("root"))) == UNKNOWN
    assert (
        tenants.of([]) == tenants.of([("authorization", "Basic root")]) == tenants.of([("authorization", b"\xff")]) == MISSING
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: the file is empty"),
        ("- a\n", "line 1: must be a mapping"),
        ("a: {jobs: 1}\n", "line 1, a: the field sha256 is missing"),
        ("a: {sha256: hunter2hunter2}\n", "line 1, a.sha256: is no SHA-256 of a token (64 hexadecimal digits)"),
        (f"a: {{sha256: {'0' * 64}}}\nb: {{sha256: [{'0' * 64}]}}\n", "line 2, b.sha256[0]: is the token of 'a' as well"),
        (f"a: {{sha256: {'0' * 64}, jobs: -1}}\n", "line 1, a.jobs: '-1' is not a number from 0 to 1048576"),
        (f"a: {{sha256: {'0' * 64}, operator: yes}}\n", "line 1, a.operator: 'yes' is not true or false"),
        (f"a: {{sha256: {'0' * 64}, color: red}}\n", "line 1, a.color: is not a field; there are jobs, operator, sha256"),
        (f"a b: {{sha256: {'0' * 64}}}\n", "line 1, a b: 'a b' is not a tenant's name"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place_and_no_secret(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path / "tokens", text)
    with pytest.raises(TenantsError) as refused:
        Tenants(path)
    assert f"{path} {complaint}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_others_may_use_or_that_is_not_there(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens", lines(a="a"), 0o640)
    with pytest.raises(TenantsError, match=rf"{path}: others than its owner may use it \(mode 0640\); chmod 600 {path}"):
        Tenants(path)
    with pytest.raises(TenantsError, match="absent: cannot be read: No such file"):
        Tenants(tmp_path / "absent")


# --- calls ----------------------------------------------------------------------------------------------------------------


def test_every_call_needs_a_token(switch: SoftSwitch, tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens", lines(a="right"))
    requests: dict[str, object] = {
        "Join": pb.JoinRequest(job_name="x", world_size=1, data_port=9),
        "Watch": pb.MemberRequest(),
        "Renew": pb.RenewRequest(),
        "Report": pb.ReportRequest(),
        "Leave": pb.MemberRequest(),
        "Inspect": pb.InspectRequest(),
        "Shrink": pb.ShrinkRequest(),
    }
    assert set(requests) == {method.name for method in pb.DESCRIPTOR.services_by_name["JobService"].methods}
    with make_controller(switch, tokens=tokens) as controller, grpc.insecure_channel(controller.address) as channel:
        for metadata, sentence in (((), MISSING), ((("authorization", "Bearer wrong"),), UNKNOWN)):
            stub = JobServiceStub(channel, metadata)
            for name, request in requests.items():
                call = getattr(stub, name)
                with pytest.raises(grpc.RpcError) as refused:
                    list(call(request, timeout=10))
                assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, sentence)
        assert JobServiceStub(channel, (("authorization", "Bearer right"),)).Inspect(pb.InspectRequest()).slots_total == 2048


def test_a_worker_with_the_token_joins_and_others_are_told(switch: SoftSwitch, tmp_path: Path, worker: MakeWorker) -> None:
    tokens = written(tmp_path / "tokens", lines(a="right"))
    with make_controller(switch, tokens=tokens) as controller:
        good = worker(controller, Credentials(token="right"))
        good.join("job", 0, 1)
        for credentials, sentence in ((Credentials(), MISSING), (Credentials(token="wrong"), UNKNOWN)):
            stranger = worker(controller, credentials)
            for call in (lambda w=stranger: w.join("job", 0, 1), lambda w=stranger: w.client.inspect()):
                with pytest.raises(NotTrusted) as refused:
                    call()
                assert str(refused.value) == f"the controller at {controller.address} lets nobody in: {sentence}"
        assert [job.job_name for job in good.client.inspect().jobs if job.running] == ["job"]


def test_tokens_come_and_go_without_a_restart(
    switch: SoftSwitch, tmp_path: Path, worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """The job of a withdrawn token ends; a file that cannot be used changes nothing."""
    caplog.set_level(logging.INFO)
    tokens = written(tmp_path / "tokens", lines(a="first"))
    with make_controller(switch, tokens=tokens, lease_s=1.0) as controller:
        running = worker(controller, Credentials(token="first"))
        running.join("job", 0, 1)
        written(tokens, "nonsense")
        eventually(lambda: "the tokens stay as they were" in caplog.text)
        written(tokens, lines(a="first", b="second"))
        eventually(lambda: admitted(controller.address, "second"))
        assert running.endings == []
        written(tokens, lines(b="second"))
        assert str(running.ended()) == f"the controller at {controller.address} lets this rank in no more: {UNKNOWN}"
        assert admitted(controller.address, "second")
        assert not admitted(controller.address, "first")


def admitted(address: str, token: str) -> bool:
    client = JobClient(address, Credentials(token=token))
    try:
        client.inspect()
    except NotTrusted:
        return False
    finally:
        client.close()
    return True


def test_a_token_does_not_leave_the_machine_in_the_clear(authority: Authority) -> None:
    with pytest.raises(
        NotTrusted, match=r"the token is not sent to the controller at 10\.1\.2\.3:50099: without TLS everybody"
    ):
        JobClient("10.1.2.3:50099", Credentials(token="secret"))
    with pytest.raises(NotTrusted):
        JobClient("controller.example:50099", Credentials(token="secret"))
    for address, credentials in (
        ("10.1.2.3:50099", Credentials(token="secret", insecure=True)),
        ("10.1.2.3:50099", Credentials(ClientTls(authority.ca), token="secret")),
        ("localhost:50099", Credentials(token="secret")),
        ("[::1]:50099", Credentials(token="secret")),
        ("10.1.2.3:50099", Credentials()),
    ):
        JobClient(address, credentials).close()


def test_what_is_open_to_others_is_told(authority: Authority, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tls, mutual = ServerTls(tmp_path, tmp_path), ServerTls(tmp_path, tmp_path, tmp_path)
    open_to_all = ("127.0.0.1:1", "0.0.0.0:2")

    def sentence(**options: object) -> str | None:
        return exposure(ControllerOptions(**({"listen": open_to_all} | options)))  # type: ignore[arg-type]

    told = sentence()
    assert told is not None
    assert told.startswith(
        "the job service listens at 0.0.0.0:2 and asks nobody who they are: whoever can reach it can join jobs"
    )
    assert sentence(tls=tls) == told
    assert sentence(tokens=tokens) == (
        "the job service listens at 0.0.0.0:2 without TLS: whoever can listen on the way can read the tokens and use them; "
        "give it --tls-cert"
    )
    assert sentence(tokens=tokens, tls=tls) is sentence(tls=mutual) is None
    assert sentence(listen=("127.0.0.1:1", "localhost:2", "[::1]:3", "unix:/tmp/x")) is None
    assert sentence(listen=("[::]:3",)) is not None


def test_tenants_see_and_change_only_their_own_jobs(switch: SoftSwitch, tmp_path: Path, worker: MakeWorker) -> None:
    """The same name may be taken by two; a member's key is worth nothing with another tenant's token; operators see all."""
    tokens = written(tmp_path / "tokens", lines(a="for a", b="for b") + f"ops: {{sha256: {hash_of('ops')}, operator: true}}\n")
    with make_controller(switch, tokens=tokens) as controller, grpc.insecure_channel(controller.address) as channel:
        own, others = (worker(controller, Credentials(token=token)) for token in ("for a", "for b"))
        own.join("job", 0, 1)
        others.join("job", 0, 1)

        def seen(token: str) -> list[tuple[str, str]]:
            stub = JobServiceStub(channel, (("authorization", f"Bearer {token}"),))
            return sorted((job.tenant, job.job_name) for job in stub.Inspect(pb.InspectRequest()).jobs if job.running)

        assert (seen("for a"), seen("for b")) == ([("a", "job")], [("b", "job")])
        assert seen("ops") == [("a", "job"), ("b", "job")]
        thief = JobServiceStub(channel, (("authorization", "Bearer for b"),))
        key = own.client._member
        for name, request in (
            ("Watch", pb.MemberRequest(member=key)),
            ("Renew", pb.RenewRequest(member=key)),
            ("Report", pb.ReportRequest(member=key, kind=pb.ReportRequest.FAILURE)),
        ):
            call = getattr(thief, name)
            with pytest.raises(grpc.RpcError, match="no such member"):
                list(call(request, timeout=10))
        thief.Leave(pb.MemberRequest(member=key))
        with pytest.raises(grpc.RpcError, match="job of nobody"):
            thief.Shrink(pb.ShrinkRequest(job_name="job of nobody", slots=1))
        assert seen("ops") == [("a", "job"), ("b", "job")]
        assert own.endings == others.endings == []


@pytest.mark.parametrize(
    ("limit", "world", "complaint"),
    [
        ("jobs: 1", 1, "tenant 'a' holds 1 of its 1 jobs, and job 'second' needs 1"),
        ("workers: 2", 2, "tenant 'a' holds 1 of its 2 workers, and job 'second' needs 2"),
        ("slots: 10", 1, "tenant 'a' holds 10 of its 10 slots, and job 'second' needs"),
    ],
)
def test_a_tenant_gets_no_more_than_its_limits(
    switch: SoftSwitch, tmp_path: Path, worker: MakeWorker, limit: str, world: int, complaint: str
) -> None:
    tokens = written(tmp_path / "tokens", f"a: {{sha256: {hash_of('token')}, {limit}}}\n")
    with make_controller(switch, tokens=tokens) as controller:
        worker(controller, Credentials(token="token")).join("first", 0, 1, slots=10)
        with pytest.raises(JoinRefused, match=complaint):
            worker(controller, Credentials(token="token")).join("second", 0, world, slots=10)
