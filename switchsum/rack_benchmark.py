"""python -m switchsum.rack_benchmark [--bmv2 PATH] [RACK.yaml ...]: what sums reach on emulated racks, switch beside switch.

For each rack, kind of switch, packet size and loss, every worker sums a float32 tensor over and over, from NumPy, without
PyTorch. Every sum is compared bit for bit with what quantizer.reference_sum says. A repetition's time is the slowest worker's,
from a common start. Configurations take turns, and the turns are repeated, so that what else the machine does meets all alike.

goodput: bits of the tensor that a worker gets summed each second. share of link: goodput beside what the link can carry of it,
which is its rate less the headers (Ethernet 14, IPv4 20, UDP 8, ours: what tbf counts). packets/s: contributions to the switch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from switchsum import p4src

TURNS = 2
REPETITIONS = 5  # in each turn, after one that warms up
_HEADERS = 14 + 20 + 8 + 24
_SEED = 20261129
RACKS = Path(p4src.__path__[0]).parent / "bmv2_topologies" / "racks"


@dataclass
class Configuration:
    """One row. `megabytes`: of the tensor, 1e6 bytes."""

    rack: str
    kind: str
    elements: int
    loss: float
    megabytes: float
    seconds: list[float] = field(default_factory=list)  # of each repetition
    wrong: int = 0
    resent: int = 0  # packets, all workers, timed repetitions
    sent: int = 0
    cpu: list[float] = field(default_factory=list)  # busy share of the machine's cores in each turn


def work(megabytes: float, elements: int, repetitions: int) -> None:
    """A worker's part: prints one line of JSON."""
    import threading

    import numpy as np

    from switchsum.host_agent.agent import Agent, Terms
    from switchsum.host_agent.quantizer import reference_sum

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = Agent.join(
        Terms(
            controller=os.environ["SWITCHSUM_CONTROLLER"],
            job_name="rack-benchmark",
            rank=rank,
            world_size=world_size,
            data_address=os.environ["SWITCHSUM_DATA_ADDRESS"],
            timeout_s=60.0,
            peer_timeout_s=300.0,
        )
    )

    def total(values: Any) -> Any:
        target = np.empty_like(values)
        done = threading.Event()
        failures: list[Exception] = []

        def finished(error: Exception | None) -> None:
            failures.extend([error] if error else [])
            done.set()

        agent.all_reduce(values, target, f"benchmark {values.dtype}[{values.size}]", finished)
        done.wait()
        if failures:
            raise failures[0]
        return target

    count = int(megabytes * 1e6 / 4)
    inputs = np.stack([np.random.default_rng(_SEED + r).standard_normal(count, np.float32) for r in range(world_size)])
    expected = reference_sum(inputs, elements)
    mine = np.ascontiguousarray(inputs[rank])
    seconds, wrong = [], 0
    before = agent.counters()
    for repetition in range(repetitions + 1):
        total(np.zeros(1, np.int32))  # a common start
        started = time.perf_counter()
        found = total(mine)
        if repetition:
            seconds.append(time.perf_counter() - started)
        else:
            before = agent.counters()
        wrong += int((found.view(np.uint32) != expected.view(np.uint32)).sum())
    after = agent.counters()
    agent.close()
    counts = {name: after[name] - before[name] for name in ("packets_sent", "timeouts", "early_repairs")}
    print(json.dumps({"seconds": seconds, "wrong": wrong, **counts}), flush=True)


def _busy() -> tuple[int, int]:
    """(busy, all) clock ticks of all cores since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(row: Configuration, file: Path, bmv2: str) -> None:
    """One turn of a row, on a rack of its own. Raises RuntimeError with what the workers said when it fails."""
    from switchsum.bmv2_topologies import rack_file, runner
    from switchsum.bmv2_topologies.rack import Rack

    described = rack_file.load(file).changed(kind=row.kind, elements=row.elements, loss=row.loss, name=f"bench-{os.getpid()}")
    results: list[dict[str, Any]] = []
    others: list[str] = []

    def show(worker: str, line: str) -> None:
        if line.startswith("{"):
            results.append(json.loads(line))
        else:
            others.append(f"[{worker}] {line}")

    task = [sys.executable, "-m", "switchsum.rack_benchmark", "--work", f"{row.megabytes:g}", str(row.elements)]
    with Rack(described, bmv2=bmv2, seed=_SEED) as rack:
        busy, ticks = _busy()
        failures: list[str] = []
        if runner.run(rack.record.rack, task, show, failures.append, rack.failure):
            raise RuntimeError("; ".join([*failures, *others[-10:]]))
    busy_after, ticks_after = _busy()
    row.cpu.append((busy_after - busy) / (ticks_after - ticks))
    row.seconds += [max(times) for times in zip(*(result["seconds"] for result in results), strict=True)]
    row.wrong += sum(result["wrong"] for result in results)
    row.sent += sum(result["packets_sent"] for result in results)
    row.resent += sum(result["timeouts"] + result["early_repairs"] for result in results)


def columns(row: Configuration, file: Path) -> dict[str, Any]:
    """The row's figures. goodput in Mbit/s; share of link: None where nothing limits the link."""
    from switchsum.bmv2_topologies import rack_file

    described = rack_file.load(file)
    bits = row.megabytes * 8e6
    median = statistics.median(row.seconds)
    blocks = -(-int(row.megabytes * 1e6 / 4) // row.elements)
    rate = described.workers[0].link.rate_bps
    share = row.elements * 4 / (row.elements * 4 + _HEADERS)
    return {
        "goodput": bits / median / 1e6,
        "slowest": bits / max(row.seconds) / 1e6,
        "fastest": bits / min(row.seconds) / 1e6,
        "share": None if rate is None else bits / median / (rate * share),
        "packets": blocks * len(described.workers) / median,
        "resent": row.resent / max(row.sent, 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m switchsum.rack_benchmark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("racks", nargs="*", type=Path, help="rack files; without any: four, four-100m and four-1g")
    parser.add_argument("--bmv2", metavar="PATH", help="measure BMv2 beside the softswitch: this simple_switch_grpc")
    parser.add_argument("--elements", type=int, action="append", help="packet sizes (default: 64, 128 and 256)")
    parser.add_argument("--loss", type=float, action="append", help="loss in each direction (default: 0 and 0.01)")
    parser.add_argument("--megabytes", type=float, default=4.0, help="of the tensor, for the softswitch; BMv2 gets a quarter")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", type=Path, help="write raw samples and environment here")
    parser.add_argument("--work", nargs=2, metavar=("MEGABYTES", "ELEMENTS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(float(options.work[0]), int(options.work[1]), REPETITIONS)
        return 0
    from switchsum.bmv2_topologies.namespaces import what_is_missing

    if problem := what_is_missing():
        parser.error(f"racks are made of network namespaces, but {problem}")
    files = options.racks or [RACKS / f"{name}.yaml" for name in ("four", "four-100m", "four-1g")]
    rows = [
        (Configuration(file.stem, kind, elements, loss, options.megabytes / (4 if kind == "bmv2" else 1)), file)
        for file in files
        for loss in options.loss or [0.0, 0.01]
        for elements in options.elements or [64, 128, 256]
        for kind in (["softswitch", "bmv2"] if options.bmv2 else ["softswitch"])
    ]
    _report(rows, options.turns, options.bmv2 or "", options.json)
    return 1 if any(row.wrong for row, _ in rows) else 0


def _report(rows: list[tuple[Configuration, Path]], turns: int, bmv2: str, json_file: Path | None) -> None:
    from rich.console import Console
    from rich.progress import track

    console = Console(width=128, highlight=False)
    started, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
    for row, file in track([each for _ in range(turns) for each in rows], "measuring", console=Console(stderr=True)):
        measure(row, file, bmv2)
    console.print(
        f"{started}, {os.cpu_count()} cores, load {load:.1f} before; {turns} x {REPETITIONS} repetitions; medians (range)"
    )
    console.print(
        "| rack | switch | elements | loss | goodput per worker, Mbit/s | share of link | packets/s | resent | CPU | wrong |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for row, file in rows:
        found = columns(row, file)
        share = "-" if found["share"] is None else f"{100 * found['share']:.1f} %"
        spread = f"{found['goodput']:.1f} ({found['slowest']:.1f} to {found['fastest']:.1f})"
        console.print(
            f"| {row.rack} | {row.kind} | {row.elements} | {row.loss:g} | {spread} | {share} | {found['packets']:,.0f} "
            f"| {100 * found['resent']:.1f} % | {100 * statistics.mean(row.cpu):.0f} % | {row.wrong} |",
            soft_wrap=True,
        )
    if json_file is not None:
        text = {"started": started, "load": load, "cores": os.cpu_count(), "kernel": os.uname().release}
        json_file.write_text(
            json.dumps({**text, "rows": [{**asdict(row), **columns(row, file)} for row, file in rows]}, indent=1)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
