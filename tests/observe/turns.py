"""Contributions in an order of one's choice, although they come in by different ports."""

from __future__ import annotations

from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.test_service import eventually, send
from tests.controller.worker import Worker


def send_in_turn(switch: SoftSwitch, workers: list[Worker], phase: int = 1) -> None:
    """Each when the switch has taken the one before."""
    for worker in workers:
        before = switch.statistics["received_packets"]
        send(worker, 1, phase=phase)
        eventually(lambda before=before: switch.statistics["received_packets"] > before)  # type: ignore[misc]
