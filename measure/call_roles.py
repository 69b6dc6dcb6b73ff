"""A rank's part in benchmarks made of calls: a parameter server, or a worker that calls servers."""

from __future__ import annotations

import errno
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from switchsum.measure import endpoints, processor
from switchsum.measure.clock import wait_until
from switchsum.measure.rpc import Buffers, Call, CallFailed, Client, Method, Server
from switchsum.measure.rpc_torch import Sizes, TorchClient, TorchServer

MOST_SAMPLES = 10_000  # of a worker and run: what a file of results can hold, and more than its percentiles need
_PAYLOAD_STREAM = 7  # of the seed, so that bytes of payloads are not those of tensors
_MARK_BYTES = 8
_WHY_NOT_LISTENING = {
    errno.EADDRINUSE: "the port is taken; choose another --port (0: any)",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose another --ip",
    errno.EACCES: "the port is the system's; choose another --port (0: any)",
}


class Content:
    """What the buffers hold: bytes from a seed, the same on all ranks.

    For a call that is verified they are marked: each byte is XORed with one of eight that worker and call decide, so that
    another worker's bytes, or those of the call before in a buffer that is used again, are wrong ones.
    """

    def __init__(self) -> None:
        self.buffers: list[npt.NDArray[np.uint8]] = []

    def load(self, sizes: Sequence[int], seed: int) -> None:
        generator = np.random.default_rng([seed, _PAYLOAD_STREAM])
        self.buffers = [generator.integers(0, 256, size, np.uint8) for size in sizes]

    @property
    def views(self) -> list[memoryview]:
        return [each.data for each in self.buffers]

    def marked(self, worker: int, mark: int) -> list[npt.NDArray[np.uint8]]:
        """As this worker sends them in the call of this mark."""
        digest = hashlib.blake2b(f"{worker} {mark}".encode(), digest_size=_MARK_BYTES).digest()
        found = []
        for each in self.buffers:
            copy, whole = each.copy(), each.size - each.size % _MARK_BYTES
            copy[:whole].view(np.uint64)[:] ^= np.frombuffer(digest, np.uint64)
            copy[whole:] ^= np.frombuffer(digest, np.uint8, each.size - whole)
            found.append(copy)
        return found

    def wrong_bytes(self, found: Buffers, worker: int, mark: int) -> int:
        """Bytes that are not as they were sent; of missing and surplus ones, each."""
        wrong = sum(memoryview(each).nbytes for each in found[len(self.buffers) :])
        for number, expected in enumerate(self.marked(worker, mark)):
            here = np.frombuffer(found[number], np.uint8) if number < len(found) else np.empty(0, np.uint8)
            both = min(len(here), len(expected))
            wrong += int(np.count_nonzero(here[:both] != expected[:both])) + abs(len(here) - len(expected))
        return wrong


class CallRoles:
    """Commands of worker.Worker for these benchmarks."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._content = Content()
        self._sizes = Sizes()
        self._servers: dict[str, Server] = {}
        self._clients: dict[str, list[Client]] = {}
        self._marks = 0  # that have been used

    def answer(self, call: Call) -> Buffers:
        """The service of the paper's benchmarks: what came goes back, or is acknowledged."""
        if call.method == Method.ECHO:
            return call.buffers
        wrong = self._content.wrong_bytes(call.buffers, call.worker, call.mark) if call.mark else 0
        return [wrong.to_bytes(8, "big")]

    def do_serve(self, way: str, address: str, port: int, workers: int, threads: int) -> dict[str, Any]:
        """Be a parameter server. `workers`: how many there are; `threads`: calls that may be under way at once."""
        server: Server
        if way == "gloo":
            server = TorchServer(range(workers), self._sizes, self.answer)
        else:
            try:
                server = endpoints.listen(way, address, port, self.answer, threads)
            except OSError as error:
                why = _WHY_NOT_LISTENING.get(error.errno or 0, error.strerror)
                raise CallFailed(f"cannot listen at {address}:{port}: {why}") from error
        self._servers[way] = server
        return {"port": server.port}

    def do_dial(self, way: str, servers: list[list[Any]], timeout_s: float) -> dict[str, Any]:
        """Be a worker. `servers`: (rank, address, port) of each."""
        clients: list[Client] = []
        for rank, address, port in servers:
            if way == "gloo":
                clients.append(TorchClient(rank, self._sizes))
            else:
                clients.append(endpoints.dial(way, address, port, self._rank, timeout_s))
        self._clients[way] = clients
        return {}

    def do_load_buffers(self, sizes: list[int], seed: int) -> dict[str, Any]:
        """The buffers that the next calls send. `sizes`: bytes of each."""
        self._sizes.now = sizes
        self._content.load(sizes, seed)
        return {}

    def do_check_calls(self, way: str, method: int) -> dict[str, Any]:
        """One call of each server, verified: how many bytes arrived wrong."""
        asked = Method(method)
        clients = self._clients.get(way, [])
        wrong = 0
        for client in clients:
            mark, buffers = self._mark()
            wrong += self._judge(asked, client.call(asked, buffers, mark=mark), mark)
        return {"wrong": wrong, "checked": len(clients) * sum(self._sizes.now)}

    def _mark(self) -> tuple[int, Buffers]:
        """A mark that no call has had, and buffers marked with it."""
        self._marks += 1
        return self._marks, [each.data for each in self._content.marked(self._rank, self._marks)]

    def _judge(self, method: Method, result: Buffers, mark: int) -> int:
        if method == Method.ECHO:
            return self._content.wrong_bytes(result, self._rank, mark)
        return int.from_bytes(result[0], "big")

    def do_call_for(self, way: str, method: int, seconds: float, window: int, check: bool, at_ns: int | None) -> dict[str, Any]:
        """Call all servers at once, round after round (`window` under way at once), until `seconds` have passed; at least one.

        `at_ns`: the common start on CLOCK_MONOTONIC. `ns` of a call: from its beginning until its result was fetched, behind
        those of the servers before it. Time stands still while this worker marks and verifies, unless calls are under way,
        which would get on meanwhile for nothing.
        """
        asked = Method(method)
        clients, unmarked = self._clients[way], self._content.views
        under_way: deque[list[tuple[int, int, Callable[[], Buffers]]]] = deque()  # mark, begun, result
        ns: list[int] = []
        wrong = untimed = 0

        def now() -> int:
            return time.monotonic_ns() - untimed

        def begin() -> None:
            nonlocal untimed
            marked: list[tuple[int, Buffers]] = [(0, unmarked)] * len(clients)
            if check:
                started = time.monotonic_ns()
                marked = [self._mark() for _ in clients]
                if not under_way:
                    untimed += time.monotonic_ns() - started
            under_way.append(
                [
                    (mark, now(), client.begin(asked, buffers, mark=mark))
                    for client, (mark, buffers) in zip(clients, marked, strict=True)
                ]
            )

        def finish() -> None:
            nonlocal wrong, untimed
            answers = []
            for mark, begun, result in under_way.popleft():
                answers.append((mark, result()))
                ns.append(now() - begun)
            if check:
                started = time.monotonic_ns()
                wrong += sum(self._judge(asked, answer, mark) for mark, answer in answers)
                if not under_way:
                    untimed += time.monotonic_ns() - started

        wait_until(at_ns)
        started = time.monotonic_ns()
        until = started + int(seconds * 1e9)
        while now() < until or not (ns or under_way):
            begin()
            if len(under_way) == window:
                finish()
        while under_way:
            finish()
        elapsed = now() - started
        every = -(-len(ns) // MOST_SAMPLES) or 1
        checked = len(ns) * sum(self._sizes.now) if check else 0
        return {"ns": ns[::every], "made": len(ns), "elapsed_ns": elapsed, "wrong": wrong, "checked": checked}

    def do_usage(self, way: str) -> dict[str, Any]:
        """What this process used since its start, and what it spent on messages of one way."""
        ends: list[Server | Client] = [*self._clients.get(way, ())]
        if way in self._servers:
            ends.append(self._servers[way])
        spent = [end.messages.seconds for end in ends if end.messages is not None]
        return {"usage": asdict(processor.usage()), "messages_s": sum(spent) if spent else None}

    def close_clients(self) -> None:
        for clients in self._clients.values():
            for client in clients:
                client.close()
        self._clients.clear()

    def close_servers(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
