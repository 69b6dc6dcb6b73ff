"""`switchsum bench diff`: rows found again, ratios judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from switchsum.measure.samples import Series
from tests.in_process import command_line
from tests.measure.made_results import latencies, results, series


def diff(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command in this process; its exit status."""
    return command_line(monkeypatch, "bench", "diff", *arguments)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """20 ms latency, 50 MB/s."""
    folder = tmp_path / "before"
    folder.mkdir()
    results(series("p2p-latency", "tcp", "uniform", 4_030_030, 0.02)).save(folder / "latency.json")
    results(series("p2p-bandwidth", "tcp", "uniform", 4_030_030, 0.08)).save(folder / "bandwidth.json")
    return folder


def after(folder: Path, latency_s: float, sending_s: float, **changes: object) -> Path:
    folder.mkdir()
    results(series("p2p-latency", "tcp", "uniform", 4_030_030, latency_s), **changes).save(folder / "l.json")
    results(series("p2p-bandwidth", "tcp", "uniform", 4_030_030, sending_s), **changes).save(folder / "b.json")
    return folder


def verdicts(path: Path) -> dict[str, tuple[float, str]]:
    return {each["benchmark"]: (each["ratio"]["value"], each["verdict"]) for each in json.loads(path.read_text())["rows"]}


@pytest.mark.parametrize(
    ("latency_s", "sending_s", "latency", "bandwidth"),
    [
        (0.02, 0.08, (1.0, "no difference shown"), (1.0, "no difference shown")),
        (0.022, 0.1, (1.1, "slower"), (0.8, "slower")),
        (0.018, 0.064, (0.9, "faster"), (1.25, "faster")),
        (0.02001, 0.08, (1.0005, "no difference shown"), (1.0, "no difference shown")),
    ],
)
def test_the_unit_says_what_is_better(
    latency_s: float,
    sending_s: float,
    latency: tuple[float, str],
    bandwidth: tuple[float, str],
    before: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test, written = after(tmp_path / "after", latency_s, sending_s), tmp_path / "diff.json"
    assert diff(monkeypatch, before, test, "--json", written) == 0
    found = verdicts(written)
    for benchmark, (value, verdict) in (("p2p-latency", latency), ("p2p-bandwidth", bandwidth)):
        assert found[benchmark] == (pytest.approx(value), verdict)


@pytest.mark.parametrize(("percent", "status"), [(5, 1), (9, 1), (11, 0), (0, 1)])
@pytest.mark.parametrize("slow", ["latency", "bandwidth"])
def test_a_slower_row_fails_only_beyond_the_percentage(
    slow: str, percent: int, status: int, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"latency": (0.022, 0.08), "bandwidth": (0.02, 0.088)}[slow]  # a tenth longer, within a thousandth or two
    assert diff(monkeypatch, before, after(tmp_path / "after", *times), "--fail-slower", percent) == status


def test_rows_that_are_only_in_one_and_what_differs_between_machines_are_told(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.json"
    rows = [series("p2p-latency", "tcp", "uniform", 4_030_030, 0.02), series("p2p-latency", "grpc", "skew", 6_030_010, 0.03)]
    links = [{"name": "w0", "link": {"rate_bps": 10**8, "burst_bytes": 131072}}]
    results(*rows, environment={"date": "2026", "kernel": "7.0", "cpu": "abacus"}, links=links).save(test)
    assert diff(monkeypatch, before, test) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"# base: {before}, test: {test}"
    assert "# kernel: 6.1 | 7.0" in printed
    assert "# links: the machine's own (loopback, or not told) | tbf of 100 Mbit/s, burst 131072 B" in printed
    assert not [line for line in printed if "CPU" in line]
    assert "# only in base: p2p-bandwidth tcp uniform, 1 worker, 1 server, links without a rate" in printed
    assert "# only in test: p2p-latency grpc skew, 1 worker, 1 server, links without a rate" in printed
    [row] = [line for line in printed if line.startswith("  ")]
    assert row.split()[:4] == ["p2p-latency", "tcp", "uniform", "-"]
    assert row.endswith("1.000 (0.999 to 1.001)  no difference shown")


def test_rows_of_several_link_rates_meet_at_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def at(rate_bps: int, factor: float) -> Series:
        return series("p2p-latency", "tcp", "uniform", 4_030_030, factor * 4e6 / rate_bps, link_rate_bps=rate_bps)

    for name, factor in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        for rate in (10**8, 4 * 10**8):
            results(at(rate, factor)).save(tmp_path / name / f"{rate}.json")
    assert diff(monkeypatch, tmp_path / "a", tmp_path / "b") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [(row[3], row[-5], row[-1]) for row in rows] == [("100", "2.000", "slower"), ("400", "2.000", "slower")]


def test_one_link_rate_against_another_is_compared_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rate in (("a", 10**8), ("b", 4 * 10**8)):
        results(series("p2p-latency", "tcp", "uniform", 4_030_030, 4e6 / rate, link_rate_bps=rate)).save(tmp_path / name)
    assert diff(monkeypatch, tmp_path / "a", tmp_path / "b") == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert row.split()[3:5] == ["100,", "400"]
    assert row.endswith("faster")


def test_wrong_results_are_not_compared(before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test, written = tmp_path / "test.json", tmp_path / "diff.json"
    results(replace(series("p2p-latency", "tcp", "uniform", 4_030_030, 0.002), wrong=1)).save(test)
    assert diff(monkeypatch, before, test, "--json", written, "--fail-slower", 5) == 1
    assert verdicts(written)["p2p-latency"][1] == "wrong results, not compared"


def test_misuse_is_one_line_and_status_2(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    results(*latencies("grpc")).save(other)
    for arguments, message in {
        (before, other): f"{before} and {other} have no row in common: rows are the same if benchmark, transport, payload, "
        "number and place of workers and servers, and --check are",
        (before, tmp_path / "x"): f"{tmp_path}/x does not exist; write results with --json, such as "
        "`switchsum bench allreduce --json FILE`",
        (before, before, "--fail-slower", -1): "--fail-slower -1: must be a percentage of at least 0",
        (before, before, "--fail-slower", "nan"): "--fail-slower nan: must be a percentage of at least 0",
        (before, before, "--json", "/nowhere/x"): "/nowhere/x cannot be written: there is no folder /nowhere",
    }.items():
        assert diff(monkeypatch, *arguments) == 2
        assert capsys.readouterr() == ("", f"error: {message}\n")
