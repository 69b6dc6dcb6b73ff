"""The arithmetic behind the table."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.measure import formulas, sizes

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50)


def test_bandwidths_are_nccl_tests_own() -> None:
    """64 MiB in 0.1 s over four ranks: GB are 1e9 bytes, and the bus carries 2 * 3/4 of it."""
    assert formulas.algbw(64 << 20, 0.1) == pytest.approx(0.671_088_64)
    assert formulas.bus_factor(4) == 1.5
    assert formulas.bus_factor(2) == 1.0
    assert formulas.bus_factor(8) == 1.75


@given(TIMES, st.floats(0.01, 1.0))
def test_a_percentile_is_a_sample_that_enough_others_do_not_exceed(times: list[float], share: float) -> None:
    found = formulas.percentile(times, share)
    assert found in times
    assert sum(time <= found for time in times) >= share * len(times) - 1e-9
    assert sum(time < found for time in times) <= share * len(times)


def test_percentiles_of_few_and_of_many() -> None:
    assert formulas.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert formulas.percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert formulas.percentile([float(i) for i in range(1, 201)], 0.99) == 198.0


@pytest.mark.parametrize(
    ("link", "machine", "process", "verdict"),
    [
        (0.95, 1.0, 1.0, "link"),  # a full link is the limit, whatever else is full
        (1.02, 0.5, 0.5, "link"),
        (1.24, 0.5, 0.5, "burst"),  # small messages on a burst's credit
        (0.5, 0.76, 0.1, "cpu"),
        (0.5, 0.1, 0.99, "cpu"),  # one thread on a machine of many cores
        (None, 0.85, 0.1, "cpu"),
        (0.5, 0.5, 0.5, "-"),
        (None, 0.1, 0.1, "-"),
    ],
)
def test_what_limits_a_row(link: float | None, machine: float, process: float, verdict: str) -> None:
    assert formulas.limited_by(link, machine, process) == verdict


@given(st.floats(1e-9, 1e3), st.floats(1e-3, 1e3), st.integers(1, 1000))
def test_a_turn_is_filled_but_never_empty_and_never_endless(median: float, wanted: float, most: int) -> None:
    count = formulas.iterations_for(median, wanted, most)
    assert 1 <= count <= most
    assert count == most or count * median >= wanted * (1 - 1e-9)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("4K", 4096), ("4k", 4096), ("4KiB", 4096), ("64M", 64 << 20), ("1 G", 1 << 30)]
)
def test_sizes_are_binary(text: str, size: int) -> None:
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "M", "4T", "-4K", "4.5K", "4KK", "four"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(sizes.BadSize, match="is not a size; write bytes, or a whole number with K, M or G, such as 4K or 64M"):
        sizes.parse(text)


def test_sizes_out_of_range_are_told() -> None:
    for text in ("0", "17G"):
        with pytest.raises(sizes.BadSize, match=f"'{text}' is out of range: 1 byte to 16 GiB"):
            sizes.parse(text)


@given(st.integers(1, 16 << 30))
def test_a_size_for_people_reads_back(size: int) -> None:
    assert sizes.parse(sizes.name(size)) == size


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 30), st.integers(2, 16))
def test_a_sweep_goes_from_begin_to_end(begin: int, end: int, factor: int) -> None:
    if begin > end:
        with pytest.raises(sizes.BadSize, match="which is less"):
            sizes.sweep(begin, end, factor)
        return
    swept = sizes.sweep(begin, end, factor)
    assert swept[0] == begin
    assert all(after == before * factor for before, after in itertools.pairwise(swept))
    assert swept[-1] <= end < swept[-1] * factor


def test_a_sweep_that_stands_still_is_told() -> None:
    with pytest.raises(sizes.BadSize, match="factor 1 is no way from one size to the next; it must be at least 2"):
        sizes.sweep(4, 8, 1)
