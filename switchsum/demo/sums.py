"""Every sum is checked: each rank recomputes each bucket's exact fixed-point sum and compares the bits.

The hook keeps a copy of what went in and of what came out, and nothing else happens during the step; the check follows
after it, outside the measured time, with inputs gathered through Gloo. A sum can therefore only pass if the switch
added exactly the contributions of all ranks, each once.
"""

# No `from __future__ import annotations` here: DistributedDataParallel inspects the hook's annotations and wants the types.
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

Reference = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def count_differing(result: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> int:
    """Elements whose 32 bits differ (so -0.0 is not 0.0, and a NaN equals only itself); raises ValueError on shapes."""
    if result.shape != expected.shape or result.dtype != np.float32 or expected.dtype != np.float32:
        raise ValueError(
            f"cannot compare {result.dtype}{list(result.shape)} with {expected.dtype}{list(expected.shape)}: "
            "both must be float32 of one shape"
        )
    return int(np.count_nonzero(result.view(np.uint32) != expected.view(np.uint32)))


@dataclass
class _Bucket:
    contribution: torch.Tensor  # float32[numel], this rank's gradient before the sum
    total: torch.Tensor | None = None  # float32[numel], what came back


@dataclass
class SumChecker:
    """A DDP communication hook that averages over `group`, and the check of what it got.

    `reference` maps float32[n, numel] (one row a rank) to the float32[numel] that must come back; None switches the
    check off, and the hook only averages. `gather_group` is a Gloo group of the same ranks.
    """

    world_size: int
    reference: Reference | None
    gather_group: dist.ProcessGroup | None
    checked_elements: int = 0
    wrong_elements: int = 0
    _pending: list[_Bucket] = field(default_factory=list)

    def hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Registered with `DistributedDataParallel.register_comm_hook`: starts the sum, returns the average's future."""
        gradient = bucket.buffer()
        kept = None
        if self.reference is not None:
            kept = _Bucket(gradient.clone())
            self._pending.append(kept)
        work = dist.all_reduce(gradient, async_op=True)

        def average(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            total = future.value()[0]  # raises what the backend reported; DDP then fails in backward()
            if kept is not None:
                kept.total = total.clone()
            return total.div_(self.world_size)

        return work.get_future().then(average)

    def check(self) -> None:
        """Compare the buckets of the step that just ended; call on every rank, after backward()."""
        if self.reference is None:
            return
        for bucket in self._pending:
            if bucket.total is None:
                raise RuntimeError("a bucket's sum was used before it was there: the hook's future came too early")
            rows = [torch.empty_like(bucket.contribution) for _ in range(self.world_size)]
            dist.all_gather(rows, bucket.contribution, group=self.gather_group)
            expected = self.reference(torch.stack(rows).numpy())
            self.wrong_elements += count_differing(bucket.total.numpy(), expected)
            self.checked_elements += expected.size
        self._pending.clear()
