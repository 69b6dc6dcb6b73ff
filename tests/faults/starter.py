"""`python -m tests.faults.starter`: what starts ranks: a process that has everything loaded, and forks.

Loading PyTorch takes seconds, a fork milliseconds; so each run has fresh ranks at no cost. The starter has no thread and no
socket. A line of JSON on standard input starts a rank: {"rank", "namespace", "host", "environment", "task", "log"}. Lines of
JSON on standard output tell what ranks tell (training.py), each with its "rank", and {"started": PID, "rank"} and
{"exit": STATUS, "pid"}, negative for a signal.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies import namespaces
from switchsum.host_agent.prepare import prepare
from tests.faults.training import Task, train

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWUTS = 0x00020000, 0x04000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    import torch._dynamo  # noqa: F401  # the first optimizer would

    import switchsum.torch_backend  # noqa: F401

    prepare()
    gc.collect()
    gc.freeze()  # else each rank, at its end, looks through all that is loaded here, which takes it a second
    events = os.dup(1)
    _tell(events, {"ready": os.getpid()})
    order = _next_order(events)
    if order is None:
        return 0
    # From here on we are the rank, and end as any program does: what the interpreter does then belongs to the run.
    os.environ.update(order["environment"])
    train(Task(**order["task"]), lambda event: _tell(events, {"rank": order["rank"], **event}))
    return 0


def _next_order(events: int) -> dict[str, Any] | None:
    """In a forked rank, its order; in the starter, None at the end of the input."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _bury(events)
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return None
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                order: dict[str, Any] = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    _become_rank(order)
                    return order
                _tell(events, {"started": pid, "rank": order["rank"]})


def _bury(events: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(events, {"exit": os.waitstatus_to_exitcode(status), "pid": pid})


def _become_rank(order: dict[str, Any]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setpgid(0, 0)
    opened = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    _move(order["namespace"], order["host"])


def _move(namespace: str, host: str) -> None:
    """To a host of a rack, as `ip netns exec` and the rack's runner would: its network, its name, its /etc/hosts."""
    namespaces.enter(namespace)
    _done(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS))
    _done(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    hosts = Path("/etc/netns") / namespace / "hosts"
    _done(_libc.mount(os.fsencode(hosts), b"/etc/hosts", None, _MS_BIND, None))
    socket.sethostname(host)


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _tell(events: int, event: dict[str, Any]) -> None:
    os.write(events, json.dumps(event).encode() + b"\n")  # at once, so that lines of several processes do not mix


if __name__ == "__main__":
    sys.exit(main())
