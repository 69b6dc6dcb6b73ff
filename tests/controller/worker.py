"""A worker of the tests: the real client and a data socket. Imports nothing that a training host would not have."""

from __future__ import annotations

import socket

from switchsum.host_agent.credentials import IN_THE_CLEAR, Credentials
from switchsum.host_agent.errors import EpochEnded
from switchsum.host_agent.job_client import JobClient, Joined

HOST = "testhost"


class Worker:
    """join() blocks until the world is complete."""

    def __init__(self, controller: str, credentials: Credentials = IN_THE_CLEAR) -> None:
        self.client = JobClient(controller, credentials)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(20.0)
        self.collective = "none"
        self.endings: list[EpochEnded] = []
        self.joined: Joined | None = None

    def join(self, name: str, rank: int, world: int, **options: object) -> Joined:
        """Join as host testhost, pid 4000 + rank, and start listening."""
        wanted: dict[str, object] = {
            "data_port": self.socket.getsockname()[1],
            "timeout_s": 30.0,
            "host": HOST,
            "pid": 4000 + rank,
        }
        self.joined = self.client.join(job_name=name, rank=rank, world_size=world, **(wanted | options))  # type: ignore[arg-type]
        self.client.start(on_ended=self.endings.append, describe=lambda: self.collective)
        return self.joined

    def ended(self) -> EpochEnded:
        """Waits for the epoch's end, which has to come."""
        ended = self.client.wait_ended(20.0)
        assert ended is not None
        return ended

    def close(self) -> None:
        self.client.close()
        self.socket.close()
