"""`switchsum profile` and `switchsum.profile`: what they write of real trainings, that these compute the same, and messages."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import switchsum
from switchsum import autoload
from switchsum.bucket_recorder import AlreadyWatched
from switchsum.measure.features import Features, of_job
from switchsum.operation_counter import OperationCounter, StepCounts
from switchsum.profile_command import link_rate_bps
from switchsum.profile_plan import ProfilePlan
from switchsum.step_profiler import Rounds
from switchsum.step_times import HostClock, ReadyBucket, StepMarks, StepTimes, Sums
from tests.in_process import command_line

ROOT = Path(__file__).resolve().parents[2]
SHORT = {"steps": 3, "warmup": 2, "traced": 1}
NEEDED = 11

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = int(sys.argv[1])
data = TensorDataset(torch.randn(4 * steps, 20), torch.randint(0, 10, (4 * steps,)))
for x, y in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
sys.exit(int(sys.argv[2]))
"""


WATCHED = """
import sys, torch, switchsum
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.in_process import command_line

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with switchsum.profile(sys.argv[1]):
    model = DistributedDataParallel(torch.nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
print("trained")
"""


def train(steps: int, model: Any = None, after: Callable[[int], object] = lambda _: None) -> nn.Module:
    """`after`: called with the number of each step."""
    torch.manual_seed(0)
    model = nn.Linear(20, 10) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        after(step)
    return model


def events_of(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "rank0.trace.json.gz") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings of several forms over two ranks, and their profiles."""
    folder = tmp_path_factory.mktemp("forms")
    command = [sys.executable, str(ROOT / "tests" / "measure" / "profiled_training.py"), str(folder), "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHSUM_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_form_computes_the_same(forms: Path) -> None:
    for rank in (0, 1):
        equal = json.loads((forms / f"forms.rank{rank}.json").read_text())
        assert len(equal) == 9
        assert all(equal.values()), equal


@pytest.mark.parametrize(
    ("form", "architecture", "gradient_bytes", "parameter_bytes", "embedded_bytes", "batch"),
    [
        # 4 x 9 + 4 of the convolution, 2 x 4 of the normalisation, 144 x 10 + 10 of the layer on top.
        ("convolutional", "allreduce-local", 4 * 1498, 4 * 1498, 0, 4),
        ("sequential", "allreduce-cluster", 4 * 5034, 4 * 5034, 4 * 1600, 4),
        # Of the table, only the rows that were touched travel.
        ("sparse", "ddp", 4 * (5 * 8 + 90), 4 * 8090, 4 * 8000, 4),
        ("compressed", "ddp", 2 * 210, 4 * 210, 0, 4),
        ("accumulated", "ddp", 4 * 210, 4 * 210, 0, 8),
        ("adversarial", "ddp", 4 * 4 * 110, 4 * 2 * 110, 0, 4),  # both sum in both backward passes
        ("scaled", "ddp", 4 * 210, 4 * 210, 0, 4),
        ("by_hand", "other", 0, 4 * 210, 0, 4),
        ("sharded", "fsdp", 0, 4 * 210, 0, 4),
    ],
)
def test_features_of_ranks_that_sum(
    forms: Path, form: str, architecture: str, gradient_bytes: int, parameter_bytes: int, embedded_bytes: int, batch: int
) -> None:
    for rank in (0, 1):
        found = Features.load(forms / form / f"features.rank{rank}.json")
        assert (found.name, found.source["rank"], found.workers, found.backend) == ("profiled_training", rank, 2, "gloo")
        assert found.architecture == architecture, found.architecture_rule
        assert ("not modelled" in found.architecture_rule) == (architecture in ("other", "fsdp"))
        assert found.gradient_bytes == gradient_bytes + (4 * 8 * rank if form == "sparse" else 0)
        assert sum(bucket.size_bytes for bucket in found.buckets) == found.gradient_bytes
        assert [bucket.ready_s for bucket in found.buckets] == sorted(bucket.ready_s for bucket in found.buckets)
        assert found.dense_parameter_bytes + found.embedding_parameter_bytes == parameter_bytes
        assert found.embedding_parameter_bytes == embedded_bytes
        assert found.batch_size == batch
        assert len(found.step_s) == 3
        assert sum(found.exposed_s) > 0
        assert found.source["profiling"]["traced_to_plain"] > 0
        assert (forms / form / f"rank{rank}.trace.json.gz").exists()
        assert not [line for line in found.source["lines"] if "FLOPs" in line]  # both counters agree


def test_ranks_that_touched_other_rows_are_one_job(forms: Path) -> None:
    assert of_job(forms / "sparse").gradient_bytes == 4 * (6 * 8 + 90)


def test_what_is_particular_to_a_form(forms: Path) -> None:
    found = {form: Features.load(forms / form / "features.rank0.json") for form in ("compressed", "scaled", "sequential")}
    assert [bucket.dtype for bucket in found["compressed"].buckets] == ["float16"]
    assert found["scaled"].dtype == "bfloat16"
    operations = found["sequential"].source["flops_by_operation"]
    # 4 samples of 7 words; each word once through the 4 x 16 x 16 weights of its input and of its state.
    assert operations["aten.mkldnn_rnn_layer"] == 2 * (4 * 7) * 2 * (4 * 16 * 16)
    # 2 heads of 8: 7 x 7 scores, and as many products with values.
    assert operations["aten._scaled_dot_product_flash_attention_for_cpu"] == 4 * 2 * 2 * (2 * 7 * 7 * 8)
    assert len(found["sequential"].buckets) == 2
    assert Features.load(forms / "sparse" / "features.rank0.json").source["other_collective_bytes"] == 0
    # Normalisation: means, variances and a counter are broadcast in every forward pass.
    assert Features.load(forms / "convolutional" / "features.rank0.json").source["other_collective_bytes"] == 2 * 4 * 4 + 8
    assert [event["name"] for event in events_of(forms / "accumulated") if event["name"].startswith("ProfilerStep")] == [
        "ProfilerStep#1"
    ]
    assert [event for event in events_of(forms / "accumulated") if event["name"] == "gloo:all_reduce"]


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    return command_line(monkeypatch, "profile", *words)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "my script.py"
    path.write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in (autoload.CAPTURE, autoload.PROFILE, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return str(path)


def test_a_script_that_knows_nothing_of_it(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It also ends with a status of its own, which is passed on."""
    folder = tmp_path / "profile"
    options = ["--output", str(folder), "--steps", "3", "--warmup", "2", "--traced", "2", "--link", "25G"]
    assert run([*options, "--", sys.executable, script, "40", "3"], monkeypatch) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["features.rank0.json", "rank0.trace.json.gz"]

    found = Features.load(folder / "features.rank0.json")
    assert (found.name, found.architecture, found.workers, found.backend) == ("my-script", "1w1g", 1, "none")
    assert (found.batch_size, found.input_bytes) == (4, 4 * (20 * 4 + 8))
    # Forwards, for the gradients of weights, and of the second layer's input.
    assert found.flops == 2 * 4 * (2 * (20 * 30 + 30 * 10) + 30 * 10)
    assert found.dense_parameter_bytes == 4 * (21 * 30 + 31 * 10)
    assert (found.gradient_bytes, found.buckets, found.exposed_s) == (0, (), (0.0, 0.0, 0.0))
    assert min(*found.input_s, *found.compute_s, found.forward_s, found.backward_s) > 0
    assert found.link_bps == 25e9
    assert found.source["command"] == [sys.executable, script, "40", "3"]
    assert found.source["flops_of_profiler"] == {"matmul": found.flops, "conv2d": 0.0}

    # Steps follow each other, and each holds its optimizer's step.
    spans = {
        event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in events_of(folder) if "Step#" in event["name"]
    }
    assert list(spans) == ["ProfilerStep#1", "ProfilerStep#2"]
    updates = [event for event in events_of(folder) if event["name"] == "Optimizer.step#SGD.step"]
    for (begin, end), update in zip(spans.values(), updates, strict=True):
        assert begin < update["ts"] < update["ts"] + update["dur"] <= end

    said = capfd.readouterr().err
    assert f"{folder}: features of 1 of 1 ranks, 1w1g: it is one process\n" in said
    assert re.search(r"rank 0: a step takes [\d.]+ ms \+-[\d.]+ \(3 steps\): computing .* exposed communication 0.0 %", said)
    assert re.search(r"traced steps took [\d.]+ times as long as these", said)
    assert said.endswith("the training ended with status 3\n")

    assert run([*options, "--", sys.executable, script, "40", "0"], monkeypatch) == 2
    assert capfd.readouterr().err == (
        f"error: --output {folder} holds a profile already (features.rank0.json); name another folder\n"
    )


def test_a_training_that_is_too_short(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--output", str(tmp_path / "short"), "--warmup", "2"]
    assert run([*options, "--", sys.executable, script, "5", "0"], monkeypatch) == 1
    assert capfd.readouterr().err == (
        "error: nothing was profiled: rank 0 made 5 steps, and it takes 32; let it run for longer, or ask for fewer "
        "(--steps, --warmup, --traced)\n"
    )
    # Some were timed: features without a trace.
    assert run([*options, "--", sys.executable, script, "12", "0"], monkeypatch) == 0
    assert [path.name for path in (tmp_path / "short").iterdir()] == ["features.rank0.json"]
    assert len(Features.load(tmp_path / "short" / "features.rank0.json").step_s) == 6
    assert capfd.readouterr().err.endswith(
        "rank 0: it ended after 12 steps, so 6 were timed and none was traced, and a full profile takes 32; let it "
        "run for longer, or ask for fewer (steps, warmup, traced)\n"
    )


def test_commands_that_train_nothing(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--output", str(tmp_path / "none"), "--"]
    assert run([*options, "sh", "-c", "exit 4"], monkeypatch) == 4
    assert capfd.readouterr().err == (
        "error: nothing was profiled: no process of it imported torch together with switchsum; install switchsum where the "
        "training's torch is (it ended with status 4)\n"
    )
    assert run([*options, sys.executable, "-c", "import torch"], monkeypatch) == 1
    assert capfd.readouterr().err == (
        "error: nothing was profiled: no process of it made two steps with an optimizer of torch.optim, which is how steps are "
        "told apart\n"
    )
    assert run([*options, sys.executable, "-c", "import torch, sys; sys.exit(3)"], monkeypatch) == 3
    assert capfd.readouterr().err == (
        "error: nothing was profiled: the training ended before its second step; what it printed says why (it ended with "
        "status 3)\n"
    )
    assert not (tmp_path / "none").exists()  # an empty folder is of no use to anybody


def test_what_cannot_work_is_said_before_anything_runs(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran, file = tmp_path / "ran", tmp_path / "file"
    file.touch()
    command = ["--", "touch", str(ran)]
    output = ["--output", str(tmp_path / "profile")]
    cases = [
        (["--output", str(file)], f"--output {file} cannot be written: File exists"),
        ([*output, "--steps", "1"], "--steps 1: must be a whole number from 2 to 100000"),
        ([*output, "--warmup", "1"], "--warmup 1: must be a whole number from 2 to 100000"),
        ([*output, "--traced", "0"], "--traced 0: must be a whole number from 1 to 100000"),
        ([*output, "--name", "a b"], "--name 'a b': must be 1 to 64 letters, digits,"),
        ([*output, "--link", "fast"], "--link 'fast' is not a rate, such as 25G or 100 Mbit/s"),
        ([*output, "--link", "-25G"], "--link '-25G' is not a rate"),
        ([*output, "--link", "nan"], "--link 'nan' is not a rate"),
        ([*output, "--link", "0"], "--link 0 is out of range: 10 kbit/s to 1000 Tbit/s"),
        ([*output, "--link", "1001T"], "--link 1001T is out of range"),
        ([*output, "--link", "9" * 400], f"--link {'9' * 400} is out of range"),
    ]
    for words, message in cases:
        assert run([*words, *command], monkeypatch) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    assert run([*output, "--", "no such program"], monkeypatch) == 127
    assert "write its words apart, not as one" in capsys.readouterr().err
    monkeypatch.setenv(autoload.CAPTURE, "9:/nowhere")
    assert run([*output, *command], monkeypatch) == 2
    assert "inside `switchsum bench capture` already" in capsys.readouterr().err
    monkeypatch.delenv(autoload.CAPTURE)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert run([*output, *command], monkeypatch) == 2
    assert "unset it" in capsys.readouterr().err
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400G", 4e11), ("800Gbit/s", 8e11), ("1.6T", 1.6e12), ("1000 Tbit", 1e15), ("25g", 25e9), (" 100 Mbit/s ", 1e8),
        ("10k", 1e4), ("10000", 1e4), ("10000bit", 1e4),
    ],
)  # fmt: skip
def test_links_of_any_rate(text: str, rate_bps: float) -> None:
    assert link_rate_bps(text) == rate_bps


def test_a_folder_that_is_gone_breaks_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ProfilePlan(tmp_path / "gone", "gone", notes=tmp_path / "gone")
    monkeypatch.setenv(autoload.PROFILE, plan.as_text())
    with pytest.warns(UserWarning, match="switchsum profile cannot profile this process: .*No such file or directory"):
        autoload.register()


def test_a_plan_survives_the_environment(tmp_path: Path) -> None:
    plan = ProfilePlan(tmp_path, "it", 7, 3, 2, 1e9, ("torchrun", "train.py"), tmp_path / "notes")
    assert ProfilePlan.from_text(plan.as_text()) == plan
    with pytest.raises(ValueError, match="link_bps nan: must be above 0"):
        ProfilePlan(tmp_path, "it", link_bps=float("nan"))


def test_the_context_manager_leaves_nothing_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    patched = (torch.autograd.backward, DataLoader.__iter__, torch.amp.GradScaler.step, torch.distributed.Work.wait)
    plain = train(NEEDED)
    with switchsum.profile(tmp_path / "deep" / "profile", name="mine", **SHORT):
        profiled = train(NEEDED)
    assert all(map(torch.equal, plain.parameters(), profiled.parameters()))
    found = Features.load(tmp_path / "deep" / "profile" / "features.rank0.json")
    assert (found.name, found.batch_size, found.input_bytes) == ("mine", 4, 0)
    now = (torch.autograd.backward, DataLoader.__iter__, torch.amp.GradScaler.step, torch.distributed.Work.wait)
    assert now == patched

    with switchsum.profile(tmp_path / "short", **SHORT):
        train(NEEDED - 6)
    assert "it made 5 steps, and a profile takes 11, so nothing was written" in capfd.readouterr().err
    with pytest.raises(ValueError, match="steps 0: must be a whole number from 2"), switchsum.profile(tmp_path, steps=0):
        pass


def test_one_inside_another_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with switchsum.profile(tmp_path / "outer", **SHORT):
        with pytest.raises(AlreadyWatched, match="this runs inside another"), switchsum.profile(tmp_path / "inner"):
            pytest.fail("it runs")
        train(NEEDED)
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    Features.load(tmp_path / "outer" / "features.rank0.json")


@pytest.mark.parametrize("who", ["profile", "bench capture"])
def test_a_script_that_profiles_itself_trains_under_the_commands(who: str, tmp_path: Path) -> None:
    """Also where one command runs the other: the capture has it."""
    watched = tmp_path / "watched"
    watched.mkdir()
    plan = ProfilePlan(watched, "watched", **SHORT, notes=watched)
    environment = os.environ | {"PYTHONPATH": str(ROOT), autoload.PROFILE: plan.as_text()}
    if who == "bench capture":
        environment |= {autoload.CAPTURE: f"9:{watched}"}
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "own")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "trained\n", done.stderr
    assert f"`switchsum {who}` watches this training, so nothing is written to {tmp_path / 'own'}\n" in done.stderr
    assert not (tmp_path / "own").exists()
    assert (watched / "features.rank0.json").exists() == (who == "profile")
    (note,) = (json.loads(path.read_text()) for path in watched.glob("0-*.json"))
    assert note["error"] == (
        "" if who == "profile" else "`switchsum bench capture` watches this training already; one can at a time"
    )


def test_another_training_in_the_same_process_begins_again(tmp_path: Path) -> None:
    with switchsum.profile(tmp_path, **SHORT):
        train(NEEDED - 3)  # in the middle of what would be timed
        train(NEEDED, nn.Linear(20, 7))
    assert Features.load(tmp_path / "features.rank0.json").dense_parameter_bytes == 4 * 21 * 7


def test_features_are_there_if_the_trace_cannot_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.trace.json.gz").mkdir()
    with switchsum.profile(tmp_path, **SHORT):
        train(NEEDED)
    assert "profiling ends here, the training goes on: [Errno 21] Is a directory" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.rank0.json", "rank0.trace.json.gz"]
    found = Features.load(tmp_path / "features.rank0.json")
    assert found.source["flops_of_profiler"]["matmul"] == found.flops > 0


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@pytest.mark.parametrize(
    ("begins", "warmup"),
    [
        (0, 8),  # through all of ours; it only warms up where the first of our steps is counted
        (3, 0),  # in the step that is counted
        (5, 0),  # in one that is timed
        (4, 1),  # it warms up where nothing is
        (8, 0),  # in ours
    ],
)
def test_a_profiler_of_the_training_has_its_way(
    begins: int, warmup: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded = []
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=1, repeat=1))

    def theirs(step: int) -> None:
        if step == begins:
            profiler.start()
        elif step > begins:
            profiler.step()
        if step == begins + warmup:
            torch.ones(3).add(1)
        if step == begins + warmup + 1:
            recorded.extend(event.key for event in profiler.key_averages())

    plain = train(NEEDED)
    with switchsum.profile(tmp_path, **SHORT):
        profiled = train(NEEDED, after=theirs)
    assert "aten::add" in recorded
    assert all(map(torch.equal, plain.parameters(), profiled.parameters()))
    assert "profiling ends here, the training goes on: the training runs torch.profiler itself" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_compiled_training_is_not_counted(tmp_path: Path) -> None:
    """Its operations would run uncompiled meanwhile, and might round differently."""
    try:
        with switchsum.profile(tmp_path, **SHORT):
            train(NEEDED, torch.compile(nn.Linear(20, 10), backend="eager"))
    finally:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
    found = Features.load(tmp_path / "features.rank0.json")
    assert found.memory_bytes == 0
    assert found.flops == 2 * 2 * 4 * 20 * 10
    assert [line for line in found.source["lines"] if line.startswith("the training is compiled")]


def padded(x: torch.Tensor) -> torch.Tensor:
    """Of an encoder layer that is not trained: one operation, on a nested tensor."""
    layer = nn.TransformerEncoderLayer(20, 2, 8, batch_first=True).eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        encoder = nn.TransformerEncoder(layer, 1).eval()
        return encoder(x.detach().view(2, 2, 20), src_key_padding_mask=torch.tensor([[False, False], [False, True]])).sum()


def nested(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.as_nested_tensor([x[:1], x[1:]])


class Uncountable(nn.Linear):
    def __init__(self, extra: Callable[[torch.Tensor], object]) -> None:
        torch.manual_seed(1)
        super().__init__(20, 10)
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.extra(x)
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:Failed to save extra arguments")
@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (lambda x: torch.relu(nested(x)), ""),
        # Of this torch.profiler itself warns.
        (lambda x: torch.bmm(nested(x), nested(x).transpose(1, 2)), "aten.bmm.default: RuntimeError: Internal error: Nested"),
        (padded, "aten._transformer_encoder_layer_fwd.default: NotImplementedError: there is no formula"),
    ],
)
def test_an_operation_that_cannot_be_counted_does_not_disturb_the_training(
    extra: Callable[[torch.Tensor], object], told: str, tmp_path: Path
) -> None:
    plain = train(NEEDED, Uncountable(extra))
    with switchsum.profile(tmp_path, **SHORT):
        profiled = train(NEEDED, Uncountable(extra))
    assert all(map(torch.equal, plain.parameters(), profiled.parameters()))
    found = Features.load(tmp_path / "features.rank0.json")
    lines = [line for line in found.source["lines"] if line.startswith("an operation cannot be counted")]
    assert len(lines) == bool(told)
    assert told in "".join(lines)
    assert (found.memory_bytes == 0) == bool(told)
    assert found.flops >= 2 * 2 * 4 * 20 * 10


def test_inputs_that_do_not_tell_their_size_do_not_disturb_either() -> None:
    class Sizeless(torch.Tensor):
        def size(self, *_: Any) -> Any:
            raise RuntimeError("no size\nand more of it")

    counts = StepCounts(count_operations=True)
    try:
        nn.Identity()(torch.ones(3).as_subclass(Sizeless))
    finally:
        counts.end()
    assert counts.failure == "inputs of Identity: RuntimeError: no size"
    assert counts.operations is None


def test_a_step_ends_with_the_last_optimizer_of_a_round() -> None:
    judge, maker, late = (torch.optim.SGD([nn.Parameter(torch.ones(1))]) for _ in range(3))
    rounds = Rounds()
    told = [rounds.ends_with(each) for each in (judge, maker, judge, maker, judge, maker)]
    assert told == [False, False, False, True, False, True]
    assert not rounds.is_new(judge)
    assert rounds.is_new(late)
    alone = Rounds()
    assert [alone.ends_with(judge) for _ in range(3)] == [False, True, True]


def test_the_parts_of_a_step_add_up() -> None:
    """0.1 of rest, a batch, a forward pass that waits for a broadcast, a backward pass that hands two buckets over, and whose
    last sum ends 0.4 after it had computed (a late callback cannot say more than DDP's own wait), the optimizer."""
    marks = StepMarks(
        began=10.0,
        ended=12.0,
        fetches=[(10.1, 10.3), (11.95, 12.0)],
        waits=[(10.4, 10.5), (11.0, 11.01), (11.3, 11.32)],
        passes=[(10.8, 11.8)],
        sums=[Sums(computed=11.4, done=[11.2, 11.9])],
        buckets=[ReadyBucket(8, "float32", 11.0), ReadyBucket(4, "float32", 11.3)],
    )
    found = StepTimes.of(marks, HostClock())
    assert found.step_s == pytest.approx(2.0)
    assert found.input_s == pytest.approx(0.25)
    assert found.exposed_s == pytest.approx(0.1 + 0.03 + 0.4)
    assert found.compute_s == pytest.approx(2.0 - 0.1 - 0.25 - 0.53)
    assert found.forward_s == pytest.approx(0.4)
    assert found.backward_s == pytest.approx(0.57)
    assert found.ready_s == pytest.approx((0.2, 0.49))


def test_buckets_are_ready_while_the_pass_computes_whatever_blocks_it() -> None:
    """A hook that waits for each sum, a broadcast, and a batch that is fetched in between."""
    marks = StepMarks(
        began=0.0,
        ended=10.0,
        fetches=[(6.0, 7.0)],
        waits=[(2.0, 5.0), (7.0, 7.5), (8.0, 9.5)],
        passes=[(1.0, 9.75)],
        sums=[Sums(computed=9.5, done=[5.0, 9.5])],
        buckets=[ReadyBucket(8, "float32", 2.0), ReadyBucket(4, "float32", 8.0)],
    )
    found = StepTimes.of(marks, HostClock())
    assert found.ready_s == pytest.approx((1.0, 2.5))
    assert max(found.ready_s) <= found.backward_s


def test_a_sparse_bucket_is_the_same_whatever_it_stores() -> None:
    stored = [ReadyBucket(64 * touched, "float32", 1.0, sparse=True) for touched in (1, 2)]
    assert stored[0].form == stored[1].form
    assert ReadyBucket(64, "float32", 1.0).form not in (stored[0].form, ReadyBucket(128, "float32", 1.0).form)


def test_sums_that_end_before_computing_does_are_hidden() -> None:
    """The first of two backward passes sums nothing (no_sync): it counts to what comes before."""
    marks = StepMarks(
        began=0.0,
        ended=1.0,
        passes=[(0.1, 0.3), (0.5, 0.9)],
        sums=[Sums(computed=0.8, done=[0.7])],
        buckets=[ReadyBucket(8, "float32", 0.6)],
    )
    found = StepTimes.of(marks, HostClock())
    assert found.exposed_s == 0
    assert (found.compute_s, found.forward_s, found.backward_s) == pytest.approx((1.0, 0.5, 0.4))
    assert found.ready_s == pytest.approx((0.1,))


def counted(run: Callable[[], object]) -> OperationCounter:
    with OperationCounter() as counter:
        run()
    return counter


def test_operations_are_counted_as_what_they_move() -> None:
    x, table = torch.randn(8, 50), torch.randn(1000, 16)
    rows = torch.tensor([1, 2, 3])
    cases: list[tuple[Callable[[], object], int]] = [
        (lambda: x + 1, 2 * 1600),
        (lambda: x.add_(1), 2 * 1600),
        (lambda: x.zero_(), 1600),
        (lambda: torch.zeros_like(x), 1600),
        (lambda: torch.empty_like(x), 0),
        (lambda: x.t().reshape(5, 80), 2 * 1600),  # a copy, unlike view()
        (lambda: x.t().view(50, 8), 0),
        (lambda: x[:1].expand(8, 50) * 2, 200 + 1600),  # what is repeated is read once
        (lambda: x.copy_(torch.ones(()).expand(8, 50)), 4 + 4 + 1600),
        (lambda: table[rows], 2 * 3 * 64 + 24),  # the rows, and not the table
        (lambda: nn.functional.embedding(rows, table), 2 * 3 * 64 + 24),
        (lambda: table.index_add_(0, rows, torch.ones(3, 16)), 192 + 3 * 192 + 24),
    ]
    for number, (run, expected) in enumerate(cases):
        found = counted(run)
        assert found.memory_bytes == expected, number
        assert found.total_flops == 0
    assert counted(lambda: x @ x.t()).flops == {"aten.mm": 2 * 8 * 50 * 8}
    assert counted(lambda: nn.functional.embedding(rows, table)).embeddings == {table.data_ptr()}
    convolution = nn.Conv2d(3, 8, 3)
    assert counted(lambda: convolution(torch.randn(2, 3, 16, 16))).conv2d_flops == 2 * 2 * 14 * 14 * 8 * 3 * 9


def test_batches_are_measured_however_they_are_packed(tmp_path: Path) -> None:
    """A DataLoader's worker processes cost nothing but the wait."""
    data = TensorDataset(torch.randn(6 * NEEDED, 20))
    model = nn.Linear(20, 10)
    with switchsum.profile(tmp_path, **SHORT):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=6, num_workers=1, collate_fn=lambda rows: {"x": torch.stack([r[0] for r in rows])})
        for batch in loader:
            optimizer.zero_grad()
            model(batch["x"]).square().mean().backward()
            optimizer.step()
    found = Features.load(tmp_path / "features.rank0.json")
    assert (found.batch_size, found.input_bytes) == (6, 6 * 20 * 4)
