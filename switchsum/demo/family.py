"""The demo's child processes: none outlives the family, whatever happens, and nothing that one says gets lost."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

KEPT_LINES = 40  # of each child's output, for the case that it fails
GRACE_S = 3.0  # between asking a child to end and killing it
_READ_BYTES = 65536


@dataclass(eq=False)
class Child:
    """One process of the family."""

    name: str  # as errors call it, such as "worker 2"
    process: subprocess.Popen[bytes]
    pidfd: int
    events_fd: int
    output_fd: int
    output: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    ended: bool = False
    _partial: dict[int, bytes] = field(default_factory=dict)

    def lines(self, descriptor: int) -> tuple[list[str], bool]:
        """Whole lines that have arrived on one of the child's pipes, and whether it is at its end; never waits."""
        data = self._partial.pop(descriptor, b"")
        at_end = False
        with suppress(BlockingIOError):
            while chunk := os.read(descriptor, _READ_BYTES):
                data += chunk
            at_end = True
        *whole, rest = data.split(b"\n")
        if rest and at_end:
            whole.append(rest)
        elif rest:
            self._partial[descriptor] = rest
        return [line.decode(errors="replace") for line in whole], at_end

    @property
    def how_it_ended(self) -> str:
        """In words, such as "was killed by SIGKILL"; only once it has ended."""
        status = self.process.returncode
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"


@dataclass(frozen=True)
class Notice:
    """Something a child said (`kind` as it named it), or its end (`kind` "ended")."""

    child: Child
    kind: str
    values: Mapping[str, Any]


class Family:
    """Starts children and hears them; as a context manager it ends all of them on the way out.

    A child runs `python -m MODULE ARGUMENTS` in a process group of its own, so that a terminal's Ctrl-C reaches only us,
    and asks the kernel to be killed when we die (events.die_with_parent). Use it from the main thread.
    """

    def __init__(self, on_output: Callable[[str, str], None] | None = None) -> None:
        """`on_output(name, line)`, if given, sees every line that a child prints."""
        self._on_output = on_output
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._heard: deque[Notice] = deque()

    def start(
        self,
        name: str,
        module: str,
        arguments: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        inherit: Sequence[int] = (),
        prefix: Sequence[str] = (),
    ) -> Child:
        """Start one child; `arguments(events_fd)` makes its command line, `inherit` are descriptors that it keeps.

        `prefix`: a command that becomes the child, such as `ip netns exec NAME`.
        """
        events_read, events_write = os.pipe()
        try:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments(events_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=[events_write, *inherit],
                process_group=0,
            )
        except BaseException:
            os.close(events_read)
            raise
        finally:
            os.close(events_write)
        assert process.stdout is not None  # stdout=PIPE says so
        child = Child(name, process, os.pidfd_open(process.pid), events_read, process.stdout.fileno())
        self._children.append(child)
        for descriptor in (child.events_fd, child.output_fd):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        return child

    def hear(self, patience_s: float) -> Notice:
        """The next thing that a child says or does; raises TimeoutError after `patience_s` of silence."""
        deadline = time.monotonic() + patience_s
        while not self._heard:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"nothing was heard for {patience_s:g} s")
            for key, _ in ready:
                child: Child = key.data
                if child.ended:  # a moment ago, in this very loop
                    continue
                if key.fd != child.pidfd:
                    self._drain(child, key.fd)
                    continue
                self._drain(child, child.output_fd)
                self._drain(child, child.events_fd)
                self._retire(child)
                self._heard.append(Notice(child, "ended", {}))
        return self._heard.popleft()

    def _drain(self, child: Child, descriptor: int) -> None:
        lines, at_end = child.lines(descriptor)
        if at_end and descriptor in self._selector.get_map():  # a pipe at its end is readable for ever
            self._selector.unregister(descriptor)
        if descriptor == child.events_fd:
            self._heard.extend(_parse(child, line) for line in lines)
            return
        for line in lines:
            child.output.append(line)
            if self._on_output is not None:
                self._on_output(child.name, line)

    def _retire(self, child: Child) -> None:
        child.ended = True
        for descriptor in (child.pidfd, child.events_fd, child.output_fd):
            with suppress(KeyError):
                self._selector.unregister(descriptor)
        child.process.wait()
        os.close(child.pidfd)
        os.close(child.events_fd)
        assert child.process.stdout is not None
        child.process.stdout.close()

    def end(self, children: Sequence[Child] | None = None) -> None:
        """End these children (default: all) and wait for it: SIGTERM, then SIGKILL for those that take too long."""
        living = [child for child in (self._children if children is None else children) if not child.ended]
        for child in living:
            child.process.terminate()
        deadline = time.monotonic() + GRACE_S
        for child in living:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
            self._drain(child, child.output_fd)
            self._retire(child)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.end()
        finally:
            for child in self._children:
                if child.process.poll() is None:  # a second Ctrl-C came while we waited
                    child.process.kill()
            self._selector.close()


def _parse(child: Child, line: str) -> Notice:
    values = json.loads(line)
    return Notice(child, values.pop("event"), values)
