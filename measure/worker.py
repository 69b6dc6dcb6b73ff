"""`python -m switchsum.measure.worker ADDRESS`: one rank of a benchmark, which lives as long as it and does what it is told.

ADDRESS is the coordinator's (channel.connect). RANK and WORLD_SIZE come in the environment, as under torchrun. Each command is
one JSON object {"do": NAME, ...}, and its answer either one with results or {"error": SENTENCE}.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from switchsum.measure import interfaces, processor, resources, tcp_counters
from switchsum.measure.call_roles import CallRoles
from switchsum.measure.channel import Channel, Closed, connect
from switchsum.measure.clock import machine, wait_until
from switchsum.measure.counters import of_tcp
from switchsum.measure.payload import ITEM_BYTES, Numbers, Payload, checksums
from switchsum.measure.samples import Carried

if TYPE_CHECKING:
    import torch

    from switchsum.measure.rpc import Server
    from switchsum.measure.transports import Transport

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FUTURE_COVER = "Got the following error when running the callback: "
CONNECT_TIMEOUT_S = 60.0
_EARLIER = 0.9  # of the time after which a worker gives up: a server knows whom it waits for


class Worker:
    """A rank's state between commands: its groups by transport, the tensor under test."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rank, self._ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._address = os.environ.get("SWITCHSUM_DATA_ADDRESS", "") or channel.local_address or "127.0.0.1"
        self._interface = interfaces.of_address(self._address)
        self._transports: dict[str, Transport] = {}
        self._subjects: list[Payload] = []
        self._inputs: list[torch.Tensor] = []
        self._tensors: list[torch.Tensor] = []
        self._roles = CallRoles(self._rank)
        self._sums: dict[str, Server] = {}
        self._joined = False
        self._sampler = resources.of_this_process(self._interface, self._resent)

    def _resent(self) -> int:
        """Packets and TCP segments of all transports."""
        switched = [each for each in list(self._transports.values()) if each.description.needs_switch]
        return tcp_counters.read().retransmitted + sum(each.counters().resent or 0 for each in switched)

    def hello(self) -> dict[str, Any]:
        """Who and where we are; the first thing that the coordinator hears."""
        return {
            "rank": self._rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "machine": machine(),
            "network": interfaces.namespace(),
            "address": self._address,
            "interface": self._interface,
            "rate_bps": interfaces.rate_bps(self._interface),
            "alone": os.environ.get("LOCAL_WORLD_SIZE", "1") == "1",
            "python": platform.python_version(),
        }

    def do_import_torch(self) -> dict[str, Any]:
        """Which takes seconds, of which ranks that wait for each other at the rendezvous may have too few."""
        import torch

        torch.set_num_threads(1)  # workers share the machine's cores
        return {"torch": torch.__version__}

    def do_join(self, rendezvous: str, ranks: int, timeout_s: float) -> dict[str, Any]:
        """Meet the others of the first `ranks` ranks: torch.distributed's default group, over Gloo, which times nothing.

        `rendezvous`: init_process_group's init_method, such as "file:///path" or "tcp://HOST:PORT".
        """
        import torch.distributed as dist

        # Torchrun's own store, which the variable would have us use, is at another address.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", init_method=rendezvous, rank=self._rank, world_size=ranks, timeout=timeout)
        self._joined = True
        return {}

    def do_serve_sums(self, way: str, workers: int, redop: str, timeout_s: float) -> dict[str, Any]:
        """Be a parameter server that sums."""
        from switchsum.measure import endpoints
        from switchsum.measure.sum_service import THREADS_A_WORKER, SumService

        service = SumService(workers, redop == "avg", _EARLIER * timeout_s)
        self._sums[way] = endpoints.listen(way, self._address, 0, service, THREADS_A_WORKER * workers)
        return {"address": self._address, "port": self._sums[way].port}

    def do_open(
        self, transport: str, way: str, elements: int, redop: str, servers: list[list[Any]], timeout_s: float
    ) -> dict[str, Any]:
        """Be a worker. `servers`: (address, port) of each parameter server."""
        from switchsum.measure import transports
        from switchsum.measure.push_pull import PushPull

        description = transports.DESCRIPTIONS[transport]
        opened: Transport
        ports: tuple[int, int] | None = None
        if description.needs_servers:
            opened = PushPull(description, way, servers, self._rank, timeout_s)
        elif description.backend:
            kind = transports.OnDevices if description.needs_devices else transports.Collective
            opened = kind(description, elements, redop, timedelta(seconds=timeout_s))
        else:
            opened = transports.Limit(description, elements, self._address)
            ports = opened.ring.ports
        self._transports[way] = opened
        return {"address": self._address, "ports": ports, "compares_ranks": opened.compares_ranks}

    def do_connect(self, way: str, following: list[Any], preceding: list[Any]) -> dict[str, Any]:
        from switchsum.measure.transports import Limit

        limit = self._transports[way]
        assert isinstance(limit, Limit)
        limit.ring.connect((following[0], following[1]), (preceding[0], preceding[1]))
        return {}

    def do_load(self, buffers: list[Any], redop: str, ranks: int, seed: int) -> dict[str, Any]:
        """The tensors that the next operations sum. `buffers`: (bytes, dtype) of each."""
        import torch

        self._inputs, self._tensors = [], []  # first, so that both payloads are never there at once
        numbers = {dtype: Numbers(dtype, ranks, seed) for _, dtype in buffers}
        self._subjects = [
            Payload(max(1, size // ITEM_BYTES[dtype]), numbers[dtype], redop, self._rank, number)
            for number, (size, dtype) in enumerate(buffers)
        ]
        for subject in self._subjects:
            self._inputs.append(torch.empty(subject.count, dtype=getattr(torch, subject.dtype)))
            subject.fill(self._inputs[-1])
        self._tensors = [torch.empty_like(each) for each in self._inputs]
        return {}

    def do_ready(self, way: str) -> dict[str, Any]:
        """The inputs are back in the tensors; the coordinator says go when every rank has said so."""
        self._transports[way].ready(self._inputs, self._tensors)
        return {}

    def do_go(self, way: str, at_ns: int | None) -> dict[str, Any]:
        """One operation. `at_ns`: the common start on CLOCK_MONOTONIC; None for at once, where clocks differ."""
        chosen = self._transports[way]
        wait_until(at_ns)
        before = processor.usage()
        started = time.perf_counter_ns()
        chosen.run(self._tensors)
        elapsed = time.perf_counter_ns() - started - chosen.untimed_ns
        return {"ns": elapsed, "usage": asdict(processor.used_since(before))}

    def do_check(self, way: str) -> dict[str, Any]:
        """Judge what the last operation left in the tensors."""
        chosen = self._transports[way]
        chosen.fetch(self._tensors)
        both = list(zip(self._subjects, self._tensors, strict=True))
        wrong = [chosen.wrong(subject, tensor) for subject, tensor in both]
        return {
            "wrong": None if None in wrong else sum(each or 0 for each in wrong),
            "counts": [subject.count for subject in self._subjects],
            "checksums": [checksums(tensor) for tensor in self._tensors] if chosen.compares_ranks else None,
            "largest_error": None if None in wrong else max(subject.largest_error(tensor) for subject, tensor in both),
        }

    def do_counters(self, way: str) -> dict[str, Any]:
        found = self._transports[way].counters() if way in self._transports else of_tcp()
        packets = (found.sent_packets, found.received_packets)
        return {
            "interface": asdict(interfaces.carried(self._interface)),
            "payload": asdict(Carried(found.sent_bytes, found.received_bytes, *packets)),
            "resent": found.resent,
            "resent_bytes": found.resent_bytes,
            "lost": found.lost,
        }

    def do_start_profile(self, way: str) -> dict[str, Any]:
        self._transports[way].start_profile()
        return {}

    def do_end_profile(self, way: str) -> dict[str, Any]:
        found = self._transports[way].end_profile()
        return {"stages": found.seconds if found else None, "packets": found.packets if found else 0}

    def do_clock(self) -> dict[str, Any]:
        return {"seconds": time.monotonic()}

    def do_timeline(self) -> dict[str, Any]:
        """What the sampler has read; it ends."""
        return {"samples": self._sampler.stop()}

    def do_leave(self) -> dict[str, Any]:
        """Leave the jobs, so that a switch that lives on has its slots back; workers leave their servers."""
        for opened in self._transports.values():
            opened.close()
        self._transports.clear()
        self._roles.close_clients()
        return {}

    def do_end(self) -> dict[str, Any]:
        """When all have left."""
        self._roles.close_servers()
        for server in self._sums.values():
            server.close()
        if self._joined:
            import torch.distributed as dist

            dist.destroy_process_group()
        return {}

    def serve(self) -> None:
        """Until the coordinator says quit, or is gone."""
        self._channel.send(**self.hello())
        while True:
            message = self._channel.receive()
            command = message.pop("do")
            if command == "quit":
                return
            try:
                does = getattr(self, f"do_{command}", None) or getattr(self._roles, f"do_{command}")
                answer = does(**message)
            except Exception as error:  # whatever it is, the coordinator tells it with our name
                traceback.print_exc()
                answer = {"error": explain(error)}
            self._channel.send(**answer)


def explain(error: Exception) -> str:
    """The first line of an error with its type, without the covers that PyTorch puts around what a future carries."""
    text = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
    return text.rpartition(_FUTURE_COVER)[2]


def die_with_starter() -> None:
    """The kernel kills this process when the thread that started it ends: no worker outlives its benchmark."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(address: str, kind: type[Worker] = Worker) -> int:
    """Serve; returns the exit status: 1 if the coordinator went away without a word."""
    try:
        channel = connect(address, CONNECT_TIMEOUT_S)
    except OSError as error:
        print(f"error: no benchmark answers at {address}: {error}", file=sys.stderr)
        return 1
    try:
        kind(channel).serve()
    except Closed:
        return 1
    return 0


def run(kind: type[Worker], address: str) -> NoReturn:
    """A process that is one rank, from its start to its end."""
    die_with_starter()
    faulthandler.enable()
    status = main(address, kind)
    sys.stderr.flush()
    # No orderly shutdown: destructors of a broken process group may wait for peers that are gone.
    os._exit(status)


if __name__ == "__main__":
    run(Worker, sys.argv[1])
