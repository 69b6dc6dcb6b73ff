"""A worker's end of a sum by parameter servers, which sum_service is the other end of.

Each tensor is cut into as many nearly equal shards as there are servers, of whole numbers; shard i is server i's. A server's
shards of all tensors of an operation are packed, in their order, into pieces of at most PIECE_BYTES, one call each. If one
piece is all that a server has, a single call pushes and pulls it. Else one connection pushes piece by piece while another one
pulls, so that both directions of a link are used at once, as BytePS does with its partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from switchsum.measure import endpoints
from switchsum.measure.counters import Counters, of_tcp
from switchsum.measure.payload import Payload
from switchsum.measure.rpc import Buffers, CallFailed, Client, Method
from switchsum.measure.sum_service import WINDOW, Head
from switchsum.measure.transports import Description, Transport

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 256 << 10  # small beside what takes long: the first sum comes back while the rest still leaves

Stretch = tuple[int, int, int]  # tensor, and from which of its bytes to which
Piece = tuple[Head, list[Stretch]]


def cut(tensors: Sequence[tuple[int, str, int]], servers: int) -> list[list[list[Stretch]]]:
    """By server: the stretches of each piece. `tensors`: numbers, type, and bytes of a number of each."""
    by_server: list[list[list[Stretch]]] = []
    for server in range(servers):
        pieces: list[list[Stretch]] = []
        room = 0
        for index, (count, _, item) in enumerate(tensors):
            first, end = (item * (count * number // servers) for number in (server, server + 1))
            while first < end:
                if room < item:
                    pieces.append([])
                    room = PIECE_BYTES
                stop = min(end, first + room - room % item)
                pieces[-1].append((index, first, stop))
                room -= stop - first
                first = stop
        by_server.append(pieces)
    return by_server


class PushPull(Transport):
    """Sums by parameter servers. Every rank is given the same bits, by the one server that made them."""

    compares_ranks = True

    def __init__(self, description: Description, way: str, servers: Sequence[Any], worker: int, timeout_s: float) -> None:
        """Connect to `servers`: (address, port) of each. Raises CallFailed."""
        super().__init__(description)
        self._pushing, self._pulling = (
            [endpoints.dial(way, address, port, worker, timeout_s) for address, port in servers] for _ in range(2)
        )
        self._threads = ThreadPoolExecutor(2 * len(servers), "push and pull")
        # Workers begin with different servers, so that not all of them crowd one link at first.
        self._order = [(worker + 1 + number) % len(servers) for number in range(len(servers))]
        self._operation = 0
        self._shape: list[tuple[int, str, int]] = []
        self._cut: list[list[list[Stretch]]] = []

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raises CallFailed."""
        shape = [(each.numel(), str(each.dtype).removeprefix("torch."), each.element_size()) for each in tensors]
        if shape != self._shape:
            self._shape, self._cut = shape, cut(shape, len(self._pulling))
        views = [_bytes_of(each) for each in tensors]
        self._operation += 1
        if all(len(pieces) <= 1 for pieces in self._cut):
            answers = [
                self._begin(self._pulling[server], views, 0, stretches, push=True, pull=True)
                for server in self._order
                for stretches in self._cut[server]
            ]
            for answer in answers:
                answer()
            return
        halves = [
            self._threads.submit(self._all, clients[server], views, self._cut[server], push=push, pull=not push)
            for push, clients in ((True, self._pushing), (False, self._pulling))
            for server in self._order
        ]
        for half in halves:
            half.result()

    def _all(self, client: Client, views: Sequence[Any], pieces: list[list[Stretch]], *, push: bool, pull: bool) -> None:
        """One half of a server's pieces, one after the other."""
        under_way: deque[Callable[[], None]] = deque()
        for number, stretches in enumerate(pieces):
            if len(under_way) == WINDOW:
                under_way.popleft()()
            under_way.append(self._begin(client, views, number, stretches, push=push, pull=pull))
        while under_way:
            under_way.popleft()()

    def _begin(
        self, client: Client, views: Sequence[Any], number: int, stretches: list[Stretch], *, push: bool, pull: bool
    ) -> Callable[[], None]:
        """Call for a piece; returns what waits for its answer, and puts it where it belongs."""
        dtypes = tuple(self._shape[index][1] for index, _, _ in stretches) if push else ()
        head = Head(self._operation, number, dtypes, push, pull).pack()
        places = [views[index][first:stop] for index, first, stop in stretches]
        wait = client.begin(Method.SUM, [head, *(place.data for place in places)] if push else [head])

        def take() -> None:
            found = wait()
            if pull:
                _put(found, places)

        return take

    def wrong(self, subject: Payload, result: torch.Tensor) -> int:
        return subject.wrong_bits(result, None) if subject.dtype == "int32" else subject.wrong_beyond(result, None)

    def counters(self) -> Counters:
        return of_tcp()

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        for client in (*self._pushing, *self._pulling):
            client.close()


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    import torch

    return np.asarray(tensor.view(torch.uint8).numpy())


def _put(found: Buffers, places: Sequence[npt.NDArray[np.uint8]]) -> None:
    sizes, wanted = [memoryview(each).nbytes for each in found], [place.size for place in places]
    if sizes != wanted:
        raise CallFailed(f"a parameter server answered with buffers of {sizes} bytes; {wanted} bytes were pushed")
    for place, buffer in zip(places, found, strict=True):
        np.copyto(place, np.frombuffer(buffer, np.uint8))
