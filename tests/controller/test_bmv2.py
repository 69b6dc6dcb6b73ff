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

import grpc
import pytest
from p4.v1 import p4runtime_pb2

from switchsum.controller import pipeline, programming
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.fabric import RackFabric, Station
from switchsum.controller.options import ControllerOptions
from switchsum.controller.p4names import Entry, Group, Item
from switchsum.controller.switch_session import SwitchSession
from switchsum.p4src.layout import RejectReason, Verdict
from switchsum.protos import job_pb2 as pb
from tests.controller.conftest import ELEMENTS, all_join
from tests.controller.member import Member, join_all
from tests.controller.processes import child
from tests.controller.test_service import eventually
from tests.controller.worker import Worker

BMV2 = os.environ.get("SWITCHSUM_BMV2") or shutil.which("simple_switch_grpc")

pytestmark = [
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is neither on PATH nor named by SWITCHSUM_BMV2"),
]

# Workers come from loopback in this test, so that is where the rack's one host lives.
RACK_CONTROLLER = """
import sys
from pathlib import Path
from switchsum.controller.daemon import ControllerDaemon
from tests.controller.test_bmv2 import make_controller
switch, election_id, state = sys.argv[1:]
with make_controller(switch, election_id=int(election_id), state=Path(state), lease_s=20.0) as controller:
    print(controller.address, flush=True)
    sys.stdin.read()
"""

RACK = RackFabric((1, 2), (Station(0x7F000001, 0x02000000000B, 1),))


class Bmv2:
    """A simple_switch_grpc without program and ports at a free address; start() after stop() makes it begin anew there."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._folder = folder
        self.start()

    def start(self) -> None:
        command = [str(BMV2), "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", self.address]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)


@pytest.fixture
def bmv2_process(tmp_path: Path) -> Iterator[Bmv2]:
    switch = Bmv2(tmp_path)
    yield switch
    switch.stop()


@pytest.fixture
def bmv2(bmv2_process: Bmv2) -> str:
    """A fresh one's P4Runtime address."""
    return bmv2_process.address


def make_controller(address: str, **options: object) -> ControllerDaemon:
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


def test_a_standby_takes_over_bmv2_and_its_jobs_and_the_old_controller_stands_by(
    bmv2: str, tmp_path: Path, members: Callable[[str, int], list[Member]]
) -> None:
    state = tmp_path / "state"
    options = (bmv2, 5, state)
    with child(RACK_CONTROLLER, *options) as first:
        world = members(first.line(), 2)
        join_all(world, "train")
        with make_controller(bmv2, election_id=1, state=state, lease_s=20.0) as second:
            for member in world:
                member.turn_to(second.address)
                assert member.renew() is grpc.StatusCode.UNAVAILABLE
            before = held(bmv2)
            first.process.kill()
            eventually(lambda: world[0].renew() is grpc.StatusCode.OK)
            assert held(bmv2) == before
            with child(RACK_CONTROLLER, *options) as again:
                assert members(again.line(), 1)[0].inspect().standby
                assert [member.renew() for member in world] == [grpc.StatusCode.OK] * 2
            for member in world:
                member.leave()


def test_bmv2_that_is_started_anew_gets_program_and_entries_and_its_jobs_join_again(
    bmv2_process: Bmv2, tmp_path: Path, members: Callable[[str, int], list[Member]]
) -> None:
    state = tmp_path / "state"
    with child(RACK_CONTROLLER, bmv2_process.address, 1, state) as first:
        world = members(first.line(), 2)
        join_all(world, "train")
        epoch = world[0].reply.epoch
        entries = held(bmv2_process.address)
        first.process.kill()
        first.process.wait()
        with make_controller(bmv2_process.address, state=state, lease_s=20.0) as again:  # BMv2 as it was
            assert held(bmv2_process.address) == entries
            for member in world:
                member.turn_to(again.address)
                assert member.renew() is grpc.StatusCode.OK
                member.watch()
                member.ready()
            bmv2_process.stop()
            bmv2_process.start()
            for member in world:
                ended = member.ended()
                assert (ended.cause, ended.resumable) == (pb.SWITCH_LOST, True)
                assert "the switch was started anew" in ended.reason
            eventually(lambda: world[0].inspect().switch_problem == "")
            join_all(world, "train")
            assert world[0].reply.epoch > epoch
            assert len(held(bmv2_process.address)) == len(entries)
