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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "a switch of your own (docs/conformance.md); no other test runs then")
    group.addoption("--target", metavar="ADDRESS", help="its P4Runtime server, such as 192.0.2.1:9559; it loses what it holds")
    group.addoption(
        "--ports", default="", metavar="N@INTERFACE,...", help="four of its ports, and the interfaces wired to them"
    )
    group.addoption("--device-id", type=int, default=1, help="its number in P4Runtime (default 1)")
    group.addoption("--layout", choices=["lanes", "wide"], default="lanes", help="which compiled program (default lanes)")
    group.addoption("--elements", type=int, choices=[64, 128, 256], default=256, help="of its packets (default 256)")
    group.addoption("--p4info", default="", metavar="FILE", help="of a program that another compiler made of p4src")
    group.addoption("--device-config", default="", metavar="FILE", help="of the same")
    group.addoption("--shortest-frame", type=int, default=60, metavar="BYTES", help="frames are padded to it (default 60)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("target"):
        from tests.protocol.external_switch import of_options  # which needs the extra "switch"

        try:
            of_options(vars(config.option))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --target its tests alone. Files with slow tests first: so what comes last is short, and the processes of `make test`
    end at the same time.
    """
    if config.getoption("target"):
        others = [item for item in items if item.get_closest_marker("external") is None]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
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
