"""Runs the demo: starts the rack and the workers, shows progress, compares, and says whether all is well."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from switchsum.demo import report
from switchsum.demo.family import Child, Family
from switchsum.demo.options import DemoOptions
from switchsum.demo.progress import TrainingProgress
from switchsum.demo.rack import Emulated, Loopback, Place
from switchsum.demo.report import Training
from switchsum.demo.worker import WorkerTask
from switchsum.failures import terminated_like_interrupted

if TYPE_CHECKING:
    from switchsum.bmv2_topologies.rack_file import RackFile

# Importing torch takes a core two to four seconds and compiled kernels are loaded beside it: what a start may take at most.
START_PATIENCE_S = 60.0
START_PATIENCE_PER_WORKER_S = 10.0
IMAGES_FILE = "images.npz"
_MARGIN_S = 20.0  # a worker's own timeout must strike first: its error says more than our "nothing was heard"


class DemoError(Exception):
    """The demo could not be completed; `details` are lines that a child printed, if they help."""

    def __init__(self, message: str, details: list[str] | None = None) -> None:
        super().__init__(message)
        self.details = details or []


def run(
    options: DemoOptions,
    console: Console,
    errors: Console,
    verbose: bool = False,
    described: RackFile | None = None,
    bmv2: str = "",
) -> int:
    """The whole demo; returns the exit status. `described`: the rack to train in, with its switch at `bmv2` if it is BMv2.

    Raises DemoError or RackError; must run in the main thread.
    """
    from switchsum.demo import images  # loads scikit-learn
    from switchsum.host_agent.prepare import prepare  # loads numba

    def relay(name: str, line: str) -> None:
        errors.print(f"[{name}] {line}", markup=False, highlight=False, soft_wrap=True)

    with (
        terminated_like_interrupted(),
        tempfile.TemporaryDirectory(prefix="switchsum-demo-") as folder,
        Family(relay if verbose else None) as family,
    ):
        with TrainingProgress(console, options.epochs) as progress:
            progress.begin("switchsum", "loading the packet engine (compiled once on a machine, which takes up to a minute)")
            prepare()
            progress.status("starting switch and controller")
            images.save(Path(folder) / IMAGES_FILE, options.seed)
            place: Place
            if described is None:
                place = Loopback(family, options, log_level="INFO" if verbose else "WARNING")
            else:
                place = Emulated(described, bmv2, options)
            with closing(place):
                try:
                    through_switch = train("switchsum", options, family, progress, Path(folder), place)
                except DemoError as error:
                    told = str(error)
                    if (failure := place.failure()) is not None:
                        told = f"{told}; {failure}"
                    elif (account := place.account()) and account not in told:
                        told = f"{told}; the controller says: {account}"
                    raise DemoError(told, error.details) from None
                counts = place.counts()
                progress.begin("gloo", "starting workers")
                through_gloo = train("gloo", options, family, progress, Path(folder), place)
        report.show(console, through_switch, through_gloo, counts, options.loss)
    found = report.failures(through_switch, through_gloo)
    for sentence in found:
        errors.print(f"error: {sentence}", markup=False, highlight=False, soft_wrap=True)
    return 1 if found else 0


def train(
    backend: str,
    options: DemoOptions,
    family: Family,
    progress: TrainingProgress,
    folder: Path,
    place: Place,
) -> Training:
    """One training of `options.workers` processes over `backend`, on the images that lie in `folder`.

    Raises DemoError with the first thing that failed.
    """
    workers = _start_workers(backend, options, family, place, folder)
    done: dict[Child, Mapping[str, Any]] = {}
    ready = 0
    patience_s = START_PATIENCE_S + START_PATIENCE_PER_WORKER_S * options.workers + options.timeout_s
    progress.status(f"starting {options.workers} workers")
    while len(done) < options.workers:
        try:
            notice = family.hear(patience_s)
        except TimeoutError as error:
            missing = ", ".join(child.name for child in workers if child not in done)
            raise DemoError(f"{error} from {missing}", _all_output(workers)) from None
        if notice.kind == "ready":
            ready += 1
            if ready == options.workers:
                patience_s = options.timeout_s + _MARGIN_S
        elif notice.kind == "step":
            if notice.child is workers[0]:
                step = notice.values
                progress.step(step["epoch"], step["step"], step["steps"], step["loss"], step["steps_per_second"])
        elif notice.kind == "done":
            done[notice.child] = notice.values
        elif notice.kind == "error":
            raise DemoError(
                f"{notice.child.name} failed over {backend}: {notice.values['message']}",
                list(notice.child.output) if notice.values["ours"] else [],
            )
        elif notice.kind == "ended" and notice.child not in done:
            raise DemoError(
                f"{notice.child.name} {notice.child.how_it_ended} in the middle of the training over {backend}",
                list(notice.child.output),
            )
    family.end(workers)
    return _summary(options, list(done.values()), _weights_path(folder, backend), done[workers[0]])


def _start_workers(backend: str, options: DemoOptions, family: Family, place: Place, folder: Path) -> list[Child]:
    # We bind the rendezvous port and hand the socket to rank 0, so that nobody can take it in between.
    with place.rendezvous(backlog=options.workers) or nullcontext() as rendezvous:
        workers = []
        for rank in range(options.workers):
            store_fd = rendezvous.fileno() if rank == 0 and rendezvous is not None else None

            def arguments(events_fd: int, store_fd: int | None = store_fd) -> list[str]:
                task = WorkerTask(
                    backend=backend,
                    epochs=options.epochs,
                    seed=options.seed,
                    elements=options.elements,
                    timeout_s=options.timeout_s,
                    store_fd=store_fd,
                    events_fd=events_fd,
                    images_path=str(folder / IMAGES_FILE),
                    weights_path=str(_weights_path(folder, backend)),
                    parent_pid=os.getpid(),
                )
                return [task.to_json()]

            workers.append(
                family.start(
                    f"worker {rank}",
                    "switchsum.demo.worker",
                    arguments,
                    place.environment(rank, options.workers, rendezvous),
                    inherit=[] if store_fd is None else [store_fd],
                    prefix=place.prefix(rank),
                )
            )
    return workers


def _summary(options: DemoOptions, done: list[Mapping[str, Any]], weights_path: Path, rank0: Mapping[str, Any]) -> Training:
    def over_workers(name: str) -> int:
        return sum(values["traffic"].get(name, 0) for values in done)

    worker_steps = rank0["steps"] * options.workers
    return Training(
        workers=options.workers,
        accuracy=rank0["accuracy"],
        test_loss=rank0["test_loss"],
        weights=np.load(weights_path),
        weights_sha256=frozenset(values["weights_sha256"] for values in done),
        steps=rank0["steps"],
        steps_per_second=min(values["timed_steps"] / values["seconds"] for values in done),
        bytes_sent=over_workers("bytes_sent") / worker_steps,
        bytes_received=over_workers("bytes_received") / worker_steps,
        checked_elements=sum(values["checked_elements"] for values in done),
        wrong_elements=sum(values["wrong_elements"] for values in done),
        retransmissions=over_workers("retransmissions"),
    )


def _weights_path(folder: Path, backend: str) -> Path:
    return folder / f"weights-{backend}.npy"


def _all_output(children: list[Child]) -> list[str]:
    return [f"[{child.name}] {line}" for child in children for line in child.output]
