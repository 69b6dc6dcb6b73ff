"""`switchsum bench capture`: what it records of real trainings, that these learn the same, and what it says when that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from switchsum import autoload
from switchsum.measure import manifest
from switchsum.measure.manifest import Manifest
from tests.in_process import command_line

ROOT = Path(__file__).resolve().parents[2]
TRAINING = str(ROOT / "tests" / "measure" / "captured_training.py")
CAPTURING = [sys.executable, "-m", "switchsum.cli", "bench", "capture"]
STEPS = 3  # of each form of the training


def started(command: list[str]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Status and standard error."""
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    return process.returncode, errors


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    """Until it is there, or the process that would write it is not."""
    deadline = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def training(ranks: int, folder: Path, what: str) -> list[str]:
    return [sys.executable, TRAINING, str(folder), what, str(ranks)]


def test_every_form_of_ddp_is_recorded_and_learns_the_same(tmp_path: Path) -> None:
    """Three ranks, since with two a multiplication by 1/n and a division by n give the same bits."""
    folders = [tmp_path / "captured", tmp_path / "plain"]
    for folder in folders:
        folder.mkdir()
    output = tmp_path / "forms.json"
    captured = started([*CAPTURING, "--output", str(output), "--", *training(3, folders[0], "forms")])
    plain = started(training(3, folders[1], "forms"))  # at the same time: starting takes longer than training
    (status, errors), (plain_status, plain_errors) = ended(captured), ended(plain)
    assert status == 0, errors
    assert plain_status == 0, plain_errors

    weights = [torch.load(folder / "weights.pt") for folder in folders]
    for form, ended_with in weights[1].items():
        assert all(map(torch.equal, weights[0][form], ended_with)), form

    made = Manifest.load(output)
    assert made.name == "forms"
    steps = iter([step for step in made.steps for _ in range(step.times)])
    forms = json.loads((folders[0] / "forms.json").read_text())
    recorded = {form: [next(steps) for _ in range(count)] for form, _, count in forms}
    assert next(steps, None) is None
    for form, gradient_bytes, count in forms:
        if form == "sparse":  # 8 numbers of each row that rank 0 touched, and the dense layer
            touched = [sum(each.size_bytes for each in step.buffers if each.sparse) for step in recorded[form]]
            assert touched == [8 * 4 * (4 + number) for number in range(STEPS)]
            assert [step.size_bytes - rows for step, rows in zip(recorded[form], touched, strict=True)] == [4 * 9] * STEPS
        else:
            assert [step.size_bytes for step in recorded[form]] == [gradient_bytes] * count, form
            assert {buffer.dtype for step in recorded[form] for buffer in step.buffers} == {"float32"}
        for step in recorded[form]:
            times = [buffer.at_us for buffer in step.buffers]
            assert times[0] == 0
            assert times == sorted(times, key=float)
    # DDP sums all at once in its first step, and then in buckets in the order in which gradients became ready.
    first, *later = recorded["plain"]
    assert [len(step.buffers) for step in (first, *later)] == [1, 2, 2]
    assert first.iovecs == [10_000, 200] * 6
    assert later[0].iovecs == [200, 10_000] * 6
    assert [len(step.buffers) for step in recorded["two_in_one_backward_pass"]] == [2, 4, 4]

    source = made.source["captured"]
    assert source["ranks_recorded"] == 3
    assert source["ranks_alike"] is True
    assert source["modules"][0] == {
        "class": "Network",
        "parameters": 15_300,
        "bucket_cap_bytes": 20_971,
        "backend": "gloo",
        "ranks": 3,
    }
    assert errors.endswith(f"{output}: 52 steps; the usual one has 2 buckets of 12 tensors, 0.06 MB\n")


def test_what_was_recorded_before_a_training_failed_is_kept(tmp_path: Path) -> None:
    """And ranks that train different models are told of."""
    output = tmp_path / "payload.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--output", str(output), "--steps", "2", "--name", "parts"]
    status, errors = ended(started([*CAPTURING, *options, "--", *torchrun, TRAINING, str(tmp_path), "fails"]))
    assert status == 1, errors  # torchrun's
    made = Manifest.load(output)
    assert made.name == "parts"
    assert sum(step.times for step in made.steps) == 2
    assert made.usual.size_bytes == 4 * 10 * 51  # rank 0's
    assert made.source["captured"]["ranks_alike"] is False
    assert errors.splitlines()[-3:] == [
        f"{output}: 2 steps; the usual one has 1 buckets of 2 tensors, 0.00 MB",
        "the ranks did not sum the same buckets (parts of a model, perhaps); the file has rank 0's",
        "the training ended with status 1; the file has what was recorded until then",
    ]


def test_a_training_that_is_ended_leaves_what_was_recorded(tmp_path: Path) -> None:
    output = tmp_path / "payload.json"
    process = started([*CAPTURING, "--output", str(output), "--", *training(1, tmp_path, "waits")])
    await_file(tmp_path / "trained", process)
    process.send_signal(signal.SIGTERM)
    status, errors = ended(process)
    assert status == 128 + signal.SIGTERM, errors
    assert sum(step.times for step in Manifest.load(output).steps) == STEPS


@pytest.mark.parametrize("observer", ["bench capture", "profile"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_training_that_is_ended_before_anything_was_recorded(tmp_path: Path, observer: str, number: signal.Signals) -> None:
    """The signal is the reason, and not what the training lacks by then. A terminal sends Ctrl-C to both."""
    script, began = tmp_path / "sleeps.py", tmp_path / "began"
    script.write_text(f"import time; open({str(began)!r}, 'w').close(); time.sleep(600)")
    words = [sys.executable, "-m", "switchsum.cli", *observer.split(), "--output", str(tmp_path / "left")]
    process = started([*words, "--", sys.executable, str(script)])
    await_file(began, process)
    if number == signal.SIGINT:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), number)
    process.send_signal(number)
    status, errors = ended(process)
    assert status == 128 + number, errors
    assert f"{number.name} ended the training before" in errors


def test_a_signal_that_the_training_withstood_did_not_end_it(tmp_path: Path) -> None:
    began = tmp_path / "began"
    script = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(began)!r}, 'w').close(); time.sleep(1)"
    )
    words = [*CAPTURING, "--output", str(tmp_path / "left")]
    process = started([*words, "--", sys.executable, "-c", script])
    await_file(began, process)
    process.send_signal(signal.SIGTERM)
    status, errors = ended(process)
    assert status == 1
    assert "no process of it imported torch" in errors


def test_a_training_without_ddp_leaves_nothing(tmp_path: Path) -> None:
    """And keeps a payload that was there."""
    output = tmp_path / "payload.json"
    manifest.single(10).save(output)
    status, errors = ended(started([*CAPTURING, "--output", str(output), "--", *training(1, tmp_path, "alone")]))
    assert status == 1
    assert errors.endswith(
        f"error: nothing was captured, and {output} was not written: the training summed no gradients with "
        "DistributedDataParallel, which is what is recorded\n"
    )
    assert Manifest.load(output) == manifest.single(10)


def test_an_error_that_ended_the_recording_is_told(tmp_path: Path) -> None:
    output = tmp_path / "payload.json"
    status, errors = ended(started([*CAPTURING, "--output", str(output), "--", *training(1, tmp_path, "bare")]))
    assert status == 1
    assert errors.endswith(
        f"error: nothing was captured, and {output} was not written: an error ended the recording before its first step did: "
        "'DistributedDataParallel' object has no attribute 'bucket_bytes_cap'\n"
    )
    assert not output.exists()


def test_a_folder_that_is_gone_breaks_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(autoload.CAPTURE, f"9:{tmp_path}/gone")
    with pytest.warns(UserWarning, match="switchsum bench capture cannot record this process: .*No such file or directory"):
        autoload.register()


def run(command: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    return command_line(monkeypatch, "bench", command, *words)


def test_what_cannot_work_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    command = ["--", "touch", str(ran)]
    output = ["--output", str(tmp_path / "payload.json")]
    cases = [
        (["--output", str(tmp_path / "no" / "p.json")], 2, f"--output {tmp_path}/no/p.json cannot be written: No such file or"),
        (["--output", str(tmp_path)], 2, f"--output {tmp_path} is no file; name one"),
        ([*output, "--steps", "0"], 2, "--steps 0: must be from 1 to 10000"),
        ([*output, "--name", "a b"], 2, "'a b' is no name: 1 to 64 letters"),
        (["--output", str(tmp_path / "ö.json")], 2, "'\\xf6' is no name: 1 to 64 letters"),
    ]
    for words, status, message in cases:
        assert run("capture", [*words, *command], monkeypatch) == status
        assert capsys.readouterr().err.startswith(f"error: {message}")
    assert run("capture", [*output, "--", "no such program"], monkeypatch) == 127
    assert (
        capsys.readouterr().err == "error: there is no program 'no such program' on PATH; write its words apart, not as one\n"
    )
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert run("capture", [*output, *command], monkeypatch) == 2
    assert "unset it" in capsys.readouterr().err
    assert not ran.exists()


def test_a_command_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "payload.json"
    assert run("capture", ["--output", str(output), "--", "sh", "-c", "exit 3"], monkeypatch) == 3
    assert capsys.readouterr().err == (
        f"error: nothing was captured, and {output} was not written: no process of it imported torch together with switchsum; "
        "install switchsum where the training's torch is (it ended with status 3)\n"
    )
    assert not output.exists()


def test_captures_that_come_with_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are what docs/payloads.md says."""
    weights = {"gpt2": 124_439_808, "recommender": 6_354_353, "resnet50": 25_557_032}
    assert manifest.shipped() == sorted(weights)
    for name, count in weights.items():
        found = manifest.find(name)
        assert found.name == name
        assert found.source["captured"]["ranks_alike"] is True
        assert {step.size_bytes for step in found.steps} == {4 * count}
    page = (ROOT / "docs" / "payloads.md").read_text()
    assert run("payloads", [], monkeypatch) == 0
    title, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert title == ["payload", "steps", "buckets", "tensors", "MB", "small", "medium", "large", "above"]
    assert [line[0] for line in lines] == [*manifest.SCHEMES, *sorted(weights)]
    for name, _, buckets, _, megabytes, *sizes in lines[len(manifest.SCHEMES) :]:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"{weights[name]:,} weights" in row
        assert row.endswith(f"| {buckets} buckets, {megabytes} MB | {', '.join(sizes)} |")
    assert run("payloads", ["resnet51"], monkeypatch) == 2
    assert "there is no such file, and no capture of that name; there are gpt2," in capsys.readouterr().err


def test_the_files_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "payloads.md").read_text()
    path = tmp_path / "payload.json"
    path.write_text(page.split("```json\n")[1].split("```")[0])
    assert Manifest.load(path).usual.iovecs == [400, 4000, 8000]
