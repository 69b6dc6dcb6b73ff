"""Where `switchsum bench` runs: on loopback beside an embedded switch, in emulated racks, or on the hosts of a torchrun job.

A site starts its workers and says how they ended; the experiment itself is in measure/. In a rack the switch's transports run
in one rack and the others in a second one of the same links, whose switch is the kernel's bridge: both are up at once, so that
the transports can take turns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchsum.demo.family import Child, Family
from switchsum.demo.options import DemoOptions
from switchsum.demo.rack import Loopback
from switchsum.failures import CommandFailed
from switchsum.measure.crew import Crew
from switchsum.measure.samples import Carried

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack import Rack
    from switchsum.bmv2_topologies.rack_file import RackFile

WORKER_MODULE = "switchsum.measure.worker"
_START_S, _START_PER_WORKER_S = 60.0, 10.0  # a Python that imports NumPy and numba, on cores that all share
_LAST_LINES = 4
_MEET_S = 120
_ADDRESS_KEY = "switchsum-bench"


def labels(workers: int, servers: int, names: Sequence[str]) -> list[str]:
    """What ranks are called in errors. `names`: of their hosts, "" where that says nothing."""
    roles = [f"worker {rank}" for rank in range(workers)] + [f"parameter server {number}" for number in range(servers)]
    return [f"{role} ({name})" if name else role for role, name in zip(roles, names, strict=True)]


class LocalSite:
    """Workers and parameter servers that are our children: what they said last is known, and they end with the family."""

    def __init__(
        self, family: Family, folder: Path, workers: int, servers: int, hosts: Sequence[int], names: Sequence[str]
    ) -> None:
        """`folder`: for the socket at which ranks report, and the file by which they meet. `hosts`, and `names` of them: by
        rank."""
        folder.mkdir()
        self.hosts = list(hosts)
        self.labels = labels(workers, servers, names)
        self.rendezvous = f"file://{folder / 'rendezvous'}"
        self._family = family
        self._path = folder / "benchmark"
        self._children: list[Child] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(len(self.labels))

    def start(self, module: str | None = None) -> None:
        """Start every worker, which `module` is, or else WORKER_MODULE."""
        module = module or WORKER_MODULE
        for rank, label in enumerate(self.labels):
            child = self._family.start(
                label, module, lambda _: [f"unix:{self._path}"], self._environment(rank), prefix=self._prefix(rank)
            )
            self._children.append(child)

    def crew(self) -> Crew:
        """The workers, once all have reported. Raises BenchmarkFailed."""
        with self._listener:
            return Crew(self, self._listener, _START_S + _START_PER_WORKER_S * len(self.labels))

    def _environment(self, rank: int) -> dict[str, str]:
        return {}

    def _prefix(self, rank: int) -> Sequence[str]:
        return ()

    @property
    def link_rates_bps(self) -> Sequence[int | None]:
        return ()

    @property
    def switch_pids(self) -> Sequence[int]:
        return ()

    def link_counters(self) -> list[Carried] | None:
        return None

    def _listen_to_children(self) -> None:
        try:
            while True:
                self._family.hear(0)
        except TimeoutError:
            return

    def obituary(self, rank: int) -> str | None:
        self._listen_to_children()
        if rank >= len(self._children) or not self._children[rank].ended:
            return None
        child = self._children[rank]
        said = " / ".join([line.strip() for line in child.output if line.strip()][-_LAST_LINES:])
        return child.how_it_ended + (f"; it said last: {said}" if said else "")

    def failure(self) -> str | None:
        self._listen_to_children()
        return None


class LoopbackSite(LocalSite):
    """All on this machine, without root. `options`: of the embedded switch, which is started unless they are None."""

    def __init__(
        self, family: Family, folder: Path, workers: int, servers: int, options: DemoOptions | None, timeout_s: float
    ) -> None:
        self._switch = _EmbeddedSwitch(family, options, log_level="WARNING") if options is not None else None
        self._timeout_s = timeout_s
        ranks = workers + servers
        super().__init__(family, folder, workers, servers, [0] * ranks, [""] * ranks)

    def _environment(self, rank: int) -> dict[str, str]:
        workers = str(len(self.labels))
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": workers,
            "LOCAL_WORLD_SIZE": workers,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "SWITCHSUM_CONTROLLER": self._switch.controller if self._switch is not None else "",
            "SWITCHSUM_DATA_ADDRESS": "127.0.0.1",
            "SWITCHSUM_TIMEOUT": f"{self._timeout_s:g}",
        }

    @property
    def switch_pids(self) -> Sequence[int]:
        return self._switch.pids[:1] if self._switch is not None else ()

    def failure(self) -> str | None:
        super().failure()
        return self._switch.failure() if self._switch is not None else None


class _EmbeddedSwitch(Loopback):
    """The demo's switch and controller."""

    @property
    def controller(self) -> str:
        return self._controller

    @property
    def pids(self) -> list[int]:
        """Of switch and controller."""
        return [child.process.pid for child in self._children]

    def failure(self) -> str | None:
        for child in self._children:
            if child.ended:
                return f"the {child.name} {child.how_it_ended}"
        return None


class RackSite(LocalSite):
    """The workers of a rack that is up."""

    def __init__(self, family: Family, folder: Path, rack: Rack, workers: int, servers: int, timeout_s: float) -> None:
        """Workers on the first hosts, one on each; parameter servers on those behind them, else on the workers' own."""
        count = len(rack.file.workers)
        hosts = [*range(workers), *((workers if count >= workers + servers else 0) + number for number in range(servers))]
        super().__init__(family, folder, workers, servers, hosts, [rack.file.workers[host].name for host in hosts])
        self._rack = rack
        self._timeout_s = timeout_s

    def _environment(self, rank: int) -> dict[str, str]:
        from switchsum.bmv2_topologies import runner

        return {
            **runner.environment(self._rack.record.rack, self.hosts[rank]),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.hosts)),
            "LOCAL_WORLD_SIZE": str(self.hosts.count(self.hosts[rank])),
            "SWITCHSUM_TIMEOUT": f"{self._timeout_s:g}",
        }

    def _prefix(self, rank: int) -> Sequence[str]:
        return self.prefix_of_host(self.hosts[rank])

    def prefix_of_host(self, host: int) -> Sequence[str]:
        """What makes a command line run in that host's namespace."""
        from switchsum.bmv2_topologies import namespaces
        from switchsum.bmv2_topologies.rack import namespace_of

        described = self._rack.file
        return namespaces.command_inside(namespace_of(described.name, described.workers[host].name), [])

    @property
    def described(self) -> Mapping[str, Any]:
        """The rack, as RackFile.as_json()."""
        return self._rack.record.rack

    @property
    def link_rates_bps(self) -> Sequence[int | None]:
        return [self._rack.file.workers[host].link.rate_bps for host in sorted(set(self.hosts))]

    @property
    def switch_pids(self) -> Sequence[int]:
        part = self._rack.record.parts.get("switch")
        return [part.pid] if part is not None else []

    def link_counters(self) -> list[Carried] | None:
        pairs = self._rack.shaped()
        if pairs is None:
            return None
        used = sorted(set(self.hosts))
        return [
            Carried(up.sent_bytes, down.sent_bytes, up.sent_packets, down.sent_packets, up.dropped + down.dropped)
            for up, down in (pairs[host] for host in used)
        ]

    def failure(self) -> str | None:
        super().failure()
        return self._rack.failure()


class Racks:
    """Up to two racks of the same workers and links, with our switch and with a bridge. A context manager."""

    def __init__(self, described: RackFile, *, bmv2: str, seed: int) -> None:
        """`described`: of the workers, with our switch; the bridge loses nothing. `bmv2`: simple_switch_grpc, "" for PATH's."""
        self._described = described
        self._bmv2, self._seed = bmv2, seed
        self._stack = ExitStack()

    def switched(self) -> Rack:
        from switchsum.bmv2_topologies.rack import Rack

        return self._stack.enter_context(Rack(self._described, bmv2=self._bmv2, seed=self._seed))

    def bridged(self, hosts: int) -> Rack:
        """`hosts`: at least the workers'; those beyond them are like the first worker's."""
        from switchsum.bmv2_topologies.rack import Rack

        bridge = self._described.changed(loss=0.0).changed(kind="bridge", name=f"{self._described.name}-b")
        return self._stack.enter_context(Rack(bridge.with_workers(hosts)))

    def __enter__(self) -> Racks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class HostsSite:
    """The ranks of a torchrun job. Rank 0 is a child of the coordinator, the others are wherever they are."""

    link_rates_bps: Sequence[int | None] = ()
    switch_pids: Sequence[int] = ()

    def __init__(
        self, family: Family, environment: Mapping[str, str], workers: int, servers: int, colocated: bool = False
    ) -> None:
        """`environment`: torchrun's. The last `servers` ranks are parameter servers; `colocated`: see places()."""
        placed = places(environment, colocated)
        names = [f"rank {placed.index(place)}" for place in range(len(placed))]
        self.labels = labels(workers, servers, names)
        host = environment["MASTER_ADDR"]
        self._listener = socket.create_server(("", 0), backlog=len(self.labels))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        with socket.create_server(("", 0)) as probe:
            self.rendezvous = f"tcp://{host}:{probe.getsockname()[1]}"
        self._family = family
        self.hosts: list[int] = []  # known once the crew is there
        self._first: Child | None = None

    def start(self) -> None:
        """Start rank 0's worker."""
        self._first = self._family.start("rank 0", WORKER_MODULE, lambda _: [self.address], {})

    def crew(self) -> Crew:
        """All ranks, once they have reported. Raises BenchmarkFailed."""
        with self._listener:
            crew = Crew(self, self._listener, _START_S + _START_PER_WORKER_S * len(self.labels))
        self.hosts = hosts_of(crew.hellos)
        return crew

    def link_counters(self) -> list[Carried] | None:
        return None

    def obituary(self, rank: int) -> str | None:
        self.failure()
        return self._first.how_it_ended if rank == 0 and self._first is not None and self._first.ended else None

    def failure(self) -> str | None:
        try:
            while True:
                self._family.hear(0)
        except TimeoutError:
            return None


def hosts_of(hellos: Sequence[Mapping[str, Any]]) -> list[int]:
    """By rank, numbers in the order in which hosts first appear. A network namespace of its own is a host: it has its own
    links, as in a rack or a container, though one kernel runs several."""
    found = [(hello["machine"], hello["network"]) for hello in hellos]
    seen = list(dict.fromkeys(found))
    return [seen.index(each) for each in found]


def places(environment: Mapping[str, str], colocated: bool) -> list[int]:
    """By torchrun's rank: the place in a crew, which has its workers first.

    `colocated`: the second half of each host's ranks are parameter servers. All hosts have as many ranks as this one.
    """
    ranks, here = int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    if not colocated:
        return list(range(ranks))
    by_role = [rank for rank in range(ranks) if rank % here < here // 2] + [
        rank for rank in range(ranks) if rank % here >= here // 2
    ]
    return [by_role.index(rank) for rank in range(ranks)]


def publish(address: str | None) -> str:
    """Under torchrun: tell all ranks the coordinator's address, through the job's own store; returns it.

    `address`: rank 0's; None on the others. Raises CommandFailed.
    """
    from datetime import timedelta

    import torch.distributed as dist

    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port, rank = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    try:
        store = dist.TCPStore(
            host,
            int(port),
            is_master=address is not None and not hosted,
            wait_for_workers=False,
            timeout=timedelta(seconds=_MEET_S),
        )
        if address is not None:
            store.set(_ADDRESS_KEY, address)
            _kept.append(store)  # it serves the others until we end
            return address
        return str(store.get(_ADDRESS_KEY).decode())
    except (RuntimeError, ValueError) as error:
        told = str(error).partition("\n")[0]
        raise CommandFailed(
            f"rank {rank} did not meet rank 0 at MASTER_ADDR:MASTER_PORT = {host}:{port} within {_MEET_S} s: {told}"
        ) from error


_kept: list[object] = []
