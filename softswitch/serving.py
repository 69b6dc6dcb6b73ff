"""The thread that moves packets: a batch from the ports, one call into the compiled program, its answers to the ports.

All three steps release the GIL.
"""

import contextlib
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from switchsum.softswitch.packets import Arrivals, Departures
from switchsum.softswitch.sockets import WOKEN, make_counts, traffic_of
from switchsum.softswitch.stages import Stages

_Longs = npt.NDArray[np.int64]

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # Python's socket module has no names for them
_SOCKET_BUFFER_BYTES = 16 << 20
_DROP_PORT = 511  # v1model: the egress port of a dropped packet

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Traffic:
    """What has passed one port, or all; bytes are those of the datagrams or frames."""

    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int


class PacketProcessor(Protocol):
    """The dataplane as the ports see it."""

    def forward(self, arrivals: Arrivals, now_us: int) -> Departures: ...


class Intake(Protocol):
    """Where batches come from: `datagrams.Intake` or `frames.Intake`."""

    arrivals: Arrivals

    def receive(self) -> int:
        """Fill `arrivals`; returns their count, or WOKEN when it was woken up to end."""
        ...


class Outlet(Protocol):
    """Where they go: `datagrams.Outlet` or `frames.Outlet`."""

    def send(self, leaving: Departures) -> None: ...


class Ports(ABC):
    """All ports of one switch and the thread that serves them; the subclass opens the sockets and knows what travels there."""

    def __init__(self, dataplane_provider: Callable[[], PacketProcessor | None], sockets: dict[int, socket.socket]) -> None:
        self._provider = dataplane_provider
        self._sockets = sockets
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._counts: _Longs = make_counts(self.count_names)
        self.batches = 0  # that the thread has taken from the ports
        self._stages: Stages | None = None
        self._thread = threading.Thread(target=self._serve, name="switch-ports", daemon=True)

    # What is counted beside the traffic; DROPPED_NO_PIPELINE and INTERNAL_ERRORS must be among them.
    count_names: type[IntEnum]

    @abstractmethod
    def _open(self, wake: socket.socket, counts: _Longs) -> tuple[Intake, Outlet]:
        """Both ends of the loop, for the serving thread."""

    @property
    def statistics(self) -> dict[str, int]:
        """Packets and bytes received and sent by all ports, packets dropped by reason: `count_names` in lower case."""
        traffic = Traffic(*map(int, traffic_of(self._counts, self.count_names).sum(axis=0)))
        return {**vars(traffic), **{count.name.lower(): int(self._counts[count]) for count in self.count_names}}

    @property
    def traffic(self) -> dict[int, Traffic]:
        """What has passed each port, by its number."""
        counts = traffic_of(self._counts, self.count_names)
        return {number: Traffic(*map(int, counts[number])) for number in self._sockets}

    def measure(self) -> Stages:
        """Measure the stages from the next batch on. What is returned changes while the thread works."""
        self._stages = Stages()
        return self._stages

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the sockets. May be called more than once, and without start()."""
        if self._thread.ident is not None:
            with contextlib.suppress(OSError):  # closed before
                self._wake_writer.send(b"x")
            self._thread.join()
        for opened in (*self._sockets.values(), self._wake_reader, self._wake_writer):
            opened.close()

    def _serve(self) -> None:
        started_ns = time.monotonic_ns()
        intake, outlet = self._open(self._wake_reader, self._counts)
        no_pipeline = self.count_names["DROPPED_NO_PIPELINE"]
        internal_errors = self.count_names["INTERNAL_ERRORS"]
        stages: Stages | None = None
        while True:
            if stages is not self._stages:
                stages = self._stages
                assert stages is not None
                stages.start()
            count = intake.receive()
            if count == WOKEN:
                return
            if stages:
                stages.close_stage("receive")
                stages.batches += 1
                stages.packets += count
            if not count:
                continue
            self.batches += 1
            dataplane = self._provider()
            if dataplane is None:
                self._counts[no_pipeline] += count
                continue
            now_us = (time.monotonic_ns() - started_ns) // 1000
            try:
                leaving = dataplane.forward(intake.arrivals, now_us)
                if stages:
                    stages.close_stage("program")
                outlet.send(leaving)
                if stages:
                    stages.close_stage("send")
            except Exception:  # a packet must never end the thread: whoever sent it could switch the switch off
                self._counts[internal_errors] += 1
                _log.exception("a batch of packets was lost")


def check_port_numbers(numbers: list[int]) -> None:
    """Raise ValueError unless these are ports that a v1model switch can have."""
    if not numbers:
        raise ValueError("a switch needs at least one port")
    for number in numbers:
        if not 0 <= number < _DROP_PORT:
            raise ValueError(f"port {number}: v1model's ports are 0 to {_DROP_PORT - 1}; {_DROP_PORT} means drop")


def enlarge_buffers(opened: socket.socket) -> None:
    """A burst from every worker must fit; without the privilege the kernel's limit has to do."""
    for forced, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            opened.setsockopt(socket.SOL_SOCKET, forced, _SOCKET_BUFFER_BYTES)
        except OSError:
            opened.setsockopt(socket.SOL_SOCKET, plain, _SOCKET_BUFFER_BYTES)
