"""Tokens, members' keys and private keys never stand in what is logged or printed, however much goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.security.authority import Authority

# Runs a controller and its clients with every log at DEBUG, lets all fail that can, and writes the secrets to a file.
EVERYTHING_FAILS = """
import contextlib, logging, os, sys
from pathlib import Path
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import grpc
from switchsum.controller.tenants import hash_of
from switchsum.host_agent.credentials import Credentials
from switchsum.host_agent.errors import SwitchSumError
from switchsum.host_agent.job_client import JobClient
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub
from switchsum.protos.tls import ClientTls, ServerTls
from switchsum.settings import credentials
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import all_join, make_controller
from tests.controller.worker import Worker

folder, ca, strange, certificate, key = map(Path, sys.argv[1:])
GOOD, WRONG = "good-token-0123456789abcdef", "wrong-token-0123456789abcdef"
tokens = folder / "tokens"
tokens.touch(mode=0o600)
tokens.write_text(f"a: {{sha256: {hash_of(GOOD)}}}")
secrets = [GOOD, WRONG]

@contextlib.contextmanager
def failing():
    try:
        yield
    except (SwitchSumError, grpc.RpcError, ValueError) as error:
        print("failed", repr(error), error)
    else:
        raise AssertionError("it did not fail")

def worker(token, tls=ClientTls(ca)):
    return Worker(controller.address, Credentials(tls, token=token))

with SoftSwitch(ports=2) as switch, make_controller(
    switch, tokens=tokens, tls=ServerTls(certificate, key), lease_s=1.0
) as controller:
    for credentials_ in (Credentials(ClientTls(ca), WRONG), Credentials(token=GOOD), Credentials(ClientTls(strange), GOOD)):
        print(credentials_)
        with failing():
            Worker(controller.address, credentials_).join("job", 0, 1, timeout_s=5.0)
    with failing():
        JobClient("10.1.2.3:1", Credentials(token=GOOD))
    for name, value in (("SWITCHSUM_TOKEN", GOOD + " x"), ("SWITCHSUM_KEY", str(key)), ("SWITCHSUM_TOKEN_FILE", str(key))):
        os.environ[name] = value
        with failing():
            credentials()
        del os.environ[name]
    tokens.write_text(f"a: {{sha256: {GOOD}}}")
    world = [worker(GOOD), worker(GOOD)]
    all_join(world, "job")
    secrets += [each.client._member for each in world]
    with failing():
        worker(GOOD).join("job", 5, 2)
    with failing():
        worker(GOOD).join("other", 0, 1, slots=10**6)
    world[0].client.report_mismatch("mismatch", "#1")
    world[1].client.report_mismatch("mismatch", "#2")
    print(world[0].ended(), world[1].ended())
    again = [worker(GOOD), worker(GOOD)]
    all_join(again, "again")
    secrets += [each.client._member for each in again]
    again[0].close()
    print(again[1].ended())
    with grpc.secure_channel(controller.address, ClientTls(ca).credentials()) as channel:
        for token in (GOOD, WRONG):
            stub = JobServiceStub(channel, (("authorization", f"Bearer {token}"),))
            for call, request in (
                (stub.Renew, pb.RenewRequest(member=secrets[-1])),
                (stub.Report, pb.ReportRequest(member=secrets[-1], kind=99)),
                (stub.Watch, pb.MemberRequest(member="x")),
            ):
                with failing():
                    print(list(call(request, timeout=5)))
    last = worker(GOOD)
    last.join("last", 0, 1)
    secrets.append(last.client._member)
print(last.ended())
(folder / "secrets").write_text("\\n".join(secrets))
"""


def test_no_secret_is_ever_printed(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("127.0.0.1")
    strange = Authority(tmp_path, "strange")
    command = [sys.executable, "-c", EVERYTHING_FAILS, tmp_path, authority.ca, strange.ca, certificate, key]
    ended = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"GRPC_VERBOSITY": "DEBUG"},
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    secrets = (tmp_path / "secrets").read_text().split()
    assert len(secrets) == 7
    assert all(len(secret) > 20 for secret in secrets)
    secrets += [line for line in key.read_text().splitlines() if not line.startswith("-")]
    assert [secret for secret in secrets if secret in printed] == []
    for shown in ("refused Renew", "is no SHA-256", "broke off", "DEBUG"):  # it did fail, and was logged
        assert shown in printed, printed
