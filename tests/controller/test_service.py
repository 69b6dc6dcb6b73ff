"""The job service over real gRPC, with the real switch program behind it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.options import DEFAULT_SLOTS
from switchsum.host_agent.errors import ControllerUnreachable, JoinRefused
from switchsum.host_agent.job_client import JobClient, Joined
from switchsum.p4src.layout import HEADER_DTYPE, WIRE_VERSION, PacketType
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import ELEMENTS, all_join, make_controller
from tests.controller.processes import WORKER, child
from tests.controller.worker import Worker

Workers = Callable[[ControllerDaemon | str, int], list[Worker]]


def contribution(joined: Joined, value: int, slot: int = 0, phase: int = 1) -> bytes:
    """A CONTRIBUTION packet whose every element is `value`."""
    header = np.zeros(1, HEADER_DTYPE)
    for name, field in (
        ("version", WIRE_VERSION),
        ("type", PacketType.CONTRIBUTION),
        ("job", joined.job),
        ("epoch", joined.epoch),
        ("slot", slot),
        ("phase", phase),
        ("worker", joined.worker),
    ):
        header[name] = field
    return header.tobytes() + np.full(joined.elements, value, ">u4").tobytes()


def send(worker: Worker, value: int, **where: int) -> None:
    assert worker.joined is not None
    packet = contribution(worker.joined, value, **where)
    worker.socket.sendto(packet, (worker.joined.switch_address, worker.joined.switch_port))


def sums(worker: Worker) -> list[int]:
    packet = worker.socket.recv(4096)
    assert packet[1] == PacketType.RESULT
    return list(np.frombuffer(packet, ">u4", offset=HEADER_DTYPE.itemsize))


def eventually(holds: Callable[[], bool], patience_s: float = 20.0) -> None:
    """Waits for something that others bring about."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_a_world_joins_sums_and_leaves(controller: ControllerDaemon, switch: SoftSwitch, workers: Workers) -> None:
    world = workers(controller, 3)
    before = world[0].client.inspect()
    all_join(world, "train")
    for rank, worker in enumerate(world):
        assert worker.joined is not None
        assert (worker.joined.worker, worker.joined.elements, worker.joined.slots) == (rank, ELEMENTS, DEFAULT_SLOTS)
    assert len({(w.joined.job, w.joined.epoch) for w in world if w.joined}) == 1
    used = {(w.joined.switch_address, w.joined.switch_port) for w in world if w.joined}
    assert used == {switch.port_addresses[number] for number in (1, 2, 3)}
    for rank, worker in enumerate(world):
        send(worker, 10**rank)
    assert [sums(worker) for worker in world] == [[111] * ELEMENTS] * 3

    reply = world[0].client.inspect()
    assert (reply.pipeline, reply.switch_address) == (f"switchsum 1, {ELEMENTS} elements, lanes", switch.grpc_address)
    assert (reply.slots_total, reply.slots_free, reply.switch_problem) == (2048, 2048 - DEFAULT_SLOTS, "")
    job = reply.jobs[0]
    assert (job.job_name, job.running, job.world_size, job.slots) == ("train", True, 3, DEFAULT_SLOTS)
    assert {name: packets for name, packets in job.verdicts.items() if packets} == {"CONTRIBUTION": 2, "COMPLETION": 1}
    assert [sum(worker.verdicts.values()) for worker in job.workers] == [1, 1, 1]
    assert [worker.data_port for worker in job.workers] == [worker.socket.getsockname()[1] for worker in world]

    for worker in world:
        worker.client.leave()
    eventually(lambda: world[0].client.inspect().slots_free == 2048)
    over = world[0].client.inspect().jobs[0]
    assert (over.running, over.ended_because) == (False, "every rank of job 'train' left")
    assert dict(over.verdicts) == dict(job.verdicts)  # read before the job was taken off
    send(world[0], 1)  # the epoch is dead
    eventually(lambda: world[0].client.inspect().rejected["UNKNOWN_JOB"] == before.rejected["UNKNOWN_JOB"] + 1)
    assert [worker.endings for worker in world] == [[], [], []]


def test_a_job_leaves_nothing_on_the_switch(controller: ControllerDaemon, switch: SoftSwitch, workers: Workers) -> None:
    def entries() -> dict[str, list[object]]:
        assert switch.dataplane is not None
        tables: dict[str, list[object]] = {
            name: [(e.key, e.action, e.params) for e in table.entries() if not e.const]
            for name, table in switch.dataplane.tables.items()
        }
        return tables | {"groups": list(switch.dataplane.multicast_groups.entries())}

    before = entries()
    world = workers(controller, 2)
    all_join(world, "train")
    during = entries()
    assert {name for name in during if during[name] != before[name]} == {
        "SwitchIngress.service.membership.jobs",
        "SwitchIngress.service.membership.workers",
        "SwitchIngress.service.tally.worker_verdicts",
        "SwitchIngress.service.tally.job_verdicts",
        "SwitchEgress.addressing.peers",
        "groups",
    }
    for worker in world:
        worker.client.leave()
    eventually(lambda: entries() == before)


def test_two_jobs_at_once_share_the_switch_by_slots(controller: ControllerDaemon, workers: Workers) -> None:
    first, second = workers(controller, 2), workers(controller, 2)
    all_join(first, "one")
    all_join(second, "two", slots=100)
    jobs = first[0].client.inspect().jobs
    assert [(job.slot_base, job.slots) for job in jobs[:2]] == [(0, DEFAULT_SLOTS), (DEFAULT_SLOTS, 100)]
    for value, worker in enumerate([*first, *second], 1):
        send(worker, value)
    assert [sums(worker)[0] for worker in [*first, *second]] == [3, 3, 7, 7]
    send(second[0], 1, slot=100)  # the second job's range ends here
    eventually(lambda: first[0].client.inspect().jobs[1].verdicts["SLOT_RANGE"] == 1)


def test_controllers_in_quick_succession_never_repeat_an_epoch(switch: SoftSwitch, workers: Workers) -> None:
    """Each forgets the last one's jobs, the switch's rows do not: an epoch that came again would find values in them."""
    epochs = []
    for _ in range(4):
        with make_controller(switch) as controller:
            for number in range(5):
                world = workers(controller, 2)
                all_join(world, f"job {number}")
                for value, worker in enumerate(world, 1):
                    send(worker, value)
                assert [sums(worker)[0] for worker in world] == [3, 3]
                epochs.append(world[0].joined.epoch)  # type: ignore[union-attr]
                for worker in world:
                    worker.client.leave()
    assert len(set(epochs)) == len(epochs)
    assert epochs == sorted(epochs)


def test_more_workers_than_ports_share_them(controller: ControllerDaemon, workers: Workers) -> None:
    world = workers(controller, 6)
    all_join(world, "train")
    for worker in world:
        send(worker, 1)
    assert [sums(worker)[0] for worker in world] == [6] * 6


def test_the_switch_drops_what_it_is_told_to(switch: SoftSwitch, workers: Workers) -> None:
    with make_controller(switch, loss_in=0.5, loss_out=0.25) as lossy:
        (worker,) = workers(lossy, 1)
        before = worker.client.inspect()
        all_join([worker], "train")
        for phase in range(1, 401):
            send(worker, 1, phase=phase)
        eventually(lambda: received(worker) + dropped(worker, before) == 400)
        after = worker.client.inspect()
        lost_in = after.dropped_in[1] - before.dropped_in[1]
        lost_out = after.dropped_out[1] - before.dropped_out[1]
        assert 130 < lost_in < 270  # 200 are expected, one standard deviation is 10
        assert 10 < lost_out < 100


def received(worker: Worker) -> int:
    """Packets that have passed the switch's entrance."""
    return sum(worker.client.inspect().jobs[0].verdicts.values())


def dropped(worker: Worker, before: pb.InspectReply) -> int:
    return worker.client.inspect().dropped_in[1] - before.dropped_in[1]


# --- joins that fail ------------------------------------------------------------


def test_a_refused_join_says_why(controller: ControllerDaemon, workers: Workers) -> None:
    (worker,) = workers(controller, 1)
    with pytest.raises(JoinRefused) as caught:
        worker.join("train", 0, 33)
    assert str(caught.value) == (
        f"the controller at {controller.address} refused the join: a world of 33 is not possible: "
        "a switch slot counts 1 to 32 workers, one bit each; use that many processes at most"
    )


def test_another_wire_version_is_refused(controller: ControllerDaemon) -> None:
    with grpc.insecure_channel(controller.address) as channel:
        request = pb.JoinRequest(wire_version=0x52, job_name="train", world_size=1, data_port=9)
        with pytest.raises(grpc.RpcError) as caught:
            JobServiceStub(channel).Join(request, timeout=20.0)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == (
        "rank 0 of job 'train' speaks wire version 0x52, this controller and its switch 0x51: "
        "install the same release of switchsum on both"
    )


def test_the_barrier_ends_with_the_names_of_the_missing(controller: ControllerDaemon, workers: Workers) -> None:
    (worker,) = workers(controller, 1)
    with pytest.raises(JoinRefused, match="1 of 3 ranks joined within 2 s; missing: ranks 0, 2; here: rank 1") as caught:
        worker.join("train", 1, 3, timeout_s=2.0)
    assert "(host testhost, pid 4001)" in str(caught.value)
    assert worker.client.inspect().slots_free == 2048


def test_ranks_that_disagree_are_told_on_every_rank(controller: ControllerDaemon, workers: Workers) -> None:
    first, second = workers(controller, 2)
    answers: list[str] = []

    def wait() -> None:
        try:
            first.join("train", 0, 2)
        except JoinRefused as refused:
            answers.append(str(refused))

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: second.client.inspect().slots_free < 2048)
    with pytest.raises(JoinRefused) as caught:
        second.join("train", 1, 3)
    waiting.join()
    assert answers == [str(caught.value)]
    assert "disagree on the world size: 3 says rank 1" in answers[0]


def test_a_rank_that_is_killed_while_it_waits_makes_room_for_its_successor(
    controller: ControllerDaemon, workers: Workers
) -> None:
    world = workers(controller, 2)
    with child(WORKER, controller.address, "train", 0, 2) as waiting:
        assert waiting.line() == "started"
        eventually(lambda: world[0].client.inspect().slots_free < 2048)
        waiting.process.kill()
        eventually(lambda: world[0].client.inspect().slots_free == 2048)
    all_join(world, "train")


def test_no_controller_is_an_error_that_names_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        client = JobClient(address)
        with pytest.raises(ControllerUnreachable, match=f"no controller answers at {address} within 1 s; start one"):
            client.join(job_name="a", rank=0, world_size=1, host="h", pid=1, data_port=1, timeout_s=1.0)
        client.close()


def test_something_else_than_a_controller_is_told_apart(switch: SoftSwitch) -> None:
    client = JobClient(switch.grpc_address)
    with pytest.raises(ControllerUnreachable, match=f"what answers at {switch.grpc_address} is not a switchsum controller"):
        client.inspect()
    client.close()


# --- jobs that end badly ------------------------------------------------------------


def test_a_killed_worker_ends_the_epoch_by_name(controller: ControllerDaemon, workers: Workers) -> None:
    world = workers(controller, 2)
    with child(WORKER, controller.address, "train", 2, 3) as victim:
        joining = [threading.Thread(target=worker.join, args=("train", rank, 3)) for rank, worker in enumerate(world)]
        for thread in joining:
            thread.start()
        assert [victim.line(), victim.line()] == ["started", "joined"]
        for thread in joining:
            thread.join()
        victim.process.kill()
        for worker in world:
            ended = worker.ended()
            assert (ended.cause, ended.ranks) == ("LOST_WORKER", (2,))
            assert str(ended) == (
                "lost a worker of job 'train': rank 2 (host testhost, pid 4002) broke off: its process ended, or its link to "
                "the controller did"
            )
    eventually(lambda: world[0].client.inspect().slots_free == 2048)
    assert [len(worker.endings) for worker in world] == [1, 1]


def test_a_worker_that_hangs_loses_its_lease(switch: SoftSwitch, workers: Workers) -> None:
    with make_controller(switch, lease_s=1.5) as controller:
        (worker,) = workers(controller, 1)
        with child(WORKER, controller.address, "train", 1, 2) as victim:
            worker.join("train", 0, 2)
            assert [victim.line(), victim.line()] == ["started", "joined"]
            os.kill(victim.process.pid, signal.SIGSTOP)
            ended = worker.ended()
            assert (ended.cause, ended.ranks) == ("LOST_WORKER", (1,))
            assert "rank 1 (host testhost, pid 4001) did not renew its lease for 1.5 s" in str(ended)
            os.kill(victim.process.pid, signal.SIGCONT)
            assert "did not renew its lease" in victim.line()  # and it hears the same


def test_leases_are_renewed_for_as_long_as_the_worker_lives(switch: SoftSwitch, workers: Workers) -> None:
    with make_controller(switch, lease_s=2.0) as controller:
        (worker,) = workers(controller, 1)
        all_join([worker], "train")
        assert worker.client.wait_ended(4.5) is None


def test_a_mismatch_tells_every_rank_what_each_was_doing(controller: ControllerDaemon, workers: Workers) -> None:
    world = workers(controller, 3)
    all_join(world, "train")
    for worker, size in zip(world, (1000, 7, 1000), strict=True):
        worker.collective = f"#5 all_reduce(sum) of float32[{size}]"
    world[1].client.report_mismatch("another tag in slot 0", world[1].collective)
    for worker in world:
        ended = worker.ended()
        assert (ended.cause, ended.ranks) == ("MISMATCH", (0, 1, 2))
        assert "ranks 0, 2: #5 all_reduce(sum) of float32[1000]; rank 1: #5 all_reduce(sum) of float32[7]. Every rank" in str(
            ended
        )


def test_failures_that_a_rank_reports_reach_the_others(controller: ControllerDaemon, workers: Workers) -> None:
    first, second = workers(controller, 2), workers(controller, 2)
    all_join(first, "one")
    all_join(second, "two")
    first[0].client.report_failure("slot 3 gave up", "#2 all_reduce")
    second[1].client.report_switch_silent("nothing for 30 s", "")
    assert str(first[1].ended()) == "rank 0 (host testhost, pid 4000) cannot go on: slot 3 gave up (in #2 all_reduce)"
    assert first[1].ended().cause == "FAILED"
    assert second[0].ended().cause == "SWITCH_LOST"


def test_a_controller_that_stops_says_so(switch: SoftSwitch, workers: Workers) -> None:
    with make_controller(switch) as controller:
        (worker,) = workers(controller, 1)
        all_join([worker], "train")
    assert worker.ended().cause == "CONTROLLER_STOPPED"


def test_nobody_is_served_twice_or_unknown(controller: ControllerDaemon) -> None:
    with grpc.insecure_channel(controller.address) as channel:
        stub = JobServiceStub(channel)
        stranger = pb.MemberRequest(member="nobody")
        for call in (lambda: stub.Renew(stranger, timeout=20.0), lambda: list(stub.Watch(stranger, timeout=20.0))):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        stub.Leave(stranger, timeout=20.0)  # leaving twice is no mistake
        with pytest.raises(grpc.RpcError, match="is not a kind of report"):
            stub.Report(pb.ReportRequest(member="nobody"), timeout=20.0)
