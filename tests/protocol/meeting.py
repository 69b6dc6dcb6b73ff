"""Ranks of one process that meet without a switch: threads, and the arithmetic of a sum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.host_agent.errors import SwitchSumError

LIMIT_S = 60.0


class Meeting:
    """What the ranks of one job bring to the same collective."""

    def __init__(self, size: int) -> None:
        self._brought: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def exchange(self, rank: int, brought: Any) -> list[Any]:
        """Everybody's, in order of rank."""
        self._brought[rank] = brought
        self._barrier.wait(LIMIT_S)
        everything = list(self._brought)
        self._barrier.wait(LIMIT_S)
        return everything

    def run(self, body: Callable[[int], None]) -> None:
        """`body(rank)` on all ranks at once. Raises what the first of them raised."""
        errors: list[Exception] = []

        def guarded(rank: int) -> None:
            try:
                body(rank)
            except Exception as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(len(self._brought))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class MeetingPeers:
    """One rank's Peers (host_agent/detour.py), met already."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def meet(self, generation: int, failure: Callable[[], SwitchSumError | None]) -> None: ...

    def part(self) -> None: ...

    def maximum(self, numbers: npt.NDArray[np.int64]) -> None:
        numbers[:] = np.max(self._meeting.exchange(self._rank, numbers.copy()), axis=0)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        with np.errstate(all="ignore"):
            numbers[:] = np.sum(self._meeting.exchange(self._rank, numbers.copy()), axis=0, dtype=numbers.dtype)

    def call(self, generation: int, reason: str) -> None: ...

    def called(self, generation: int) -> str | None:
        return None

    def accounts(self, number: int, description: str) -> str:
        return "; ".join(self._meeting.exchange(self._rank, description))
