"""`python -m tests.faults`: trainings on emulated racks, each hit by a fault. Needs root. See docs/faults.md."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from switchsum.bmv2_topologies import namespaces
from tests.faults import report
from tests.faults.campaign import Campaign
from tests.faults.plan import cases, plan
from tests.faults.verdict import Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow (default: 0)")
    parser.add_argument("--minutes", type=float, help="begin no run after that time")
    parser.add_argument("--repeat", type=int, metavar="SEED", help="one run, that of this seed")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose name contains this")
    parser.add_argument("--policy", choices=("gloo", "fail", "wait"), help="only runs with this SWITCHSUM_ON_LOSS")
    parser.add_argument("--out", type=Path, default=Path("build/faults"), help="folder for results and what failed runs left")
    parser.add_argument("--bmv2", default=os.environ.get("SWITCHSUM_BMV2", ""), help="simple_switch_grpc (or SWITCHSUM_BMV2)")
    options = parser.parse_args()
    if problem := namespaces.what_is_missing():
        parser.error(f"a rack is made of network namespaces, but {problem}")
    choices = cases(bmv2=shutil.which(options.bmv2 or "simple_switch_grpc") is not None)
    seeds = [options.repeat] if options.repeat is not None else range(options.seed, options.seed + options.runs)
    plans = [plan(seed, choices) for seed in seeds]
    if options.repeat is None:
        plans = [each for each in plans if options.only in each.scenario.name and options.policy in (None, each.policy)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # taking the rack down
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    results: list[Result] = []
    end = time.monotonic() + options.minutes * 60 if options.minutes else None
    with Campaign(options.out.resolve(), bmv2=options.bmv2, tell=console.print) as campaign:
        for result in campaign.runs(plans):
            results.append(result)
            report.save(results, options.out / "results.json")
            outcome = "[red]NOT AS PROMISED[/red]" if result.problems else "as promised"
            console.print(
                f"{len(results):>4}/{len(plans)} seed {result.seed}: {result.scenario}, {result.policy}, "
                f"{result.workers} workers: {outcome} ({result.took_s:.0f} s)"
            )
            for problem in result.problems:
                console.print(f"       {problem}", markup=False)
            if end is not None and time.monotonic() > end:
                break
    report.show(results, console)
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    sys.exit(main())
