from collections.abc import Iterator

import pytest

from switchsum.softswitch.daemon import SoftSwitch
from tests.p4runtime.raw_client import Client, Names, p4info


@pytest.fixture
def switch() -> Iterator[SoftSwitch]:
    """A switch without a pipeline."""
    with SoftSwitch(ports=4) as switch:
        yield switch


@pytest.fixture
def client(switch: SoftSwitch) -> Iterator[Client]:
    """A controller that is connected but has not taken part in an election."""
    client = Client(switch.grpc_address)
    yield client
    client.close()


@pytest.fixture
def primary(client: Client) -> Client:
    """The primary controller, with the folder's program committed."""
    client.become_primary()
    client.set_pipeline()
    return client


@pytest.fixture(scope="session")
def names() -> Names:
    return Names(p4info())
