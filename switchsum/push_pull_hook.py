"""A communication hook of DistributedDataParallel that averages buckets by parameter servers (measure/push_pull.py)."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from switchsum.measure.transports import Transport


class Pusher:
    """Buckets go to the servers one after the other, as collectives do, in a thread of their own."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._thread = ThreadPoolExecutor(1, "push and pull")

    def average(self, gradients: torch.Tensor, ranks: int) -> torch.futures.Future[torch.Tensor]:
        """In place."""
        summed: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def sum_up() -> None:
            try:
                self._transport.run([gradients.div_(ranks)])
                summed.set_result(gradients)
            except Exception as error:  # whatever it is, the backward pass raises it
                summed.set_exception(error)

        self._thread.submit(sum_up)
        return summed


# DDP looks at the annotations themselves, so they must not become texts (no `from __future__ import annotations` here).
def push_and_pull(pusher: Pusher, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For register_comm_hook(Pusher(transport), push_and_pull)."""
    return pusher.average(bucket.buffer(), dist.get_world_size())
