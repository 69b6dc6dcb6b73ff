"""Collectives of one job epoch: tensors in, sums out, errors that say what happened (DESIGN section 5.5).

One thread at a time drives engine and socket: the queue's own while sums are pending, or a caller that has nothing else to do
than wait for its sum (`run`). That spares two changes of threads, which on a busy machine take longer than the sum. Several
sums may be queued, and the next starts while the last drains.

When the switch is lost and there is a way around it (detour.py), the queue's thread takes over: it finishes what is under way
with the other ranks, then sums one after the other without the switch, and before each the ranks tell one another which one it
is and whether they could go on in the switch: if all can, in the same epoch, all do, from this sum on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.host_agent import engine as _engine
from switchsum.host_agent.detour import Detour, go_around, mismatch, settle
from switchsum.host_agent.engine import Engine, EngineFailure, collective_tag
from switchsum.host_agent.errors import CollectiveMismatch, PeersMissing, SwitchSilent, SwitchSumError
from switchsum.host_agent.promptness import prompt
from switchsum.host_agent.transport import Transport, now_ns

_ASK_S = 0.5  # how often ranks that wait for the switch ask each other whether it is back

logger = logging.getLogger(__name__)

Done = Callable[[SwitchSumError | None], None]


@dataclass(eq=False)
class _Pending:
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    description: str
    done: Done
    place: int = 0
    inline: bool = False  # whether `done` runs nobody else's code, and so may be called by whoever drives
    held: bool = False  # whether the numbers are still on their way into `source`
    number: int | None = None  # the engine's
    told: bool = False


class _Tellers:
    """Threads that call back, one at a time as long as callbacks are short.

    A callback may wait for another sum (PyTorch's PowerSGD hook does), so whoever drives must not run it, and one that takes
    longer than PATIENCE_S must not keep the others waiting: then another thread goes on.
    """

    PATIENCE_S = 0.002
    FAREWELL_S = 5.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[tuple[_Pending, SwitchSumError | None]] = deque()
        self._since: float | None = None  # when the callback began that others wait for; None while there is none
        self._idle = 0  # threads that wait for work, or for patience to end
        self._inside: set[int] = set()  # threads that are in a callback
        self._closed = False

    def tell(self, pending: _Pending, error: SwitchSumError | None) -> None:
        with self._changed:
            self._work.append((pending, error))
            if self._idle:
                self._changed.notify()
            else:
                threading.Thread(target=self._run, name="switchsum-callbacks", daemon=True).start()

    def close(self) -> None:
        """Wait until all is told, but not for callbacks that do not end nor for one that calls this; then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            mine = {threading.get_ident()}
            self._changed.wait_for(lambda: not self._work and self._inside <= mine, self.FAREWELL_S)

    def _run(self) -> None:
        while (work := self._take()) is not None:
            (pending, error), began = work
            try:
                pending.done(error)
            except Exception:  # the next callback must run all the same
                logger.exception("a callback of %s failed", pending.description)
            prompt.__exit__()
            del work, pending  # else the tensors would live until the next sum
            with self._changed:
                self._inside.discard(threading.get_ident())
                if self._since == began:
                    self._since = None
                self._changed.notify_all()

    def _take(self) -> tuple[tuple[_Pending, SwitchSumError | None], float] | None:
        """What this thread has to tell next, and the time; None at the end."""
        with self._changed:
            self._idle += 1
            try:
                while True:
                    now = time.monotonic()
                    if self._work and (self._since is None or now - self._since > self.PATIENCE_S):
                        self._since = now
                        self._inside.add(threading.get_ident())
                        return self._work.popleft(), now
                    if self._closed and not self._work:
                        return None
                    self._changed.wait(self.PATIENCE_S if self._work else None)
            finally:
                self._idle -= 1


class CollectiveQueue:
    """Runs the sums of one worker in the order in which they were submitted.

    `on_failure(failure, error)` is called once, by whoever drives, when the engine gives up, or (failure None) something else
    went wrong; it may return another error that says more (the controller knows what the other ranks were doing). All pending
    sums then end with that error, and so does every later one.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        *,
        on_failure: Callable[[EngineFailure | None, SwitchSumError], SwitchSumError],
        detour: Detour | None = None,
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._on_failure = on_failure
        self._detour = detour
        self._lost: SwitchSumError | None = None  # why sums do not go through the switch now
        self._past: Counter[str] = Counter()  # of engines of earlier epochs, and of sums without a switch
        self.generation = 0  # how often the switch was lost
        self._lock = threading.Lock()
        # The queue's thread sleeps unless it is needed: each time it wakes for nothing costs more than a small sum.
        self._needed = threading.Condition(self._lock)
        self._drained = threading.Condition(self._lock)
        self._driver: int | None = None  # the thread that drives
        self._closing = False
        self._waiting: deque[_Pending] = deque()
        self._running: dict[int, _Pending] = {}
        self._ended: deque[tuple[_Pending, SwitchSumError | None]] = deque()  # to be told
        self._error: SwitchSumError | None = None
        self._tellers = _Tellers()
        self._thread = threading.Thread(target=self._loop, name="switchsum-agent", daemon=True)
        self._thread.start()

    def submit(
        self,
        source: npt.NDArray[Any],
        target: npt.NDArray[Any],
        description: str,
        done: Done,
        place: int = 0,
        *,
        inline: bool = False,
    ) -> None:
        """Queue the sum of `source` (1-D contiguous float32, int32 or int64) over all workers into `target` (may be `source`).

        `description`, such as "all_reduce(sum) of float32[1000]", must be equal on all ranks. `done(error)` is called in a
        thread of its own, or from here if the queue has failed already; with `inline`, which is for a `done` that runs no code
        of others, by whoever drives. `place`: see Engine.submit.
        """
        with self._lock:
            error = self._error
            if error is None:
                self._append(_Pending(source, target, description, done, place, inline))
        if error is not None:
            done(error)

    def hold(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0
    ) -> Callable[[], None]:
        """As `submit`, for numbers that are not there yet: this sum, and all that are submitted after it, wait until the
        function that this returns has been called."""
        pending = _Pending(source, target, description, done, place, held=True)
        with self._lock:
            error = self._error
            if error is None:
                self._append(pending)
        if error is not None:
            done(error)

        def release() -> None:
            with self._lock:
                pending.held = False
                self._call_driver()

        return release

    def run(self, source: npt.NDArray[Any], target: npt.NDArray[Any], description: str, done: Done, place: int = 0) -> None:
        """As `submit`, and drive until this sum has ended, if nothing else is pending: `done` has been called then.

        `done` must not run code of others. If something is pending, the caller finds out as it would after `submit`. An
        exception on the way, such as Ctrl-C, leaves the sum to the queue's thread.
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
                    self._append(_Pending(source, target, description, finish, place, inline=True))
            over = not alone
            while not (ended or over):
                over = self._drive()
        finally:
            if alone:
                self._stop_driving()
        if not alone:
            self.submit(source, target, description, done, place)

    @property
    def _pending(self) -> bool:
        return bool(self._waiting or self._running or self._ended)

    def _stop_driving(self) -> None:
        with self._lock:
            self._driver = None
            if self._pending or self._closing or self._is_lost:
                self._needed.notify()
            if not self._pending:
                self._drained.notify_all()

    @property
    def _is_lost(self) -> bool:
        return self._lost is not None and self._error is None

    def _append(self, pending: _Pending) -> None:
        """Called under the lock, so that close() cannot have closed the transport."""
        prompt.__enter__()  # until it is told, see _drive and _Tellers
        self._waiting.append(pending)
        self._call_driver()

    def _call_driver(self) -> None:
        """Something has changed; called under the lock."""
        if self._driver is None or self._is_lost:
            self._needed.notify()
        elif self._driver != threading.get_ident():
            self._transport.wake()

    def fail(self, error: SwitchSumError) -> None:
        """End everything pending and everything to come with `error` (the epoch is over); from any thread."""
        with self._lock:
            if self._error is None:
                self._call_driver()
                self._error = error

    def lose_switch(self, reason: SwitchSumError) -> None:
        """Go on without the switch, if there is a way, else fail; from any thread."""
        if self._detour is None:
            self.fail(reason)
            return
        with self._lock:
            if self._lost is None:
                self._call_driver()
                self._lost = reason

    @property
    def path(self) -> str:
        """Where sums go now: "switch" or "gloo", or "none" when no sum can be had any more."""
        if self._error is not None:
            return "none"
        return "switch" if self._lost is None else "gloo"

    def stalled_s(self) -> float:
        """How long sums have been under way in the switch without any progress."""
        return 0.0 if self._lost is not None else self._engine.stalled_ns(now_ns()) / 1e9

    @property
    def engine(self) -> Engine:
        """The engine of the present epoch, or of the last one while the switch is lost."""
        return self._engine

    @property
    def error(self) -> SwitchSumError | None:
        """Why no sum can be had any more; None while they can."""
        return self._error

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
        """The engines' counters of all epochs, see Engine.counters; `detours`, `returns`: how often the switch was lost, and
        back; `gloo_sums`, `gloo_bytes`: what was summed without it."""
        with self._lock:
            past = Counter(self._past)
            past.update(self._engine.counters())
        return {**dict.fromkeys(("detours", "returns", "gloo_sums", "gloo_bytes"), 0), **past}

    def _log_fields(self) -> dict[str, object]:
        return {"epoch": self._engine.epoch, "rank": self._engine.worker}

    def gauges(self) -> dict[str, float]:
        """The engine's, see Engine.gauges; and `collectives_pending`: sums that have been issued and have not ended."""
        return {**self._engine.gauges(), "collectives_pending": len(self._waiting) + len(self._running)}

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is pending; returns whether that came true in time."""
        with self._drained:
            return self._drained.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Stop the thread and close the socket. What is still pending ends with an error."""
        self.fail(SwitchSumError("the process group was destroyed while this collective was pending"))
        with self._needed:
            self._closing = True
            self._needed.notify()
        self._thread.join()
        self._tellers.close()
        self._transport.close()

    def _loop(self) -> None:
        """The queue's thread: drives whenever sums are pending and no caller does."""
        while True:
            with self._needed:
                self._needed.wait_for(lambda: self._driver is None and (self._pending or self._closing or self._is_lost))
                if not self._pending and not self._is_lost:
                    return
                self._driver = threading.get_ident()
            try:
                while self._pending or self._is_lost:
                    if self._is_lost:
                        self._go_around()
                    else:
                        self._drive()
            finally:
                self._stop_driving()

    def _go_around(self) -> None:
        """From the switch's loss until its return, or until nothing more can be summed."""
        assert self._detour is not None
        assert self._lost is not None
        peers = self._detour.peers
        self.generation += 1
        self._past["detours"] += 1
        try:
            self._detour.begin(self.generation, self._lost)
            peers.meet(self.generation, lambda: self._error)
            self._regroup(settle(self._engine, self._running, peers))
            self._detour.met()
            self._tell_ended()
            while not self._sum_around(self._detour):
                self._tell_ended()
        except Exception as error:
            if not isinstance(error, SwitchSumError):
                logger.exception("the sums without the switch failed", extra=self._log_fields())
                error = SwitchSumError(f"a sum could not be run: {type(error).__name__}: {error}")
            self.fail(self._on_failure(None, error))
        finally:
            peers.part()
        # What had to be told is told by the next _drive.

    def _regroup(self, finished: set[int]) -> None:
        """All ranks have finished these; of the others some rank has not come to them, and they are still to be summed."""
        with self._lock:
            if self._waiting and self._waiting[0] in self._running.values():  # Ctrl-C came between, see _exchange
                self._waiting.popleft()
            for number, pending in sorted(self._running.items(), key=lambda item: item[0], reverse=True):
                if number in finished:
                    self._ended.appendleft((pending, None))
                else:
                    pending.number = None
                    self._waiting.appendleft(pending)
            self._running.clear()

    def _sum_around(self, detour: Detour) -> bool:
        """The next sum, without the switch, when it has come. Returns whether that is over: all can go on in the switch, or no
        sum can be had any more."""
        deadline = time.monotonic() + detour.patience_s
        number = self._past["gloo_sums"]
        while True:
            with self._needed:
                self._needed.wait_for(lambda: self._error or self._can_begin, _ASK_S if detour.waits else None)
                if self._error is not None:
                    return True
                pending = None if detour.waits else self._waiting[0]
            tag = collective_tag(number, pending.description) if pending is not None else 0
            ready = detour.ready()
            told = np.array([tag, -tag, ready, -ready], np.int64)
            detour.peers.maximum(told)
            if told[2] == -told[3] != 0:
                engine = detour.enter(ready)
                with self._lock:
                    self._past.update(self._engine.counters())
                    self._past["returns"] += 1
                    self._engine, self._lost = engine, None
                detour.entered()
                return True
            if pending is not None:
                break
            if time.monotonic() > deadline:
                raise SwitchSumError(f"the switch was not back after {detour.patience_s:g} s ({self._lost})")
        if told[0] != -told[1]:
            raise mismatch(number, pending.description, detour.peers)
        go_around(pending, detour.peers)
        with self._lock:
            self._ended.append((self._waiting.popleft(), None))
        self._past["gloo_sums"] += 1
        self._past["gloo_bytes"] += pending.source.nbytes
        return False

    @property
    def _can_begin(self) -> bool:
        return bool(self._waiting) and not self._waiting[0].held

    def _drive(self) -> bool:
        """Hand over and take back, then move packets for a while; returns whether the caller's driving is over: the queue has
        failed, is being closed, or has lost the switch."""
        try:
            over = self._exchange()
        except Exception as error:  # such as no memory: whatever it is, all that is pending must end, here and on other ranks
            logger.exception("the queue of sums failed", extra=self._log_fields())
            self.fail(self._on_failure(None, SwitchSumError(f"a sum could not be run: {type(error).__name__}: {error}")))
            over = self._exchange()
        told = bool(self._ended)
        self._tell_ended()
        if told or over:  # after a failure the engine must not run on: the tensors are their owners' again
            return over
        self._transport.run(self._engine)
        return False

    def _tell_ended(self) -> None:
        while self._ended:
            pending, problem = self._ended.popleft()
            if not pending.told:
                pending.told = True
                if pending.inline:
                    pending.done(problem)
                    prompt.__exit__()
                else:
                    self._tellers.tell(pending, problem)
        if self._lost is not None:  # the queue's thread goes on driving, and drain() waits
            with self._lock:
                if not self._pending:
                    self._drained.notify_all()

    def _exchange(self) -> bool:
        """Between two runs: give the engine what was submitted, take what is done. No callback runs under the lock.

        Returns whether the queue has failed or is being closed (all has ended then, and what comes ends at once), or has lost
        the switch (what is under way stays so).

        Ctrl-C may end it at any point, and another thread does it again: so each step may be done twice.
        """
        failure = self._engine.failure
        if failure is not None and failure.kind == _engine.SWITCH_SILENT and self._detour is not None:
            self._lost = self._lost or self._explain(failure)
        elif failure is not None and self._error is None:
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
            if self._is_lost:
                return True
            while self._waiting and self._engine.has_room and not self._waiting[0].held:
                pending = self._waiting[0]
                if pending.number is None or pending.number == self._engine.submitted:
                    pending.number = self._engine.submitted
                    self._running[pending.number] = pending
                    tag = collective_tag(pending.number, pending.description)
                    self._engine.submit(pending.source, pending.target, tag, now_ns(), pending.place)
                self._waiting.popleft()
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
                f"{what} made no progress within the timeout of {shared.peer_timeout_ns / 1e9:g} s ({place}): "
                f"missing ranks: {who}"
            )
        return SwitchSumError(f"the switch answered {what} ({place}) with a round this rank is not in; please report this")
