"""One softswitch for all tests of this area, a controller for each, and workers that join by the real client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.controller.fabric import Fabric
from switchsum.controller.options import ControllerOptions
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.member import Member
from tests.controller.worker import Worker

ELEMENTS = 64  # the smallest build loads fastest


def all_join(workers: list[Worker], name: str, **options: object) -> None:
    """A complete world joins, all ranks at once."""
    failures: list[Exception] = []

    def one(rank: int, worker: Worker) -> None:
        try:
            worker.join(name, rank, len(workers), **options)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.fixture(scope="session")
def switch() -> Iterator[SoftSwitch]:
    """Four loopback ports; it keeps its program from test to test, as a real switch does."""
    with SoftSwitch(ports=4) as switch:
        yield switch


@pytest.fixture
def controller(switch: SoftSwitch) -> Iterator[ControllerDaemon]:
    with make_controller(switch) as controller:
        yield controller


def make_controller(softswitch: SoftSwitch, **options: object) -> ControllerDaemon:
    """A controller for the switch, at a free port."""
    wanted: dict[str, object] = {"switch": softswitch.grpc_address, "listen": ("127.0.0.1:0",), "elements": ELEMENTS}
    return ControllerDaemon(Fabric.loopback(softswitch.port_addresses), ControllerOptions(**(wanted | options)))  # type: ignore[arg-type]


@pytest.fixture
def workers() -> Iterator[Callable[[ControllerDaemon | str, int], list[Worker]]]:
    """Makes workers, and closes them after the test."""
    made: list[Worker] = []

    def make(controller: ControllerDaemon | str, count: int) -> list[Worker]:
        address = controller if isinstance(controller, str) else controller.address
        fresh = [Worker(address) for _ in range(count)]
        made.extend(fresh)
        return fresh

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def members() -> Iterator[Callable[[str, int], list[Member]]]:
    """Makes members that speak call by call, and closes them after the test."""
    made: list[Member] = []

    def make(address: str, count: int) -> list[Member]:
        fresh = [Member(address) for _ in range(count)]
        made.extend(fresh)
        return fresh

    yield make
    for member in made:
        member.close()
