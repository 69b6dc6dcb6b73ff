"""A controller that goes and comes back, a switch that does, and the line between them: running jobs notice a pause at most."""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from switchsum.controller import daemon, pipeline, programming
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.errors import StateError
from switchsum.controller.jobs import first_epoch
from switchsum.controller.p4names import Entry, Group
from switchsum.controller.switch_session import DELETE, MODIFY, SwitchSession
from switchsum.p4src.layout import HEADER_DTYPE, WIRE_VERSION, PacketType
from switchsum.protos import job_pb2 as pb
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import ELEMENTS, all_join, make_controller
from tests.controller.member import Member, join_all
from tests.controller.processes import CONTROLLER, Child, child
from tests.controller.relay import Relay
from tests.controller.test_service import eventually
from tests.controller.worker import Worker

Members = Callable[[str, int], list[Member]]

LEASE_S = 20.0
TAKEOVER_LEASE_S = 8.0  # a quarter of it passes before a standby takes over
OK, UNAVAILABLE, NOT_FOUND = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND

pytestmark = pytest.mark.slow


def ports_of(switch: SoftSwitch) -> list[int]:
    return [udp_port for _, udp_port in switch.port_addresses.values()]


def add(members: list[Member], phase: int) -> None:
    """Every rank contributes rank + 1 to a slot's next phase, and all get the sum."""
    for rank, member in enumerate(members):
        header = np.zeros(1, HEADER_DTYPE)
        for name, value in (
            ("version", WIRE_VERSION),
            ("type", PacketType.CONTRIBUTION),
            ("job", member.reply.job),
            ("epoch", member.reply.epoch),
            ("phase", phase),
            ("worker", rank),
        ):
            header[name] = value
        packet = header.tobytes() + np.full(ELEMENTS, rank + 1, ">u4").tobytes()
        member.socket.sendto(packet, (member.reply.switch_address, member.reply.switch_port))
    for member in members:
        packet = member.socket.recv(4096)
        assert list(np.frombuffer(packet, ">u4", offset=HEADER_DTYPE.itemsize)) == [sum(range(len(members) + 1))] * ELEMENTS


def job_entries(switch: SoftSwitch) -> set[object]:
    """All that the switch holds of jobs."""
    assert switch.dataplane is not None
    tables = switch.dataplane.tables
    found = {(name, e.key, e.action, e.params) for name in programming.JOB_TABLES for e in tables[name].entries()}
    return found | {("group", str(group)) for group in switch.dataplane.multicast_groups.entries()}


def session_with(switch: SoftSwitch, election_id: int = 1 << 100) -> SwitchSession:
    return SwitchSession(
        switch.grpc_address, 1, election_id, timeout_s=20.0, on_lost=lambda sentence: None, on_role=lambda standing: None
    )


def kill(process: Child) -> None:
    process.process.kill()
    process.process.wait()


def report(member: Member, name: str) -> pb.JobReport:
    return next(job for job in member.inspect().jobs if job.job_name == name)


# --- the controller ------------------------------------------------------------


def test_a_killed_controller_s_successor_goes_on_with_its_jobs(tmp_path: Path, members: Members) -> None:
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as old:
        world = members(old.line(), 2)
        join_all(world, "train", slots=64)
        for member in world:
            member.watch()
            member.ready()
        add(world, 1)
        before, dataplane = job_entries(switch), switch.dataplane
        kill(old)
        assert all(isinstance(member.events.get(timeout=20), grpc.RpcError) for member in world)
        add(world, 2)  # nobody needs a controller for that
        with make_controller(switch, state=state, lease_s=LEASE_S) as new:
            assert (switch.dataplane, job_entries(switch)) == (dataplane, before)
            for member in world:
                member.turn_to(new.address)
                member.watch()
                member.ready()
                assert member.renew(collectives=2) is OK
            add(world, 3)
            told = report(world[0], "train")
            assert (told.epoch, told.running, told.slots, told.world_size) == (world[0].reply.epoch, True, 64, 2)
            assert [worker.data_port for worker in told.workers] == [member.socket.getsockname()[1] for member in world]
            assert told.verdicts["COMPLETION"] == 3  # entries that are right keep their counters
            other = members(new.address, 1)
            join_all(other, "another")
            assert other[0].reply.epoch > world[0].reply.epoch
            assert other[0].reply.job != world[0].reply.job
            for member in world:
                member.leave()
            eventually(lambda: report(other[0], "train").ended_because == "every rank of job 'train' left")


def test_a_rank_that_left_before_the_controller_was_killed_is_not_waited_for(tmp_path: Path, members: Members) -> None:
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as old:
        world = members(old.line(), 2)
        join_all(world, "train")
        world[0].leave()
        kill(old)
        with make_controller(switch, state=state, lease_s=1.0) as new:
            world[1].turn_to(new.address)
            world[1].watch()
            world[1].ready()
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                assert world[1].renew() is OK
                time.sleep(0.1)
            world[1].leave()
            eventually(lambda: report(world[1], "train").ended_because == "every rank of job 'train' left")


def test_a_member_that_does_not_come_back_loses_the_job_its_lease(tmp_path: Path, members: Members) -> None:
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as old:
        world = members(old.line(), 2)
        join_all(world, "train")
        kill(old)
        with make_controller(switch, state=state, lease_s=1.5) as new:
            world[0].turn_to(new.address)
            late = members(new.address, 1)[0]
            with pytest.raises(grpc.RpcError, match="is in job 'train' since before the controller was started anew") as caught:
                late.join("train", 1, 2)  # such as a rank that torchrun started again
            assert caught.value.code() is UNAVAILABLE
            world[0].watch()
            world[0].ready()
            while world[0].events.empty() and world[0].renew() is OK:
                time.sleep(0.1)
            ended = world[0].ended()
            assert (ended.cause, list(ended.ranks), ended.resumable) == (pb.LOST_WORKER, [1], False)


def test_damaged_and_missing_entries_are_repaired_and_foreign_ones_removed(tmp_path: Path, members: Members) -> None:
    state = tmp_path / "state"
    names = pipeline.load("lanes", ELEMENTS).names
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as old:
        world = members(old.line(), 2)
        join_all(world, "train")
        add(world, 1)
        before = job_entries(switch)
        kill(old)
        vandal = session_with(switch)
        number, epoch = world[0].reply.job, world[0].reply.epoch
        vandal.write(names, [(DELETE, Entry(programming.PEERS, (number, epoch, 1), programming.TO_WORKER, (1, 2, 3)))])
        vandal.write(names, [(DELETE, Entry(programming.JOBS, (number, epoch), programming.ADMIT_JOB, (0, 0, 0, 0)))])
        vandal.write(names, [(MODIFY, Group(number, frozenset({(4, 9)})))])
        stranger = Entry(programming.JOBS, (200, 77), programming.ADMIT_JOB, (0, 1, 1, 1))
        vandal.write(names, [(1, stranger), (1, Group(200, frozenset({(1, 1)})))])
        assert job_entries(switch) != before
        vandal.close()
        with make_controller(switch, state=state, lease_s=LEASE_S) as new:
            eventually(lambda: world[0].turn_to(new.address) is None and world[0].renew() is OK)
            assert job_entries(switch) == before
            add(world, 2)


def test_a_switch_that_was_started_anew_meanwhile_ends_the_jobs_so_that_they_join_again(
    tmp_path: Path, members: Members
) -> None:
    state = tmp_path / "state"
    first = SoftSwitch(ports=2)
    ports, address = first.port_addresses, first.grpc_address
    first.start()
    with child(CONTROLLER, address, 1, state, LEASE_S, *ports_of(first)) as old:
        world = members(old.line(), 2)
        join_all(world, "train")
        kill(old)
    first.close()
    with SoftSwitch(grpc=address, ports=ports) as second, make_controller(second, state=state, lease_s=LEASE_S) as new:
        for member in world:
            member.turn_to(new.address)
            member.watch()
            member.ready()
            ended = member.ended()
            assert (ended.cause, ended.resumable) == (pb.SWITCH_LOST, True)
            assert ended.reason == "the switch was started anew, and what it held of job 'train' is gone; join again"
        epoch = world[0].reply.epoch
        join_all(world, "train")
        assert world[0].reply.epoch > epoch
        add(world, 1)


def test_a_program_that_another_controller_loaded_again_is_not_taken_for_the_one_that_was_there(
    tmp_path: Path, members: Members
) -> None:
    """The same program, but its registers are empty: the epoch's sums are lost."""
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as old:
        world = members(old.line(), 2)
        join_all(world, "train")
        kill(old)
        other = session_with(switch)
        other.commit(pipeline.load("lanes", ELEMENTS))
        other.close()
        with make_controller(switch, state=state, lease_s=LEASE_S) as new:
            world[0].turn_to(new.address)
            world[0].watch()
            world[0].ready()
            assert world[0].ended().cause == pb.SWITCH_LOST


def test_a_damaged_state_file_is_an_error_at_the_start(tmp_path: Path, switch: SoftSwitch) -> None:
    (tmp_path / "state").write_text("nothing of ours" * 100)
    with pytest.raises(StateError, match="state is damaged, or no state file"):
        make_controller(switch, state=tmp_path / "state")


def test_epochs_never_repeat_when_the_clock_is_put_back(
    tmp_path: Path, switch: SoftSwitch, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = []
    for back_s in (0, 86400, 10 * 86400):
        monkeypatch.setattr(daemon, "first_epoch", lambda back_s=back_s: first_epoch() - 256 * back_s)
        with make_controller(switch, state=tmp_path / "state") as controller:
            world = members(controller.address, 1)
            join_all(world, "train")
            epochs.append(world[0].reply.epoch)
    assert epochs == sorted(set(epochs))


def test_a_controller_that_was_stopped_for_longer_than_a_lease_blames_nobody(tmp_path: Path, members: Members) -> None:
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 1, "", 4, *ports_of(switch)) as controller:
        world = members(controller.line(), 2)
        join_all(world, "train")
        for member in world:
            member.watch()
            member.ready()
        os.kill(controller.process.pid, signal.SIGSTOP)
        time.sleep(6.0)
        os.kill(controller.process.pid, signal.SIGCONT)
        assert [member.renew() for member in world] == [OK, OK]
        assert [member.events.empty() for member in world] == [True, True]
        add(world, 1)


# --- the line between controller and switch ------------------------------------------------------------


def test_a_session_that_is_back_within_a_lease_costs_nothing(switch: SoftSwitch, members: Members) -> None:
    relay = Relay(switch.grpc_address)
    with make_controller(switch, switch=relay.address, lease_s=LEASE_S) as controller:
        world = members(controller.address, 2)
        join_all(world, "train")
        for member in world:
            member.watch()
            member.ready()
        add(world, 1)
        before = job_entries(switch)
        relay.cut()
        eventually(lambda: world[0].inspect().switch_problem != "")
        with pytest.raises(grpc.RpcError, match="there is no switch to sum in") as caught:
            members(controller.address, 1)[0].join("another", 0, 1)
        assert caught.value.code() is UNAVAILABLE
        add(world, 2)
        relay.mend()
        eventually(lambda: world[0].inspect().switch_problem == "")
        assert job_entries(switch) == before
        assert [member.renew() for member in world] == [OK, OK]
        add(world, 3)
        with pytest.raises(queue.Empty):
            world[0].events.get_nowait()
        join_all(members(controller.address, 1), "another")
    relay.close()


def test_a_session_that_stays_away_ends_the_jobs(switch: SoftSwitch, members: Members) -> None:
    relay = Relay(switch.grpc_address)
    with make_controller(switch, switch=relay.address, lease_s=1.0) as controller:
        world = members(controller.address, 1)
        join_all(world, "train")
        world[0].watch()
        world[0].ready()
        relay.cut()
        while world[0].events.empty() and world[0].renew() is OK:
            time.sleep(0.1)
        ended = world[0].ended()
        assert (ended.cause, ended.resumable) == (pb.SWITCH_LOST, True)
        assert "is gone" in ended.reason
        relay.mend()
        eventually(lambda: world[0].inspect().switch_problem == "")
        join_all(world, "train")
        add(world, 1)
    relay.close()


# --- two controllers ------------------------------------------------------------


def test_a_standby_takes_over_the_jobs_of_a_killed_controller(tmp_path: Path, members: Members) -> None:
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch:
        options = (switch.grpc_address, 5, state, TAKEOVER_LEASE_S, *ports_of(switch))
        with child(CONTROLLER, *options) as first:
            first_address = first.line()
            world = members(first_address, 2)
            with make_controller(switch, election_id=1, state=state, lease_s=TAKEOVER_LEASE_S) as second:
                watcher = members(second.address, 1)[0]
                assert watcher.inspect().standby
                join_all(world, "train")
                add(world, 1)
                for member in world:
                    member.turn_to(second.address)
                    assert member.renew() is UNAVAILABLE
                with pytest.raises(grpc.RpcError, match="this controller stands by for the switch at") as caught:
                    watcher.join("another", 0, 1)
                assert caught.value.code() is UNAVAILABLE
                before = job_entries(switch)
                kill(first)
                eventually(lambda: world[0].renew() is OK)
                assert not watcher.inspect().standby
                assert job_entries(switch) == before
                for member in world:
                    member.watch()
                    member.ready()
                add(world, 2)
                with child(CONTROLLER, *options) as again:  # the same election id, which is the lower one now
                    returned = members(again.line(), 1)[0]
                    assert returned.inspect().standby
                    assert [member.renew() for member in world] == [OK, OK]
                    join_all(members(second.address, 1), "another")


def test_hosts_notice_nothing_of_a_takeover(
    tmp_path: Path, workers: Callable[[ControllerDaemon | str, int], list[Worker]]
) -> None:
    """The client that hosts use, which knows both addresses."""
    with SoftSwitch(ports=4) as switch:
        options = (switch.grpc_address, 5, tmp_path / "state", 3, *ports_of(switch))
        with child(CONTROLLER, *options) as first:
            address = first.line()
            with make_controller(switch, election_id=1, state=tmp_path / "state", lease_s=3.0) as second:
                world = workers(f"{second.address},{address}", 2)
                all_join(world, "train")
                kill(first)
                assert world[0].client.wait_ended(9.0) is None
                (watcher,) = workers(second, 1)
                (job,) = watcher.client.inspect().jobs
                assert (job.running, job.epoch) == (True, world[0].joined and world[0].joined.epoch)
                for worker in world:
                    worker.client.leave()
                assert [worker.endings for worker in world] == [[], []]


def test_a_standby_that_shares_no_state_clears_the_switch_and_members_join_anew(
    members: Members,
) -> None:
    with SoftSwitch(ports=4) as switch, child(CONTROLLER, switch.grpc_address, 5, "", LEASE_S, *ports_of(switch)) as first:
        world = members(first.line(), 1)
        join_all(world, "train")
        with make_controller(switch, election_id=1) as second:
            kill(first)
            world[0].turn_to(second.address)
            eventually(lambda: world[0].renew() is NOT_FOUND)
            epoch = world[0].reply.epoch
            join_all(world, "train")
            assert world[0].reply.epoch > epoch
            add(world, 1)


def test_of_two_that_stand_by_one_takes_over(tmp_path: Path, members: Members) -> None:
    """Both claim the same election id."""
    state = tmp_path / "state"
    with (
        SoftSwitch(ports=4) as switch,
        child(CONTROLLER, switch.grpc_address, 5, state, TAKEOVER_LEASE_S, *ports_of(switch)) as first,
    ):
        world = members(first.line(), 1)
        join_all(world, "train")
        with (
            make_controller(switch, election_id=1, state=state, lease_s=TAKEOVER_LEASE_S) as second,
            make_controller(switch, election_id=2, state=state, lease_s=TAKEOVER_LEASE_S) as third,
        ):
            standbys = [members(each.address, 1)[0] for each in (second, third)]
            kill(first)
            eventually(lambda: sorted(each.inspect().standby for each in standbys) == [False, True])
            ruling = next(each for each, member in zip((second, third), standbys, strict=True) if not member.inspect().standby)
            world[0].turn_to(ruling.address)
            assert world[0].renew() is OK
            add(world, 1)


def test_a_controller_with_a_higher_election_id_takes_over_and_the_other_lets_its_members_go(
    tmp_path: Path, members: Members
) -> None:
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch, make_controller(switch, election_id=1, state=state, lease_s=LEASE_S) as first:
        world = members(first.address, 1)
        join_all(world, "train")
        world[0].watch()
        world[0].ready()
        waiting = members(first.address, 1)[0]
        before = job_entries(switch)
        with make_controller(switch, election_id=5, state=state, lease_s=LEASE_S) as second:
            error = world[0].events.get(timeout=20)
            assert isinstance(error, grpc.RpcError)
            assert error.code() is UNAVAILABLE
            assert "another controller, with a higher election id, is in charge of it" in str(error.details())
            assert job_entries(switch) == before
            world[0].turn_to(second.address)
            world[0].watch()
            world[0].ready()
            add(world, 1)
            with pytest.raises(grpc.RpcError, match="this controller stands by"):
                waiting.join("another", 0, 1)
            assert [job.job_name for job in waiting.inspect().jobs] == []
            world[0].leave()


def test_a_controller_alone_is_in_charge_whatever_election_id_ruled_before(
    members: Members,
) -> None:
    with SoftSwitch(ports=1) as switch:
        with make_controller(switch, election_id=5):
            pass
        with make_controller(switch, election_id=2) as controller:
            join_all(members(controller.address, 1), "train")


def test_the_highest_election_id_of_all_leaves_nothing_above_it(switch: SoftSwitch) -> None:
    with SoftSwitch(ports=1) as own:
        with make_controller(own, election_id=2**128 - 1):
            pass
        with pytest.raises(Exception, match="had the highest election id that exists"), make_controller(own, election_id=2):
            pass


def test_controllers_that_take_turns_never_disturb_the_job(tmp_path: Path, members: Members) -> None:
    """Each is cut off from the switch in turn, so that the other takes over, which finds what has been changed meanwhile."""
    state = tmp_path / "state"
    with SoftSwitch(ports=4) as switch:
        lines = [Relay(switch.grpc_address) for _ in range(2)]
        controllers: list[ControllerDaemon] = []
        try:
            for number, line in enumerate(lines, 1):
                controllers.append(make_controller(switch, switch=line.address, election_id=number, state=state, lease_s=4.0))
                controllers[-1].start()
            world = members(controllers[1].address, 2)
            join_all(world, "train")
            for turn in range(3):
                ruling, waiting = (1, 0) if turn % 2 == 0 else (0, 1)
                other = members(controllers[ruling].address, 1)
                join_all(other, f"during {turn}")
                lines[ruling].cut()
                for member in world:
                    member.turn_to(controllers[waiting].address)
                eventually(lambda: world[0].inspect().switch_problem == "")
                assert [member.renew() for member in world] == [OK, OK]
                lines[ruling].mend()
                bystander = members(controllers[ruling].address, 1)[0]
                eventually(lambda bystander=bystander: bystander.inspect().standby)
                add(world, turn + 1)
            names = {job.job_name for job in world[0].inspect().jobs if job.running}
            assert "train" in names
        finally:
            for controller in controllers:
                controller.close()
            for line in lines:
                line.close()


# --- any moment ------------------------------------------------------------


def come_and_go(member: Member, name: str, chance: random.Random, stop: threading.Event, epochs: list[int]) -> bool | None:
    """Joins and leaves until the controller is gone. Returns whether the member is in then; None if that cannot be known."""
    for round_ in itertools.count():
        try:
            epochs.append(member.join(f"{name} {round_}", 0, 1, slots=chance.randint(1, 600)).epoch)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                continue
            return False  # if it was admitted, nobody has its key, and it will be lost with its lease
        if stop.wait(chance.random() * 0.05):
            return True
        try:
            member.leave()
        except grpc.RpcError:
            return None
    raise AssertionError


@pytest.mark.parametrize("seed", range(3))
def test_controllers_killed_at_any_moment_lose_no_member_and_repeat_no_epoch(
    tmp_path: Path, members: Members, seed: int
) -> None:
    chance, state = random.Random(seed), tmp_path / "state"
    epochs: list[int] = []
    with SoftSwitch(ports=4) as switch:
        for round_ in range(3):
            with child(CONTROLLER, switch.grpc_address, 1, state, LEASE_S, *ports_of(switch)) as controller:
                group = members(controller.line(), 4)
                stop = threading.Event()
                with ThreadPoolExecutor(len(group)) as pool:
                    fates = [
                        pool.submit(come_and_go, member, f"{round_}.{number}", random.Random(chance.random()), stop, epochs)
                        for number, member in enumerate(group)
                    ]
                    time.sleep(0.2 + chance.random())
                    kill(controller)
                    stop.set()
            with make_controller(switch, state=state, lease_s=LEASE_S) as successor:
                for member, fate in zip(group, fates, strict=True):
                    if fate.result():
                        member.turn_to(successor.address)
                        assert member.renew() is OK
                        add([member], 1)
                told = group[0].turn_to(successor.address) or group[0].inspect()
                on_switch = {e.key[1].value for e in entries_of(switch, programming.JOBS)}
                assert on_switch == {job.epoch for job in told.jobs if job.running}
    assert len(set(epochs)) == len(epochs) > 0


def entries_of(switch: SoftSwitch, table: str) -> list[Any]:
    assert switch.dataplane is not None
    return list(switch.dataplane.tables[table].entries())
