"""How a command fails: with one sentence that says all a person needs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

EXIT_FAILED = 1


class CommandFailed(Exception):
    """Something that a person can cause or mend went wrong; the text is all they need to see."""

    def __init__(self, sentence: str, status: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.status = status


def require(command: str, modules: dict[str, str]) -> None:
    """Raise CommandFailed unless these modules can be found (nothing is imported); maps module -> extra that brings it."""
    missing = {module: extra for module, extra in modules.items() if find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(set(missing.values())))
        raise CommandFailed(
            f"`switchsum {command}` needs {', '.join(missing)}, which is not installed: pip install 'switchsum[{extras}]'"
        )


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds the stack as Ctrl-C does, so that what was started goes. For the main thread."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
