"""Slots, queues, shrinking and limits over real gRPC, with a switch behind: what clients are told, and in which way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.service import MAX_COUNTERS, MAX_TEXT, JobService
from switchsum.controller.tenants import Limits, Tenant
from switchsum.protos import job_pb2 as pb
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import make_controller
from tests.controller.member import LIMIT_S, Member, join_all
from tests.controller.test_service import eventually

Members = Callable[[str, int], list[Member]]


@contextmanager
def joining(member: Member, *asked: object, **options: int) -> Iterator[list[grpc.RpcError]]:
    """A join in the background, which is over after the block; yields what it was refused with."""
    refused: list[grpc.RpcError] = []

    def join() -> None:
        try:
            member.join(*asked, **options)  # type: ignore[arg-type]
        except grpc.RpcError as error:
            refused.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    yield refused
    thread.join()


def states(member: Member) -> dict[str, str]:
    return {job.job_name: job.state for job in reversed(member.inspect().jobs)}


def test_a_queued_job_starts_when_another_ends(controller: ControllerDaemon, members: Members) -> None:
    first, second, third = members(controller.address, 3)
    join_all([first], "one", slots=2048)
    with pytest.raises(grpc.RpcError) as caught:
        third.join("three", 0, 1, slots=100, queue_ms=300)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "asks for 100 slots; 0 of the switch's 2048 are free" in str(caught.value.details())
    assert "(it waited for as long as it wanted to)" in str(caught.value.details())
    with joining(second, "two", 0, 1, slots=100, queue_ms=15_000) as refused:
        eventually(lambda: states(third).get("two") == "queued")
        first.leave()
    assert refused == []
    assert states(third) == {"one": "ended", "two": "running"}
    second.leave()


def test_a_queued_job_outlives_no_client(controller: ControllerDaemon, members: Members) -> None:
    first, second = members(controller.address, 2)
    join_all([first], "one", slots=2048)
    with pytest.raises(grpc.RpcError):
        second.join("two", 0, 1, timeout_s=1.0, slots=100, queue_ms=60_000)
    eventually(lambda: states(first) == {"one": "running"})
    first.leave()


def test_a_job_shrinks_and_goes_on(controller: ControllerDaemon, members: Members) -> None:
    first, second, operator = members(controller.address, 3)
    join_all([first], "one", slots=2048)
    first.watch()
    first.ready()
    with joining(second, "two", 0, 1, slots=2000, queue_ms=15_000) as refused:
        eventually(lambda: states(operator).get("two") == "queued")
        operator.stub.Shrink(pb.ShrinkRequest(job_name="one", slots=48), timeout=LIMIT_S)
        ended = first.ended()
        assert (ended.cause, ended.resumable) == (pb.SHRUNK, True)
        epoch = first.reply.epoch
        first.join("one", 0, 1, slots=2048)
    assert refused == []
    assert (first.reply.slots, second.reply.slots) == (48, 2000)
    assert first.reply.epoch > epoch
    with pytest.raises(grpc.RpcError) as caught:
        operator.stub.Shrink(pb.ShrinkRequest(job_name="three", slots=48), timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    for member in (first, second):
        member.leave()


def test_inspect_tells_of_states_ages_leases_and_counters(switch: SoftSwitch, members: Members) -> None:
    with make_controller(switch, lease_s=30.0) as controller:
        first, second = members(controller.address, 2)
        with joining(first, "train", 0, 2):
            eventually(lambda: states(second) == {"train": "forming"})
            second.join("train", 1, 2)
        assert first.renew(collectives=7, **{f"counter {number}": number for number in range(MAX_COUNTERS)}) is (
            grpc.StatusCode.OK
        )
        reply = first.inspect()
        (job,) = reply.jobs
        assert (reply.standby, job.state, job.tenant) == (False, "running", "")
        assert 0 < job.idle_s < job.age_s < reply.uptime_s
        assert all(0 < worker.lease_left_s <= 30.0 for worker in job.workers)
        assert [len(worker.counters) for worker in job.workers] == [MAX_COUNTERS, 0]


def test_what_clients_say_of_themselves_is_cut_to_size(controller: ControllerDaemon, members: Members) -> None:
    first, second = members(controller.address, 2)
    port = first.socket.getsockname()[1]
    request = pb.JoinRequest(wire_version=0x51, job_name="train", world_size=1, data_port=port, host="h\n" * 100_000)
    first.reply = first.stub.Join(request, timeout=LIMIT_S)
    (worker,) = second.inspect().jobs[0].workers
    assert worker.host == ("h?" * MAX_TEXT)[:MAX_TEXT] + "..."
    request.job_name = "ü" * 1_000_000
    with pytest.raises(grpc.RpcError, match="the job's name has 1000000 characters; 256 at most are possible"):
        second.stub.Join(request, timeout=LIMIT_S)
    first.watch()
    first.ready()
    kind = pb.ReportRequest.FAILURE
    first.stub.Report(
        pb.ReportRequest(member=first.reply.member, kind=kind, detail="x" * 1_000_000, collective="y" * 9999), timeout=LIMIT_S
    )
    assert len(first.ended().reason) < 4 * MAX_TEXT


def test_a_refusal_arrives_however_many_hold_the_slots(controller: ControllerDaemon, members: Members) -> None:
    """What comes with a gRPC error is limited to 8 KiB, and percent-encoded."""
    world = members(controller.address, 40)
    for number, member in enumerate(world):
        join_all([member], "ü" * 200 + str(number), slots=51)
    with pytest.raises(grpc.RpcError) as caught:
        members(controller.address, 1)[0].join("late", 0, 1, slots=51)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(caught.value.details()).startswith("job 'late' asks for 51 slots; 8 of the switch's 2048 are free")
    for member in world:
        member.leave()


def test_tenants_see_and_touch_their_own_jobs(switch: SoftSwitch, members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who a caller is comes from its token elsewhere; here from the metadata as it stands."""
    known = {"a": Tenant("a", Limits(jobs=1)), "b": Tenant("b"), "operator": Tenant("operator", operator=True)}

    def tenant(service: JobService, context: grpc.ServicerContext) -> Tenant:
        return known[str(dict(context.invocation_metadata())["tenant"])]

    monkeypatch.setattr(JobService, "_tenant", tenant)
    with make_controller(switch) as controller:
        world = members(controller.address, 4)
        for member, name in zip(world, [*known, "a"], strict=True):
            member.stub = _Speaker(member.stub, name)  # type: ignore[assignment]
        a, b, operator, more = world
        join_all([a], "train")
        with pytest.raises(grpc.RpcError, match="tenant 'a' holds 1 of its 1 jobs") as caught:
            more.join("more", 0, 1)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [states(member) for member in (a, b, operator)] == [{"train": "running"}, {}, {"train": "running"}]
        b.reply = a.reply
        assert b.renew() is grpc.StatusCode.NOT_FOUND
        b.watch()
        error = b.events.get(timeout=LIMIT_S)
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError, match="no such member"):
            b.stub.Report(pb.ReportRequest(member=a.reply.member, kind=pb.ReportRequest.FAILURE), timeout=LIMIT_S)
        with pytest.raises(grpc.RpcError, match="no job 'train' is running"):
            b.stub.Shrink(pb.ShrinkRequest(job_name="train", slots=5), timeout=LIMIT_S)
        b.leave()
        assert a.renew() is grpc.StatusCode.OK
        operator.stub.Shrink(pb.ShrinkRequest(job_name="train", slots=5), timeout=LIMIT_S)
        assert a.renew() is grpc.StatusCode.NOT_FOUND


class _Speaker:
    """A stub whose every call says for which tenant it is."""

    def __init__(self, stub: object, tenant: str) -> None:
        self._stub = stub
        self._metadata = (("tenant", tenant),)

    def __getattr__(self, name: str) -> object:
        return lambda request, **options: getattr(self._stub, name)(request, metadata=self._metadata, **options)
