"""Collectives of one job epoch: tensors in, sums out, errors that say what happened (DESIGN section 5.5).

A thread owns engine and socket. Callers hand it arrays and get a callback from that thread when the sum is there; several
may be queued, and the next starts while the last drains.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from switchsum.host_agent import engine as _engine
from switchsum.host_agent.engine import Engine, EngineFailure, collective_tag
from switchsum.host_agent.errors import CollectiveMismatch, PeersMissing, SwitchSilent, SwitchSumError
from switchsum.host_agent.promptness import prompt
from switchsum.host_agent.transport import Transport, now_ns

logger = logging.getLogger(__name__)

Done = Callable[[SwitchSumError | None], None]


@dataclass
class _Pending:
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    description: str
    done: Done


class CollectiveQueue:
    """Runs the sums of one worker in the order in which they were submitted.

    `on_failure(failure, error)` is called once from the loop's thread when the engine gives up; it may return another
    error that says more (the controller knows what the other ranks were doing). All pending sums then end with that error,
    and so does every later one.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        *,
        on_failure: Callable[[EngineFailure, SwitchSumError], SwitchSumError],
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._waiting: deque[_Pending] = deque()
        self._running: dict[int, _Pending] = {}
        self._submitted = 0
        self._error: SwitchSumError | None = None
        self._drained = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._loop, name="switchsum-agent", daemon=True)
        self._thread.start()

    def submit(self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done) -> None:
        """Queue the sum of `source` (1-D contiguous float32, int32 or int64) over all workers into `target` (may be `source`).

        `description`, such as "all_reduce(sum) of float32[1000]", must be equal on all ranks. `done(error)` is called from
        the loop's thread, or from here if the queue has failed already.
        """
        with self._lock:
            error = self._error
            if error is None:
                prompt.__enter__()  # until it is done, see _loop
                self._waiting.append(_Pending(source, target, description, done))
                self._transport.wake()  # under the lock: close() cannot have closed the transport yet
        if error is not None:
            done(error)

    def fail(self, error: SwitchSumError) -> None:
        """End everything pending and everything to come with `error` (the epoch is over); from any thread."""
        with self._lock:
            if self._error is None:
                self._error = error
                self._transport.wake()

    @property
    def current(self) -> str:
        """The oldest unfinished collective, for messages: "#5 all_reduce(sum) of float32[1000]", or "none"."""
        with self._lock:
            if self._running:
                number = min(self._running)
                return f"#{number} {self._running[number].description}"
            if self._waiting:
                return f"#{self._submitted} {self._waiting[0].description}"
        return f"none (after {self._submitted} collectives)"

    def counters(self) -> dict[str, int]:
        """The engine's counters, see Engine.counters."""
        return self._engine.counters()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; returns whether that came true in time."""
        with self._drained:
            return self._drained.wait_for(lambda: not self._running and not self._waiting, timeout_s)

    def close(self) -> None:
        """Stop the thread and close the socket. What is still pending ends with an error."""
        self.fail(SwitchSumError("the process group was destroyed while this collective was pending"))
        self._thread.join()
        self._transport.close()

    def _loop(self) -> None:
        while True:
            ended, over = self._exchange()
            for pending, error in ended:
                pending.done(error)
                prompt.__exit__()
            if over:  # the engine must not run on: the tensors that it would write to are their owners' again
                return
            self._transport.run(self._engine)

    def _exchange(self) -> tuple[list[tuple[_Pending, SwitchSumError | None]], bool]:
        """Between two runs: give the engine what was submitted, take what is done. No callback runs under the lock.

        The second value tells that the queue has failed or is being closed; nothing is pending then, nor ever will be.
        """
        failure = self._engine.failure
        if failure is not None and self._error is None:
            failed = self._on_failure(failure, self._explain(failure))
            with self._lock:
                self._error = self._error or failed
        with self._lock:
            # A finished sum is complete and right, whatever happened after it.
            ended: list[tuple[_Pending, SwitchSumError | None]] = [
                (self._running.pop(number), None) for number in self._engine.take_finished()
            ]
            if self._error is not None:
                ended += [(pending, self._error) for pending in (*self._running.values(), *self._waiting)]
                self._running.clear()
                self._waiting.clear()
            while self._waiting and self._engine.has_room:
                pending = self._waiting.popleft()
                tag = collective_tag(self._submitted, pending.description)
                number = self._engine.submit(pending.source, pending.target, tag, now_ns())
                self._running[number] = pending
                self._submitted += 1
            self._drained.notify_all()
            return ended, self._error is not None

    def _explain(self, failure: EngineFailure) -> SwitchSumError:
        shared = self._engine.state[0][0]
        pending = self._running.get(failure.collective)
        what = f"#{failure.collective} {pending.description}" if pending else f"#{failure.collective}"
        place = f"slot {failure.slot}, phase {failure.phase}, job {shared.job} epoch {shared.epoch}"
        if failure.kind == _engine.MISMATCHED:
            return CollectiveMismatch(
                f"the ranks disagree about collective {what} ({place}): another rank sums something else there; "
                "all ranks must issue the same collectives in the same order, with equal sizes and dtypes"
            )
        if failure.kind == _engine.SWITCH_SILENT:
            return SwitchSilent(
                f"the switch has not answered for {shared.switch_timeout_ns / 1e9:g} s during {what} ({place}); "
                "check that it runs and that its address is reachable (SWITCHSUM_TIMEOUT sets the limit)"
            )
        if failure.kind == _engine.PEERS_MISSING:
            who = ", ".join(map(str, failure.missing)) if failure.heard else "unknown (the switch told nothing about it)"
            return PeersMissing(
                f"{what} made no progress for {shared.peer_timeout_ns / 1e9:g} s ({place}): missing ranks: {who}"
            )
        return SwitchSumError(f"the switch answered {what} ({place}) with a round this rank is not in; please report this")
