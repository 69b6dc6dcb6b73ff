"""Progress of a training: live bars on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class TrainingProgress:
    """A context manager that shows one bar for each training, in the order in which they begin."""

    def __init__(self, console: Console, epochs: int) -> None:
        self._console = console
        self._epochs = epochs
        self._live = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._name = ""

    def begin(self, name: str, status: str) -> None:
        """A training called `name` begins; `status` says what it is waiting for."""
        self._name = name
        self._task = self._live.add_task(name, total=None, status=status)
        if self._live.disable:
            self._console.print(f"{name}: {status}", soft_wrap=True)

    def status(self, text: str) -> None:
        """What the training that began last is doing before its first step."""
        if self._task is not None:
            self._live.update(self._task, status=text)

    def step(self, epoch: int, step: int, steps: int, loss: float, steps_per_second: float) -> None:
        """Step `step` of `steps` of an epoch is done (both count from 0); `loss` is rank 0's."""
        status = f"epoch {epoch + 1}/{self._epochs}, loss {loss:.4f}, {steps_per_second:.1f} steps/s"
        if self._task is not None:
            self._live.update(self._task, total=steps * self._epochs, completed=epoch * steps + step + 1, status=status)
        if self._live.disable and step == steps - 1:
            self._console.print(f"{self._name}: {status}", soft_wrap=True)

    def __enter__(self) -> TrainingProgress:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)
