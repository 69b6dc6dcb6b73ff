"""Whether one prediction gains on another, and if not, why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from switchsum.measure import costs
from switchsum.measure.features import Features
from switchsum.measure.numerals import seconds
from switchsum.measure.prediction import PAYLOAD_BYTES, Ground, Interval, Prediction, speedup, summed_bytes

MATTERS = 0.02  # of a step: below, nobody would notice
_ALIKE = 0.98

_CERTAIN = ("one worker", "nothing summed", "one host")

GAIN, LOSS, NO_GAIN, UNDECIDED = "gain", "loss", "no gain", "undecided"


@dataclass(frozen=True)
class Verdict:
    """`test` beside `base`; `ratio`: base's step over test's. `cause`: a word for why there is no gain, `why`: a sentence; ""
    for a gain."""

    base: Prediction
    test: Prediction
    ratio: Interval
    verdict: str
    cause: str
    why: str

    def as_json(self) -> dict[str, Any]:
        return {
            "architecture": self.test.architecture,
            "against": self.base.architecture,
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


def judge(features: Features, base: Prediction, test: Prediction, ground: Ground) -> Verdict:
    """A gain is claimed where the whole interval is above 1 and the step gets shorter by MATTERS; that there is none, where the
    whole interval is below that, or there is nothing that a network could change."""
    ratio = speedup(base, test)
    # Whatever a ring gains that stands in for a switch is no gain of the switch.
    itself = costs.summed_by(test.architecture, features.wire_dtype) == test.architecture
    if itself and gains(ratio):
        return Verdict(base, test, ratio, GAIN, "", "")
    cause, why = _why(features, base, test, ground)
    if itself and ratio.high >= 1 + MATTERS and cause not in _CERTAIN:
        verdict, cause, why = UNDECIDED, "interval", "the interval reaches from no gain to one: measure more runs and steps"
    else:
        verdict = LOSS if ratio.high < 1 and ratio.value <= 1 - MATTERS else NO_GAIN
    return Verdict(base, test, ratio, verdict, cause, why)


def _why(features: Features, base: Prediction, test: Prediction, ground: Ground) -> tuple[str, str]:
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
    moved = [costs.link_bytes(each.architecture, each.cluster, features.wire_dtype) for each in (base, test)]
    if moved[1] >= _ALIKE * moved[0]:
        lanes = costs.wire_bytes(test.architecture, features.wire_dtype)
        wide = f"; each number of {features.wire_dtype} takes {lanes:g} times its bytes in these lanes" if lanes > 1 else ""
        return "bytes", (
            f"it moves no fewer bytes: {moved[1]:.3g} through a link for each byte of gradients, "
            f"{base.architecture} {moved[0]:.3g}{wide}"
        )
    if test.limit in ("pcie", "nvlink"):
        return test.limit, f"the way inside the host limits it: {test.limit}"
    return "small difference", f"it takes less than {100 * MATTERS:g} % of a step away"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.4g} MB/s" if bytes_per_s < 1e9 else f"{bytes_per_s / 1e9:,.4g} GB/s"
