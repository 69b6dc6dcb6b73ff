"""A few of PyTorch's own tests over the backend; all of them, and Gloo beside it: `python -m tests.torch.upstream`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300

pytestmark = pytest.mark.slow

TESTS = (
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_broadcast_full_group",
    "test_coalescing_manager",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_join_model_equivalence",
    "test_get_future",
    "test_monitored_barrier_gloo",
    "test_sparse_all_reduce_sum",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    results = tmp_path_factory.mktemp("upstream") / "results.json"
    chosen = [argument for name in TESTS for argument in ("-k", name)]
    command = [sys.executable, "-m", "tests.torch.upstream", "--backend", "switchsum", "--results", str(results), *chosen]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, capture_output=True, text=True)
    assert results.exists(), ended.stdout + ended.stderr
    return json.loads(results.read_text())["switchsum"]


@pytest.mark.parametrize("name", TESTS)
def test_of_pytorchs(outcomes: dict[str, dict[str, str]], name: str) -> None:
    assert outcomes[name]["status"] == "passed", outcomes[name]["reason"]
