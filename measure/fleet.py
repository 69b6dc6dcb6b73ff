"""Many jobs together: what their steps are made of by class, and who would gain by which change.

After Alibaba-PAI's characterisation (Wang et al., IISWC 2019, arXiv 1910.05930): shares are of T_input + T_compute + T_weights
without overlap, averaged over jobs (job level) and over their workers (cNode level, a cNode being a worker with one replica of
the model). They are what the model says, not a stopwatch; the exposed share that was measured stands apart.

Which way a class sums: 1w1g not at all; 1wng, allreduce-local and pearl inside one host; ps/worker by as many dedicated servers
as workers, so that none is a bottleneck; allreduce-cluster in a host, then between hosts; ddp around a ring; switch by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchsum.measure import costs, media, prediction
from switchsum.measure.costs import BadCluster, Cluster
from switchsum.measure.features import ARCHITECTURES, RANK_FILES, Features, WrongSchema, of_job
from switchsum.measure.placement import LOCAL, evenly
from switchsum.measure.prediction import NOT_MODELLED, CannotPredict, Ground, Interval, Prediction, speedup
from switchsum.measure.verdicts import gains

SCHEMA = "switchsum-fleet/1"
MOST_JOBS = 100_000
PER_HOST = 8
PARTS = ("input", "computing", "sums")
LEVELS = ("job", "cNode")
_ALLREDUCE = f"allreduce with nvlink, up to {PER_HOST} on a host"


class BadFleet(ValueError):
    """A folder that holds no fleet; the text says why and what to do."""


@dataclass(frozen=True)
class Job:
    """`base`: its step as it is, None where its class is not modelled; `gains`: by change, its speed-up, of those that could be
    made."""

    features: Features
    base: Prediction | None
    gains: Mapping[str, Interval]

    def weight(self, level: str) -> int:
        return 1 if level == "job" else self.features.workers

    @property
    def shares(self) -> dict[str, float]:
        """Of PARTS, without overlap and without the rest. `base` is not None."""
        assert self.base is not None
        parts = (self.base.input_s, self.base.compute_s, self.base.weights.value)
        whole = sum(parts) or 1.0
        return dict(zip(PARTS, (part / whole for part in parts), strict=True))


@dataclass(frozen=True)
class Fleet:
    """`changes`: names of all changes, in the order in which they are told; `notes`: on files that were left out."""

    jobs: tuple[Job, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def modelled(self) -> list[Job]:
        return [job for job in self.jobs if job.base is not None]

    @property
    def synthetic(self) -> int:
        return sum(job.features.synthetic for job in self.jobs)

    @property
    def classes(self) -> list[str]:
        found = {job.features.architecture for job in self.jobs}
        return [name for name in ARCHITECTURES if name in found]

    def of_class(self, name: str) -> list[Job]:
        return [job for job in self.jobs if job.features.architecture == name]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "jobs": len(self.jobs),
            "synthetic": self.synthetic,
            "classes": {
                name: {
                    "jobs": len(of_class),
                    "cnodes": sum(job.features.workers for job in of_class),
                    "shares": {level: mean_shares(of_class, level) for level in LEVELS},
                }
                for name in self.classes
                for of_class in [self.of_class(name)]
            },
            "shares": {level: mean_shares(self.jobs, level) for level in LEVELS},
            "exposed": {level: mean_exposed(self.jobs, level) for level in LEVELS},
            "gains": {name: {level: gaining(self.jobs, name, level) for level in LEVELS} for name in self.changes},
            "notes": list(self.notes),
        }


def load(folder: Path) -> tuple[list[Features], list[str]]:
    """The jobs of a folder, and a sentence for each *.json that is none. Raises BadFleet, BadFeatures for a damaged one.

    A job is a file, or a folder in which `switchsum profile` left a file of each rank; `folder` itself may be one.
    """
    if not folder.is_dir():
        raise BadFleet(f"{folder} is no folder; give the one that has the jobs' features")
    profiles = {path.parent for pattern in (RANK_FILES, f"*/{RANK_FILES}") for path in folder.glob(pattern)}
    paths = sorted([*profiles, *(path for path in folder.glob("*.json") if not path.match(RANK_FILES))])
    if len(paths) > MOST_JOBS:
        raise BadFleet(f"{folder} has {len(paths)} of them; a fleet has at most {MOST_JOBS} jobs")
    found, notes = [], []
    for path in paths:
        try:
            found.append(of_job(path))
        except WrongSchema as error:
            notes.append(str(error))
    if not found:
        raise BadFleet(
            f"{folder} has no features in it ({len(notes)} other *.json): write some with `switchsum profile`, or make up a "
            "fleet with --synthetic"
        )
    return found, notes


def study(jobs: Sequence[Features], rates: Mapping[str, Sequence[float]], ground: Ground, notes: Sequence[str] = ()) -> Fleet:
    """`rates`: of ethernet (jobs whose link is not known have the first), pcie and nvlink (one each).

    Raises CannotPredict, BadCalibration, BadSetting.
    """
    found = []
    for features in jobs:
        try:
            found.append(_examined(features, rates, ground))
        except BadCluster as error:
            raise CannotPredict(f"{features.name}: {error}") from error
    made = {name for job in found for name in job.gains}
    links = [_links(rate) for rate in sorted(rates["ethernet"])]
    changes = [name for name in (*links, "ring", _ALLREDUCE, "switch") if name in made]
    return Fleet(tuple(found), tuple(changes), tuple(notes))


def _examined(features: Features, rates: Mapping[str, Sequence[float]], ground: Ground) -> Job:
    if features.architecture in NOT_MODELLED:
        return Job(features, None, {})
    own_rate = features.link_bps / 8 if features.link_bps else rates["ethernet"][0]
    own = {"ethernet": own_rate, **{name: rates[name][0] for name in ("pcie", "nvlink") if name in rates}}
    if features.architecture == "1wng":
        own.pop("nvlink", None)
    architecture, cluster = _now(features)
    base = prediction.predict(features, architecture, cluster, own, ground)
    gained = {}
    if features.architecture not in LOCAL and features.workers > 1:
        for name, other, where, at in _changes(features, architecture, cluster, own, rates["ethernet"]):
            test = prediction.predict(features, other, where, at, ground)
            gained[name] = speedup(base, test)
    return Job(features, base, gained)


def _now(features: Features) -> tuple[str, Cluster]:
    workers = features.workers
    if features.architecture in LOCAL:
        return "hierarchical", Cluster(workers, per_host=workers)
    if features.architecture == "ps/worker":
        return "ps", Cluster(workers, workers, dedicated=True)
    if features.architecture == "allreduce-cluster":
        return "hierarchical", Cluster(workers, per_host=evenly(workers, PER_HOST))
    return prediction.architecture_of(features), Cluster(workers)


def _changes(
    features: Features, architecture: str, cluster: Cluster, own: Mapping[str, float], link_rates: Sequence[float]
) -> Iterator[tuple[str, str, Cluster, Mapping[str, float]]]:
    for rate in link_rates:
        if rate > own["ethernet"]:
            yield _links(rate), architecture, cluster, {**own, "ethernet": rate}
    workers = features.workers
    if architecture != "ring":
        yield "ring", "ring", Cluster(workers), own
    if features.architecture != "allreduce-cluster" and "nvlink" in own:
        yield _ALLREDUCE, "hierarchical", Cluster(workers, per_host=evenly(workers, PER_HOST)), own
    if architecture != "switch" and costs.summed_by("switch", features.wire_dtype) == "switch":
        yield "switch", "switch", Cluster(workers, per_host=cluster.per_host), own


def _links(rate: float) -> str:
    return f"{media.told('ethernet', rate)} links"


def mean_shares(jobs: Sequence[Job], level: str) -> dict[str, float] | None:
    """Of PARTS, over the jobs that are modelled; None if none is."""
    modelled = [job for job in jobs if job.base is not None]
    whole = sum(job.weight(level) for job in modelled)
    if not whole:
        return None
    return {part: sum(job.weight(level) * job.shares[part] for job in modelled) / whole for part in PARTS}


def mean_exposed(jobs: Sequence[Job], level: str) -> float:
    """Of the measured steps, in which only communication ran."""
    return sum(job.weight(level) * job.features.exposed_share for job in jobs) / sum(job.weight(level) for job in jobs)


def gaining(jobs: Sequence[Job], change: str, level: str) -> float:
    """The share, of those that could make the change, whose step gets shorter by MATTERS, with the interval above 1."""
    able = [job for job in jobs if change in job.gains]
    gain = sum(job.weight(level) for job in able if gains(job.gains[change]))
    return gain / (sum(job.weight(level) for job in able) or 1)


def speedups(jobs: Sequence[Job], change: str) -> list[float]:
    """Of those that could make the change, at least one: least, median and most, by the middle values."""
    ratios = [job.gains[change].value for job in jobs if change in job.gains]
    return [min(ratios), statistics.median(ratios), max(ratios)]


def distribution(jobs: Sequence[Job], values: Sequence[float], level: str) -> tuple[list[float], list[float]]:
    """Of `values`, one a job: ascending, and the share of all weight that is at most so much."""
    ordered = sorted(zip(values, (job.weight(level) for job in jobs), strict=True))
    whole, sum_so_far = sum(weight for _, weight in ordered), 0
    places, shares = [0.0], [0.0]
    for value, weight in ordered:
        sum_so_far += weight
        places.append(value)
        shares.append(sum_so_far / whole)
    return places, shares
