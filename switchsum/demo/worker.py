"""One rank of the demo's training, started by `launch` as `python -m switchsum.demo.worker TASK` (JSON, see WorkerTask)."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from switchsum.demo.events import EventWriter, die_with_parent

if TYPE_CHECKING:
    from switchsum.demo.sums import Reference

_FUTURE_COVER = "Got the following error when running the callback: "


@dataclass(frozen=True)
class WorkerTask:
    """Everything a worker needs to know; RANK, WORLD_SIZE and the like come in the environment, as under torchrun."""

    backend: str  # "switchsum" or "gloo"
    epochs: int
    seed: int
    elements: int  # per packet; what the sums are checked with
    timeout_s: float  # bound on every collective
    store_fd: int | None  # rank 0: the listening socket of the rendezvous store
    events_fd: int
    images_path: str  # see images.save
    weights_path: str  # rank 0 saves the final weights here: float32[parameters]
    parent_pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WorkerTask:
        return WorkerTask(**json.loads(text))


def train(task: WorkerTask, events: EventWriter) -> None:
    """Train, check and report; raises whatever the backend raises."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from switchsum.demo import digits
    from switchsum.demo.sums import SumChecker

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # workers share the machine's cores
    torch.use_deterministic_algorithms(True)
    data = digits.load(task.images_path)
    timeout = timedelta(seconds=task.timeout_s)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0,
        # The others may still be importing torch: 32 processes on two cores take their time.
        timeout=timeout + timedelta(seconds=10 * world_size),
        master_listen_fd=task.store_fd,
    )
    dist.init_process_group(task.backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    plain_group = dist.new_group(backend="gloo", timeout=timeout)
    checker = SumChecker(world_size, _reference(task), plain_group)

    network = digits.network(task.seed)
    model = DistributedDataParallel(network)
    model.register_comm_hook(None, checker.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=digits.MOMENTUM)
    steps = digits.steps_per_epoch(data, world_size)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps * task.epochs))
    events.send("ready", parameters=sum(p.numel() for p in network.parameters()))

    before = _traffic(task)
    seconds = 0.0
    timed_steps = -1  # the very first step loads compiled code and opens connections: it warms up, untimed
    for epoch in range(task.epochs):
        for step, (images, labels) in enumerate(digits.batches(data, task.seed, epoch, rank, world_size)):
            dist.barrier(group=plain_group)  # so that nobody's check of the last step is counted in this one
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            timed_steps += 1
            if timed_steps > 0:
                seconds += time.perf_counter() - started
            decay.step()
            checker.check()
            rate = timed_steps / seconds if timed_steps > 0 else 0.0
            events.send("step", epoch=epoch, step=step, steps=steps, loss=loss.item(), steps_per_second=rate)
    after = _traffic(task)

    accuracy, test_loss = digits.evaluate(network, data)
    weights = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()
    if rank == 0:
        np.save(task.weights_path, weights)
    dist.barrier(group=plain_group)
    dist.destroy_process_group()
    events.send(
        "done",
        steps=steps * task.epochs,
        timed_steps=timed_steps,
        seconds=seconds,
        accuracy=accuracy,
        test_loss=test_loss,
        weights_sha256=hashlib.sha256(weights.tobytes()).hexdigest(),
        checked_elements=checker.checked_elements,
        wrong_elements=checker.wrong_elements,
        traffic={name: after[name] - before[name] for name in after},
    )


def _reference(task: WorkerTask) -> Reference | None:
    if task.backend != "switchsum":
        return None
    from switchsum.host_agent.quantizer import reference_sum

    return lambda inputs: reference_sum(inputs, task.elements)


def _traffic(task: WorkerTask) -> dict[str, int]:
    """Counters of this process since its start: UDP payload at the switch, TCP payload with Gloo."""
    if task.backend == "switchsum":
        import switchsum

        return asdict(switchsum.statistics())
    from switchsum.measure import tcp_counters

    tcp = tcp_counters.read()
    return {"bytes_sent": tcp.sent, "bytes_received": tcp.received}


def main(arguments: list[str]) -> int:
    """Entry point of the child; whatever goes wrong is sent to the parent as one "error" event."""
    task = WorkerTask.from_json(arguments[0])
    die_with_parent(task.parent_pid)
    faulthandler.enable()
    events = EventWriter(task.events_fd)
    try:
        train(task, events)
    except Exception as error:
        traceback.print_exc()
        # What the network, a peer or the switch did arrives as RuntimeError or OSError; the rest is a fault of ours.
        events.send("error", message=explain(error), ours=not isinstance(error, RuntimeError | OSError))
        sys.stderr.flush()
        # No orderly shutdown: destructors of a broken process group may wait for the peers that are gone.
        os._exit(1)
    return 0


def explain(error: Exception) -> str:
    """The first line of an error with its type, without the covers that PyTorch puts around what a future carries."""
    text = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
    return text.rpartition(_FUTURE_COVER)[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
