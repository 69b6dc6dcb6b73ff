"""`switchsum bench capture`: runs a training and keeps which buckets of gradients it summed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum import __version__
from switchsum.autoload import CAPTURE, CAPTURE_STOPPED, LOADED
from switchsum.bench_grounds import EXIT_MISUSED
from switchsum.failures import EXIT_FAILED, CommandFailed

if TYPE_CHECKING:
    from switchsum.measure.manifest import Manifest, Step

DEFAULT_STEPS = 100
MOST_STEPS = 10_000


def capture(
    command: Annotated[
        list[str], typer.Argument(help="The training, such as torchrun train.py; write -- before it.", metavar="COMMAND...")
    ],
    output: Annotated[Path, typer.Option(help="File for the payload.")] = Path("payload.json"),
    steps: Annotated[int, typer.Option(help="Steps to record; the training goes on to its end.")] = DEFAULT_STEPS,
    name: Annotated[str | None, typer.Option(help="The payload's name in tables.  [default: the file's]")] = None,
) -> None:
    """Run a training and record the buckets of gradients that DistributedDataParallel sums, step by step, for --payload.

    Nothing in the script has to change, and it learns what it would learn otherwise. The exit status is the training's; what
    was recorded before it failed or was ended is written all the same.
    """
    from switchsum.measure.manifest import BadPayload

    called = output.stem if name is None else name
    _check(command, output, steps, called)
    with tempfile.TemporaryDirectory(prefix="switchsum-capture-") as folder:
        status, ended_by = run_training(command, {CAPTURE: f"{steps}:{folder}"})
        try:
            recordings = _recordings(Path(folder))
        except BadPayload as error:  # a type of gradients that no payload has
            raise CommandFailed(f"what was recorded is no payload: {error}", status or EXIT_FAILED) from error
        loaded = (Path(folder) / LOADED).exists()
        stopped = _stopped(Path(folder))
    if not recordings:
        nothing = f"nothing was captured, and {output} was not written: {_why(loaded, stopped, ended_by)}"
        if status:
            raise CommandFailed(f"{nothing} (it ended with status {status})", status)
        raise CommandFailed(nothing)
    payload = _payload(called, command, recordings)
    try:
        payload.save(output)
    except OSError as error:
        raise CommandFailed(f"{output} cannot be written: {error.strerror}") from error
    for line in _summary(payload, output, status, stopped):
        typer.echo(line, err=True)
    raise typer.Exit(status)


def _check(command: Sequence[str], output: Path, steps: int, name: str) -> None:
    """Everything that can be known to fail before the training takes its time. Raises CommandFailed."""
    from switchsum.measure.manifest import BadPayload, Buffer, Manifest, Step

    try:
        Manifest(name, {}, (Step((Buffer(1),)),))
    except BadPayload as error:
        raise CommandFailed(f"{error}; choose another with --name", EXIT_MISUSED) from error
    if not 1 <= steps <= MOST_STEPS:
        raise CommandFailed(f"--steps {steps}: must be from 1 to {MOST_STEPS}", EXIT_MISUSED)
    if output.exists() and not output.is_file():
        raise CommandFailed(f"--output {output} is no file; name one", EXIT_MISUSED)
    try:
        with tempfile.TemporaryFile(dir=output.resolve().parent):
            pass
    except OSError as error:
        raise CommandFailed(f"--output {output} cannot be written: {error.strerror}", EXIT_MISUSED) from error
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise CommandFailed("TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from loading what records; unset it", EXIT_MISUSED)
    if shutil.which(command[0]) is None:
        beside = Path(sys.executable).parent / command[0]
        hint = "; write its words apart, not as one" if " " in command[0] else ""
        if "/" not in command[0] and beside.exists():
            hint = f"; it lies at {beside}"
        if Path(command[0]).is_file():
            raise CommandFailed(f"{command[0]} is no program that can be run; write `python {command[0]}`", status=126)
        raise CommandFailed(f"there is no program {command[0]!r} on PATH{hint}", status=127)


def run_training(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """The training's exit status, as a shell tells it, and the signal that ended it ("SIGINT", "SIGTERM"): the last that came,
    if it did not end well; else "". Raises CommandFailed if it cannot be started."""
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})
    except OSError as error:
        raise CommandFailed(f"{command[0]} cannot be run: {error.strerror}", status=126) from error
    with _left_to(process) as received:
        status = process.wait()
    return 128 - status if status < 0 else status, received[-1].name if received and status else ""


@contextmanager
def _left_to(process: subprocess.Popen[bytes]) -> Iterator[list[signal.Signals]]:
    """Signals are the training's to answer: a terminal's Ctrl-C reaches it by itself, and SIGTERM is passed on. Yields those
    that came."""
    received: list[signal.Signals] = []

    def came(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        if number == signal.SIGTERM:
            process.terminate()

    previous = {number: signal.signal(number, came) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stopped(folder: Path) -> str | None:
    """The error that ended a rank's recording."""
    try:
        return (folder / CAPTURE_STOPPED).read_text() or "see above"  # without text where the disk was full
    except FileNotFoundError:
        return None


def _why(loaded: bool, stopped: str | None, ended_by: str) -> str:
    """Why no rank wrote a step. `loaded`: some process of the training had torch and this package."""
    if stopped is not None:
        return f"an error ended the recording before its first step did: {stopped}"
    if ended_by:
        return f"{ended_by} ended the training before its first step did"
    if loaded:
        return "the training summed no gradients with DistributedDataParallel, which is what is recorded"
    return "no process of it imported torch together with switchsum; install switchsum where the training's torch is"


@dataclass
class Recording:
    """What one rank's recorder wrote (bucket_recorder.py)."""

    rank: dict[str, Any]
    modules: list[dict[str, Any]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def _recordings(folder: Path) -> list[Recording]:
    """By rank, of each rank its last process's (torchrun may have restarted it)."""
    from switchsum.measure.manifest import Step

    found: dict[int, Recording] = {}
    for path in folder.glob("*.jsonl"):
        recording: Recording | None = None
        for line in path.read_text().splitlines():
            try:
                written = json.loads(line)
            except ValueError:  # the process was killed while it wrote
                break
            if "rank" in written:
                recording = Recording(written["rank"])
            elif recording is not None and "module" in written:
                recording.modules.append(written["module"])
            elif recording is not None:
                recording.steps.append(Step.from_json(written["step"]))
        if recording is not None and recording.steps:
            rank = recording.rank["rank"]
            if rank not in found or found[rank].rank["began_s"] < recording.rank["began_s"]:
                found[rank] = recording
    return [found[rank] for rank in sorted(found)]


def _payload(name: str, command: Sequence[str], recordings: Sequence[Recording]) -> Manifest:
    """The lowest rank's steps; those in a row that were alike are one."""
    import platform

    from switchsum.measure.manifest import Manifest

    first = recordings[0]
    captured = {
        "command": list(command),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), "torch": first.rank["torch"], "switchsum": __version__},
        "rank": first.rank["rank"],
        "ranks_recorded": len(recordings),
        "ranks_alike": _first_difference(recordings) is None,
        "modules": first.modules,
    }
    groups: list[list[Step]] = []
    for step in first.steps:
        if groups and groups[-1][0].is_like(step):
            groups[-1].append(step)
        else:
            groups.append([step])
    return Manifest(name, {"captured": captured}, tuple(map(_as_one, groups)))


def _as_one(alike: Sequence[Step]) -> Step:
    """Each buffer at the median of its times."""
    buffers = []
    for same in zip(*(step.buffers for step in alike), strict=True):
        times = [buffer.at_us for buffer in same if buffer.at_us is not None]
        buffers.append(replace(same[0], at_us=round(statistics.median(times), 1)))
    return replace(alike[0], buffers=tuple(buffers), times=len(alike))


def _first_difference(recordings: Sequence[Recording]) -> tuple[int, int] | None:
    """(rank, step) where a rank summed other buckets than the first one; how much of a sparse one was touched is its own."""
    for other in recordings[1:]:
        for number, (mine, first) in enumerate(zip(other.steps, recordings[0].steps, strict=False)):
            dense = [[replace(each, at_us=None) for each in step.buffers if not each.sparse] for step in (mine, first)]
            if dense[0] != dense[1]:
                return other.rank["rank"], number
    return None


def _summary(payload: Manifest, output: Path, status: int, stopped: str | None) -> Iterator[str]:
    captured = payload.source["captured"]
    usual = payload.usual
    yield (
        f"{output}: {sum(step.times for step in payload.steps)} steps; the usual one has {len(usual.buffers)} buckets of "
        f"{len(usual.iovecs)} tensors, {usual.size_bytes / 1e6:.2f} MB"
    )
    if not captured["ranks_alike"]:
        yield f"the ranks did not sum the same buckets (parts of a model, perhaps); the file has rank {captured['rank']}'s"
    if stopped is not None:
        yield f"an error ended a rank's recording early: {stopped}"
    if status:
        yield f"the training ended with status {status}; the file has what was recorded until then"
