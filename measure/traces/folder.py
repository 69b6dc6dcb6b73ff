"""Finds the traces of a job: one of each rank, and execution traces that describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from switchsum.measure.features import RANK_FILES
from switchsum.measure.traces import execution, kineto
from switchsum.measure.traces.execution import ExecutionTrace
from switchsum.measure.traces.kineto import Trace
from switchsum.measure.traces.stream import BadTrace, NoTrace


@dataclass
class Job:
    """traces: by rank, in its order, at least one. notes: a sentence for each file that is no trace, and what others gave."""

    traces: dict[int, Trace]
    executions: list[ExecutionTrace]
    notes: list[str]


def read(path: Path) -> Job:
    """A folder of traces, or a single one. Raises BadTrace: a rank that is damaged is not left out in silence."""
    files, notes = _files(path)
    traces: dict[int, Trace] = {}
    executions: list[ExecutionTrace] = []
    for each in files:
        found = _read(each)
        if isinstance(found, Trace):
            if found.rank in traces:
                raise BadTrace(
                    f"{traces[found.rank].path} and {each} are both of rank {found.rank}; keep one recording in a folder, and "
                    "if the traces tell no rank, name them rank0.json, rank1.json and so on"
                )
            traces[found.rank] = found
        elif isinstance(found, ExecutionTrace):
            executions.append(found)
        else:
            notes.append(found)
    if not traces:
        raise BadTrace(_nothing_found(path, executions, notes))
    job = Job(dict(sorted(traces.items())), executions, notes)
    _describe(job)
    return job


def _files(path: Path) -> tuple[list[Path], list[str]]:
    """Those that may be traces, features not among them, and a sentence for each that is no file: nobody may ever write to a
    pipe."""
    try:
        if path.is_dir():
            named = sorted(each for each in path.iterdir() if each.name.endswith((".json", ".json.gz")))
            strange = [each for each in named if each.exists() and not each.is_file()]
            files = [each for each in named if each not in strange and not each.match(RANK_FILES)]
            return files, [f"{each} is no trace: it is no file" for each in strange]
        if path.is_file():
            return [path], []
        there = path.exists()
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}") from error
    if there:
        raise BadTrace(f"{path} is neither a file nor a folder; give a trace, or the folder of all ranks' traces")
    raise BadTrace(f"{path} does not exist; make traces with `switchsum profile`, or with torch.profiler")


def _read(path: Path) -> Trace | ExecutionTrace | str:
    """What the file holds; a sentence if it is neither."""
    try:
        return kineto.read(path)
    except NoTrace as error:
        first = str(error)
    try:
        return execution.read(path)
    except NoTrace:
        return first


def _nothing_found(path: Path, executions: list[ExecutionTrace], notes: list[str]) -> str:
    if executions:
        return (
            f"{path} has execution traces only ({executions[0].path.name}), which tell no times; put the traces of "
            "torch.profiler's export_chrome_trace() beside them"
        )
    if not path.is_dir():
        return notes[0]
    more = f"; {len(notes) - 1} other files" if len(notes) > 1 else ""
    others = f" ({notes[0]}{more})" if notes else ""
    return (
        f"{path} has no traces in it, *.json or *.json.gz{others}; make them with `switchsum profile`, or with "
        "torch.profiler's export_chrome_trace()"
    )


def _describe(job: Job) -> None:
    """Sizes of collectives that a trace does not tell (recorded without record_shapes), from the rank's execution trace."""
    for each in job.executions:
        rank = each.rank if each.rank is not None else next(iter(job.traces)) if len(job.traces) == 1 else None
        trace = job.traces.get(rank) if rank is not None else None
        if trace is None:
            job.notes.append(f"{each.path.name} is not used: it belongs to no rank that has a trace here")
            continue
        known = {issued.record_id: issued for issued in each.issued}
        described = 0
        for operation in trace.operations:
            issued = known.get(operation.record_id) if operation.record_id is not None else None
            if issued is None or issued.name != operation.name or operation.size_bytes is not None:
                continue
            if issued.size_bytes is not None:
                operation.dtype, operation.size_bytes = issued.dtype, issued.size_bytes
                described += 1
        used = f"sizes of {described} collectives of rank {rank} are from it" if described else "it adds nothing to the trace"
        job.notes.append(
            f"{each.path.name} ({each.schema}): {each.nodes:,} operators, {len(each.issued)} of them of collectives; {used}"
        )
