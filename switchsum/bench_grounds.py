"""Prepares the ground for a benchmark: starts what a place needs, gathers its ranks, and says what a reader must know about it.

Everything that is started ends with the ExitStack that is handed in. What a person can mend is raised as CommandFailed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchsum.failures import CommandFailed, require

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile
    from switchsum.measure.crew import Crew
    from switchsum.measure.experiment import Plan

EXIT_MISUSED = 2
SWITCH_MODULES = {"llvmlite": "switch", "p4": "switch", "p4runtime_sh": "switch"}

# What suits Gloo and costs the switch nothing: whole TCP runs of 64 KB pass a link in one piece, a send buffer fits its queue.
_BURST_BYTES = 128 << 10
_QUEUE_BYTES = 512 << 10
_QUEUE_S = 0.008

Doing = Callable[[str], None]  # hears what is going on


@dataclass
class Ground:
    """Where the experiment stands. `crews`: who runs each transport; `links`: of the workers, as the rack's JSON has them."""

    crews: dict[str, Crew]
    title: str
    notes: list[str] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)


def _needs_switch(plan: Plan) -> bool:
    return any(way.needs_switch for way in plan.ways)


def described_rack(
    file: Path,
    workers: int | None,
    rate: str | None,
    loss: float | None,
    elements: int | None,
    switch: str | None,
    queue_bytes: int = _QUEUE_BYTES,
    rate_option: str = "--rate",
) -> RackFile:
    """The workers' rack with our switch, options applied. `queue_bytes`: of each link and direction, at least; `rate_option`:
    what `rate` is called in errors. Raises CommandFailed."""
    require("bench", SWITCH_MODULES)
    from switchsum.bmv2_topologies import namespaces, rack_file
    from switchsum.bmv2_topologies.switch_process import KINDS

    try:
        described = rack_file.load(file)
        if workers is not None:
            described = described.with_workers(workers)
        rate_bps = None
        if rate is not None:
            try:
                rate_bps = rack_file.parse_rate(rate)
            except ValueError as error:
                raise CommandFailed(f"{rate_option} {error}", EXIT_MISUSED) from error
        fastest = max((worker.link.rate_bps or 0 for worker in described.workers), default=0) if rate_bps is None else rate_bps
        described = described.with_links(
            rate_bps=rate_bps,
            burst_bytes=max(_BURST_BYTES, *(worker.link.burst_bytes for worker in described.workers)),
            queue_bytes=max(queue_bytes, int(_QUEUE_S * fastest / 8)),
        )
        described = described.changed(kind=switch, elements=elements, loss=loss, name=f"bench-{os.getpid()}")
    except rack_file.RackError as error:
        raise CommandFailed(str(error), EXIT_MISUSED) from error
    if described.kind not in KINDS:
        raise CommandFailed(f"a {described.kind} sums nothing: choose --switch {' or '.join(KINDS)}", EXIT_MISUSED)
    if problem := namespaces.what_is_missing():
        raise CommandFailed(f"a rack is made of network namespaces, but {problem}")
    return described


def on_loopback(plan: Plan, loss: float, folder: Path, stack: ExitStack, doing: Doing) -> Ground:
    from switchsum.bench_sites import LoopbackSite
    from switchsum.demo.family import Family
    from switchsum.demo.options import BadOption, DemoOptions
    from switchsum.demo.rack import RackError
    from switchsum.measure.crew import BenchmarkFailed

    options = None
    if _needs_switch(plan):
        require("bench", SWITCH_MODULES)
        try:
            options = DemoOptions(
                workers=plan.workers, loss=loss, elements=plan.elements, seed=plan.seed, timeout_s=plan.timeout_s
            )
        except BadOption as error:
            raise CommandFailed(str(error), EXIT_MISUSED) from error
    _prepare(plan, doing)
    family = stack.enter_context(Family())
    who = _who(plan)
    doing(f"starting {who}")
    try:
        site = LoopbackSite(family, folder / "workers", plan.workers, plan.servers, options, plan.timeout_s)
        site.start()
        crew = site.crew()
    except (RackError, BenchmarkFailed) as error:
        raise CommandFailed(str(error)) from error
    stack.callback(crew.close)
    notes = ["all on this machine's loopback: linkbw is UDP or TCP payload of one process, and only the processor is a limit"]
    if loss:
        others = ", ".join(way.label for way in plan.ways if not way.needs_switch)
        notes.append(
            f"the switch dropped {100 * loss:g} % of the packets in each direction; {others or 'others'} ran without loss"
        )
    return Ground({way.name: crew for way in plan.ways}, f"{who} on loopback", notes)


def _who(plan: Plan) -> str:
    workers = f"{plan.workers} worker{'s' if plan.workers > 1 else ''}"
    return workers + (f" and {plan.servers} parameter server{'s' if plan.servers > 1 else ''}" if plan.servers else "")


def in_racks(
    plan: Plan,
    described: RackFile,
    colocated: bool,
    bmv2: str,
    folder: Path,
    stack: ExitStack,
    doing: Doing,
    module: str | None = None,
) -> Ground:
    """`colocated`: parameter servers share the workers' hosts; else each has one of its own. `module`: that ranks run,
    measure.worker if None."""
    from switchsum.bench_sites import Racks, RackSite
    from switchsum.bmv2_topologies.namespaces import NetworkError
    from switchsum.bmv2_topologies.rack_file import RackError
    from switchsum.bmv2_topologies.switch_process import SwitchFailed
    from switchsum.demo.family import Family
    from switchsum.measure.crew import BenchmarkFailed

    _prepare(plan, doing)
    crews: dict[bool, Crew] = {}
    hosts = max(plan.workers, plan.servers) if colocated else plan.workers + plan.servers
    doing(f"bringing up racks of {hosts} hosts")
    try:
        racks = stack.enter_context(Racks(described, bmv2=bmv2, seed=plan.seed))
        family = stack.enter_context(Family())  # entered last: workers end before their racks go
        sites = {}
        for switched in sorted({way.needs_switch for way in plan.ways}):
            rack = racks.switched() if switched else racks.bridged(hosts)
            servers = 0 if switched else plan.servers
            name = "switch" if switched else "bridge"
            sites[switched] = RackSite(family, folder / name, rack, plan.workers, servers, plan.timeout_s)
        doing(f"starting {_who(plan)}")
        for site in sites.values():
            site.start(module)
        for switched, site in sites.items():
            crews[switched] = site.crew()
            stack.callback(crews[switched].close)
    except (RackError, NetworkError, SwitchFailed, BenchmarkFailed, OSError) as error:
        raise CommandFailed(str(error)) from error
    notes = []
    link = described.workers[0].link
    rates = sorted({worker.link.rate_bps for worker in described.workers if worker.link.rate_bps is not None})
    if rates:
        told = " and ".join(f"{rate / 1e6:g}" for rate in rates)
        notes.append(
            f"links: tbf of {told} Mbit/s, burst {described.burst_of(link)} B, queue {link.queue} B in each "
            "direction, alike at switch and bridge; linkbw is what tbf counted (Ethernet and all headers); more "
            "than 100 %: the burst's credit from the pause before each operation"
        )
    else:
        notes.append("links are as fast as the machine; linkbw is the interfaces' bytes")
    if False in sites:
        notes.append(f"{', '.join(way.label for way in plan.ways if not way.needs_switch)}: over a plain bridge")
    losses = {(worker.loss.into, worker.loss.out) for worker in described.workers}
    if losses != {(0.0, 0.0)} and True in sites:
        told = " or ".join(f"{100 * into:g} % in, {100 * out:g} % out" for into, out in sorted(losses))
        notes.append(f"the switch dropped {told} of each worker's packets; rows over the bridge ran without loss")
    place = f", {'colocated' if colocated else 'dedicated'}," if plan.servers else ""
    title = f"{_who(plan)}{place} in a rack{f', {described.kind}' if True in sites else ''}"
    chosen = {way.name: crews[way.needs_switch] for way in plan.ways}
    return Ground(chosen, title, notes, described.as_json()["workers"])


def on_hosts(plan: Plan, stack: ExitStack, doing: Doing, colocated: bool = False) -> Ground:
    """`colocated`: parameter servers are the second half of each host's ranks, else the last ranks."""
    from switchsum.bench_sites import HostsSite, publish
    from switchsum.demo.family import Family
    from switchsum.measure.crew import BenchmarkFailed

    _prepare(plan, doing)
    family = stack.enter_context(Family())
    site = HostsSite(family, os.environ, plan.workers, plan.servers, colocated)
    doing(f"waiting for {len(site.labels)} ranks")
    publish(site.address)
    site.start()
    try:
        crew = site.crew()
    except BenchmarkFailed as error:
        raise CommandFailed(str(error)) from error
    stack.callback(crew.close)
    hosts = len(set(site.hosts))
    note = "linkbw: the interface's bytes where a rank has it for itself, else UDP or TCP payload"
    title = f"{_who(plan)} on {hosts} host{'s' if hosts > 1 else ''}"
    return Ground({way.name: crew for way in plan.ways}, title, [note])


def follow(plan: Plan, colocated: bool = False) -> int:
    """A rank other than 0 under torchrun: does what rank 0 says."""
    from switchsum.bench_sites import places, publish
    from switchsum.measure import worker

    _prepare(plan, lambda _: None)
    address, rank = publish(None), os.environ["RANK"]
    os.environ["RANK"] = str(places(os.environ, colocated)[int(rank)])
    status = worker.main(address)
    if status:
        raise CommandFailed(f"rank {rank}: rank 0 ended the benchmark; its output says why")
    return status


def _prepare(plan: Plan, doing: Doing) -> None:
    """Compile once, before workers start side by side."""
    if not any(way.compiled for way in plan.ways):
        return
    doing("loading the packet engine (compiled once on a machine, which takes up to a minute)")
    from switchsum.host_agent.prepare import prepare
    from switchsum.measure import datagrams

    prepare()
    datagrams.prepare()
