"""What the kernel offers, on a machine where all of it works; buffers that it does not grant."""

from __future__ import annotations

import pytest

from switchsum.doctor import kernel
from switchsum.doctor.examination import Check
from switchsum.doctor.findings import Status
from tests.doctor.conftest import WORKER, as_nobody, needs_root, only


@pytest.mark.parametrize("check", [kernel.offloads, kernel.batches, kernel.release])
def test_what_tests_need_themselves_is_there(check: Check) -> None:
    assert only(check(WORKER)).status is Status.FINE


def test_three_packets_leave_in_one_call() -> None:
    assert only(kernel.offloads(WORKER)).found.startswith("3 packets left in one call and arrived in ")


@needs_root
def test_a_buffer_beyond_the_limit_is_told_with_the_command_that_raises_it() -> None:
    """Root gets what it asks for; anybody else what net.core.rmem_max says."""
    program = (
        "from switchsum.doctor import kernel\n"
        "for finding in kernel.granted(1 << 30): print(finding.subject, finding.status.value, finding.remedy, sep='|')"
    )
    receive, send = as_nobody(program).splitlines()
    assert receive == f"receive buffer|warning|sysctl -w net.core.rmem_max={1 << 30}"
    assert send.startswith("send buffer|")


def test_the_clock_tells_resolution_and_cost() -> None:
    finding = only(kernel.clock(WORKER))
    assert "CLOCK_MONOTONIC has 1 ns" in finding.found
    assert "ns a reading" in finding.found
