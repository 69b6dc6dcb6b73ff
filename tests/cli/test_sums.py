"""The check of the sums can find a wrong one: each rank compares bits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from switchsum.demo.sums import Reference, SumChecker, count_differing
from switchsum.host_agent.quantizer import reference_sum


def flip_lowest_bit(values: npt.NDArray[np.float32], index: int) -> npt.NDArray[np.float32]:
    changed = values.copy()
    changed.view(np.uint32)[index] ^= 1
    return changed


def test_equal_bits_differ_nowhere() -> None:
    values = np.array([0.0, 1.5, np.nan, -np.inf], np.float32)
    assert count_differing(values, values.copy()) == 0


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_one_flipped_bit_is_one_wrong_element(index: int) -> None:
    values = np.array([0.0, 1.5, np.nan, -np.inf], np.float32)
    assert count_differing(flip_lowest_bit(values, index), values) == 1


def test_minus_zero_is_not_zero() -> None:
    assert count_differing(np.array([-0.0], np.float32), np.array([0.0], np.float32)) == 1


def test_other_shape_or_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot compare float32\[2\] with float32\[3\]"):
        count_differing(np.zeros(2, np.float32), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"cannot compare float64\[2\] with float32\[2\]"):
        count_differing(np.zeros(2), np.zeros(2, np.float32))  # type: ignore[arg-type]


groups: list[dist.ProcessGroup | None] = []  # held: a callback in Gloo's thread that lets go of its group last ends the process


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    groups.append(dist.group.WORLD)
    yield
    dist.destroy_process_group()


def train_two_steps(reference: Reference | None) -> SumChecker:
    torch.manual_seed(0)
    checker = SumChecker(1, reference, dist.group.WORLD)
    model = DistributedDataParallel(torch.nn.Linear(20, 3))
    model.register_comm_hook(None, checker.hook)
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        checker.check()
    return checker


@pytest.mark.usefixtures("world_of_one")
def test_the_hook_checks_every_element_of_every_step() -> None:
    checker = train_two_steps(lambda inputs: inputs.sum(axis=0))
    assert (checker.checked_elements, checker.wrong_elements) == (2 * 63, 0)


@pytest.mark.usefixtures("world_of_one")
def test_a_wrong_sum_is_counted() -> None:
    """A result one bit away from what it must be is the same as an expectation one bit away from the result."""
    checker = train_two_steps(lambda inputs: flip_lowest_bit(inputs.sum(axis=0), 5))
    assert (checker.checked_elements, checker.wrong_elements) == (2 * 63, 2)


def test_a_float_sum_does_not_pass_for_the_switch_s() -> None:
    """The reference is sharp enough to tell fixed point from floating point."""
    inputs = np.random.default_rng(0).normal(size=(4, 640)).astype(np.float32)
    assert count_differing(inputs.sum(axis=0), reference_sum(inputs, 64)) > 0


@pytest.mark.usefixtures("world_of_one")
def test_without_a_reference_nothing_is_checked() -> None:
    checker = train_two_steps(None)
    assert (checker.checked_elements, checker.wrong_elements) == (0, 0)
