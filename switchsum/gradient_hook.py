"""A DDP communication hook, for those who keep Gloo or NCCL as their process group."""

import torch
import torch.distributed as dist

from switchsum.torch_backend import ProcessGroupSwitchSum


def ddp_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in the switch: `model.register_comm_hook(dist.new_group(backend="switchsum"), switchsum.ddp_hook)`.

    `group` has the ranks that the model has. Everything else that the model sends, such as its first parameters, stays with its
    own group. Raises TypeError for a group of another backend.
    """
    if not isinstance(group, ProcessGroupSwitchSum):
        raise TypeError(
            f"switchsum.ddp_hook got {type(group).__name__} for its group: make one of the same ranks with "
            'dist.new_group(backend="switchsum") and give it to register_comm_hook as the first argument'
        )
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    options.asyncOp = True
    averaged = group.allreduce([bucket.buffer()], options).get_future()
    return averaged.then(lambda finished: finished.value()[0])  # type: ignore[no-any-return]
