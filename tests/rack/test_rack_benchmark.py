"""The benchmark of sums on racks: its arithmetic, and a whole small run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum.rack_benchmark import Configuration, columns
from tests.rack.conftest import RACKS, RackName


def test_figures_follow_from_the_samples() -> None:
    """8 Mbit of payload in 0.1 s on four 100 Mbit/s links: 1,954 packets of 128 elements from each worker."""
    row = Configuration("four-100m", "softswitch", 128, 0.0, 1.0, seconds=[0.2, 0.1, 0.05], sent=1000, resent=50)
    found = columns(row, RACKS / "four-100m.yaml")
    assert found["goodput"] == pytest.approx(80.0)
    assert (found["slowest"], found["fastest"]) == (pytest.approx(40.0), pytest.approx(160.0))
    assert found["share"] == pytest.approx(80.0 / (100 * 512 / (512 + 66)))
    assert found["packets"] == pytest.approx(4 * 1954 / 0.1)
    assert found["resent"] == pytest.approx(0.05)
    assert columns(row, RACKS / "four.yaml")["share"] is None


def test_a_run_sums_checks_and_reports(rack_name: RackName, tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    options = ["--elements", "64", "--loss", "0.01", "--megabytes", "0.1", "--turns", "1", "--json", str(raw)]
    done = subprocess.run(
        [sys.executable, "-m", "switchsum.rack_benchmark", str(RACKS / "two.yaml"), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("| two | softswitch | 64 | 0.01 |")]
    assert line.endswith("| 0 |")  # wrong
    [row] = json.loads(raw.read_text())["rows"]
    assert len(row["seconds"]) == 5
    assert row["wrong"] == 0
    assert row["sent"] >= 2 * 5 * 391  # 25,000 numbers, five times, from each of two workers
