"""`switchsum bench allreduce` from end to end, and every way in which it can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum import bench_sites, cli
from switchsum.bmv2_topologies import namespaces

ROOT = Path(__file__).resolve().parents[2]
RACKS = ROOT / "bmv2_topologies" / "racks"
QUICK = ["--workers", "2", "--turn-seconds", "0.01", "--warmup", "1"]


def bench(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["switchsum", "bench", "allreduce", *arguments])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def rows_of(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if not line.startswith("#")]


def test_all_transports_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, picture = tmp_path / "raw.json", tmp_path / "plot.png"
    transports = ["switchsum", "switchsum16", "switchsum8", "gloo", "limit"]
    options = [word for name in transports for word in ("--transport", name)]
    outputs = ["--json", str(raw), "--plot", str(picture)]
    assert bench([*QUICK, *options, "--size", "100", "--size", "300K", "--stages", *outputs], monkeypatch) == 0
    table, _, stages = capsys.readouterr().out.partition("# where a worker's time goes: ")
    assert [row[:2] for row in rows_of(f"# {stages}")] == [
        [size, name] for size in ("100", "307200") for name in transports[:3]
    ]
    rows = rows_of(table)
    assert [row[:5] for row in rows] == [
        [size, count, "float32", "sum", name] for size, count in (("100", "25"), ("307200", "76800")) for name in transports
    ]
    assert [row[12] for row in rows] == ["0", "0", "0", "0", "-"] * 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = json.loads(raw.read_text())
    assert written["out_of_bounds"] == 0
    assert written["environment"]["cores"] == len(os.sched_getaffinity(0))
    assert written["arguments"]["size"] == ["100", "300K"]
    assert [hello["rank"] for hello in written["ranks"]["gloo"]] == [0, 1]
    for result in written["results"]:
        turns = result["samples"]["turns"]
        assert len(turns) == result["runs"] == 5
        assert all(len(iteration) == 2 for turn in turns for iteration in turn["seconds"])
        assert len([1 for turn in turns for _ in turn["seconds"]]) == result["iterations"]
        through_the_switch = result["transport"].startswith("switchsum")
        assert (result["switch_cpu"] is not None) == (result["stages"] is not None) == through_the_switch
    # What the links carried is known before it is measured: headers and numbers, once in each direction.
    [large] = [each for each in written["results"] if (each["transport"], each["count"]) == ("switchsum", 76800)]
    carried = [pair for turn in large["samples"]["turns"] for pair in turn["link_bytes"]]
    assert min(sent for sent, _ in carried) >= 300 * (24 + 1024) * (large["iterations"] // 5)


def test_a_wrong_element_is_counted_on_its_rank_and_fails_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_worker")
    monkeypatch.setenv("BAD", "corrupt")
    assert bench([*QUICK, "--size", "4K", "--transport", "switchsum", "--transport", "gloo"], monkeypatch) == 1
    printed = capsys.readouterr().out
    assert [row[12] for row in rows_of(printed)] == ["6", "0"]  # one element: before the first run, and after each of five
    assert "# Out of bounds values : 6 FAILED" in printed.splitlines()


def test_a_worker_that_dies_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_worker")
    monkeypatch.setenv("BAD", "die")
    assert bench([*QUICK, "--size", "4K", "--transport", "gloo", "--turn-seconds", "0.1"], monkeypatch) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: worker 1 was killed by SIGKILL")


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_both_fabrics_of_a_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums through a switch that loses packets beside Gloo and datagrams over a bridge, on links of one rate."""
    raw = tmp_path / "raw.json"
    options = ["--rack", str(RACKS / "four.yaml"), "--rate", "500M", "--loss", "0.02", "--size", "1M", "--json", str(raw)]
    assert bench([*QUICK, *options], monkeypatch) == 0
    printed = capsys.readouterr().out
    rows = rows_of(printed)
    assert [(row[4], row[12]) for row in rows] == [("switchsum", "0"), ("gloo", "0"), ("limit", "-")]
    assert "links: tbf of 500 Mbit/s, burst 131072 B, queue 524288 B in each direction, alike at switch and bridge" in printed
    assert "# the switch dropped 2 % in, 2 % out of each worker's packets; rows over the bridge ran without loss" in printed
    results = {result["transport"]: result for result in json.loads(raw.read_text())["results"]}
    for result in results.values():
        assert result["samples"]["link_source"] == "tbf"
        assert result["samples"]["link_rate_bps"] == 500_000_000
        for turn in result["samples"]["turns"]:  # a ring of two sends the tensor once, and so does everybody else
            iterations = len(turn["seconds"])
            assert len(turn["link_bytes"]) == 2
            assert all(sent >= (1 << 20) * iterations <= received for sent, received in turn["link_bytes"])
    assert results["switchsum"]["resent"] > 0
    assert results["switchsum"]["switch_cpu"] > 0
    assert results["gloo"]["switch_cpu"] is None
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{os.getpid()}")]


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_ctrl_c_leaves_nothing() -> None:
    command = [sys.executable, "-m", "switchsum.cli", "bench", "allreduce", *QUICK, "--rack", str(RACKS / "two.yaml")]
    process = subprocess.Popen(
        [*command, "--turn-seconds", "60", "--transport", "limit", "--size", "1M"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(4):  # the header comes when the workers are there
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "error: interrupted; everything that was started has been stopped"
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{process.pid}")]


def test_under_torchrun_rank_0_prints_and_the_others_follow(tmp_path: Path) -> None:
    """Without torchrun's own store: as a job scheduler sets the variables."""
    from tests.torch.launch import free_port

    base = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    base |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "switchsum.cli", "bench", "allreduce", *QUICK[2:], "--transport", "gloo", "--size", "4K"]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert [status for _, _, status in ends] == [0, 0], ends
    assert [row[4] for row in rows_of(ends[0][0])] == ["gloo"]
    assert ends[1][0] == ""
    assert re.search(r"^# switchsum bench allreduce: 2 ranks on 1 host; ", ends[0][0])


MISUSE = {
    "--size four": "'four' is not a size; write bytes, or a whole number with K, M or G, such as 4K or 64M",
    "--begin 4M --end 4K": "the sweep begins at 4 MiB and ends at 4 KiB, which is less",
    "--transport nccl": "--transport nccl: there are switchsum, switchsum16, switchsum8, gloo, limit",
    "--dtype float64": "--dtype float64: choose float32, float16, bfloat16, int32",
    "--redop max": "--redop max: choose sum or avg",
    "--redop avg --dtype int32": "--redop avg: an average of int32 has no exact result; use sum",
    "--turns 3": "--turns 3: fewer than 5 runs show no spread",
    "--turn-seconds 0": "--turn-seconds 0: must be above 0 and at most 600",
    "--warmup 0": "--warmup 0: must be from 1 to 1000",
    "--seed -1": "--seed -1: must be between 0 and 4294967295",
    "--timeout 0": "--timeout 0: must be between 1 and 3600 seconds",
    "--elements 100": "--elements 100: the switch program is compiled for 64, 128, 256 elements per packet",
    "--workers 1": "--workers 1: a sum needs at least 2 workers",
    "--loss 1": "--loss 1: must be at least 0 and below 1",
    "--rate 100M": "--rate, --switch and --bmv2 belong to a rack: give its file with --rack",
    "--json /nowhere/x.json": "/nowhere/x.json cannot be written: there is no folder /nowhere",
    "--plot x.pdf": "--plot x.pdf: the picture is a PNG; let its name end in .png",
    f"--rack {RACKS}/two.yaml --rate fast": "--rate 'fast' is not a rate, such as 100 Mbit/s or 1 Gbit/s",
    f"--rack {RACKS}/two.yaml --rate 1": "--rate 1 is out of range: 10 kbit/s to 100 Gbit/s",
    f"--rack {RACKS}/two.yaml --workers 33": "33 workers are not possible: a job has 1 to 32",
    f"--rack {RACKS}/two.yaml --workers 1": "a sum needs at least 2 workers; give --workers",
    f"--rack {RACKS}/two.yaml --switch bridge": "a bridge sums nothing: choose --switch softswitch or bmv2",
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=MISUSE.keys())
def test_misuse_is_one_line_and_status_2(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(arguments.split(), monkeypatch) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
