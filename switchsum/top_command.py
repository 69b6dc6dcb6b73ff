"""`switchsum top`: the live view of a controller's jobs."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchsum import jobs_command
from switchsum.demo.options import BadOption
from switchsum.failures import CommandFailed
from switchsum.jobs_command import Controller, connect

if TYPE_CHECKING:
    from switchsum.top_view import State

_LOOK_S = 0.2  # how late a key may be noticed
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0


def top(
    controller: Controller = None,
    interval: Annotated[float, typer.Option(help="Seconds from one reading to the next.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print what happens in one interval, as text, and end.")] = False,
) -> None:
    """Watch the jobs of a controller: goodput, loss, repairs, who comes last. q or Ctrl-C ends it."""
    if not _SHORTEST_S <= interval <= _LONGEST_S:
        raise BadOption(f"--interval {interval:g}: must be between {_SHORTEST_S:g} and {_LONGEST_S:g} seconds")
    from rich.console import Console

    from switchsum.top_view import view

    console = Console(highlight=False)
    with Watcher(controller, interval) as watcher, contextlib.suppress(KeyboardInterrupt):
        if once:
            state = watcher.wait(lambda state: state.before is not None or state.lost_at is not None)
            if state.lost_at is not None:
                raise CommandFailed(state.problem)
            console.print(view(state))
        elif console.is_terminal:
            _show_live(watcher, console)
        else:
            shown = watcher.state
            while True:
                shown = watcher.wait(lambda state: state is not shown)  # noqa: B023
                console.print(view(shown))


class Watcher:
    """Asks the controller again and again, in a thread of its own: one that does not answer must not keep keys waiting."""

    def __init__(self, controller: str | None, interval_s: float) -> None:
        from switchsum.top_view import State

        self._client = connect(controller)
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._state = State(self._client.address, _clock())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="switchsum-top", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._client.close()
        self._thread.join()

    @property
    def state(self) -> State:
        """What is known now."""
        with self._changed:
            return self._state

    def wait(self, until: Callable[[State], bool]) -> State:
        """The first state of which that is true."""
        with self._changed:
            self._changed.wait_for(lambda: until(self._state))
            return self._state

    def _ask(self) -> None:
        from dataclasses import replace

        from switchsum.host_agent.errors import SwitchSumError
        from switchsum.job_rates import Reading

        while not self._closed.is_set():
            began = time.monotonic()
            before = self._state
            try:
                reply = self._client.inspect(jobs_command.TIMEOUT_S)
                reading = Reading(time.monotonic(), reply)
                now = replace(before, clock=_clock(), now=reading, before=before.now, lost_at=None, problem="")
            except (SwitchSumError, ValueError) as error:  # ValueError: __exit__ has closed the channel
                first = before.lost_at is None
                now = replace(
                    before,
                    clock=_clock(),
                    lost_at=began if first else before.lost_at,
                    lost_clock=_clock() if first else before.lost_clock,
                    problem=str(error),
                )
            with self._changed:
                self._state = now
                self._changed.notify_all()
            self._closed.wait(max(began + self._interval_s - time.monotonic(), 0))


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _show_live(watcher: Watcher, console: Any) -> None:
    from rich.live import Live

    from switchsum.top_view import view

    with _keys() as pressed, Live(view(watcher.state), console=console, screen=True, auto_refresh=False) as live:
        shown = None
        while "q" not in pressed(_LOOK_S):
            state = watcher.state
            if state is not shown:
                live.update(view(state), refresh=True)
                shown = state


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for up to so many seconds and returns what was typed meanwhile; a terminal that is gone types q."""
    if not sys.stdin.isatty():

        def silent(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield silent
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        with contextlib.suppress(OSError):
            return os.read(descriptor, 64).decode(errors="replace") or "q"
        return "q"

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
