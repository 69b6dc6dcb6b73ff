"""A training host's Prometheus metrics (docs/metrics.md): what the agents of one process count anyway, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PATHS = ("switch", "gloo", "none")
_LABELS = ("job", "rank")
# counter of the agent -> metric, without switchsum_host_ and _total, its further label, and help. What is not listed here is
# told under its own name.
_COUNTERS = {
    "packets_sent": ("sent_packets", "", "Packets sent to the switch."),
    "bytes_sent": ("sent_bytes", "", "Their bytes of UDP payload."),
    "packets_received": ("received_packets", "", "Packets that came from the switch."),
    "bytes_received": ("received_bytes", "", "Their bytes of UDP payload."),
    "timeouts": ("retransmissions", "timeout", "Packets sent again: nothing came in time, or later ones were answered first."),
    "early_repairs": (
        "retransmissions",
        "early",
        "Packets sent again: nothing came in time, or later ones were answered first.",
    ),
    "repairs_received": ("repaired_results", "", "Results that the switch had to send again."),
    "stale": ("stale_packets", "", "Answers of rounds that were over."),
    "foreign": ("foreign_packets", "", "Packets that were no answers to this rank."),
    "detours": ("detours", "", "How often sums left the switch because it was lost."),
    "returns": ("returns", "", "How often they came back to it."),
    "gloo_sums": ("gloo_sums", "", "Sums that went without the switch, while it was lost."),
    "gloo_bytes": ("gloo_bytes", "", "Their bytes."),
    "collectives": ("collectives", "", "Sums that have finished, agreements with other ranks included."),
}
_KIND = "retransmissions"  # the one metric whose counters are told apart by a label


class Member(Protocol):
    """An agent, as far as metrics go."""

    @property
    def path(self) -> str:
        """One of PATHS."""

    def counters(self) -> Mapping[str, int]: ...

    def gauges(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Membership:
    """One rank of one job."""

    job: str
    rank: int
    agent: Member


class HostCollector(Collector):
    """What the memberships of one process have to tell. A job that is left is told of no more."""

    def __init__(self, memberships: Callable[[], Iterable[Membership]]) -> None:
        self._memberships = memberships

    def collect(self) -> Iterator[Metric]:
        """The present values."""
        told = [(membership, (membership.job, str(membership.rank))) for membership in self._memberships()]
        path = GaugeMetricFamily(
            "switchsum_host_path", "1 for the way that sums take now, 0 for the others.", labels=[*_LABELS, "path"]
        )
        families: dict[str, Metric] = {path.name: path}
        for membership, key in told:
            now = membership.agent.path
            for name in PATHS:
                path.add_metric([*key, name], name == now)
            for name, number in membership.agent.counters().items():
                metric, kind, help_text = _COUNTERS.get(name, (name, "", f"The agent's counter {name}."))
                labels = [*_LABELS, "kind"] if metric == _KIND else _LABELS
                counter = families.setdefault(metric, CounterMetricFamily(f"switchsum_host_{metric}", help_text, labels=labels))
                counter.add_metric([*key, kind] if metric == _KIND else key, number)  # type: ignore[attr-defined]
            for name, value in membership.agent.gauges().items():
                gauge = families.setdefault(
                    name, GaugeMetricFamily(f"switchsum_host_{name}", f"The agent's {name}.", labels=_LABELS)
                )
                gauge.add_metric(key, value)  # type: ignore[attr-defined]
        yield from families.values()
