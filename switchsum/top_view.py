"""What `switchsum top` shows: the last two readings as tables, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from switchsum.job_rates import Counted, JobRates, Reading, SwitchRates, rates
from switchsum.printable import printable
from switchsum.quantities import bit_rate, duration, share

_STRAGGLER = 2.0  # times a rank's fair part of the last arrivals, from which on it stands out
_BAR = 10  # columns


@dataclass(frozen=True)
class State:
    """What is known at a moment. `before`: the reading that rates are taken from; `lost_at`, `problem`: since when (seconds, as
    the readings' `at`) and why the controller does not answer; `clock`: the time of day, "12:34:56"."""

    controller: str
    clock: str
    now: Reading | None = None
    before: Reading | None = None
    lost_at: float | None = None
    lost_clock: str = ""
    problem: str = ""


def view(state: State) -> RenderableType:
    """The whole screen."""
    return Group(*_lines(state))


def _lines(state: State) -> Iterator[RenderableType]:
    heading = Text(f"switchsum top  {state.controller}  {state.clock}", style="bold", overflow="ellipsis", no_wrap=True)
    yield heading
    if state.lost_at is not None:
        yield Text(f"controller unreachable since {state.lost_clock}: {printable(state.problem)}", style="bold red")
    if state.now is None:
        return
    reply = state.now.reply
    held = reply.slots_total - reply.slots_free
    yield Text(f"switch {reply.switch_address}: {printable(reply.pipeline)}; {held} of {reply.slots_total} slots held")
    if reply.standby:
        yield Text("this controller stands by; another one is in charge of the switch", style="bold yellow")
    if reply.switch_problem:
        yield Text(f"no counters: {printable(reply.switch_problem)}", style="bold red")
    found = rates(state.now, state.before)
    yield Text()
    yield _jobs(found)
    for job in found.jobs:
        if job.ranks and job.state == "running":
            yield Text()
            yield Text(printable(f"job {job.name}, epoch {job.epoch}:"))
            yield _ranks(job)
    yield Text()
    yield _counted("rejected", {name.lower(): counted for name, counted in found.rejected.items()})
    if found.dropped:
        yield _dropped(found)


def _table(*headings: str) -> Table:
    """The first column takes what the others leave."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold cyan", expand=True)
    for heading in headings:
        first = heading == headings[0]
        table.add_column(
            heading, justify="left" if first else "right", no_wrap=True, overflow="ellipsis", ratio=1 if first else None
        )
    return table


def _jobs(found: SwitchRates) -> RenderableType:
    if not found.jobs:
        return Text("no jobs")
    table = _table("JOB", "STATE", "RANKS", "SLOTS", "GOODPUT", "REPEATED", "STALE", "MISM", "IDLE")
    for job in found.jobs:
        table.add_row(
            Text(printable(f"{job.tenant}/{job.name}" if job.tenant else job.name)),
            job.state,
            f"{len(job.ranks)}/{job.world_size}",
            str(job.slots),
            bit_rate(job.goodput_bps),
            share(job.repeated),
            str(job.stale),
            str(job.mismatched),
            duration(job.idle_s) if job.state == "running" else "-",
        )
    return table


def _ranks(job: JobRates) -> RenderableType:
    table = _table("RANK", "PORT", "GOODPUT", "REPEATED", "LOST", "LAST", "OF RUN", "LEASE", "")
    fair = 1 / len(job.ranks)
    for rank in job.ranks:
        late = rank.last is not None and len(job.ranks) > 1 and rank.last >= min(_STRAGGLER * fair, 0.9)
        table.add_row(
            Text(printable(f"{rank.rank} on {rank.host or 'unnamed'}")),
            str(rank.port),
            bit_rate(rank.goodput_bps),
            share(rank.repeated),
            share(rank.lost),
            share(rank.last),
            share(rank.last_of_run),
            f"{rank.lease_left_s:.1f} s",
            Text(
                "█" * round(_BAR * (rank.last or 0)) + " " * (_BAR - round(_BAR * (rank.last or 0))),
                style="red" if late else "green",
            ),
            style="bold" if late else "",
        )
    return table


def _counted(what: str, counts: dict[str, Counted]) -> Text:
    """ "rejected: unknown_job 12 (+3)"; what grew in the interval in parentheses."""
    told = [
        f"{name} {counted.total:,}" + (f" (+{counted.fresh:,})" if counted.fresh else "")
        for name, counted in counts.items()
        if counted.total
    ]
    return Text(f"{what}: {', '.join(told) or 'none'}")


def _dropped(found: SwitchRates) -> Text:
    """ "dropped on purpose, in/out: port 1 740/667 (+592)"; only the ports where that has happened."""
    told = []
    for port in sorted({port for port, _ in found.dropped}):
        into, out = (found.dropped.get((port, direction), Counted(0, 0)) for direction in ("in", "out"))
        fresh = (into.fresh or 0) + (out.fresh or 0)
        told.append(f"port {port} {into.total:,}/{out.total:,}" + (f" (+{fresh:,})" if fresh else ""))
    return Text(f"dropped on purpose, in/out: {', '.join(told)}")
