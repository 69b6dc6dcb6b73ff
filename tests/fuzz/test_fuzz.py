"""A few seconds of each fuzzer: nothing crashes, nothing changes, memory stays flat, and a job sums rightly afterwards.

`make fuzz MINUTES=30` runs them longer, from a seed of its own each time, which it prints.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fuzz.data_port import DataPort
from tests.fuzz.job_service import JobServiceFuzzer
from tests.fuzz.p4runtime import P4RuntimeFuzzer
from tests.fuzz.target import Target

FUZZERS: dict[str, Callable[[Target, int, ExitStack], DataPort | JobServiceFuzzer | P4RuntimeFuzzer]] = {
    "data port": DataPort,
    "job service": JobServiceFuzzer,
    "P4Runtime": P4RuntimeFuzzer,
}
STEPS = {"data port": 150, "job service": 60, "P4Runtime": 60}


def fuzz(name: str, seed: int, folder: Path, more: Callable[[int], bool]) -> str:
    """One fuzzer, against servers of its own; returns a line about it. Raises AssertionError."""
    with Target(folder) as target, ExitStack() as stack:
        fuzzer = FUZZERS[name](target, seed, stack)
        return target.run(fuzzer.step, more, stack.close)


@pytest.mark.parametrize("name", FUZZERS)
@pytest.mark.parametrize("seed", [1])
def test_nothing_crashes_changes_or_grows(name: str, seed: int, tmp_path: Path) -> None:
    print(fuzz(name, seed, tmp_path, lambda steps: steps < STEPS[name]))
