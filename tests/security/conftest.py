"""The softswitch, controllers with TLS and tokens, and workers, of which each has its own credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.host_agent.credentials import IN_THE_CLEAR, Credentials
from tests.controller.conftest import switch
from tests.controller.worker import Worker
from tests.security.authority import Authority

__all__ = ["switch"]

MakeWorker = Callable[..., Worker]  # (controller or address, credentials)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def worker() -> Iterator[MakeWorker]:
    """Makes workers, and closes them after the test."""
    made: list[Worker] = []

    def make(controller: ControllerDaemon | str, credentials: Credentials = IN_THE_CLEAR) -> Worker:
        address = controller if isinstance(controller, str) else controller.address
        made.append(Worker(address, credentials))
        return made[-1]

    yield make
    for each in made:
        each.close()
