"""What PyTorch users do with a process group, on real processes; each program is in programs.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
import torch.distributed as dist

from switchsum.torch_backend import ProcessGroupSwitchSum
from tests.torch.launch import LIMIT_S, check, collect, free_port, free_ports, run, started

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("different_collectives_are_named_on_all_ranks", 3),
        ("handles_of_every_kind", 3),
        ("waits_that_are_interrupted", 3),
        ("one_store_for_many_groups", 3),
        ("a_controller_on_some_ranks_is_told", 3),
        ("tensors_of_every_make", 2),
        ("the_profiler_stops_first", 2),
        ("modes_of_the_caller", 2),
        ("a_monitored_barrier_among_others", 3),
        ("groups_of_every_kind", 4),
        ("sums_staged_as_on_a_gpu", 3),
        ("thresholds_that_differ_are_told", 2),
        ("two_threads_with_a_group_each", 2),
        ("a_tensor_of_more_than_two_gigabytes", 2),
        ("a_hook_beside_gloo", 2),
        ("gradients_accumulate_without_sums", 2),
        ("fully_sharded_trains_as_with_gloo", 2),
        ("overflow_reaches_every_rank", 2),
        ("the_same_bits_in_a_second_run", 3),
        ("nothing_is_left_after_destroy", 2),
        ("collectives_show_in_the_profiler", 2),
    ],
)
def test_program(controller: str, program: str, ranks: int) -> None:
    check(run(f"programs.{program}", ranks, 180, SWITCHSUM_CONTROLLER=controller))


@pytest.mark.parametrize("program", ["every_import_is_enough", "forked_ranks"])
def test_ranks_that_are_started_by_python(controller: str, program: str) -> None:
    environment = {"SWITCHSUM_CONTROLLER": controller, "SECOND_PORT": str(free_port()), "WORLD_SIZE": "2"}
    check(run(f"programs.{program}", 1, anew=True, **environment))


def test_a_rank_can_be_watched(controller: str) -> None:
    environment = {"SWITCHSUM_CONTROLLER": controller, "SWITCHSUM_METRICS": str(free_ports(2)), "SWITCHSUM_LOG": "info,json"}
    outcomes = run("programs.a_rank_can_be_watched", 2, **environment)
    check(outcomes)
    for rank, outcome in enumerate(outcomes):
        lines = [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")]
        assert [line["rank"] for line in lines if line["message"].startswith("metrics at http://127.0.0.1:")] == [rank]


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("SWITCHSUM_METRICS", "here", "SWITCHSUM_METRICS 'here' is not an address: write PORT, for loopback, or HOST:PORT"),
        ("SWITCHSUM_LOG", "loud", "SWITCHSUM_LOG 'loud' is not known: write debug, info, warning, error, text or json"),
    ],
)
def test_what_cannot_be_watched_is_told(controller: str, variable: str, value: str, sentence: str) -> None:
    for outcome in run("programs.a_rank_can_be_watched", 2, SWITCHSUM_CONTROLLER=controller, **{variable: value}):
        assert outcome.status != 0
        assert sentence in outcome.output


def test_a_rank_that_is_replaced() -> None:
    check(run("programs.a_rank_that_is_replaced", 2, SECOND_PORT=str(free_port())))


def test_small_tensors_by_choice(controller: str) -> None:
    check(run("programs.small_tensors_by_gloo", 2, SWITCHSUM_CONTROLLER=controller, SWITCHSUM_GLOO_BELOW="4096"))


def test_a_rank_that_dies_in_backward(controller: str) -> None:
    outcomes = run("programs.failures_in_backward_are_errors", 3, SWITCHSUM_CONTROLLER=controller)
    assert outcomes.pop(1).status == 7
    check(outcomes)


def test_a_rank_that_is_stopped_inside_gloo(controller: str) -> None:
    with started("programs.a_silent_rank_is_named_by_gloos_collectives", 2, SWITCHSUM_CONTROLLER=controller) as ranks:
        assert ranks[1].stdout is not None
        assert ranks[1].stdout.readline().strip() == "ready"
        ranks[1].send_signal(signal.SIGSTOP)
        outcomes = collect(ranks[:1], LIMIT_S)
        ranks[1].send_signal(signal.SIGCONT)
        check(outcomes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            ranks[1].communicate(timeout=30)


def test_an_import_registers_where_pytorch_does_not_look() -> None:
    program = "import torch.distributed as d; import switchsum; assert 'switchsum' in d.Backend.backend_list"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd="/tmp", env=environment)


def test_every_collective_is_overridden() -> None:
    """The base class holds the GIL while it runs the C++ method, and Gloo's thread may wait for the GIL to free a tensor: a
    deadlock, seen within seconds."""
    asked = {name for name in vars(dist.ProcessGroup) if not name.startswith("__")}
    collectives = {
        name
        for name in asked
        if any(word in name for word in ("reduce", "gather", "scatter", "broadcast", "all_to_all", "alltoall", "barrier"))
        or name in ("send", "recv", "recv_anysource", "abort", "shutdown", "_start_coalescing", "_end_coalescing")
    }
    assert len(collectives) > 20
    assert collectives - set(vars(ProcessGroupSwitchSum)) == set()


def test_importing_torch_costs_little() -> None:
    """What the entry point loads, which is what `import torch` pays in every program beside this package."""
    program = "import sys, torch; print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'switchsum'))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, cwd="/tmp", capture_output=True, text=True).stdout
    assert printed.split() == ["switchsum", "switchsum.autoload"]
