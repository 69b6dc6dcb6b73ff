"""A fleet that is made up: to try the fleet's page, never to learn anything about real jobs.

Every figure is drawn by a seeded generator from ranges that were chosen to look like jobs of many kinds, not fitted to any
published or measured fleet. Each job says that it is synthetic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from switchsum.measure.features import Bucket, Features

# Class, how many of a hundred jobs, workers to draw from.
_CLASSES: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("1w1g", 40, (1,)),
    ("1wng", 10, (2, 4, 8)),
    ("ps/worker", 15, (4, 8, 16, 32, 64)),
    ("allreduce-local", 10, (2, 4, 8)),
    ("allreduce-cluster", 10, (16, 32, 64)),
    ("ddp", 10, (4, 8, 16)),
    ("fsdp", 5, (8, 16, 32)),
)
_STEPS = 8
_BUCKET_BYTES = 25 << 20
_LINKS_BPS = (10e9, 25e9, 25e9, 100e9)


def jobs(count: int, seed: int) -> Iterator[Features]:
    """`count` of them, the same for the same seed."""
    # Of the generator's methods, only random() is promised to draw the same with every Python.
    dice = random.Random(seed)
    for number in range(count):
        yield _job(f"synthetic-{number:05}", dice, seed)


def _job(name: str, dice: random.Random, seed: int) -> Features:
    architecture, workers = _class(dice)
    parameters = 4 * round(_between(dice, 2e5, 2e8))
    compute_s = _between(dice, 0.03, 1.0)
    input_s = compute_s * _between(dice, 0.002, 0.2)
    gradients = 0 if workers == 1 else parameters
    backward_s = 0.6 * compute_s
    link_bps = _LINKS_BPS[int(dice.random() * len(_LINKS_BPS))]
    sums_s = 8 * gradients / (0.7 * link_bps)
    exposed_s = sums_s * (0.2 + 0.8 * dice.random())
    buckets = tuple(_buckets(gradients, backward_s)) if architecture == "ddp" else ()
    noise = [0.98 + 0.04 * dice.random() for _ in range(_STEPS)]
    step_s = tuple((compute_s + input_s + exposed_s) * each for each in noise)
    return Features(
        name=name,
        architecture=architecture,
        architecture_rule="drawn by a generator",
        workers=workers,
        batch_size=1 << int(4 + 6 * dice.random()),
        flops=compute_s * 5e12 * dice.random(),
        memory_bytes=compute_s * 5e11 * dice.random(),
        input_bytes=input_s * 5e9,
        dense_parameter_bytes=parameters,
        embedding_parameter_bytes=0,
        gradient_bytes=gradients,
        dtype="float32",
        buckets=buckets,
        step_s=step_s,
        compute_s=tuple(compute_s * each for each in noise),
        input_s=tuple(input_s * each for each in noise),
        exposed_s=tuple(exposed_s * each for each in noise),
        forward_s=compute_s - backward_s,
        backward_s=backward_s,
        link_bps=None if workers == 1 else link_bps,
        backend="" if workers == 1 else "made up",
        synthetic=True,
        source={"generator": "switchsum fleet --synthetic", "seed": seed},
    )


def _class(dice: random.Random) -> tuple[str, int]:
    drawn = dice.random() * sum(of_hundred for _, of_hundred, _ in _CLASSES)
    chosen = _CLASSES[-1]
    for each in _CLASSES:
        drawn -= each[1]
        if drawn < 0:
            chosen = each
            break
    architecture, _, workers = chosen
    return architecture, workers[int(dice.random() * len(workers))]


def _between(dice: random.Random, low: float, high: float) -> float:
    """Any order of magnitude as likely as any other."""
    return math.exp(math.log(low) + dice.random() * math.log(high / low))


def _buckets(gradients: int, backward_s: float) -> Iterator[Bucket]:
    done = 0
    while done < gradients:
        size = min(_BUCKET_BYTES, gradients - done)
        done += size
        yield Bucket(size, "float32", backward_s * done / gradients)
