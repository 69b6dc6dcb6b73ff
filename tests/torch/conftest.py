"""The controller that a file's jobs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchsum.embedded import EmbeddedSwitch


@pytest.fixture(scope="module")
def controller() -> Iterator[str]:
    switch = EmbeddedSwitch(ports=8)
    yield switch.controller
    switch.close()
