"""Features files: what was saved is loaded, and what is wrong with those that are wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchsum.measure.features import BadFeatures, Bucket, Features
from tests.measure.made_features import features

FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WRONG = st.sampled_from([None, True, -1, 0, 1.5, "x", [], {}, float("nan"), float("inf"), 10**400, 1e308, [None], {"a": 1}])


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    made = features()
    made.save(tmp_path / "job.json")
    assert Features.load(tmp_path / "job.json") == made
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_what_follows_from_the_steps() -> None:
    made = features()
    assert made.mean_step_s == pytest.approx(0.4)
    assert made.exposed_share == pytest.approx(0.2)
    assert made.rest_s == pytest.approx((0.010,) * 5)


@FILES
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(content)
    with pytest.raises(BadFeatures):
        Features.load(path)


@FILES
@given(name=st.sampled_from([*Features.__dataclass_fields__, "schema"]), wrong=WRONG, inner=st.booleans())
def test_features_with_something_else_in_some_place_are_refused_or_right(
    name: str, wrong: Any, inner: bool, tmp_path: Path
) -> None:
    value = features().as_json()
    if inner and isinstance(value[name], list):
        value[name][0] = wrong
    else:
        value[name] = wrong
    path = tmp_path / "job.json"
    path.write_text(json.dumps(value))
    with suppress(BadFeatures):
        assert Features.load(path).as_json() == value


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "ringo"}, "architecture 'ringo' is unknown; there are 1w1g, "),
        ({"workers": 0}, "workers 0 is out of range: 1 to 1000000"),
        ({"flops": float("nan")}, "flops nan is out of range: 0 to 1e+24"),
        ({"dtype": "float31"}, "dtype 'float31' is unknown; there are uint8"),
        ({"gradient_bytes": 99}, "buckets add up to 100000000 bytes, more than gradient_bytes 99"),
        ({"step_s": ()}, "step_s must be a list of 1 to 1000000 times in seconds, one a step"),
        ({"input_s": (0.01,)}, "input_s has 1 steps, step_s 5; they must be as many"),
        ({"step_s": (0.1,) * 5}, "step 0: compute_s, input_s and exposed_s add up to 0.389 s, more than its step_s 0.1"),
        ({"link_bps": 0}, "link_bps 0 is out of range: above 0 to 1e+15"),
        ({"name": "a/b"}, "name 'a/b' is none: 1 to 64 letters"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFeatures) as refused:
        features(**changes)
    assert str(refused.value).startswith(said)


def test_a_wrong_place_in_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    value = features().as_json()
    value["buckets"][2]["ready_s"] = -1
    path.write_text(json.dumps(value))
    with pytest.raises(BadFeatures) as refused:
        Features.load(path)
    assert str(refused.value) == f"{path}: bucket 2: ready_s -1 is out of range: 0 to 1e+06"
    path.write_text('{"schema": "switchsum-payload/1"}')
    with pytest.raises(BadFeatures, match="write features with `switchsum profile`"):
        Features.load(path)
    with pytest.raises(BadFeatures, match="is no file with a job's features"):
        Features.load(tmp_path)


def test_a_bucket_is_checked() -> None:
    with pytest.raises(BadFeatures, match="size_bytes 0 is out of range"):
        Bucket(0, "float32", 0.0)
