"""`init_process_group("switchsum")` on real processes, real sockets, the embedded switch and the compiled program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from switchsum.embedded import EmbeddedSwitch
from tests.torch.launch import check, collect, free_port, run, started

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "scenario",
    ["sums_of_every_dtype", "shapes_and_handles", "everything_else_through_gloo", "ddp_trains_as_with_gloo"],
)
def test_four_ranks(controller: str, scenario: str) -> None:
    check(run(scenario, 4, SWITCHSUM_CONTROLLER=controller, SECOND_PORT=str(free_port())))


@pytest.mark.parametrize("lanes", ["16", "8"])
def test_four_ranks_in_narrow_lanes(controller: str, lanes: str) -> None:
    check(run("narrow_lanes", 4, SWITCHSUM_CONTROLLER=controller, SWITCHSUM_LANES=lanes))


def test_a_busy_python_thread(controller: str) -> None:
    check(run("a_busy_python_thread_costs_no_milliseconds", 2, SWITCHSUM_CONTROLLER=controller))


def test_the_embedded_switch_starts_by_itself_and_leaves_nothing() -> None:
    mark = uuid.uuid4().hex
    check(run("end_without_destroy", 3, anew=True, TEST_MARK=mark))
    deadline = time.monotonic() + 30
    while left := processes_with(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.2)


def processes_with(mark: str) -> list[str]:
    """Command lines of processes on this machine that have inherited TEST_MARK."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("scenario", "bound_s"),
    [
        ("unsupported_tensors_are_refused", 180),
        ("sizes_that_differ_are_told_to_all", 180),
        ("lanes_that_differ_are_told_to_all", 180),
        ("a_rank_that_does_not_come_is_named", 180),
    ],
)
def test_misuse_is_an_error_on_every_rank(controller: str, scenario: str, bound_s: float) -> None:
    check(run(scenario, 2, bound_s, SWITCHSUM_CONTROLLER=controller))


def test_a_rank_that_dies_is_named_on_the_others(controller: str) -> None:
    outcomes = run("a_dead_rank_is_named", 3, 180, SWITCHSUM_CONTROLLER=controller)
    assert outcomes.pop(1).status == 7
    check(outcomes)


def test_an_absent_controller_is_an_error() -> None:
    check(run("no_controller", 2, 180, SWITCHSUM_CONTROLLER=f"127.0.0.1:{free_port()}", SWITCHSUM_TIMEOUT="3"))


def test_a_controller_that_dies_is_told() -> None:
    """The embedded process is killed: controller and switch go at once, and the controller's end is noticed first."""
    switch = EmbeddedSwitch(ports=8)
    with started(
        "a_dead_controller_is_told", 2, SWITCHSUM_CONTROLLER=switch.controller, SWITCHSUM_ON_LOSS="fail", WAIT_S="1"
    ) as processes:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
        os.kill(switch.pid, signal.SIGKILL)
        check(collect(processes, 180))
    switch.close()


def test_importing_torch_alone_knows_the_backend() -> None:
    """No import of switchsum in the user's script; the entry point loads nothing heavy."""
    program = (
        "import sys, torch.distributed as d; assert 'switchsum' in d.Backend.backend_list; "
        "assert not {'numba', 'grpc', 'llvmlite', 'switchsum.host_agent'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd="/tmp")


def test_without_a_group_there_are_no_statistics() -> None:
    import switchsum

    with pytest.raises(RuntimeError, match=re.escape('init_process_group("switchsum")')):
        switchsum.statistics()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SWITCHSUM_CONTROLLER", "nowhere"),
        ("SWITCHSUM_TIMEOUT", "soon"),
        ("SWITCHSUM_SLOTS", "-1"),
        ("SWITCHSUM_TIMEOUT", "nan"),
        ("SWITCHSUM_LANES", "12"),
        ("SWITCHSUM_ON_LOSS", "maybe"),
        ("SWITCHSUM_CONTROLLER", "127.0.0.1:50099,nowhere"),
        ("SWITCHSUM_QUEUE", "-1"),
        ("SWITCHSUM_JOB", "x" * 65),
    ],
)
def test_bad_settings_name_the_variable(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    from switchsum.settings import Settings

    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}='{value}'"):
        Settings.from_environment()
