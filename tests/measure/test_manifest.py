"""Payloads: the paper's schemes, files, SwitchML's lists of layers, and what is wrong with those that are wrong."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchsum.measure import manifest
from switchsum.measure.manifest import ITEM_BYTES, BadPayload, Buffer, Manifest, Step

SMALL, MEDIUM, LARGE = manifest.DEFAULT_SIZES.values()

FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def buffers(draw: st.DrawFn) -> Buffer:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    tensors = tuple(ITEM_BYTES[dtype] * count for count in draw(st.lists(st.integers(1, 10**6), max_size=4)))
    size = sum(tensors) or ITEM_BYTES[dtype] * draw(st.integers(1, 10**7))
    return Buffer(size, dtype, tensors, draw(st.none() | st.floats(0, 1e15)), draw(st.booleans()))


STEPS = st.builds(Step, st.lists(buffers(), min_size=1, max_size=5).map(tuple), st.integers(1, 10**9))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
MANIFESTS = st.builds(
    Manifest,
    st.from_regex(r"[a-z][A-Za-z0-9._+-]{0,20}", fullmatch=True),
    st.dictionaries(st.text(), JSON, max_size=3),
    st.lists(STEPS, min_size=1, max_size=3).map(tuple),
)


@FILES
@given(made=MANIFESTS)
def test_what_was_saved_is_loaded(made: Manifest, tmp_path: Path) -> None:
    made.save(tmp_path / "payload.json")
    assert Manifest.load(tmp_path / "payload.json") == made
    assert [path.name for path in tmp_path.iterdir()] == ["payload.json"]


def refuse_or_load(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with suppress(BadPayload):
        Manifest.load(path)


@FILES
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode), csv=st.booleans())
def test_garbage_is_refused(content: bytes, csv: bool, tmp_path: Path) -> None:
    refuse_or_load(content, tmp_path / ("payload.csv" if csv else "payload.json"))
    if csv:
        refuse_or_load(b"layer_index,numel,fwd_ns,bwd_ns\n" + content, tmp_path / "payload.csv")


@FILES
@given(made=MANIFESTS, data=st.data())
def test_a_payload_with_something_else_in_some_place_is_refused_or_right(
    made: Manifest, data: st.DataObject, tmp_path: Path
) -> None:
    value: Any = made.as_json()
    place = value
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON | st.just(float("nan")) | st.just(10**400))
    refuse_or_load(json.dumps(value).encode(), tmp_path / "payload.json")


def payload(**changes: Any) -> dict[str, Any]:
    """A payload's JSON with one step of two buffers; `changes` go to the second one."""
    second = {"size_bytes": 8, "dtype": "float32", "tensors": [4, 4], **changes}
    return {"schema": manifest.SCHEMA, "name": "p", "steps": [{"times": 2, "buffers": [{"size_bytes": 1}, second]}]}


BUFFER = "step 0: buffer 1: "
WRONG = [
    (payload(size_bytes=0), f"{BUFFER}size_bytes 0 is out of range: 1 to 17179869184"),
    (payload(size_bytes=-4), f"{BUFFER}size_bytes -4 is out of range: 1 to 17179869184"),
    (payload(size_bytes=True), f"{BUFFER}size_bytes True must be a whole number"),
    (payload(size_bytes="8"), f"{BUFFER}size_bytes '8' must be a whole number"),
    (payload(size_bytes=8.0), f"{BUFFER}size_bytes 8.0 must be a whole number"),
    (payload(size_bytes=10), f"{BUFFER}size_bytes 10 is no whole number of float32 (4 bytes each)"),
    (payload(size_bytes=12), f"{BUFFER}tensors add up to 8 bytes, size_bytes says 12"),
    (payload(dtype="float31"), f"{BUFFER}dtype 'float31' is unknown; there are {', '.join(ITEM_BYTES)}"),
    (payload(tensors=[8, 0]), f"{BUFFER}a size in tensors 0 is out of range: 1 to 17179869184"),
    (payload(tensors=8), f"{BUFFER}tensors must be a list, not 8"),
    (payload(at_us=-1), f"{BUFFER}at_us -1 is out of range: 0 to 1e15 microseconds"),
    (payload(at_us="soon"), f"{BUFFER}at_us 'soon' is no number of microseconds"),
    (payload(sparse=1), f"{BUFFER}sparse 1 must be true or false"),
    (payload(sise=1), "step 0: buffer 1 has 'sise', which is unknown; there are size_bytes, dtype, tensors, at_us, sparse"),
    ([], "FILE must be an object with schema, name, steps, not a list of 0"),
    ({"schema": manifest.SCHEMA, "name": "p"}, "FILE has no 'steps'"),
    ({**payload(), "name": "a/b"}, "'a/b' is no name: 1 to 64 letters, digits, dots, dashes, plus signs and underscores"),
    ({**payload(), "source": 1}, "source must be an object, not 1"),
    ({**payload(), "steps": []}, "the payload has 0 steps; it must have 1 to 100000"),
    ({**payload(), "steps": [{"buffers": []}]}, "step 0: it has 0 buffers; a step has 1 to 100000"),
    (
        {**payload(), "steps": [{"buffers": [{"size_bytes": 1}], "times": 0}]},
        "step 0: times 0 is out of range: 1 to 1000000000",
    ),
    (
        {**payload(), "steps": [{"buffers": [{"size_bytes": 9 << 30}] * 2}]},
        "step 0: its buffers add up to 19327352832 bytes; a step has at most 17179869184",
    ),
    (
        {**payload(), "schema": "switchsum-payload/2"},
        "schema 'switchsum-payload/2' is not 'switchsum-payload/1', which is all that this version reads; write one with "
        "`switchsum bench capture`",
    ),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_what_is_wrong_is_said_with_its_place(value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "payload.json"
    path.write_text(json.dumps(value))
    with pytest.raises(BadPayload) as caught:
        Manifest.load(path)
    expected = message.replace("FILE", str(path)) if "FILE" in message else f"{path}: {message}"
    assert str(caught.value) == expected


def test_files_that_are_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "payload.json"
    messages = {
        b"{": "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        b'{"at_us": NaN}': "is not JSON: NaN is no finite number",
        b"1e999": "is not JSON: 1e999 is no finite number",
        b"[" * 100_000: "is no payload: it is nested too deeply",
        b"\xff": "is no text (UTF-8): byte 0",
    }
    for content, message in messages.items():
        path.write_bytes(content)
        with pytest.raises(BadPayload) as caught:
            Manifest.load(path)
        assert str(caught.value) == f"{path} {message}"
    with pytest.raises(BadPayload, match="is no file with a payload"):
        Manifest.load(tmp_path)
    with pytest.raises(BadPayload, match="cannot be read: No such file or directory"):
        Manifest.load(tmp_path / "none.json")
    with pytest.raises(BadPayload, match="there is no such file, and no capture of that name; there are"):
        manifest.find("resnet51")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "payload.json"
    manifest.single(10).save(path)
    with pytest.raises(ValueError, match="JSON"):
        Manifest("p", {"nan": float("nan")}, (Step((Buffer(1),)),)).save(path)
    assert Manifest.load(path) == manifest.single(10)
    assert list(tmp_path.iterdir()) == [path]


def counts_of(made: Manifest) -> dict[int, int]:
    assert len(made.steps) == 1
    assert {buffer.dtype for buffer in made.usual.buffers} == {"uint8"}
    return dict(Counter(buffer.size_bytes for buffer in made.usual.buffers))


def test_the_papers_defaults() -> None:
    """Table 2; skew is 60 % Large, 30 % Medium, 10 % Small."""
    assert counts_of(manifest.from_scheme("uniform")) == {LARGE: 4, MEDIUM: 3, SMALL: 3}
    assert counts_of(manifest.from_scheme("skew")) == {LARGE: 6, MEDIUM: 3, SMALL: 1}
    assert counts_of(manifest.from_scheme("skew", bias="medium")) == {MEDIUM: 6, LARGE: 3, SMALL: 1}
    assert counts_of(manifest.from_scheme("skew", bias="small")) == {SMALL: 6, MEDIUM: 3, LARGE: 1}
    assert manifest.from_scheme("skew").usual.size_bytes == 6_030_010
    assert counts_of(manifest.from_scheme("uniform", 6, {"large": LARGE})) == {LARGE: 6}
    assert counts_of(manifest.from_scheme("skew", 10, {"small": 5, "large": LARGE})) == {LARGE: 6, 5: 4}
    assert counts_of(manifest.from_scheme("skew", 3)) == {LARGE: 2, MEDIUM: 1}
    assert manifest.from_scheme("skew", seed=7).source == {
        "scheme": "skew",
        "iovec_count": 10,
        "sizes": manifest.DEFAULT_SIZES,
        "seed": 7,
        "bias": "large",
    }


@given(
    scheme=st.sampled_from(manifest.SCHEMES),
    count=st.integers(2, 200),
    chosen=st.sets(st.sampled_from(sorted(manifest.RANGES)), min_size=2),
    seed=st.integers(0, manifest.LARGEST_SEED),
)
@settings(max_examples=60, deadline=None)
def test_schemes_are_fair_and_repeat(scheme: str, count: int, chosen: set[str], seed: int) -> None:
    sizes = {name: size for name, size in manifest.DEFAULT_SIZES.items() if name in chosen}
    bias = next(iter(sizes))
    made = manifest.from_scheme(scheme, count, sizes, bias, seed)
    assert made == manifest.from_scheme(scheme, count, dict(sizes), bias, seed)
    counts = counts_of(made)
    assert sum(counts.values()) == count
    assert set(counts) <= set(sizes.values())
    if scheme == "random":
        assert len(counts) >= 2
    else:
        order = [sizes[name] for name in manifest.SKEWED[bias] if name in sizes]
        shares = {2: (0.6, 0.4), 3: (0.6, 0.3, 0.1)}[len(order)] if scheme == "skew" else (1 / len(order),) * len(order)
        for size, share in zip(order, shares, strict=True):
            assert abs(counts.get(size, 0) - share * count) < 1


def test_a_seed_means_the_same_everywhere() -> None:
    """Pinned: what another machine or another Python draws must be this."""
    letters = {SMALL: "S", MEDIUM: "M", LARGE: "L"}
    drawn = {
        scheme: "".join(letters[size] for size in manifest.from_scheme(scheme, seed=1).usual.iovecs)
        for scheme in manifest.SCHEMES
    }
    assert drawn == {"uniform": "SSLLMMMLSL", "random": "SLLSMMMLSS", "skew": "SMLLLLMLML"}
    orders = {tuple(manifest.from_scheme("skew", seed=seed).usual.iovecs) for seed in range(20)}
    assert len(orders) > 10


def test_schemes_that_make_no_sense() -> None:
    one = {"large": LARGE}
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("even",), "scheme 'even' is unknown; there are uniform, random, skew"),
        (("uniform", 0), "0 buffers are out of range: 1 to 100000"),
        (("random", 10, one), "scheme random needs at least two categories; there is only large"),
        (("skew", 10, one), "scheme skew needs at least two categories; there is only large"),
        (("random", 1), "scheme random needs at least 2 buffers, one for each of two categories"),
        (("skew", 10, {"small": 1, "large": LARGE}, "medium"), "bias 'medium' is none of the chosen categories, small, large"),
        (("uniform", 10, {"small": 1000}), "small=1000: a small buffer has 1 B to below 1 KB"),
        (("uniform", 10, {"medium": 999}), "medium=999: a medium buffer has 1 KB to below 1 MB"),
        (("uniform", 10, {"large": 10_000_001}), "large=10000001: a large buffer has 1 MB to 10 MB"),
        (("uniform", 10, {"huge": 1}), "category 'huge' is unknown; there are small, medium, large"),
        (("uniform", 10, {}), "no category is chosen; there are small, medium, large"),
        (("uniform", 10, None, "large", -1), "seed -1 is out of range: 0 to 4294967295"),
    ]
    for arguments, message in cases:
        with pytest.raises(BadPayload) as caught:
            manifest.from_scheme(*arguments)
        assert str(caught.value) == message


def test_sizes_on_the_command_line() -> None:
    assert manifest.parse_sizes("small=10,medium=10KB,large=1MB") == manifest.DEFAULT_SIZES
    assert manifest.parse_sizes("large = 2 mb") == {"large": 2_000_000}
    assert manifest.parse_size("64KB") == 64_000
    wrong = {
        "small": "'small' is not CATEGORY=SIZE; write for example small=10,medium=10KB,large=1MB",
        "small=1,small=2": "small is given twice",
        "large=1MiB": "'1MiB' is not a size; write a whole number of B, KB or MB (decimal), such as 10, 10KB or 1MB",
        "large=1K": "'1K' is not a size; write a whole number of B, KB or MB (decimal), such as 10, 10KB or 1MB",
        "large=10": "large=10: a large buffer has 1 MB to 10 MB",
    }
    for text, message in wrong.items():
        with pytest.raises(BadPayload) as caught:
            manifest.parse_sizes(text)
        assert str(caught.value) == message
    with pytest.raises(BadPayload, match="the payload's size 0 is out of range"):
        manifest.single(0)


def test_steps_as_iovecs_and_as_buckets() -> None:
    step = Step((Buffer(12, "float32", (4, 8)), Buffer(10)))
    assert step.iovecs == [4, 8, 10]
    assert step.buckets == [Buffer(12, "float32", (4, 8)), Buffer(12, "float32")]
    assert manifest.histogram([1, 999, 1000, 999_999, 1_000_000, 10_000_000, 10_000_001]) == {
        "small": 2,
        "medium": 2,
        "large": 2,
        "above": 1,
    }


def test_the_usual_step_is_that_of_most_steps() -> None:
    first, other, usual = Step((Buffer(1),)), Step((Buffer(2),), 3), Step((Buffer(3, at_us=0.0),), 2)
    again = Step((Buffer(3, at_us=9.0),), 2)
    assert Manifest("p", {}, (first, usual, other, again)).usual_step == 3
    assert Manifest("p", {}, (first, other, usual)).usual == other
    assert Manifest("p", {}, (first, Step((Buffer(2),)))).usual_step == 1


def test_switchmls_lists_of_layers(tmp_path: Path) -> None:
    path = tmp_path / "alex net.csv"
    path.write_text("layer_index, numel, forward_pass_ns, backward_pass_ns\n0,10,1,500\n1,0,1,1000\n2,30,1,2000\n3,0,1,7\n\n")
    made = Manifest.load(path)
    assert made.name == "alex-net"
    assert made.source == {"switchml": "alex net.csv"}
    assert made.usual.buffers == (Buffer(120, "float32", at_us=0.0), Buffer(40, "float32", at_us=1.5))
    wrong = {
        "": "line 1 must be layer_index,numel,fwd_ns,bwd_ns, as in SwitchML's lists of layers",
        "layer_index,numel,f,b\n": "it has 0 buffers; a step has 1 to 100000",
        "layer_index,numel,f,b\n0,1,2\n": "line 2 is not four whole numbers, layer_index,numel,fwd_ns,bwd_ns",
        "layer_index,numel,f,b\n0,1,2,-3\n": "line 2 is not four whole numbers, layer_index,numel,fwd_ns,bwd_ns",
        "layer_index,numel,f,b\n0,99999999999999,2,3\n": "line 2: size_bytes 399999999999996 is out of range: 1 to 17179869184",
    }
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(BadPayload) as caught:
            Manifest.load(path)
        assert str(caught.value) == f"{path}: {message}"
