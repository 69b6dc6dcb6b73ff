"""`switchsum bench allreduce` from end to end, and every way in which it can fail."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from switchsum import bench_sites
from switchsum.bmv2_topologies import namespaces
from switchsum.measure.manifest import Buffer, Manifest, Step
from tests.in_process import command_line

ROOT = Path(__file__).resolve().parents[2]
RACKS = ROOT / "bmv2_topologies" / "racks"
QUICK = ["--workers", "2", "--duration", "0.01", "--warmup", "0"]
WRONG = 13  # the column


def bench(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; its exit status."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return command_line(monkeypatch, "bench", "allreduce", *arguments)


def rows_of(printed: str) -> list[list[str]]:
    lines = [line for line in printed.splitlines() if not line.startswith("#")]
    return [line.replace("grpc serialized", "grpc-serialized").split() for line in lines]


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
        [size, "1", "float32", "sum", name] for size in ("100", "307200") for name in transports
    ]
    assert [row[WRONG] for row in rows] == ["0", "0", "0", "0", "-"] * 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    written = json.loads(raw.read_text())
    assert (written["out_of_bounds"], written["complete"]) == (0, True)
    assert written["environment"]["cores"] == len(os.sched_getaffinity(0))
    assert written["arguments"]["size"] == ["100", "300K"]
    assert [hello["rank"] for hello in written["ranks"]["gloo"]] == [0, 1]
    for result in written["results"]:
        runs = result["samples"]["runs"]
        assert len(runs) == len(result["time"]["runs"]) == 5
        assert all(len(run["seconds"]) == len(run["usage"]) == 2 for run in runs)
        assert sum(len(run["seconds"][0]) for run in runs) == result["operations"]
        through_the_switch = result["transport"].startswith("switchsum")
        assert (result["switch_cpu"] is not None) == (result["stages"] is not None) == through_the_switch
        summed = result["transport"] != "limit"
        assert (result["largest_error"] is not None) == summed
        assert not summed or 0 < result["largest_error"] < (100 if result["samples"]["lanes"] < 32 else 1e-3)
    # What the links carried is known before it is measured: headers and numbers, once in each direction.
    [large] = [each for each in written["results"] if (each["transport"], each["size_bytes"]) == ("switchsum", 307200)]
    for run in large["samples"]["runs"]:
        assert all(each["sent_bytes"] >= 300 * (24 + 1024) * len(run["seconds"][0]) for each in run["carried"])


def test_parameter_servers_ring_and_switch_sum_the_same_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, table = tmp_path / "raw.json", tmp_path / "rows.csv"
    first = Step((Buffer(4000, "float32"),))
    usual = Step((Buffer(40_000, "float16", tensors=(30_000, 10_000)), Buffer(12, "int32"), Buffer(2_400_000, "float32")), 8)
    mine = Manifest("mine", {}, (first, usual))
    mine.save(tmp_path / "mine.json")
    options = [
        "--payload",
        str(tmp_path / "mine.json"),
        "--step",
        "1",
        "--step",
        "0",
        "--workers",
        "3",
        "--num-ps",
        "2",
        "--check",
    ]
    options += ["--transport", "switchsum", "--transport", "gloo", "--transport", "tcp", "--transport", "grpc"]
    options += ["--mode", "serialized", "--mode", "non-serialized", "--json", str(raw), "--csv", str(table)]
    assert bench([*QUICK[2:], *options], monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "3 workers and 2 parameter servers on loopback" in printed
    labels = ["switchsum", "gloo", "tcp", "grpc-serialized", "grpc"]
    shapes = [["2440012", "3", "mixed", "sum"], ["4000", "1", "float32", "sum"]]
    assert [row[:5] for row in rows_of(printed)] == [[*shape, label] for shape in shapes for label in labels]
    told = "# payload mine: step 1, which stands for 8 of 9 steps; 3 tensors of 2440012 B together, all under way at once"
    assert {told, "# payload mine: step 0, which stands for 1 of 9 steps; 1 tensor of 4000 B"} <= set(printed.splitlines())
    lines = list(csv.DictReader(table.open()))
    assert [line["payload"] for line in lines] == ["mine"] * 25 + ["mine step 0"] * 25
    written = json.loads(raw.read_text())
    assert written["payloads"] == [mine.as_json()]
    for result in written["results"]:
        servers = 2 if result["transport"] in ("tcp", "grpc") else 0
        assert (result["wrong"], result["servers"]) == (0, servers)
        samples = result["samples"]
        assert len(samples["hosts"]) == 3 + servers
        assert all(len(run["usage"]) == len(run["carried"]) == 3 + servers for run in samples["runs"])
        numbers = 1000 if result["payload"] == "mine step 0" else 20_000 + 3 + 600_000
        assert samples["checked"] == (1 + result["operations"]) * 3 * numbers
        for run in samples["runs"] if servers else []:  # every worker sends its tensors once, and is sent as many numbers
            moved = result["size_bytes"] * len(run["seconds"][0])
            for each in run["carried"][:3]:
                assert moved <= each["sent_bytes"] < 1.02 * moved + 100_000
                assert moved <= each["received_bytes"] < 1.02 * moved + 100_000


def test_a_wrong_element_is_counted_on_its_rank_and_fails_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_worker")
    monkeypatch.setenv("BAD", "corrupt")
    ways = [word for name in ("switchsum", "gloo", "tcp") for word in ("--transport", name)]
    assert bench([*QUICK, "--size", "4K", "--num-ps", "1", *ways], monkeypatch) == 1
    printed = capsys.readouterr().out
    # One element before the first run, and after each of five: of one worker; of all whom the server gave its sum.
    assert [row[WRONG] for row in rows_of(printed)] == ["6", "0", "12"]
    assert "# Out of bounds values : 18 FAILED" in printed.splitlines()


def test_a_worker_that_dies_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_worker")
    monkeypatch.setenv("BAD", "die")
    assert bench([*QUICK, "--size", "4K", "--transport", "gloo", "--duration", "0.1"], monkeypatch) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: worker 1 was killed by SIGKILL")


def test_a_parameter_server_that_dies_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_worker")
    monkeypatch.setenv("BAD", "die-server")
    assert bench([*QUICK, "--size", "4K", "--transport", "grpc", "--num-ps", "1"], monkeypatch) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: parameter server 0 was killed by SIGKILL")


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_both_fabrics_of_a_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums through a switch that loses packets beside Gloo and datagrams over a bridge, on links of one rate."""
    raw = tmp_path / "raw.json"
    options = ["--rack", str(RACKS / "four.yaml"), "--rate", "500M", "--loss", "0.02", "--size", "1M", "--json", str(raw)]
    options += [word for name in ("switchsum", "gloo", "limit", "tcp") for word in ("--transport", name)]
    assert bench([*QUICK, *options], monkeypatch) == 0
    printed = capsys.readouterr().out
    rows = rows_of(printed)
    assert [(row[4], row[WRONG]) for row in rows] == [("switchsum", "0"), ("gloo", "0"), ("limit", "-"), ("tcp", "0")]
    assert "links: tbf of 500 Mbit/s, burst 131072 B, queue 524288 B in each direction, alike at switch and bridge" in printed
    assert "# the switch dropped 2 % in, 2 % out of each worker's packets; rows over the bridge ran without loss" in printed
    results = {result["transport"]: result for result in json.loads(raw.read_text())["results"]}
    for result in results.values():
        assert result["samples"]["link_source"] == "tbf"
        assert result["samples"]["link_rate_bps"] == 500_000_000
        for run in result["samples"]["runs"]:  # a ring of two sends the tensor once, and so does everybody else
            moved = (1 << 20) * len(run["seconds"][0])
            assert len(run["carried"]) == 2
            assert all(each["sent_bytes"] >= moved <= each["received_bytes"] for each in run["carried"])
    assert results["switchsum"]["resent"] > 0
    assert results["switchsum"]["switch_cpu"] > 0
    assert results["gloo"]["switch_cpu"] is None
    assert (results["tcp"]["servers"], results["tcp"]["colocated"]) == (2, True)
    assert (results["gloo"]["servers"], results["gloo"]["colocated"]) == (0, False)
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{os.getpid()}")]


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_ctrl_c_leaves_nothing_but_finished_rows(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "switchsum.cli", "bench", "allreduce", *QUICK, "--rack", str(RACKS / "two.yaml")]
    process = subprocess.Popen(
        [*command, "--duration", "60", "--transport", "limit", "--size", "4", "--size", "64M", "--json", str(raw)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline().startswith("#"):  # until the first row is there
        pass
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "error: interrupted; everything that was started has been stopped"
    assert printed == f"# ended before its end; {raw}: the rows above\n"
    written = json.loads(raw.read_text())
    assert ([row["payload"] for row in written["results"]], written["complete"]) == (["4 B"], False)
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{process.pid}")]


def test_under_torchrun_rank_0_prints_and_the_others_follow(tmp_path: Path) -> None:
    """Without torchrun's own store: as a job scheduler sets the variables. The second half of the host's ranks are servers."""
    from tests.torch.launch import free_port

    base = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    base |= {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "4"}
    command = [
        sys.executable,
        "-m",
        "switchsum.cli",
        "bench",
        "allreduce",
        *QUICK[2:],
        "--scheme",
        "random",
        "--iovec-count",
        "5",
    ]
    processes = [
        subprocess.Popen(
            [*command, "--transport", "gloo", "--transport", "tcp"],
            env={**base, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert [status for _, _, status in ends] == [0] * 4, ends
    assert [(row[1], row[4], row[WRONG]) for row in rows_of(ends[0][0])] == [("5", "gloo", "0"), ("5", "tcp", "0")]
    assert [printed for printed, _, _ in ends[1:]] == [""] * 3
    assert re.search(r"^# switchsum bench allreduce: 2 workers and 2 parameter servers on 1 host; ", ends[0][0])


def test_colocated_ranks_are_the_second_half_of_each_host() -> None:
    job = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    assert bench_sites.places(job, colocated=True) == [0, 1, 4, 5, 2, 3, 6, 7]
    assert bench_sites.places(job, colocated=False) == list(range(8))


TORCHRUN_MISUSE = {
    "--transport tcp": "colocated parameter servers take half of each host's ranks, one for each worker; torchrun started 3 "
    "here, 3 in all: start 2 on each host (--nproc-per-node 2) without --num-ps, or add --placement dedicated",
    "--transport tcp --placement dedicated --num-ps 2": "--num-ps 2: of torchrun's 3 ranks 1 would be workers; "
    "there must be at least 2",
}


@pytest.mark.parametrize(("arguments", "message"), TORCHRUN_MISUSE.items(), ids=TORCHRUN_MISUSE.keys())
def test_a_job_that_does_not_suit_its_servers_is_refused(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    status = command_line(monkeypatch, "bench", "allreduce", *arguments.split())
    assert (status, capsys.readouterr()) == (2, ("", f"error: {message}\n"))


MISUSE = {
    "--size four": "'four' is not a size; write bytes, or a whole number with K, M or G, such as 4K or 64M",
    "--begin 4M --end 4K": "the sweep begins at 4 MiB and ends at 4 KiB, which is less",
    "--transport udp": "--transport udp: there are switchsum, switchsum16, switchsum8, gloo, nccl, grpc, tcp, limit",
    "--transport tcp --mode serialized": "--mode: only grpc has modes; add --transport grpc",
    "--transport grpc --mode text": "--mode text: choose serialized or non-serialized",
    "--num-ps 2": "--num-ps and --placement are about parameter servers: add --transport grpc or --transport tcp",
    "--transport tcp --num-ps 0": "--num-ps 0: must be from 1 to 32",
    "--transport tcp --placement apart": "--placement apart: choose colocated or dedicated",
    "--transport tcp --placement dedicated": "--placement dedicated: on loopback all share one host; use --rack or torchrun",
    f"--rack {RACKS}/two.yaml --transport tcp --num-ps 3": "--num-ps 3: 2 workers have no more than 2 hosts to share; "
    "add --placement dedicated",
    "--scheme skew --size 4K": "--begin, --end, --factor, --size and --dtype choose single tensors; --payload and --scheme "
    "bring their own",
    "--scheme skew --payload x.json": "--payload and --scheme: choose one of them",
    "--bias small": "--iovec-count, --sizes and --bias shape a scheme's payload: add --scheme",
    "--step 1": "--step chooses among a payload's steps: add --payload",
    "--dtype float64": "--dtype float64: choose float32, float16, bfloat16, int32",
    "--redop max": "--redop max: choose sum or avg",
    "--redop avg --dtype int32": "--redop avg: an average of int32 has no exact result; use sum",
    "--repeat 3": "--repeat 3: fewer than 5 runs show no spread",
    "--duration 0": "--duration 0: must be above 0 and at most 600 seconds",
    "--warmup -1": "--warmup -1: must be from 0 to 600 seconds",
    "--seed -1": "--seed -1: must be between 0 and 4294967295",
    "--timeout 0": "--timeout 0: must be between 1 and 3600 seconds",
    "--elements 100": "--elements 100: the switch program is compiled for 64, 128, 256 elements per packet",
    "--workers 1": "1 worker has nothing to sum with: there must be at least 2; see --workers",
    "--loss 1": "--loss 1: must be at least 0 and below 1",
    "--rate 100M": "--rate, --switch and --bmv2 belong to a rack: give its file with --rack",
    "--json /nowhere/x.json": "/nowhere/x.json cannot be written: there is no folder /nowhere",
    "--plot x.pdf": "--plot x.pdf: the picture is a PNG; let its name end in .png",
    f"--rack {RACKS}/two.yaml --rate fast": "--rate 'fast' is not a rate, such as 100 Mbit/s or 1 Gbit/s",
    f"--rack {RACKS}/two.yaml --rate 1": "--rate 1 is out of range: 10 kbit/s to 100 Gbit/s",
    f"--rack {RACKS}/two.yaml --workers 33": "33 workers are not possible: a job has 1 to 32",
    f"--rack {RACKS}/two.yaml --workers 1": "1 worker has nothing to sum with: there must be at least 2; see --workers",
    f"--rack {RACKS}/two.yaml --switch bridge": "a bridge sums nothing: choose --switch softswitch or bmv2",
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=MISUSE.keys())
def test_misuse_is_one_line_and_status_2(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(arguments.split(), monkeypatch) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


NO_SUCH_PAYLOAD = {
    "--step 2": "--step 2: payload mine has steps 0 to 1",
    "--step 1": "payload mine, step 1: float64 is not summed here; float32, float16, bfloat16, int32 are",
    "--redop avg": "--redop avg: an average of int32 has no exact result; use sum",
}


@pytest.mark.parametrize(("arguments", "message"), NO_SUCH_PAYLOAD.items(), ids=NO_SUCH_PAYLOAD.keys())
def test_payloads_that_cannot_be_summed_are_refused(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Manifest("mine", {}, (Step((Buffer(4, "int32"),), 3), Step((Buffer(8, "float64"),)))).save(tmp_path / "mine.json")
    assert bench(["--payload", str(tmp_path / "mine.json"), *arguments.split()], monkeypatch) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_nccl_needs_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert bench(["--transport", "nccl"], monkeypatch) == 2
    assert capsys.readouterr() == ("", "error: --transport nccl: PyTorch finds no CUDA device here\n")
