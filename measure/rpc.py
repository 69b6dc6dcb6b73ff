"""Remote procedure calls whose arguments and results are lists of buffers: what a parameter server's traffic is made of.

A server answers with a service; a client calls one server. Both are the same for every transport (rpc_grpc, rpc_tcp,
rpc_torch), so that benchmarks and parameter servers are written once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

PAPER_PORT = 50001  # TF-gRPC-Bench's default (Table 2)
Buffer = bytes | bytearray | memoryview
Buffers = Sequence[Buffer]


class Method(IntEnum):
    """What is asked of a server."""

    ECHO = 1  # the buffers come back
    ACKNOWLEDGE = 2  # the number of wrong bytes comes back, if they were marked
    SUM = 3  # the sum over all workers comes back, once all have sent theirs


@dataclass(frozen=True)
class Call:
    """What a service is asked. `worker`: the caller's rank; `mark`: what it has marked the buffers with, for who verifies them
    (call_roles.Content); 0 where nobody does."""

    worker: int
    method: Method
    mark: int
    buffers: Buffers


Service = Callable[[Call], Buffers]  # called from many threads at once; its result is only read


class CallFailed(ConnectionError):
    """A call did not come back; the text says from which server, and why."""


class Stopwatch:
    """Time that threads spend on something, added up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total_ns = 0

    def add(self, ns: int) -> None:
        with self._lock:
            self._total_ns += ns

    @property
    def seconds(self) -> float:
        return self._total_ns / 1e9


class Server(ABC):
    """Answers until it is closed. `port`: where; 0 where there is none. `messages`: time spent on making one message of
    buffers and buffers of a message, None where that is not done."""

    port: int
    messages: Stopwatch | None

    @abstractmethod
    def close(self) -> None:
        """End it; calls under way fail."""


class Client(ABC):
    """Calls one server, from one thread at a time."""

    messages: Stopwatch | None

    @abstractmethod
    def begin(self, method: Method, buffers: Buffers, *, mark: int = 0) -> Callable[[], Buffers]:
        """Send the buffers; returns what waits for the result. Results come in the order of the calls, and a result's buffers
        may be used until the next call begins. Raises CallFailed."""

    def call(self, method: Method, buffers: Buffers, *, mark: int = 0) -> Buffers:
        """Send the buffers, and wait for the result. Raises CallFailed."""
        return self.begin(method, buffers, mark=mark)()

    @abstractmethod
    def close(self) -> None: ...
