"""What a sum costs: formulas against cases computed by hand, their limits, and the order that they must keep."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum import torch_backend
from switchsum.measure import costs, media
from switchsum.measure.costs import ARCHITECTURES, LANES, BadCluster, Cluster, Cost, Processor, Window
from switchsum.measure.media import BadSetting, Medium

S = 80_000_000
LINK = {"ethernet": Medium("ethernet", 0.001, 100e6, 0.8)}  # 80 MB/s: S takes a second


def seconds(architecture: str, workers: int, size: float = S, **changes: Any) -> float:
    return costs.cost(architecture, Cluster(workers, **changes), LINK).seconds(size)


@pytest.mark.parametrize(
    ("architecture", "workers", "changes", "expected"),
    [
        ("ring", 2, {}, 1.0 + 2 * 0.001),
        ("ring", 4, {}, 1.5 + 6 * 0.001),
        ("switch", 4, {}, 1.0 + 0.001),
        ("switch16", 4, {}, 0.5 + 0.001),
        ("switch8", 4, {}, 0.25 + 0.001),
        ("ps", 4, {"servers": 1, "dedicated": True}, 4.0 + 0.002),
        ("ps", 4, {"servers": 2, "dedicated": True}, 2.0 + 0.002),
        ("ps", 4, {"servers": 8, "dedicated": True}, 1.0 + 0.002),
        ("ps", 4, {}, 1.5 + 0.002),  # colocated, one each: a ring's bytes
        ("ps", 4, {"servers": 1}, 3.0 + 0.002),
        ("hierarchical", 4, {}, 1.5 + 6 * 0.001),  # one host each, one rack: a ring
        ("hierarchical", 16, {"racks": 4}, (2 * 3 / 4 + 2 * 3 / 4 / 4) + (6 + 6) * 0.001),
        ("hierarchical", 16, {"racks": 4, "oversubscription": 8}, (2 * 3 / 4 + 8 * 2 * 3 / 4 / 4) + 12 * 0.001),
        ("ring", 16, {"racks": 4, "oversubscription": 8}, 2 * (2 * 15 / 16) + 30 * 0.001),
        ("ps", 16, {"racks": 4, "oversubscription": 8}, 2 * 8 * 3 / 4 + 0.002),
        ("switch", 16, {"racks": 4, "oversubscription": 4}, 1.0 + 2 * 0.001),  # a stream of a rack's four links' share
        ("switch", 16, {"racks": 4, "oversubscription": 8}, 2.0 + 2 * 0.001),
    ],
)
def test_cases_computed_by_hand(architecture: str, workers: int, changes: dict[str, Any], expected: float) -> None:
    assert seconds(architecture, workers, **changes) == pytest.approx(expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_worker_sums_nothing(architecture: str) -> None:
    assert seconds(architecture, 1) == 0


def test_a_ring_tends_to_twice_the_switch() -> None:
    ratios = [seconds("ring", n, 1e15) / seconds("switch", n, 1e15) for n in (2, 8, 32)]
    assert ratios == pytest.approx([1.0, 1.75, 1.9375], rel=1e-3)
    assert seconds("ring", 4096, 1e15) / (1e15 / 80e6) == pytest.approx(2, rel=1e-3)


def test_several_workers_of_a_host_sum_inside_first() -> None:
    inside = {**LINK, "nvlink": Medium("nvlink", 0.0, 800e6)}
    for architecture, between in (("switch", 1.0), ("hierarchical", 1.0), ("ps", 1.0)):
        cost = costs.cost(architecture, Cluster(8, per_host=4), inside)
        assert cost.seconds(S) == pytest.approx(between + 2 * 3 / 4 * 0.1 + costs.rounds(architecture, Cluster(2)) * 0.001)
    assert costs.cost("ring", Cluster(8, per_host=4), inside).seconds(S) == pytest.approx(2 * 7 / 8 + 14 * 0.001)
    assert costs.cost("switch", Cluster(4, per_host=4), inside).seconds(S) == pytest.approx(2 * 3 / 4 * 0.1)  # one host
    with pytest.raises(BadCluster, match="4 workers per host sum over nvlink or pcie: give the rate of one of them"):
        costs.cost("switch", Cluster(8, per_host=4), LINK)


def test_16_bit_floats_take_wide_lanes() -> None:
    taken = {name: costs.cost(name, Cluster(4), LINK, "bfloat16").limits["link"] * S for name in ("ring", *costs.LANES)}
    assert taken == pytest.approx({"ring": 1.5, "switch": 2.0, "switch16": 1.0, "switch8": 0.5})


def test_slots_limit_the_switch() -> None:
    """512 slots of 1,024 bytes in 13.1072 ms are 40 MB/s; a level more doubles the way."""
    window = Window(512, 1024, 0.0131072)
    cost = costs.cost("switch", Cluster(4), LINK, window=window)
    assert (cost.limits["slots"] * S, cost.narrowest) == (pytest.approx(2.0), "slots")
    assert costs.cost("switch", Cluster(64), LINK, window=window).limits["slots"] * S == pytest.approx(4.0)
    assert "slots" not in costs.cost("ring", Cluster(4), LINK, window=window).limits


def test_the_processor_limits() -> None:
    cost = costs.cost("switch", Cluster(4), LINK, processor=Processor(25e-9, 5e-9))
    assert (cost.limits["cpu"] * S, cost.narrowest) == (pytest.approx(2.0), "cpu")
    assert costs.cost("ring", Cluster(4), LINK, processor=Processor(25e-9, 5e-9, cores=2)).limits["cpu"] * S == pytest.approx(
        4.8
    )


def test_levels_of_switches() -> None:
    """A switch's bitmap has 32 bits."""
    assert [costs.levels(Cluster(n)) for n in (2, 32, 33, 1024, 1025)] == [1, 1, 2, 2, 3]
    assert [costs.levels(Cluster(n, racks=k)) for n, k in ((64, 2), (4096, 128), (4096, 32))] == [2, 3, 3]


def test_what_waits_longest_has_a_name() -> None:
    cost = costs.cost("ring", Cluster(4), LINK)
    assert (cost.limit(1000), cost.limit(S)) == ("latency", "link")
    assert Cost(0.0).limit(S) == ""


def test_a_token_bucket_passes_what_it_gathered() -> None:
    """A tenth of a second of credit: gone after the first sum, and gathered again in a pause."""
    cost = Cost(0.0, {}, {"link": 1 / 80e6}, credit_s=0.1)
    assert cost.seconds(S) == pytest.approx(0.9)
    assert cost.moving(S, 0.0) == pytest.approx((1.0, 0.0))
    seconds, left = cost.moving(0.05 * 80e6, 0.1)
    assert (seconds, left) == pytest.approx((0.0, 0.05))


CLUSTERS = st.builds(Cluster, st.integers(1, 4000), st.sampled_from([0, 1]))


@given(st.sampled_from(ARCHITECTURES), CLUSTERS, st.floats(1, 1e12), st.floats(1, 100), st.floats(1e5, 1e11))
def test_more_bytes_take_longer_and_faster_links_do_not(
    architecture: str, cluster: Cluster, size: float, times: float, rate: float
) -> None:
    link = {"ethernet": Medium("ethernet", 1e-4, rate, burst_bytes=1e5)}
    faster = {"ethernet": Medium("ethernet", 1e-4, rate * times, burst_bytes=1e5)}
    cost = costs.cost(architecture, cluster, link)
    assert cost.seconds(size) <= cost.seconds(size * times) * (1 + 1e-9)
    if times > 1:  # a faster link gathers the same bytes of credit
        assert costs.cost(architecture, cluster, faster).seconds(size) <= cost.seconds(size) * (1 + 1e-9)


@given(st.sampled_from(ARCHITECTURES), st.integers(1, 4000), st.integers(1, 100), st.floats(1, 1e12))
def test_more_workers_take_no_less(architecture: str, workers: int, more: int, size: float) -> None:
    assert seconds(architecture, workers, size) <= seconds(architecture, workers + more, size) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Cluster(0), "0 workers: must be from 1 to 100000"),
        (lambda: Cluster(6, per_host=4), "6 workers are no whole number of hosts with 4 each"),
        (lambda: Cluster(4, racks=8), "8 racks for 4 hosts: a rack has at least one"),
        (lambda: Cluster(4, servers=8), "8 servers on 4 workers' hosts: at most one each, or dedicated ones"),
        (lambda: Cluster(4, oversubscription=0.5), "oversubscription 0.5: must be at least 1 (1: none)"),
        (lambda: Cluster(4, oversubscription=float("nan")), "oversubscription nan: must be at least 1 (1: none)"),
    ],
)
def test_clusters_that_cannot_be(made: Any, said: str) -> None:
    with pytest.raises(BadCluster) as refused:
        made()
    assert str(refused.value) == said


def test_rates_are_read() -> None:
    assert media.parse(["ethernet=25Gbps, 100Mbit/s", "pcie=10GB/s", "gpu=11TFLOPS"]) == {
        "ethernet": [3.125e9, 12.5e6],
        "pcie": [10e9],
        "gpu": [11e12],
    }
    assert [media.told(*each) for each in (("ethernet", 3.125e9), ("pcie", 1e10), ("gpu", 1.1e13))] == [
        "25 Gbit/s",
        "10 GB/s",
        "11 TFLOPS",
    ]
    assert media.settings({"ethernet": [1.0, 2.0], "pcie": [3.0]}) == [
        {"ethernet": 1.0, "pcie": 3.0},
        {"ethernet": 2.0, "pcie": 3.0},
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ethernet", "'ethernet' is not MEDIUM=RATE,RATE,...: write for example ethernet=25Gbps,100Gbps; media are ethernet, "),
        ("token-ring=4Mbps", "'token-ring=4Mbps' is not MEDIUM=RATE,RATE,..."),
        ("ethernet=25", "ethernet=25: is no rate above 0 with its unit; write for example ethernet=25Gbps"),
        ("ethernet=0Gbps", "ethernet=0Gbps: is no rate above 0"),
        ("ethernet=-1Gbps", "ethernet=-1Gbps: is no rate above 0"),
        ("ethernet=nanGbps", "ethernet=nanGbps: is no rate above 0"),
        ("ethernet=1TFLOPS", "ethernet=1TFLOPS: is no rate above 0"),
        ("gpu=10GB/s", "gpu=10GB/s: is no rate above 0 with its unit; write for example gpu=11TFLOPS"),
        ("ethernet=1Gbps,", "ethernet=: is no rate above 0"),
    ],
)
def test_rates_that_are_none(text: str, said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        media.parse([text])
    assert str(refused.value).startswith(said)


def test_too_many_or_twice() -> None:
    with pytest.raises(BadSetting, match="ethernet is set twice"):
        media.parse(["ethernet=1Gbps", "ethernet=2Gbps"])
    with pytest.raises(BadSetting, match="more than 1000 combinations"):
        media.settings({"ethernet": [1.0] * 40, "pcie": [1.0] * 40})


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("architecture", LANES)
def test_what_no_lane_holds_goes_around_a_ring(architecture: str, dtype: str) -> None:
    assert costs.summed_by(architecture, dtype) == "ring"
    assert costs.wire_bytes(architecture, dtype) >= max(costs.link_bytes("ring", Cluster(n), dtype) for n in (2, 4, 100))


def test_the_lanes_hold_what_the_backend_sends_through_them() -> None:
    assert sorted(costs.CARRIED) == sorted(str(each).removeprefix("torch.") for each in torch_backend.WIRE_DTYPES)
