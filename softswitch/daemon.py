"""The whole softswitch: ports, pipeline and P4Runtime server in one object, and the function that runs it as a daemon."""

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING

from grpc import ServerCredentials

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.device import Device
from switchsum.softswitch.interface_ports import InterfacePorts
from switchsum.softswitch.p4runtime_server import P4RuntimeServer
from switchsum.softswitch.serving import Ports, Traffic
from switchsum.softswitch.udp_ports import UdpPorts

if TYPE_CHECKING:
    from switchsum.softswitch.metrics import SwitchCollector

# The defaults of p4src/protocol.yaml, which this package may not import; test_softswitch_daemon.py compares them.
DEFAULT_SWITCH_IP = "10.83.0.1"
DEFAULT_SERVICE_PORT = 0x5353
_DROPS_EVERY_S = 5.0


class SoftSwitch:
    """A switch that is ready for a controller. Use as a context manager, or call start() and close().

    Until a controller commits a pipeline, packets are counted and dropped.
    """

    def __init__(
        self,
        grpc: str = "127.0.0.1:0",
        ports: int | Mapping[int, tuple[str, int]] = 8,
        *,
        seed: int = 0,
        device_id: int = 1,
        switch_ip: str = DEFAULT_SWITCH_IP,
        service_port: int = DEFAULT_SERVICE_PORT,
        interfaces: Mapping[int, str] | None = None,
        offload: bool = True,
        credentials: ServerCredentials | None = None,
    ) -> None:
        """Bind everything; nothing is served before start().

        `grpc`: "host:port" of the P4Runtime server, port 0 for any free one, or "unix:PATH". `ports`: port number ->
        (host, UDP port), or a count N for ports 1 to N on loopback at free UDP ports. `interfaces`: port number -> name of a
        network interface (root only); then there are no UDP ports. `offload`: let runs of datagrams travel as one.
        `credentials`: TLS of the P4Runtime server; None: connections in the clear.
        `seed` starts the program's random extern. `switch_ip` and `service_port` stand in the headers that UDP ports add
        (see udp_ports). Raises OSError naming what cannot be bound, ValueError for a bad argument.
        """
        self._device = Device(seed)
        self._ports: Ports
        if interfaces is not None:
            self._ports = InterfacePorts(lambda: self._device.dataplane, interfaces, offload=offload)
            self.port_addresses: dict[int, tuple[str, int]] = {}
        else:
            addresses = consecutive_ports("127.0.0.1", 0, ports) if isinstance(ports, int) else dict(ports)
            udp = UdpPorts(lambda: self._device.dataplane, addresses, switch_ip, service_port, offload=offload)
            self._ports, self.port_addresses = udp, udp.addresses
        self.interfaces = dict(interfaces or {})
        try:
            self._server = P4RuntimeServer(self._device, grpc, device_id, credentials)
        except (OSError, ValueError):
            self._ports.close()
            raise
        self.grpc_address = self._server.address
        self._closed = False

    @property
    def dataplane(self) -> Dataplane | None:
        """What packets run through right now, for tests and tools; None before a pipeline is committed."""
        return self._device.dataplane

    @property
    def traffic(self) -> dict[int, Traffic]:
        """What has passed each port."""
        return self._ports.traffic

    @property
    def batches(self) -> int:
        """Batches of packets that the ports' thread has taken."""
        return self._ports.batches

    @property
    def program(self) -> str:
        """Name and version of the committed program as its P4Info has them; "" before one is committed."""
        running = self._device.running
        if running is None:
            return ""
        told = running.p4info.pkg_info
        return f"{told.name} {told.version}".strip() or "unnamed"

    def sessions(self) -> tuple[int, bool]:
        """P4Runtime sessions that take part in the election, and whether one of them is in charge."""
        return self._server.sessions()

    def collector(self) -> "SwitchCollector":
        """For Prometheus. Raises ImportError without prometheus_client."""
        from switchsum.softswitch.metrics import SwitchCollector

        return SwitchCollector(self)

    @property
    def statistics(self) -> dict[str, int]:
        """The ports' counts: packets and bytes in and out, drops by reason."""
        return self._ports.statistics

    def start(self) -> None:
        self._ports.start()
        self._server.start()

    def close(self) -> None:
        """Stop serving; afterwards no thread and no socket of the switch is left."""
        if not self._closed:
            self._closed = True
            self._server.stop()
            self._ports.close()

    def __enter__(self) -> "SoftSwitch":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def consecutive_ports(host: str, base: int, count: int) -> dict[int, tuple[str, int]]:
    """Ports 1 to `count` at UDP ports base + 1 to base + count of `host`; base 0: any free ones."""
    if count < 1:
        raise ValueError(f"{count} ports: a switch needs at least one")
    if base and not 0 < base <= 65535 - count:
        raise ValueError(f"UDP ports {base + 1} to {base + count} do not exist; choose a base of 1 to {65535 - count}")
    return {number: (host, base + number if base else 0) for number in range(1, count + 1)}


def parse_interfaces(texts: Iterable[str]) -> dict[int, str]:
    """Port number -> interface from PORT@INTERFACE, as simple_switch's -i has it. Raises ValueError for another form."""
    found: dict[int, str] = {}
    for text in texts:
        number, _, name = text.partition("@")
        if not number.isdecimal() or not name:
            raise ValueError(f"interface {text!r}: write PORT@INTERFACE, such as 1@veth1")
        if int(number) in found:
            raise ValueError(f"interface {text!r}: port {int(number)} has one already ({found[int(number)]})")
        found[int(number)] = name
    return found


def run(
    switch: SoftSwitch,
    report: Callable[[str], None] = print,
    beside: Callable[[SoftSwitch], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Serve until SIGINT or SIGTERM, then close. Call from the main thread; `report` gets the one line that says ready.

    `beside(switch)` is entered while it serves: its metrics' endpoint.
    """
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with switch, beside(switch):
            report(ready_line(switch))
            told = ""
            while not stop.wait(_DROPS_EVERY_S):
                if (drops := drops_line(switch)) != told:
                    report(drops)
                    told = drops
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exposure(switch: SoftSwitch, asks_for_certificates: bool) -> list[str]:
    """What anybody can do who can reach this switch from another host, a sentence each. `asks_for_certificates`: of clients."""
    sentences = []
    if not asks_for_certificates and _leaves_host(switch.grpc_address):
        sentences.append(
            f"P4Runtime listens at {switch.grpc_address} and asks nobody who they are: whoever can reach it can load another "
            "program, and read and change every table; give the switch --tls-cert and --tls-clients, or keep it on loopback"
        )
    exposed = sorted({host for host, _ in switch.port_addresses.values() if _leaves_host(f"{host}:0")})
    if exposed:
        sentences.append(
            f"the ports listen at {', '.join(exposed)}: whoever can reach them can send packets into the program, and fill its "
            "queues; the switch answers on loopback alone, so keep them there"
        )
    return sentences


def _leaves_host(address: str) -> bool:
    if address.startswith("unix:"):
        return False
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def drops_line(switch: SoftSwitch) -> str:
    """What the ports have dropped or failed to carry so far, by reason; "" if nothing."""
    reasons = {name: number for name, number in switch.statistics.items() if number and not name.endswith(("packets", "bytes"))}
    return f"so far: {', '.join(f'{name} {number}' for name, number in reasons.items())}" if reasons else ""


def ready_line(switch: SoftSwitch) -> str:
    """One line for people and scripts: where the controller and the workers find this switch."""
    if switch.interfaces:
        text = ", ".join(f"port {number} at {name}" for number, name in sorted(switch.interfaces.items()))
        return f"switch ready: P4Runtime {switch.grpc_address}, {text}"
    ports = switch.port_addresses
    (first, (host, lowest)), *_, (last, (_, highest)) = [*ports.items(), *ports.items()]
    if ports == {number: (host, lowest - first + number) for number in range(first, last + 1)}:
        text = f"ports {first}..{last} at {host}:{lowest}..{highest}"
    else:
        text = "ports " + ", ".join(f"{number}={host}:{port}" for number, (host, port) in ports.items())
    return f"switch ready: P4Runtime {switch.grpc_address}, {text}"
