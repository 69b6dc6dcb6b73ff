"""Properties of the quantizer: no overflow for any number of workers, the stated error bound, IEEE rules, exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchsum.host_agent import quantizer as q
from switchsum.p4src.layout import MAX_WORKERS

BLOCK = 16
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY_FLOATS = st.floats(width=32)
workers_of = st.integers(1, MAX_WORKERS)


def blocks(elements: st.SearchStrategy[Any], dtype: Any = np.float32) -> st.SearchStrategy[npt.NDArray[Any]]:
    """Arrays [n, BLOCK]: one block of n workers."""
    return workers_of.flatmap(lambda n: hnp.arrays(dtype, (n, BLOCK), elements=elements))


def swap(lanes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    return lanes.byteswap().astype(np.uint64)


def agreed_code(inputs: npt.NDArray[np.float32]) -> int:
    return max(q.float_code(row.view(np.uint32), BLOCK) for row in inputs)


def sum_in_lanes(inputs: npt.NDArray[np.float32], code: int) -> npt.NDArray[np.float32]:
    """Quantize every worker's block, add as the switch does (32 bits a lane), dequantize."""
    limit = q.lane_limit(len(inputs))
    total = np.zeros(BLOCK, np.uint64)
    for row in inputs:
        lanes = np.empty(BLOCK, np.uint32)
        q.quantize(row, BLOCK, code, limit, lanes)
        assert swap(lanes).max() <= 2 * limit
        total += swap(lanes)
    assert total.max() < 2**32, "a lane carried into its neighbour"
    result = np.empty(BLOCK, np.float32)
    q.dequantize(total.astype(np.uint32).byteswap(), BLOCK, code, limit, len(inputs), result)
    return result


@given(blocks(FLOATS))
def test_the_error_stays_within_the_bound(inputs: npt.NDArray[np.float32]) -> None:
    code = agreed_code(inputs)
    result = sum_in_lanes(inputs, code)
    n = len(inputs)
    scale = q.scale_of(code, q.lane_limit(n))
    exact = inputs.astype(np.float64).sum(axis=0)  # float64 holds a sum of 32 float32 of one block to far below the bound
    with np.errstate(over="ignore"):
        rounding = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    overflow = np.abs(exact) >= np.finfo(np.float32).max  # as IEEE addition, the result may be infinite there
    bound = n / 2 * (1 + 2.0**-21) / scale + rounding + np.abs(exact) * 2.0**-50
    assert (overflow | (np.abs(result - exact) <= bound)).all()


@given(workers_of, st.sampled_from([1.0, -1.0]))
def test_the_largest_magnitudes_do_not_overflow(n: int, sign: float) -> None:
    """Every worker at +-float32's maximum, and at the power of two that is exactly the agreed scale."""
    for value in (np.finfo(np.float32).max, 1.0, 2.0**127, 2.0**-126, np.float32(1) + np.finfo(np.float32).eps):
        inputs = np.full((n, BLOCK), np.float32(sign * value))
        result = sum_in_lanes(inputs, agreed_code(inputs))
        with np.errstate(over="ignore"):
            expected = np.float32(np.float64(inputs[0, 0]) * n)
        assert np.allclose(result, expected, rtol=2**-20, equal_nan=False) or (
            np.isinf(expected) and (result == expected).all()
        )


@given(blocks(ANY_FLOATS))
def test_reference_and_kernels_agree_bit_for_bit(inputs: npt.NDArray[np.float32]) -> None:
    """NaN and Inf included: two independent writings of the same rule."""
    expected = q.reference_sum(inputs, BLOCK, guessed_blocks=0)
    code = max(q.finite_code(row.view(np.uint32), BLOCK) for row in inputs)
    result = sum_in_lanes(inputs, code)
    classes = np.zeros(BLOCK, np.int64)
    for row in inputs:
        lanes = np.empty(BLOCK, np.uint32)
        q.write_classes(row.view(np.uint32), BLOCK, lanes)
        classes += swap(lanes).astype(np.int64)
    q.apply_classes(classes, BLOCK, result)
    nan = np.isnan(expected)
    assert (nan == np.isnan(result)).all()
    assert (expected.view(np.uint32)[~nan] == result.view(np.uint32)[~nan]).all()
    with np.errstate(invalid="ignore", over="ignore"):
        ieee = inputs.astype(np.float64).sum(axis=0)
    special = ~np.isfinite(inputs).all(axis=0)
    assert (np.isnan(result[special]) == np.isnan(ieee[special])).all()
    assert (np.isinf(result[special]) == np.isinf(ieee[special])).all()


@given(blocks(FLOATS))
def test_sums_of_few_blocks_use_the_coarse_scale(inputs: npt.NDArray[np.float32]) -> None:
    code = q.coarse_code(agreed_code(inputs))
    assert q.code_of_guess(q.guess_of_code(code)) == code
    expected, result = q.reference_sum(inputs, BLOCK), sum_in_lanes(inputs, code)
    assert (expected.view(np.uint32) == result.view(np.uint32)).all()
    with np.errstate(over="ignore"):
        exact = inputs.astype(np.float64).sum(axis=0)
        overflow = np.abs(exact) >= np.finfo(np.float32).max
        assert (overflow | (np.abs(result - exact) <= q.error_bound(inputs, BLOCK, 32))).all()


def test_coarse_codes_are_as_many_as_there_are_guesses() -> None:
    codes = [q.CODE_ZERO, *(q.CODE_BIAS + e for e in range(q.EXPONENT_MIN, 129))]
    coarse = [q.coarse_code(code) for code in codes]
    assert all(0 <= chosen - code < q.COARSE_STEP for code, chosen in zip(codes, coarse, strict=True))
    assert sorted({q.guess_of_code(code) for code in coarse}) == list(range(q.GUESSES))
    assert q.coarse_code(q.CODE_SPECIAL) == q.CODE_SPECIAL


def sum_in_narrow_lanes(
    inputs: npt.NDArray[np.float32], remainders: npt.NDArray[np.float32], width: int, seed: int
) -> npt.NDArray[np.float32]:
    """As sum_in_lanes, for one block of [n, up to E * 32 / width]; `remainders` are carried on."""
    n, numel = inputs.shape
    limit, code = q.lane_limit(n, width), max(q.finite_code(row.view(np.uint32), numel) for row in inputs)
    total = np.zeros(BLOCK, np.uint64)
    for worker, row in enumerate(inputs):
        lanes = np.empty(BLOCK, np.uint32)
        q.narrow_quantize(row, remainders[worker], numel, code, limit, width, np.uint32(seed + worker), lanes)
        for shift in range(0, 32, width):
            assert ((swap(lanes) >> np.uint64(shift)) & np.uint64(2**width - 1)).max() <= 2 * limit
        total += swap(lanes)
    assert total.max() < 2**32, "the highest lane carried out of its word"
    result = np.empty(numel, np.float32)
    q.narrow_dequantize(total.astype(np.uint32).byteswap(), numel, code, limit, width, n, result)
    return result


narrow = st.sampled_from([16, 8])


@given(workers_of, narrow, st.data())
def test_the_error_in_narrow_lanes_stays_within_the_bound_whatever_came_before(n: int, width: int, data: st.DataObject) -> None:
    """The remainders begin with anything at all: another tensor's, of any magnitude."""
    numel = data.draw(st.integers(1, BLOCK * 32 // width))
    remainders = data.draw(hnp.arrays(np.float32, (n, numel), elements=FLOATS))
    for step in range(3):
        inputs = data.draw(hnp.arrays(np.float32, (n, numel), elements=FLOATS))
        result = sum_in_narrow_lanes(inputs, remainders, width, seed=step)
        with np.errstate(over="ignore"):
            exact = inputs.astype(np.float64).sum(axis=0)
            bound = q.error_bound(inputs, BLOCK, width, guessed_blocks=0)
            overflow = np.abs(exact) + bound >= np.finfo(np.float32).max
            assert (overflow | (np.abs(result - exact) <= bound)).all()


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("n", [2, 8, 32])
def test_rounding_in_narrow_lanes_is_fair_and_its_remainder_comes_back(width: int, n: int) -> None:
    """Without feedback the mean of many sums tends to the exact one (QSGD, lemma 3.1); with it, no sum of sums is further off
    than the remainders that are still owed, a unit or two of each worker, however many steps there were."""
    numel, steps = BLOCK * 32 // width, 400
    inputs = np.random.default_rng(1).standard_normal((n, numel)).astype(np.float32)
    exact = inputs.astype(np.float64).sum(axis=0)
    code = max(q.finite_code(row.view(np.uint32), numel) for row in inputs)
    unit = 1.0 / q.scale_of(code, q.lane_limit(n, width))
    forgetful = [
        sum_in_narrow_lanes(inputs, np.zeros((n, numel), np.float32), width, seed=1000 * step) for step in range(steps)
    ]
    deviation = unit * np.sqrt(n / 4 / steps)  # of the mean: the variance of one rounding is at most a quarter unit squared
    assert np.abs(np.mean(forgetful, axis=0, dtype=np.float64) - exact).max() < 5 * deviation
    remainders = np.zeros((n, numel), np.float32)
    fed = [sum_in_narrow_lanes(inputs, remainders, width, seed=1000 * step) for step in range(steps)]
    inside = (np.abs(inputs) < 0.5 * 2.0 ** (code - q.CODE_BIAS)).all(axis=0)  # the clipped ones owe more
    owed = np.abs(np.sum(fed, axis=0, dtype=np.float64) - steps * exact)
    assert (owed[inside] <= 2 * n * unit).all()


def test_workers_with_equal_gradients_are_not_rounded_alike() -> None:
    """Else their errors would add up instead of averaging out."""
    row = np.random.default_rng(2).standard_normal(BLOCK * 4).astype(np.float32)
    lanes = np.empty((2, BLOCK), np.uint32)
    for worker in range(2):
        q.narrow_quantize(row, np.zeros_like(row), len(row), q.CODE_BIAS + 2, 15, 8, np.uint32(worker), lanes[worker])
    assert (lanes[0] != lanes[1]).any()


@given(blocks(ANY_FLOATS))
def test_special_blocks_are_proposed_as_such(inputs: npt.NDArray[np.float32]) -> None:
    for row in inputs:
        code = q.float_code(row.view(np.uint32), BLOCK)
        assert (code == q.CODE_SPECIAL) == (not np.isfinite(row).all())
        assert q.finite_code(row.view(np.uint32), BLOCK) < q.CODE_SPECIAL < q.CODE_NONE


@given(FLOATS.filter(lambda value: value != 0))
def test_the_code_is_the_smallest_power_of_two_that_covers_the_block(value: float) -> None:
    row = np.zeros(BLOCK, np.float32)
    row[3] = value
    exponent = q.float_code(row.view(np.uint32), BLOCK) - q.CODE_BIAS
    assert abs(value) <= 2.0**exponent
    assert abs(value) > 2.0 ** (exponent - 1) or exponent == q.EXPONENT_MIN


def test_zeros_stay_exact() -> None:
    inputs = np.zeros((MAX_WORKERS, BLOCK), np.float32)
    inputs[3] = -0.0
    assert agreed_code(inputs) == q.CODE_ZERO
    assert sum_in_lanes(inputs, q.CODE_ZERO).view(np.uint32).tolist() == [0] * BLOCK


@given(blocks(st.floats(width=32, min_value=-(2.0**-126), max_value=2.0**-126)))
def test_subnormals_are_summed_like_other_numbers(inputs: npt.NDArray[np.float32]) -> None:
    """At e = -126 the error of n roundings is n/2 units, at most two steps of 2^-149; the rest is the result's own rounding."""
    exact = inputs.astype(np.float64).sum(axis=0)
    result = sum_in_lanes(inputs, agreed_code(inputs))
    n = len(inputs)
    units = n / 2 * 2.0**-126 / q.lane_limit(n)
    assert units <= 2.0001 * 2.0**-149
    bound = units * (1 + 2.0**-20) + np.spacing(np.abs(result)).astype(np.float64) / 2 + np.abs(exact) * 2.0**-50
    assert (np.abs(result - exact) <= bound).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(data=st.data())
def test_integers_are_exact_modulo_their_range(dtype: Any, data: st.DataObject) -> None:
    limits = np.iinfo(dtype)
    inputs = data.draw(blocks(st.one_of(st.integers(-9, 9), st.integers(limits.min, limits.max)), dtype))
    n = len(inputs)
    limit = q.lane_limit(n)
    code = max(q.integer_code(row, BLOCK, limit) for row in inputs)
    assert (code == q.CODE_FITS) == bool((np.abs(inputs.astype(object)) <= limit).all())
    lanes = np.empty(BLOCK, np.uint32)
    result = np.empty(BLOCK, dtype)
    if code == q.CODE_FITS:
        total = np.zeros(BLOCK, np.uint64)
        for row in inputs:
            q.write_integers(row, BLOCK, limit, lanes)
            total += swap(lanes)
        assert total.max() < 2**32
        q.read_integers(total.astype(np.uint32).byteswap(), BLOCK, limit, n, result)
    else:
        sums = np.zeros(BLOCK, np.int64)
        for part in range(limits.bits // 16):
            total = np.zeros(BLOCK, np.uint64)
            for row in inputs:
                q.write_halves(row, BLOCK, part, lanes)
                total += swap(lanes)
            assert total.max() < 2**32
            q.accumulate_halves(total.astype(np.uint32).byteswap(), BLOCK, part, sums)
        result = sums.astype(dtype)
    with np.errstate(over="ignore"):
        assert (result == inputs.sum(axis=0, dtype=dtype)).all()


@pytest.mark.parametrize("world_size", [0, 33, -1])
def test_a_world_that_does_not_fit_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        q.lane_limit(world_size)


def test_lanes_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="32, 16 or 8"):
        q.lane_limit(4, 12)


def test_the_tail_of_a_short_block_travels_as_zero() -> None:
    lanes = np.empty(BLOCK, np.uint32)
    q.quantize(np.ones(3, np.float32), 3, q.CODE_BIAS, 1000, lanes)
    assert swap(lanes).tolist() == [2000] * 3 + [1000] * (BLOCK - 3)
