"""A benchmark's worker whose rank 1 misbehaves as the variable BAD says: `corrupt` flips a bit of each result of the switch's,
`die` is killed in the middle of its tenth operation."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

from switchsum.measure import transports, worker

run = transports.Collective.run
calls = 0


def badly(self: transports.Collective, tensor: Any) -> None:
    global calls
    calls += 1
    bad = os.environ["BAD"] if os.environ["RANK"] == "1" else ""
    if bad == "die" and calls == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    run(self, tensor)
    if bad == "corrupt" and self.description.needs_switch:
        tensor.view(torch.int32)[7] ^= 1


if __name__ == "__main__":
    transports.Collective.run = badly  # type: ignore[method-assign]
    worker.die_with_starter()
    status = worker.main(sys.argv[1])
    os._exit(status)
