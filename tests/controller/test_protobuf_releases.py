"""The job service's messages: made from the present job.proto, and good for the oldest and the newest protobuf alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import google.protobuf
import grpc
import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.protos import generate, job_pb2
from switchsum.protos.job_rpc import JobServicer, JobServiceStub

HOST_SIDE = """
import sys
import google.protobuf
import switchsum.host_agent.agent
from tests.controller.worker import Worker

worker = Worker(sys.argv[1])
joined = worker.join("newest", 0, 1)
assert worker.client.inspect().jobs[0].epoch == joined.epoch
worker.client.leave()
worker.close()
foreign = [name for name in sys.modules if name.split(".")[0] in ("p4", "p4runtime_sh", "IPython")]
own = [name for name in sys.modules if name.startswith(("switchsum.softswitch", "switchsum.controller"))]
print(google.protobuf.__version__, foreign, own)
"""


def test_the_generated_module_belongs_to_the_proto() -> None:
    for proto in generate.PROTOS:
        assert generate.recorded_digest(proto) == generate.proto_digest(proto), "run `make protos`"


def test_the_check_of_the_generator_can_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check"]) == 0
    copies = [Path(shutil.copy(proto, tmp_path)) for proto in generate.PROTOS]
    for proto in generate.PROTOS:
        shutil.copy(generate.module_of(proto), tmp_path)
    monkeypatch.setattr(generate, "PROTOS", copies)
    assert generate.main(["--check"]) == 0
    changed = tmp_path / "job.proto"
    changed.write_bytes(changed.read_bytes() + b"// changed\n")
    assert generate.main(["--check"]) == 1
    assert "job_pb2.py not made from the present .proto" in capsys.readouterr().err


def test_stub_and_servicer_have_every_call_of_the_proto() -> None:
    calls = {method.name for method in job_pb2.DESCRIPTOR.services_by_name["JobService"].methods}
    assert {name for name in vars(JobServicer) if not name.startswith("_")} == calls
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        assert set(vars(JobServiceStub(channel))) == calls


def test_a_training_host_joins_with_the_newest_protobuf(controller: ControllerDaemon, tmp_path: Path) -> None:
    install = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "newest"), "protobuf"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if install.returncode != 0:
        pytest.skip(f"the newest protobuf cannot be fetched here: {install.stderr.strip().splitlines()[-1]}")
    answer = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", HOST_SIDE, controller.address],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "newest")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    version, rest = answer.stdout.strip().split(" ", 1)
    assert int(version.split(".")[0]) >= 6
    assert google.protobuf.__version__.startswith("3.20.")  # the controller's, in this process
    assert rest == "[] []"
