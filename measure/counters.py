"""What one rank's transport sent and received since its start."""

from __future__ import annotations

from dataclasses import dataclass

from switchsum.measure import tcp_counters


@dataclass(frozen=True)
class Counters:
    """Of one rank and transport since its start. Bytes are UDP or TCP payload.

    `resent`: packets or segments; `resent_bytes`: what they carried at most, in packets without SwitchSum's header. TCP's are
    no part of `sent_bytes`, the packets' are. `lost`: datagrams that never came and that nobody sends again. `sent_packets`,
    `received_packets`: datagrams.
    """

    sent_bytes: int
    received_bytes: int
    resent: int | None
    resent_bytes: int
    lost: int = 0
    sent_packets: int = 0
    received_packets: int = 0


def of_tcp() -> Counters:
    """All TCP connections of this process."""
    tcp = tcp_counters.read()
    return Counters(tcp.sent, tcp.received, tcp.retransmitted, tcp.retransmitted_bytes)
