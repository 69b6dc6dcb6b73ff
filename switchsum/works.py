"""Handles of collectives that are under way (torch.distributed's Work), and the order in which Gloo's may begin."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from switchsum.host_agent.agent import Agent
from switchsum.host_agent.errors import SwitchSumError
from switchsum.host_agent.promptness import prompt

Future: TypeAlias = torch.futures.Future[list[torch.Tensor]]

# Once the job is over Gloo gets this long to finish what it may have in its sockets already: a rank that was done first and
# left takes nothing away from the others.
_GRACE_S = 5.0
_LOOK_S = 0.25  # how often a wait for Gloo looks whether the job still lives
_VERDICT_S = 3.0  # how long Gloo's own error waits for the controller's, which names the rank


def numbers_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A contiguous CPU tensor's own memory, which the caller keeps. For an empty tensor one zero: its sum shows that all came.

    Not by Tensor.numpy(), after which a tensor can never be resized.
    """
    if not tensor.numel():
        return np.zeros(1, np.int32)
    memory = (ctypes.c_byte * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return np.frombuffer(memory, str(tensor.dtype).removeprefix("torch."))


@contextlib.contextmanager
def as_made(tensor: torch.Tensor) -> Iterator[None]:
    """In which another thread may write to a tensor that was made under inference_mode, or that requires a gradient."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        yield


def divide(total: torch.Tensor, size: int) -> None:
    """Make a sum an average, in place; of integers truncated towards zero, as NCCL does it."""
    if total.is_floating_point():
        total.div_(size)
    else:
        total.div_(size, rounding_mode="trunc")


class SwitchSumWork(dist.Work):
    """A collective that ends with a future. The C++ reducer uses only that; Python callers wait."""

    def __init__(self, what: str, future: Future, failures: list[Exception] | None = None, agent: Agent | None = None) -> None:
        """`failures` gets the collective's exception, if there is one, before `future` ends. `agent`: given if Gloo runs it,
        which does not notice what the agent does."""
        super().__init__()
        self._what = what
        self._future = future
        self._failures = failures if failures is not None else []
        self._agent = agent
        self.limit: timedelta | None = None  # for waits that name none
        self._ended = threading.Event()
        future.add_done_callback(lambda _: self._ended.set())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. Raises what it failed with, or SwitchSumError after `timeout` (None or 0: never)."""
        if _seconds(timeout) is None:
            timeout = self.limit
        with prompt:
            # Ctrl-C ends this wait; it would not end the future's, which is C++.
            if self._agent is None:
                if not self._ended.wait(_seconds(timeout)):
                    raise _late(self._what, timeout)
            else:
                _wait_for_gloo(self._ended.wait, self._agent, self._what, timeout)
            try:
                self._future.wait()
            except RuntimeError as error:
                for failure in self._failures:  # the future's own error buries the sentence under C++ stack traces
                    raise _explained(failure, self._agent, self._what) from None
                raise _explained(error, self._agent, self._what) from None
        return True

    def get_future(self) -> Future:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What it failed with; None while it has not."""
        if self.is_completed():
            if self._failures:
                return self._failures[0]
            try:
                self._future.value()
            except RuntimeError as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        return list(self._future.value())

    def synchronize(self) -> None:
        self.wait()


class GlooWork(dist.Work):
    """A collective that Gloo is running."""

    def __init__(self, what: str, work: dist.Work, agent: Agent, ends: Callable[[], None]) -> None:
        """`ends` is called when somebody has waited for it."""
        super().__init__()
        self._what = what
        self._ends = ends
        self._work = work
        self._agent = agent

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. Raises what it failed with; SwitchSumError after `timeout`, or when the job has ended meanwhile."""

        def look(seconds: float) -> bool:
            try:
                self._work.wait(timedelta(seconds=seconds))
            except RuntimeError:
                return bool(self._work.is_completed())  # it failed; else only this look has ended
            return True

        try:
            _wait_for_gloo(look, self._agent, self._what, timeout)
            self._work.wait()
        except SwitchSumError:
            raise
        except RuntimeError as error:
            raise _explained(error, self._agent, self._what) from None
        finally:
            self._ends()
        return True

    def get_future(self) -> Future:
        return self._work.get_future()  # type: ignore[no-any-return]

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def synchronize(self) -> None:
        self.wait()


class WorkOfMany(dist.Work):
    """Several collectives with one handle."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; `timeout` holds for each. Raises what the first of them failed with."""
        for work in self._works:
            work.wait(*(() if timeout is None else (timeout,)))
        return True

    def get_future(self) -> Future:
        """Its value: the first tensor of each."""
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        return together.then(lambda finished: [each.value()[0] for each in finished.value()])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next((found for work in self._works if (found := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        self.wait()


def _seconds(timeout: timedelta | None) -> float | None:
    """Torch writes "no limit" as 0 or as -1 ms."""
    return timeout.total_seconds() if timeout is not None and timeout > timedelta() else None


def _late(what: str, timeout: timedelta | None) -> SwitchSumError:
    return SwitchSumError(f"{what} is not done after {_seconds(timeout):g} s; it goes on, and may be waited for again")


def _wait_for_gloo(look: Callable[[float], bool], agent: Agent, what: str, timeout: timedelta | None) -> None:
    """Until `look(seconds)`, which waits that long at most, says that it is done."""
    began = time.monotonic()
    seconds = _seconds(timeout)
    over: float | None = None
    while True:
        passed = time.monotonic() - began
        if look(_LOOK_S if seconds is None else max(min(_LOOK_S, seconds - passed), 0.001)):
            return
        if seconds is not None and time.monotonic() - began >= seconds:
            raise _late(what, timeout)
        failure = agent.failure
        if failure is not None:
            over = over or time.monotonic()
            if time.monotonic() - over > _GRACE_S:
                raise SwitchSumError(f"{what} was given up: {failure}")


def _explained(error: Exception, agent: Agent | None, what: str) -> Exception:
    """Gloo's word for a lost peer is "connection closed"; the job's says which rank it was."""
    if agent is None or isinstance(error, SwitchSumError):
        return error
    if "transport" not in str(error):  # of gloo/transport/tcp/pair.cc; else the caller has given Gloo what it does not take
        return error
    failure = agent.wait_failure(_VERDICT_S)
    if failure is None:
        return error
    return SwitchSumError(f"{what} failed: {failure} (Gloo said: {str(error).partition(chr(10))[0]})")


class _Item:
    """A collective of Gloo's that waits until all ranks are known to have come to it."""

    def __init__(self, start: Callable[[], dist.Work | None], ends: Callable[[], None]) -> None:
        self._start: Callable[[], dist.Work | None] | None = start
        self.ends = ends
        self.by_caller = False  # whether the caller begins it, and not our thread
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        self.error: SwitchSumError | None = None
        self.decided = threading.Event()
        self.future: Future = torch.futures.Future()
        self.failures: list[Exception] = []

    def decide(self, error: SwitchSumError | None) -> None:
        self.error = error
        self.decided.set()

    def begin(self) -> dist.Work | None:
        if self.error is not None:
            raise self.error
        # Not kept: it holds the group. If Gloo's own thread, which ends this collective, were the last to let go of that, the
        # group's destructor would wait in that thread for that thread, and end the process.
        start, self._start = self._start, None
        assert start is not None
        with self.modes():
            return start()

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Gloo works, and finishes, as it would in the thread that has issued it."""
        with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
            yield

    def end(self, finished: torch.futures.Future[Any] | None) -> None:
        self.ends()
        try:
            self.future.set_result([] if finished is None else finished.value())
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.ends()
        self.failures.append(error)
        self.future.set_exception(error)


class Agreement:
    """Begins Gloo's collectives, each when all ranks have come to it.

    Gloo checks nothing: where ranks call different collectives, or with different sizes, it hangs, gives garbage, or ends the
    process by an uncaught C++ exception. So the ranks first agree, by a one-packet sum under the collective's name, which also
    puts these collectives and the switch's own sums into one order. It costs a round trip; a caller that waits anyway makes
    it itself, others leave it to a thread.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._issuing = threading.Lock()  # names go out in the order of _items
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._under_way = 0  # collectives that our thread has begun, and that have not ended
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, what: str, start: Callable[[], dist.Work | None], *, waits: bool, ends: Callable[[], None]) -> dist.Work:
        """`start` begins the collective `what`; if it returns None, to have agreed is all (a barrier).

        `waits`: whether the caller waits for it. Then errors may come from here, else from the returned work. `ends` is called
        when the collective has ended, before anybody can see it.
        """
        item = _Item(start, ends)
        begun = False
        try:
            with self._issuing:
                with self._changed:
                    item.by_caller = waits and not self._items
                    self._items.append(item)
                    if not item.by_caller:
                        self._call_thread()
                self._agent.agree(what, item.decide, waits=item.by_caller)
            if not item.by_caller:
                return SwitchSumWork(what, item.future.then(lambda done: done.value()), item.failures, self._agent)
            with prompt:
                item.decided.wait()
            begun = True
            try:
                work = item.begin()
            finally:
                self._next()
        except BaseException:
            if item.by_caller and not begun:  # Ctrl-C: the others go on, so our thread does, too
                with self._changed:
                    item.by_caller = False
                    self._call_thread()
            else:
                ends()
            raise
        if work is not None:
            return GlooWork(what, work, self._agent, ends)
        item.end(None)
        return SwitchSumWork(what, item.future)

    def settle(self, timeout_s: float) -> None:
        """Wait until all collectives that were issued have begun. Raises SwitchSumError if they have not after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._items, timeout_s):
                raise SwitchSumError(f"collectives that were issued before have not begun after {timeout_s:g} s")

    def finish(self) -> None:
        """Let what was issued end, for a few seconds: Gloo's threads call back, and no Python may be left when they do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._items and not self._under_way, _GRACE_S)

    def close(self) -> None:
        """End the thread. The agent must have been closed, so that everything is decided."""
        with self._changed:
            self._closed = True
            for item in self._items:
                if not item.decided.is_set():  # Ctrl-C came before the ranks were asked
                    item.decide(SwitchSumError("the process group was destroyed while this collective was pending"))
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _call_thread(self) -> None:
        """There is something for our thread; called under _changed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="switchsum-gloo", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _next(self) -> None:
        with self._changed:
            self._items.popleft()
            self._changed.notify_all()

    def _ended(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed if not self._items else not self._items[0].by_caller)
                if not self._items:
                    return
                item = self._items[0]
            item.decided.wait()
            try:
                work = item.begin()
                if work is None:
                    item.end(None)
                else:
                    with self._changed:
                        self._under_way += 1
                    _end_with(item, work, self._ended)
            except Exception as error:  # whatever it is, it belongs to whoever waits for this collective
                item.fail(error)
            self._next()
            del item


def _end_with(item: _Item, work: dist.Work, then: Callable[[], None]) -> None:
    """`work` ends `item`. It is held until then: Gloo's collective ends with its handle."""
    try:
        future = work.get_future()
    except RuntimeError:  # a reduce_scatter of uneven parts, for one, can only be waited for

        def wait() -> None:
            try:
                with item.modes():
                    work.wait()
                item.end(None)
            except Exception as error:
                item.fail(error)
            finally:
                then()

        threading.Thread(target=wait, name="switchsum-gloo-wait", daemon=True).start()
        return

    def end(finished: torch.futures.Future[Any], work: dist.Work = work) -> None:
        try:
            item.end(finished)
        finally:
            then()

    future.add_done_callback(end)
