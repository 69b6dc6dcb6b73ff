"""Does `switchsum bench` measure what others measure? `python -m tests.measure.crosscheck`, as root.

In one emulated rack with a bridge, run by run: p2p-bandwidth over tcp beside iperf3, and allreduce over Gloo beside
a plain loop of torch.distributed. Prints the ratio of both with its 95 % interval. Needs iperf3 (Debian package iperf3).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from switchsum import bench_grounds
from switchsum.bench_sites import RackSite
from switchsum.bmv2_topologies import runner
from switchsum.measure import intervals
from switchsum.measure.allreduce import AllReduce
from switchsum.measure.calls import Bandwidth
from switchsum.measure.experiment import Case, Experiment, Plan, Way
from switchsum.measure.manifest import Buffer
from switchsum.measure.rows import Row
from switchsum.measure.samples import Series

ROOT = Path(__file__).resolve().parents[2]
PORT = 29_511  # of the plain loop's meeting, in namespaces of our own
PACKAGE = "iperf3"


def command_in(site: RackSite, host: int, command: Sequence[str]) -> list[str]:
    """`command` in a host's namespace."""
    return [*site.prefix_of_host(host), *command]


class BesideIperf(Bandwidth):
    """After each run: iperf3 over the same link, as long. `reference`: MB/s."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.reference: list[float] = []

    def _run(self, row: Series, way: Way, number: int) -> None:
        super()._run(row, way, number)
        site = self._crews[way.name].site
        assert isinstance(site, RackSite)
        server_host = site.hosts[1]
        address = self._crews[way.name].hellos[1]["address"]
        server = subprocess.Popen(command_in(site, server_host, ["iperf3", "-s", "-1", "--forceflush"]), stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            server.stdout.readline()  # "-----", once it listens
            client = command_in(site, 0, ["iperf3", "-c", address, "-J", "-t", f"{round(self._plan.duration_s)}"])
            told = json.loads(subprocess.run(client, capture_output=True, text=True, check=True, timeout=120).stdout)
        finally:
            server.kill()
            server.wait()
        self.reference.append(told["end"]["sum_received"]["bits_per_second"] / 8e6)


class BesidePlainLoop(AllReduce):
    """After each run: the plain loop on the same hosts, as long. `reference`: seconds of an operation, the slowest rank's.

    Its processes live as long as ours, so that both have connections that know their path.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.reference: list[float] = []
        self._loops: list[subprocess.Popen[str]] = []

    def _run(self, row: Series, way: Way, number: int) -> None:
        super()._run(row, way, number)
        site = self._crews[way.name].site
        assert isinstance(site, RackSite)
        if not self._loops:
            command = [sys.executable, "-m", "tests.measure.plain_loop", str(row.size_bytes // 4), f"{self._plan.duration_s}"]
            self._loops = [
                subprocess.Popen(
                    command_in(site, host, command),
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                    env=self._environment(site, host),
                )
                for host in range(self._plan.workers)
            ]
        for loop in self._loops:
            assert loop.stdin is not None
            loop.stdin.write("go\n")
        times = [json.loads(loop.stdout.readline()) for loop in self._loops if loop.stdout is not None]
        self.reference.append(statistics.fmean(map(max, zip(*times, strict=True))))

    def end(self) -> None:
        """No process of ours lives longer than its rack."""
        for loop in self._loops:
            loop.kill()
            loop.wait()

    def _environment(self, site: RackSite, host: int) -> Mapping[str, str]:
        import os

        return {**os.environ, **runner.environment(site.described, host), "MASTER_PORT": str(PORT), "PYTHONPATH": str(ROOT)}


def compare(kind: type[Any], plan: Plan, rack: Path, rate: str) -> tuple[Row, list[float]]:
    """Our row, and the reference's runs."""
    described = bench_grounds.described_rack(rack, plan.workers, rate, 0.0, None, None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-crosscheck-")))
        ground = bench_grounds.in_racks(plan, described, False, "", folder, stack, _silent)
        experiment: Experiment = kind(plan, ground.crews, _tell, lambda series: None)
        stack.callback(getattr(experiment, "end", bool))
        [series] = experiment.run()
    return Row.of(series), experiment.reference  # type: ignore[attr-defined]


def _silent(what: str) -> None:
    return None


def _tell(what: str, step: int, steps: int) -> None:
    print(f"# {step}/{steps} {what}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rack", type=Path, default=ROOT / "bmv2_topologies" / "racks" / "four.yaml")
    parser.add_argument("--rate", default="100M")
    parser.add_argument("--duration", type=float, default=5.0, help="seconds of a run")
    parser.add_argument("--only", choices=("tcp", "gloo"), help="one of the two comparisons")
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        print(f"error: iperf3 is not on PATH; install Debian's package {PACKAGE}", file=sys.stderr)
        return 2
    payload = Case("skew", [Buffer(1_000_000)] * 6 + [Buffer(10_000)] * 3 + [Buffer(10)])
    stream = Plan([Way("tcp")], [payload], workers=1, servers=1, duration_s=options.duration, warmup_s=1.0)
    if options.only != "gloo":
        row, iperf = compare(BesideIperf, stream, options.rack, options.rate)
        _show("p2p-bandwidth, tcp / iperf3", row.headline.runs, iperf, "MB/s")
    for size in (1 << 20, 16 << 20) if options.only != "tcp" else ():
        sums = Plan([Way("gloo")], [Case("", [Buffer(size, "float32")])], workers=4, duration_s=options.duration, warmup_s=1.0)
        row, plain = compare(BesidePlainLoop, sums, options.rack, options.rate)
        _show(f"allreduce of {size >> 20} MiB, gloo / plain loop", row.time.runs, plain, "s")
    return 0


def _show(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str) -> None:
    found = intervals.ratio(ours, theirs)
    middle = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    print(
        f"{what}: {statistics.fmean(ours):.4g} / {statistics.fmean(theirs):.4g} {unit} = {found.value:.4f} "
        f"(95 % {found.low:.4f} to {found.high:.4f}; median of {len(ours)} pairs {middle:.4f})"
    )


if __name__ == "__main__":
    sys.exit(main())
