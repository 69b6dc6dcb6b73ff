"""The summary of many runs: a table for people, JSON for the rest."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.verdict import Result


def show(results: Sequence[Result], console: Console) -> None:
    """By fault and policy; then every run that did not end as promised."""
    table = Table(title="Faults in the middle of a training", title_justify="left", caption_justify="left")
    table.caption = (
        "Seconds, median and worst. Error: from the fault to the error on the last rank that was not hit.\n"
        "Again: from the fault to the end of the first whole step on the last rank. Pause: the longest between two steps."
    )
    for heading in ("fault", "on loss", "promised"):
        table.add_column(heading)
    for heading in ("runs", "as promised", "in a step", "error", "again", "pause"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.scenario, result.policy), []).append(result)
    for (scenario, policy), group in sorted(groups.items()):
        kept = sum(not result.problems for result in group)
        table.add_row(
            scenario,
            policy,
            group[0].promise,
            str(len(group)),
            str(kept) if kept == len(group) else f"[red]{kept}[/red]",
            str(sum(result.in_a_step for result in group)),
            _spread(result.error_s for result in group),
            _spread(result.again_s for result in group),
            _spread(result.pause_s for result in group),
        )
    console.print(table)
    broken = [result for result in results if result.problems]
    for result in broken:
        console.print(f"\nseed {result.seed}: {result.scenario}, {result.policy}, {result.workers} workers", style="red")
        for problem in result.problems:
            console.print(f"  {problem}", markup=False, highlight=False)
        console.print(f"  again: python -m tests.faults --repeat {result.seed}", markup=False, highlight=False)
    console.print(
        f"\n{len(results)} runs, {len(results) - len(broken)} as promised, "
        f"{sum(result.in_a_step for result in results)} hit in the middle of a step, "
        f"{sum(result.took_s for result in results) / 60:.0f} minutes"
    )


def save(results: Sequence[Result], path: Path) -> None:
    path.write_text(json.dumps([asdict(result) for result in results], indent=1))


def _spread(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f}  {max(known):.2f}" if known else ""
