"""A switch that loses packets, its controller, and workers: what there is to see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import make_controller, workers  # noqa: F401  (a fixture)
from tests.controller.test_service import eventually


@pytest.fixture(scope="session")
def switch() -> Iterator[SoftSwitch]:
    with SoftSwitch(ports=4) as switch:
        yield switch


@pytest.fixture
def controller(switch: SoftSwitch) -> Iterator[ControllerDaemon]:
    with make_controller(switch) as controller:
        yield controller
    eventually(lambda: switch.sessions() == (0, False))  # the next one wants the same election id
