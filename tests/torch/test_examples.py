"""The training scripts of examples/, as a user starts them: a few steps over both backends, which must learn the same."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchsum.embedded import EmbeddedSwitch

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BACKENDS = ("gloo", "switchsum")


@pytest.fixture(scope="module")
def controller() -> Iterator[str]:
    switch = EmbeddedSwitch(ports=8)
    yield switch.controller
    switch.close()


def over_both(controller: str, *arguments: str, json_in: Path | None = None) -> list[str]:
    """What `python arguments` printed with each backend; with `json_in`, --json names a file of the backend's name there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    environment |= {"SWITCHSUM_CONTROLLER": controller, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = []
    try:
        for backend in BACKENDS:  # at the same time: starting takes longer than training
            command = [sys.executable, *arguments, "--backend", backend]
            command += ["--json", str(json_in / backend)] if json_in is not None else []
            processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            )
        outputs = []
        for backend, process in zip(BACKENDS, processes, strict=True):
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, f"{arguments} over {backend} ended with {process.returncode}:\n{output}"
            outputs.append(output)
        return outputs
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()  # torchrun ends its ranks then
            process.wait()


def logs_of_both(controller: str, folder: Path, script: str, *arguments: str) -> list[list[dict[str, Any]]]:
    over_both(controller, *TORCHRUN, f"examples/{script}", *arguments, json_in=folder)
    return [[json.loads(line) for line in (folder / backend).read_text().splitlines()] for backend in BACKENDS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("train_resnet.py", "--epochs", "1"),
        ("train_gpt.py", "--steps", "3", "--autocast", "bfloat16"),
    ],
    ids=" ".join,
)
def test_trainings_learn_the_same_over_both(controller: str, tmp_path: Path, command: tuple[str, ...]) -> None:
    gloo, switch = logs_of_both(controller, tmp_path, *command)
    assert [line["step"] for line in switch] == [line["step"] for line in gloo] != []
    assert switch[-1]["loss"] == pytest.approx(gloo[-1]["loss"], rel=0.01)
    assert switch[-1]["metric"] == pytest.approx(gloo[-1]["metric"], rel=0.02)


@pytest.mark.slow
def test_overflows_of_scaled_gradients_skip_a_step_on_every_rank(controller: str, tmp_path: Path) -> None:
    """The scale grows until gradients hold Inf. A rank that did not get it would step alone, and the script would fail."""
    gloo, switch = logs_of_both(controller, tmp_path, "train_recommender.py", "--steps", "110", "--autocast", "float16")
    assert gloo[-1]["skipped"] > 0
    assert switch[-1]["skipped"] > 0
    assert switch[-1]["loss"] == pytest.approx(gloo[-1]["loss"], rel=0.02)


def ends_of_both(outputs: list[str]) -> tuple[list[int], list[float]]:
    """Steps and test losses that the last lines tell; each must name its backend."""
    steps, losses = [], []
    for backend, output in zip(BACKENDS, outputs, strict=True):
        found = re.search(rf"^step (\d+): test loss ([\d.]+), accuracy [\d.]+ over {backend}$", output, re.MULTILINE)
        assert found is not None, output
        steps.append(int(found[1]))
        losses.append(float(found[2]))
    return steps, losses


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs: pip install lightning")
def test_lightning(controller: str) -> None:
    steps, losses = ends_of_both(over_both(controller, "examples/lightning_digits.py", "--workers", "2", "--epochs", "1"))
    assert steps[0] == steps[1] > 0
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs: pip install accelerate")
def test_accelerate(controller: str) -> None:
    steps, losses = ends_of_both(over_both(controller, *TORCHRUN, "examples/accelerate_digits.py", "--epochs", "1"))
    assert steps[0] == steps[1] > 0
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize(
    ("switchsum", "verdict"),
    [
        ([1.0, 2.0, 3.0], "within noise"),
        ([1.3, 2.3, 3.3], "within noise"),  # surely apart, and by less than seeds are
        ([2.5, 2.0, 1.5], "undecided"),
        ([3.0, 4.1, 4.9], "differs"),
    ],
)
def test_the_verdict_of_a_comparison(switchsum: list[float], verdict: str) -> None:
    difference = runpy.run_path(str(ROOT / "examples" / "compare.py"))["Difference"]
    assert difference(np.array([1.0, 2.0, 3.0]), np.array(switchsum)).verdict() == verdict
