"""python -m switchsum.accuracy_benchmark: what training makes of sums in 32, 16 and 8-bit lanes, beside Gloo.

Trains the demo's network on scikit-learn's digits, from several seeds (split, first weights, order), over Gloo and over the
switch with each width of lanes, with DistributedDataParallel. Prints accuracy and loss on the test images, mean and standard
deviation over the seeds, and the difference to Gloo's training from the same seed. Nothing is timed.

Starts WORKERS processes and an embedded switch on this machine; under torchrun, or in a rack by `switchsum rack run FILE --
python -m switchsum.accuracy_benchmark`, where RANK is set, it is one worker of those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 4
LANES = (32, 16, 8)
GLOO = "gloo"


def train(seed: int, group: Any, epochs: int, images: Path) -> tuple[float, float, Any]:
    """One training over a process group: (test accuracy 0..1, test loss, weights float32[parameters])."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from switchsum.demo import digits

    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = digits.load(str(images))
    network = digits.network(seed)
    model = DistributedDataParallel(network, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=digits.MOMENTUM)
    steps = digits.steps_per_epoch(data, world_size) * epochs
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for epoch in range(epochs):
        for images_of_step, labels in digits.batches(data, seed, epoch, rank, world_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images_of_step), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            decay.step()
    accuracy, loss = digits.evaluate(network, data)
    return accuracy, loss, torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def work(seeds: int, epochs: int) -> list[dict[str, Any]] | None:
    """A worker's part; rank 0 returns a row for each training. Raises RuntimeError if ranks end with different weights."""
    import torch
    import torch.distributed as dist
    from rich.console import Console
    from rich.progress import Progress

    from switchsum.demo import images

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {GLOO: dist.group.WORLD}
    for lanes in LANES:
        os.environ["SWITCHSUM_LANES"] = str(lanes)
        groups[f"switchsum, {lanes}-bit lanes"] = dist.new_group(backend="switchsum")
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True, disable=rank != 0) as progress:
        task = progress.add_task("training", total=seeds * len(groups))
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "digits.npz"
                images.save(path, seed)
                reference: Any = None
                for name, group in groups.items():
                    accuracy, loss, weights = train(seed, group, epochs, path)
                    everybodys = [torch.empty(len(weights)) for _ in range(dist.get_world_size())]
                    dist.all_gather(everybodys, torch.from_numpy(weights))
                    if any((other.numpy().view(np.uint32) != weights.view(np.uint32)).any() for other in everybodys):
                        raise RuntimeError(f"ranks ended with different weights: {name}, seed {seed}")
                    reference = weights if name == GLOO else reference
                    distance = float(np.linalg.norm(weights - reference) / np.linalg.norm(reference))
                    rows.append({"sums": name, "seed": seed, "accuracy": accuracy, "loss": loss, "distance": distance})
                    progress.advance(task)
    dist.barrier()
    dist.destroy_process_group()
    return rows if rank == 0 else None


def show(rows: list[dict[str, Any]], epochs: int, workers: int) -> None:
    """Print the table."""
    from rich.console import Console

    console = Console(width=150, highlight=False)
    gloo = {row["seed"]: row for row in rows if row["sums"] == GLOO}
    console.print(f"{workers} workers, {epochs} epochs, {len(gloo)} seeds; mean (standard deviation over seeds)")
    console.print(
        "| sums | test accuracy, % | against Gloo, points | test loss | weights, L2 distance to Gloo's |\n|---|---|---|---|---|"
    )
    for name in dict.fromkeys(row["sums"] for row in rows):
        mine = [row for row in rows if row["sums"] == name]

        def figures(values: list[float], digits: int) -> str:
            spread = f"{np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "-"
            return f"{np.mean(values):.{digits}f} ({spread})"

        accuracy = figures([100 * row["accuracy"] for row in mine], 2)
        against = figures([100 * (row["accuracy"] - gloo[row["seed"]]["accuracy"]) for row in mine], 2)
        loss = figures([row["loss"] for row in mine], 4)
        distance = np.mean([row["distance"] for row in mine])
        console.print(f"| {name} | {accuracy} | {against} | {loss} | {distance:.1e} |")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m switchsum.accuracy_benchmark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind, from seeds 0, 1, ... (default 5)")
    parser.add_argument("--epochs", type=int, default=10, help="times that the images are gone through (default 10)")
    parser.add_argument("--json", type=Path, help="write every training's figures here")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.epochs < 1:
        parser.error("--seeds and --epochs must be at least 1")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.resolve().parent}")
    if "RANK" not in os.environ:
        return _launch(arguments)
    rows = work(options.seeds, options.epochs)
    if rows is not None:
        show(rows, options.epochs, int(os.environ["WORLD_SIZE"]))
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))
    return 0


def _launch(arguments: list[str]) -> int:
    """Run WORKERS of this program on this machine, by torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    try:
        return subprocess.run([*launcher, "-m", "switchsum.accuracy_benchmark", *arguments], check=False).returncode
    except KeyboardInterrupt:  # the terminal sent it to torchrun as well, which ends the ranks
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
