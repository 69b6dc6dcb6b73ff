"""Finds files of results, and the measurements in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchsum.measure.manifest import BadPayload, Manifest
from switchsum.measure.results import BadResults, Results, WrongSchema
from switchsum.measure.rows import Row
from switchsum.measure.samples import Series
from switchsum.measure.timelines import Timeline


@dataclass(frozen=True)
class Setting:
    """Where rows stand beside each other: what is measured, by how many, over which links."""

    benchmark: str
    workers: int
    servers: int
    colocated: bool
    link_rate_bps: int | None
    dtype: str
    redop: str
    check: bool

    @property
    def told(self) -> str:
        who = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        if self.servers:
            where = ", colocated" if self.colocated and self.servers + self.workers > 2 else ""
            who += f", {self.servers} server{'s' if self.servers > 1 else ''}{where}"
        links = f"links of {self.link_rate_bps / 1e6:g} Mbit/s" if self.link_rate_bps else "links without a rate"
        what = f", {self.redop} of {self.dtype}" if self.redop else ""
        checked = ", every operation verified" if self.check else ""
        return f"{who}, {links}{what}{checked}"


@dataclass(frozen=True)
class Measured:
    """One row of one file. `drawn`: what the paper's scheme was given ("scheme", "iovec_count", "sizes", ...), empty for other
    payloads. `buffer_bytes`: of each of its buffers; None where they differ, or nothing is known of them."""

    row: Row
    series: Series
    file: Path
    date: str
    drawn: Mapping[str, Any]
    buffer_bytes: int | None

    @property
    def setting(self) -> Setting:
        """A sum's parameter servers are part of its transport: with them or without, it is the same sum."""
        row = self.row
        servers, colocated = (0, False) if row.benchmark == "allreduce" else (row.servers, row.colocated)
        rate = self.series.link_rate_bps
        return Setting(row.benchmark, row.workers, servers, colocated, rate, row.dtype, row.redop, row.check)

    @property
    def label(self) -> str:
        """The transport, as pictures call it."""
        row = self.row
        if row.benchmark != "allreduce" or not row.servers:
            return row.label
        return f"{row.label}, {row.servers} server{'s' if row.servers > 1 else ''}"


@dataclass
class Found:
    """`files`: of our schema, by name. `ignored`: a sentence for each other file."""

    files: dict[Path, Results]
    ignored: list[str]

    @property
    def measured(self) -> list[Measured]:
        return [each for path, results in self.files.items() for each in measured_in(path, results)]


def find(path: Path) -> Found:
    """A file of results, or all of a folder. Raises BadResults."""
    if not path.exists():
        raise BadResults(f"{path} does not exist; write results with --json, such as `switchsum bench allreduce --json FILE`")
    if not path.is_dir():
        return Found({path: _load(path)}, [])
    files: dict[Path, Results] = {}
    ignored = []
    for each in sorted(path.glob("*.json")):
        try:
            files[each] = _load(each)
        except WrongSchema as error:
            ignored.append(str(error))
    if not files:
        raise BadResults(
            f"{path} has no results in it ({len(ignored)} other *.json): write some there with --json, such as "
            f"`switchsum bench allreduce --json {path}/allreduce.json`"
        )
    return Found(files, ignored)


def latest(measured: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Each measurement once: of those that are the same at the same link rate the latest, and a sentence for each other one."""
    chosen: dict[object, Measured] = {}
    notes = []
    for each in measured:
        key = (each.row.key, each.series.link_rate_bps)
        if key in chosen:
            newer, older = (each, chosen[key]) if each.date >= chosen[key].date else (chosen[key], each)
            notes.append(
                f"{each.row.benchmark} {each.row.label} {each.row.payload} is in {older.file.name} and in {newer.file.name}; "
                f"the later one, {newer.file.name}, counts"
            )
            chosen[key] = newer
        else:
            chosen[key] = each
    return list(chosen.values()), notes


def _load(path: Path) -> Results:
    results = Results.load(path)
    _manifests(path, results)
    try:
        Timeline.of(results)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResults(f"{path} is damaged: timeline: {type(error).__name__}: {error}; measure again") from error
    return results


def _manifests(path: Path, results: Results) -> dict[str, Manifest]:
    try:
        manifests = [Manifest.from_json(each) for each in results.payloads]
    except BadPayload as error:
        raise BadResults(f"{path} is damaged: {error}; measure again") from error
    return {each.name: each for each in manifests}


def measured_in(path: Path, results: Results) -> list[Measured]:
    """The rows of one file, in its order. Raises BadResults."""
    manifests = _manifests(path, results)
    date = str(results.environment.get("date", ""))
    found = []
    for row, series in zip(results.rows, results.series, strict=True):
        drawn: Mapping[str, Any] = {}
        sizes = [row.size_bytes] if row.buffers == 1 else []
        if manifest := manifests.get(row.payload):
            sizes = manifest.usual.iovecs
            if "scheme" in manifest.source:
                drawn = manifest.source
        alike = sizes[0] if len(set(sizes)) == 1 else None
        found.append(Measured(row, series, path, date, drawn, alike))
    return found
