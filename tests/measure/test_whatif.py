"""`switchsum whatif`: table, verdicts, advice, JSON and picture of jobs that gain and that do not, and misuse."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchsum.measure import advice, verdicts, whatif, whatif_pictures, whatif_table
from switchsum.measure.costs import Cluster
from switchsum.measure.features import Bucket, Features
from switchsum.measure.prediction import CannotPredict, Ground
from switchsum.measure.rows import Figure
from switchsum.measure.whatif import Study
from switchsum.whatif_command import counts
from tests.in_process import command_line
from tests.measure.made_features import features
from tests.measure.made_results import results
from tests.measure.test_calibration import calibration, made
from tests.measure.test_report import PNG, check

ORDER = ["Measure", "Change the software", "Try small", "Buy"]
# Integers, which no communication hook makes smaller.
WHOLE = tuple(Bucket(25_000_000, "int32", ready) for ready in (0.05, 0.10, 0.15, 0.20))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    return command_line(monkeypatch, "whatif", *arguments)


def study(job: Features, *gbps: float, ground: Ground | None = None, architectures: Any = ("ring", "switch")) -> Study:
    rates = [{"ethernet": each * 1e9 / 8} for each in gbps]
    return whatif.study(job, architectures, [Cluster(job.workers)], rates, ground or Ground(efficiency=0.7))


def at_1_gbps(**changes: Any) -> Features:
    """As the model has it by a ring at 70 %: four sums of 429 ms, the first ready after 50 ms of 200."""
    steps = (1.883, 1.884, 1.884, 1.884, 1.885)
    return features(**{"link_bps": 1e9, "step_s": steps, "exposed_s": (1.564,) * 5, **changes})


def advised(found: Study) -> dict[str, str]:
    listed = advice.advise(found)
    assert [each.heading for each in listed] == ORDER
    return {each.heading: " ".join(each.sentences) for each in listed}


def test_a_job_that_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    at_1_gbps().save(tmp_path / "job.json")
    made().save(tmp_path / "sums.json")
    arguments = ["--set", "ethernet=1Gbps,10Gbps", "--workers", "4,8", "--calibration", tmp_path / "sums.json", "--rtt", 50]
    arguments += ["--json", tmp_path / "out.json", "--plot", tmp_path / "out.png"]
    arguments += ["--page", tmp_path / "out.html"]
    assert run(monkeypatch, tmp_path / "job.json", *arguments) == 0
    told = capsys.readouterr().out
    table = [line.split() for line in told.splitlines() if re.match(r" *(ps|ring|switch) ", line)]
    assert [row[0] for row in table] == ["ps", "ring", "switch"] * 4
    assert "GAIN: switch against ring" in told
    assert told.endswith(f"written: {tmp_path}/out.json, {tmp_path}/out.png, {tmp_path}/out.html\n")
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["schema"] == "switchsum-whatif/1"
    assert found["calibration"]["schema"] == "switchsum-calibration/1"
    assert len(found["predictions"]) == 12
    for each in found["predictions"]:
        value, low, high = each["step_s"]
        assert each["ideal_s"] <= value <= each["sum_s"]
        assert low < value < high
    assert list(found["advice"]) == ORDER
    assert [heading for heading in ORDER if f"\n{heading}:\n" in told] == ORDER
    assert "Assumptions:" in told
    page = check(tmp_path / "out.html")
    assert len(page.images) == 1
    assert [page.words.index(f"{number}. {heading}") for number, heading in enumerate(ORDER, 1)] == sorted(
        page.words.index(f"{number}. {heading}") for number, heading in enumerate(ORDER, 1)
    )
    assert '<span class="good">GAIN</span>: switch against ring' in page.text
    assert "SYNTHETIC" not in page.text


def test_a_made_up_job_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    features(synthetic=True).save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", "--efficiency", 0.7, "--page", "page.html", "--plot", "page.png") == 0
    told = capsys.readouterr().out
    assert told.startswith("# made-up: ddp, 4 workers, gloo over 10 Gbit/s, SYNTHETIC (made up, not measured)\n")
    assert '<span class="bad">SYNTHETIC: this job is made up' in check(tmp_path / "page.html").text


def test_only_what_is_calibrated_is_shown_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    features().save(tmp_path / "job.json")
    results(*(each for each in made().series if each.transport != "tcp")).save(tmp_path / "sums.json")
    assert run(monkeypatch, "job.json", "--calibration", "sums.json") == 0
    assert "\n    ps " not in capsys.readouterr().out
    assert run(monkeypatch, "job.json", "--calibration", "sums.json", "--arch", "ps") == 2
    assert "error: ps is not calibrated: sums.json has no rows of tcp or grpc" in capsys.readouterr().err


def test_too_much_at_once() -> None:
    with pytest.raises(CannotPredict, match="that makes more than 10000 predictions, with 4 buckets each; give fewer rates"):
        whatif.study(features(), ["ring"], [Cluster(4)] * 101, [{"ethernet": 1e9}] * 100, Ground(efficiency=0.7))


def test_advice_for_a_gain_and_for_none() -> None:
    gains = advised(study(at_1_gbps(buckets=WHOLE), 1.0))
    assert "switchsum rack run FILE" in gains["Try small"]
    assert re.match(r"A switch that adds \(switch\), beside ring on the same links: 1\.4\d .*at 1 Gbit/s", gains["Buy"])
    assert gains["Buy"].endswith("Buy only if such a gain is worth it, and after the small trial has shown it.")
    none = advised(study(features(gradient_bytes=1000, buckets=(), link_bps=10e9), 10.0))
    assert none["Try small"].startswith("Nothing to try with a switch: no gain at 10 Gbit/s, for the link is not")
    assert none["Buy"].startswith(
        "Do not buy a switch for this job: no gain at 10 Gbit/s, for the link is not the bottleneck: sums "
    )
    undecided = advised(study(features(), 10.0, ground=Ground(calibration(spread=0.4), rtt_s=1e-6)))
    assert undecided["Buy"].startswith("Do not buy yet: ")


def test_advice_begins_with_what_was_not_measured() -> None:
    said = advised(study(features(synthetic=True, step_s=(0.4,), compute_s=(0.3,), input_s=(0.01,), exposed_s=(0.08,)), 10.0))
    for part in ("These features are made up.", "Profile more steps: 1 tell little", "Calibrate: "):
        assert part in said["Measure"]
    assert "The model misses the present: it says " in advised(study(features(link_bps=1e9), 10))["Measure"]
    assert "the link it was measured on is not known" in advised(study(features(link_bps=None), 10))["Measure"]
    single = features(architecture="1w1g", workers=1, link_bps=None)
    found = whatif.study(single, ["ring"], [Cluster(4)], [{"ethernet": 1e9}], Ground(efficiency=0.7))
    assert "the job has one worker, whose step tells nothing of sums" in advised(found)["Measure"]


def test_advice_on_software() -> None:
    late = tuple(Bucket(25_000_000, "float32", ready) for ready in (0.05, 0.10, 0.15, 0.20))
    said = advised(study(features(buckets=late), 10.0))["Change the software"]
    assert "Smaller buckets: with each in two" in said
    assert "Mixed precision on the wire" in said
    crumbs = tuple(Bucket(250_000, "float32", 0.2 * number / 400) for number in range(400))
    latent = Ground(calibration(latency_s=0.001), rtt_s=1e-6)
    said = advised(study(features(buckets=crumbs), 10.0, ground=latent))["Change the software"]
    assert "Larger buckets: with 8 in one" in said
    said = advised(study(features(buckets=(), link_bps=1e9), 1.0))["Change the software"]
    assert "Overlap: if all sums ran beside computing" in said
    said = advised(study(features(backend="switchsum", link_bps=1e9), 1.0, architectures=("switch",)))["Change the software"]
    assert "Narrow lanes: SWITCHSUM_LANES=16 makes a step" in said


def test_half_precision_halves_float32_alone() -> None:
    """Nothing is left to halve where the wire has 16 bits already, whatever the parameters and the computing are."""
    half = tuple(Bucket(25_000_000, "float16", ready) for ready in (0.05, 0.10, 0.15, 0.20))
    said = advised(study(features(buckets=half, link_bps=1e9), 1.0))["Change the software"]
    assert "Mixed precision" not in said
    said = advised(study(features(dtype="bfloat16", link_bps=1e9), 1.0))["Change the software"]
    assert "Mixed precision on the wire" in said
    mixed = (*half[:3], Bucket(25_000_000, "float32", 0.2))
    said = advised(study(features(buckets=mixed, link_bps=1e9), 1.0))["Change the software"]
    assert re.search(r"half the float32 bytes, makes a step 1\.1\d times as fast", said)


def test_types_are_those_of_the_gradients_not_of_the_computing() -> None:
    """Autocast computes in bfloat16, while float32 travels."""
    plain, autocast = (study(features(dtype=dtype, link_bps=1e9), 1.0) for dtype in ("float32", "bfloat16"))
    assert [each.step for each in plain.predictions] == [each.step for each in autocast.predictions]
    assert " MB of float32 in 4 buckets" in " ".join(whatif_table.head(autocast))
    pair = study(features(dtype="bfloat16", link_bps=1e9, workers=2), 1.0).verdicts[0]
    assert "bfloat16" not in pair.why


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("known", [True, False])
def test_what_no_lane_holds_gains_nothing_by_a_switch(dtype: str, known: bool) -> None:
    buckets = tuple(Bucket(25_000_000, dtype, ready) for ready in (0.05, 0.10, 0.15, 0.20)) if known else ()
    job = features(buckets=buckets, dtype=dtype if not known else "float32", link_bps=1e9)
    for ground in (Ground(efficiency=0.7), Ground(calibration(), rtt_s=1e-6)):
        found = study(job, 1.0, ground=ground, architectures=("ps", "ring", "switch"))
        ring, switch = found.predictions[1:]
        assert switch.step == ring.step
        verdict = next(each for each in found.verdicts if each.test.architecture == "switch")
        assert (verdict.verdict, verdict.cause) == ("no gain", "type")
        assert f"the switch's lanes hold no {dtype}: Gloo sums it around a ring" in advised(found)["Buy"]
    servers = study(replace(job, architecture="ps/worker"), 1.0, architectures=("ps", "switch"))
    assert servers.verdicts[0].verdict in ("no gain", "loss")


def one_host(**changes: Any) -> Features:
    return features(architecture="allreduce-local", workers=8, link_bps=None, **changes)


@pytest.mark.parametrize("architecture", ["allreduce-local", "1wng", "pearl"])
def test_a_job_on_one_host_is_judged_there(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    replace(one_host(), architecture=architecture).save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", "--set", "ethernet=1Gbps", "--efficiency", 0.7, "--json", "out.json") == 0
    told = " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "out.json").read_text())
    assert {(each["verdict"], each["cause"]) for each in found["verdicts"]} == {("no gain", "one host")}
    assert found["now"]["per_host"] == 8
    assert "Do not buy a switch for this job: " in told
    assert f"Hosts: 8 workers on each (--per-host); the job's 8 are on one now ({architecture}), and --per-host 1 asks" in told
    assert "How workers of a host sum was not said: over pcie at 10GB/s (--set pcie or nvlink)." in told


def test_what_hosts_of_their_own_would_change_is_told_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one_host().save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", "--per-host", 1, "--set", "ethernet=1Gbps", "--efficiency", 0.7) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "GAIN: switch against ring, 8 workers, ethernet 1 Gbit/s" in told
    assert "Hosts: a worker on each (--per-host); the job's 8 are on one now (allreduce-local), so this is about others" in told
    assert "relative to ring, 8 workers, ethernet 1 Gbit/s" in told
    assert "could not be held against the measured step: the job's workers are on one host, and how they sum there" in told
    # With the way inside the host, it is known what going apart would cost.
    arguments = ["--workers", "8,16", "--set", "ethernet=1Gbps", "--set", "pcie=10GB/s", "--efficiency", 0.7]
    assert run(monkeypatch, "job.json", "--per-host", 1, "--json", "out.json", *arguments) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["now"]["per_host"] == 8
    assert found["predictions"][1]["speedup"][0] < 1
    assert run(monkeypatch, "job.json", "--json", "out.json", *arguments) == 0
    assert [each["per_host"] for each in json.loads((tmp_path / "out.json").read_text())["predictions"]] == [8] * 6


def test_hosts_are_told_of_every_job() -> None:
    assert "Hosts: a worker on each (--per-host)." in study(features(), 10.0).assumptions


@pytest.mark.parametrize(
    ("changes", "usual"),
    [
        ({}, "ring"),
        ({"backend": "switchsum"}, "switch"),
        ({"architecture": "ps/worker"}, "ps"),
        ({"architecture": "switch"}, "switch"),
    ],
)
@pytest.mark.parametrize("asked", [("ps", "ring", "switch"), ("hierarchical",)])
def test_without_a_link_a_job_is_compared_with_its_own_architecture(
    changes: dict[str, Any], usual: str, asked: tuple[str, ...]
) -> None:
    found = study(features(link_bps=None, **changes), 1.0, 100.0, architectures=asked)
    assert (found.now, found.base.architecture, found.base.rates["ethernet"]) == (None, usual, 0.125e9)
    assert {each.base.architecture for each in found.verdicts} == {usual}
    said = [*whatif_table.head(found), *advised(found).values()]
    assert f"relative to {usual}, 4 workers, ethernet 1 Gbit/s" in said[2]
    assert not re.search(r"\bnow\b|present", " ".join(said))
    assert f"Faster links alone, with {usual} and beside 1 Gbit/s: " in said[-1]


def test_without_a_link_and_its_calibration_the_first_line_is_the_measure() -> None:
    learnt = calibration()
    alone = Ground(replace(learnt, fits={"switchsum": learnt.fits["switchsum"]}))
    found = study(features(link_bps=None), 1.0, ground=alone, architectures=("switch",))
    assert (found.now, found.base, len(found.predictions)) == (None, found.predictions[0], 1)


def test_rates_inside_hosts_are_nominal_unless_said() -> None:
    rates = [{"ethernet": 1e9, "pcie": 10e9, "gpu": 1e12, "memory": 1e12}]
    for efficiency, told in ((None, True), (0.7, False)):
        found = whatif.study(features(), ["ring"], [Cluster(4)], rates, Ground(calibration(), efficiency))
        assert any(each.startswith("pcie, gpu, memory: 100 % of the set rates") for each in found.assumptions) == told


def test_memory_traffic_that_was_not_counted_is_no_zero() -> None:
    rates = [{"ethernet": 1e9, "pcie": 10e9, "gpu": 1e12, "memory": 1e12}]
    with pytest.raises(CannotPredict, match=r"made-up: its memory traffic was not counted .*leave gpu and memory out of --set"):
        whatif.study(features(memory_bytes=0.0), ["ring"], [Cluster(4)], rates, Ground(efficiency=0.7))


@pytest.mark.parametrize("workers", [1, 65_537, 70_000, 100_000])
def test_pictures_of_any_number_of_workers(workers: int) -> None:
    found = whatif.study(features(), ["ring"], [Cluster(workers)], [{"ethernet": 1e9}], Ground(efficiency=0.7))
    assert whatif_pictures.sensitivity(found).png.startswith(PNG)


def test_a_faster_link_is_weighed_against_a_switch() -> None:
    assert "Faster links alone, with ring and beside 1 Gbit/s: " in advised(study(features(link_bps=1e9), 1.0, 100.0))["Buy"]


def test_scale_on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    features(link_bps=25e9).save(tmp_path / "job.json")
    arguments = ["--workers", "64,...,4096", "--racks", 32, "--oversubscription", 4, "--efficiency", 0.7]
    assert run(monkeypatch, tmp_path / "job.json", "--arch", "ring,hierarchical,switch", *arguments) == 0
    told = capsys.readouterr().out
    assert [count for count in (64, 128, 4096) if f" {count} " in told] == [64, 128, 4096]
    assert "oversubscription" in told
    assert "need a tree of switches, each adding up to 32 streams: on paper only" in " ".join(told.split())


def test_buying_is_judged_after_the_change_of_software_that_is_advised() -> None:
    """In 32-bit lanes 16-bit numbers go no faster, so after the hook the switch has to have 16-bit lanes."""
    said = advised(study(at_1_gbps(), 1.0))
    assert "(an fp16 communication hook): half the float32 bytes, makes a step 1.83 times" in said["Change the software"]
    assert re.search(r"switch\), beside ring on the same links: 1\.4\d ", said["Buy"])
    after = "After the change of software (16 bits on the wire) it adds in 16-bit lanes (SWITCHSUM_LANES=16) beside that: 1.39 "
    assert after in said["Buy"]
    assert said["Buy"].endswith("Buy only if such a gain is worth it, and after the small trial has shown it.")
    assert said["Try small"].startswith("Emulate a rack")


def test_narrow_lanes_are_compared_with_as_few_bits_without_them() -> None:
    found = study(at_1_gbps(), 1.0, architectures=("ring", "switch", "switch16", "switch8"))
    assert [(each.against, each.bits) for each in found.verdicts] == [
        ("ring", None),
        ("ring with 16-bit numbers", 16),
        ("ring with 8-bit numbers", 8),
    ]
    assert all(1.2 < each.ratio.value < 1.5 for each in found.verdicts)
    assert "fewer bits cost accuracy (docs/numerics.md)" in advised(found)["Buy"]
    half = tuple(replace(each, dtype="float16") for each in WHOLE)
    halves = study(at_1_gbps(buckets=half), 1.0, architectures=("ring", "switch16", "switch8"))
    assert [each.bits for each in halves.verdicts] == [None, 8]


def test_a_job_on_the_switch_buys_none() -> None:
    said = advised(study(features(backend="switchsum", link_bps=None), 1.0, architectures=("ring", "switch", "switch16")))
    assert "The job sums by the switch already." in said["Buy"]


@pytest.mark.parametrize("link_bps", [None, 1e9, 100e9])
def test_advice_covers_all_settings_in_any_order(link_bps: float | None) -> None:
    job = at_1_gbps(buckets=WHOLE, link_bps=link_bps)
    if link_bps == 100e9:
        job = replace(job, step_s=(0.324,) * 5, exposed_s=(0.004,) * 5)
    rates = [{"ethernet": each} for each in (0.125e9, 12.5e9)]
    clusters = [Cluster(4), Cluster(8)]
    found = [
        advised(whatif.study(job, ["ring", "switch"], places, swept, Ground(efficiency=0.7)))
        for places in (clusters, clusters[::-1])
        for swept in (rates, rates[::-1])
    ]
    assert all(each == found[0] for each in found)
    said = found[0]["Buy"]
    assert re.search(r"1\.\d\d .*times as fast at 1 Gbit/s with 4 workers, .* at 1 Gbit/s with 8 workers; no gain at 100", said)
    assert "no gain at 100 Gbit/s with 4 workers, 100 Gbit/s with 8 workers, for communication is already hidden" in said


def without_gloo() -> Ground:
    learnt = calibration()
    return Ground(replace(learnt, fits={name: fit for name, fit in learnt.fits.items() if name != "gloo"}))


def test_without_the_jobs_own_calibration_there_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    features().save(tmp_path / "job.json")
    listed = made().series
    one_size = [each for each in listed if each.transport == "gloo"][:1]
    results(*(each for each in listed if each.transport != "gloo"), *one_size).save(tmp_path / "sums.json")
    assert run(monkeypatch, "job.json", "--calibration", "sums.json", "--arch", "ps,switch") == 0
    told = capsys.readouterr().out
    assert (
        "\n# no verdict: the ring that the job uses now is not calibrated, because gloo: rows of one size do not tell latency "
        "from rate; measure two at least" in told
    )
    assert "Verdicts:" not in told
    assert "No switch was asked for" not in told
    # Lanes are no advice to a job on Gloo.
    said = advised(study(features(), 1.0, ground=without_gloo(), architectures=("switch",)))
    assert said["Change the software"].startswith("What a change would gain is not known: ring, by which the job sums, ")
    assert said["Buy"] == "No verdict: ring, by which the job sums, is not calibrated."


def test_only_nccl_takes_a_bf16_hook() -> None:
    said = advised(study(at_1_gbps(backend="nccl"), 1.0))["Change the software"]
    assert "(a bf16 or fp16 communication hook)" in said


def test_a_model_that_misses_the_present_claims_no_gain() -> None:
    found = study(features(link_bps=1e9), 1.0)
    assert [(each.verdict, each.cause) for each in found.verdicts] == [(verdicts.UNDECIDED, "model")]
    assert "the model misses the measured step by +371 %" in found.verdicts[0].why
    told = whatif_table.before_verdicts(found)
    assert told[0] == "Each beside ring, by which the job sums, with the same links and workers."
    assert told[1] == "All on paper: nothing of the link was measured."
    assert told[2].startswith("The model misses the present: it says 1.88 s a step, measured were 400 ms (+371 %).")
    assert len(whatif_table.before_verdicts(study(at_1_gbps(), 1.0, ground=Ground(calibration())))) == 1


def test_what_is_not_known_of_an_interval_is_said() -> None:
    names = ("step_s", "compute_s", "input_s", "exposed_s")
    once = replace(at_1_gbps(), **{name: getattr(at_1_gbps(), name)[:1] for name in names})
    learnt = calibration()
    fits = {
        name: replace(fit, latency_s=Figure.of([0.0]), efficiency=Figure.of([0.7]), missed=math.nan)
        for name, fit in learnt.fits.items()
    }
    found = study(once, 1.0, ground=Ground(replace(learnt, fits=fits), rtt_s=1e-6))
    _, rows = whatif_table.cells(found)
    assert [row[-3].endswith(" (interval not known)") for row in rows] == [True, True]
    assert rows[0][-2] == "1.000"
    assert rows[1][-2].endswith(" (interval not known)")
    assert "one run and two sizes, so nobody knows how right it is" in advised(found)["Measure"]


def test_the_head_says_whose_step_and_why_the_model_was_not_checked() -> None:
    alone = whatif_table.head(study(features(link_bps=None), 1.0))
    assert "measured step (one rank's alone) 400.0" in alone[1]
    assert alone[2].startswith(
        "the link it was measured on is not known (`switchsum profile --link`), so the model could not be checked against it; "
    )
    all_ranks = features(source={"ranks": [{"rank": rank} for rank in range(4)]})
    assert "measured step (the slowest rank's, its waiting for others taken off)" in whatif_table.head(study(all_ranks, 1.0))[1]


def test_one_worker_is_told_to_ask_for_more() -> None:
    single = features(architecture="1w1g", workers=1, gradient_bytes=0, buckets=(), link_bps=None)
    found = study(single, 1.0)
    assert whatif_table.head(found)[-1] == "one worker sums with nobody: add --workers N to ask what N of them would do"
    said = advised(found)
    assert said["Measure"] == "The job has one worker, which sums with nobody: add --workers N to ask what N of them would do."
    assert said["Buy"] == "One worker sums with nobody."


def test_verdicts_that_are_alike_are_one_sentence() -> None:
    local = whatif.study(
        one_host(), ["ring", "switch"], [Cluster(8, per_host=8)], [{"ethernet": e, "pcie": 1e10} for e in (1e9, 1e8)],
        Ground(efficiency=0.7),
    )  # fmt: skip
    assert whatif_table.grouped(local.verdicts) == [
        "NO GAIN: switch against ring, from 8 workers, ethernet 800 Mbit/s, pcie 10 GB/s to 8 workers, ethernet 8 Gbit/s, pcie "
        "10 GB/s (2 settings): 1.000 times as fast; all workers are on one host, and no sum passes the network."
    ]


def test_numbers_of_workers() -> None:
    assert counts("4, 8,16") == [4, 8, 16]
    assert counts("4,...,4096") == [1 << power for power in range(2, 13)]
    assert counts("3,...,20") == [3, 6, 12, 20]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "how much of a link's nominal rate is reached must be known: measure it ("),
        (["--efficiency", "0"], "--efficiency 0: must be above 0 and at most 1"),
        (["--efficiency", "nan"], "--efficiency nan: must be above 0 and at most 1"),
        (
            ["--efficiency", "0.7", "--arch", "ring,token-ring"],
            "--arch ring,token-ring: 'token-ring' is unknown; there are ps, ",
        ),
        (["--efficiency", "0.7", "--workers", "4,x"], "--workers 4,x: 'x' is no number from 1 to 100000; write for example"),
        (["--efficiency", "0.7", "--workers", "...,4"], "--workers ...,4: '...' is no number from 1 to 100000"),
        (["--efficiency", "0.7", "--workers", "0"], "--workers 0: '0' is no number"),
        (["--efficiency", "0.7", "--servers", "0"], "--servers 0: must be at least 1"),
        (["--efficiency", "0.7", "--placement", "here"], "--placement here: must be colocated or dedicated"),
        (["--efficiency", "0.7", "--oversubscription", "4"], "--oversubscription 4 is about links between racks: add --racks"),
        (["--efficiency", "0.7", "--slots", "0"], "--slots 0: must be from 1 to 1000000"),
        (["--efficiency", "0.7", "--rtt", "0"], "--rtt 0: must be above 0 and at most 1e+06 microseconds"),
        (
            ["--efficiency", "0.7", "--per-host", "2"],
            "2 workers per host sum over nvlink or pcie: give the rate of one of them",
        ),
        (
            ["--efficiency", "0.7", "--set", "ethernet=fast"],
            "ethernet=fast: is no rate above 0 with its unit; write for example",
        ),
        (
            ["--efficiency", "0.7", "--set", "gpu=1TFLOPS"],
            "computing from amounts needs the rates of gpu, memory, pcie; memory, ",
        ),
        (["--efficiency", "0.7", "--json", "no/where.json"], "no/where.json cannot be written: there is no folder"),
        (["--efficiency", "0.7", "--plot", "x.pdf"], "--plot x.pdf: the picture is a PNG; let its name end in .png"),
        (
            ["--efficiency", "0.7", "--set", "ethernet=10Gbps,nvlink=50GB/s"],
            "--set ethernet=10Gbps,nvlink=50GB/s: write one --set for each medium, such as ",
        ),
        (["--calibration", "nowhere"], "nowhere does not exist; write results with --json"),
    ],
)
def test_misuse(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    features().save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_jobs_that_cannot_be_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "job.json", "--efficiency", 0.7) == 2
    assert capsys.readouterr().err == "error: job.json cannot be read: No such file or directory\n"
    features(link_bps=None).save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", "--efficiency", 0.7) == 2
    assert "job.json does not say over which link it was measured: give one with --set" in capsys.readouterr().err
    features(architecture="fsdp").save(tmp_path / "job.json")
    assert run(monkeypatch, "job.json", "--efficiency", 0.7) == 2
    assert "made-up is of class fsdp, which is not modelled: its parameters are gathered" in capsys.readouterr().err
