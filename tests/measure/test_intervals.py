"""Intervals hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchsum.measure.intervals import Ratio, half_width, ratio, student_t
from switchsum.measure.straight_line import Line


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.706), (4, 2.776), (4.9, 2.776), (10, 2.228), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980), (1e6, 1.960)],
)
def test_student_t_is_that_of_the_tables(degrees: float, value: float) -> None:
    assert student_t(degrees) == pytest.approx(value, abs=6e-4)


def test_half_width_of_a_mean() -> None:
    assert half_width([1, 2, 3, 4, 5]) == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert half_width([7, 7, 7]) == 0
    assert math.isnan(half_width([1]))


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), true=st.floats(0.2, 5), spread=st.floats(0.005, 0.1))
def test_the_interval_of_a_ratio_contains_the_true_one_95_times_of_100(seed: int, true: float, spread: float) -> None:
    """Of five runs each, the second spread twice as much. Welch's interval is a little too wide, never too narrow."""
    dice = np.random.default_rng(seed)
    base = dice.lognormal(0, spread, (1000, 5))
    test = true * dice.lognormal(0, 2 * spread, (1000, 5))
    found = [ratio(*both) for both in zip(test.tolist(), base.tolist(), strict=True)]
    assert 0.92 < sum(each.low <= true <= each.high for each in found) / len(found) < 0.99


def test_a_ratio_turned_round_is_its_inverse() -> None:
    there, back = ratio([2, 2.1, 2.2], [1, 1.1, 1.05]), ratio([1, 1.1, 1.05], [2, 2.1, 2.2])
    assert (1 / back.value, 1 / back.high, 1 / back.low) == pytest.approx((there.value, there.low, there.high))


def test_a_difference_is_claimed_only_where_the_interval_excludes_1() -> None:
    assert Ratio(1.1, 1.01, 1.2).differs
    assert Ratio(0.9, 0.8, 0.99).differs
    assert not Ratio(1.1, 0.99, 1.2).differs
    assert not ratio([2], [1]).differs  # one run shows no spread


@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=20, unique=True), st.floats(-50, 50), st.floats(-50, 50))
def test_a_straight_line_is_found_again(x: list[int], slope: float, intercept: float) -> None:
    line = Line.through(x, [intercept + slope * each for each in x])
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.intercept == pytest.approx(intercept, abs=1e-6)
    assert line.slope_ci95 == pytest.approx(0, abs=1e-6)
    assert line.at(3) == pytest.approx(intercept + 3 * slope, abs=1e-5)


def test_the_slope_of_a_known_scatter() -> None:
    """Anscombe's first quartet: slope 0.500 with a standard error of 0.118, R² 0.667."""
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    line = Line.through(x, y)
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((0.5001, 3.0001, 0.6665), abs=1e-4)
    assert line.slope_ci95 == pytest.approx(2.262 * 0.1179, abs=1e-3)
    assert math.isnan(Line.through([1, 2], [1, 2]).slope_ci95)
