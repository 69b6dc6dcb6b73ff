"""A benchmark's worker that misbehaves as the variable BAD says.

`corrupt`: rank 1 flips a bit of each result of the switch's, and the parameter server at rank 2 one of each sum. `die`: rank 1
is killed in the middle of its tenth operation. `die-server`: the parameter server at rank 2 is killed at its tenth call.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from switchsum.measure import worker
from switchsum.measure.rpc import Buffers, Call
from switchsum.measure.sum_service import SumService

BAD, RANK = os.environ["BAD"], int(os.environ["RANK"])
add = SumService.__call__
calls = 0


def count(fatal: bool) -> None:
    global calls
    calls += 1
    if fatal and calls == 10:
        os.kill(os.getpid(), signal.SIGKILL)


def badly_added(self: SumService, call: Call) -> Buffers:
    count(BAD == "die-server" and RANK == 2)
    found = add(self, call)
    if BAD == "corrupt" and found:
        found = [bytes(each) for each in found]
        bits = np.frombuffer(found[0], np.uint32).copy()
        bits[7] ^= 1 << 30
        found[0] = bits.tobytes()
    return found


def spoil_collectives() -> None:
    import torch

    from switchsum.measure import transports

    run = transports.Collective.run

    def badly(self: transports.Collective, tensors: Any) -> None:
        count(BAD == "die" and RANK == 1)
        run(self, tensors)
        if BAD == "corrupt" and RANK == 1 and self.description.needs_switch:
            tensors[0].view(torch.int32)[7] ^= 1

    transports.Collective.run = badly  # type: ignore[method-assign]


if __name__ == "__main__":
    SumService.__call__ = badly_added  # type: ignore[method-assign]
    if RANK < 2:
        spoil_collectives()
    worker.die_with_starter()
    status = worker.main(sys.argv[1])
    os._exit(status)
