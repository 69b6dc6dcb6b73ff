"""Calls over plain TCP: each message leaves the process as one list of iovecs (sendmsg), and arrives in one (recvmsg).

This is what gRPC's core does beneath its C++ interface, and what TF-gRPC-Bench varies as "iovec buffer count"; Python's gRPC
gives no hold on it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from switchsum.measure import framing
from switchsum.measure.rpc import Buffer, Buffers, Call, CallFailed, Client, Method, Server, Service

_MOST_IOVECS = 1024  # of one system call (UIO_MAXIOV)


def _send(opened: socket.socket, buffers: Sequence[Buffer]) -> None:
    """Raises OSError."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first = 0
    while first < len(views):
        sent = opened.sendmsg(views[first : first + _MOST_IOVECS])
        while first < len(views) and sent >= len(views[first]):
            sent -= len(views[first])
            first += 1
        if sent:
            views[first] = views[first][sent:]


class _Receiver:
    """Reads messages; the buffers of one are used again for the next of the same lengths."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._head = bytearray(framing.HEAD_BYTES)
        self._lengths: tuple[int, ...] = ()
        self._buffers: list[bytearray] = []

    def next(self) -> tuple[int, int, int, list[bytearray]]:
        """(kind, mark, worker, buffers). Raises OSError, EOFError when the other side has closed, framing.BadFrame."""
        self._fill([self._head])
        kind, mark, worker, count = framing.parse_head(self._head)
        lengths = bytearray(count * framing.LENGTH_BYTES)
        self._fill([lengths])
        wanted = framing.parse_lengths(lengths, count)
        if wanted != self._lengths:
            self._lengths, self._buffers = wanted, [bytearray(length) for length in wanted]
        self._fill(self._buffers)
        return kind, mark, worker, self._buffers

    def _fill(self, buffers: Sequence[bytearray]) -> None:
        views = [memoryview(buffer) for buffer in buffers if buffer]
        first = 0
        while first < len(views):
            received = self._socket.recvmsg_into(views[first : first + _MOST_IOVECS])[0]
            if not received:
                raise EOFError
            while first < len(views) and received >= len(views[first]):
                received -= len(views[first])
                first += 1
            if received:
                views[first] = views[first][received:]


class TcpServer(Server):
    """A thread for each connection."""

    messages = None

    def __init__(self, address: str, port: int, service: Service) -> None:
        """Listen at once; `port` 0: any. Raises OSError."""
        self._service = service
        self._listener = socket.create_server((address, port), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="tcp server", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # closed
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(accepted)
            threading.Thread(target=self._serve, args=(accepted,), name="tcp connection", daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        receiver = _Receiver(accepted)
        try:
            while True:
                kind, mark, worker, buffers = receiver.next()
                try:
                    answer, status = self._service(Call(worker, Method(kind), mark, buffers)), framing.ANSWER
                except Exception as error:  # whatever it is, the caller tells it
                    answer, status = [f"{type(error).__name__}: {error}".encode()], framing.FAILURE
                _send(accepted, [framing.head(status, 0, worker, answer), *answer])
        except (OSError, EOFError, framing.BadFrame):
            return  # a caller that left, or never was one of ours
        finally:
            with self._lock:
                self._open.discard(accepted)
            accepted.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close() alone does not wake accept()
        self._listener.close()
        with self._lock:
            for accepted in self._open:
                with contextlib.suppress(OSError):
                    accepted.shutdown(socket.SHUT_RDWR)


class TcpClient(Client):
    messages = None

    def __init__(self, address: str, port: int, worker: int, timeout_s: float) -> None:
        """Connect. Raises CallFailed."""
        self._name = f"{address}:{port}"
        self._worker, self._timeout_s = worker, timeout_s
        try:
            self._socket = socket.create_connection((address, port), timeout_s)
        except OSError as error:
            raise CallFailed(f"no parameter server answers at {self._name} (tcp): {error}") from None
        # The kernel's own timeouts: a Python socket with one asks poll() before each system call.
        self._socket.settimeout(None)
        limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._receiver = _Receiver(self._socket)

    def begin(self, method: Method, buffers: Buffers, *, mark: int = 0) -> Callable[[], Buffers]:
        with self._named():
            _send(self._socket, [framing.head(method, mark, self._worker, buffers), *buffers])
        return self._result

    def _result(self) -> Buffers:
        with self._named():
            kind, _, _, buffers = self._receiver.next()
        if kind == framing.FAILURE:
            raise CallFailed(f"parameter server {self._name} (tcp) failed: {bytes(buffers[0]).decode(errors='replace')}")
        return buffers

    @contextlib.contextmanager
    def _named(self):  # type: ignore[no-untyped-def]
        started = time.monotonic()
        try:
            yield
        except BlockingIOError:
            waited = time.monotonic() - started
            raise CallFailed(f"parameter server {self._name} (tcp) did not answer within {waited:.3g} s") from None
        except EOFError:
            raise CallFailed(f"parameter server {self._name} (tcp) closed the connection") from None
        except (OSError, framing.BadFrame) as error:
            raise CallFailed(f"parameter server {self._name} (tcp): {error}") from None

    def close(self) -> None:
        self._socket.close()
