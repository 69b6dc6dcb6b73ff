"""python examples/compare.py: do trainings through the switch learn what they learn over Gloo?

Runs each training script beside this file from several seeds over both backends, in turns, each with torchrun on this machine.
Writes every line of every training to --json and the curves to --picture, and prints a table in Markdown. Nothing is timed.
It takes half an hour on two busy cores.
"""

import argparse
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from scipy import stats  # type: ignore[import-untyped]

EXAMPLES = Path(__file__).resolve().parent
BACKENDS = ("gloo", "switchsum")


class Training(NamedTuple):
    """A command of those to compare."""

    title: str
    metric: str  # what the script logs as "metric"
    command: tuple[str, ...]


TRAININGS = (
    Training("ResNet, digits", "test accuracy", ("train_resnet.py",)),
    Training("GPT, language reference", "validation loss", ("train_gpt.py",)),
    Training("GPT, bfloat16", "validation loss", ("train_gpt.py", "--autocast", "bfloat16")),
    Training("recommender, clicks", "validation AUC", ("train_recommender.py",)),
    Training("recommender, float16", "validation AUC", ("train_recommender.py", "--autocast", "float16")),
)


def train(training: Training, backend: str, seed: int, workers: int) -> list[dict[str, float]]:
    """One training's log. Raises RuntimeError with its output if it fails."""
    script, *more = training.command
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        command += [str(EXAMPLES / script), *more, "--backend", backend, "--seed", str(seed), "--json", str(log)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode != 0 and backend == "gloo" and "terminate called without an active exception" in ended.stderr:
            # PyTorch 2.13, seen in one of some sixty trainings: a thread of Gloo's is still busy while Python shuts down.
            print(f"{training.title}, {backend}, seed {seed}: a rank aborted in its exit; once more", file=sys.stderr)
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"{training.title}, {backend}, seed {seed} failed:\n{ended.stdout}{ended.stderr}")
        return [json.loads(line) for line in log.read_text().splitlines()]


class Difference(NamedTuple):
    """Final values over seeds, float64[seeds] for each backend; the same seed has the same place."""

    gloo: np.ndarray
    switchsum: np.ndarray

    def interval(self) -> tuple[float, float, float]:
        """Mean of the paired differences to Gloo, and its 95 % interval by Student's t."""
        paired = self.switchsum - self.gloo
        half = stats.t.ppf(0.975, len(paired) - 1) * paired.std(ddof=1) / len(paired) ** 0.5
        return paired.mean(), paired.mean() - half, paired.mean() + half

    def verdict(self) -> str:
        """The rule that the table states."""
        _, low, high = self.interval()
        spread = self.gloo.std(ddof=1)
        if -spread <= low and high <= spread:
            return "within noise"
        return "undecided" if low <= 0 <= high else "differs"


RULE = (
    "Verdict: the interval is that of the mean difference between trainings from the same seed (95 %, Student's t). "
    "**within noise**: all of it lies within one standard deviation of Gloo's own results over seeds; "
    "**undecided**: it reaches further but holds zero, so only more seeds could tell; **differs**: it does not hold zero."
)


def finals(logs: dict[tuple[str, str, int], list[dict[str, float]]], title: str, what: str, seeds: list[int]) -> Difference:
    return Difference(*(np.array([logs[title, backend, seed][-1][what] for seed in seeds]) for backend in BACKENDS))


def show(console: Console, logs: dict[tuple[str, str, int], list[dict[str, float]]], seeds: list[int]) -> None:
    """Print the table."""
    console.print("| training | at the end | Gloo: mean (sd) | switchsum: mean (sd) | difference: mean (interval) | verdict |")
    console.print("|---|---|---|---|---|---|")
    for training in TRAININGS:
        for what, name in (("metric", training.metric), ("loss", "training loss")):
            difference = finals(logs, training.title, what, seeds)
            both = " | ".join(f"{values.mean():.4f} ({values.std(ddof=1):.4f})" for values in difference)
            mean, low, high = difference.interval()
            apart = f"{mean:+.1e} ({low:+.1e} to {high:+.1e})"
            console.print(f"| {training.title} | {name} | {both} | {apart} | {difference.verdict()} |")
    console.print(f"\n{RULE}")


def draw(path: Path, logs: dict[tuple[str, str, int], list[dict[str, float]]], seeds: list[int], workers: int) -> None:
    """The picture: training loss, metric, and the metric's difference; means over seeds, bands from least to most."""
    figure = Figure(figsize=(3 * len(TRAININGS), 7.2), dpi=90, layout="constrained")
    rows = figure.subplots(3, len(TRAININGS))
    for column, training in enumerate(TRAININGS):
        steps = [line["step"] for line in logs[training.title, BACKENDS[0], seeds[0]]]
        losses, metrics = (
            {
                backend: np.array([[line[what] for line in logs[training.title, backend, seed]] for seed in seeds])
                for backend in BACKENDS
            }
            for what in ("loss", "metric")
        )
        apart = {"switchsum - gloo, same seed": metrics["switchsum"] - metrics["gloo"]}
        for axes, curves, title in zip(
            rows[:, column],
            (losses, metrics, apart),
            (f"{training.title}\ntraining loss", training.metric, f"{training.metric}: difference"),
            strict=True,
        ):
            colors = ("C0", "C1") if len(curves) > 1 else ("C2",)
            for (name, values), color, style in zip(curves.items(), colors, ("-", "--"), strict=False):
                axes.plot(steps, values.mean(0), color=color, linestyle=style, label=name)
                axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.25, linewidth=0)
            axes.set_title(title, fontsize=9)
            axes.tick_params(labelsize=8)
            axes.yaxis.get_offset_text().set_fontsize(8)
            axes.grid(True, alpha=0.3)
        axes.set_xlabel("step", fontsize=9)
    for axes in rows[1:, 0]:
        axes.legend(fontsize=8)
    figure.suptitle(f"{workers} workers; mean and range over {len(seeds)} seeds", fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)  # a palette: a third of the bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind, from seeds 1, 2, ... (default 3)")
    parser.add_argument("--workers", type=int, default=4, help="processes of a training (default 4)")
    parser.add_argument("--json", type=Path, default=Path("compare.json"), help="what every training logged")
    parser.add_argument("--picture", type=Path, default=Path("compare.png"), help="the curves")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: one training of a kind has no spread")
    for path in (options.json, options.picture):
        if not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.resolve().parent}")
    seeds = list(range(1, options.seeds + 1))
    runs = list(itertools.product(seeds, TRAININGS, BACKENDS))
    logs: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(runs))
        for seed, training, backend in runs:
            progress.update(task, description=f"{training.title}, {backend}, seed {seed}")
            try:
                logs[training.title, backend, seed] = train(training, backend, seed, options.workers)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            except KeyboardInterrupt:  # the terminal sent it to torchrun as well, which ends the ranks
                print("error: interrupted", file=sys.stderr)
                return 130
            progress.advance(task)
            raw: list[dict[str, Any]] = [
                {"training": title, "backend": name, "seed": number, "lines": lines}
                for (title, name, number), lines in logs.items()
            ]
            options.json.write_text(json.dumps(raw))  # each time, so that what is done outlasts an interruption
    draw(options.picture, logs, seeds, options.workers)
    show(Console(width=1000, highlight=False), logs, seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
