"""The same controller before BMv2: program, entries, groups, counters and restart, without packets (those need interfaces).

Found through SWITCHSUM_BMV2 or on PATH; skipped elsewhere.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from p4.v1 import p4runtime_pb2

from switchsum.controller import pipeline, programming
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.fabric import RackFabric, Station
from switchsum.controller.options import ControllerOptions
from switchsum.controller.p4names import Entry, Group, Item
from switchsum.controller.switch_session import SwitchSession
from switchsum.p4src.layout import RejectReason, Verdict
from tests.controller.conftest import ELEMENTS, all_join
from tests.controller.test_service import eventually
from tests.controller.worker import Worker

BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")

pytestmark = [
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2"),
]

# Workers come from loopback in this test, so that is where the rack's one host lives.
RACK = RackFabric((1, 2), (Station(0x7F000001, 0x02000000000B, 1),))


@pytest.fixture
def bmv2(tmp_path: Path) -> Iterator[str]:
    """A fresh simple_switch_grpc without program and ports; yields its P4Runtime address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [str(BMV2), "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    yield address
    process.terminate()
    process.wait(timeout=20)


def make_controller(address: str, **options: float) -> ControllerDaemon:
    return ControllerDaemon(
        RACK,
        ControllerOptions(
            switch=address,
            listen=("127.0.0.1:0",),
            layout="wide",
            elements=ELEMENTS,
            connect_timeout_s=30.0,
            **options,  # type: ignore[arg-type]
        ),
    )


def held(address: str) -> set[Item]:
    """Everything the switch holds, read by a client that only looks."""
    names = pipeline.load("wide", ELEMENTS).names
    session = SwitchSession(address, 1, 0, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda primary: None)
    wanted = []
    for table in programming.TABLES:
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = names.table_id(table)
        wanted.append(entity)
    groups = p4runtime_pb2.Entity()
    groups.packet_replication_engine_entry.multicast_group_entry.SetInParent()
    found = {names.item(entity) for entity in session.read([*wanted, groups])}
    session.close()
    return {item for item in found if not (isinstance(item, Entry) and item.is_default)}


def test_bmv2_is_programmed_serves_a_job_and_survives_another_controller(
    bmv2: str, workers: Callable[[ControllerDaemon | str, int], list[Worker]]
) -> None:
    with make_controller(bmv2, loss_in=0.25) as first:
        empty = held(bmv2)
        assert Group(programming.FLOOD_GROUP, frozenset({(1, 1), (2, 1)})) in empty
        assert Entry(programming.LOSS_IN, (2,), programming.SET_LOSS_IN, (2**30,)) in empty
        assert len([e for e in empty if isinstance(e, Entry) and e.table == programming.REJECTIONS]) == len(RejectReason)

        world = workers(first, 2)
        all_join(world, "train")
        (joined,) = {(w.joined.job, w.joined.epoch) for w in world if w.joined}
        assert world[0].joined is not None
        assert (world[0].joined.switch_address, world[0].joined.switch_port) == ("10.83.0.1", 0x5353)
        job = held(bmv2) - empty
        assert Group(joined[0], frozenset({(1, 1), (1, 2)})) in job
        assert len(job) == 2 + 2 * len(Verdict) + len(Verdict) + 1 + 2 + 1
        report = world[0].client.inspect()
        assert report.switch_problem == ""
        assert dict(report.jobs[0].verdicts) == {verdict.name: 0 for verdict in Verdict}

        for worker in world:
            worker.client.leave()
        eventually(lambda: held(bmv2) == empty)
    with make_controller(bmv2) as second:  # without loss
        kept = held(bmv2)
        assert kept == {item for item in empty if not (isinstance(item, Entry) and item.table == programming.LOSS_IN)}
        all_join(workers(second, 1), "train")
