"""The whole demo, small: switch, controller, workers and all. And it leaves nothing behind when it is cut short."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 180.0
PARAMETERS = 38_282
STEPS_PER_EPOCH = 22

pytestmark = pytest.mark.slow


def demo(*options: str) -> list[str]:
    return [sys.executable, "-m", "switchsum.cli", "demo", *options]


def parent_and_state(pid: int) -> tuple[int, str]:
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return int(parent), state


def children_of(pid: int) -> dict[str, int]:
    """Names ("switch", "controller", "worker 1") and process ids of a running demo's children."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or parent_and_state(int(entry.name))[0] != pid:
                continue
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            environment = dict(
                pair.split("=", 1) for pair in (entry / "environ").read_bytes().decode().split("\0") if "=" in pair
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[words[3] if "switchsum.demo.rack" in words else f"worker {environment['RANK']}"] = int(entry.name)
    return found


def runs(pid: int) -> bool:
    try:
        return parent_and_state(pid)[1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def in_mid_training() -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A demo whose workers have just finished an epoch through the switch, and its children."""
    command = demo("--workers", "2", "--epochs", "1000", "--elements", "64", "--timeout", "20")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = ""
            while not line.startswith("switchsum: epoch 1/1000"):
                line = process.stdout.readline()
                assert line, process.communicate(timeout=LIMIT_S)[1]
            children = children_of(process.pid)
            assert sorted(children) == ["controller", "switch", "worker 0", "worker 1"]
            yield process, children
        finally:
            process.kill()


def assert_all_gone(children: dict[str, int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while left := [name for name, pid in children.items() if runs(pid)]:
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.02)


def test_two_workers_through_a_lossy_switch() -> None:
    command = demo("--workers", "2", "--epochs", "1", "--loss", "0.01", "--elements", "64")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    cells = {}
    for line in done.stdout.splitlines():
        name, *values = re.split(r"\s{2,}", line.strip())
        cells[name] = values
    assert cells["test accuracy"][0] == cells["test accuracy"][1]
    assert cells["ranks end with identical weights"] == ["yes", "yes"]
    assert cells["wrong sums"] == ["0"]
    assert cells["sums checked"] == [f"{2 * STEPS_PER_EPOCH * PARAMETERS:,}"]
    # About 27,000 packets in each direction: that none of them fell to a loss of 1 % does not happen.
    dropped_in, dropped_out = (int(count.replace(",", "")) for count in cells["on the way in / on the way out"][0].split("/"))
    assert dropped_in > 0
    assert dropped_out > 0
    assert int(cells["results repaired"][0].replace(",", "")) > 0
    assert int(cells["packets sent again by workers"][0].replace(",", "")) >= dropped_in


def test_ctrl_c_ends_everything() -> None:
    with in_mid_training() as (process, children):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert errors == "error: interrupted; everything that was started has been stopped\n"
        assert process.returncode == 130
        assert_all_gone(children)


@pytest.mark.parametrize("victim", ["worker 1", "switch"])
def test_a_killed_process_is_named_and_nothing_is_left(victim: str) -> None:
    with in_mid_training() as (process, children):
        os.kill(children[victim], signal.SIGKILL)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert errors.startswith(f"error: {victim} was killed by SIGKILL in the middle of the training over switchsum")
        assert errors.count("\n") == 1
        assert process.returncode == 1
        assert_all_gone(children)
