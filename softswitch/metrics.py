"""The softswitch's Prometheus metrics (docs/metrics.md), read from its counts when they are asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from switchsum.softswitch.daemon import SoftSwitch

_TRAFFIC = ("received_packets", "received_bytes", "sent_packets", "sent_bytes")
_DROPPED = "dropped_"  # how the ports call a reason to drop
_PROGRAM_DROPPED = "drop_"  # how the program does


class SwitchCollector(Collector):
    """What one switch has to tell."""

    def __init__(self, switch: SoftSwitch) -> None:
        self._switch = switch

    def collect(self) -> Iterator[Metric]:
        """The present values; takes no lock that holds up packets for longer than it takes to copy a dozen numbers."""
        switch = self._switch
        program, (sessions, primary) = switch.program, switch.sessions()
        yield GaugeMetricFamily(
            "switchsum_switch_program_loaded", "Whether a controller has committed a program.", bool(program)
        )
        yield InfoMetricFamily("switchsum_switch_program", "The committed program, by its P4Info.", {"program": program})
        yield GaugeMetricFamily("switchsum_switch_p4runtime_sessions", "Controllers in the election.", sessions)
        yield GaugeMetricFamily("switchsum_switch_p4runtime_primary", "Whether one of them is in charge.", primary)
        yield CounterMetricFamily("switchsum_switch_batches", "Batches of packets taken from the ports.", switch.batches)
        yield from self._traffic()
        yield from self._events()

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._switch.traffic
        for name, help_text in (
            ("received_packets", "Packets that came in on a port."),
            ("received_bytes", "Their bytes."),
            ("sent_packets", "Packets that left by a port."),
            ("sent_bytes", "Their bytes."),
        ):
            family = CounterMetricFamily(f"switchsum_switch_{name}", help_text, labels=["port"])
            for port, passed in traffic.items():
                family.add_metric([str(port)], getattr(passed, name))
            yield family

    def _events(self) -> Iterator[Metric]:
        """Drops have reasons of the ports and of the program; what is no drop is an error."""
        ports = {name: number for name, number in self._switch.statistics.items() if name not in _TRAFFIC}
        dataplane = self._switch.dataplane
        program = {} if dataplane is None else dict(dataplane.statistics)
        drops = CounterMetricFamily(
            "switchsum_switch_dropped_packets", "Packets dropped, by reason.", labels=["stage", "reason"]
        )
        errors = CounterMetricFamily("switchsum_switch_errors", "What went wrong and is no drop.", labels=["stage", "kind"])
        for stage, prefix, counts in (("ports", _DROPPED, ports), ("program", _PROGRAM_DROPPED, program)):
            for name, number in counts.items():
                if name.startswith(prefix):
                    drops.add_metric([stage, name.removeprefix(prefix)], number)
                elif not name.startswith("packets_"):
                    errors.add_metric([stage, name.removesuffix("_errors")], number)
        for direction in ("in", "out"):
            yield CounterMetricFamily(
                f"switchsum_switch_program_packets_{direction}",
                {"in": "Packets that entered the program.", "out": "Packets that left it."}[direction],
                program.get(f"packets_{direction}", 0),
            )
        yield drops
        yield errors
