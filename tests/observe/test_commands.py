"""`switchsum jobs` and `switchsum top` against a real controller."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from switchsum.controller.daemon import ControllerDaemon
from switchsum.job_rates import Reading
from switchsum.protos import job_pb2 as pb
from switchsum.quantities import bit_rate, duration, share
from switchsum.softswitch.daemon import SoftSwitch
from switchsum.top_command import Watcher
from switchsum.top_view import State, view
from tests.controller.conftest import all_join, make_controller
from tests.controller.test_service import eventually, sums
from tests.controller.worker import HOST, Worker
from tests.in_process import command_line
from tests.observe.turns import send_in_turn

ROOT = Path(__file__).resolve().parents[2]
# The command with its standard input as controlling terminal, so that Ctrl-C and a hangup reach it.
ON_A_TERMINAL = """
import fcntl, sys, termios
from switchsum import cli
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "switchsum"
cli.main()
"""
Workers = Callable[[ControllerDaemon | str, int], list[Worker]]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    return command_line(monkeypatch, *arguments)


def rounds(switch: SoftSwitch, world: list[Worker], count: int) -> None:
    """Sums in which the last of the world always comes last."""
    for phase in range(1, count + 1):
        send_in_turn(switch, world, phase)
        for worker in world:
            sums(worker)


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_as_a_table(
    controller: ControllerDaemon, workers: Workers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    past, present = workers(controller, 1), workers(controller, 2)
    all_join(past, "done")
    past[0].client.leave()
    all_join(present, "[red]train\x1b[2J")
    eventually(lambda: present[0].client.inspect().slots_free == 2048 - 512)
    assert run(["jobs", "--controller", controller.address], monkeypatch) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    heading, row, free, ended, why = output.splitlines()
    assert heading.split() == ["JOB", "STATE", "EPOCH", "RANKS", "SLOTS", "AGE", "IDLE", "HOSTS"]
    assert row.split()[:2] == [r"[red]train\x1b[2J", "running"]
    assert row.split()[3:5] == ["2/2", "512"]
    assert row.split()[-1] == HOST
    assert free == "1536 of 2048 slots are free"
    assert ended == "ended, the latest first:"
    assert why.endswith(": every rank of job 'done' left")


def test_jobs_as_json_where_the_environment_says(
    switch: SoftSwitch,
    controller: ControllerDaemon,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = workers(controller, 2)
    all_join(world, "train")
    rounds(switch, world, 3)
    monkeypatch.setenv("SWITCHSUM_CONTROLLER", controller.address)
    assert run(["jobs", "--json"], monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {field.name for field in pb.InspectReply.DESCRIPTOR.fields}
    (job,) = told["jobs"]
    assert set(job) == {field.name for field in pb.JobReport.DESCRIPTOR.fields}
    assert (job["job_name"], job["state"], job["running"], job["world_size"]) == ("train", "running", True, 2)
    assert job["verdicts"]["COMPLETION"] == 3
    assert [worker["verdicts"]["COMPLETION"] for worker in job["workers"]] == [0, 3]
    assert told["slots_free"] == 2048 - job["slots"]


def test_no_jobs(controller: ControllerDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--controller", controller.address], monkeypatch) == 0
    assert capsys.readouterr().out == "no jobs\n2048 of 2048 slots are free\n"


def test_a_job_is_told_to_shrink(
    controller: ControllerDaemon, workers: Workers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = workers(controller, 2)
    all_join(world, "train")
    monkeypatch.setenv("SWITCHSUM_CONTROLLER", controller.address)
    assert run(["jobs", "shrink", "train", "600"], monkeypatch) == 1
    assert capsys.readouterr().err == (
        f"error: the controller at {controller.address} refused: job 'train' holds 512 slots: it can shrink to 1 to 511, "
        "not 600\n"
    )
    assert run(["jobs", "shrink", "train", "64"], monkeypatch) == 0
    assert [worker.ended().cause for worker in world] == ["SHRUNK", "SHRUNK"]
    all_join(workers(controller, 2), "train")
    eventually(lambda: [job.slots for job in world[0].client.inspect().jobs if job.running] == [64])


@pytest.mark.parametrize("command", [["jobs"], ["jobs", "shrink", "train", "16"], ["top", "--once"]])
def test_without_a_controller_it_is_one_line_and_status_1(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("switchsum.jobs_command.TIMEOUT_S", 0.5)
    assert run([*command, "--controller", "127.0.0.1:1"], monkeypatch) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: no controller answers at 127.0.0.1:1 within ")
    assert errors.count("\n") == 1


# --- top ------------------------------------------------------------------------------------------------------------


def test_one_reading_of_top(
    switch: SoftSwitch,
    controller: ControllerDaemon,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = workers(controller, 2)
    all_join(world, "train")
    rounds(switch, world, 20)
    assert run(["top", "--once", "--interval", "0.5", "--controller", controller.address], monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"switchsum top  {controller.address}  ")
    assert lines[1].endswith("switchsum 1, 64 elements, lanes; 512 of 2048 slots held")
    assert all(len(line) <= 80 for line in lines)
    job = next(line for line in lines if line.startswith("train"))
    assert job.split()[1:6] == ["running", "2/2", "512", "0", "bit/s"]
    one, two = (next(line for line in lines if line.startswith(f"{rank} on {HOST}")) for rank in (0, 1))
    assert "0.0 %" in one
    assert "100.0 %" in two


def test_top_follows_a_controller_that_is_started_again(switch: SoftSwitch) -> None:
    with make_controller(switch) as first:
        address = first.address
        with Watcher(address, 0.1) as watcher:
            eventually(lambda: watcher.state.now is not None)
            first.close()
            eventually(lambda: watcher.state.lost_at is not None)
            lost = watcher.state
            assert address in lost.problem
            shown = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
            shown.print(view(lost))
            assert f"controller unreachable since {lost.lost_clock}: " in shown.export_text()
            with make_controller(switch, listen=(address,)):
                eventually(lambda: watcher.state.lost_at is None)
                assert watcher.state.problem == ""


@pytest.mark.parametrize("end", ["q", "Ctrl-C", "hangup"])
def test_the_live_view_ends(end: str, controller: ControllerDaemon, workers: Workers) -> None:
    world = workers(controller, 2)
    all_join(world, "train")
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, "top", "--interval", "0.2", "--controller", controller.address],
        cwd=ROOT,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        start_new_session=True,
    )
    os.close(inner)
    try:
        seen = b""
        deadline = time.monotonic() + 60.0
        while b"0 on testhost" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([outer], [], [], 0.2)[0]:
                seen += os.read(outer, 65536)
        if end == "hangup":
            os.close(outer)
            process.wait(timeout=60.0)
            assert process.returncode in (0, -signal.SIGHUP, 1)
            return
        os.write(outer, b"q" if end == "q" else b"\x03")
        while process.poll() is None:
            assert time.monotonic() < deadline, seen
            if select.select([outer], [], [], 0.2)[0]:
                try:
                    seen += os.read(outer, 65536)
                except OSError:  # EIO: nobody has the other end any more
                    break
        assert process.wait(timeout=60.0) == 0
        assert b"Traceback" not in seen
        assert b"\x1b[?1049l" in seen  # the screen is as it was
    finally:
        process.kill()
        process.wait()
        if end != "hangup":
            os.close(outer)


def test_an_interval_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for interval in ("0", "nan", "1e9"):
        assert run(["top", "--interval", interval], monkeypatch) == 2
        assert "must be between 0.1 and 3600 seconds" in capsys.readouterr().err


def test_long_names_and_many_ranks_fit_80_columns() -> None:
    job = pb.JobReport(
        job_name="x" * 200, tenant="y" * 50, epoch=2**32 - 1, world_size=32, slots=2048, running=True, state="running"
    )
    for rank in range(32):
        job.workers.add(
            rank=rank,
            host="h" * 100,
            switch_port=500,
            verdicts={"CONTRIBUTION": 10**12, "COMPLETION": 10**12, "STALE": 10**9, "REPAIR": 10**12},
            counters={"packets_sent": 10**13},
            lease_left_s=3599.9,
        )
    reply = pb.InspectReply(
        jobs=[job], slots_total=2048, pipeline="switchsum 1, 256 elements, lanes", rejected={"UNKNOWN_JOB": 10**12},
        dropped_in=dict.fromkeys(range(1, 33), 10**9),
    )  # fmt: skip
    earlier = pb.InspectReply.FromString(reply.SerializeToString())
    for worker in earlier.jobs[0].workers:
        worker.verdicts["COMPLETION"] -= 10**9
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view(State("h" * 300, "12:00:00", Reading(2.0, reply), Reading(1.0, earlier))))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    rank = next(line for line in lines if line.startswith("31 on"))
    assert "8192 Gbit/s" in rank
    assert "3599.9 s" in rank


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (bit_rate(None), "-"),
        (bit_rate(0), "0 bit/s"),
        (bit_rate(999), "999 bit/s"),
        (bit_rate(999.6), "1.00 kbit/s"),
        (bit_rate(1234567), "1.23 Mbit/s"),
        (bit_rate(62.6e6), "62.6 Mbit/s"),
        (bit_rate(251e9), "251 Gbit/s"),
        (duration(0.9), "0 s"),
        (duration(59.9), "59 s"),
        (duration(60), "1 min"),
        (duration(7300), "2 h"),
        (duration(5 * 86400), "5 d"),
        (share(None), "-"),
        (share(0.0081), "0.8 %"),
    ],
)
def test_how_quantities_are_written(written: str, text: str) -> None:
    assert written == text
