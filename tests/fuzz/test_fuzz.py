"""A few seconds of each fuzzer: nothing crashes, nothing changes, memory stays flat, and a job sums rightly afterwards.

`make fuzz MINUTES=30` runs them longer, from a seed of its own each time, which it prints.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.fuzz.data_port import DataPort
from tests.fuzz.job_service import JobServiceFuzzer
from tests.fuzz.p4runtime import P4RuntimeFuzzer
from tests.fuzz.target import FUZZER, Target
from tests.fuzz.wire import call

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


@pytest.mark.parametrize("service", ["job service", "P4Runtime"])
def test_what_is_no_message_is_refused_and_costs_no_memory(service: str, tmp_path: Path) -> None:
    """grpcio 1.85 keeps 13 KB of each call whose request cannot be read, if it is left to it."""
    method, stream = ("/switchsum.v1.JobService/Renew", False) if service == "job service" else ("/p4.v1.P4Runtime/Read", True)
    with Target(tmp_path) as target:
        address = target.controller if service == "job service" else target.p4runtime
        metadata = (("authorization", f"Bearer {FUZZER}"),)
        with grpc.insecure_channel(address) as channel:
            for number in range(3000):
                if number == 1000:
                    before = target.resident_bytes()
                code, _ = call(channel, method, b"\xff" * 10, stream=stream, metadata=metadata, timeout_s=20.0)
                assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert target.resident_bytes() - before < 10 << 20
        target.check_unharmed()
