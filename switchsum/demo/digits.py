"""The training task of one worker: the images that `images` prepared, a small network, and who gets which image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

IMAGES_PER_STEP = 64  # over all workers, so that the number of steps does not depend on how many there are
LEARNING_RATE = 0.2
MOMENTUM = 0.9


@dataclass(frozen=True)
class Digits:
    """Images float32[N, 1, 8, 8] in 0..1 and labels int64[N]."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load(path: str) -> Digits:
    """What `images.save` wrote there."""
    with np.load(path) as fields:
        return Digits(**{name: torch.from_numpy(fields[name]) for name in fields.files})


def network(seed: int) -> nn.Module:
    """38,282 parameters, the same initial values for the same seed.

    Smooth on purpose: a ReLU whose input lies within a rounding error of zero switches a whole path on or off, and two
    trainings that differ in nothing but rounding would drift apart for a reason that tells nothing about the sums.
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
    )


def images_per_worker(world_size: int) -> int:
    """How many images one worker takes in a step: its share of IMAGES_PER_STEP, at least one."""
    return max(1, round(IMAGES_PER_STEP / world_size))


def steps_per_epoch(digits: Digits, world_size: int) -> int:
    """Whole steps only: the last images of an epoch that would not fill one are left out."""
    return len(digits.train_labels) // (images_per_worker(world_size) * world_size)


def batches(digits: Digits, seed: int, epoch: int, rank: int, world_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """This rank's (images, labels) of each step: one shuffle per seed and epoch, dealt out to the ranks."""
    share = images_per_worker(world_size)
    order = torch.randperm(len(digits.train_labels), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    for step in range(steps_per_epoch(digits, world_size)):
        begin = (step * world_size + rank) * share
        chosen = order[begin : begin + share]
        yield digits.train_images[chosen], digits.train_labels[chosen]


def evaluate(model: nn.Module, digits: Digits) -> tuple[float, float]:
    """Accuracy (0..1) and mean cross entropy over the test images."""
    model.eval()
    with torch.no_grad():
        scores = model(digits.test_images)
        loss = nn.functional.cross_entropy(scores, digits.test_labels).item()
        accuracy = (scores.argmax(1) == digits.test_labels).float().mean().item()
    model.train()
    return accuracy, loss
