"""What to do about a job's communication, in plain sentences: measure, change the software, try small, and only then buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from switchsum.measure import costs, media, prediction, verdicts
from switchsum.measure.calibration import BadCalibration
from switchsum.measure.features import Bucket, Features
from switchsum.measure.prediction import Interval, Prediction, speedup
from switchsum.measure.verdicts import GAIN, MATTERS, UNDECIDED, Verdict, gains, narrowed
from switchsum.measure.whatif import Study

_FEW_STEPS = 5
_WIDE = 0.10  # of an interval, beside its value
_MERGES = (2, 4, 8)
_LISTED = 3  # settings told one by one
_ACCURACY = "fewer bits cost accuracy (docs/numerics.md)"


@dataclass(frozen=True)
class Advice:
    """`heading`: one of "Measure", "Change the software", "Try small", "Buy"."""

    heading: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class _Change:
    """Of the software, without new hardware. `features`: the job after it and those before it; None where the model knows no
    more than how much it gains."""

    name: str
    sentence: str
    features: Features | None = None


@dataclass(frozen=True)
class _Offer:
    """A switch in one setting: beside the job as it is (`found`), and after the changes of software (`after`), each side with
    or without them, as is faster; None where nothing is to change. `why`: it gains nothing then."""

    found: Verdict
    after: Interval | None
    why: str

    @property
    def gains(self) -> bool:
        return self.found.verdict == GAIN and (self.after is None or gains(self.after))


def advise(study: Study) -> list[Advice]:
    """All four, in that order."""
    changes = list(_changes(study))
    offers = _offers(study, changes)
    return [
        Advice("Measure", tuple(_measure(study)) or ("What was measured suffices for these predictions.",)),
        Advice("Change the software", tuple(_software(study, changes))),
        Advice("Try small", tuple(_try(study, offers))),
        Advice("Buy", tuple(_buy(study, changes, offers))),
    ]


def _setting(found: Prediction) -> tuple[int, tuple[float, ...]]:
    return found.cluster.workers, tuple(found.rates.values())


def _own(study: Study) -> list[Prediction]:
    """By the job's own architecture in the settings that were asked for, the fewest workers and slowest links first."""
    found = [each for each in study.predictions if each.architecture == study.usual]
    found = found or [each.base for each in study.verdicts if each.bits is None]
    return sorted(found, key=_setting)


def _changed(features: Features, changes: Sequence[_Change]) -> Features:
    return next((each.features for each in reversed(changes) if each.features is not None), features)


def _after(changes: Sequence[_Change]) -> str:
    return f"After the change of software ({' and '.join(each.name for each in changes if each.features is not None)})"


def _offers(study: Study, changes: Sequence[_Change]) -> list[_Offer]:
    """Of switches to a job that has none, the fewest workers and slowest links first."""
    if study.usual in costs.LANES:
        return []
    changed = _changed(study.features, changes)
    listed = []
    for found in sorted(study.verdicts, key=lambda each: _setting(each.test)):
        base, test = found.base, found.test
        if test.architecture not in costs.LANES:
            continue
        if changed == study.features or found.verdict != GAIN:
            listed.append(_Offer(found, None, found.why))
            continue
        narrow = narrowed(changed, found.bits) if found.bits else changed
        own = prediction.predict(narrow, base.architecture, base.cluster, base.rates, study.ground)
        # Numbers of 16 bits fill a lane of 32 to the half, so such a job would be given narrow lanes.
        lanes = [test.architecture, *(["switch16"] if costs.wire_bytes(test.architecture, changed.wire_dtype) > 1 else [])]
        others = [prediction.predict(changed, name, test.cluster, test.rates, study.ground) for name in lanes]
        why = verdicts.judge(changed, own, others[0], study.ground, found.bits).why
        fastest = [min(several, key=lambda each: each.step.value) for several in ((base, own), (test, *others))]
        listed.append(_Offer(found, speedup(*fastest), why))
    return listed


def _place(study: Study, found: Prediction) -> str:
    """The link's rate, and what else the study varies."""
    if found.cluster.hosts == 1 and any(each.cluster.hosts > 1 for each in study.predictions):
        return "one host"
    varied = [
        f"{name} {media.told(name, rate)}"
        for name, rate in found.rates.items()
        if name != "ethernet" and len({each.rates[name] for each in study.predictions}) > 1
    ]
    told = ", ".join([media.told("ethernet", found.rates["ethernet"]), *varied])
    many = len({each.cluster.workers for each in study.predictions}) > 1
    return f"{told} with {_workers(found)}" if many else told


def _workers(found: Prediction) -> str:
    return f"{found.cluster.workers} worker{'s' if found.cluster.workers > 1 else ''}"


def _places(study: Study, found: Sequence[Prediction]) -> str:
    told = list(dict.fromkeys(_place(study, each) for each in found))
    return ", ".join(told) if len(told) <= _LISTED else f"{len(told)} settings from {told[0]} to {told[-1]}"


def _listed(study: Study, ratios: Sequence[tuple[Prediction, Interval]]) -> str:
    if len(ratios) > _LISTED:
        values = [ratio.value for _, ratio in ratios]
        places = _places(study, [each for each, _ in ratios])
        return f"{min(values):.2f} to {max(values):.2f} times as fast at {places}"
    (first, ratio), *others = ratios
    told = [f"{_interval(ratio)} times as fast at {_place(study, first)}"]
    return ", ".join(told + [f"{_interval(ratio)} at {_place(study, each)}" for each, ratio in others])


def _measure(study: Study) -> Iterator[str]:
    features, ground = study.features, study.ground
    if study.alone:
        yield "The job has one worker, which sums with nobody: add --workers N to ask what N of them would do."
        return
    if features.synthetic:
        yield "These features are made up. Profile your own job first: `switchsum profile`."
    if len(features.step_s) < _FEW_STEPS:
        yield f"Profile more steps: {len(features.step_s)} tell little of their spread; take {_FEW_STEPS} at least."
    if not features.buckets:
        yield "Profile with buckets (DistributedDataParallel), so that overlap is replayed and not only bounded."
    if ground.calibration is None:
        yield (
            "Calibrate: `switchsum bench allreduce --rack RACK --json FILE` (--rate sets its links; without one no efficiency "
            f"can be learnt), then --calibration FILE. Until then an efficiency of {ground.efficiency:g} is a guess, and "
            "nothing here knows latency or the processor."
        )
    elif _unknown(study):
        yield "The calibration is of one run and two sizes, so nobody knows how right it is: measure more runs of more sizes."
    if study.doubt:
        yield f"{study.doubt} Find out first why."
    if study.unchecked:
        yield f"The model could not be held against the measured step: {study.unchecked}."
    wide = max(((each.step.high - each.step.low) / 2 / each.step.value for each in study.predictions), default=0.0)
    if wide > _WIDE:
        yield f"The intervals reach ±{100 * wide:.0f} %: measure more runs of more sizes, and more steps."


def _unknown(study: Study) -> bool:
    """Whether a calibration has nothing from which an interval could come."""
    learnt = study.ground.calibration
    if learnt is None:
        return False
    names = {each.architecture for each in study.predictions}
    fits = [learnt.fit(name) for name in sorted(names) if learnt.knows(name)]
    return any(len(fit.latency_s.runs) < 2 and not math.isfinite(fit.missed) for fit in fits)


def _software(study: Study, changes: Sequence[_Change]) -> Iterator[str]:
    yield from (each.sentence for each in changes)
    if changes:
        where = _places(study, _where(study))
        yield f"For {study.usual} at {where}: middle values of predictions, without intervals."
    elif study.alone:
        yield "One worker sums nothing, so there is nothing to change."
    elif study.unjudged:
        yield f"What a change would gain is not known: {study.usual}, by which the job sums, is not calibrated."
    else:
        yield "No change that the model knows gains 2 % or more."


def _where(study: Study) -> list[Prediction]:
    """Where changes are tried: the job as it is now, and the first and last of the settings asked for."""
    own = _own(study)
    found: list[Prediction] = []
    for each in [*([study.now] if study.now else []), *own[:1], *own[-1:]]:
        known = any((each.cluster, each.rates) == (other.cluster, other.rates) for other in found)
        if each.cluster.workers > 1 and not known:
            found.append(each)
    return found


def _changes(study: Study) -> Iterator[_Change]:
    """What gains MATTERS in one place at least."""
    features, where = study.features, _where(study)
    if not where:
        return

    def gained(changed: Features, architecture: str = study.usual) -> list[float]:
        tests = (prediction.predict(changed, architecture, each.cluster, each.rates, study.ground) for each in where)
        return [each.step.value / test.step.value for each, test in zip(where, tests, strict=True)]

    changed = features
    if features.buckets:
        merged = {times: gained(_merged(features, times)) for times in _MERGES if times <= len(features.buckets)}
        halved = gained(_halved(features))
        times = max(merged, key=lambda each: max(merged[each]), default=0)
        if times and max(merged[times]) >= max(1 + MATTERS, *halved):
            changed = _merged(features, times)
            said = f"Larger buckets: with {times} in one (bucket_cap_mb) {_times(merged[times])}."
            yield _Change("larger buckets", said, changed)
        elif max(halved) >= 1 + MATTERS:
            changed = _halved(features)
            said = f"Smaller buckets: with each in two (bucket_cap_mb) {_times(halved)}, since sums begin earlier."
            yield _Change("smaller buckets", said, changed)
    elif max(overlapped := [each.sum_s / each.ideal_s for each in where]) >= 1 + MATTERS:
        said = f"Overlap: if all sums ran beside computing, {_times(overlapped)} at most; DistributedDataParallel does so by "
        yield _Change("overlap", said + "buckets.")
    if max(half := gained(narrowed(features, 16))) >= 1 + MATTERS:
        # PyTorch refuses its bf16 hook without NCCL.
        hook = "a bf16 or fp16" if "nccl" in features.backend else "an fp16"
        said = f"Mixed precision on the wire ({hook} communication hook): half the float32 bytes, {_times(half)}; {_ACCURACY}."
        yield _Change("16 bits on the wire", said, narrowed(changed, 16))
    hidden = [each.replay_s / each.ideal_s for each in where if each.replay_s is not None]
    if features.buckets and hidden and max(hidden) >= 1 + MATTERS:
        said = f"Perfect overlap {_times(hidden)}, and nothing more can come of hiding."
        yield _Change("perfect overlap", said)
    if study.usual == "switch":
        for narrow in ("switch16", "switch8"):
            try:
                faster = gained(features, narrow)
            except BadCalibration:
                continue
            if max(faster) >= 1 + MATTERS:
                said = f"Narrow lanes: SWITCHSUM_LANES={narrow.removeprefix('switch')} {_times(faster)}; {_ACCURACY}."
                yield _Change("narrow lanes", said)


def _no_offer(study: Study) -> str:
    """Why nothing is to say of a switch; "" if something is."""
    if study.alone:
        return "One worker sums with nobody."
    if study.unjudged:
        return f"No verdict: {study.usual}, by which the job sums, is not calibrated."
    if study.usual in costs.LANES:
        return "The job sums by the switch already."
    if not any(each.architecture in costs.LANES for each in study.predictions):
        return "No switch was asked for (--arch switch)."
    return ""


def _try(study: Study, offers: Sequence[_Offer]) -> Iterator[str]:
    if nothing := _no_offer(study):
        yield nothing
        return
    likely = [each.found for each in offers if each.gains or each.found.verdict == UNDECIDED]
    if not likely:
        after = any(each.found.verdict == GAIN for each in offers)
        why = "after the change of software above it adds nothing" if after else _reasons(study, offers)
        yield f"Nothing to try with a switch: {why}."
        return
    best = max(likely, key=lambda each: (each.verdict == GAIN, each.ratio.value))
    yield (
        "Emulate a rack with links scaled down so that computing and communication keep their ratio, and train in it: "
        "`switchsum rack run FILE -- torchrun train.py`; over Gloo and over the switch."
    )
    yield (
        f"Look there for what the model says of {best.test.architecture} with {_workers(best.test)} at "
        f"{media.told('ethernet', best.test.rates['ethernet'])}: {_interval(best.ratio)} times as fast as {best.against}. A "
        "software switch shows whether it works, not how fast hardware is."
    )


def _reasons(study: Study, offers: Sequence[_Offer]) -> str:
    """ "no gain at 1 Gbit/s, for ...; at 10 Gbit/s, for ..."."""
    by_cause: dict[str, list[Verdict]] = {}
    for each in offers:
        if each.found.verdict not in (GAIN, UNDECIDED):
            by_cause.setdefault(each.found.cause, []).append(each.found)
    told = []
    for alike in by_cause.values():
        figures = "" if len({each.why for each in alike}) == 1 else f" (at {_place(study, alike[0].test)})"
        told.append(f"at {_places(study, [each.test for each in alike])}, for {alike[0].why}{figures}")
    return f"no gain {'; '.join(told)}"


def _buy(study: Study, changes: Sequence[_Change], offers: Sequence[_Offer]) -> Iterator[str]:
    yield from _faster_links(study, changes)
    if nothing := _no_offer(study):
        yield nothing
        return
    for name in dict.fromkeys(each.found.test.architecture for each in offers):
        yield from _switch(study, changes, [each for each in offers if each.found.test.architecture == name])
    if any(each.gains for each in offers):
        yield "Buy only if such a gain is worth it, and after the small trial has shown it."
    elif any(each.found.verdict == GAIN for each in offers):
        yield "Change the software first, and do not buy a switch for this job."
    elif not any(each.found.verdict == UNDECIDED for each in offers):
        yield f"Do not buy a switch for this job: {_reasons(study, offers)}."


def _switch(study: Study, changes: Sequence[_Change], offers: Sequence[_Offer]) -> Iterator[str]:
    """Of one architecture, in all settings."""
    name, against = offers[0].found.test.architecture, f"{offers[0].found.against} on the same links"
    gain = [each for each in offers if each.found.verdict == GAIN]
    undecided = [each.found for each in offers if each.found.verdict == UNDECIDED]
    none = [each for each in offers if each.found.verdict not in (GAIN, UNDECIDED)]
    if gain:
        told = _listed(study, [(each.found.test, each.found.ratio) for each in gain])
        reasons = f"; {_reasons(study, none)}" if none else ""
        narrow = f"; {_ACCURACY}" if costs.LANES[name] < 32 else ""
        yield f"A switch that adds ({name}), beside {against}: {told}{reasons}{narrow}."
    after = [(each, each.after) for each in gain if each.after is not None]
    adds = [(each.found.test, ratio) for each, ratio in after if gains(ratio)]
    lost = [(each, ratio) for each, ratio in after if not gains(ratio)]
    if adds:
        changed = _changed(study.features, changes)
        lanes = "in 16-bit lanes (SWITCHSUM_LANES=16) " if costs.wire_bytes(name, changed.wire_dtype) > 1 else ""
        yield f"{_after(changes)} it adds {lanes}beside that: {_listed(study, adds)}."
    if lost:
        why = f", for {lost[0][0].why}" if lost[0][0].why else ""
        yield f"{_after(changes)} it adds nothing: {_listed(study, [(each.found.test, ratio) for each, ratio in lost])}{why}."
    if undecided:
        told = _listed(study, [(each.test, each.ratio) for each in undecided])
        yield f"Do not buy yet: {name} beside {against}: {told}, and {undecided[0].why}."


def _faster_links(study: Study, changes: Sequence[_Change]) -> Iterator[str]:
    """Beside the job as it is now, or over the slowest links asked for; with the same architecture and workers."""
    own = _own(study)
    own = [each for each in own if each.cluster.workers == study.base.cluster.workers] or own
    if not own:
        return
    base = study.base if study.base.cluster == own[0].cluster else own[0]
    faster = [
        each
        for each in own
        if each.cluster == base.cluster
        and each.rates["ethernet"] > base.rates["ethernet"]
        and {**each.rates, "ethernet": 0.0} == {**base.rates, "ethernet": 0.0}
        and gains(speedup(base, each))
    ]
    if not faster:
        return
    than = media.told("ethernet", base.rates["ethernet"])
    told = _listed(study, [(each, speedup(base, each)) for each in faster])
    yield f"Faster links alone, with {base.architecture} and beside {than}: {told}."
    changed = _changed(study.features, changes)
    if changed != study.features:
        before, *others = (
            prediction.predict(changed, each.architecture, each.cluster, each.rates, study.ground) for each in [base, *faster]
        )
        yield f"{_after(changes)}: {_listed(study, [(each, speedup(before, each)) for each in others])}."


def _interval(ratio: Interval) -> str:
    return verdicts.told(ratio, 2)


def _times(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return f"makes a step {low if low == high else f'{low} to {high}'} times as fast"


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
