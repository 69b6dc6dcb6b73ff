"""What holds for every test."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadline: the first example pays for compiling, and timings are not asserted in tests.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A shell that starts the tests in the background makes them ignore SIGINT, and their children would inherit that; a handler, as
# opposed to "ignore", is reset when a child is executed.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: so what comes last is short, and the processes of `make test` end at the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run inside a test set logging up for the whole process, and the next test reads its standard error."""
    loggers = [logging.getLogger(), logging.getLogger("switchsum")]
    kept = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, kept, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
