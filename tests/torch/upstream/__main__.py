"""Runs PyTorch's own distributed tests over the switchsum backend and over Gloo, and compares. Needs the extra "dev".

    python -m tests.torch.upstream -k all_reduce
    python -m tests.torch.upstream --results /tmp/upstream.json --table docs/pytorch-conformance.md

All of them take a quarter of an hour on two cores. One embedded switch serves the whole run, or the one that
SWITCHSUM_CONTROLLER names.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from switchsum.embedded import EmbeddedSwitch

if TYPE_CHECKING:  # it reads the environment that main() sets
    from tests.torch.upstream.suite import Outcome

BACKENDS = ("gloo", "switchsum")
PORTS = 64  # a test that is stopped leaves its jobs until their leases end

Outcomes = dict[str, dict[str, "Outcome"]]  # by backend and test


def chosen(patterns: list[str], names: list[str]) -> list[str]:
    """The tests that the patterns mean; raises ValueError for a pattern that means none."""
    found: list[str] = []
    for pattern in patterns:
        wild = pattern if {"*", "?"} & {*pattern} else f"*{pattern}*"
        matching = [pattern] if pattern in names else fnmatch.filter(names, wild)
        if not matching:
            raise ValueError(f"no test of PyTorch's has {pattern!r} in its name")
        found += matching
    return found


def read(path: Path) -> Outcomes:
    from tests.torch.upstream.suite import Outcome

    known = json.loads(path.read_text()) if path.exists() else {}
    return {backend: {name: Outcome(**outcome) for name, outcome in known.get(backend, {}).items()} for backend in BACKENDS}


def write(path: Path, outcomes: Outcomes) -> None:
    plain = {backend: {name: dataclasses.asdict(outcome) for name, outcome in of.items()} for backend, of in outcomes.items()}
    path.write_text(json.dumps(plain, indent=1))


def run(names: list[str], backends: list[str], limit_s: float, logs: Path, results: Path, outcomes: Outcomes) -> bool:
    """Run these tests and add to `outcomes`; True if none failed that passes over Gloo."""
    from tests.torch.upstream import suite

    console = Console(highlight=False)
    well = True
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for backend in backends:
            task = progress.add_task(backend, total=len(names))
            for name in names:
                progress.update(task, description=f"{backend} {name}")
                over_gloo = outcomes["gloo"].get(name) if backend != "gloo" else None
                known = over_gloo is not None and suite.says_all(name, over_gloo)
                outcome = over_gloo if known else suite.run(backend, name, limit_s, logs / f"{backend}-{name}.log")
                outcomes[backend][name] = outcome
                write(results, outcomes)
                progress.advance(task)
                # What fails over Gloo too is no failure of ours; of Gloo, only if nothing else was asked.
                expected = over_gloo is not None and over_gloo.status == suite.FAILED
                well &= outcome.status != suite.FAILED or expected or backend != backends[-1]
                if not known and outcome.status != suite.SKIPPED:
                    text = f"{backend} {name}: {outcome.status} in {outcome.seconds:.1f} s {outcome.reason}".rstrip()
                    console.print(text, soft_wrap=True, markup=False)
    return well


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, help="only this one; default: both")
    parser.add_argument(
        "-k",
        metavar="PATTERN",
        action="append",
        help="only the test of this name, or those whose name contains this or matches it (* and ?); may be repeated",
    )
    parser.add_argument("--ranks", type=int, default=4, help="default: 4; the few tests that want 8 get 8 in any case")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", default=120, help="for a test, default: 120; longer is failed"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON of outcomes, to which this run's are added")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write a Markdown page of the outcomes, with those in --results"
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep here what the ranks print")
    options = parser.parse_args(arguments)
    os.environ["WORLD_SIZE"] = str(options.ranks)
    try:
        from tests.torch.upstream import suite, table
    except ModuleNotFoundError as error:
        print(f'PyTorch\'s tests did not run: {error}; install switchsum with its extra "dev"', file=sys.stderr)
        return 1
    try:
        names = chosen(options.k or ["*"], suite.names())
    except ValueError as error:
        print(f"PyTorch's tests did not run: {error}", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchsum-upstream-")))
        logs, results = options.logs or folder, options.results or folder / "results.json"
        logs.mkdir(parents=True, exist_ok=True)
        outcomes = read(results)
        if not os.environ.get("SWITCHSUM_CONTROLLER"):
            switch = EmbeddedSwitch(ports=PORTS)
            stack.callback(switch.close)
            os.environ["SWITCHSUM_CONTROLLER"] = switch.controller
        backends = [options.backend] if options.backend else list(BACKENDS)
        well = run(names, backends, options.limit, logs, results, outcomes)
        if options.table:
            options.table.write_text(table.page(outcomes))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
