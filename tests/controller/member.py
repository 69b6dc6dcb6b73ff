"""A member of a job that speaks the job service call by call, so that a test decides when it renews, and where."""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from switchsum.p4src.layout import WIRE_VERSION
from switchsum.protos import job_pb2 as pb
from switchsum.protos.job_rpc import JobServiceStub

LIMIT_S = 20.0


class Member:
    """One rank. `reply`: what its join brought."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(LIMIT_S)
        self.events: queue.Queue[pb.JobEvent | grpc.RpcError | None] = queue.Queue()
        self.reply = pb.JoinReply()
        self._channels: list[grpc.Channel] = []
        self.turn_to(address)

    def turn_to(self, address: str) -> None:
        """Speak to this controller from now on."""
        self._channels.append(grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)]))
        self.stub = JobServiceStub(self._channels[-1])

    def join(self, name: str, rank: int, world: int, timeout_s: float = LIMIT_S, **options: int) -> pb.JoinReply:
        port = self.socket.getsockname()[1]
        request = pb.JoinRequest(
            wire_version=WIRE_VERSION, job_name=name, rank=rank, world_size=world, data_port=port, **options
        )
        self.reply = self.stub.Join(request, timeout=timeout_s)
        return self.reply

    def renew(self, **counters: int) -> grpc.StatusCode:
        """How the controller answers a renewal."""
        try:
            self.stub.Renew(pb.RenewRequest(member=self.reply.member, counters=counters), timeout=LIMIT_S)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def watch(self) -> None:
        """Gather its events: messages, then an error, or None where the stream ended in good order."""

        def follow() -> None:
            try:
                for event in stream:
                    self.events.put(event)
                self.events.put(None)
            except grpc.RpcError as error:
                self.events.put(error)

        stream = self.stub.Watch(pb.MemberRequest(member=self.reply.member))
        threading.Thread(target=follow, daemon=True).start()

    def ready(self) -> None:
        """Waits until the controller follows us."""
        event = self.events.get(timeout=LIMIT_S)
        assert isinstance(event, pb.JobEvent), event
        assert event.HasField("ready")

    def ended(self) -> pb.EpochEnded:
        event = self.events.get(timeout=LIMIT_S)
        assert isinstance(event, pb.JobEvent), event
        assert event.HasField("epoch_ended")
        return event.epoch_ended

    def leave(self) -> None:
        self.stub.Leave(pb.MemberRequest(member=self.reply.member), timeout=LIMIT_S)

    def inspect(self) -> pb.InspectReply:
        return self.stub.Inspect(pb.InspectRequest(), timeout=LIMIT_S)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.socket.close()


def join_all(members: list[Member], name: str, **options: int) -> None:
    """A complete world joins."""
    with ThreadPoolExecutor(len(members)) as pool:
        joins = [pool.submit(each.join, name, rank, len(members), **options) for rank, each in enumerate(members)]
        for join in joins:
            join.result()
