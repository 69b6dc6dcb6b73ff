"""What ranks sum, and that a wrong element is seen wherever it is."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from switchsum.host_agent.quantizer import error_bound, reference_sum
from switchsum.measure.payload import PIECE, TILE, UNIT_ROUNDOFF, Numbers, Payload, checksums, differing_elements

RANKS = 3
COUNTS = [1, 1000, TILE, 2 * TILE + 300]


def payloads(count: int, dtype: str, redop: str = "sum", number: int = 0) -> tuple[list[Payload], list[torch.Tensor]]:
    numbers = Numbers(dtype, RANKS, seed=5)
    made = [Payload(count, numbers, redop, rank, number) for rank in range(RANKS)]
    tensors = [torch.empty(count, dtype=getattr(torch, dtype)) for _ in range(RANKS)]
    for each, tensor in zip(made, tensors, strict=True):
        each.fill(tensor)
    return made, tensors


def reference(inputs: np.ndarray) -> np.ndarray:
    return reference_sum(inputs, 256)


def by_the_switch(tensors: list[torch.Tensor], redop: str) -> torch.Tensor:
    """As torch_backend does it: summed in float32, divided, rounded to the tensors' type."""
    total = torch.from_numpy(reference(np.stack([tensor.float().numpy() for tensor in tensors])))
    return (total.div_(RANKS) if redop == "avg" else total).to(tensors[0].dtype)


@pytest.mark.parametrize("redop", ["sum", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", COUNTS)
def test_the_switchs_sum_is_right_and_one_flipped_bit_is_not(count: int, dtype: str, redop: str) -> None:
    """Tiles are judged from one tile's sum; here the whole tensor is summed at once."""
    made, tensors = payloads(count, dtype, redop)
    result = by_the_switch(tensors, redop)
    assert made[0].wrong_bits(result, reference) == 0
    bits = result.view(torch.int32 if dtype == "float32" else torch.int16)
    for place in {0, count // 2, count - 1}:
        bits[place] ^= 1
    assert made[1].wrong_bits(result, reference) == len({0, count // 2, count - 1})


@pytest.mark.parametrize("count", COUNTS)
def test_integers_are_exact(count: int) -> None:
    made, tensors = payloads(count, "int32")
    result = torch.stack(tensors).sum(0, dtype=torch.int32)
    assert made[0].wrong_bits(result, None) == 0
    result[count - 1] += 1
    assert made[0].wrong_bits(result, None) == 1


@pytest.mark.parametrize("redop", ["sum", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", COUNTS)
def test_additions_in_the_type_are_within_their_bound_and_more_is_not(count: int, dtype: str, redop: str) -> None:
    made, tensors = payloads(count, dtype, redop)
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result += tensor
    if redop == "avg":
        result /= RANKS
    assert made[0].wrong_beyond(result, None) == 0
    result[count - 1] += 64.0
    result[0] = float("nan")
    assert made[0].wrong_beyond(result, None) == len({0, count - 1})


@pytest.mark.parametrize("count", [1000, TILE + 1])
def test_narrow_lanes_are_judged_by_their_own_bound(count: int) -> None:
    made, tensors = payloads(count, "float32")
    inputs = np.stack([tensor.numpy() for tensor in tensors])
    permitted = error_bound(inputs, 256, 16)
    exact = inputs.astype(np.float64).sum(axis=0)

    def bound(parts: np.ndarray) -> np.ndarray:
        return error_bound(parts, 256, 16)

    assert made[0].wrong_beyond(torch.from_numpy(exact + 0.9 * permitted), bound) == 0
    assert made[0].wrong_beyond(torch.from_numpy(exact + 1.1 * permitted), bound) == count


def test_tiles_differ_so_that_misplaced_packets_show() -> None:
    made, tensors = payloads(3 * TILE, "float32")
    result = by_the_switch(tensors, "sum")
    first = result[:TILE].clone()
    result[:TILE] = result[TILE : 2 * TILE]
    result[TILE : 2 * TILE] = first
    assert made[0].wrong_bits(result, reference) > TILE


def test_tensors_of_one_operation_differ_so_that_swapped_ones_show() -> None:
    for count in (1000, TILE):
        subjects, results = [], []
        for number in (0, 1, 1023):
            made, tensors = payloads(count, "float32", number=number)
            subjects.append(made[0])
            results.append(by_the_switch(tensors, "sum"))
        assert [each.wrong_bits(result, reference) for each, result in zip(subjects, results, strict=True)] == [0, 0, 0]
        assert subjects[0].wrong_bits(results[1], reference) > count * 0.99
        assert subjects[2].wrong_bits(results[0], reference) > count * 0.99


@pytest.mark.parametrize("redop", ["sum", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_largest_error_is_told_relative_to_the_magnitudes(dtype: str, redop: str) -> None:
    count = 2 * TILE + 300
    made, tensors = payloads(count, dtype, redop)
    inputs = np.stack([tensor.double().numpy() for tensor in tensors])
    divisor = RANKS if redop == "avg" else 1
    result = torch.from_numpy(inputs.sum(axis=0) / divisor).to(tensors[0].dtype)
    assert 0 < made[0].largest_error(result) <= UNIT_ROUNDOFF[dtype]
    result[count - 1] += 1.0
    expected = 1.0 * divisor / np.abs(inputs).sum(axis=0)[count - 1]
    assert made[0].largest_error(result) == pytest.approx(expected, rel=0.2)
    result[5] = float("nan")
    assert made[0].largest_error(result) == sys.float_info.max


def test_exact_integers_have_no_error() -> None:
    made, tensors = payloads(TILE + 3, "int32")
    result = torch.stack(tensors).sum(0, dtype=torch.int32)
    assert made[0].largest_error(result) == 0.0
    result[TILE] += 1
    assert 0 < made[0].largest_error(result) < 1


def test_ranks_are_compared_piece_by_piece() -> None:
    count = 2 * PIECE + 10
    same = torch.arange(count, dtype=torch.float32)
    other = same.clone()
    other[count - 1] += 1
    lists = [checksums(same), checksums(same.clone()), checksums(other)]
    assert differing_elements(lists, count) == 10
    other[0] += 1
    assert differing_elements([checksums(same), checksums(other)], count) == PIECE + 10
