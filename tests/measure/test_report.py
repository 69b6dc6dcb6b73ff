"""`switchsum bench report`: what is drawn and said of results, from a real quick run and from made-up ones."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from switchsum.measure import findings, numerals, page, pictures, result_files
from switchsum.measure.intervals import Ratio
from switchsum.measure.result_files import Found, Measured
from switchsum.measure.results import Results
from switchsum.measure.rows import Figure
from switchsum.measure.samples import Series
from switchsum.measure.timelines import Timeline
from tests.in_process import command_line
from tests.measure.made_results import SIZES, counted, latencies, results, series

PNG = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "img", "br"}


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command in this process; its exit status."""
    return command_line(monkeypatch, "bench", *arguments)


@dataclass
class Page(HTMLParser):
    """What a browser would find. Fails on tags that are not closed in order."""

    text: str
    tags: list[str] = field(default_factory=list)
    images: list[dict[str, str | None]] = field(default_factory=list)
    words: str = ""
    addresses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.feed(self.text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def self_contained(path: Path) -> Page:
    """The page needs nothing from elsewhere, and every picture is in it and has a text."""
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert not [word for word in ("http:", "https:", "url(", "@import") if word in text]
    found = Page(text)
    assert not {"script", "link", "iframe", "object"} & set(found.tags)
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    for image in found.images:
        assert image["alt"]
        assert base64.b64decode(str(image["src"]).partition(",")[2]).startswith(PNG)
    assert len(found.images) == len(found.addresses)
    return found


def check(path: Path) -> Page:
    """It is self-contained, and its pictures lie beside it, too."""
    found = self_contained(path)
    beside = sorted(path.parent.glob("*.png"))
    assert len(found.images) == len(beside)
    assert all(each.read_bytes().startswith(PNG) for each in beside)
    return found


def measured(*rows: Series) -> list[Measured]:
    """As if they came from files of their benchmarks."""
    names = dict.fromkeys(row.benchmark for row in rows)
    files = {Path(name): results(*(row for row in rows if row.benchmark == name)) for name in names}
    return Found(files, []).measured


def test_a_real_quick_run_becomes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--duration", "0.02", "--warmup", "0"]
    ways = ["--transport", "tcp", "--transport", "grpc", "--mode", "serialized", "--mode", "non-serialized"]
    schemes = ["--scheme", "uniform", "--scheme", "skew"]
    sums = ["--workers", "2", "--size", "64K", "--size", "256K", "--transport", "gloo"]
    latency = bench(monkeypatch, "p2p-latency", "--port", "0", *ways, *schemes, *quick, "--json", tmp_path / "latency.json")
    assert (latency, bench(monkeypatch, "allreduce", *sums, *quick, "--json", tmp_path / "sums.json")) == (0, 0)
    capsys.readouterr()
    assert bench(monkeypatch, "report", tmp_path) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/report/index.html: 2 files of results, 8 rows, ")
    found = check(tmp_path / "report" / "index.html")
    drawn = {path.stem for path in (tmp_path / "report").glob("*.png")}
    assert drawn >= {"p2p-latency", "serialized", "allreduce-over-size", "cpu-cost"}
    assert "All results right: 0 wrong elements or bytes in 8 of 8 rows." in found.words
    assert "Latency rises from uniform to skew: grpc serialized, 1 worker, 1 server, links without a rate: " in found.words
    assert "switchsum bench p2p-latency --port 0 --transport tcp" in found.words


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    """Names from files never become tags or attributes."""
    name = '<b onclick="x">&\'"</b>'
    rows = [series("p2p-latency", "<script>", name, SIZES[other], 0.01) for other in SIZES]
    rows = [rows[0], series("p2p-latency", "tcp", name, 99, 0.01)]
    made = results(*rows, verdicts=[{"host": name, "ok": False, "ratio": 1.5}], environment={"kernel": name, "date": name})
    found = Found({tmp_path / f"{name[:2]}.json": made}, [f"{name} is ignored"])
    text = page.render(found, found.measured, pictures.all_pictures(found.measured, {}), found.ignored)
    (tmp_path / "x.html").write_text(text)
    parsed = Page(text)
    assert not {"script", "b"} & set(parsed.tags)
    assert parsed.words.count(name) > 5
    assert "<script>" in parsed.words


def test_a_perfect_line_over_counts_gives_its_slope_back() -> None:
    """80 ms for a MB and 5 ms besides; the bandwidth test has 12.5 MB/s, which says the same."""
    rows = [*counted(80_000, 5_000), series("p2p-bandwidth", "tcp", "skew", SIZES["skew"], SIZES["skew"] / 12.5e6)]
    [line] = findings.count_lines(measured(*rows))
    assert (line.line.slope, line.line.intercept, line.line.r_squared) == pytest.approx((80_000, 5_000, 1))
    assert line.agreement is not None
    assert line.agreement.value == pytest.approx(1, abs=1e-4)
    assert line.agrees


@pytest.mark.parametrize(("rate", "agrees"), [(11.3, True), (13.7, True), (11.2, False), (13.9, False)])
def test_the_slope_may_be_a_tenth_off(rate: float, agrees: bool) -> None:
    rows = [*counted(80_000, 0), series("p2p-bandwidth", "tcp", "skew", SIZES["skew"], SIZES["skew"] / rate / 1e6)]
    [line] = findings.count_lines(measured(*rows))
    assert line.agrees == agrees
    assert pictures.over_buffers([line]).says[1].endswith("%, within 10 %." if agrees else "%, not within 10 %.")


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [(12.0, "within 10 %, but its interval is wider"), (11.0, "not within 10 %, but its interval reaches there")],
)
def test_a_slope_whose_interval_leaves_it_open_says_so(rate: float, verdict: str) -> None:
    wide = series("p2p-bandwidth", "tcp", "skew", SIZES["skew"], SIZES["skew"] / rate / 1e6, spread=(0.9, 1.0, 1.1, 0.85, 1.15))
    [line] = findings.count_lines(measured(*counted(80_000, 0), wide))
    assert line.verdict == verdict


def test_a_line_is_compared_with_its_own_transport_and_link() -> None:
    others = [
        series("p2p-bandwidth", "grpc", "skew", SIZES["skew"], 1.0),
        series("p2p-bandwidth", "tcp", "skew", SIZES["skew"], 1.0, link_rate_bps=10**9),
    ]
    [line] = findings.count_lines(measured(*counted(80_000, 0), *others))
    assert (line.bandwidth, line.agreement, line.agrees) == (None, None, False)


def test_payloads_of_mixed_buffers_make_no_line() -> None:
    assert findings.count_lines(measured(*latencies())) == []
    assert findings.count_lines(measured(*counted(80_000, 0)[:2])) == []  # two points are always on one


@pytest.mark.parametrize(("skew_s", "verdict"), [(0.03, "reproduced"), (0.02, "no difference shown"), (0.01, "the opposite")])
def test_skew_against_uniform_needs_an_interval(skew_s: float, verdict: str) -> None:
    rows = [series("p2p-latency", "tcp", name, SIZES[name], s) for name, s in (("uniform", 0.02), ("skew", skew_s))]
    [compared] = findings.skew_against_uniform(measured(*rows))
    assert compared.verdict == verdict
    assert compared.ratio.value == pytest.approx(skew_s / 0.02)


def test_the_cost_of_messages_is_compared_over_link_rates() -> None:
    rows = [
        series("p2p-latency", "grpc", "x", 10**6, 1e6 / rate, mode="serialized", message_s=cost, link_rate_bps=rate)
        for rate, cost in ((10**8, 0.001), (2 * 10**8, 0.001), (4 * 10**8, 0.002))
    ]  # fmt: skip
    found = findings.message_time_over_rates(measured(*rows))
    assert [each.ratio.value for each in found] == pytest.approx([1, 2])
    assert [each.ratio.differs for each in found] == [False, True]
    message = findings.message_time(found[0].test)
    assert message is not None
    assert message.mean == pytest.approx(1000)  # microseconds one way, though an operation goes there and back


def test_cpu_seconds_are_those_of_a_gigabyte() -> None:
    """In a run of two calls of 1 MB each process uses 0.03 s; in a run of two sums, too."""
    [calls] = measured(series("ps-throughput", "tcp", "x", 1_000_000, 0.1, workers=2, servers=3))
    costs = findings.cpu_cost(calls)
    assert costs["a worker"].mean == pytest.approx(0.03 / 0.002)
    assert costs["servers"].mean == pytest.approx(3 * 0.03 / 0.004)
    [sums] = measured(series("allreduce", "gloo", "x", 1_000_000, 0.1))
    assert findings.cpu_cost(sums)["a worker"].mean == pytest.approx(sums.row.worker_cpu) == pytest.approx(15)
    assert set(findings.cpu_cost(sums)) == {"a worker"}


def test_every_kind_of_picture_is_drawn() -> None:
    rows = [
        *latencies(), *latencies("grpc", mode="serialized", message_s=0.001), *latencies("grpc", mode="non-serialized"),
        series("p2p-latency", "grpc", "single-64000", 64_000, 0.005, mode="serialized", message_s=0.001, buffers=1),
        *counted(80_000, 0), *counted(90_000, 0, "grpc"),
        *(series("p2p-bandwidth", "tcp", f"single-{n}", n, n / 1e8, buffers=1, link_rate_bps=10**9) for n in (10**3, 10**6)),
        *(series("ps-throughput", "tcp", name, SIZES[name], 0.1, workers=3, servers=2) for name in SIZES),
        *(series("allreduce", name, f"{n} B", n, n / 1e8) for name in ("switchsum", "gloo", "limit") for n in (2**16, 2**20)),
        *(series("allreduce", "tcp", f"{n} B", n, n / 1e8, servers=2) for n in (2**16, 2**20)),
    ]  # fmt: skip
    drawn = pictures.all_pictures(measured(*rows), {"x": timeline_of(results(*latencies(), timeline=timeline()))})
    assert [picture.name for picture in drawn] == [
        "p2p-latency", "ps-throughput", "p2p-bandwidth-over-size", "allreduce-over-size", "latency-over-buffers", "serialized",
        "allreduce", "cpu-cost", "resources-x",
    ]  # fmt: skip
    assert all(picture.png.startswith(PNG) and picture.alt and picture.says for picture in drawn)
    said = {picture.name: " ".join(picture.says) for picture in drawn}
    assert (
        "tcp: skew is 1.496 (1.495 to 1.498) times uniform, reproduced; the paper's networks: 1.25 to 1.49."
        in said["p2p-latency"]
    )
    assert "The paper had 2 servers and 3 workers" not in said["ps-throughput"]
    assert "80.0 % of the link's rate" in said["p2p-bandwidth-over-size"]
    assert (
        "grpc serialized, single-64000: 5.0000 ± 0.0044 ms, of which 1.0000 ± 0.0009 ms (20.0 %) make messages."
        in said["serialized"]
    )
    assert "tcp, 2 servers takes 1.000" in said["allreduce"]


def test_one_colour_for_a_transport() -> None:
    assert len(set(pictures._COLOURS.values())) == len(pictures._COLOURS)


def timeline() -> dict[str, object]:
    """A second of two ranks, a switch and the machine, as resources.Timeline has it: ranks use half a core and send 1 MB/s."""
    seconds = [100.0, 100.5, 101.0]
    counts = ("voluntary_switches", "involuntary_switches", "received_bytes", "dropped", "resent", "system_s")
    rank = {
        "seconds": seconds,
        "user_s": [1.0, 1.25, 1.5],
        "resident_bytes": [10e6, 20e6, 30e6],
        "sent_bytes": [0, 500_000, 1_000_000],
        **{name: [0, 0, 0] for name in counts},
    }
    both = ["tcp", "grpc/serialized"]
    tracks = [
        {
            "kind": "machine",
            "name": "machine",
            "samples": {"seconds": seconds, "busy_ticks": [0, 10, 40], "ticks": [0, 100, 200]},
        },
        {"kind": "switch", "name": "switch", "samples": {"seconds": seconds, "cpu_s": [0, 1, 2], "resident_bytes": [1, 1, 1]}},
        {"kind": "rank", "name": "worker 0", "samples": rank},
        {"kind": "rank", "name": "server 0", "samples": rank},
    ]
    marks = [[100.1, "p2p-latency tcp uniform run 1"], [100.6, "p2p-latency grpc serialized skew run 1"]]
    return {"marks": marks, "tracks": [{"transports": both, "clock_error_s": 0.0, **track} for track in tracks]}


def timeline_of(made: Results) -> Timeline:
    found = Timeline.of(made)
    assert found is not None
    return found


def test_counts_over_time_become_rates() -> None:
    rows = [*latencies(), *latencies("grpc", mode="serialized")]
    found = timeline_of(results(*rows, timeline=timeline()))
    assert [(span.transport, span.begin_s, span.end_s) for span in found.spans] == [
        ("tcp", 0, pytest.approx(0.5)),
        ("grpc serialized", pytest.approx(0.5), pytest.approx(0.9)),
    ]
    assert [payload for _, payload in found.payloads] == ["uniform", "skew"]
    worker = found.processes[1]
    assert worker.cpu_percent == (pytest.approx([0.4, 0.9]), pytest.approx([50, 50]))
    assert worker.sent_mbit_s == (pytest.approx([0.4, 0.9]), pytest.approx([8, 8]))
    assert worker.resident_mb[1] == [10, 20, 30]
    assert found.processes[0].cpu_percent[1] == pytest.approx([200, 200])
    assert found.machine_percent == (pytest.approx([0.4, 0.9]), pytest.approx([10, 30]))
    assert Timeline.of(results(*rows)) is None


def test_a_shared_loopback_is_drawn_once() -> None:
    ranks = {"tcp": [{"interface": "lo"}, {"interface": "lo"}]}
    found = timeline_of(results(*latencies(), timeline=timeline(), ranks=ranks))
    assert [each.sent_mbit_s is None for each in found.processes] == [True, False, True]
    assert "All processes share the loopback, so what is sent is that of all of them together." in (
        pictures.resources("x", found).says
    )


def verdicts(made: Results) -> str:
    found = Found({Path("x.json"): made}, [])
    return Page(page.render(found, found.measured, [], [])).words


def test_the_verdict_comes_first() -> None:
    wrong = latencies(wrong=2)
    assert "Wrong results: 6 elements; p2p-latency tcp uniform: 2; " in verdicts(results(*wrong))
    told = verdicts(results(*latencies(wrong=None), environment={"busy_before": 0.2}))
    assert "Not to be checked: 3 rows of tcp" in told
    assert "Conservation was not checked" in told
    assert "Ended early: x.json; only" in verdicts(results(*latencies(), complete=False))
    assert "Busy machine: others used it before (x.json 20 %)" in told
    kept = [{"label": "tcp", "predicted": 1.0, "counted": 1.01, "ratio": 1.01, "ok": ok} for ok in (True, True, None)]
    assert "Conservation holds: all 2 counts" in verdicts(results(*latencies(), verdicts=kept))
    broken = [*kept, {"label": "gloo", "predicted": 1.0, "counted": 2.0, "ratio": 2.0, "ok": False}]
    assert "Conservation failed: 1 of 3 counts" in verdicts(results(*latencies(), verdicts=broken))


def test_of_each_row_the_count_farthest_off_is_shown_or_all_that_are_wrong() -> None:
    def verdict(payload: str, host: str, ratio: float) -> dict[str, object]:
        return {"label": "tcp", "payload": payload, "host": host, "ratio": ratio, "ok": abs(ratio - 1) <= 0.03}

    counts = [verdict("x", "host 1", 1.01), verdict("x", "host 2", 0.98), verdict("x", "host 3", 1.0)]
    counts += [verdict("y", "host 4", 1.5), verdict("y", "host 5", 1.01), verdict("y", "host 6", 0.5)]
    told = verdicts(results(*latencies(), verdicts=counts))
    assert [host for host in ("host 1", "host 2", "host 3", "host 4", "host 5", "host 6") if host in told] == [
        "host 2",
        "host 4",
        "host 6",
    ]


def test_the_same_measurement_twice_is_told_and_the_later_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results(*latencies()).save(tmp_path / "a.json")
    results(*latencies(us_per_mb=1), environment={"date": "2027"}).save(tmp_path / "b.json")
    (tmp_path / "payload.json").write_text('{"schema": "switchsum-payload/1"}')
    (tmp_path / "notes.txt").write_text("mine")
    assert bench(monkeypatch, "report", tmp_path, "--output", tmp_path / "out") == 0
    notes = capsys.readouterr().err.splitlines()
    assert notes[0].startswith(f"note: {tmp_path}/payload.json is not a result of switchsum bench: its schema is not ")
    assert notes[1] == "note: p2p-latency tcp uniform is in a.json and in b.json; the later one, b.json, counts"
    assert "in a.json and in b.json" in check(tmp_path / "out" / "index.html").words
    [one, *_], _ = result_files.latest(result_files.find(tmp_path).measured)
    assert one.file.name == "b.json"


def good() -> str:
    return json.dumps(results(*latencies()).as_json())


def changed(path: Sequence[str | int], value: object) -> str:
    """A good file but for one value."""
    found = json.loads(good())
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(found)


RUN = ("results", 0, "samples", "runs", 0)
GARBAGE = {
    "truncated": (lambda: good()[:-30], "is not JSON: "),
    "empty": (lambda: "", "is not JSON: Expecting value"),
    "nested": (lambda: "[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
    "wrong schema": (lambda: "{}", "has no results in it (1 other *.json): write some there with --json"),
    "a list": (lambda: "[]", "has no results in it (1 other *.json)"),
    "nan": (lambda: changed((*RUN, "elapsed_s"), math.nan), "is damaged: ValueError: a time of run 0 is no positive number"),
    "infinity": (lambda: changed((*RUN, "seconds"), [[math.inf]]), "is damaged: "),
    "negative": (lambda: changed((*RUN, "seconds"), [[-1.0]]), "is damaged: ValueError: a time of run 0 is no positive"),
    "zero": (lambda: changed((*RUN, "elapsed_s"), 0), "is damaged: "),
    "no operation": (lambda: changed((*RUN, "seconds"), [[]]), "is damaged: "),
    "no runs": (lambda: changed(RUN[:-1], []), "is damaged: "),
    "text for a count": (lambda: changed((*RUN, "usage", 0, "user_s"), "x"), "is damaged: "),
    "nan for a count": (lambda: changed((*RUN, "usage", 0, "user_s"), math.nan), "is damaged: ValueError: a count of run 0"),
    "a list for a name": (
        lambda: changed(("results", 0, "samples", "transport"), ["tcp"]),
        "is damaged: ValueError: transport",
    ),
    "unknown benchmark": (lambda: changed(("results", 0, "samples", "benchmark"), "x"), "is damaged: ValueError: there is no"),
    "huge size": (lambda: changed(("results", 0, "samples", "size_bytes"), 10**400), "is damaged: "),
    "bad rate": (lambda: changed(("results", 0, "samples", "link_rate_bps"), "fast"), "is damaged: "),
    "unknown field": (lambda: changed(("results", 0, "samples", "colour"), 1), "is damaged: TypeError"),
    "no environment": (lambda: changed(("environment",), None), "is damaged: ValueError: environment is no dict"),
    "bad manifest": (lambda: changed(("payloads", 0), {}), "is damaged: payload has no 'schema'; measure again"),
    "bad verdict": (lambda: changed(("verdicts",), [1]), "is damaged: ValueError: a verdict is no object"),
    "bad timeline": (lambda: changed(("timeline",), {"marks": [[math.nan, "x"]], "tracks": [1]}), "is damaged: timeline: "),
    "no rows": (lambda: changed(("results",), []), "is damaged: ValueError: it has no rows"),
}


@pytest.mark.parametrize(("content", "message"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_one_line_and_status_2(
    content: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(content)
    (tmp_path / "x.json").write_text(content())
    assert bench(monkeypatch, "report", tmp_path) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json"]


def test_what_else_can_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(good())
    for arguments, status, message in (
        (["/nowhere"], 2, "/nowhere is no folder; give the one that has the results of --json"),
        ([tmp_path, "--output", tmp_path / "x.json"], 1, f"{tmp_path}/x.json cannot be written: File exists"),
        ([tmp_path, "--output", tmp_path / "a" / "b"], 1, f"{tmp_path}/a/b cannot be written: No such file or directory"),
    ):
        assert bench(monkeypatch, "report", *arguments) == status
        assert capsys.readouterr().err == f"error: {message}\n"
    (tmp_path / "x.json").unlink()
    (tmp_path / "x.json").mkdir()
    assert bench(monkeypatch, "report", tmp_path) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/x.json cannot be read: Is a directory\n"


@pytest.mark.parametrize(
    ("mean", "ci95", "text"),
    [
        (322.4563, 1.234, "322.5 ± 1.2"),
        (12.05, 0.003, "12.050 ± 0.003"),
        (5021, 350, "5,021 ± 350"),
        (0.0124, 0.0005, "0.01240 ± 0.00050"),
        (3, math.nan, "3.000 ± -"),
        (2, 0, "2.0000 ± 0.0000"),
    ],
)
def test_numbers_have_as_many_digits_as_their_interval_allows(mean: float, ci95: float, text: str) -> None:
    assert numerals.interval(Figure(mean, ci95, ())) == text


def test_numbers_without_exponent() -> None:
    values = (1234567.0, 0.000123456, 9.9999, 0.0, math.nan)
    assert [numerals.significant(each, 3) for each in values] == ["1,234,567", "0.000123", "10.00", "0", "-"]
    assert numerals.ratio(Ratio(1.5, 1.4, 1.6)) == "1.500 (1.400 to 1.600)"
    assert numerals.ratio(Ratio(1.5, math.nan, math.nan)) == "1.50 (interval not known)"
    times = [numerals.time(Figure(us, us / 100, ())) for us in (12.0, 1200.0, 1.2e6)]
    assert times == ["12.00 ± 0.12 µs", "1.200 ± 0.012 ms", "1.200 ± 0.012 s"]
