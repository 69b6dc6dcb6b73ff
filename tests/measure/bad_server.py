"""A benchmark's rank whose parameter server misbehaves as the variable BAD says: `flip` changes one byte of each answer, `drop`
leaves the last buffer out, `die` is killed in its fifth call."""

from __future__ import annotations

import os
import signal
import sys

from switchsum.measure import call_roles, worker
from switchsum.measure.rpc import Buffers, Call, Method

answer = call_roles.CallRoles.answer
calls = 0


def badly(self: call_roles.CallRoles, call: Call) -> Buffers:
    global calls
    calls += 1
    bad = os.environ["BAD"]
    if bad == "die" and calls == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    buffers = [bytearray(each) for each in call.buffers]
    if bad == "flip":
        buffers[0][3] ^= 1
    elif bad == "drop":
        buffers.pop()
    return buffers if call.method == Method.ECHO else answer(self, Call(call.worker, call.method, call.mark, buffers))


if __name__ == "__main__":
    call_roles.CallRoles.answer = badly  # type: ignore[method-assign]
    worker.die_with_starter()
    os._exit(worker.main(sys.argv[1]))
