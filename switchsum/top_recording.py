"""python -m switchsum.top_recording FILE.svg: `switchsum top`, as it looks while four workers train and one of them dawdles.

Starts an embedded switch that loses packets, a controller, and workers that train the demo's network on scikit-learn's digits
with DistributedDataParallel; one sleeps before each backward pass. Writes what top shows after a few seconds of that.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS = 4
DAWDLER = 2
DAWDLES_S = 0.02
LOSS = 0.01
INTERVAL_S = 4.0
READINGS = 15  # what is a share of the run needs one
_PATIENCE_S = 120.0  # for workers to begin, which may have to compile first
_COLUMNS = 80


def train(images: str) -> None:
    """A worker: trains until its standard input closes."""
    import threading

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from switchsum.demo import digits

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(0)  # in the middle of a step; what the weights would have been is nobody's business here

    threading.Thread(target=end_with_parent, daemon=True).start()
    dist.init_process_group("switchsum")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = digits.load(images)
    model = DistributedDataParallel(digits.network(seed=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=digits.MOMENTUM)
    for epoch in range(sys.maxsize):
        for images_of_step, labels in digits.batches(data, 1, epoch, rank, world_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images_of_step), labels)
            if rank == DAWDLER:
                time.sleep(DAWDLES_S)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@contextlib.contextmanager
def training(controller: str, images: str):  # type: ignore[no-untyped-def]
    """The workers, for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store,
        "WORLD_SIZE": str(WORKERS),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "SWITCHSUM_CONTROLLER": controller,
    }
    command = [sys.executable, "-m", "switchsum.top_recording", "--worker", images]
    workers = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdin=subprocess.PIPE) for rank in range(WORKERS)
    ]
    try:
        yield workers
    finally:
        for worker in workers:  # all before any can hear of another's end
            worker.kill()
        for worker in workers:
            worker.wait()


def record(target: Path) -> None:
    """Run it all, and write the SVG."""
    from rich.console import Console

    from switchsum.controller.daemon import ControllerDaemon
    from switchsum.controller.fabric import Fabric
    from switchsum.controller.options import ControllerOptions
    from switchsum.demo import images
    from switchsum.softswitch.daemon import SoftSwitch
    from switchsum.top_command import Watcher
    from switchsum.top_view import view

    with tempfile.TemporaryDirectory() as folder, SoftSwitch(ports=WORKERS, seed=1) as switch:
        data = Path(folder) / "digits.npz"
        images.save(data, seed=1)
        options = ControllerOptions(switch=switch.grpc_address, listen=("127.0.0.1:0",), loss_in=LOSS, loss_out=LOSS)
        with (
            ControllerDaemon(Fabric.loopback(switch.port_addresses), options) as controller,
            training(controller.address, str(data)) as workers,
            Watcher(controller.address, INTERVAL_S) as watcher,
        ):
            deadline = time.monotonic() + _PATIENCE_S
            busy = 0
            while busy < READINGS:
                if time.monotonic() > deadline or any(worker.poll() is not None for worker in workers):
                    raise SystemExit("the workers do not train; see what they printed")
                time.sleep(INTERVAL_S)
                state = watcher.state
                jobs = [] if state.now is None else state.now.reply.jobs
                busy += any(job.running and sum(job.verdicts.values()) for job in jobs)
            console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
            console.print(view(watcher.state))
    console.save_svg(str(target), title="switchsum top")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--worker":
        train(sys.argv[2])
    elif len(sys.argv) == 2:
        record(Path(sys.argv[1]))
    else:
        sys.exit("usage: python -m switchsum.top_recording FILE.svg")
