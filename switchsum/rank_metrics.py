"""The metrics' endpoint of one training process, which its process groups share."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from switchsum.failures import CommandFailed, require
from switchsum.host_agent.errors import SwitchSumError
from switchsum.metrics_endpoint import METRICS_MODULES, MetricsEndpoint, parse_address

if TYPE_CHECKING:
    from switchsum.host_agent.metrics import Member, Membership

VARIABLE = "SWITCHSUM_METRICS"
logger = logging.getLogger(__name__)


class RankMetrics:
    """Opened by the first process group of a process that is in a job, closed with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoint: MetricsEndpoint | None = None
        self._memberships: list[Membership] = []

    def open(self, address: str, rank: int) -> None:
        """Serve at "[HOST:]PORT" + the rank on this machine, unless that is done already; "": do nothing.

        Raises SwitchSumError if it cannot be, ValueError for another address.
        """
        if not address:
            return
        with self._lock:
            if self._endpoint is not None:
                return
            host, port = parse_address(address, VARIABLE)
            local = int(os.environ.get("LOCAL_RANK", rank))
            if port and port + local > 65535:
                raise ValueError(
                    f"{VARIABLE}={address!r}: rank {local} of this machine would need port {port + local}; choose a lower one"
                )
            try:
                require(f"{VARIABLE}={address}", METRICS_MODULES)
                from switchsum.host_agent.metrics import HostCollector

                self._endpoint = MetricsEndpoint(host, port + local if port else 0, HostCollector(self._present))
            except CommandFailed:
                raise SwitchSumError(
                    f"{VARIABLE} is set, but prometheus_client is not installed: pip install 'switchsum[metrics]', or unset it"
                ) from None
            except OSError as error:
                raise SwitchSumError(f"{VARIABLE}={address}: {error.strerror}") from None
            logger.info("metrics at %s", self._endpoint.url, extra={"rank": rank})

    def add(self, job: str, rank: int, agent: Member) -> None:
        """Tell of this membership, too, if metrics are served."""
        with self._lock:
            if self._endpoint is not None:
                from switchsum.host_agent.metrics import Membership

                self._memberships.append(Membership(job, rank, agent))

    def remove(self, agent: Member | None) -> None:
        """Tell of it no more, and close the endpoint when there is nothing left to tell."""
        with self._lock:
            self._memberships = [each for each in self._memberships if each.agent is not agent]
            endpoint = None
            if not self._memberships:
                endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _present(self) -> list[Membership]:
        with self._lock:
            return list(self._memberships)
