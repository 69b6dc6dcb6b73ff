"""Predicted steps: the paper's mode, bounds and replay, intervals, verdicts with their reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.measure import costs, intervals, prediction, replay, verdicts
from switchsum.measure.calibration import Calibration
from switchsum.measure.costs import ARCHITECTURES, Cluster, Cost
from switchsum.measure.features import Bucket, Features
from switchsum.measure.prediction import CannotPredict, Ground
from switchsum.measure.rows import Figure
from tests.measure.made_features import features
from tests.measure.test_calibration import calibration, made
from tests.measure.test_calibration import found as calibrated_by

GBPS = 1e9 / 8
SEVEN_TENTHS = Ground(efficiency=0.7)


def predicted(
    job: Features, architecture: str, gbps: float = 10.0, ground: Ground = SEVEN_TENTHS, workers: int = 4, **rates: float
) -> prediction.Prediction:
    return prediction.predict(job, architecture, Cluster(workers), {"ethernet": gbps * GBPS, **rates}, ground)


def test_the_papers_mode_from_25_to_100_gbps() -> None:
    """Weights over Ethernet and PCIe, both at the same efficiency, which cancels: (1/3.125 + 1/10) / (1/12.5 + 1/10) = 2.33."""
    job = features(buckets=())
    dedicated = Cluster(4, 4, dedicated=True)
    times = [
        prediction.predict(job, "ps", dedicated, {"ethernet": gbps * GBPS, "pcie": 10e9}, SEVEN_TENTHS).weights.value
        for gbps in (25, 100)
    ]
    assert times[0] == pytest.approx(0.1 / 0.7 * (1 / 3.125 + 1 / 10))
    assert times[0] / times[1] == pytest.approx(0.42 / 0.18)
    assert f"{times[0] / times[1]:.2f}" == "2.33"
    share = 0.62  # of communication: what that makes of the whole step, by Amdahl's law
    assert f"{1 / (1 - share + share * times[1] / times[0]):.2f}" == "1.55"


def test_computing_from_amounts() -> None:
    rates = {"gpu": 10e12, "memory": 1e12, "pcie": 10e9}
    found = predicted(features(flops=7e12, memory_bytes=0.7e12, input_bytes=7e9, buckets=()), "ring", **rates)
    assert (found.compute_s, found.input_s, found.rest_s) == pytest.approx((2.0, 1.0, 0.0))
    with pytest.raises(CannotPredict, match="needs the rates of gpu, memory, pcie; memory, pcie are missing: set them"):
        predicted(features(), "ring", gpu=1e12)


def test_bounds_and_replay_of_a_case_computed_by_hand() -> None:
    """Sums of 100 ms each; buckets are ready at 50, 100, 150, 200 ms of a backward pass of 200 ms: the last ends at 450."""
    found = predicted(features(), "switch", gbps=2 / 0.7)
    assert (found.input_s, found.compute_s, found.rest_s) == pytest.approx((0.01, 0.3, 0.01))
    assert found.weights.value == pytest.approx(0.4)
    assert found.ideal_s == pytest.approx(0.4 + 0.01)
    assert found.replay_s == found.step.value == pytest.approx(0.32 + 0.25)
    assert found.sum_s == pytest.approx(0.72)


def test_without_buckets_the_sum_is_predicted() -> None:
    found = predicted(features(buckets=()), "switch", gbps=2 / 0.7)
    assert (found.replay_s, found.step.value, found.sum_s) == (None, pytest.approx(0.72), pytest.approx(0.72))


def test_gradients_outside_the_buckets_come_last() -> None:
    whole = predicted(features(gradient_bytes=125_000_000), "switch", gbps=2 / 0.7)
    assert whole.weights.value == pytest.approx(0.5)
    assert whole.replay_s == pytest.approx(0.32 + 0.35)


def test_one_worker_waits_for_nobody() -> None:
    job = features(workers=1, gradient_bytes=0, buckets=())
    for architecture in ARCHITECTURES:
        found = predicted(job, architecture, workers=1)
        assert (found.weights.value, found.communication.value) == (0, 0)
        assert found.step.value == pytest.approx(0.32)
    assert predicted(job, "switch", workers=2).weights.value == pytest.approx(0.8 / 7)  # its dense parameters


PARTS = st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1)), min_size=1, max_size=8)
COSTS = st.builds(
    lambda latency, link, cpu, credit, overlaps: Cost(latency, {}, {"link": link, "cpu": cpu}, credit, overlaps=overlaps),
    st.floats(0, 0.1),
    st.floats(1e-12, 1e-7),
    st.floats(0, 1e-7),
    st.floats(0, 0.2),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("overlaps", "latency_s", "ends_s"),
    [
        (False, 0.1, [0.3, 0.6, 1.5]),
        (True, 0.1, [0.2, 0.4, 1.4]),  # less than what the bytes take
        (True, 0.5, [0.5, 1.0, 1.7]),  # more
    ],
)
def test_a_latency_passes_before_the_bytes_or_beside_them(overlaps: bool, latency_s: float, ends_s: list[float]) -> None:
    """Of 200 ms on the link each; the last is ready after 1.2 s."""
    cost = Cost(latency_s, {}, {"link": 1e-9}, overlaps=overlaps)
    assert replay.ends([(2e8, 0.0), (2e8, 0.0), (2e8, 1.2)], cost) == pytest.approx(ends_s)
    assert cost.seconds(2e8) == pytest.approx(ends_s[0])
    assert cost.limit(2e8) == ("latency" if latency_s == 0.5 else "link")


def test_what_idles_beside_a_latency_gathers_credit() -> None:
    """A bucket of 100 ms: 50 ms of bytes leave half of it; 450 ms of waiting fill it again."""
    cost = Cost(0.5, {}, {"link": 1e-9}, credit_s=0.1, overlaps=True)
    assert replay.ends([(5e7, 0.0), (6e8, 0.0)], cost) == pytest.approx([0.5, 1.0])
    assert replay.ends([(5e8, 0.0), (6e8, 0.0)], cost) == pytest.approx([0.5, 1.1 - 0.1])


def test_a_calibrated_ring_of_gloo_overlaps() -> None:
    ground, cluster, rates = Ground(calibration()), Cluster(4), {"ethernet": GBPS}
    assert [ground.cost(name, cluster, rates, "float32").overlaps for name in ("ring", "switch")] == [True, False]


@pytest.mark.parametrize(
    ("workers", "added_s"),
    [
        (1, 0.0),
        (2, 0.2),  # each of two cores computes all the time: what sums take, 2 s for each GB of four parties, comes on top
        (4, 0.4),
    ],
)
def test_on_shared_cores_sums_hold_up_computing(workers: int, added_s: float) -> None:
    """Over links so fast, and buckets so early, that nothing else of the sums shows."""
    job = features(workers=workers, buckets=(Bucket(100_000_000, "float32", 0.0),), backward_s=0.3)
    shared = Ground(calibration(cpu_s_per_gb=2.0), one_machine=True)
    found = predicted(job, "switch", gbps=1000, ground=shared, workers=workers)
    assert found.communication.value == pytest.approx(added_s, abs=1e-6)
    assert found.limit == ("cpu" if added_s else "")
    apart = predicted(job, "switch", gbps=1000, ground=replace(shared, one_machine=False), workers=workers)
    assert apart.communication.value == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("cpu_s_per_gb", "added_s"), [(2.0, 0.0), (8.0, 0.4 - 0.16)])
def test_idle_cores_sum_before_computing_has_to_wait(cpu_s_per_gb: float, added_s: float) -> None:
    """Four workers compute on four of eight cores for 320 ms: 160 ms of all cores are free."""
    measured = made(0.0, 0.7, 1e-6, cpu_s_per_gb)
    measured.environment["cores"] = 8
    job = features(buckets=(Bucket(100_000_000, "float32", 0.0),), backward_s=0.3)
    found = predicted(job, "switch", gbps=1000, ground=Ground(Calibration.of(calibrated_by(measured)), one_machine=True))
    assert found.communication.value == pytest.approx(max(added_s, 0.4 * cpu_s_per_gb / 8 - 0.3), abs=1e-6)


@given(PARTS, COSTS, st.floats(0, 1))
def test_a_replay_lies_between_the_bounds(parts: list[replay.Part], cost: Cost, later: float) -> None:
    """Ready at any time of a backward pass of one second: from all at once to none before its end."""
    last = replay.ends(parts, cost)[-1]
    together = replay.back_to_back(parts, cost)
    assert max(together, *(ready for _, ready in parts)) <= last * (1 + 1e-9)
    assert last <= 1 + together * (1 + 1e-9)
    assert last <= replay.ends([(size, ready + later) for size, ready in parts], cost)[-1] * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 0.25)), max_size=6),
    st.sampled_from(ARCHITECTURES),
    st.floats(0.01, 1000),
    st.integers(1, 100),
)
def test_steps_lie_between_the_bounds(buckets: list[tuple[int, float]], architecture: str, gbps: float, workers: int) -> None:
    listed = tuple(Bucket(size, "float32", ready) for size, ready in buckets)
    job = features(buckets=listed, gradient_bytes=sum(size for size, _ in buckets))
    found = predicted(job, architecture, gbps, workers=workers)
    assert found.ideal_s <= found.step.value * (1 + 1e-9) <= found.sum_s * (1 + 1e-8)


def test_the_interval_holds_calibration_and_steps() -> None:
    steady = (0.01 + 0.3 + 0.01,)
    job = features()
    alone = [sum(each) for each in zip(job.input_s, job.compute_s, job.rest_s, strict=True)]
    assert sum(alone) / 5 == pytest.approx(*steady)
    half = intervals.half_width(alone)
    by_guess = predicted(job, "switch", gbps=0.01)
    assert by_guess.step.high - by_guess.step.value == pytest.approx(half)
    measured = predicted(job, "switch", gbps=0.1, ground=Ground(calibration()))
    low, high = measured.communication.low, measured.communication.high
    assert low < measured.communication.value < high
    expected = ((high - measured.communication.value) ** 2 + half**2) ** 0.5
    assert measured.step.high - measured.step.value == pytest.approx(expected)
    one = replace(job, **{name: getattr(job, name)[:1] for name in ("step_s", "compute_s", "input_s", "exposed_s")})
    assert predicted(one, "switch").step.low == predicted(one, "switch").step.value


def test_what_is_not_modelled_is_refused() -> None:
    for architecture in prediction.NOT_MODELLED:
        with pytest.raises(CannotPredict, match=f"made-up is of class {architecture}, which is not modelled"):
            predicted(features(architecture=architecture), "ring")


def test_steps_of_nothing_but_communication_are_refused() -> None:
    nothing = (0.0,) * 5
    with pytest.raises(CannotPredict, match="made-up: its steps are communication and nothing else"):
        predicted(features(compute_s=nothing, input_s=nothing, exposed_s=features().step_s), "ring")


def judged(
    job: Features, gbps: float = 1.0, ground: Ground = SEVEN_TENTHS, test: str = "switch", **changes: Any
) -> verdicts.Verdict:
    """Beside the ring."""
    cluster = Cluster(**{"workers": job.workers, **changes})
    rates = {"ethernet": gbps * GBPS, "nvlink": 50e9}
    both = [prediction.predict(job, name, cluster, rates, ground) for name in ("ring", test)]
    return verdicts.judge(job, both[0], both[1], ground)


def test_a_gain_is_a_gain() -> None:
    found = judged(features())
    assert (found.verdict, found.why) == ("gain", "")
    assert found.ratio.value > 1.1


EAGER_RING = calibration()
SLOW = replace(EAGER_RING.fits["switchsum"], latency_s=Figure.of([0.02] * 5))
LATENT = Ground(replace(EAGER_RING, fits={**EAGER_RING.fits, "switchsum": SLOW}))
BUSY = Ground(calibration(cpu_s_per_gb=20.0), rtt_s=1e-6)


@pytest.mark.parametrize(
    ("job", "arguments", "cause", "why"),
    [
        (features(workers=1), {}, "one worker", "one worker has nobody to sum with"),
        (features(gradient_bytes=0, buckets=()), {}, "nothing summed", "the job has no gradients to sum"),
        (features(), {"per_host": 4}, "one host", "all workers are on one host, and no sum passes the network"),
        (features(gradient_bytes=1000, buckets=()), {}, "not the bottleneck", "the link is not the bottleneck: sums take "),
        (
            features(buckets=tuple(Bucket(25_000_000, "float32", ready) for ready in (0, 0.001, 0.002, 0.003))),
            {"gbps": 10},
            "hidden",
            "communication is already hidden: of 171 ms of sums 0 µs stick out beside computing",
        ),
        (features(workers=2), {}, "bytes", "it moves no fewer bytes: 1 through a link for each byte of gradients, ring 1"),
        (
            features(dtype="bfloat16", buckets=()),
            {},
            "bytes",
            "it moves no fewer bytes: 2 through a link for each byte of gradients, ring 1.5; each number of bfloat16 takes 2 ",
        ),
        (
            features(buckets=tuple(Bucket(2_500, "float32", 0.2) for _ in range(4)), gradient_bytes=10_000, workers=2),
            {"ground": LATENT},
            "small gradients",
            "gradients are small: 80.0 ms of 80.4 ms of sums are latency",
        ),
        (
            features(),
            {"ground": replace(SEVEN_TENTHS, rtt_s=0.01)},
            "slots",
            "slots limit it: 512 slots of 1024 bytes in a round trip of 10.0 ms carry 52.43 MB/s of gradients, the link 87.5 ",
        ),
        (features(), {"ground": BUSY, "gbps": 10}, "cpu", "the processor limits it: it sums 50 MB/s of gradients on a worker"),
        (
            features(workers=16),
            {"racks": 4, "oversubscription": 16, "test": "ps"},
            "oversubscription",
            "the racks' links upwards limit it: oversubscribed 16 times, they carry 3.646 MB/s of gradients, a host's link 4",
        ),
        (features(), {"gbps": 25}, "small difference", "it takes less than 2 % of a step away"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_no_gain_has_its_reason(job: Features, arguments: dict[str, Any], cause: str, why: str) -> None:
    found = judged(job, **arguments)
    assert (found.cause, found.verdict in (verdicts.NO_GAIN, verdicts.LOSS)) == (cause, True), found
    assert found.why.startswith(why)


def test_a_loss_has_its_own_reason() -> None:
    """Of 16-bit numbers among others, and of sums that are slow although fewer bytes pass."""
    dtypes = ("float32", "float32", "float16", "float16")
    sizes = (26_000_000, 26_000_000, 25_000_000, 25_000_000)
    mixed = tuple(Bucket(size, dtype, 0.05 * number) for number, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True), 1))
    found = judged(features(buckets=mixed, gradient_bytes=sum(sizes)))
    assert found.cause == "bytes"
    assert found.why.endswith("each number of float16 takes 2 times its bytes in these lanes")
    learnt = calibration()
    slow = replace(learnt.fits["switchsum"], efficiency=Figure.of([0.3] * 5))
    found = judged(features(), ground=Ground(replace(learnt, fits={**learnt.fits, "switchsum": slow}), rtt_s=1e-6))
    assert (found.verdict, found.cause) == ("loss", "slower sums")
    assert found.why == "its sums take 2.67 s, ring's 1.71 s, by latency and efficiency as calibrated: it moves fewer bytes"


def test_what_the_interval_does_not_show_is_undecided() -> None:
    found = judged(features(), 10.0, Ground(calibration(spread=0.4), rtt_s=1e-6))
    assert (found.verdict, found.why) == ("undecided", "the interval reaches from no gain to one: measure more runs and steps")


def test_no_gain_is_not_claimed_where_the_interval_reaches_one() -> None:
    """The middle value is below what matters, the interval is not."""
    ground = Ground(calibration(spread=0.4), rtt_s=1e-6)
    for gbps in (20.0, 25.0, 40.0, 100.0):
        found = judged(features(), gbps, ground)
        assert found.verdict != "no gain" or found.ratio.high < 1 + verdicts.MATTERS, found
    assert judged(features(), 25.0, ground).verdict == "undecided"
    assert judged(features(), 25.0).verdict == "no gain"
    assert judged(features(workers=1, gradient_bytes=0, buckets=()), 25.0, ground).cause in ("one worker", "nothing summed")


def test_the_ring_tends_to_twice_the_switch() -> None:
    job = features(buckets=(), gradient_bytes=1 << 49)
    ring, switch = (predicted(job, name, workers=4096) for name in ("ring", "switch"))
    assert prediction.speedup(ring, switch).value == pytest.approx(2, rel=1e-3)
    assert costs.levels(Cluster(4096)) == 3
