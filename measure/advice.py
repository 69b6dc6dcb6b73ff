"""What to do about a job's communication, in plain sentences: measure, change the software, try small, and only then buy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from switchsum.measure import costs, media, prediction
from switchsum.measure.calibration import BadCalibration
from switchsum.measure.features import Bucket, Features
from switchsum.measure.numerals import seconds
from switchsum.measure.placement import LOCAL
from switchsum.measure.prediction import Interval, Prediction, speedup
from switchsum.measure.verdicts import GAIN, MATTERS, UNDECIDED, Verdict, gains
from switchsum.measure.whatif import FAR_OFF, Study

_FEW_STEPS = 5
_WIDE = 0.10  # of an interval, beside its value
_MERGES = (2, 4, 8)


@dataclass(frozen=True)
class Advice:
    """`heading`: one of "Measure", "Change the software", "Try small", "Buy"."""

    heading: str
    sentences: tuple[str, ...]


def advise(study: Study) -> list[Advice]:
    """All four, in that order."""
    best = _best(study)
    return [
        Advice("Measure", tuple(_measure(study)) or ("What was measured suffices for these predictions.",)),
        Advice("Change the software", tuple(_software(study)) or ("No change that the model knows gains 2 % or more.",)),
        Advice("Try small", tuple(_try(best))),
        Advice("Buy", tuple(_buy(study, best))),
    ]


def _best(study: Study) -> Verdict | None:
    """Of a switch: the largest gain; else the likeliest of those undecided; else the nearest to a gain. With the job's own
    number of workers and over links as fast as its own or faster, the slowest of those, if that was asked for."""
    found = [each for each in study.verdicts if each.test.architecture in costs.LANES]
    base = study.base
    found = [each for each in found if each.test.cluster.workers == base.cluster.workers] or found
    rates = [each.test.rates["ethernet"] for each in found]
    nearest = min((rate for rate in rates if rate >= base.rates["ethernet"]), default=max(rates, default=0.0))
    found = [each for each in found if each.test.rates["ethernet"] == nearest]
    order = {GAIN: 2, UNDECIDED: 1}
    return max(found, key=lambda each: (order.get(each.verdict, 0), each.ratio.value), default=None)


def _measure(study: Study) -> Iterator[str]:
    features, ground = study.features, study.ground
    if features.synthetic:
        yield "These features are made up. Profile your own job first: `switchsum profile`."
    if len(features.step_s) < _FEW_STEPS:
        yield f"Profile more steps: {len(features.step_s)} tell little of their spread; take {_FEW_STEPS} at least."
    if not features.buckets:
        yield "Profile with buckets (DistributedDataParallel), so that overlap is replayed and not only bounded."
    if ground.calibration is None:
        yield (
            "Calibrate: `switchsum bench allreduce --json FILE` on the hosts in question, then --calibration FILE. Until then "
            f"an efficiency of {ground.efficiency:g} is a guess, and nothing here knows latency or the processor."
        )
    if study.off is not None and abs(study.off) > FAR_OFF:
        yield (
            f"Find out first why the model misses the present: it says {seconds(study.base.step.value)} a step, measured were "
            f"{seconds(features.mean_step_s)} ({100 * study.off:+.0f} %). Other predictions will be no better."
        )
    if study.now is None:
        yield f"The model could not be held against the measured step: {_why_not_now(study)}."
    wide = max(((each.step.high - each.step.low) / 2 / each.step.value for each in study.predictions), default=0.0)
    if wide > _WIDE:
        yield f"The intervals reach ±{100 * wide:.0f} %: measure more runs of more sizes, and more steps."


def _why_not_now(study: Study) -> str:
    features = study.features
    together = features.architecture in LOCAL and features.workers > 1
    if together and not study.predictions[0].rates.keys() & {"pcie", "nvlink"}:
        return "the job's workers are on one host, and how they sum there is not known (--set pcie or nvlink)"
    if not together and features.link_bps is None:
        return "the link on which the job was measured is not known"
    return f"{prediction.architecture_of(features)}, by which the job sums, is not calibrated"


def _software(study: Study) -> Iterator[str]:
    """What the architecture of study.base would gain there."""
    found = list(_changes(study))
    yield from found
    if found:
        yield "These are middle values of predictions, without intervals."


def _changes(study: Study) -> Iterator[str]:
    base, features = study.base, study.features
    if base.cluster.workers == 1:
        return

    def gained(changed: Features) -> float:
        test = prediction.predict(changed, base.architecture, base.cluster, base.rates, study.ground)
        return base.step.value / test.step.value

    if features.buckets:
        merged = {times: gained(_merged(features, times)) for times in _MERGES if times <= len(features.buckets)}
        halved = gained(_halved(features))
        if merged and max(merged.values()) >= max(1 + MATTERS, halved):
            times = max(merged, key=lambda each: merged[each])
            yield f"Larger buckets: with {times} in one (bucket_cap_mb) {_times(merged[times])}."
        elif halved >= 1 + MATTERS:
            yield f"Smaller buckets: with each in two (bucket_cap_mb) {_times(halved)}, since sums begin earlier."
    elif base.sum_s / base.ideal_s >= 1 + MATTERS:
        yield (
            f"Overlap: if all sums ran beside computing, {_times(base.sum_s / base.ideal_s)} at most; "
            "DistributedDataParallel does so by buckets."
        )
    if (half := gained(_half_precision(features))) >= 1 + MATTERS:
        yield f"Mixed precision on the wire (a bf16 or fp16 communication hook): half the float32 bytes, {_times(half)}."
    if features.buckets and base.replay_s is not None and base.replay_s / base.ideal_s >= 1 + MATTERS:
        yield f"Perfect overlap would be {base.replay_s / base.ideal_s:.2f} times as fast, and nothing more can come of hiding."
    if base.architecture == "switch":
        for narrow in ("switch16", "switch8"):
            try:
                test = prediction.predict(features, narrow, base.cluster, base.rates, study.ground)
            except BadCalibration:
                continue
            if (faster := base.step.value / test.step.value) >= 1 + MATTERS:
                yield f"Narrow lanes: SWITCHSUM_LANES={narrow.removeprefix('switch')} {_times(faster)} (docs/numerics.md)."


def _try(best: Verdict | None) -> Iterator[str]:
    if best is None:
        yield "No switch was asked for (--arch switch)."
    elif best.verdict in (GAIN, UNDECIDED):
        rate = media.told("ethernet", best.test.rates["ethernet"])
        yield (
            "Emulate a rack with links scaled down so that computing and communication keep their ratio, and train in it: "
            "`switchsum rack run FILE -- torchrun train.py`; over Gloo and over the switch."
        )
        yield (
            f"Look there for what the model says of {best.test.architecture} with {best.test.cluster.workers} workers at "
            f"{rate}: {_interval(best.ratio)} times as fast as {best.base.architecture}. A software switch shows whether it "
            "works, not how fast hardware is."
        )
    else:
        yield f"Nothing to try with a switch, for {best.why}."


def _buy(study: Study, best: Verdict | None) -> Iterator[str]:
    faster = _faster_link(study)
    if faster is not None:
        rate = media.told("ethernet", faster.rates["ethernet"])
        base = study.base
        than = "now" if study.now else f"over {media.told('ethernet', base.rates['ethernet'])}"
        yield f"{rate} links alone, with {faster.architecture}: {_interval(speedup(base, faster))} times as fast as {than}."
    if best is None:
        return
    if best.verdict == GAIN:
        gain = best.ratio.value
        yield (
            f"A switch that adds ({best.test.architecture}, {best.test.cluster.workers} workers, "
            f"{media.told('ethernet', best.test.rates['ethernet'])}): {_interval(best.ratio)} times as fast as "
            f"{best.base.architecture} on the same links, a step of {seconds(best.test.step.value)} for "
            f"{seconds(best.base.step.value)}."
        )
        yield f"Buy only if a step in {100 / gain:.0f} % of its time is worth it, and after the small trial has shown the gain."
    elif best.verdict == UNDECIDED:
        yield f"Do not buy yet: {_interval(best.ratio)} times as fast, and {best.why}."
    else:
        yield (
            f"Do not buy a switch for this job: with {best.test.cluster.workers} workers at "
            f"{media.told('ethernet', best.test.rates['ethernet'])} there is no gain, for {best.why}."
        )


def _faster_link(study: Study) -> Prediction | None:
    """The architecture and workers of study.base with the fastest link asked for, if that gains."""
    base = study.base
    alike = [
        each
        for each in study.predictions
        if each.architecture == base.architecture
        and each.cluster.workers == base.cluster.workers
        and each.rates["ethernet"] > base.rates["ethernet"]
    ]
    best = max(alike, key=lambda each: each.rates["ethernet"], default=None)
    return best if best is not None and gains(speedup(base, best)) else None


def _interval(ratio: Interval) -> str:
    value, low, high = (f"{each:.2f}" for each in (ratio.value, ratio.low, ratio.high))
    return value if low == high else f"{value} ({low} to {high})"


def _times(ratio: float) -> str:
    return f"makes a step {ratio:.2f} times as fast"


def _merged(features: Features, times: int) -> Features:
    groups = [features.buckets[start : start + times] for start in range(0, len(features.buckets), times)]
    merged = [
        Bucket(sum(each.size_bytes for each in group), group[0].dtype, max(each.ready_s for each in group)) for group in groups
    ]
    return replace(features, buckets=tuple(merged))


def _halved(features: Features) -> Features:
    """Each bucket in two, the first ready half-way between the one before and itself."""
    found: list[Bucket] = []
    before_s = 0.0
    for bucket in features.buckets:
        first = bucket.size_bytes // 2
        if first:
            found.append(Bucket(first, bucket.dtype, min(bucket.ready_s, (before_s + bucket.ready_s) / 2)))
        found.append(Bucket(bucket.size_bytes - first, bucket.dtype, bucket.ready_s))
        before_s = bucket.ready_s
    return replace(features, buckets=tuple(found))


def _half_precision(features: Features) -> Features:
    """What travels as float32 in half its bytes; the rest as it is."""
    if not features.buckets:
        if features.wire_dtype != "float32":
            return features
        return replace(features, gradient_bytes=features.gradient_bytes // 2, dtype="bfloat16")
    halves = [
        Bucket(max(1, each.size_bytes // 2), "bfloat16", each.ready_s) if each.dtype == "float32" else each
        for each in features.buckets
    ]
    saved = sum(each.size_bytes for each in features.buckets) - sum(each.size_bytes for each in halves)
    return replace(features, buckets=tuple(halves), gradient_bytes=features.gradient_bytes - saved)
