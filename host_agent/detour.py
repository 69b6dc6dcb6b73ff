"""The way around a lost switch: what is under way is finished among the ranks, and later sums go by them alone.

When the switch is lost, a sum may be finished on one rank and not on another, and finished chunks have overwritten what was to
be summed. No slot of a rank is more than one chunk ahead of another rank's (engine.py), and each rank keeps its slots' last
sums. So in `settle` the ranks find out how far each slot got on any of them; whoever lacks a slot's last sum gets it from one
that has it, bit by bit; and all chunks beyond were finished nowhere, so every rank has its own numbers still, and they are
summed anew. No value is added twice, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from switchsum.host_agent.engine import Engine
from switchsum.host_agent.errors import CollectiveMismatch, SwitchSumError


class Peers(Protocol):
    """The ranks of one job among themselves.

    All but `call`, `called` and `accounts` are collectives: made by all ranks, in one order, by one thread. Each raises
    SwitchSumError, with the rank's name if it can be known, within a bounded time of a rank's death.
    """

    def meet(self, generation: int, failure: Callable[[], SwitchSumError | None]) -> None:
        """Wait until all ranks have come. `generation`: counts such meetings, from 1. `failure`: why to give up waiting, from
        now to `part`."""

    def part(self) -> None:
        """The way through the switch is open again; not a collective."""

    def maximum(self, numbers: npt.NDArray[np.int64]) -> None:
        """Element by element over all ranks, in place."""

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """The sum over all ranks of 1-D float32, int32 or int64, in place; integers modulo their range."""

    def call(self, generation: int, reason: str) -> None:
        """Ask all ranks to a meeting; from any thread."""

    def called(self, generation: int) -> str | None:
        """The reason, if somebody has called for that meeting; from any thread."""

    def accounts(self, number: int, description: str) -> str:
        """Which rank is in which collective: "rank 0: ...; rank 1: ..."."""


@dataclass(frozen=True)
class Detour:
    """How a queue of sums leaves the switch, and comes back. All are called by its thread, in this order."""

    peers: Peers
    waits: bool  # OnLoss.WAIT, else GLOO
    patience_s: float  # how long to wait for the switch's return, if it `waits`
    begin: Callable[[int, SwitchSumError], None]  # (generation, reason): this rank has left the switch
    met: Callable[[], None]  # all ranks have, and what was under way is finished
    ready: Callable[[], int]  # the epoch in which this rank could go on in the switch, 0 for none
    enter: Callable[[int], Engine]  # it goes on in that epoch: the engine for it
    entered: Callable[[], None]  # sums go through that engine from now on


class Summands(Protocol):
    """A sum that is under way; see CollectiveQueue.submit."""

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    description: str


def settle(engine: Engine, running: Mapping[int, Summands], peers: Peers) -> set[int]:
    """Finish every sum that all ranks have begun; returns the numbers of those in `running` that are finished by that.

    `running`: by their numbers in `engine`, which must not run any more. The others are still to be summed. Raises
    SwitchSumError.
    """
    own = engine.standing()
    slots = len(own)
    first_open = min(running, default=engine.submitted)
    # The furthest of each slot; and, as maxima of negative numbers, how many collectives all have begun, and all have finished.
    agreed = np.concatenate([own, [-engine.submitted, -first_open, engine.epoch, -engine.epoch]])
    peers.maximum(agreed)
    furthest, (begun, lowest, epoch, other) = agreed[:slots], agreed[slots:]
    if epoch != -other:
        raise SwitchSumError(f"ranks lost the switch in different epochs ({-other} and {epoch}); please report this")
    begun, lowest = -int(begun), -int(lowest)
    _check_order(engine, running, range(lowest, begun), peers)
    common = {number: summands for number, summands in sorted(running.items()) if number < begun}
    _share_last_sums(engine, common, own, furthest, peers)
    for number, summands in common.items():
        first, chunks, block = engine.chunks_of(number)
        numbers = np.arange(first, first + chunks)
        _sum_again(summands, numbers >= furthest[numbers % slots], block, peers)
    return set(common)


def _check_order(engine: Engine, running: Mapping[int, Summands], numbers: range, peers: Peers) -> None:
    """Ranks that are in different collectives under one number would mis-sum. One that has finished a number was right."""
    if not numbers:
        return
    tags = np.array([engine.tag_of(number) if number in running else -1 for number in numbers], np.int64)
    both = np.concatenate([tags, np.where(tags < 0, -(1 << 40), -tags)])
    peers.maximum(both)
    for number, highest, lowest in zip(numbers, both[: len(tags)], both[len(tags) :], strict=True):
        if highest >= 0 and highest != -lowest:
            description = running[number].description if number in running else "another one"
            raise mismatch(number, description, peers)


def mismatch(number: int, description: str, peers: Peers) -> CollectiveMismatch:
    """The error for ranks that are in different collectives."""
    return CollectiveMismatch(
        f"ranks disagree on which collective comes next: {peers.accounts(number, description)}. "
        "Every rank must call the same collectives in the same order"
    )


def _share_last_sums(
    engine: Engine,
    common: Mapping[int, Summands],
    own: npt.NDArray[np.int64],
    furthest: npt.NDArray[np.int64],
    peers: Peers,
) -> None:
    """Give each slot's last sum to the ranks that have not had it."""
    slots = len(own)
    lacks = own < furthest
    votes = np.concatenate([lacks.astype(np.int64), np.where(lacks, -1, engine.world_size - engine.worker)])
    peers.maximum(votes)
    wanted = np.flatnonzero(votes[:slots])
    if not len(wanted):
        return
    mine = votes[slots:][wanted] == engine.world_size - engine.worker
    sums = engine.last_sums()[wanted]
    sums[~mine] = 0
    flat = sums.reshape(-1)
    peers.add(flat)  # of one rank's bits and zeros: the bits
    spans = {number: engine.chunks_of(number) for number in common}
    for row, slot in zip(sums, wanted, strict=True):
        if not lacks[slot]:
            continue
        chunk = int(own[slot])
        number = next(n for n, (first, chunks, _) in spans.items() if first <= chunk < first + chunks)
        first, _, block = spans[number]
        target = common[number].target
        part = target[(chunk - first) * block : (chunk - first + 1) * block]
        part[:] = row.view(target.dtype)[: len(part)]


def _sum_again(summands: Summands, missing: npt.NDArray[np.bool_], block: int, peers: Peers) -> None:
    """Sum the chunks that no rank has finished."""
    if missing.all():
        go_around(summands, peers)
    elif missing.any():
        elements = np.repeat(missing, block)[: len(summands.source)]
        numbers = summands.source[elements]
        peers.add(numbers)
        summands.target[elements] = numbers


def go_around(summands: Summands, peers: Peers) -> None:
    """A whole sum without the switch."""
    if summands.target is not summands.source:
        summands.target[:] = summands.source
    peers.add(summands.target)
