"""From samples to figures, and from figures to the table's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from switchsum.measure import plot, report, table
from switchsum.measure.rows import Row
from switchsum.measure.samples import Series, Turn


def series(**changes: object) -> Series:
    """Two workers sum 1 MB in five runs of two iterations: 10 and 12 ms, the last run 20 and 22 ms."""
    turns = [
        Turn(
            number,
            seconds=[[first, first - 0.001], [first + 0.001, first + 0.002]],
            cpu_s=[[0.004, 0.002], [0.004, 0.002]],
            switch_cpu_s=0.01,
            machine_busy_ticks=3,
            machine_ticks=10,
            link_bytes=[(2_200_000, 2_100_000), (2_200_000, 2_100_000)],
            resent=2,
        )
        for number, first in enumerate([0.010, 0.010, 0.010, 0.010, 0.020])
    ]
    made = Series("switchsum", 1_000_000, 250_000, "float32", "sum", 2, 1_000_000_000, "tbf", 0, 10, [0.01], turns)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_figures_follow_from_the_samples() -> None:
    row = Row.of(series())
    assert (row.time, row.fastest, row.slowest) == pytest.approx((0.011, 0.011, 0.021))  # medians of a run's two iterations
    assert (row.p50, row.p99) == pytest.approx((0.012, 0.022))
    assert (row.iterations, row.runs, row.wrong, row.resent) == (10, 5, 0, 10)
    assert row.algbw == row.busbw == pytest.approx(1e6 / 0.011 / 1e9)
    assert row.link_up == pytest.approx(1_100_000 / 0.011 / 1e9)  # an iteration's bytes in the row's time
    assert row.link_down == pytest.approx(1_050_000 / 0.011 / 1e9)
    assert row.link_share == pytest.approx(0.8)  # of 1 Gbit/s
    assert row.worker_cpu == pytest.approx((0.040 + 0.020) / 2 / 0.010)  # ten iterations of 1 MB
    assert row.switch_cpu == pytest.approx(0.05 / 0.010)
    assert row.busy == pytest.approx(0.3)
    assert row.limited_by == "-"


def test_where_nothing_is_known_nothing_is_claimed() -> None:
    turns = [replace(turn, switch_cpu_s=None, resent=None) for turn in series().turns]
    row = Row.of(series(turns=turns, link_rate_bps=None, wrong=None))
    assert (row.switch_cpu, row.resent, row.link_share, row.wrong) == (None, None, None, None)


def test_the_table_is_nccl_tests_and_more() -> None:
    lines = [*table.header("title"), table.line(Row.of(series()))]
    assert lines == [
        "# title",
        "#",
        "#      size       count      type  redop    transport       time        min        max        p50        p99"
        "      algbw      busbw  #wrong    link up       down   link   worker   switch  busy   resent  limit",
        "#       (B)  (elements)                                     (us)       (us)       (us)       (us)       (us)"
        "     (GB/s)     (GB/s)             (GB/s)     (GB/s)    (%)   (s/GB)   (s/GB)   (%)                ",
        "    1000000      250000   float32    sum    switchsum    11000.0    11000.0    21000.0    12000.0    22000.0"
        "    0.09091    0.09091       0     0.1000    0.09545   80.0     3.00     5.00    30       10      -",
    ]


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
        changed = replace(row, algbw=row.algbw * factor, busbw=factor, worker_cpu=factor, time=row.time * min(factor, 1e3))
        assert len(table.line(changed)) == width


def test_json_has_every_sample() -> None:
    samples = series()
    made = report.as_json(
        [samples], [Row.of(samples)], title="t", arguments={"a": 1}, environment={}, ranks={"switchsum": []}, links=[]
    )
    assert made["schema"] == "switchsum-bench-allreduce/1"
    [result] = made["results"]
    assert [len(turn["seconds"]) for turn in result["samples"]["turns"]] == [2] * 5
    assert (result["transport"], result["wrong"], made["out_of_bounds"]) == ("switchsum", 0, 0)


def test_the_payload_of_a_link_is_its_rate_less_headers() -> None:
    assert plot.payload_rate(100e6, 256) == pytest.approx(0.0125 * 1024 / (1024 + 66))


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    small, large = Row.of(series()), replace(Row.of(series()), size_bytes=4_000_000)
    path = tmp_path / "plot.png"
    plot.write(path, [small, large], "title", 10**9, 256)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    plain = tmp_path / "plain.png"
    plot.write(plain, [small, large], "title", None, 256)
    assert plain.read_bytes() != path.read_bytes()  # without the link's line
