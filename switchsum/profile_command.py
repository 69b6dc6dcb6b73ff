"""`switchsum profile`: runs a training and leaves a trace and features of each rank."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum.autoload import CAPTURE, LOADED, PROFILE
from switchsum.bench_capture_command import run_training
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import CommandFailed, require

if TYPE_CHECKING:
    from switchsum.measure.features import Features
    from switchsum.profile_plan import ProfilePlan

_RATE = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)(?:bit(?:/s)?)?", re.IGNORECASE | re.ASCII)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_LEAST_RATE_BPS = 1e4


def profile(
    command: Annotated[
        list[str], typer.Argument(help="The training, such as torchrun train.py; write -- before it.", metavar="COMMAND...")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the files of all ranks; it must hold no other profile.")] = Path(
        "profile"
    ),
    steps: Annotated[int | None, typer.Option(help="Steps to time, without a profiler.  [default: 20]")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps to skip before, at least 2.  [default: 5]")] = None,
    traced: Annotated[int | None, typer.Option(help="Steps for torch.profiler, after those.  [default: 5]")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name in tables.  [default: the script's]")] = None,
    link: Annotated[
        str | None, typer.Option(help="Rate of the worker's link, such as 25G or 100Mbit/s, if you know it.")
    ] = None,
) -> None:
    """Run a training and profile some of its steps: per rank a torch.profiler trace and a file of features.

    Nothing in the script has to change, and it computes what it would compute otherwise, to its end. The exit status is the
    training's.
    """
    require("profile", {"torch": "torch"})
    with tempfile.TemporaryDirectory(prefix="switchsum-profile-") as folder:
        plan = _plan(command, output, Path(folder), name, link, {"steps": steps, "warmup": warmup, "traced": traced})
        status, ended_by = run_training(command, {PROFILE: plan.as_text()})
        notes = _notes(Path(folder))
        loaded = (Path(folder) / LOADED).exists()
    written = _written(output, notes)
    ended = f" (it ended with status {status})" if status else ""
    if not written:
        with suppress(OSError):
            output.rmdir()  # if there is nothing else in it
        raise CommandFailed(f"nothing was profiled: {_why(loaded, notes, plan, status, ended_by)}{ended}", status or 1)
    for line in _summary(output, written, notes, plan):
        typer.echo(line, err=True)
    if status:
        typer.echo(f"the training ended with status {status}", err=True)
    raise typer.Exit(status)


def _plan(
    command: Sequence[str], output: Path, notes: Path, name: str | None, link: str | None, counts: dict[str, int | None]
) -> ProfilePlan:
    """Everything that can be known to fail before the training takes its time. Raises CommandFailed."""
    from switchsum.profile_plan import ProfilePlan, name_like

    for variable, other in ((CAPTURE, "bench capture"), (PROFILE, "profile")):
        if variable in os.environ:
            raise CommandFailed(
                f"this runs inside `switchsum {other}` already; one can watch a training at a time", EXIT_MISUSED
            )
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise CommandFailed("TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from loading what profiles; unset it", EXIT_MISUSED)
    if shutil.which(command[0]) is None:
        hint = "; write its words apart, not as one" if " " in command[0] else ""
        raise CommandFailed(f"there is no program {command[0]!r} to run{hint}", status=127)
    script = next((word for word in command if word.endswith(".py")), command[0])
    chosen = {what: count for what, count in counts.items() if count is not None}
    link_bps = None if link is None else link_rate_bps(link)
    try:
        plan = ProfilePlan(
            output.absolute(),
            name_like(Path(script).stem) if name is None else name,
            link_bps=link_bps,
            command=tuple(command),
            notes=notes,
            **chosen,
        )
    except ValueError as error:
        raise CommandFailed(f"--{error}", EXIT_MISUSED) from error
    try:
        output.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for pattern in ("rank*.trace.json*", "features.rank*.json") for path in output.glob(pattern))
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise CommandFailed(f"--output {output} cannot be written: {error.strerror}", EXIT_MISUSED) from error
    if there:
        raise CommandFailed(f"--output {output} holds a profile already ({there[0]}); name another folder", EXIT_MISUSED)
    return plan


def link_rate_bps(text: str) -> float:
    """Of "25G", "100Mbit/s", "100 mbit". Raises CommandFailed."""
    from switchsum.measure.features import LARGEST_RATE_BPS

    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise CommandFailed(f"--link {text!r} is not a rate, such as 25G or 100 Mbit/s", EXIT_MISUSED)
    rate_bps = float(match[1]) * _PREFIXES[match[2].lower()]
    if not _LEAST_RATE_BPS <= rate_bps <= LARGEST_RATE_BPS:
        raise CommandFailed(f"--link {text} is out of range: 10 kbit/s to 1000 Tbit/s", EXIT_MISUSED)
    return rate_bps


def _notes(folder: Path) -> list[dict[str, Any]]:
    """What the ranks said of themselves, of each rank its last process (torchrun may have restarted it)."""
    last: dict[int, dict[str, Any]] = {}
    for path in folder.glob("*.json"):
        note = json.loads(path.read_text())
        if note["rank"] not in last or last[note["rank"]]["began_s"] < note["began_s"]:
            last[note["rank"]] = note
    return [last[rank] for rank in sorted(last)]


def _written(output: Path, notes: Sequence[dict[str, Any]]) -> list[Features]:
    from switchsum.measure.features import Features

    paths = (output / f"features.rank{note['rank']}.json" for note in notes)
    return [Features.load(path) for path in paths if path.exists()]


def _why(loaded: bool, notes: Sequence[dict[str, Any]], plan: ProfilePlan, status: int, ended_by: str) -> str:
    """Why no rank wrote anything. `loaded`: some process of the training had torch and this package; `ended_by`: a signal."""
    broken = next((note for note in notes if note["error"]), None)
    if broken is not None:
        return f"rank {broken['rank']}: {broken['error']}"
    if ended_by:
        return f"{ended_by} ended the training before the {plan.needed} steps that it takes"
    if not loaded:
        return "no process of it imported torch together with switchsum; install switchsum where the training's torch is"
    if not notes and status:
        return "the training ended before its second step; what it printed says why"
    if not notes:
        return "no process of it made two steps with an optimizer of torch.optim, which is how steps are told apart"
    note = notes[0]
    if note["state"] == "began":
        return f"rank {note['rank']} was ended before the {plan.needed} steps that it takes; ask for fewer (--steps, --warmup)"
    return (
        f"rank {note['rank']} made {note['steps']} steps, and it takes {plan.needed}; let it run for longer, or ask for fewer "
        "(--steps, --warmup, --traced)"
    )


def _summary(output: Path, written: Sequence[Features], notes: Sequence[dict[str, Any]], plan: ProfilePlan) -> Iterator[str]:
    from switchsum.measure.intervals import half_width

    first = written[0]
    yield f"{output}: features of {len(written)} of {first.workers} ranks, {first.architecture}: {first.architecture_rule}"
    step_s = first.mean_step_s
    shares = [
        ("computing", first.compute_s),
        ("input", first.input_s),
        ("exposed communication", first.exposed_s),
        ("rest", first.rest_s),
    ]
    told = ", ".join(f"{what} {100 * statistics.fmean(seconds) / step_s:.1f} %" for what, seconds in shares)
    yield (
        f"rank {first.source['rank']}: a step takes {1e3 * step_s:.2f} ms +-{1e3 * half_width(first.step_s):.2f} "
        f"({len(first.step_s)} steps): {told}"
    )
    yield (
        f"a step has {first.flops / 1e6:,.2f} MFLOP, {first.memory_bytes / 1e6:,.2f} MB of memory traffic, "
        f"{first.input_bytes / 1e6:,.2f} MB of input, {first.gradient_bytes / 1e6:,.2f} MB of gradients in "
        f"{len(first.buckets)} buckets"
    )
    slower = first.source["profiling"]["traced_to_plain"]
    if slower is not None:
        yield f"traced steps took {slower:.2f} times as long as these; the figures above are of steps without a profiler"
    said: dict[str, list[int]] = {}
    for note in notes:
        for line in [*note["lines"], *([note["error"]] if note["error"] else [])]:
            said.setdefault(line, []).append(note["rank"])
    for line, ranks in said.items():
        yield f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {line}"
