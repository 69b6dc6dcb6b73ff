"""`switchsum bench p2p-latency | p2p-bandwidth | ps-throughput` from end to end, and every way in which they can fail."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from switchsum import bench_payloads, bench_sites
from switchsum.bmv2_topologies import namespaces
from switchsum.measure import experiment
from tests.in_process import command_line

ROOT = Path(__file__).resolve().parents[2]
RACKS = ROOT / "bmv2_topologies" / "racks"
QUICK = ["--duration", "0.02", "--warmup", "0", "--port", "0"]


def bench(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; its exit status."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return command_line(monkeypatch, "bench", *arguments)


def test_every_transport_and_mode_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers, three workers; more calls than a file of results keeps times of."""
    raw, lines = tmp_path / "raw.json", tmp_path / "runs.csv"
    options = ["--num-ps", "2", "--num-workers", "3", "--mode", "serialized", "--mode", "non-serialized", "--check"]
    files = ["--json", str(raw), "--csv", str(lines)]
    assert bench(["ps-throughput", *QUICK, *options, *files, "--size", "1KB"], monkeypatch) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if not line.startswith("#")]
    assert [row[3:5] if row[4] == "serialized" else row[3:4] for row in rows] == [
        ["grpc", "serialized"], ["grpc"], ["tcp"], ["gloo"]
    ]  # fmt: skip
    written = json.loads(raw.read_text())
    assert (written["schema"], written["benchmark"], written["out_of_bounds"]) == ("switchsum-bench/2", "ps-throughput", 0)
    for result in written["results"]:
        runs = result["samples"]["runs"]
        assert result["operations"] == sum(sum(run["made"]) for run in runs)
        assert result["samples"]["checked"] >= 1000 * result["operations"]
        assert result["unit"] == "RPC/s"
        for run in runs:
            assert len(run["usage"]) == 5
            assert sum(run["made"]) / run["elapsed_s"] in result["headline"]["runs"]
        # Every call carries the payload there and back, whatever else.
        carried = sum(each["sent_bytes"] for run in runs for each in run["carried"])
        assert carried >= 2 * 1000 * result["operations"]
        assert (result["serialize"] is not None) == (result["transport"] == "grpc")
    with lines.open() as opened:
        found = list(csv.DictReader(opened))
    assert [(line["transport"], line["run"]) for line in found[:6]] == [
        *(("grpc", str(run)) for run in range(5)),
        ("grpc", "0"),
    ]


@pytest.mark.parametrize("benchmark", ["p2p-latency", "p2p-bandwidth"])
def test_a_flipped_byte_is_counted_and_fails_the_benchmark(
    benchmark: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_server")
    monkeypatch.setenv("BAD", "flip")
    assert bench([benchmark, *QUICK, "--transport", "tcp", "--scheme", "skew"], monkeypatch) == 1
    # One byte before the first run, and one after each of five.
    assert "# Out of bounds values : 6 FAILED" in capsys.readouterr().out.splitlines()


def test_a_missing_buffer_is_counted_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_server")
    monkeypatch.setenv("BAD", "drop")
    options = ["--transport", "grpc", "--sizes", "large=1MB", "--iovec-count", "2"]
    assert bench(["p2p-latency", *QUICK, *options], monkeypatch) == 1
    assert "# Out of bounds values : 6000000 FAILED" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("transport", ["grpc", "tcp", "gloo"])
def test_a_server_that_dies_is_named(
    transport: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_sites, "WORKER_MODULE", "tests.measure.bad_server")
    monkeypatch.setenv("BAD", "die")
    assert bench(["p2p-latency", *QUICK, "--duration", "5", "--transport", transport, "--size", "1KB"], monkeypatch) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: parameter server 0 was killed by SIGKILL")


def test_gloo_outlives_the_turns_of_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody calls for longer than --timeout."""
    monkeypatch.setattr(experiment, "_IDLE_S", 4.5)
    status = bench(["p2p-latency", *QUICK, "--timeout", "4", "--transport", "gloo", "--size", "1KB"], monkeypatch)
    assert status == 0, capsys.readouterr().err


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert bench(["p2p-latency", *QUICK, "--port", str(port), "--transport", "tcp"], monkeypatch) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: parameter server 0: ")
    assert f"{port}" in last
    assert "--port" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="ports below 1024 are root's")
def test_port_0_is_any_port_for_every_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as taken:
        for port in range(1, 4):
            taken.enter_context(closing(socket.create_server(("127.0.0.1", port))))
        options = ["--transport", "tcp", "--transport", "grpc", "--mode", "serialized", "--mode", "non-serialized"]
        assert bench(["p2p-latency", *QUICK, *options, "--size", "1KB"], monkeypatch) == 0


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_in_a_rack_links_carry_what_the_calls_move(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "raw.json"
    options = ["--rack", str(RACKS / "two.yaml"), "--rate", "500M", "--num-ps", "2", "--num-workers", "2"]
    options += ["--placement", placement, "--transport", "tcp", "--size", "1MB", "--json", str(raw)]
    assert bench(["ps-throughput", *QUICK, *options], monkeypatch) == 0
    printed = capsys.readouterr().out
    assert f"2 workers and 2 parameter servers, {placement}, in a rack;" in printed
    [result] = json.loads(raw.read_text())["results"]
    assert result["colocated"] == (placement == "colocated")
    assert result["link_source"] == "tbf"
    for run in result["samples"]["runs"]:
        assert len(run["carried"]) == (2 if placement == "colocated" else 4)
        # Each call moves the payload twice, and each link of its way counts it. Where servers are colocated, one of a worker's
        # two is on its own host, and half of all calls cross no link.
        moved = 2 * 2 * 1_000_000 * sum(run["made"]) / (2 if placement == "colocated" else 1)
        carried = sum(each["sent_bytes"] + each["received_bytes"] for each in run["carried"])
        assert moved <= carried <= 1.15 * moved  # with headers and acknowledgements
    assert not [name for name in namespaces.names() if name.startswith(f"switchsum.bench-{os.getpid()}")]


def test_under_torchrun_the_last_ranks_are_servers() -> None:
    from tests.torch.launch import free_port

    base = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    base |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2"}
    options = [*QUICK, "--transport", "tcp", "--transport", "gloo"]
    command = [sys.executable, "-m", "switchsum.cli", "bench", "p2p-latency", *options]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert [status for _, _, status in ends] == [0, 0], ends
    assert "1 worker and 1 parameter server on 1 host; " in ends[0][0]
    assert ends[1][0] == ""


MISUSE = {
    "p2p-latency --transport switchsum": (
        "--transport switchsum: a switch that adds carries no calls; it takes part in `switchsum bench allreduce`"
    ),
    "p2p-latency --transport rdma": "--transport rdma: there are grpc, tcp, gloo",
    "p2p-latency --mode pickled": "--mode pickled: choose serialized or non-serialized",
    "p2p-bandwidth --num-ps 2": ("--num-ps 2, --num-workers 1: p2p-bandwidth has one server and one worker; use ps-throughput"),
    "ps-throughput --num-workers 0": "--num-workers 0: must be from 1 to 32",
    "ps-throughput --num-ps 33": "--num-ps 33: must be from 1 to 32",
    "p2p-latency --repeat 4": "--repeat 4: fewer than 5 runs show no spread",
    "p2p-latency --duration 0": "--duration 0: must be above 0 and at most 3600 seconds",
    "p2p-latency --warmup -1": "--warmup -1: must be from 0 to 600 seconds",
    "p2p-latency --port 70000": "--port 70000: must be from 0 (any) to 65000",
    "p2p-latency --timeout 0": "--timeout 0: must be between 1 and 3600 seconds",
    f"p2p-latency --rack {RACKS}/two.yaml --placement there": "--placement there: choose dedicated or colocated",
    "p2p-latency --placement colocated": (
        "--placement colocated: only in a rack; under torchrun, ranks lie where it starts them"
    ),
    "p2p-latency --transport tcp --mode serialized": "--mode: only grpc has modes; add --transport grpc",
    "p2p-latency --payload resnet50 --scheme skew": (
        "--scheme, --iovec-count, --sizes and --bias make a payload, --payload names one: choose one of them"
    ),
    "p2p-latency --size 1KB --iovec-count 3": (
        "--scheme, --iovec-count, --sizes and --bias make a payload, --size names one: choose one of them"
    ),
    "p2p-latency --bias small": "--bias small: only a skewed payload has one; add --scheme skew",
    "p2p-latency --rate 100M": "--rate belongs to a rack: give its file with --rack",
    "p2p-latency --scheme bent": "scheme 'bent' is unknown; there are uniform, random, skew",
    "p2p-latency --iovec-count 0": "0 buffers are out of range: 1 to 100000",
    "p2p-latency --seed -1": "seed -1 is out of range: 0 to 4294967295",
    "p2p-latency --size 1KB --seed -1": "--seed -1: must be between 0 and 4294967295",
    "p2p-latency --json /nowhere/x.json": "/nowhere/x.json cannot be written: there is no folder /nowhere",
    "--preset thesis": "--preset thesis: there is paper",
    "--preset paper": "--preset paper fills a folder: name a new one with --output",
    "--preset paper --output README.md": "README.md is a file; name a new folder",
    "--preset paper --output docs": "docs is not empty: a report is made of all results in a folder; name a new one",
    "--rack x.yaml --repeat 3 payloads": "--rack, --repeat before payloads: belongs behind it, or to --preset",
    "--preset paper --output x allreduce": "--preset paper is a grid of its own; leave out allreduce",
}


@pytest.mark.parametrize(("arguments", "message"), MISUSE.items(), ids=MISUSE.keys())
def test_misuse_is_one_line_and_status_2(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert bench(arguments.split(), monkeypatch) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_only_the_papers_own_payloads_are_called_like_them() -> None:
    made = bench_payloads.manifests(
        scheme=["uniform", "skew"], iovec_count=[10, 4], sizes=None, bias=None, seed=0, size=[], payload=[]
    )
    assert [each.name for each in made] == ["uniform", "uniform-x4", "skew", "skew-x4"]
    for options, name in {
        ("skew", None, "small"): "skew-small",
        ("skew", "small=900,medium=900KB,large=10MB", None): "skew-900B-900000B-10000000B",
        ("uniform", "large=1MB", None): "large-x10",
        ("uniform", "large=2MB", None): "large-2000000B-x10",
        ("random", "small=10,large=1MB", None): "random-small-large",
    }.items():
        scheme, sizes, bias = options
        [made_so] = bench_payloads.manifests(
            scheme=[scheme], iovec_count=[], sizes=sizes, bias=bias, seed=0, size=[], payload=[]
        )
        assert made_so.name == name


def test_who_reads_only_the_first_lines_loses_no_file(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    command = [sys.executable, "-m", "switchsum.cli", "bench", "p2p-latency", *QUICK, "--transport", "tcp", "--size", "1KB"]
    with subprocess.Popen([*command, "--json", str(raw)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, b"")
    assert json.loads(raw.read_text())["complete"]
