"""From samples to figures, and from figures to the table's text."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from switchsum.measure import table
from switchsum.measure.results import Results, write_csv
from switchsum.measure.rows import Figure, Row
from switchsum.measure.samples import Carried, Run, Series, Usage


def series(**changes: object) -> Series:
    """Two workers sum 1 MB in five runs of two operations: 10 and 12 ms, in the last run 20 and 22 ms."""
    runs = [
        Run(
            number,
            seconds=[[first, first + 0.001], [first - 0.001, first + 0.002]],
            elapsed_s=2 * first + 0.002,
            usage=[Usage(0.005, 0.003, 4, 2, 1000), Usage(0.003, 0.001, 4, 2, 1000)],
            carried=[Carried(2_200_000, 2_100_000, 1500, 1400, 1), Carried(2_200_000, 2_100_000, 1500, 1400)],
            switch_cpu_s=0.01,
            machine_busy_ticks=3,
            machine_ticks=10,
            resent=2,
        )
        for number, first in enumerate([0.010, 0.010, 0.010, 0.010, 0.020])
    ]
    made = Series(
        benchmark="allreduce",
        transport="switchsum",
        mode="",
        payload="1000000 B",
        size_bytes=1_000_000,
        buffers=1,
        dtype="float32",
        redop="sum",
        workers=2,
        servers=0,
        hosts=[0, 1],
        link_rate_bps=1_000_000_000,
        link_source="tbf",
        wrong=0,
        checked=3_000_000,
        largest_error=5.96e-8,
        warmup_s=[0.01],
        runs=runs,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_figures_follow_from_the_samples() -> None:
    row = Row.of(series())
    assert row.time.runs == pytest.approx((0.011, 0.011, 0.011, 0.011, 0.021))  # means of the slowest worker's operations
    assert row.time.mean == pytest.approx(0.013)
    assert row.time.ci95 == pytest.approx(2.776 * 0.004472136 / 5**0.5, rel=1e-4)
    assert (row.unit, row.headline.mean) == ("us", pytest.approx(13000))
    assert (row.fastest, row.slowest, row.p50, row.p99) == pytest.approx((0.010, 0.022, 0.012, 0.022))
    assert (row.operations, row.wrong, row.resent, row.dropped) == (10, 0, 10, 5)
    assert row.algbw == row.busbw == pytest.approx(1e6 / 0.013 / 1e9)
    elapsed = 4 * 0.022 + 0.042
    assert row.linkbw == pytest.approx(5 * 2.2e6 / elapsed / 1e9)
    assert row.link_share == pytest.approx(8 * 5 * 2.2e6 / elapsed / 1e9)  # of 1 Gbit/s
    assert row.worker_cpu == pytest.approx((0.040 + 0.020) / 2 / 0.010)  # ten operations of 1 MB
    assert row.switch_cpu == pytest.approx(0.05 / 0.010)
    assert (row.user_s, row.system_s, row.voluntary_switches, row.involuntary_switches) == pytest.approx((0.04, 0.02, 40, 20))
    assert row.busy == pytest.approx(0.3)
    assert row.limited_by == "-"


def test_where_nothing_is_known_nothing_is_claimed() -> None:
    runs = [replace(run, switch_cpu_s=None, resent=None) for run in series().runs]
    row = Row.of(series(runs=runs, link_rate_bps=None, wrong=None, largest_error=None))
    assert (row.switch_cpu, row.resent, row.link_share, row.wrong, row.largest_error) == (None, None, None, None, None)


def test_with_parameter_servers_the_fullest_link_counts() -> None:
    """One server for two workers, on a host of its own: its link carries what both of theirs do."""
    server = Carried(4_200_000, 4_400_000, 3000, 2800)
    runs = [
        replace(run, carried=[*run.carried, server], usage=[*run.usage, Usage(0.001, 0.001, 1, 1, 1)], switch_cpu_s=None)
        for run in series().runs
    ]
    row = Row.of(series(transport="grpc", mode="serialized", servers=1, hosts=[0, 1, 2], runs=runs))
    assert row.linkbw == pytest.approx(5 * 4.4e6 / 0.130 / 1e9)
    assert row.worker_cpu == Row.of(series()).worker_cpu  # the servers' is not theirs
    assert (row.label, row.servers, row.colocated) == ("grpc serialized", 1, False)
    assert Row.of(series(servers=1, hosts=[0, 1, 1], runs=runs)).colocated


@pytest.mark.parametrize(("source", "hosts"), [("tbf", [0, 1, 2]), ("payload", [2, 1, 0])])
def test_each_link_is_held_against_its_own_rate(source: str, hosts: list[int]) -> None:
    """The fullest link need not be the one that is nearest to its rate; one without a rate has no share."""
    loads = (10_000_000, 2_000_000, 90_000_000)
    runs = [replace(run, carried=[Carried(load, 1) for load in loads], usage=[run.usage[0]] * 3) for run in series().runs]
    rates = [1_000_000_000, 100_000_000, None]
    by_host = [rates[hosts.index(host)] for host in range(3)]
    row = Row.of(
        series(runs=runs, workers=3, hosts=hosts, link_source=source, link_rate_bps=100_000_000, link_rates_bps=by_host)
    )
    assert row.linkbw == pytest.approx(5 * 90e6 / 0.130 / 1e9)
    assert row.link_share == pytest.approx(8 * 5 * 2e6 / 0.130 / 1e8)


def test_samples_stand_for_the_operations_they_were_chosen_from() -> None:
    """Of a worker's 20,000 calls every second one was kept, of the slower worker's 200 all."""
    runs = [
        replace(run, seconds=[[0.001] * 10_000, [0.1] * 200], made=[20_000, 200], elapsed_s=20.0, switch_cpu_s=None)
        for run in series().runs
    ]
    row = Row.of(series(benchmark="ps-throughput", transport="tcp", runs=runs))
    assert row.time.mean == pytest.approx((20_000 * 0.001 + 200 * 0.1) / 20_200)
    assert (row.p50, row.p99, row.slowest) == (0.001, 0.001, 0.1)  # the slower ones are less than one in a hundred


def test_what_was_verified_call_by_call_is_another_measurement() -> None:
    assert Row.of(series(check=True)).key != Row.of(series()).key
    checked = Row.of(
        replace(series(), benchmark="p2p-bandwidth", check=True, runs=[replace(run, made=[2, 2]) for run in series().runs])
    )
    assert f"# {table.CHECK_NOTE}" in table.footer([checked])
    assert f"# {table.CHECK_NOTE}" not in table.footer([Row.of(series(check=True))])  # sums are not verified in their time


def test_the_table_is_nccl_tests_and_more() -> None:
    lines = [*table.header("title", "allreduce"), table.line(Row.of(series()))]
    assert lines == [
        "# title",
        "#",
        "#     size buffers     type redop       transport      time   +-95%       p50       p99     algbw     busbw    linkbw"
        "  link #wrong   error   worker   switch busy limit",
        "#      (B)                                             (us)    (us)      (us)      (us)    (GB/s)    (GB/s)    (GB/s)"
        "   (%)                  (s/GB)   (s/GB)  (%)",
        "   1000000       1  float32   sum       switchsum   13000.0  5552.0   12000.0   22000.0   0.07692   0.07692   0.08462"
        "  67.7      0 6.0e-08     3.00     5.00   30     -",
    ]
    assert max(map(len, lines)) < 170


def test_what_was_used_is_a_table_of_its_own() -> None:
    cells = table.resource_lines([Row.of(series())])[-1].split()
    assert cells == [*("#", "1000000", "B", "1000000", "switchsum", "0.04", "0.02", "40", "20", "22.0", "21.0", "5", "10")]


def test_stages_are_told_by_packet_and_beside_what_plain_datagrams_cost() -> None:
    assert table.stage_lines([Row.of(series())], 256) == []  # nobody asked
    seconds = {"python": 0.1, "wait": 5.0, "parse": 0.2, "dequantize": 0.3, "quantize": 0.4, "pack": 0.1, "send": 0.5}
    stages = [({name: value / 1e3 for name, value in seconds.items()}, packets) for packets in (1000, 3000)]
    row = Row.of(series(stages=stages))
    assert row.stages is not None
    assert row.stages["parse"] == pytest.approx(100e-9)  # 0.4 ms of two ranks over 4000 packets
    limit = replace(row, transport="limit", stages=None, worker_cpu=0.5)
    lines = table.stage_lines([row, limit], 256)
    assert lines[1].startswith("# where a worker's time goes: ns for one packet sent and one received (send includes waiting")
    assert lines[2].split() == [
        "#",
        "size",
        "(B)",
        "transport",
        *(name for name in seconds if name != "wait"),
        "together",
        "wait",
    ]
    figures = ["1000000", "switchsum", "50", "100", "150", "200", "50", "250", "800", "2500"]
    assert lines[3].split()[: len(figures)] == figures
    assert lines[3].endswith("quantize + pack + parse + dequantize = 500, 0.98 x limit's 512 in all")
    assert len(lines) == 4


def test_the_verdict_counts_wrong_elements() -> None:
    row = Row.of(series())
    assert table.footer([row])[0] == "# Out of bounds values : 0 OK"
    footer = table.footer([row, replace(row, wrong=3), replace(row, wrong=None, lost=7, transport="limit")], ["a note"])
    assert footer[0] == "# Out of bounds values : 3 FAILED"
    assert "# a note" in footer
    assert footer[-1] == "# limit lost 7 datagrams of the 1000000 B row: its time is of fewer bytes"
    assert any("busbw may exceed the link's rate" in line for line in footer)


def test_numbers_of_all_magnitudes_fit_their_columns() -> None:
    row = Row.of(series())
    width = len(table.line(row))
    for factor in (1e-7, 1e-3, 10.0, 1e5):
        time = Figure.of([seconds * min(factor, 1e3) for seconds in row.time.runs])
        changed = replace(row, algbw=row.algbw * factor, busbw=factor, worker_cpu=factor, time=time, largest_error=factor / 10)
        assert len(table.line(changed)) == width


def test_files_have_every_sample(tmp_path: Path) -> None:
    samples = series()
    saved = Results("allreduce", "t", {"a": 1}, {}, [Row.of(samples)], [samples], ranks={"switchsum": []}, complete=False)
    saved.save(tmp_path / "r.json")
    found = Results.load(tmp_path / "r.json")
    assert found == saved
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["schema"], written["out_of_bounds"], written["complete"]) == ("switchsum-bench/2", 0, False)
    [result] = written["results"]
    assert [len(run["seconds"][0]) for run in result["samples"]["runs"]] == [2] * 5
    with (tmp_path / "r.csv").open("w") as opened:
        write_csv(opened, found.rows, found.series)
    lines = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [(line["run"], float(line["value"]), line["operations"]) for line in lines][-1] == ("4", pytest.approx(21000), "2")
    assert len(lines) == 5
