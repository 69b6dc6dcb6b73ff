"""Whether one prediction gains on another, and if not, why not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from switchsum.measure import costs
from switchsum.measure.features import Bucket, Features
from switchsum.measure.manifest import ITEM_BYTES
from switchsum.measure.numerals import seconds
from switchsum.measure.prediction import PAYLOAD_BYTES, Ground, Interval, Prediction, speedup, summed_bytes

MATTERS = 0.02  # of a step: below, nobody would notice
_ALIKE = 0.98
_NARROW = {16: "float16", 8: "int8"}
_FLOATS = ("float32", "float16", "bfloat16")

_CERTAIN = ("one worker", "nothing summed", "one host")

GAIN, LOSS, NO_GAIN, UNDECIDED = "gain", "loss", "no gain", "undecided"


@dataclass(frozen=True)
class Verdict:
    """`test` beside `base`; `ratio`: base's step over test's. `cause`: a word for why there is no gain, `why`: a sentence; ""
    for a gain. `bits`: of base's numbers, where it was given as few as test's lanes hold; None where both carry the job's."""

    base: Prediction
    test: Prediction
    ratio: Interval
    verdict: str
    cause: str
    why: str
    bits: int | None = None

    @property
    def against(self) -> str:
        return self.base.architecture + (f" with {self.bits}-bit numbers" if self.bits else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "architecture": self.test.architecture,
            "against": self.base.architecture,
            "against_bits": self.bits,
            "workers": self.test.cluster.workers,
            "rates": dict(self.test.rates),
            "speedup": self.ratio.as_json(),
            "verdict": self.verdict,
            "cause": self.cause,
            "why": self.why,
        }


def gains(ratio: Interval) -> bool:
    """Whether the whole interval is above 1 and the step gets shorter by MATTERS."""
    return ratio.low > 1 and ratio.value >= 1 + MATTERS


def known(ratio: Interval) -> bool:
    """Whether anything is known of how far it may be off; where both do the same there is nothing to know."""
    return math.isclose(ratio.value, 1) or not math.isclose(ratio.low, ratio.high, rel_tol=1e-9)


def narrowed(features: Features, bits: int) -> Features:
    """Floats that travel in more bits in so many instead (16, 8), as by a communication hook; the rest as it is."""

    def share(dtype: str) -> float:
        return min(1.0, bits / 8 / ITEM_BYTES[dtype]) if dtype in _FLOATS else 1.0

    def narrow(dtype: str) -> str:
        return _NARROW[bits] if share(dtype) < 1 else dtype

    all_of_it = share(features.wire_dtype)
    if not features.buckets:
        return replace(
            features,
            gradient_bytes=int(features.gradient_bytes * all_of_it),
            dense_parameter_bytes=int(features.dense_parameter_bytes * all_of_it),
            dtype=narrow(features.dtype),
        )
    buckets = tuple(
        Bucket(max(1, int(each.size_bytes * share(each.dtype))), narrow(each.dtype), each.ready_s) for each in features.buckets
    )
    beyond = features.gradient_bytes - sum(each.size_bytes for each in features.buckets)
    return replace(
        features,
        buckets=buckets,
        gradient_bytes=sum(each.size_bytes for each in buckets) + int(beyond * all_of_it),
    )


def spared_bits(features: Features, usual: str, architecture: str) -> int | None:
    """How few bits of a number a job that sums by `usual` must be given for a comparison with narrower lanes."""
    bits = costs.LANES.get(architecture, 32)
    if bits not in _NARROW or usual in costs.LANES or narrowed(features, bits) == features:
        return None
    return bits


def told(ratio: Interval, digits: int) -> str:
    """ "1.44 (1.40 to 1.48)", of so many digits behind the point."""
    value, low, high = (f"{each:.{digits}f}" for each in (ratio.value, ratio.low, ratio.high))
    if not known(ratio):
        return f"{value} (interval not known)"
    return value if low == high else f"{value} ({low} to {high})"


def judge(features: Features, base: Prediction, test: Prediction, ground: Ground, bits: int | None = None) -> Verdict:
    """`bits`: base is of narrowed(features, bits), since fewer bits are no gain of what sums them.

    A gain is claimed where the whole interval is above 1 and the step gets shorter by MATTERS; that there is none, where the
    whole interval is below that, or there is nothing that a network could change."""
    ratio = speedup(base, test)
    # Whatever a ring gains that stands in for a switch is no gain of the switch.
    itself = costs.summed_by(test.architecture, features.wire_dtype) == test.architecture
    if itself and gains(ratio):
        return Verdict(base, test, ratio, GAIN, "", "", bits)
    cause, why = _why(features, base, test, ground, bits)
    if itself and ratio.high >= 1 + MATTERS and cause not in _CERTAIN:
        verdict, cause, why = UNDECIDED, "interval", "the interval reaches from no gain to one: measure more runs and steps"
    else:
        verdict = LOSS if ratio.high < 1 and ratio.value <= 1 - MATTERS else NO_GAIN
    return Verdict(base, test, ratio, verdict, cause, why, bits)


def _why(features: Features, base: Prediction, test: Prediction, ground: Ground, bits: int | None) -> tuple[str, str]:
    workers = test.cluster.workers
    if workers == 1:
        return "one worker", "one worker has nobody to sum with"
    if not summed_bytes(features):
        return "nothing summed", "the job has no gradients to sum"
    if test.cluster.hosts == 1:
        return "one host", "all workers are on one host, and no sum passes the network"
    if costs.summed_by(test.architecture, features.wire_dtype) != test.architecture:
        return "type", (
            f"the switch's lanes hold no {features.wire_dtype}: Gloo sums it around a ring, and that is what was predicted"
        )
    if base.communication.value < MATTERS * base.step.value and test.communication.value < MATTERS * test.step.value:
        if base.weights.value >= MATTERS * base.step.value:
            return "hidden", (
                f"communication is already hidden: of {seconds(base.weights.value)} of sums "
                f"{seconds(base.communication.value)} stick out beside computing"
            )
        share = 100 * base.weights.value / base.sum_s
        return "not the bottleneck", f"the link is not the bottleneck: sums take {share:.2g} % of a step"
    if test.limit == "latency":
        return "small gradients", (
            f"gradients are small: {seconds(test.latency_s)} of {seconds(test.weights.value)} of sums are latency, not bytes"
        )
    if test.limit == "slots":
        rtt_s = ground.round_trip_s(test.architecture, test.rates)
        return "slots", (
            f"slots limit it: {ground.slots} slots of {PAYLOAD_BYTES} bytes in a round trip of {seconds(rtt_s)} "
            f"carry {_rate(1 / test.cost.limits['slots'])} of gradients, the link {_rate(1 / test.cost.limits['link'])}"
        )
    if test.limit == "cpu":
        return "cpu", (
            f"the processor limits it: it sums {_rate(1 / test.cost.limits['cpu'])} of gradients on a worker, the link carries "
            f"{_rate(1 / test.cost.limits['link'])}"
        )
    if test.limit == "oversubscription":
        return "oversubscription", (
            f"the racks' links upwards limit it: oversubscribed {test.cluster.oversubscription:g} times, they carry "
            f"{_rate(1 / test.cost.limits['oversubscription'])} of gradients, a host's link "
            f"{_rate(1 / test.cost.limits['link'])}"
        )
    moved = [
        _through_link(each, of) / summed_bytes(features)
        for each, of in ((base, narrowed(features, bits) if bits else features), (test, features))
    ]
    if moved[1] >= _ALIKE * moved[0]:
        wide = {each: costs.wire_bytes(test.architecture, each) for each in _amounts(features) if each in costs.CARRIED}
        lanes = "".join(
            f"; each number of {dtype} takes {times:g} times its bytes in these lanes"
            for dtype, times in wide.items()
            if times > 1
        )
        return "bytes", (
            f"it moves no fewer bytes: {moved[1]:.3g} through a link for each byte of gradients, "
            f"{base.architecture} {moved[0]:.3g}{lanes}"
        )
    if test.limit in ("pcie", "nvlink"):
        return test.limit, f"the way inside the host limits it: {test.limit}"
    if test.step.value > base.step.value and test.weights.value > base.weights.value:
        return "slower sums", (
            f"its sums take {seconds(test.weights.value)}, {base.architecture}'s {seconds(base.weights.value)}, by latency and "
            "efficiency as calibrated: it moves fewer bytes"
        )
    return "small difference", f"it takes less than {100 * MATTERS:g} % of a step away"


def _amounts(features: Features) -> dict[str, int]:
    """Bytes of a worker's gradients by type."""
    found: dict[str, int] = {}
    for each in features.buckets:
        found[each.dtype] = found.get(each.dtype, 0) + each.size_bytes
    if beyond := summed_bytes(features) - sum(found.values()):
        found[features.wire_dtype] = found.get(features.wire_dtype, 0) + beyond
    return found


def _through_link(found: Prediction, features: Features) -> float:
    """Bytes of all sums of a step."""
    return sum(size * costs.link_bytes(found.architecture, found.cluster, of) for of, size in _amounts(features).items())


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.4g} MB/s" if bytes_per_s < 1e9 else f"{bytes_per_s / 1e9:,.4g} GB/s"
