"""One worker's membership in a job, from join to leave: socket, engine, controller and queue put together."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.host_agent import engine as _engine
from switchsum.host_agent.collective import CollectiveQueue, Done
from switchsum.host_agent.engine import Engine, EngineFailure
from switchsum.host_agent.errors import EpochEnded, SwitchSumError
from switchsum.host_agent.job_client import JobClient
from switchsum.host_agent.prepare import prepare
from switchsum.host_agent.transport import Transport

VERDICT_WAIT_S = 3.0  # how long a failed rank waits for the controller's account of what the others were doing
DRAIN_S = 10.0  # how long close() waits for sums that are still under way


class Agent:
    """A joined worker. Make one with `Agent.join`."""

    def __init__(self, client: JobClient, queue: CollectiveQueue, engine: Engine, lanes: int) -> None:
        self._client = client
        self._queue = queue
        self._engine = engine
        self._suffix = "" if lanes == 32 else f" in {lanes}-bit lanes"  # ranks that disagree on it must be told
        self._closed = threading.Lock()

    @classmethod
    def join(
        cls,
        *,
        controller: str,
        job_name: str,
        rank: int,
        world_size: int,
        data_address: str = "",
        slots: int = 0,
        elements: int = 0,
        lanes: int = 32,
        timeout_s: float = 30.0,
        peer_timeout_s: float = 1800.0,
    ) -> Agent:
        """Join a job and wait until all its ranks are there.

        `controller`: "HOST:PORT"; `job_name`: equal on all ranks of the job; `data_address`: this host's IPv4 address towards
        the switch, "" for the one that leads to the controller; `slots`, `elements`: 0 for the controller's choice; `lanes`:
        bits of a lane of large float32 sums (Engine);
        `timeout_s`: bound for joining and for a silent switch; `peer_timeout_s`: longest wait for other ranks in one sum.
        Raises SwitchSumError's family, each with the reason.
        """
        prepare(tell=rank == 0)  # before the barrier: whoever compiles must not keep the others waiting inside a sum
        loopback = controller.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")
        transport = Transport(data_address or ("127.0.0.1" if loopback else ""))
        client = JobClient(controller)
        try:
            joined = client.join(
                job_name=job_name,
                rank=rank,
                world_size=world_size,
                host=socket.gethostname(),
                pid=os.getpid(),
                data_address=data_address,
                data_port=transport.local_port,
                slots=slots,
                elements=elements,
                timeout_s=timeout_s,
            )
            transport.connect(joined.switch_address, joined.switch_port)
            engine = Engine(
                job=joined.job,
                epoch=joined.epoch,
                worker=joined.worker,
                world_size=world_size,
                slots=joined.slots,
                elements=joined.elements,
                lanes=lanes,
                switch_timeout_ns=int(timeout_s * 1e9),
                peer_timeout_ns=int(peer_timeout_s * 1e9),
            )
        except BaseException:
            client.close()
            transport.close()
            raise

        def on_failure(failure: EngineFailure | None, error: SwitchSumError) -> SwitchSumError:
            """Tell the controller; its account names all ranks concerned, ours only what this rank saw."""
            kind = _engine.NO_FAILURE if failure is None else failure.kind
            if kind == _engine.MISMATCHED:
                client.report_mismatch(str(error), queue.current)
            elif kind == _engine.SWITCH_SILENT:
                client.report_switch_silent(str(error), queue.current)
            else:
                client.report_failure(str(error), queue.current)
            ended = client.wait_ended(VERDICT_WAIT_S)
            return error if ended is None else EpochEnded(f"{ended} (this rank: {error})")

        queue = CollectiveQueue(engine, transport, on_failure=on_failure)
        client.start(on_ended=queue.fail, describe=lambda: queue.current)
        return cls(client, queue, engine, lanes)

    def all_reduce(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0
    ) -> None:
        """Sum over all workers, see CollectiveQueue.submit."""
        self._queue.submit(source, target, description + self._suffix, done, place)

    def all_reduce_now(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0
    ) -> None:
        """As all_reduce, by a caller that waits for it anyway, see CollectiveQueue.run."""
        self._queue.run(source, target, description + self._suffix, done, place)

    def all_reduce_when_ready(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done
    ) -> Callable[[], None]:
        """As all_reduce, for numbers that are still on their way into `source`, see CollectiveQueue.hold."""
        return self._queue.hold(source, target, description + self._suffix, done)

    def agree(self, description: str, done: Done, *, waits: bool) -> None:
        """Find out whether all workers' next collective is this one: a sum of one number under its name.

        `done(error)` is called when all have come, or with an error that tells which rank does what. `waits`: whether the
        caller waits for that, as all_reduce_now. `done` must not run code of others.
        """
        ballot = np.zeros(1, np.int32)
        if waits:
            self._queue.run(ballot, ballot, description, done)
        else:
            self._queue.submit(ballot, ballot, description, done, inline=True)

    @property
    def failure(self) -> SwitchSumError | None:
        """Why this job is over; None while it is not."""
        return self._queue.error

    def wait_failure(self, timeout_s: float) -> SwitchSumError | None:
        """Wait for such a reason; None if none came in time."""
        deadline = time.monotonic() + timeout_s
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.failure

    def counters(self) -> dict[str, int]:
        """Packets, bytes and events since the join, see Engine.counters."""
        return self._queue.counters()

    def start_profile(self) -> None:
        """Begin to count where the data path's time goes, see Engine.start_profile."""
        self._engine.start_profile()

    def end_profile(self) -> dict[str, float]:
        """Seconds of each stage since start_profile, see Engine.end_profile."""
        return self._engine.end_profile()

    def close(self) -> None:
        """Finish what is under way (for at most a few seconds), leave the job, free everything. May be called twice."""
        if not self._closed.acquire(blocking=False):
            return
        self._queue.drain(DRAIN_S)
        self._queue.close()
        self._client.leave()
        self._client.close()
