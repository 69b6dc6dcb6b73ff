"""`switchsum fleet`: shares and gains of jobs that are known, the page, and a fleet that says that it is made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from switchsum.measure import fleet, fleet_page, fleet_pictures, synthetic_fleet
from switchsum.measure.features import BadFeatures
from switchsum.measure.fleet import Fleet
from switchsum.measure.prediction import Ground
from tests.in_process import command_line
from tests.measure.made_features import features
from tests.measure.test_calibration import calibration
from tests.measure.test_report import PNG, check

RATES = {"ethernet": [3.125e9, 12.5e9], "pcie": [10e9], "nvlink": [50e9]}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    return command_line(monkeypatch, "fleet", *arguments)


def studied(*jobs: object) -> Fleet:
    return fleet.study(list(jobs), RATES, Ground(efficiency=0.7))  # type: ignore[arg-type]


def test_shares_and_levels() -> None:
    """One job without sums, and one of four workers whose sums take 290 ms: as long as computing and input."""
    size = 7 * 31_000_000 * 10 // 10
    job = features(buckets=(), gradient_bytes=size, architecture="ps/worker", link_bps=8e9 * size / 0.31 / 0.7 / 1e9)
    found = studied(features(architecture="1w1g", workers=1, gradient_bytes=0, buckets=()), job)
    # ps moves the bytes over the link, and then over PCIe.
    sums = 0.31 + size / 7e9
    assert found.jobs[1].shares == pytest.approx(
        {"input": 0.01 / (0.31 + sums), "computing": 0.3 / (0.31 + sums), "sums": sums / (0.31 + sums)}
    )
    by_job, by_cnode = (fleet.mean_shares(found.jobs, level) for level in fleet.LEVELS)
    assert by_job is not None
    assert by_cnode is not None
    assert by_job["sums"] == pytest.approx(sums / (0.31 + sums) / 2)
    assert by_cnode["sums"] == pytest.approx(4 / 5 * sums / (0.31 + sums))
    assert fleet.mean_exposed(found.jobs, "job") == pytest.approx(0.2)
    assert found.classes == ["1w1g", "ps/worker"]


def test_who_gains() -> None:
    slow = features(buckets=(), architecture="ddp", workers=16, link_bps=1e9)
    hidden = features(gradient_bytes=1000, buckets=(), workers=64)
    found = studied(slow, hidden, features(architecture="allreduce-local"), features(architecture="fsdp"))
    assert found.changes == ("25 Gbit/s links", "100 Gbit/s links", fleet._ALLREDUCE, "switch")
    for name in found.changes:
        assert (fleet.gaining(found.jobs, name, "job"), fleet.gaining(found.jobs, name, "cNode")) == (0.5, 16 / 80), name
    assert found.jobs[2].gains == {}  # nothing of it passes a network
    assert len(found.modelled) == 3


def test_the_median_of_an_even_number_lies_between() -> None:
    slow, fast = (features(buckets=(), workers=16, link_bps=rate) for rate in (1e9, 10e9))
    found = studied(slow, fast)
    one, other = sorted(job.gains["switch"].value for job in found.jobs)
    assert fleet.speedups(found.jobs, "switch") == pytest.approx([one, (one + other) / 2, other])
    page = fleet_page.render(found, [], Ground(efficiency=0.7))
    assert all(f"<td>{each:.2f}</td>" in page for each in (one, (one + other) / 2, other))
    assert f"median {(one + other) / 2:.2f}" in " ".join(fleet_pictures.gains(found).says)


def test_what_no_lane_holds_cannot_change_to_a_switch() -> None:
    wide = features(buckets=(), dtype="float64", architecture="ps/worker", link_bps=1e9)
    assert "switch" not in studied(wide).jobs[0].gains
    assert "switch" in studied(replace(wide, dtype="float32")).jobs[0].gains


def test_a_gain_needs_the_whole_interval() -> None:
    job = features(buckets=(), workers=16, link_bps=10e9)
    sure, unsure = (fleet.study([job], RATES, Ground(calibration(spread=spread), rtt_s=1e-6)) for spread in (1e-6, 0.4))
    assert [fleet.gaining(each.jobs, "switch", "job") for each in (sure, unsure)] == [1.0, 0.0]
    assert "pcie and nvlink: 100 % of their rates" in fleet_page.render(sure, [], Ground(calibration()))
    assert sure.jobs[0].gains["switch"].value == pytest.approx(unsure.jobs[0].gains["switch"].value, rel=0.1)


def test_a_distribution() -> None:
    jobs = studied(features(workers=1), features(workers=3)).jobs
    assert fleet.distribution(jobs, [0.5, 0.2], "cNode") == ([0.0, 0.2, 0.5], [0.0, 0.75, 1.0])
    assert fleet.distribution(jobs, [0.5, 0.2], "job") == ([0.0, 0.2, 0.5], [0.0, 0.5, 1.0])


def test_a_made_up_fleet_says_so_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    assert run(monkeypatch, folder, "--synthetic", 40, "--seed", 3, "--json", tmp_path / "fleet.json") == 0
    assert "SYNTHETIC: 40 of 40 jobs are made up and say nothing of real ones" in capsys.readouterr().out
    page = check(folder / "report" / "index.html")
    assert '<span class="bad">SYNTHETIC: All jobs on this page are made up by a generator.' in page.text
    assert len(page.images) == 3
    for name in ("shares", "communication", "gains"):
        assert (folder / "report" / f"{name}.png").read_bytes().startswith(PNG)
    told = json.loads((tmp_path / "fleet.json").read_text())
    assert (told["jobs"], told["synthetic"]) == (40, 40)
    # What the paper says stands in one sentence of its abstract's, below the words that nothing of it was found.
    before, _, after = page.words.partition("None of it was found here.")
    assert "62 %" not in before
    assert after.count("62 %") == 1
    assert run(monkeypatch, folder, "--synthetic", 40) == 2
    assert "is not empty: jobs are only made up in a new or empty folder" in capsys.readouterr().err


def test_the_same_seed_makes_the_same_fleet() -> None:
    assert list(synthetic_fleet.jobs(30, 7)) == list(synthetic_fleet.jobs(30, 7))
    assert list(synthetic_fleet.jobs(30, 7)) != list(synthetic_fleet.jobs(30, 8))
    assert all(job.synthetic for job in synthetic_fleet.jobs(30, 7))


def test_one_made_up_job_among_others_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features().save(tmp_path / "a.json")
    features(name="made", synthetic=True).save(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("[]")
    assert run(monkeypatch, tmp_path, "--output", tmp_path / "page") == 0
    words = check(tmp_path / "page" / "index.html").words
    assert "SYNTHETIC: 1 of 2 jobs on this page are made up" in words
    assert f"{tmp_path}/c.json: schema a list of 0 is not" in words


def test_all_ranks_of_a_profile_are_one_job(tmp_path: Path) -> None:
    features(name="alone").save(tmp_path / "alone.json")
    (tmp_path / "profiled").mkdir()
    for rank in range(4):
        features().save(tmp_path / "profiled" / f"features.rank{rank}.json")
    assert [each.name for each in fleet.load(tmp_path)[0]] == ["alone", "made-up"]
    assert len(fleet.load(tmp_path / "profiled")[0]) == 1
    (tmp_path / "profiled" / "features.rank3.json").unlink()
    with pytest.raises(BadFeatures, match="features of 3 ranks of 4: bring all ranks' files together"):
        fleet.load(tmp_path)


def test_real_jobs_are_not_marked() -> None:
    text = fleet_page.render(studied(features()), [], Ground(efficiency=0.7))
    assert "SYNTHETIC" not in text
    assert text.count('class="bad"') == 1  # that nothing of the paper's was found here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is no folder; give the one that has the jobs' features"),
        (["."], ". has no features in it (0 other *.json): write some with `switchsum profile`, or make up a fleet with"),
        ([".", "--efficiency", "2"], "--efficiency 2: must be above 0 and at most 1"),
        ([".", "--set", "gpu=1TFLOPS"], "--set gpu: a fleet has rates of ethernet, and one each of pcie and nvlink"),
        ([".", "--set", "pcie=1GB/s,2GB/s"], "--set pcie: a fleet has rates of ethernet, and one each of pcie and nvlink"),
        (["new", "--synthetic", "0"], "--synthetic 0: must be from 1 to 10000 jobs"),
        (["no/where", "--synthetic", "1"], "no/where cannot be written: No such file or directory"),
        ([".", "--json", "no/where.json"], "no/where.json cannot be written: there is no folder"),
    ],
)
def test_misuse(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) in (1, 2)
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (tmp_path / "new").exists()


def test_a_damaged_job_is_no_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    features().save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text().replace('"workers": 4', '"workers": -4'))
    assert run(monkeypatch, tmp_path) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/b.json: workers -4 is out of range: 1 to 1000000\n"
