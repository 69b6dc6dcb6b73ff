"""Collectives of one job epoch: tensors in, sums out, errors that say what happened (DESIGN section 5.5).

One thread at a time drives engine and socket: the queue's own while sums are pending, or a caller that has nothing else to do
than wait for its sum (`run`). That spares two changes of threads, which on a busy machine take longer than the sum. Several
sums may be queued, and the next starts while the last drains.
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
    number: int | None = None  # the engine's
    told: bool = False


class CollectiveQueue:
    """Runs the sums of one worker in the order in which they were submitted.

    `on_failure(failure, error)` is called once, by whoever drives, when the engine gives up; it may return another error that
    says more (the controller knows what the other ranks were doing). All pending sums then end with that error, and so does
    every later one.
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
        self._changed = threading.Condition(self._lock)  # something was submitted or ended, or nobody drives any more
        self._driver: int | None = None  # the thread that drives
        self._closing = False
        self._waiting: deque[_Pending] = deque()
        self._running: dict[int, _Pending] = {}
        self._ended: deque[tuple[_Pending, SwitchSumError | None]] = deque()  # to be told
        self._error: SwitchSumError | None = None
        self._thread = threading.Thread(target=self._loop, name="switchsum-agent", daemon=True)
        self._thread.start()

    def submit(self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done) -> None:
        """Queue the sum of `source` (1-D contiguous float32, int32 or int64) over all workers into `target` (may be `source`).

        `description`, such as "all_reduce(sum) of float32[1000]", must be equal on all ranks. `done(error)` is called by
        whoever drives, or from here if the queue has failed already.
        """
        with self._lock:
            error = self._error
            if error is None:
                self._append(_Pending(source, target, description, done))
        if error is not None:
            done(error)

    def run(self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done) -> None:
        """As `submit`, and drive until this sum has ended, if nothing else is pending: `done` has been called then.

        Else the caller finds out as it would after `submit`. An exception on the way, such as Ctrl-C, leaves the sum to the
        queue's thread.
        """
        ended: list[SwitchSumError | None] = []

        def finish(error: SwitchSumError | None) -> None:
            ended.append(error)
            done(error)

        alone = False
        try:
            with self._lock:
                alone = self._error is None and self._driver is None and not self._pending
                if alone:
                    self._driver = threading.get_ident()
                    self._append(_Pending(source, target, description, finish))
            over = not alone
            while not (ended or over):
                over = self._drive()
        finally:
            if alone:
                self._stop_driving()
        if not alone:
            self.submit(source, target, description, done)

    @property
    def _pending(self) -> bool:
        return bool(self._waiting or self._running or self._ended)

    def _stop_driving(self) -> None:
        with self._lock:
            self._driver = None
            self._changed.notify_all()

    def _append(self, pending: _Pending) -> None:
        """Called under the lock, so that close() cannot have closed the transport."""
        prompt.__enter__()  # until it is done, see _exchange
        self._waiting.append(pending)
        if self._driver is not None:
            self._transport.wake()
        self._changed.notify_all()

    def fail(self, error: SwitchSumError) -> None:
        """End everything pending and everything to come with `error` (the epoch is over); from any thread."""
        with self._lock:
            if self._error is None:
                self._error = error
                if self._driver is not None:
                    self._transport.wake()
                self._changed.notify_all()

    @property
    def current(self) -> str:
        """The oldest unfinished collective, for messages: "#5 all_reduce(sum) of float32[1000]", or "none"."""
        with self._lock:
            if self._running:
                number = min(self._running)
                return f"#{number} {self._running[number].description}"
            if self._waiting:
                return f"#{self._engine.submitted} {self._waiting[0].description}"
        return f"none (after {self._engine.submitted} collectives)"

    def counters(self) -> dict[str, int]:
        """The engine's counters, see Engine.counters."""
        return self._engine.counters()

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; returns whether that came true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Stop the thread and close the socket. What is still pending ends with an error.

        Raises SwitchSumError when called by a callback of a sum: whoever drives cannot wait for itself.
        """
        if self._driver == threading.get_ident():
            raise SwitchSumError("a process group cannot be destroyed by a callback of one of its own sums; do it outside")
        self.fail(SwitchSumError("the process group was destroyed while this collective was pending"))
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._transport.close()

    def _loop(self) -> None:
        """The queue's thread: drives whenever sums are pending and no caller does."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._driver is None and (self._pending or self._closing))
                if not self._pending:
                    return
                self._driver = threading.get_ident()
            try:
                while self._pending:
                    self._drive()
            finally:
                self._stop_driving()

    def _drive(self) -> bool:
        """Hand over and take back, then move packets for a while; returns whether the queue has failed or is being closed."""
        over = self._exchange()
        told = bool(self._ended)
        while self._ended:
            pending, error = self._ended[0]
            if not pending.told:
                pending.told = True
                prompt.__exit__()
                pending.done(error)
            self._ended.popleft()
        if told or over:  # after a failure the engine must not run on: the tensors are their owners' again
            return over
        self._transport.run(self._engine)
        return False

    def _exchange(self) -> bool:
        """Between two runs: give the engine what was submitted, take what is done. No callback runs under the lock.

        Returns whether the queue has failed or is being closed; all has ended then, and what comes ends at once.

        Ctrl-C may end it at any point, and another thread does it again: so each step may be done twice.
        """
        failure = self._engine.failure
        if failure is not None and self._error is None:
            failed = self._on_failure(failure, self._explain(failure))
            with self._lock:
                self._error = self._error or failed
        with self._lock:
            # A finished sum is complete and right, whatever happened after it.
            for number in self._engine.finished:
                if number in self._running:
                    self._ended.append((self._running[number], None))
                    del self._running[number]
            self._engine.forget_finished()
            if self._error is not None:
                self._ended += [(pending, self._error) for pending in (*self._running.values(), *self._waiting)]
                self._running.clear()
                self._waiting.clear()
            while self._waiting and self._engine.has_room:
                pending = self._waiting[0]
                if pending.number is None or pending.number == self._engine.submitted:
                    pending.number = self._engine.submitted
                    self._running[pending.number] = pending
                    tag = collective_tag(pending.number, pending.description)
                    self._engine.submit(pending.source, pending.target, tag, now_ns())
                self._waiting.popleft()
            self._changed.notify_all()
            return self._error is not None

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
