"""The job service as gRPC sees it: client stub, servicer base and registration, typed and independent of any grpcio release.

By hand on purpose: what grpcio-tools generates insists on a grpcio at least as new as itself.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from switchsum.protos import job_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["JobService"].full_name
_UNARY: dict[str, tuple[Any, Any]] = {
    "Join": (pb.JoinRequest, pb.JoinReply),
    "Renew": (pb.RenewRequest, pb.RenewReply),
    "Report": (pb.ReportRequest, pb.ReportReply),
    "Leave": (pb.MemberRequest, pb.LeaveReply),
    "Inspect": (pb.InspectRequest, pb.InspectReply),
    "Shrink": (pb.ShrinkRequest, pb.ShrinkReply),
}
_STREAMS: dict[str, tuple[Any, Any]] = {"Watch": (pb.MemberRequest, pb.JobEvent)}


class JobServiceStub:
    """Calls of the service over `channel`. Each attribute is called with (request, timeout=seconds), as in grpcio."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """`metadata` goes with every call."""

        def call(name: str, make: Callable[..., Any], types: tuple[Any, Any]) -> Any:
            request, reply = types
            made = make(
                f"/{_SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
            )
            return functools.partial(made, metadata=metadata) if metadata else made

        def unary(name: str) -> Any:
            return call(name, channel.unary_unary, _UNARY[name])

        self.Join: Callable[..., pb.JoinReply] = unary("Join")
        self.Renew: Callable[..., pb.RenewReply] = unary("Renew")
        self.Report: Callable[..., pb.ReportReply] = unary("Report")
        self.Leave: Callable[..., pb.LeaveReply] = unary("Leave")
        self.Inspect: Callable[..., pb.InspectReply] = unary("Inspect")
        self.Shrink: Callable[..., pb.ShrinkReply] = unary("Shrink")
        # The call: an iterator of JobEvent with cancel().
        self.Watch: Callable[..., Any] = call("Watch", channel.unary_stream, _STREAMS["Watch"])


class JobServicer(ABC):
    """Base of the server's side; see job.proto for what each call promises."""

    @abstractmethod
    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply: ...

    @abstractmethod
    def Watch(self, request: pb.MemberRequest, context: grpc.ServicerContext) -> Iterator[pb.JobEvent]: ...

    @abstractmethod
    def Renew(self, request: pb.RenewRequest, context: grpc.ServicerContext) -> pb.RenewReply: ...

    @abstractmethod
    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply: ...

    @abstractmethod
    def Leave(self, request: pb.MemberRequest, context: grpc.ServicerContext) -> pb.LeaveReply: ...

    @abstractmethod
    def Inspect(self, request: pb.InspectRequest, context: grpc.ServicerContext) -> pb.InspectReply: ...

    @abstractmethod
    def Shrink(self, request: pb.ShrinkRequest, context: grpc.ServicerContext) -> pb.ShrinkReply: ...


def add_job_servicer(servicer: JobServicer, server: grpc.Server) -> None:
    """Make `server` answer the job service's calls with `servicer`'s methods."""
    handlers = {
        name: make(
            _readable(getattr(servicer, name), name),
            request_deserializer=_reader(request),
            response_serializer=reply.SerializeToString,
        )
        for make, calls in (
            (grpc.unary_unary_rpc_method_handler, _UNARY),
            (grpc.unary_stream_rpc_method_handler, _STREAMS),
        )
        for name, (request, reply) in calls.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


_UNREADABLE = object()


def _reader(kind: Any) -> Callable[[bytes], Any]:
    """Reads a request, or returns _UNREADABLE: grpcio 1.85 never frees a call whose deserializer raises."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except Exception:  # protobuf releases differ in what they raise
            return _UNREADABLE

    return read


def _readable(method: Callable[[Any, grpc.ServicerContext], Any], name: str) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        if request is _UNREADABLE:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the bytes of the request are no message that {name} takes")
        return method(request, context)

    return call
