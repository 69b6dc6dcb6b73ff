"""The time of a step under another architecture, over other links, with other workers.

T = T_input + T_compute + T_weights, after Alibaba-PAI (Wang et al., IISWC 2019, arXiv 1910.05930), and a rest that the steps
had besides. T_weights are the sums (costs). Two bounds: the sum of all, where nothing overlaps, and the largest of input,
computing and sums, where all does (the rest counts in both). Where buckets are known, a replay of their schedule lies between.
Where all workers share one machine's cores, sums and computing also have to find the processor time that they take.

Input and computing are what was measured, unless rates of the gpu and its memory are set: then they follow from the features'
amounts, T_compute = operations / gpu + memory_bytes / memory and T_input = input_bytes / pcie, and there is no rest.

An interval has three parts, taken together as independent: of the calibration's runs, from a prediction with each run's own
fit; of how far the fit misses the calibrating rows; of the steps, the 95 % interval of the mean of what is no communication.
What is not known of them is not in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchsum.measure import costs, intervals, replay
from switchsum.measure.calibration import Calibration
from switchsum.measure.costs import Cluster, Cost, Processor, Window
from switchsum.measure.features import Features
from switchsum.measure.media import Medium
from switchsum.p4src.layout import DEFAULT_ELEMENTS

PAYLOAD_BYTES = 4 * DEFAULT_ELEMENTS  # of a packet through the switch
NOT_MODELLED = {
    "fsdp": "its parameters are gathered and its gradients scattered between the layers",
    "other": "nothing is known of what travels when",
}
# Backends of torch.distributed, and classes, by the architecture that sums for them.
_BACKENDS = {"switchsum": "switch", "gloo": "ring", "nccl": "ring", "mpi": "ring"}
_CLASSES = {"ps/worker": "ps", "switch": "switch"}


class CannotPredict(ValueError):
    """The model does not hold for this; the text says why and what to do."""


@dataclass(frozen=True)
class Interval:
    """`low` and `high`: of 95 %, as far as it is known."""

    value: float
    low: float
    high: float

    def as_json(self) -> list[float]:
        return [self.value, self.low, self.high]


@dataclass(frozen=True)
class Ground:
    """What is known of links and hosts. `efficiency`: of every nominal rate; it stands in for a calibration's. `slots`,
    `rtt_s`: of the switch; without rtt_s, the calibration's latency, which is no shorter. `burst_bytes`: of token buckets on
    the links meant. `one_machine`: all workers share the calibrated machine's cores, as in an emulated rack."""

    calibration: Calibration | None = None
    efficiency: float | None = None
    slots: int = 512
    rtt_s: float | None = None
    burst_bytes: float = 0.0
    one_machine: bool = False

    def cost(self, architecture: str, cluster: Cluster, rates: Mapping[str, float], dtype: str, run: int | None = None) -> Cost:
        """`rates`: by medium; run: of the calibration, all together without. Raises BadCluster, BadCalibration, BadSetting."""
        link = self._link(architecture, rates["ethernet"], run)
        inside = {name: Medium(name, 0.0, rates[name], self.efficiency or 1.0) for name in ("pcie", "nvlink") if name in rates}
        rtt_s = link.latency_s if self.rtt_s is None else self.rtt_s
        window = Window(self.slots, PAYLOAD_BYTES, rtt_s) if rtt_s else None
        media = {"ethernet": link, **inside}
        cost = costs.cost(architecture, cluster, media, dtype, window, self._processor(architecture))
        # Without a calibration no latency is known.
        return cost if self.calibration is None else replace(cost, overlaps=self.calibration.fit(architecture).overlaps)

    def round_trip_s(self, architecture: str, rates: Mapping[str, float]) -> float:
        """Of a switch's slots; 0: not known, and then no limit."""
        return self._link(architecture, rates["ethernet"], None).latency_s if self.rtt_s is None else self.rtt_s

    def runs(self, architecture: str) -> range:
        """Of the calibration; none without one."""
        return range(0 if self.calibration is None else len(self.calibration.fit(architecture).latency_s.runs))

    def missed(self, architecture: str) -> float:
        """How far a sum may be from the fit, of 1; 0 where that is not known."""
        missed = math.nan if self.calibration is None else self.calibration.fit(architecture).missed
        return missed if math.isfinite(missed) else 0.0

    def held_up_s(self, architecture: str, cost: Cost, size_bytes: float, workers: int, alone_s: float) -> float:
        """What sums add to a step at least where they share all cores with computing, which takes one for each worker: the work
        of both has to fit. 0 on hosts of the workers' own."""
        processor = self._processor(architecture)
        if processor is None or processor.cores is None:
            return 0.0
        idle_s = alone_s * max(0.0, 1 - workers / processor.cores)
        return max(0.0, size_bytes * cost.limits.get("cpu", 0.0) - idle_s)

    def _link(self, architecture: str, bytes_per_s: float, run: int | None) -> Medium:
        if self.calibration is not None:
            return self.calibration.medium(architecture, bytes_per_s, run, self.efficiency, self.burst_bytes)
        return Medium("ethernet", 0.0, bytes_per_s, self.efficiency or 1.0, self.burst_bytes)

    def _processor(self, architecture: str) -> Processor | None:
        if self.calibration is None:
            return None
        found = self.calibration.fit(architecture).processor
        return found if self.one_machine else replace(found, cores=None)


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step. `weights`: its sums, one after the other; `ideal_s`, `sum_s`: the bounds; `replay_s`: None without
    buckets; `step`: the replay, or else the sum; `steady_s`: half-width of the steps' own interval, nan of one step.
    `limit`: what the sums wait for most; `latency_s`: of all sums."""

    architecture: str
    cluster: Cluster
    rates: Mapping[str, float]
    input_s: float
    compute_s: float
    rest_s: float
    weights: Interval
    ideal_s: float
    replay_s: float | None
    sum_s: float
    step: Interval
    communication: Interval  # of the step, what nothing hides
    steady_s: float
    latency_s: float
    limit: str
    cost: Cost

    @property
    def alone_s(self) -> float:
        """The step without sums."""
        return self.input_s + self.compute_s + self.rest_s

    def as_json(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            **vars(self.cluster),
            "rates": dict(self.rates),
            "input_s": self.input_s,
            "compute_s": self.compute_s,
            "rest_s": self.rest_s,
            "weights_s": self.weights.as_json(),
            "ideal_s": self.ideal_s,
            "replay_s": self.replay_s,
            "sum_s": self.sum_s,
            "step_s": self.step.as_json(),
            "exposed_s": self.communication.as_json(),
            "latency_s": self.latency_s,
            "limit": self.limit,
        }


def architecture_of(features: Features) -> str:
    """By which the job sums now, as far as its class and backend tell."""
    return _CLASSES.get(features.architecture) or _BACKENDS.get(features.backend, "ring")


def summed_bytes(features: Features) -> int:
    """Of one worker and step. A job of one worker sums nothing, but would sum its dense parameters' gradients with others."""
    if features.workers == 1 and not features.gradient_bytes:
        return features.dense_parameter_bytes
    return features.gradient_bytes


@dataclass(frozen=True)
class Alone:
    """A step without its sums, in seconds; half_width_s: of the mean of all of it together."""

    input_s: float
    compute_s: float
    rest_s: float
    backward_s: float
    half_width_s: float


def alone(features: Features, rates: Mapping[str, float], efficiency: float | None) -> Alone:
    """As measured, or from amounts where the gpu's and its memory's rates are set. Raises CannotPredict."""
    measured_s = statistics.fmean(features.compute_s)
    backward_s = min(features.backward_s, measured_s)
    if "gpu" not in rates and "memory" not in rates:
        steps = zip(features.input_s, features.compute_s, features.rest_s, strict=True)
        return Alone(
            statistics.fmean(features.input_s),
            measured_s,
            statistics.fmean(features.rest_s),
            backward_s,
            intervals.half_width([sum(each) for each in steps]),
        )
    needed = ["gpu", "memory", *(["pcie"] if features.input_bytes else [])]
    missing = [name for name in needed if name not in rates]
    if missing:
        are, it = ("are", "them") if len(missing) > 1 else ("is", "it")
        raise CannotPredict(
            f"computing from amounts needs the rates of {', '.join(needed)}; {', '.join(missing)} {are} missing: set {it}, or "
            "none of gpu and memory, then computing stays as measured"
        )
    derated = {name: rates[name] * (efficiency or 1.0) for name in needed}
    compute_s = features.flops / derated["gpu"] + features.memory_bytes / derated["memory"]
    input_s = features.input_bytes / derated["pcie"] if features.input_bytes else 0.0
    share = backward_s / measured_s if measured_s else 0.0
    return Alone(input_s, compute_s, 0.0, share * compute_s, 0.0)


def predict(features: Features, architecture: str, cluster: Cluster, rates: Mapping[str, float], ground: Ground) -> Prediction:
    """Raises CannotPredict, BadCluster, BadCalibration, BadSetting."""
    if features.architecture in NOT_MODELLED:
        raise CannotPredict(
            f"{features.name} is of class {features.architecture}, which is not modelled: {NOT_MODELLED[features.architecture]}"
        )
    without = alone(features, rates, ground.efficiency)
    alone_s = without.input_s + without.compute_s + without.rest_s
    if alone_s <= 0:
        raise CannotPredict(
            f"{features.name}: its steps are communication and nothing else, so there is nothing beside which to predict it; "
            "profile it again"
        )
    really = costs.summed_by(architecture, features.wire_dtype)
    cost = ground.cost(really, cluster, rates, features.wire_dtype)
    by_run = [ground.cost(really, cluster, rates, features.wire_dtype, run) for run in ground.runs(really)]
    missed = ground.missed(really)
    buckets = _buckets(features, really, without)
    whole = buckets or [(float(summed_bytes(features)), without.backward_s)]

    def uncertain(seconds: Callable[[Cost], float]) -> Interval:
        value, spread = seconds(cost), _half_width([seconds(each) for each in by_run])
        slow, fast = (seconds(costs.scaled(cost, times)) for times in (1 + missed, 1 / (1 + missed)))
        return Interval(value, max(0.0, value - math.hypot(value - fast, spread)), value + math.hypot(slow - value, spread))

    size_bytes = sum(size for size, _ in whole)

    def held_up_s(each: Cost) -> float:
        return ground.held_up_s(really, each, size_bytes, cluster.workers, alone_s)

    weights = uncertain(lambda each: replay.back_to_back(whole, each))
    exposed, limit = weights, cost.limit(size_bytes / len(whole)) if size_bytes else ""
    if buckets:
        exposed = uncertain(lambda each: max(replay.ends(buckets, each)[-1] - without.backward_s, held_up_s(each)))
        if exposed.value == held_up_s(cost) > 0:
            limit = "cpu"
    sums = len(whole) if cost.limits else 0
    return Prediction(
        architecture,
        cluster,
        rates,
        without.input_s,
        without.compute_s,
        without.rest_s,
        weights,
        max(without.input_s, without.compute_s, weights.value) + without.rest_s,
        alone_s + exposed.value if buckets else None,
        alone_s + weights.value,
        _around(alone_s, exposed, without.half_width_s),
        exposed,
        without.half_width_s,
        sums * cost.latency_s,
        limit,
        cost,
    )


def _buckets(features: Features, architecture: str, without: Alone) -> list[replay.Part]:
    """With the bytes of numbers of another type as if they were of the one that travels most."""
    stretch = without.backward_s / features.backward_s if features.backward_s else 0.0
    own = costs.wire_bytes(architecture, features.wire_dtype)
    parts = [
        (
            bucket.size_bytes * costs.wire_bytes(architecture, bucket.dtype) / own,
            min(bucket.ready_s * stretch, without.backward_s),
        )
        for bucket in features.buckets
    ]
    rest = features.gradient_bytes - sum(bucket.size_bytes for bucket in features.buckets)
    return [*parts, (float(rest), without.backward_s)] if parts and rest else parts


def _half_width(values: Sequence[float]) -> float:
    """0 where it is not known."""
    found = intervals.half_width(values)
    return found if math.isfinite(found) else 0.0


def _around(alone_s: float, exposed: Interval, half_width_s: float) -> Interval:
    value = alone_s + exposed.value
    spread = half_width_s if math.isfinite(half_width_s) else 0.0
    return Interval(
        value,
        value - math.hypot(exposed.value - exposed.low, spread),
        value + math.hypot(exposed.high - exposed.value, spread),
    )


def speedup(base: Prediction, test: Prediction) -> Interval:
    """base's step over test's. What both have in common (the steps' own spread) moves both at once."""
    before, after = base.step.value, test.step.value
    if (base.architecture, base.cluster, base.rates) == (test.architecture, test.cluster, test.rates):
        return Interval(1.0, 1.0, 1.0)
    value = before / after
    spread = base.steady_s if math.isfinite(base.steady_s) else 0.0
    moved = [(before + d) / (after + d) - value for d in (-spread, spread) if after + d > 0]
    own, others = base.communication, test.communication
    lows = [(before - own.value + own.low) / after, before / (after - others.value + others.high)]
    highs = [(before - own.value + own.high) / after, before / (after - others.value + others.low)]
    return Interval(
        value,
        value - math.hypot(*(value - low for low in lows), min(0.0, *moved)),
        value + math.hypot(*(high - value for high in highs), max(0.0, *moved)),
    )
