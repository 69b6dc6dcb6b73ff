"""The ranks of a group among themselves, without the switch: over a Gloo group of its own, met through the group's store.

Gloo notices a peer whose process ends, but waits for one that hangs; nor does it name anybody. So while the group is met, each
rank counts in the store, and a rank that waits looks whether the others do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from switchsum.host_agent.errors import PeersLost, SwitchSumError

_STORE_S = 1.0  # the threads that ask the store have leases to keep
_BEAT_S = 0.5
_SILENCE_S = 5.0  # a rank that does not count for so long is lost; also how long a meeting waits for whoever does not come
_MEETING_S = 20.0  # ranks find out about a lost switch at different times: three leases, and a store that is slow
_FAREWELL_S = 2.0
_LOOK_S = 0.1
_FOREVER = timedelta(days=24)  # we end waits ourselves; Gloo adds milliseconds of it in 32 bits


_abandoned: list[Any] = []  # what Gloo's threads may still use when nobody else does


class _BoundedStore:
    """A store's calls in a thread of their own, so that none waits for longer than it may: PyTorch's wait for ever, once the
    store's host is out of reach."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._asked: queue.SimpleQueue[tuple[str, tuple[Any, ...], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._answer, name="switchsum-store", daemon=True).start()

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """The answer; raises RuntimeError when there is none within `limit_s`, or what the store raised."""
        answered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put((method, arguments, answered))
        try:
            answer = answered.get(timeout=limit_s)
        except queue.Empty:
            raise RuntimeError(f"no answer within {limit_s:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def clone(self) -> Any:
        """Another connection."""
        return self._store.clone()

    def close(self) -> None:
        self._asked.put(None)

    def _answer(self) -> None:
        while (asked := self._asked.get()) is not None:
            method, arguments, answered = asked
            try:
                answered.put(getattr(self._store, method)(*arguments))
            except Exception as error:
                answered.put(error)
        del self._store


class GlooPeers:
    """See host_agent/detour.py's Peers. `store`: the group's; nothing is connected before the first meeting."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        store = dist.PrefixStore("switchsum-detour", store.clone())  # its own connection: a get that waits occupies one
        store.set_timeout(timedelta(seconds=_SILENCE_S))
        self._store: _BoundedStore | None = _BoundedStore(store)
        self._rank, self._size = rank, size
        self._group: Any = None
        self._failure: Callable[[], SwitchSumError | None] = lambda: None
        self._parted = threading.Event()
        self._beating: threading.Thread | None = None
        self._given_up = False
        self._beats: dict[int, tuple[int, float]] = {}  # of the others: count, and when it was first seen
        self._looked_at = 0.0
        self._generation = 0
        try:
            self._ask("set", f"host/{rank}", f"host {socket.gethostname()}, pid {os.getpid()}", limit_s=_MEETING_S)
        except RuntimeError as error:
            self._store.close()
            raise PeersLost(f"the group's store, in rank 0 or torchrun, does not answer: {error}") from None

    def meet(self, generation: int, failure: Callable[[], SwitchSumError | None]) -> None:
        self._generation, self._failure = generation, failure
        self._beats.clear()
        self._parted = threading.Event()
        self._beating = threading.Thread(target=self._beat, args=(self._parted, generation), name="switchsum-beat", daemon=True)
        self._beating.start()
        with self._explained("the ranks do not reach each other without the switch"):
            deadline = time.monotonic() + _MEETING_S
            while missing := [rank for rank in range(self._size) if not self._count_of(rank)]:
                self._check()
                if time.monotonic() > deadline:
                    raise PeersLost(f"{self._names(missing)} did not come within {_MEETING_S:g} s to sum without the switch")
                time.sleep(_LOOK_S)
            self._group = self._connected(generation)
            options = dist.BarrierOptions()
            options.timeout = _FOREVER
            self._run(self._group.barrier(options))

    def part(self) -> None:
        self._parted.set()
        if self._beating is not None:
            self._beating.join()
        if self._given_up:
            # Gloo's threads wait for the lost rank, and its destructor would wait for them: so it never runs.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            self._group = None
        # Else the group stays: who is done first must not close its sockets on those who read from them still.

    @property
    def group(self) -> Any:
        """The Gloo group of the last meeting, if there was one."""
        return self._group

    def close(self) -> None:
        """Leave, when all others do or after a moment."""
        if self._group is not None:
            with contextlib.suppress(RuntimeError):
                self._ask("add", f"bye/{self._generation}", 1)
                deadline = time.monotonic() + _FAREWELL_S
                while self._ask("add", f"bye/{self._generation}", 0) < self._size and time.monotonic() < deadline:
                    time.sleep(_LOOK_S)
        if self._store is not None:
            self._store.close()
        self._group = self._store = None  # and its connection, whoever holds us still

    def maximum(self, numbers: npt.NDArray[np.int64]) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._reduce(numbers, options)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        self._reduce(numbers, dist.AllreduceOptions())

    def call(self, generation: int, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # whoever needs the call finds out by itself, later
            self._ask("set", f"call/{generation}", reason, limit_s=_STORE_S)

    def called(self, generation: int) -> str | None:
        with contextlib.suppress(RuntimeError):
            if self._ask("check", [f"call/{generation}"], limit_s=_STORE_S):
                return str(self._ask("get", f"call/{generation}", limit_s=_STORE_S).decode())
        return None

    def accounts(self, number: int, description: str) -> str:
        with self._explained("the ranks disagree, and do not reach each other"):
            self._ask("set", f"account/{self._generation}/{number}/{self._rank}", description)
            told = [self._ask("get", f"account/{self._generation}/{number}/{rank}").decode() for rank in range(self._size)]
        return "; ".join(f"rank {rank}: {account}" for rank, account in enumerate(told))

    def _reduce(self, numbers: npt.NDArray[Any], options: Any) -> None:
        options.timeout = _FOREVER
        # A copy: should we give up, Gloo may still write when the lost rank goes on, and these are their owner's again then.
        tensor = torch.from_numpy(numbers.copy())
        with self._explained("a sum without the switch failed"):
            self._run(self._group.allreduce([tensor], options), tensor)
        numbers[:] = tensor.numpy()

    def _run(self, work: Any, *kept: object) -> None:
        """Wait for Gloo, as long as nobody is lost. `kept`: what it writes to, even after we have given up."""
        while True:
            try:
                work.wait(timedelta(seconds=_LOOK_S))
            except RuntimeError:
                if work.is_completed():
                    raise
            else:
                return
            try:
                self._check()
            except BaseException:  # also the store's: whatever it is, Gloo goes on
                self._given_up = True
                _abandoned.extend([work, *kept])
                raise

    def _check(self) -> None:
        """Raises why to give up waiting."""
        failure = self._failure()
        if failure is not None:
            raise failure
        if time.monotonic() - self._looked_at < _BEAT_S:
            return
        self._looked_at = time.monotonic()
        silent = [rank for rank in range(self._size) if self._silence_of(rank) > _SILENCE_S]
        if silent:
            raise PeersLost(
                f"lost {self._names(silent)} while sums went without the switch: no sign of life for {_SILENCE_S:g} s, so it "
                "died, hangs or is cut off"
            )

    def _silence_of(self, rank: int) -> float:
        """Seconds since this rank was seen to count; 0 for one that has not begun to."""
        count, now = self._count_of(rank), time.monotonic()
        if not count or self._beats.get(rank, (0, 0.0))[0] != count:
            self._beats[rank] = (count, now)
        return now - self._beats[rank][1]

    def _count_of(self, rank: int) -> int:
        return int(self._ask("add", f"beat/{self._generation}/{rank}", 0))

    def _ask(self, method: str, *arguments: Any, limit_s: float = _SILENCE_S) -> Any:
        return self._bounded.ask(method, *arguments, limit_s=limit_s)

    @property
    def _bounded(self) -> _BoundedStore:
        if self._store is None:
            raise RuntimeError("the group is gone")
        return self._store

    def _connected(self, generation: int) -> Any:
        """The Gloo group of this meeting, made in a thread: Gloo waits for the store without end."""
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def make() -> None:
            try:
                store = dist.PrefixStore(f"gloo/{generation}", self._bounded.clone())
                store.set_timeout(timedelta(seconds=_MEETING_S))
                made.put(dist.ProcessGroupGloo(store, self._rank, self._size, timedelta(seconds=_MEETING_S)))
            except Exception as error:
                made.put(error)

        threading.Thread(target=make, name="switchsum-meeting", daemon=True).start()
        deadline = time.monotonic() + _MEETING_S
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                group = made.get(timeout=_LOOK_S)
                if isinstance(group, Exception):
                    raise group
                return group
            self._check()
        raise RuntimeError(f"no connections within {_MEETING_S:g} s")

    def _beat(self, parted: threading.Event, generation: int) -> None:
        while True:
            with contextlib.suppress(RuntimeError):
                self._ask("add", f"beat/{generation}/{self._rank}", 1)
            if parted.wait(_BEAT_S):
                return

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Gloo's and the store's errors in our words: the rank that fell silent, if one did."""
        try:
            yield
        except SwitchSumError:
            raise
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            deadline = time.monotonic() + _SILENCE_S + 2 * _BEAT_S
            try:
                while time.monotonic() < deadline:
                    self._check()
                    time.sleep(_BEAT_S)
            except RuntimeError as reason:
                if isinstance(reason, SwitchSumError):
                    raise type(reason)(f"{reason} (Gloo said: {said})") from None
                said = f"{said}; the group's store, in rank 0 or torchrun: {str(reason).partition(chr(10))[0]}"
            raise PeersLost(f"{what}: {said}") from None

    def _names(self, ranks: list[int]) -> str:
        named = []
        for rank in ranks:
            try:
                named.append(f"rank {rank} ({self._ask('get', f'host/{rank}').decode()})")
            except RuntimeError:
                named.append(f"rank {rank}")
        return ", ".join(named)
