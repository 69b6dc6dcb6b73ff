"""`switchsum analyze`: readers, times, shares and pages, on traces of real runs and on made-up ones whose times are known."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.measure import analysis_table, breakdown, matching, spans
from switchsum.measure.analysis import Analysis
from switchsum.measure.breakdown import Parts, StepTimes
from switchsum.measure.spans import Spans
from switchsum.measure.traces import execution, folder, kineto, names, stream
from switchsum.measure.traces.stream import BadTrace
from tests.in_process import command_line
from tests.measure.made_features import features
from tests.measure.made_traces import (
    NCCL,
    STEP_US,
    WORKER,
    Event,
    event,
    gloo,
    kernel,
    metadata,
    nccl_events,
    operator,
    steps,
    write,
)
from tests.measure.test_report import self_contained

TRACES = Path(__file__).resolve().parent / "traces"
US = 1e-6

# ---- sets of times -------------------------------------------------------------------------------------------------------

_END = 40
intervals = st.lists(st.tuples(st.integers(0, _END), st.integers(0, 9)), max_size=12)


def made(some: Sequence[tuple[int, int]]) -> Spans:
    return spans.union([begin for begin, _ in some], [begin + duration for begin, duration in some])


def moments(some: Sequence[tuple[int, int]]) -> set[int]:
    """The unit-long moments that intervals cover."""
    return {moment for begin, duration in some for moment in range(begin, begin + duration)}


def covered(some: Spans) -> set[int]:
    assert (some[:, 1] > some[:, 0]).all()
    assert (some[1:, 0] > some[:-1, 1]).all()  # those that touch are one
    return {moment for begin, end in some for moment in range(int(begin), int(end))}


@given(intervals, intervals, st.integers(0, _END), st.integers(0, 20))
def test_sets_of_times_are_sets_of_moments(
    one: list[tuple[int, int]], other: list[tuple[int, int]], begin: int, width: int
) -> None:
    a, b = made(one), made(other)
    assert covered(a) == moments(one)
    assert covered(spans.together(a, b)) == moments(one) | moments(other)
    assert covered(spans.both(a, b)) == moments(one) & moments(other)
    assert covered(spans.without(a, b)) == moments(one) - moments(other)
    assert covered(spans.clip(a, begin, begin + width)) == moments(one) & set(range(begin, begin + width))
    assert spans.length(a) == len(moments(one))


# ---- a step of known times -----------------------------------------------------------------------------------------------


def times_of(path: Path) -> list[StepTimes]:
    trace = kineto.read(path)
    return breakdown.steps(trace, Parts.of(trace, {}))


pieces = st.lists(st.tuples(st.integers(0, STEP_US - 60), st.integers(1, 60)), max_size=8)


@given(pieces, pieces, pieces, pieces)
def test_every_moment_of_a_step_counts_once(
    tmp_path_factory: pytest.TempPathFactory,
    computed: list[tuple[int, int]],
    loaded: list[tuple[int, int]],
    summed: list[tuple[int, int]],
    strange: list[tuple[int, int]],
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.json"
    events = steps(1)
    events += [operator(*each) for each in computed]
    events += [operator(begin, duration, thread=99) for begin, duration in loaded]  # a thread that does not train
    events += [event("user_annotation", "enumerate(DataLoader)#next", *each) for each in loaded]
    events += [event("user_annotation", "gloo:all_reduce", *each, WORKER) for each in summed]
    events += [event("user_annotation", "otherccl:allreduce", *each, WORKER) for each in strange]
    (found,) = times_of(write(path, events))
    loading = moments(loaded)
    computing = moments(computed) - loading  # what DataLoader does is input
    communicating = moments(summed)
    exposed = communicating - computing - loading
    unknown = moments(strange) - communicating - computing - loading
    assert found.step_s == pytest.approx(STEP_US * US)
    assert found.compute_s == pytest.approx(len(computing) * US)
    assert found.input_s == found.loading_s == pytest.approx(len(loading) * US)
    assert found.communication_s == pytest.approx(len(communicating) * US)
    assert found.exposed_s == pytest.approx(len(exposed) * US)
    assert found.overlapped_s == pytest.approx(len(communicating - exposed) * US)
    assert found.unclassified_s == pytest.approx(len(unknown) * US)
    together = found.compute_s + found.input_s + found.exposed_s + found.unclassified_s + found.other_s
    assert together == pytest.approx(found.step_s)
    assert found.exposed_share == pytest.approx(len(exposed) / STEP_US)
    plain = len(computing) + len(loading) + len(communicating)
    assert found.pai_share == pytest.approx(len(communicating) / plain if plain else 0)


@given(st.integers(0, 300), st.integers(0, 400), st.integers(1, 300))
def test_an_added_delay_of_communication_is_what_the_exposed_share_rises_by(
    tmp_path_factory: pytest.TempPathFactory, computed: int, length: int, delay: int
) -> None:
    """A sum that is issued when backward is at its middle, and that the step waits for."""
    path = tmp_path_factory.getbasetemp() / "delay.json"

    def exposed(more: int) -> float:
        busy = operator(0, computed)
        return times_of(write(path, [*steps(1), busy, *gloo(computed // 2, max(length, computed) + more)]))[0].exposed_share

    assert exposed(delay) - exposed(0) == pytest.approx(delay / STEP_US)


def test_nested_operators_count_once_and_a_wait_inside_autograd_is_no_computation(tmp_path: Path) -> None:
    wrapper = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    events = [
        *steps(1),
        operator(0, 100, "aten::linear"),
        operator(10, 80, "aten::addmm"),
        operator(200, 300, wrapper),  # computes until 250, sums and waits, then 10 of a real operator
        *gloo(250, 200),
        operator(470, 10, "aten::copy_"),
        operator(600, 50, "aten::mm", thread=5),  # a thread of autograd's counts, for it has the wrapper
        operator(590, 70, "autograd::engine::evaluate_function: MmBackward0", thread=5),
        operator(600, 300, "aten::pin_memory", thread=6),  # any other does not
    ]
    (found,) = times_of(write(tmp_path / "rank0.json", events))
    assert found.compute_s == pytest.approx((100 + 50 + 10 + 70) * US)
    assert found.exposed_s == pytest.approx(200 * US)


@pytest.mark.parametrize("size", [1, None])
def test_one_rank_communicates_nothing(tmp_path: Path, size: int | None) -> None:
    """Neither in a job of one rank, nor in a group of one."""
    if size is None:
        write(tmp_path / "rank0.json", [*steps(2), *gloo(100, 200)], world=1)
    else:
        write(tmp_path / "rank0.json", [*steps(2), kernel(100, 200, NCCL, **metadata(ranks=[0]))])
    analysis = Analysis.of(folder.read(tmp_path), "here")
    assert analysis.whole.figure("exposed_share").mean == analysis.whole.figure("pai_share").mean == 0
    assert analysis.collectives == []
    assert "collectives of groups of one rank move nothing, and are no communication: 1 are left out" in analysis.notes


def test_communication_of_unknown_kinds_is_told_and_is_no_computation(tmp_path: Path) -> None:
    strange = "void vllm::cross_device_reduce_1stage<float, 2>(RankData*)"
    events = [*steps(2), kernel(0, 100), kernel(200, 50, strange), kernel(300, 10, "void at::native::reduce_kernel<512>()")]
    write(tmp_path / "rank0.json", events)
    analysis = Analysis.of(folder.read(tmp_path), "here")
    first = analysis.ranks[0].steps[0]
    assert first.compute_s == pytest.approx(110 * US)
    assert first.unclassified_s == pytest.approx(50 * US)
    assert first.exposed_s == 0
    assert f"# unclassified: {strange}: 0.02500 ms a step" in analysis_table.lines(analysis)


def test_a_copy_to_the_device_inside_a_sum_on_the_host_is_no_input(tmp_path: Path) -> None:
    copies = [event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin, 20, 7) for begin in (10, 180)]
    (found,) = times_of(write(tmp_path / "rank0.json", [*steps(1), *gloo(100, 100), kernel(40, 30), *copies]))
    assert (found.input_s, found.exposed_s) == (pytest.approx(20 * US), pytest.approx(100 * US))


def test_collectives_without_a_length_are_told(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [*steps(1), event("cpu_op", "c10d::allreduce_", 5, 2), operator(0, 10)], backend="mpi")
    (note,) = [each for each in Analysis.of(folder.read(tmp_path), "here").notes if "issued" in each]
    assert note.startswith(
        "collectives were issued (c10d::allreduce_ 1 times), but nothing in the traces tells how long they took"
    )


# ---- NCCL, by hand -------------------------------------------------------------------------------------------------------


def hand_written_nccl(path: Path) -> Analysis:
    for rank in (0, 1):
        write(path / f"rank{rank}.json", nccl_events(rank), rank, backend="nccl")
    return Analysis.of(folder.read(path), "by hand")


def test_nccl_by_hand(tmp_path: Path) -> None:
    analysis = hand_written_nccl(tmp_path)
    early, late = (each.steps for each in analysis.ranks)
    for step in early:
        assert step.compute_s == pytest.approx(500 * US)
        assert step.input_s == pytest.approx(100 * US)
        assert step.communication_s == pytest.approx(500 * US)
        assert (step.wait_s, step.transfer_s) == (pytest.approx(100 * US), pytest.approx(400 * US))
        assert step.overlapped_s == pytest.approx(200 * US)
        assert step.exposed_s == pytest.approx(300 * US)
        assert step.exposed_wait_s == 0  # it waits while it computes
        assert step.pai_share == pytest.approx(400 / (100 + 500 + 400))
    for step in late:
        assert step.wait_s == 0
        assert step.exposed_s == pytest.approx(300 * US)
    (row,) = analysis.collectives
    assert (row.collective, row.ranks, row.size_bytes, row.dtype, row.a_step) == ("allreduce", 2, 1_000_000, "Float", 1)
    assert row.time_s == pytest.approx(450 * US)
    assert (row.transfer_s, row.wait_s) == (pytest.approx(400 * US), pytest.approx(50 * US))
    assert row.algbw == row.busbw == pytest.approx(2.5)  # GB/s; 2(n-1)/n of two ranks is 1


def test_durations_need_no_common_clock(tmp_path: Path) -> None:
    """Rank 1's clock is 3 s ahead; what each rank did is the same, and the difference is told."""
    for rank in (0, 1):
        moved = [{**each, "ts": each["ts"] + 3e6 * rank} for each in nccl_events(rank)]
        write(tmp_path / f"rank{rank}.json", moved, rank, backend="nccl", baseTimeNanoseconds=10**18)
    moved_by = Analysis.of(folder.read(tmp_path), "moved")
    (tmp_path / "as it was").mkdir()
    expected = hand_written_nccl(tmp_path / "as it was")
    for one, other in zip(moved_by.ranks, expected.ranks, strict=True):
        for name in breakdown.TIMES:
            assert one.figure(name).mean == pytest.approx(other.figure(name).mean, abs=1e-9)
    assert moved_by.clocks is not None
    assert moved_by.clocks.offset_us == pytest.approx({0: 0, 1: 3e6})
    assert moved_by.clocks.residual_largest_us == pytest.approx(0, abs=0.01)


def test_all_of_a_group_must_be_there_to_tell_who_waits(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", nccl_events(0), 0, backend="nccl")
    alone = Analysis.of(folder.read(tmp_path), "here")
    assert alone.whole.figure("wait_s").mean == 0
    assert "traces of 1 of 2 ranks: what ranks wait for peers is counted as transfer" in alone.notes
    write(tmp_path / "rank1.json", [each for each in nccl_events(1) if "nccl" not in each["name"]], 1, backend="nccl")
    analysis = Analysis.of(folder.read(tmp_path), "here")
    assert any(note.startswith("2 collectives have no partner of the same size") for note in analysis.notes)


@pytest.mark.parametrize(
    ("told", "size", "ranks"),
    [
        ("[0, 1, 2]", 3, (0, 1, 2)),
        ([4, 5], 2, (4, 5)),
        ("[0, 8, 16, ..., 56]", 8, tuple(range(0, 64, 8))),
        ("[0, 1, 2, ...]", 6, (0, 1, 2, 3, 4, 5)),
        ("[0, 1, 2, ..., 9]", 6, None),  # the last one disagrees
        ("[3, ...]", 6, None),
        ("[0, 1]", 3, None),
        (None, 2, None),
    ],
)
def test_lists_of_ranks_that_were_cut_short(told: object, size: int, ranks: tuple[int, ...] | None) -> None:
    assert kineto.group_ranks(told, size) == ranks


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("all_reduce", "allreduce"),
        ("allreduce_coalesced", "allreduce"),
        ("AllReduce_Sum_f32_RING_LL", "allreduce"),
        ("_allgather_base", "allgather"),
        ("all_gather_single", "allgather"),
        ("_reduce_scatter_base", "reducescatter"),
        ("ReduceScatter_Sum_bf16", "reducescatter"),
        ("all_to_allv", "alltoall"),
        ("Reduce_Sum_f32", "reduce"),
        ("sparse_all_reduce", "allreduce"),
        ("SendRecv", "send"),
        ("", "unknown"),
    ],
)
def test_collectives_have_one_name(name: str, collective: str) -> None:
    assert names.collective(name) == collective


@pytest.mark.parametrize(
    ("name", "of_range", "is_one"),
    [
        ("spyreccl:allreduce", True, True),
        ("mpi:all_reduce", True, True),
        ("my all_reduce experiment", True, False),  # a person's own words
        ("nvshmem_put_kernel", False, True),
        ("rcclGenericKernel", False, True),
        ("void at::native::reduce_kernel<512>()", False, False),
        ("aten::broadcast_tensors", False, False),
        ("void accelerated_gemm()", False, False),
    ],
)
def test_what_looks_like_communication(name: str, of_range: bool, is_one: bool) -> None:
    assert names.looks_like_communication(name, of_range) is is_one


# ---- real traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "collectives"), [("gloo", 15), ("switchsum", 15)])
def test_real_traces(backend: str, collectives: int) -> None:
    """Two ranks, three steps, in each two buckets, a sum, a broadcast, a barrier; rank 1 computes more, so rank 0 waits."""
    job = folder.read(TRACES / backend)
    assert [len(trace.operations) for trace in job.traces.values()] == [collectives, collectives]
    matched = matching.match(job.traces)
    assert (len(matched.together), matched.unmatched) == (collectives, 0)
    analysis = Analysis.of(job, backend)
    assert (analysis.world_size, analysis.backend, analysis.device) == (2, backend, False)
    sizes = {(row.collective, row.size_bytes): row.a_step for row in analysis.collectives}
    buckets = {("allreduce", 4 * 65_792): 1, ("allreduce", 4 * 197_633): 1}
    assert sizes.items() >= {**buckets, ("allreduce", 4): 1, ("broadcast", 80): 1}.items()
    assert all(row.ranks == 2 for row in analysis.collectives)
    for rank in analysis.ranks:
        assert [step.number for step in rank.steps] == [2, 3, 4]
        for step in rank.steps:
            parts = (step.compute_s, step.input_s, step.exposed_s, step.unclassified_s, step.other_s)
            assert all(part >= 0 for part in parts)
            assert sum(parts) == pytest.approx(step.step_s)
            assert step.exposed_s + step.overlapped_s == pytest.approx(step.communication_s)
            assert min(step.compute_s, step.input_s, step.exposed_s) > 0
            assert step.unclassified_s == 0
    waited = [each.figure("wait_s").mean for each in analysis.ranks]
    assert waited[0] > waited[1]
    assert analysis.clocks is not None  # of one machine: they are one clock
    assert abs(analysis.clocks.offset_us[1]) < 1000


def events_of(path: Path) -> list[Event]:
    with gzip.open(path, "rt") as opened:
        return [each for each in json.load(opened)["traceEvents"] if each["ph"] == "X"]


def test_other_tools_find_the_metadata_of_our_collectives() -> None:
    """What HTA and TraceLens read of a collective, under the names and in the forms that they read.

    Both look at GPU kernels alone, so they list no sums on a CPU by themselves; what they ask of an event is in ours.
    """
    issued = {}
    for rank in (0, 1):
        issued[rank] = [
            each["args"]
            for each in events_of(TRACES / "switchsum" / f"rank{rank}.json.gz")
            if "Collective name" in each["args"]
        ]
    # HTA's communication arguments (hta/configs: nccl::...), with the types that it converts to.
    kinds = {
        "Collective name": str, "In msg nelems": int, "Out msg nelems": int, "dtype": str, "Group size": int, "Rank": int,
        "In split size": str, "Out split size": str, "Process Group Name": str, "Process Group Ranks": str, "Seq": int,
    }  # fmt: skip
    for rank, listed in issued.items():
        for arguments in listed:
            assert {name: type(arguments.get(name)) for name in kinds} == kinds
            assert (arguments["Group size"], arguments["Rank"]) == (2, rank)
    # TraceLens matches by group and order, wants equal metadata on all ranks, and knows sizes of these dtypes.
    sizes = {"Float": 4, "Int": 4, "Long": 8, "BFloat16": 2, "Bool": 1, "Byte": 1, "Double": 8, "Half": 2, "Short": 2}
    fields = ("Process Group Name", "Process Group Ranks", "Collective name", "Group size", "dtype", "In msg nelems", "Seq")
    rows = [[tuple(arguments[name] for name in fields) for arguments in issued[rank]] for rank in (0, 1)]
    assert rows[0] == rows[1]
    sums = [arguments for arguments in issued[0] if arguments["Collective name"] == "allreduce"]
    assert [sizes[each["dtype"]] * each["In msg nelems"] for each in sums] == 3 * [790_532, 263_168, 4]
    assert {arguments["Collective name"] for arguments in issued[0]} == {"allreduce", "broadcast", "barrier"}
    numbers = [arguments["Seq"] for arguments in issued[0]]
    assert numbers == list(range(numbers[0], numbers[0] + 15))
    ranges = [
        each["name"] for each in events_of(TRACES / "switchsum" / "rank0.json.gz") if each["name"].startswith("switchsum:")
    ]
    assert sorted(ranges) == 9 * ["switchsum:all_reduce"] + 3 * ["switchsum:barrier"] + 3 * ["switchsum:broadcast"]


def test_an_execution_trace_tells_sizes_that_a_trace_lacks(tmp_path: Path) -> None:
    found = execution.read(TRACES / "gloo" / "et0.json.gz")
    assert (found.schema, found.rank) == ("1.1.1-chakra.0.0.4", 0)
    bare = [
        {**each, "args": {name: value for name, value in each["args"].items() if not name.startswith("Input")}}
        for each in events_of(TRACES / "gloo" / "rank0.json.gz")
    ]
    write(tmp_path / "rank0.json", bare)
    assert {each.size_bytes for each in kineto.read(tmp_path / "rank0.json").operations} == {None}
    shutil.copy(TRACES / "gloo" / "et0.json.gz", tmp_path)
    job = folder.read(tmp_path)
    described = [(each.collective, each.size_bytes) for each in job.traces[0].operations]
    expected = [(each.collective, each.size_bytes) for each in kineto.read(TRACES / "gloo" / "rank0.json.gz").operations]
    assert described == expected
    assert any(note.endswith("sizes of 12 collectives of rank 0 are from it") for note in job.notes)


# ---- files that are no traces --------------------------------------------------------------------------------------------

_SMALL = '{"a": 1, "traceEvents": [{"x": 12.5, "y": "q\\u00e9"}, 3, 44, -1.5e3, true, [1, [2]], {}], "b": {"c": null}}'


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_list_is_read_entry_by_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(stream, "_PIECE", piece)
    path = tmp_path / "small.json"
    path.write_text(_SMALL)
    entries: list[Any] = []
    assert stream.read_object(path, {"traceEvents": entries.append}) == {"a": 1, "traceEvents": True, "b": {"c": None}}
    assert entries == json.loads(_SMALL)["traceEvents"]
    for length in range(len(_SMALL)):
        path.write_text(_SMALL[:length])
        with pytest.raises(BadTrace):
            stream.read_object(path, {"traceEvents": lambda _: None})


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_PIECE", 1 << 16)
    skipped = [event("python_function", "threading.py(982): run", n, 1, **{"Python id": n, "Ev Idx": n}) for n in range(20_000)]
    path = write(tmp_path / "rank0.json", [*steps(1), *skipped])
    tracemalloc.start()
    kineto.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def analyze(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    return command_line(monkeypatch, "analyze", *arguments)


def _packed(path: Path) -> bytes:
    return gzip.compress(write(path / "rank0.json", [*steps(1), operator(0, 5)]).read_bytes())


def _event(**fields: Any) -> Callable[[Path], bytes]:
    return lambda path: write(path / "rank0.json", [*steps(1), {**operator(0, 5), **fields}]).read_bytes()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda _: b"", "rank0.json is empty; copy it again, or profile again"),
        (lambda _: b"not json", "rank0.json is no trace: it is no JSON object"),
        (lambda _: b'{"traceEvents": [{"ph"', "rank0.json is cut off at character 17; copy it again, or profile again"),
        (
            lambda _: b'{"traceEvents": [{"ph" 4, "name": "' + 99 * b"x" + b'"}]}',
            "rank0.json is damaged at character 17: that is",
        ),
        (lambda _: b'{"traceEvents": ' + 9000 * b"[", "rank0.json is damaged"),
        (lambda _: b"\xff\xfe\x00", "rank0.json is no trace: it is not text in UTF-8"),
        (lambda path: _packed(path)[:-9], "rank0.json is cut off or damaged (gzip: "),
        (lambda path: _packed(path)[:12] + b"\x00\xff" * 20, "rank0.json is cut off or damaged (gzip: "),
        (
            lambda path: write(path / "rank0.json", []).read_bytes(),
            "rank0.json has no steps (ProfilerStep#N): call the profiler's",
        ),
        (lambda path: write(path / "rank0.json", [*steps(1), *steps(1)]).read_bytes(), "ProfilerStep#3 is in it twice"),
        (_event(ts=math.nan), "rank0.json is damaged: event 2 (aten::mm) has no time: ts nan, dur 5; profile again"),
        (_event(dur=-1), "event 2 (aten::mm) has no time: ts 0, dur -1"),
        (_event(ts="now"), "event 2 (aten::mm) has no time: ts 'now', dur 5"),
        (
            lambda _: b'{"traceEvents": [], "a": ' + 5000 * b"9" + b"}",
            "rank0.json is damaged at character 25: that is not JSON",
        ),
        (_event(name="\ud800", ts=None), "event 2 (?) has no time: ts None, dur 5"),
        (_event(name=None), "rank0.json is damaged: event 2 has no name; profile again"),
        (lambda _: b'{"traceEvents": [7]}', "rank0.json is damaged: event 1 is no object; profile again"),
        (
            lambda _: b'{"schema": "switchsum-bench/2"}',
            "rank0.json is no trace of torch.profiler: it has no traceEvents); make them with",
        ),
    ],
)
def test_files_that_are_damaged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: Callable[[Path], bytes],
    sentence: str,
) -> None:
    (tmp_path / "traces").mkdir()
    written = content(tmp_path)
    (tmp_path / "traces" / "rank0.json").write_bytes(written)
    assert analyze(monkeypatch, tmp_path / "traces") == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_folders_that_have_no_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze(monkeypatch, tmp_path / "away") == 2
    assert "away does not exist; make traces with `switchsum profile`, or with torch.profiler" in capsys.readouterr().err
    assert analyze(monkeypatch, tmp_path) == 2
    assert "has no traces in it, *.json or *.json.gz; make them with `switchsum profile`" in capsys.readouterr().err
    shutil.copy(TRACES / "gloo" / "et0.json.gz", tmp_path)
    assert analyze(monkeypatch, tmp_path) == 2
    assert "has execution traces only (et0.json.gz), which tell no times" in capsys.readouterr().err
    for name in ("a.json", "b.json"):
        write(tmp_path / name, steps(1), None)
    assert analyze(monkeypatch, tmp_path) == 2
    assert "a.json and " in (error := capsys.readouterr().err)
    assert "b.json are both of rank 0; keep one recording in a folder" in error
    assert analyze(monkeypatch, TRACES / "gloo", "--json", tmp_path / "none" / "a.json") == 2
    assert "a.json cannot be written: there is no folder" in capsys.readouterr().err


def test_what_else_lies_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe that nobody writes to, a folder with a trace's name, and the features that profile leaves."""
    write(tmp_path / "rank0.trace.json", [*steps(1), operator(0, 5)])
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "more.json").mkdir()
    features().save(tmp_path / "features.rank0.json")
    assert analyze(monkeypatch, tmp_path) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "features" not in told.out
    for name in ("pipe.json", "more.json"):
        assert f"# {tmp_path / name} is no trace: it is no file\n" in told.out
    (tmp_path / "rank1.json").symlink_to(tmp_path / "away")  # a rank that is not there is not left out in silence
    assert analyze(monkeypatch, tmp_path) == 2
    assert "rank1.json cannot be read: No such file or directory" in capsys.readouterr().err
    assert analyze(monkeypatch, tmp_path / "pipe.json") == 2
    assert "pipe.json is neither a file nor a folder; give a trace, or the folder" in capsys.readouterr().err


def test_folders_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze(monkeypatch, tmp_path / (300 * "x")) == 2
    assert capsys.readouterr().err.endswith("x cannot be read: File name too long\n")
    closed = tmp_path / "closed"
    closed.mkdir(0)
    # Root reads everything.
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        status = analyze(monkeypatch, closed)
    finally:
        os.seteuid(user)
    assert status == 2
    assert capsys.readouterr().err.endswith("closed cannot be read: Permission denied\n")


# ---- what is shown -------------------------------------------------------------------------------------------------------


def test_table_json_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze(monkeypatch, TRACES / "switchsum", "--json", tmp_path / "a.json", "--html", tmp_path / "a.html") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("traces/switchsum: 2 ranks, switchsum, 3 steps (2 to 4)")
    assert [line.split()[0] for line in printed if line[:1] == " "][:3] == ["0", "1", "all"]
    assert any(line.split()[:3] == ["switchsum:all_reduce", "2", "790,532"] for line in printed)
    assert all(len(line) < 160 for line in printed if line[:1] == " ")
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["schema"], found["world_size"], found["computation"]) == ("switchsum-analysis/1", 2, "operators")
    assert [len(rank["steps"]) for rank in found["ranks"]] == [3, 3]
    every = found["over_ranks"]
    for name, mean in every["mean"].items():
        assert mean["mean"] == pytest.approx(np.mean([step[name] for step in every["steps"]])), name
    page = self_contained(tmp_path / "a.html")
    assert len(page.images) == 3
    assert all(image["alt"] for image in page.images)
    for words in ("Exposed share:", "PAI's share:", "Waiting for peers:", "switchsum:all_reduce", "rank1.json.gz"):
        assert words in page.words


def test_a_page_of_one_rank_that_communicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "trace.json", [*steps(1), operator(0, 500), kernel(1, 5, "nvshmem\x1b[31m<b>\ud800")], None)
    assert analyze(monkeypatch, tmp_path, "--html", tmp_path / "a.html") == 0
    printed = capsys.readouterr().out
    assert "# no collectives" in printed
    assert "# unclassified: nvshmem\\x1b[31m<b>?: 0.005000 ms a step" in printed
    assert len(self_contained(tmp_path / "a.html").images) == 2
