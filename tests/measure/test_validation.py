"""Predictions held against trainings: the judgement, the trainings, and `switchsum validate` from end to end."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from switchsum.bmv2_topologies import namespaces
from switchsum.measure import validation
from switchsum.measure.features import BadFeatures, Bucket, Features, together
from switchsum.measure.prediction import Interval
from switchsum.measure.rows import Figure
from switchsum.measure.validation import Forecast, Measured, Point, Validation, judge
from switchsum.measure.workloads import WORKLOADS
from tests.in_process import command_line
from tests.measure.made_features import features

ROOT = Path(__file__).resolve().parents[2]


def point(
    architecture: str, predicted_s: float, measured_s: float, ci95: float = 0.001, anchor: bool = False, wrong: int = 0
) -> Point:
    """Amdahl's guess is 1.5 s, that of no change 2 s."""
    step = Interval(predicted_s, 0.9 * predicted_s, 1.1 * predicted_s)
    forecast = Forecast("graph", architecture, 1e8, step, 0.1, 9.0, 1.5, 2.0, "link", anchor)
    return Point(forecast, Measured(Figure(measured_s, ci95, ()), 0.9, 0.5, "link", 0, wrong))


def judged(*points: Point) -> Validation:
    return Validation({}, {}, {}, [features()], [each.forecast for each in points], points=list(points))


def test_errors_are_over_what_was_measured_and_the_profile_itself_counts_in_no_mean() -> None:
    found = judge([point("ps", 1.1, 1.0), point("ring", 5.0, 1.0, anchor=True), point("switch", 0.7, 1.0)])
    assert (found["model"].mean, found["model"].worst) == pytest.approx((0.2, 0.3))
    assert (found["Amdahl"].mean, found["no change"].mean) == pytest.approx((0.5, 1.0))
    assert list(found) == ["model", "Amdahl", "no change"]


def test_only_pairs_that_can_be_told_apart_are_in_an_order() -> None:
    right = judge([point("ps", 3, 3.0), point("ring", 2, 2.0), point("switch", 1, 1.0)])["model"]
    assert (right.right, right.pairs, right.right_share) == (3, 3, 1.0)
    swapped = judge([point("ps", 1, 3.0), point("ring", 2, 2.0), point("switch", 3, 1.0)])["model"]
    assert (swapped.right, swapped.pairs) == (0, 3)
    alike = judge([point("ps", 1, 3.0, ci95=2.0), point("ring", 2, 2.0), point("switch", 3, 2.5, ci95=0.6)])["model"]
    assert alike.pairs == 0
    assert judge([point("ps", 3, 3.0), point("ring", 2, 2.0)])["no change"].right == 0  # it says that they are equal
    elsewhere = replace(point("switch", 1, 1.0), forecast=replace(point("switch", 1, 1.0).forecast, rate_bps=2e8))
    assert judge([point("ps", 3, 3.0), elsewhere])["model"].pairs == 0


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=6))
def test_what_is_predicted_exactly_has_no_error(times: list[float]) -> None:
    found = judge([point(f"a{number}", each, each, ci95=0.0) for number, each in enumerate(times)])["model"]
    assert (found.mean, found.worst, found.right) == (0.0, 0.0, found.pairs)


def test_each_aim_that_is_missed_is_told() -> None:
    assert judged(point("ps", 3.0, 3.1), point("switch", 1.0, 1.05)).missed() == []
    told = judged(point("ps", 1.3, 1.0), point("ring", 1.0, 1.3), point("switch", 1.2, 1.1, wrong=4)).missed()
    assert [each.split()[0] for each in told] == ["mean", "worst", "0", "4"]
    assert "a naive guess has a smaller mean error" in judged(point("ps", 1.6, 1.5)).missed()


def test_files_hold_every_point_and_no_nan(tmp_path: Path) -> None:
    found = judged(point("ps", 1.1, 1.0, ci95=float("nan")), point("ring", 1.0, 1.0, anchor=True))
    found.save(tmp_path / "validation.json")
    written = json.loads((tmp_path / "validation.json").read_text())
    assert written["schema"] == validation.SCHEMA
    assert written["points"][0]["measured"]["step"]["ci95"] is None
    assert written["errors"]["model"]["mean"] == pytest.approx(0.1)
    lines = io.StringIO()
    validation.write_csv(lines, found.points)
    rows = list(csv.DictReader(io.StringIO(lines.getvalue())))
    assert [(row["architecture"], row["profiled_here"], float(row["error"])) for row in rows] == [
        ("ps", "False", pytest.approx(0.1)), ("ring", "True", 0.0)
    ]  # fmt: skip


def rank(compute_s: tuple[float, ...], exposed_s: tuple[float, ...], ready_s: float) -> Features:
    steps = [c + e + 0.01 for c, e in zip(compute_s, exposed_s, strict=True)]
    return features(
        compute_s=compute_s, exposed_s=exposed_s, step_s=tuple(steps), input_s=(0.0,) * len(steps), forward_s=0.0,
        backward_s=min(compute_s), buckets=(Bucket(100_000_000, "float32", ready_s),),
    )  # fmt: skip


def test_a_jobs_step_is_the_slowest_ranks_without_its_waiting() -> None:
    both = together([rank((0.2, 0.5), (0.7, 0.4), 0.1), rank((0.4, 0.3), (0.5, 0.6), 0.15)])
    assert both.compute_s == (0.4, 0.5)
    assert both.exposed_s == (0.5, 0.4)
    assert both.step_s == pytest.approx((0.91, 0.91))
    assert both.buckets[0].ready_s == 0.15
    assert together([rank((0.2,), (0.1,), 0.1)]).compute_s == (0.2,)
    with pytest.raises(BadFeatures, match="workers is 4 of one rank and 8 of another"):
        together([features(), features(workers=8)])
    with pytest.raises(BadFeatures, match="different numbers of steps"):
        together([rank((0.2,), (0.1,), 0.1), rank((0.2, 0.2), (0.1, 0.1), 0.1)])


def summing(*sizes: int, dtype: str = "float32", tables: int = 1000) -> Features:
    buckets = tuple(Bucket(size, dtype, 0.01 * (number + 1)) for number, size in enumerate(sizes))
    return features(buckets=buckets, gradient_bytes=sum(sizes), embedding_parameter_bytes=tables)


@pytest.mark.parametrize(
    ("ranks", "largest"),
    [
        (((64, 5000), (96, 5000)), (96, 5000)),
        (((64, 5000, 32), (96, 5000, 8), (8, 5000, 64)), (96, 5000, 64)),
        (((5000, 32), (64, 5000, 8)), (64, 5000, 32)),  # rank 0 touched no row of the first table
        (((64, 5000), (5000,), (96, 5000)), (96, 5000)),
        (((64, 32, 5000, 4000), (96, 5000, 4000)), (96, 32, 5000, 4000)),
        (((64, 5000), (5000, 8)), None),  # no rank has both tables
        (((5000,), ()), None),
        (((64, 5000), (64, 5008)), None),
        (((64, 600, 600), (64,)), None),  # more than the tables
    ],
)
def test_ranks_touch_other_rows_of_sparse_gradients(
    ranks: tuple[tuple[int, ...], ...], largest: tuple[int, ...] | None
) -> None:
    for order in (ranks, ranks[::-1]):
        each = [summing(*sizes) for sizes in order]
        if largest is None:
            with pytest.raises(BadFeatures, match="which sparse gradients do not explain: embedding tables have 1000"):
                together(each)
        else:
            job = together(each)
            assert tuple(bucket.size_bytes for bucket in job.buckets) == largest
            assert job.gradient_bytes == sum(largest)


def test_what_is_in_no_bucket_and_what_is_of_another_type() -> None:
    assert together([replace(summing(64), gradient_bytes=100), replace(summing(96), gradient_bytes=132)]).gradient_bytes == 132
    with pytest.raises(BadFeatures, match="gradient_bytes beyond buckets are 36 of one rank and 37 of another"):
        together([replace(summing(64), gradient_bytes=100), replace(summing(64), gradient_bytes=101)])
    for other in (summing(64, dtype="float16"), summing(64, 32, dtype="float16")):
        with pytest.raises(BadFeatures, match="buckets of different types: not one job"):
            together([summing(64), other])


def test_there_is_a_workload_of_each_kind() -> None:
    assert list(WORKLOADS) == list(validation.KINDS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_learns_the_same_from_the_same_seed(name: str) -> None:
    """And every parameter has a gradient: what DistributedDataParallel would wait for, were it missing."""
    chosen = WORKLOADS[name]
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        model, batches = chosen.model(), chosen.batches(seed=5)
        loss = model(*next(batches))
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(each is not None and each.isfinite().all() for each in gradients)
        assert not list(model.buffers())  # which would travel as well
        found.append((loss.item(), [each.abs().sum().item() for each in gradients if each is not None]))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-4)  # several threads may add in another order


def validate(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; its exit status."""
    return command_line(monkeypatch, "validate", *arguments)


RACK = str(ROOT / "bmv2_topologies" / "racks" / "two.yaml")


@pytest.mark.skipif(namespaces.what_is_missing() is not None, reason=f"racks: {namespaces.what_is_missing()}")
def test_from_calibration_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All three architectures; whether predictions are right on a machine that runs tests is not judged here."""
    folder = tmp_path / "made"
    chosen = ["--workload", "recommendation", "--calibrate", "2G", "--rate", "2G"]
    quick = ["--repeat", "2", "--duration", "0.05", "--steps", "2"]
    assert validate(["--rack", RACK, "--output", str(folder), *chosen, *quick], monkeypatch) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.startswith("recommendation")]
    assert [row[1] for row in rows] == ["ps", "ring", "switch"]
    assert [row[3].endswith("*") for row in rows] == [False, True, False]
    written = json.loads((folder / "validation.json").read_text())
    assert written["complete"]
    assert all(each["measured"]["wrong"] == 0 for each in written["points"])
    forecasts = json.loads((folder / "forecasts.json").read_text())
    assert [each["forecast"] for each in written["points"]] == forecasts
    assert Features.load(folder / "features" / "recommendation.json").workers == 2
    assert "2 predictions" in printed
    names = {each.name for each in folder.iterdir()}
    assert names == {
        "index.html", "validation.json", "points.csv", "predicted-measured.png", "errors.png", "calibration.json", "features",
        "forecasts.json",
    }  # fmt: skip
    assert not [each for each in namespaces.names() if each.startswith(f"switchsum.bench-{os.getpid()}")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "switch"], "profiled over a ring; add it"),
        (["--arch", "ring,tree"], "--arch tree: there are ps, ring, switch"),
        (["--workload", "chess"], "--workload chess: there are convolution"),
        (["--rate", "fast"], "--rate"),
        (["--calibrate", "fast"], "--calibrate"),
        (["--rate", "1G", "--rate", "1000M"], "are the same"),
        (["--repeat", "1"], "an interval needs two"),
        (["--servers", "9"], "--servers 9: must be from 1 to the number of workers, 2"),
        (["--steps", "1"], "--steps 1"),
        (["--duration", "nan"], "--duration nan"),
        (["--placement", "far"], "--placement far"),
        (["--timeout", "0"], "--timeout 0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(["--rack", RACK, "--output", str(tmp_path / "made"), *arguments], monkeypatch) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_folder_that_exists_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(["--rack", RACK, "--output", str(tmp_path)], monkeypatch) == 2
    assert "exists already: name a new folder" in capsys.readouterr().err
