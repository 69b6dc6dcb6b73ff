"""`switchsum whatif`: table, verdicts, advice, JSON and picture of jobs that gain and that do not, and misuse."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchsum import cli
from switchsum.measure import advice, whatif, whatif_pictures, whatif_table
from switchsum.measure.costs import Cluster
from switchsum.measure.features import Bucket, Features
from switchsum.measure.prediction import CannotPredict, Ground
from switchsum.measure.whatif import Study
from switchsum.whatif_command import counts
from tests.measure.made_features import features
from tests.measure.made_results import results
from tests.measure.test_calibration import calibration, made
from tests.measure.test_report import PNG, check

ORDER = ["Measure", "Change the software", "Try small", "Buy"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["switchsum", "whatif", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def study(job: Features, *gbps: float, ground: Ground | None = None, architectures: Any = ("ring", "switch")) -> Study:
    rates = [{"ethernet": each * 1e9 / 8} for each in gbps]
    return whatif.study(job, architectures, [Cluster(job.workers)], rates, ground or Ground(efficiency=0.7))


def advised(found: Study) -> dict[str, str]:
    listed = advice.advise(found)
    assert [each.heading for each in listed] == ORDER
    return {each.heading: " ".join(each.sentences) for each in listed}


def test_a_job_that_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    features(link_bps=1e9, exposed_s=(0.0,) * 5).save(tmp_path / "job.json")
    made().save(tmp_path / "sums.json")
    arguments = ["--set", "ethernet=1Gbps,10Gbps", "--workers", "4,8", "--calibration", tmp_path / "sums.json", "--rtt", 50]
    arguments += ["--json", tmp_path / "out.json", "--plot", tmp_path / "out.png"]
    arguments += ["--page", tmp_path / "out.html"]
    assert run(monkeypatch, tmp_path / "job.json", *arguments) == 0
    told = capsys.readouterr().out
    table = [line.split() for line in told.splitlines() if re.match(r" *(ps|ring|switch) ", line)]
    assert [row[0] for row in table] == ["ps", "ring", "switch"] * 4
    assert "GAIN: switch against ring" in told
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
    gains = advised(study(features(link_bps=1e9), 1.0))
    assert "switchsum rack run FILE" in gains["Try small"]
    assert re.search(r"A switch that adds \(switch, 4 workers, 1 Gbit/s\): 1\.\d\d.* times as fast as ring", gains["Buy"])
    none = advised(study(features(gradient_bytes=1000, buckets=(), link_bps=10e9), 10.0))
    assert none["Try small"].startswith("Nothing to try with a switch, for the link is not the bottleneck: sums take ")
    assert none["Buy"].startswith(
        "Do not buy a switch for this job: with 4 workers at 10 Gbit/s there is no gain, for the link"
    )
    undecided = advised(study(features(), 10.0, ground=Ground(calibration(spread=0.4), rtt_s=1e-6)))
    assert undecided["Buy"].startswith("Do not buy yet: ")


def test_advice_begins_with_what_was_not_measured() -> None:
    said = advised(study(features(synthetic=True, step_s=(0.4,), compute_s=(0.3,), input_s=(0.01,), exposed_s=(0.08,)), 10.0))
    for part in ("These features are made up.", "Profile more steps: 1 tell little", "Calibrate: "):
        assert part in said["Measure"]
    assert "Find out first why the model misses the present: it says " in advised(study(features(link_bps=1e9), 10))["Measure"]
    assert "the link on which the job was measured is not known" in advised(study(features(link_bps=None), 10))["Measure"]
    single = features(architecture="1w1g", workers=1, link_bps=None)
    found = whatif.study(single, ["ring"], [Cluster(4)], [{"ethernet": 1e9}], Ground(efficiency=0.7))
    assert "the link on which the job was measured is not known" in advised(found)["Measure"]


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
    assert f"100 Gbit/s links alone, with {usual}: " in said[-1]


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
    assert "100 Gbit/s links alone, with ring: " in advised(study(features(link_bps=1e9), 1.0, 100.0))["Buy"]


def test_scale_on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    features(link_bps=25e9).save(tmp_path / "job.json")
    arguments = ["--workers", "64,...,4096", "--racks", 32, "--oversubscription", 4, "--efficiency", 0.7]
    assert run(monkeypatch, tmp_path / "job.json", "--arch", "ring,hierarchical,switch", *arguments) == 0
    told = capsys.readouterr().out
    assert [count for count in (64, 128, 4096) if f" {count} " in told] == [64, 128, 4096]
    assert "oversubscription" in told
    assert "need a tree of switches, each adding up to 32 streams: on paper only" in " ".join(told.split())


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
