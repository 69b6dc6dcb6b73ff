"""The study of one job: every architecture, setting and number of workers, beside what it does now."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchsum.measure import costs, media, prediction, verdicts
from switchsum.measure.calibration import TRANSPORTS, BadCalibration
from switchsum.measure.costs import Cluster
from switchsum.measure.features import Features
from switchsum.measure.numerals import seconds
from switchsum.measure.placement import LOCAL
from switchsum.measure.prediction import CannotPredict, Ground, Prediction
from switchsum.measure.verdicts import Verdict

SCHEMA = "switchsum-whatif/1"
MOST_PREDICTIONS = 10_000
_MOST_SUMS = 2_000_000  # of all predictions together: seconds
FAR_OFF = 0.10  # of a measured step: beyond, the model misses something that matters
TOO_FAR_OFF = 0.25  # beyond, it claims no gain


@dataclass(frozen=True)
class Study:
    """`now`: the job as it was measured, predicted; None where its link, or the way inside its host, or its architecture's
    calibration is not known. `unjudged`: why there are no verdicts: what the job uses now is not calibrated; "" if it is."""

    features: Features
    ground: Ground
    now: Prediction | None
    predictions: tuple[Prediction, ...]
    verdicts: tuple[Verdict, ...]
    unjudged: str
    assumptions: tuple[str, ...]

    @property
    def usual(self) -> str:
        """The architecture by which the job sums."""
        return prediction.architecture_of(self.features)

    @property
    def base(self) -> Prediction:
        """What speed-ups are relative to: the job as it is now, or else its architecture over the slowest links asked for,
        with its own number of workers if that was asked for; where that architecture is not calibrated, the first of all."""
        if self.now is not None:
            return self.now
        workers = self.features.workers
        alike = [each for each in self.predictions if each.architecture == self.usual]
        return min(
            alike,
            key=lambda each: (each.cluster.workers != workers, each.cluster.workers, tuple(each.rates.values())),
            default=self.predictions[0],
        )

    @property
    def alone(self) -> bool:
        """Whether nothing but one worker was asked for."""
        return all(each.cluster.workers == 1 for each in self.predictions)

    @property
    def unchecked(self) -> str:
        """Why the model was not held against the measured step; "" if it was."""
        features = self.features
        if self.now is not None:
            return ""
        if features.workers == 1:
            return "the job has one worker, whose step tells nothing of sums"
        together = features.architecture in LOCAL and features.workers > 1
        if together and not self.predictions[0].rates.keys() & {"pcie", "nvlink"}:
            return "the job's workers are on one host, and how they sum there is not known (--set pcie or nvlink)"
        if not together and features.link_bps is None:
            return "the link it was measured on is not known (`switchsum profile --link`)"
        return f"{self.usual}, by which the job sums, is not calibrated"

    @property
    def doubt(self) -> str:
        """What to know before any verdict; "" for nothing."""
        if self.off is None or abs(self.off) <= FAR_OFF:
            return ""
        return (
            f"The model misses the present: it says {seconds(self.base.step.value)} a step, measured were "
            f"{seconds(self.features.mean_step_s)} ({100 * self.off:+.0f} %). Other predictions will be no better."
        )

    @property
    def off(self) -> float | None:
        """How far the model is from the measured step, of 1; None where the two are not of the same."""
        return None if self.now is None else self.now.step.value / self.features.mean_step_s - 1

    def as_json(self) -> dict[str, Any]:
        calibration = self.ground.calibration
        return {
            "schema": SCHEMA,
            "features": self.features.as_json(),
            "calibration": calibration and calibration.as_json(),
            "efficiency": self.ground.efficiency,
            "slots": self.ground.slots,
            "rtt_s": self.ground.rtt_s,
            "now": self.now and self.now.as_json(),
            "base": self.base.as_json(),
            "measured_step_s": self.features.mean_step_s,
            "predictions": [
                {**each.as_json(), "speedup": prediction.speedup(self.base, each).as_json()} for each in self.predictions
            ],
            "verdicts": [each.as_json() for each in self.verdicts],
            "unjudged": self.unjudged,
            "doubt": self.doubt,
            "assumptions": list(self.assumptions),
        }


def study(
    features: Features,
    architectures: Sequence[str],
    clusters: Sequence[Cluster],
    settings: Sequence[dict[str, float]],
    ground: Ground,
    notes: Sequence[str] = (),
) -> Study:
    """`notes`: sentences for the assumptions. Raises CannotPredict, BadCluster, BadCalibration, BadSetting."""
    most = min(MOST_PREDICTIONS, _MOST_SUMS // max(1, len(features.buckets)))
    if len(architectures) * len(clusters) * len(settings) > most:
        raise CannotPredict(
            f"that makes more than {most} predictions, with {len(features.buckets)} buckets each; give fewer rates, workers or "
            "architectures"
        )
    if settings[0].keys() & {"gpu", "memory"} and not features.memory_bytes:
        raise CannotPredict(
            f"{features.name}: its memory traffic was not counted (memory_bytes is 0, as of a compiled training), so computing "
            "cannot follow from amounts: leave gpu and memory out of --set"
        )
    usual = prediction.architecture_of(features)
    slowest = min(settings, key=lambda rates: tuple(rates.values()))
    now = _now(features, clusters[0], slowest, ground)
    unjudged = _unjudged(features, clusters[0], slowest, ground)
    if now is None and usual not in architectures and not unjudged:
        architectures = [usual, *architectures]
    found = [
        prediction.predict(features, architecture, cluster, rates, ground)
        for rates in settings
        for cluster in clusters
        for architecture in architectures
    ]
    off = 0.0 if now is None else now.step.value / features.mean_step_s - 1
    judged = []
    for start in range(0, 0 if unjudged else len(found), len(architectures)):
        beside = found[start : start + len(architectures)]
        against = _against(features, usual, beside, ground)
        judged += [_judge(features, against, each, ground, off) for each in beside if each.architecture != usual]
    return Study(features, ground, now, tuple(found), tuple(judged), unjudged, (*_assumptions(features, found, ground), *notes))


def _unjudged(features: Features, cluster: Cluster, rates: dict[str, float], ground: Ground) -> str:
    usual = prediction.architecture_of(features)
    try:
        prediction.predict(features, usual, cluster, rates, ground)
    except BadCalibration as error:
        learnt = ground.calibration.notes if ground.calibration else ()
        names = TRANSPORTS[costs.summed_by(usual, features.wire_dtype)]
        because = [note for note in learnt if any(re.search(rf"\b{name}\b", note) for name in names)]
        said = str(error).removeprefix(f"{usual} is not calibrated: ")
        by = f"the {usual} that the job uses now" if features.workers > 1 else f"the {usual} by which such a job sums"
        return f"no verdict: {by} is not calibrated, because {'; '.join(because) or said}"
    return ""


def _against(features: Features, usual: str, beside: Sequence[Prediction], ground: Ground) -> Prediction:
    """What the job's own architecture would do in the same setting."""
    for each in beside:
        if each.architecture == usual:
            return each
    return prediction.predict(features, usual, beside[0].cluster, beside[0].rates, ground)


def _judge(features: Features, against: Prediction, test: Prediction, ground: Ground, off: float) -> Verdict:
    bits = verdicts.spared_bits(features, against.architecture, test.architecture)
    if bits is not None:
        narrow = verdicts.narrowed(features, bits)
        against = prediction.predict(narrow, against.architecture, against.cluster, against.rates, ground)
    found = verdicts.judge(features, against, test, ground, bits)
    if found.verdict == verdicts.GAIN and abs(off) > TOO_FAR_OFF:
        why = f"the model misses the measured step by {100 * off:+.0f} %, so it is not to be trusted here"
        return replace(found, verdict=verdicts.UNDECIDED, cause="model", why=why)
    return found


def _now(features: Features, cluster: Cluster, rates: dict[str, float], ground: Ground) -> Prediction | None:
    """Computing on the slowest setting's gpu, so that only links and workers differ."""
    together = features.architecture in LOCAL and features.workers > 1
    if together:
        if not rates.keys() & {"nvlink", "pcie"}:
            return None
        per_host = features.workers
    else:
        if features.link_bps is None:
            return None
        per_host = cluster.per_host if features.workers % cluster.per_host == 0 else 1
    here = Cluster(features.workers, min(cluster.servers, features.workers // per_host), cluster.dedicated, per_host)
    if cluster.dedicated:
        here = replace(here, servers=cluster.servers)
    if features.link_bps is not None:  # else no sum passes a link
        rates = {**rates, "ethernet": features.link_bps / 8}
    try:
        return prediction.predict(features, prediction.architecture_of(features), here, rates, ground)
    except BadCalibration:
        return None


def _assumptions(features: Features, found: Sequence[Prediction], ground: Ground) -> list[str]:
    told = [
        "T = T_input + T_compute + T_weights and a measured rest; input, computing and rest depend neither on links nor on the "
        "number of workers (each keeps its batch).",
    ]
    if features.synthetic:
        told.append(f"{features.name} is synthetic: made up, not measured.")
    if "gpu" in found[0].rates:
        told.append("Computing and input follow from the features' amounts and the set rates, not from the measured steps.")
    else:
        told.append(f"Computing and input are the means of {len(features.step_s)} measured steps.")
    if features.buckets:
        told.append(
            "Replay: a bucket's sum starts when the bucket is ready and the sum before has ended, in "
            "DistributedDataParallel's order; sums do not slow down computing."
        )
    else:
        told.append(
            "The buckets are not known, so the prediction is the sum without overlap; the ideal is the other bound. Gradients "
            f"are taken to travel as {features.wire_dtype}, in which most is computed."
        )
    if prediction.summed_bytes(features) != features.gradient_bytes:
        told.append("One worker has sent no gradients: with others it would sum its dense parameters' bytes.")
    if features.architecture == "pearl":
        told.append("Partitioned embeddings are not modelled: only gradient_bytes are, as one dense sum.")
    names = {each.architecture for each in found}
    clusters = {each.cluster for each in found}
    told.append(_placement(features, clusters))
    told += _about_links(ground, names, found[0].rates)
    if "ps" in names:
        where = "dedicated hosts" if found[0].cluster.dedicated else "the workers' hosts"
        count = found[0].cluster.servers or "as many as hosts"
        told.append(f"Parameter servers: {count}, on {where}; gradients in equal shares, both directions of links at once.")
    if "hierarchical" in names and all(each.per_host == 1 and each.racks == 1 for each in clusters):
        told.append("hierarchical is the ring here: one worker a host, one rack (--per-host, --racks).")
    if names & set(costs.LANES):
        rtt = f"{1e6 * ground.rtt_s:g} µs" if ground.rtt_s is not None else "the calibrated latency, an upper bound (--rtt)"
        if ground.rtt_s is None and ground.calibration is None:
            rtt = "not known, so slots are no limit (--rtt)"
        told.append(f"Switch: {ground.slots} slots of {prediction.PAYLOAD_BYTES} bytes; round trip: {rtt}.")
        if any(costs.levels(each) > 1 for each in clusters):
            told.append(
                f"More than {costs.MOST_PER_SWITCH} hosts, or several racks, need a tree of switches, each adding up to "
                f"{costs.MOST_PER_SWITCH} streams: on paper only, this release's program has one level."
            )
    if any(each.per_host > 1 for each in clusters):
        told.append("Workers of a host sum among themselves first, except in the flat ring, which is laid host by host.")
    if any(each.racks > 1 for each in clusters):
        told.append("Rings are laid rack by rack, servers are spread evenly over racks, hosts fill racks evenly.")
    return told


def _placement(features: Features, clusters: Collection[Cluster]) -> str:
    counts = sorted({each.per_host for each in clusters})
    each_has = "a worker" if counts == [1] else f"{' or '.join(map(str, counts))} workers"
    told = f"Hosts: {each_has} on each (--per-host)"
    if features.architecture not in LOCAL or features.workers == 1:
        return f"{told}."
    where = f"the job's {features.workers} are on one now ({features.architecture})"
    if all(each.hosts == 1 for each in clusters):
        return f"{told}; {where}, and --per-host 1 asks what hosts of their own would change."
    return f"{told}; {where}, so this is about others than it has."


def _about_links(ground: Ground, architectures: Collection[str], media_set: Collection[str]) -> list[str]:
    if ground.calibration is None:
        return [
            f"Every nominal rate times {ground.efficiency:g}, without latency, and no processor's limit: nothing of it was "
            "measured, and intervals hold the steps' spread alone."
        ]
    calibration = ground.calibration
    rates = ", ".join(media.told("ethernet", rate / 8) for rate in calibration.rates_bps) or "links without a rate"
    told = [
        f"Links: latency, efficiency and CPU cost by transport from {', '.join(calibration.sources)} ({rates}); they are taken "
        "to hold at other rates and numbers of workers.",
        "One core of each host sums.",
    ]
    inside = [name for name in media_set if name != "ethernet"]
    if inside and ground.efficiency is None:
        told.append(
            f"{', '.join(inside)}: 100 % of the set rates, since the calibration is of links between hosts alone; --efficiency "
            "takes a share of all rates."
        )
    used = {fit.transport: fit for name in sorted(architectures) for fit in [calibration.fit(name)]}
    told += [
        f"{fit.transport}: the processor held all large calibrating rows back: its efficiency is the machine's, not the link's."
        for fit in used.values()
        if fit.cpu_limited
    ]
    if ground.efficiency is not None:
        told.append(f"Efficiency {ground.efficiency:g} was given, and stands in for the calibrated one.")
    return [*told, *(f"Calibration: {note}." for note in calibration.notes)]
