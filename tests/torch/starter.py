"""`python -m tests.torch.starter FD`: what starts ranks: a process that has PyTorch and the engine loaded, and forks.

Loading takes two seconds of a core, a fork milliseconds. Orders come over the socket FD, each a message of JSON, {"module",
"function", "environment", "anew"}, with three descriptors: the rank's input, its output, and a socket for what is told of it:
its process id, then its exit status, negative for a signal. The process id stays its own until that socket is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
from dataclasses import dataclass
from typing import Any

from switchsum.host_agent.prepare import prepare


@dataclass
class Forked:
    """A rank. `told`: the socket for what is told of it; `alive`: a descriptor that shows its end."""

    pid: int
    told: socket.socket
    alive: int


def main() -> None:
    import torch._dynamo  # noqa: F401  # the first optimizer would

    import switchsum.torch_backend  # noqa: F401

    prepare()
    gc.collect()
    gc.freeze()  # else each rank, at its end, looks through all that is loaded here, which takes it a second
    order = next_order(socket.socket(fileno=int(sys.argv[1])))
    if order is None:
        return
    # From here on we are the rank, and end as any program does: what the interpreter does then belongs to the test.
    if order["anew"]:
        os.execve(sys.executable, [sys.executable, "-m", order["module"], order["function"]], order["environment"])
    getattr(importlib.import_module(order["module"]), order["function"])()


def next_order(orders: socket.socket) -> dict[str, Any] | None:
    """In a forked rank, its order; in the starter, None when nobody is left to give any."""
    living: dict[int, Forked] = {}
    ended: dict[socket.socket, Forked] = {}
    while True:
        ready, _, _ = select.select([orders, *living, *ended], [], [])
        for alive in living.keys() & set(ready):
            rank = living.pop(alive)
            os.close(alive)
            information = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
            assert information is not None
            exited = information.si_code == os.CLD_EXITED
            rank.told.send(b"%d" % (information.si_status if exited else -information.si_status))
            ended[rank.told] = rank
        for told in ended.keys() & set(ready):
            os.waitpid(ended.pop(told).pid, 0)
            told.close()
        if orders not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 3)
        if not message:
            return None
        read, write, told_fd = descriptors
        order: dict[str, Any] = json.loads(message)
        pid = os.fork()
        if pid == 0:
            for rank in (*living.values(), *ended.values()):
                rank.told.close()
            for descriptor in (orders.detach(), told_fd, *living):
                os.close(descriptor)
            become_rank(read, write, order["environment"])
            return order
        os.setpgid(pid, pid)  # so does the rank: whoever comes first
        os.close(read)
        os.close(write)
        rank = Forked(pid, socket.socket(fileno=told_fd), os.pidfd_open(pid))
        living[rank.alive] = rank
        rank.told.send(b"%d" % pid)


def become_rank(read: int, write: int, environment: dict[str, str]) -> None:
    os.setpgid(0, 0)  # with the children that it may start, which hold its output open
    os.dup2(read, 0)
    os.dup2(write, 1)
    os.dup2(write, 2)
    os.close(read)
    os.close(write)
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    main()
