"""Features with figures that are known beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from switchsum.measure.features import Bucket, Features


def features(**changes: Any) -> Features:
    """Four workers sum 100 MB (four buckets, ready at 50, 100, 150 and 200 ms of backward) in steps of about 400 ms: 300 ms of
    computing, 100 ms of backward before the first bucket is ready, 10 ms of input, 80 ms of communication that nothing hid."""
    made = Features(
        name="made-up",
        architecture="ddp",
        architecture_rule="made up",
        workers=4,
        batch_size=32,
        flops=2e9,
        memory_bytes=1e9,
        input_bytes=1e6,
        dense_parameter_bytes=100_000_000,
        embedding_parameter_bytes=0,
        gradient_bytes=100_000_000,
        dtype="float32",
        buckets=tuple(Bucket(25_000_000, "float32", ready) for ready in (0.05, 0.10, 0.15, 0.20)),
        step_s=(0.399, 0.400, 0.400, 0.400, 0.401),
        compute_s=(0.299, 0.300, 0.300, 0.300, 0.301),
        input_s=(0.010,) * 5,
        exposed_s=(0.080,) * 5,
        forward_s=0.1,
        backward_s=0.2,
        link_bps=10e9,
        backend="gloo",
        synthetic=False,
        source={"command": ["train.py"]},
    )
    return replace(made, **changes)
