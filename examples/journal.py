"""What the training scripts beside this file have in common: their options, their log, and a last check of the weights."""

import argparse
import hashlib
import json

import torch
import torch.distributed as dist
from torch import nn


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every training has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--backend", default="gloo", help="name of a torch.distributed backend")
    options.add_argument("--seed", type=int, default=1, help="of first weights and order; the data is always the same")
    options.add_argument("--json", help="file for JSON lines of step, loss and metric, from rank 0")
    return options


class Journal:
    """Rank 0 prints and logs what all ranks' trainings come to. Every rank calls every method."""

    def __init__(self, path: str | None, metric: str) -> None:
        self._writes = dist.get_rank() == 0
        self._file = open(path, "w") if path and self._writes else None  # noqa: SIM115
        self._metric = metric
        self._losses = torch.zeros(2)  # their sum and number since the last line

    def add(self, loss: torch.Tensor) -> None:
        """One step's loss on this rank."""
        self._losses += torch.stack([loss.detach().float(), torch.ones(())])

    def write(self, step: int, metric: float, **more: float) -> None:
        """A line: mean loss over all ranks and the steps since the last line, and rank 0's metric."""
        dist.all_reduce(self._losses)
        loss = (self._losses[0] / self._losses[1]).item()
        self._losses.zero_()
        if self._writes:
            extra = "".join(f", {name} {value:g}" for name, value in more.items())
            print(f"step {step}: loss {loss:.4f}, {self._metric} {metric:.4f}{extra}", flush=True)
        if self._file is not None:
            self._file.write(json.dumps({"step": step, "loss": loss, "metric": metric, **more}) + "\n")
            self._file.flush()

    def end(self, network: nn.Module) -> None:
        """Raises RuntimeError if the ranks' weights differ in a single bit: then some sum was not the same everywhere."""
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in network.parameters())).hexdigest()
        digests = [""] * dist.get_world_size()
        dist.all_gather_object(digests, digest)
        others = [rank for rank, theirs in enumerate(digests) if theirs != digests[0]]
        if others:
            raise RuntimeError(f"ranks {others} ended with other weights than rank 0, over {dist.get_backend()}")
        if self._file is not None:
            self._file.close()
