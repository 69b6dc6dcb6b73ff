"""Workers and controllers as processes of their own, for the tests that kill or stop them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WORKER = """
import sys
from tests.controller.worker import Worker
controller, name, rank, world = sys.argv[1:]
worker = Worker(controller)
print("started", flush=True)
worker.join(name, int(rank), int(world))
print("joined", flush=True)
print(worker.ended(), flush=True)
"""

CONTROLLER = """
import sys
from pathlib import Path
from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.fabric import Fabric
from switchsum.controller.options import ControllerOptions
switch, election_id, state, lease_s, *ports = sys.argv[1:]
sockets = {number: ("127.0.0.1", int(port)) for number, port in enumerate(ports, 1)}
options = ControllerOptions(
    switch=switch,
    listen=("127.0.0.1:0",),
    elements=64,
    election_id=int(election_id),
    lease_s=float(lease_s),
    state=Path(state) if state else None,
)
with ControllerDaemon(Fabric.loopback(sockets), options) as controller:
    print(controller.address, flush=True)
    sys.stdin.read()
"""


class Child:
    """A Python process whose output is read line by line."""

    def __init__(self, program: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line it prints; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def child(program: str, *arguments: object) -> Iterator[Child]:
    """Runs until the block ends, and is killed then if it still lives."""
    running = Child(program, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()
