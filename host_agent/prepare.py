"""Compiles the packet engine once on a machine: numba keeps the result beside the sources or in the user's cache.

All ranks of a job start at the same moment; without a lock each would compile the same code, on cores that they share.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
from pathlib import Path

import numpy as np

from switchsum.host_agent.engine import Engine
from switchsum.host_agent.transport import Transport, now_ns

logger = logging.getLogger(__name__)

_SILENT_S = 12.0  # on a busy machine, too, what is compiled already has been loaded by then
_loaded = False  # in this process, or in the one that it is a fork of
_COMPILES = "switchsum compiles its packet loops, once for this installation; that takes about half a minute"


def prepare(*, tell: bool = False) -> None:
    """Have the engine and the transport's loop ready to run: half a minute the first time, then what loading them takes.

    Blocks while another process of this user does the same; done at once where it has been done. `tell`: whether to log a line
    when it takes long.
    """
    global _loaded
    if _loaded:
        return
    path = Path(tempfile.gettempdir()) / f"switchsum-{os.getuid()}.lock"
    with contextlib.ExitStack() as stack:
        # Somebody else's file of that name costs the lock, and with it perhaps a minute of compiling; it must not cost the job.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            lock = stack.enter_context(open(descriptor, "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        if tell:
            patience = threading.Timer(_SILENT_S, logger.warning, [_COMPILES])
            patience.start()
            stack.callback(patience.cancel)
        engine = Engine(job=0, epoch=0, worker=0, world_size=1, slots=1, elements=64)
        transport = Transport("127.0.0.1")
        try:
            values = np.zeros(1, np.float32)
            engine.submit(values, values, 0, now_ns())
            transport.wake()
            transport.run(engine)  # the socket is not connected: nothing leaves it
        finally:
            transport.close()
    _loaded = True
