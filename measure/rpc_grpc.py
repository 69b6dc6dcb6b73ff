"""Calls over gRPC: protobuf messages ("serialized"), or bytes that gRPC takes as they are ("non-serialized").

Python's gRPC takes one contiguous message, so non-serialized buffers are joined first and cut apart again; what this and
protobuf cost is measured (`messages`). It gives no hold on iovecs: for their effects see rpc_tcp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from switchsum.measure import framing
from switchsum.measure.buffers_pb2 import BufferList
from switchsum.measure.rpc import Buffers, Call, CallFailed, Client, Method, Server, Service, Stopwatch

SERIALIZED, NON_SERIALIZED = MODES = ("serialized", "non-serialized")
# Of a message: protobuf's limit, and what the 32 bits say that gRPC has for a message's length.
_LARGEST_BYTES = {SERIALIZED: (2 << 30) - 1, NON_SERIALIZED: (4 << 30) - 1}
_HEAD_BYTES = 32  # more than either mode has in front of the buffers, each of which has LENGTH_BYTES at most
_PATH = "/switchsum.buffers/call"
# 4 MiB is gRPC's limit for what may be received, less than the paper's skewed payload.
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_SERVER_OPTIONS = (*_OPTIONS, ("grpc.so_reuseport", 0))  # so that a taken port is an error
# A connection of its own for each client, and nobody's proxy.
_CLIENT_OPTIONS = (*_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))

_Message = tuple[int, int, int, Buffers]  # kind, mark, worker, buffers


def largest_payload(mode: str, buffers: int) -> int:
    """Bytes that a message of so many buffers can carry."""
    return _LARGEST_BYTES[mode] - _HEAD_BYTES - buffers * framing.LENGTH_BYTES


class _Messages:
    """How a list of buffers becomes one message, and what that takes."""

    def __init__(self, mode: str) -> None:
        self.stopwatch = Stopwatch()
        self._serialized = mode == SERIALIZED

    def write(self, message: _Message) -> bytes:
        started = time.perf_counter_ns()
        kind, mark, worker, buffers = message
        if self._serialized:
            listed = BufferList(method=kind, mark=mark, worker=worker, buffers=[bytes(buffer) for buffer in buffers])
            written = bytes(listed.SerializeToString())
        else:
            written = b"".join([framing.head(kind, mark, worker, buffers), *buffers])
        self.stopwatch.add(time.perf_counter_ns() - started)
        return written

    def read(self, data: bytes) -> _Message:
        started = time.perf_counter_ns()
        if self._serialized:
            listed = BufferList.FromString(data)
            message = (listed.method, listed.mark, listed.worker, list(listed.buffers))
        else:
            kind, mark, worker, count = framing.parse_head(data)
            at = framing.HEAD_BYTES + count * framing.LENGTH_BYTES
            view, buffers = memoryview(data), []
            for length in framing.parse_lengths(view[framing.HEAD_BYTES : at], count):
                buffers.append(view[at : at + length])
                at += length
            message = (kind, mark, worker, buffers)
        self.stopwatch.add(time.perf_counter_ns() - started)
        return message


def _why_not(address: str, port: int) -> OSError:
    """Why nobody can listen there, which gRPC does not tell."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class GrpcServer(Server):
    """`threads`: how many calls it answers at once; a sum holds a thread for each worker until it is complete."""

    def __init__(self, address: str, port: int, mode: str, service: Service, threads: int) -> None:
        """Listen at once; `port` 0: any. Raises OSError."""
        messages = _Messages(mode)
        self.messages = messages.stopwatch

        # Messages are read and written here: of an error in its own serializers gRPC tells the other side no reason.
        def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                kind, mark, worker, buffers = messages.read(data)
                return messages.write((framing.ANSWER, 0, worker, service(Call(worker, Method(kind), mark, buffers))))
            except Exception as error:  # whatever it is, the caller tells it
                context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
                raise

        method = grpc.unary_unary_rpc_method_handler(answer)

        class Handler(grpc.GenericRpcHandler):
            def service(self, details: Any) -> Any:
                return method if details.method == _PATH else None

        self._server = grpc.server(ThreadPoolExecutor(threads), handlers=[Handler()], options=_SERVER_OPTIONS)
        try:
            self.port = self._server.add_insecure_port(f"{address}:{port}")
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise _why_not(address, port)
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()


class GrpcClient(Client):
    def __init__(self, address: str, port: int, mode: str, worker: int, timeout_s: float) -> None:
        """Connect. Raises CallFailed."""
        self._messages = _Messages(mode)
        self.messages = self._messages.stopwatch
        self._name, self._worker, self._timeout_s = f"{address}:{port}", worker, timeout_s
        self._channel = grpc.insecure_channel(self._name, options=_CLIENT_OPTIONS)
        try:
            grpc.channel_ready_future(self._channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise CallFailed(f"no parameter server answers at {self._name} (grpc) within {timeout_s:g} s") from None
        self._call = self._channel.unary_unary(_PATH)

    def begin(self, method: Method, buffers: Buffers, *, mark: int = 0) -> Callable[[], Buffers]:
        with self._named():
            under_way = self._call.future(self._messages.write((method, mark, self._worker, buffers)), timeout=self._timeout_s)

        def result() -> Buffers:
            with self._named():
                return self._messages.read(under_way.result())[3]

        return result

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            told = f"{error.code().name}: {error.details()}"
            raise CallFailed(f"parameter server {self._name} (grpc): {told}") from None
        except Exception as error:  # protobuf's share no base with others
            raise CallFailed(f"parameter server {self._name} (grpc): {type(error).__name__}: {error}") from None

    def close(self) -> None:
        self._channel.close()
