"""Calibration: what was put into made-up results is found again, and what cannot be learnt from is said."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from switchsum.measure import costs, replay
from switchsum.measure.calibration import BadCalibration, Calibration
from switchsum.measure.costs import Cluster
from switchsum.measure.media import Medium
from switchsum.measure.prediction import Ground
from switchsum.measure.result_files import Found
from switchsum.measure.results import Results
from switchsum.measure.samples import Series, Usage
from tests.measure.made_results import results, series

RATE_BPS = 100_000_000
BURST = 131_072
SIZES = (16_384, 1_048_576, 16_777_216)
ARCHITECTURES = {"gloo": "ring", "tcp": "ps", "switchsum": "switch"}


def takes(transport: str, size: int, latency_s: float, efficiency: float, rate_bps: int = RATE_BPS) -> float:
    """Seconds of a sum of four workers, by the formulas of costs.py; through Gloo latency and bytes pass side by side."""
    cluster = Cluster(4, 4 if transport == "tcp" else 0)
    waits_s = costs.rounds(ARCHITECTURES[transport], cluster) * latency_s
    moves_s = size * costs.link_bytes(ARCHITECTURES[transport], cluster) / efficiency * 8 / rate_bps
    return max(waits_s, moves_s) if transport == "gloo" else waits_s + moves_s


def sums(
    transport: str,
    latency_s: float,
    efficiency: float,
    spread: float,
    cpu_s_per_gb: float,
    rate_bps: int | None,
) -> list[Series]:
    """Of four workers, with exactly that latency and efficiency in the middle run."""
    servers = 4 if transport == "tcp" else 0
    made = []
    for size in SIZES:
        seconds = takes(transport, size, latency_s, efficiency, rate_bps or RATE_BPS)
        factors = [1 + spread * step for step in (-1, -0.5, 0, 0.5, 1)]
        one = series(
            "allreduce", transport, f"{size} B", size, seconds, spread=factors, workers=4, servers=servers,
            hosts=[0, 1, 2, 3] * (2 if servers else 1), link_rate_bps=rate_bps, link_source="tbf",
        )  # fmt: skip
        for run in one.runs:
            run.usage = [Usage(2 * size * cpu_s_per_gb / 1e9, 0.0, 1, 1, 1)] * (4 + servers)
        made.append(one)
    return made


def calibration(
    latency_s: float = 0.0, efficiency: float = 0.7, spread: float = 1e-6, cpu_s_per_gb: float = 1e-6, burst_bytes: int = 0
) -> Calibration:
    return Calibration.of(found(made(latency_s, efficiency, spread, cpu_s_per_gb, burst_bytes)))


def made(
    latency_s: float = 0.001,
    efficiency: float = 0.9,
    spread: float = 0.001,
    cpu_s_per_gb: float = 2.0,
    burst_bytes: int = 0,
    rate_bps: int | None = RATE_BPS,
) -> Results:
    rows = [row for name in ARCHITECTURES for row in sums(name, latency_s, efficiency, spread, cpu_s_per_gb, rate_bps)]
    links = [{"name": "w0", "link": {"rate_bps": rate_bps, "burst_bytes": burst_bytes}}] if rate_bps else []
    filled = results(*rows, links=links)
    filled.environment["cores"] = 2
    return filled


def found(*files: Results) -> Found:
    return Found({Path(f"{number}.json"): each for number, each in enumerate(files)}, [])


def test_latency_and_efficiency_are_found_again() -> None:
    learnt = Calibration.of(found(made()))
    assert list(learnt.fits) == list(ARCHITECTURES)
    for transport, fit in learnt.fits.items():
        assert fit.latency_s.mean == pytest.approx(0.001, rel=0.01), transport
        assert fit.efficiency is not None
        assert fit.efficiency.mean == pytest.approx(0.9, rel=0.01)
        assert 0 < fit.efficiency.ci95 < 0.01
        assert fit.missed < 1e-3
        assert fit.rows == 3
        assert fit.processor.worker_s_per_byte == pytest.approx(2e-9)
        assert fit.processor.cores == 2
    assert learnt.fits["tcp"].processor.elsewhere_s_per_byte == pytest.approx(2e-9)  # as many servers as workers
    assert learnt.rates_bps == (RATE_BPS,)


def test_predictions_at_the_calibrating_rate_are_what_was_measured() -> None:
    learnt = Calibration.of(found(made()))
    for transport, architecture in ARCHITECTURES.items():
        cluster = Cluster(4, 4 if transport == "tcp" else 0)
        middle, first, last = (
            Ground(learnt, rtt_s=1e-9).cost(architecture, cluster, {"ethernet": RATE_BPS / 8}, "float32", run).seconds(SIZES[1])
            for run in (None, 0, 4)
        )
        assert middle == pytest.approx(takes(transport, SIZES[1], 0.001, 0.9), rel=0.005)
        assert first < middle < last


def test_how_far_a_row_may_be_from_the_fit() -> None:
    """The middle row of the three takes 10 % longer than the line through the others; with two rows nothing is known."""
    rows = made()
    assert Calibration.of(found(rows)).fits["switchsum"].missed < 1e-3
    bent = replace_times(rows, 1, 1.10)
    assert 0.10 < Calibration.of(found(bent)).fits["switchsum"].missed < 0.20
    two = results(*[each for each in rows.series if each.size_bytes != SIZES[1]], links=rows.links)
    two.environment["cores"] = 2
    assert math.isnan(Calibration.of(found(two)).fits["switchsum"].missed)
    json.dumps(Calibration.of(found(two)).as_json(), allow_nan=False)


def replace_times(rows: Results, number: int, factor: float) -> Results:
    series = copy.deepcopy(rows.series)
    for each in series:
        if each.size_bytes == SIZES[number]:
            for run in each.runs:
                run.seconds = [[factor * seconds for seconds in worker] for worker in run.seconds]
    bent = results(*series, links=rows.links)
    bent.environment["cores"] = 2
    return bent


@pytest.mark.parametrize("transport", ["tcp", "gloo", "switchsum"])
@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.005, 1.0])
def test_what_a_token_bucket_lets_pass_is_found_again(transport: str, pause_s: float) -> None:
    """Sums as the replay has them, one after the other with a pause before each, calibrate to what the replay was made with."""
    architecture, servers = ARCHITECTURES[transport], 4 if transport == "tcp" else 0
    cluster, medium = Cluster(4, servers), Medium("ethernet", 0.002, RATE_BPS / 8, 0.9, BURST)
    cost = replace(costs.cost(architecture, cluster, {"ethernet": medium}), overlaps=transport == "gloo")
    rows = []
    for size in (4_096, 262_144, 1_048_576, 4_194_304):
        parts: list[replay.Part] = [(float(size), 0.0)]
        for _ in range(20):
            ended = replay.ends(parts, cost)[-1]
            parts.append((float(size), ended + pause_s))
        seconds = replay.ends(parts, cost)[-1] - parts[-1][1]
        row = series(
            "allreduce", transport, f"{size} B", size, seconds, workers=4, servers=servers, link_rate_bps=RATE_BPS,
            link_source="tbf", hosts=[0, 1, 2, 3] * (2 if servers else 1),
        )  # fmt: skip
        for run in row.runs:
            run.paused_s = pause_s * run.operations
        rows.append(row)
    learnt = Calibration.of(found(results(*rows, links=[{"link": {"burst_bytes": BURST}}])))
    fit = learnt.fits[transport]
    assert fit.efficiency is not None
    assert (fit.latency_s.mean, fit.efficiency.mean) == (pytest.approx(0.002, rel=0.02), pytest.approx(0.9, rel=0.02))
    assert fit.missed < 0.01
    assert learnt.burst_bytes == BURST


def test_a_file_without_pauses_is_told_of() -> None:
    links = [{"link": {"burst_bytes": BURST}}]
    notes = Calibration.of(found(results(*made().series, links=links))).notes
    assert [note for note in notes if "an older version wrote it: measure again" in note]


def test_sums_that_passed_on_credit_tell_nothing() -> None:
    rows = made()
    told = Calibration.of(found(rows)).fits["switchsum"]
    for each in rows.series:
        if each.size_bytes == SIZES[0]:  # in half the time, and with more than the link's rate
            for run in each.runs:
                run.seconds = [[seconds / 2 for seconds in worker] for worker in run.seconds]
                run.carried = [replace(one, sent_bytes=10 * one.sent_bytes) for one in run.carried]
    credited = results(*rows.series, links=rows.links)
    assert {row.limited_by for row in credited.rows if row.size_bytes == SIZES[0]} == {"burst"}
    learnt = Calibration.of(found(credited))
    fit = learnt.fits["switchsum"]
    assert (fit.rows, fit.efficiency.mean) == (2, pytest.approx(told.efficiency.mean, rel=0.01))
    assert f"0.json: switchsum {SIZES[0]} B: left out, since it passed at more than the link's rate" in " ".join(learnt.notes)
    alone = [each for each in rows.series if each.size_bytes == SIZES[0]]
    with pytest.raises(BadCalibration, match="switchsum: all sums passed on a token bucket's credit; measure larger sizes"):
        Calibration.of(found(results(*alone, links=rows.links)))


@pytest.mark.parametrize("transport", ["gloo", "switchsum"])
def test_a_small_row_that_the_processor_held_back_is_no_reason_to_doubt_the_rate(transport: str) -> None:
    small, large = (
        series("allreduce", transport, f"{size} B", size, takes(transport, size, 0.002, 0.5), workers=4, link_rate_bps=RATE_BPS)
        for size in (4_096, 16_777_216)
    )
    for run in small.runs:
        run.machine_busy_ticks = 10
    assert [row.limited_by for row in results(small, large).rows] == ["cpu", "-"]
    fit = Calibration.of(found(results(small, large))).fits[transport]
    assert (fit.rows, fit.cpu_limited) == (2, False)


def test_a_small_sum_that_took_longer_than_a_larger_one_is_no_accident() -> None:
    """As a delayed acknowledgement makes it; nothing but a wide fit comes of that."""
    times = {4_096: 0.2082, 29_500: 0.0996, 644_833: 4.866}
    rows = [
        series("allreduce", "gloo", f"{size} B", size, seconds, workers=4, link_rate_bps=RATE_BPS)
        for size, seconds in times.items()
    ]
    for row in rows:
        for run in row.runs:
            run.paused_s = 0.004 * run.operations
    learnt = Calibration.of(found(results(*rows, links=[{"link": {"burst_bytes": BURST}}])))
    assert learnt.fits["gloo"].missed > 0.1


def test_a_level_is_told_from_a_line() -> None:
    """Rows below the level's end do not bend the line, and rows above it do not lift the level."""
    sizes = (4_096, 16_384, 65_536, 262_144, 1_048_576)
    rows = [
        series("allreduce", "gloo", f"{size} B", size, takes("gloo", size, 0.002, 0.8), workers=4, link_rate_bps=RATE_BPS)
        for size in sizes
    ]
    assert results(*rows).rows[0].limited_by == "cpu"  # which is no reason to leave out what tells of latency
    fit = Calibration.of(found(results(*rows))).fits["gloo"]
    assert fit.latency_s.mean == pytest.approx(0.002)
    assert fit.efficiency.mean == pytest.approx(0.8)
    assert fit.missed < 1e-6
    large = Calibration.of(found(results(*rows[-2:]))).fits["gloo"]
    assert (large.latency_s.mean, large.efficiency.mean) == (0.0, pytest.approx(0.8))  # no row showed a latency


def test_small_sums_alone_tell_no_rate() -> None:
    """The processor held the large ones back, so the small ones, which wait for latency, would be all that is left."""
    sizes = (4_096, 65_536, 1_048_576, 4_194_304)
    rows = [
        series(
            "allreduce", "switchsum", f"{size} B", size, takes("switchsum", size, 0.002, 0.5), workers=4, link_rate_bps=RATE_BPS
        )
        for size in sizes
    ]
    for row in rows:
        for run in row.runs:
            run.machine_busy_ticks = 10 if row.size_bytes > 65_536 else 1
            run.usage = [replace(each, user_s=0.0, system_s=0.0) for each in run.usage]
    assert [row.limited_by for row in results(*rows).rows] == ["-", "-", "cpu", "cpu"]
    fit = Calibration.of(found(results(*rows))).fits["switchsum"]
    assert (fit.rows, fit.cpu_limited) == (4, True)
    assert fit.efficiency.mean == pytest.approx(0.5, rel=0.01)


def test_a_latency_below_zero_is_none() -> None:
    rows = sums("switchsum", -0.001, 0.9, 0.0, 1.0, RATE_BPS)[1:]
    fit = Calibration.of(found(results(*rows))).fits["switchsum"]
    assert fit.latency_s.mean == 0
    assert fit.efficiency is not None
    assert fit.efficiency.mean == pytest.approx(0.9, rel=0.02)


def test_links_without_a_rate_tell_no_efficiency() -> None:
    learnt = Calibration.of(found(made(rate_bps=None)))
    assert learnt.fits["gloo"].efficiency is None
    with pytest.raises(BadCalibration, match=r"gloo was measured over links without a rate, .* or say it with --efficiency"):
        learnt.medium("ring", 1e9)
    assert learnt.medium("ring", 1e9, efficiency=0.5).efficiency == 0.5


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            [results(*made().series[:1])],
            "0.json: nothing to calibrate with: gloo: rows of one size do not tell latency from rate",
        ),
        (
            [results(*(replace(each, wrong=1) for each in made().series))],
            "left out, since it was wrong or lost datagrams",
        ),
        (
            [results(*(replace(each, dtype="mixed") for each in made().series))],
            "left out: its numbers are of several types",
        ),
        (
            [results(series("p2p-latency", "tcp", "single", 10, 0.1))],
            "0.json is of p2p-latency: only sums (allreduce) calibrate",
        ),
        (
            [results(*(series("allreduce", "limit", f"{size} B", size, size / 1e7) for size in SIZES))],
            "no row is a sum by a transport that stands for an architecture",
        ),
        (
            [
                results(
                    *(series("allreduce", "gloo", f"{size} B", size, 10 - size / 1e7, link_rate_bps=10**8) for size in SIZES)
                )
            ],
            "gloo: times do not grow with size, so they tell no rate; measure larger sizes",
        ),
    ],
)
def test_what_nothing_can_be_learnt_from(files: list[Results], said: str) -> None:
    with pytest.raises(BadCalibration) as refused:
        Calibration.of(found(*files))
    assert said in str(refused.value)


def test_an_architecture_that_was_not_measured() -> None:
    learnt = Calibration.of(found(results(*sums("gloo", 0.001, 0.9, 0.001, 1.0, RATE_BPS))))
    with pytest.raises(BadCalibration) as refused:
        learnt.medium("switch", 1e9)
    assert str(refused.value) == (
        "switch is not calibrated: 0.json has no rows of switchsum to learn from; measure with `switchsum bench allreduce "
        "--transport switchsum --json FILE`, or leave switch out"
    )


def test_a_folder_of_results_is_read(tmp_path: Path) -> None:
    made().save(tmp_path / "sums.json")
    (tmp_path / "other.json").write_text("{}")
    learnt = Calibration.load(tmp_path)
    assert len(learnt.notes) == 1
    json.dumps(learnt.as_json(), allow_nan=False)
