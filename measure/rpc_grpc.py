"""Calls over gRPC: protobuf messages ("serialized"), or bytes that gRPC takes as they are ("non-serialized").

Python's gRPC takes one contiguous message, so non-serialized buffers are joined first and cut apart again; what this and
protobuf cost is measured (`messages`). It gives no hold on iovecs: for their effects see rpc_tcp.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from switchsum.measure import framing
from switchsum.measure.buffers_pb2 import BufferList
from switchsum.measure.rpc import Buffers, Call, CallFailed, Client, Method, Server, Service, Stopwatch

SERIALIZED, NON_SERIALIZED = MODES = ("serialized", "non-serialized")
_PATH = "/switchsum.buffers/call"
# 4 MiB is gRPC's limit for what may be received, less than the paper's skewed payload.
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_SERVER_OPTIONS = (*_OPTIONS, ("grpc.so_reuseport", 0))  # so that a taken port is an error
# A connection of its own for each client, and nobody's proxy.
_CLIENT_OPTIONS = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))

_Message = tuple[int, bool, int, Buffers]  # kind, check, worker, buffers


class _Messages:
    """How a list of buffers becomes one message, and what that takes."""

    def __init__(self, mode: str) -> None:
        self.stopwatch = Stopwatch()
        self._serialized = mode == SERIALIZED

    def write(self, message: _Message) -> bytes:
        started = time.perf_counter_ns()
        kind, check, worker, buffers = message
        if self._serialized:
            listed = BufferList(method=kind, check=check, worker=worker, buffers=[bytes(buffer) for buffer in buffers])
            written = bytes(listed.SerializeToString())
        else:
            written = b"".join([framing.head(kind, check, worker, buffers), *buffers])
        self.stopwatch.add(time.perf_counter_ns() - started)
        return written

    def read(self, data: bytes) -> _Message:
        started = time.perf_counter_ns()
        if self._serialized:
            listed = BufferList.FromString(data)
            message = (listed.method, listed.check, listed.worker, list(listed.buffers))
        else:
            kind, check, worker, count = framing.parse_head(data)
            at = framing.HEAD_BYTES + count * framing.LENGTH_BYTES
            view, buffers = memoryview(data), []
            for length in framing.parse_lengths(view[framing.HEAD_BYTES : at], count):
                buffers.append(view[at : at + length])
                at += length
            message = (kind, check, worker, buffers)
        self.stopwatch.add(time.perf_counter_ns() - started)
        return message


class GrpcServer(Server):
    """`threads`: how many calls it answers at once; a sum holds a thread for each worker until it is complete."""

    def __init__(self, address: str, port: int, mode: str, service: Service, threads: int) -> None:
        """Listen at once; `port` 0: any. Raises OSError."""
        messages = _Messages(mode)
        self.messages = messages.stopwatch

        def answer(message: _Message, context: grpc.ServicerContext) -> _Message:
            kind, check, worker, buffers = message
            try:
                return framing.ANSWER, False, worker, service(Call(worker, Method(kind), check, buffers))
            except Exception as error:  # whatever it is, the caller tells it
                context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
                raise

        method = grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=messages.read, response_serializer=messages.write
        )

        class Handler(grpc.GenericRpcHandler):
            def service(self, details: Any) -> Any:
                return method if details.method == _PATH else None

        self._server = grpc.server(ThreadPoolExecutor(threads), handlers=[Handler()], options=_SERVER_OPTIONS)
        try:
            self.port = self._server.add_insecure_port(f"{address}:{port}")
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise OSError(f"gRPC cannot listen at {address}:{port}: the port is taken, or the address is not of this host")
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()


class GrpcClient(Client):
    def __init__(self, address: str, port: int, mode: str, worker: int, timeout_s: float) -> None:
        """Connect. Raises CallFailed."""
        messages = _Messages(mode)
        self.messages = messages.stopwatch
        self._name, self._worker, self._timeout_s = f"{address}:{port}", worker, timeout_s
        self._channel = grpc.insecure_channel(self._name, options=_CLIENT_OPTIONS)
        try:
            grpc.channel_ready_future(self._channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise CallFailed(f"no parameter server answers at {self._name} (grpc) within {timeout_s:g} s") from None
        self._call = self._channel.unary_unary(_PATH, request_serializer=messages.write, response_deserializer=messages.read)

    def begin(self, method: Method, buffers: Buffers, *, check: bool = False) -> Callable[[], Buffers]:
        under_way = self._call.future((method, check, self._worker, buffers), timeout=self._timeout_s)

        def result() -> Buffers:
            try:
                return under_way.result()[3]  # type: ignore[no-any-return]
            except grpc.RpcError as error:
                told = f"{error.code().name}: {error.details()}"
                raise CallFailed(f"parameter server {self._name} (grpc): {told}") from None

        return result

    def close(self) -> None:
        self._channel.close()
