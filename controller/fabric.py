"""Which switch port reaches whom: the network as the controller knows it, and its description in YAML.

Two kinds. On a `loopback` fabric every port is a UDP socket of the softswitch, and any process of this machine may use any
port. In a `rack` a port reaches the hosts that its list names, by Ethernet:

    kind: loopback                       kind: rack
    switch: {address: 10.83.0.1}         switch: {address: 10.83.0.1, mac: "02:53:53:00:00:00"}
    ports:                               ports:
      1: 127.0.0.1:41001                   1: [{address: 10.83.0.11, mac: "02:00:00:00:00:0b"}]
      2: 127.0.0.1:41002                   2: [{address: 10.83.0.12, mac: "02:00:00:00:00:0c"}]

`switch` may be left out; its fields default to the values shown.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

import yaml

from switchsum.controller.errors import FabricError
from switchsum.controller.jobs import Attachment
from switchsum.p4src.layout import SERVICE_PORT

SWITCH_IP = int(IPv4Address("10.83.0.1"))  # the softswitch's default, which its UDP ports write into headers
SWITCH_MAC = 0x02_53_53_00_00_00
MAX_PORT = 510  # 9 bits, without 511, which means "drop"

_LOOPBACK = IPv4Network("127.0.0.0/8")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")

Value = TypeVar("Value")


@dataclass(frozen=True)
class Station:
    """A host's interface: its addresses, and the switch port that reaches it."""

    address: int
    mac: int
    port: int


class Fabric(ABC):
    """What both kinds have. `ports` in ascending order; `stations` only where the switch carries other traffic too."""

    carries_other_traffic = False

    def __init__(self, ports: tuple[int, ...], stations: tuple[Station, ...], switch_ip: int, switch_mac: int) -> None:
        self.ports = ports
        self.stations = stations
        self.switch_ip = switch_ip
        self.switch_mac = switch_mac

    @staticmethod
    def loopback(sockets: Mapping[int, tuple[str, int]]) -> "LoopbackFabric":
        """The fabric of a softswitch with these ports: switch port -> (host, UDP port)."""
        return LoopbackFabric(sockets)

    @abstractmethod
    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The port for a worker at `address`; the loads count workers by port. Raises ValueError with a sentence."""


class LoopbackFabric(Fabric):
    """Ports are UDP sockets on this machine."""

    def __init__(
        self, sockets: Mapping[int, tuple[str, int]], switch_ip: int = SWITCH_IP, switch_mac: int = SWITCH_MAC
    ) -> None:
        """`sockets`: switch port -> (host, UDP port), at least one."""
        super().__init__(tuple(sorted(sockets)), (), switch_ip, switch_mac)
        self._sockets = dict(sockets)

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """A port of its own for each worker of a job while there are enough, else the least used one."""
        source = _ipv4(address)
        if source not in _LOOPBACK:
            raise ValueError(
                f"data address {address} is not on loopback, where this switch's ports are: run the worker on the "
                "controller's machine, or describe the rack to the controller (--fabric)"
            )
        port = min(self.ports, key=lambda number: (job_load.get(number, 0), total_load.get(number, 0), number))
        host, udp_port = self._sockets[port]
        mac = 0x02_00_00_00_00_00 | int(source)  # what the softswitch's UDP port calls this sender
        return Attachment(port, mac, host, udp_port)


class RackFabric(Fabric):
    """Ports reach known hosts by Ethernet; the switch carries their other traffic as well."""

    carries_other_traffic = True

    def __init__(
        self,
        ports: tuple[int, ...],
        stations: tuple[Station, ...],
        switch_ip: int = SWITCH_IP,
        switch_mac: int = SWITCH_MAC,
    ) -> None:
        """`ports` may name more than the stations use: flooding reaches them too."""
        super().__init__(tuple(sorted(ports)), stations, switch_ip, switch_mac)
        self._by_address = {station.address: station for station in stations}

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The port that reaches the host."""
        station = self._by_address.get(int(_ipv4(address)))
        if station is None:
            known = ", ".join(str(IPv4Address(number)) for number in sorted(self._by_address)) or "none"
            raise ValueError(
                f"data address {address} belongs to no host of this fabric (known: {known}): "
                "set SWITCHSUM_DATA_ADDRESS to the host's address towards the switch, or add it to the fabric's file"
            )
        return Attachment(station.port, station.mac, str(IPv4Address(self.switch_ip)), SERVICE_PORT)


def load(path: Path) -> Fabric:
    """Read a fabric's description. Raises FabricError naming file, line and field."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FabricError(f"{path}: cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Fabric:
    """Like load(), from text; `source` names it in errors."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FabricError(f"{source} line {line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise FabricError(f"{source}: not YAML: {error}") from None
    if node is None:
        raise FabricError(f"{source} line 1: the file is empty; it needs `kind` and `ports`")
    top = _Place(node, source, "").fields({"kind", "switch", "ports"}, required={"kind", "ports"})
    kind = top["kind"].text()
    switch = top["switch"].fields({"address", "mac"}) if "switch" in top else {}
    ip = switch["address"].convert(_address, "an IPv4 address such as 10.83.0.1") if "address" in switch else SWITCH_IP
    mac = switch["mac"].convert(_mac, _MAC_FORM) if "mac" in switch else SWITCH_MAC
    ports = {place.key_number(name, 1, MAX_PORT): place for name, place in top["ports"].items()}
    if not ports:
        top["ports"].fail("no port is listed; a switch needs at least one")
    if kind == "loopback":
        form = "HOST:PORT on loopback, such as 127.0.0.1:41001"
        sockets = {number: place.convert(_socket, form) for number, place in ports.items()}
        for number, place in ports.items():
            if list(sockets.values()).count(sockets[number]) > 1:
                place.fail("two ports have this socket; each needs its own")
        return LoopbackFabric(sockets, ip, mac)
    if kind == "rack":
        return RackFabric(tuple(ports), _stations(ports, ip, mac), ip, mac)
    raise top["kind"].failure(f"{kind!r} is not a kind of fabric; write loopback or rack")


_MAC_FORM = 'a MAC address in quotes, such as "02:00:00:00:00:0b"'


def _stations(ports: Mapping[int, "_Place"], switch_ip: int, switch_mac: int) -> tuple[Station, ...]:
    stations: list[Station] = []
    seen: dict[tuple[str, int], str] = {("address", switch_ip): "the switch", ("mac", switch_mac): "the switch"}
    for number, place in ports.items():
        for host in place.elements():
            fields = host.fields({"address", "mac"}, required={"address", "mac"})
            station = Station(
                fields["address"].convert(_address, "an IPv4 address such as 10.83.0.11"),
                fields["mac"].convert(_mac, _MAC_FORM),
                number,
            )
            for name, value in (("address", station.address), ("mac", station.mac)):
                if (name, value) in seen:
                    fields[name].fail(f"{fields[name].text()} belongs to {seen[name, value]} already")
                seen[name, value] = f"port {number}"
            stations.append(station)
    return tuple(stations)


class _Place:
    """A YAML node with its whereabouts, so that every complaint names file, line and field."""

    def __init__(self, node: yaml.Node, source: str, field: str) -> None:
        self._node, self._source, self._field = node, source, field

    def failure(self, problem: str) -> FabricError:
        where = f", {self._field}" if self._field else ""
        return FabricError(f"{self._source} line {self._node.start_mark.line + 1}{where}: {problem}")

    def fail(self, problem: str) -> None:
        raise self.failure(problem)

    def text(self) -> str:
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.failure("must be a single value")
        return str(self._node.value)

    def convert(self, convert: Callable[[str], Value], form: str) -> Value:
        """The value by a function that raises ValueError; `form` says what it should look like."""
        try:
            return convert(self.text())
        except ValueError:
            raise self.failure(f"{self.text()!r} is not {form}") from None

    def items(self) -> list[tuple[str, "_Place"]]:
        """A mapping's entries, no key twice."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.failure("must be a mapping (`name: value` lines)")
        found: dict[str, _Place] = {}
        for key, value in self._node.value:
            name = _Place(key, self._source, self._field).text()
            place = _Place(value, self._source, f"{self._field}.{name}" if self._field else name)
            if name in found:
                raise place.failure("is there twice")
            found[name] = place
        return list(found.items())

    def fields(self, known: set[str], required: frozenset[str] | set[str] = frozenset()) -> dict[str, "_Place"]:
        """A mapping with fixed names."""
        found = dict(self.items())
        for name, place in found.items():
            if name not in known:
                raise place.failure(f"is not a field; there are {', '.join(sorted(known))}")
        for name in sorted(required - found.keys()):
            raise self.failure(f"the field {name} is missing")
        return found

    def elements(self) -> list["_Place"]:
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.failure("must be a list, such as [{address: ..., mac: ...}]")
        return [_Place(node, self._source, f"{self._field}[{index}]") for index, node in enumerate(self._node.value)]

    def key_number(self, text: str, low: int, high: int) -> int:
        """The name under which this place stands, as a number."""
        if not text.isdecimal() or str(int(text)) != text or not low <= int(text) <= high:
            raise self.failure(f"{text!r} is not a port number from {low} to {high}")
        return int(text)


def _ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise ValueError(f"data address {text!r} is not an IPv4 address") from None


def _address(text: str) -> int:
    return int(IPv4Address(text))


def _mac(text: str) -> int:
    if not _MAC.fullmatch(text):
        raise ValueError(text)
    return int(text.replace(":", ""), 16)


def _socket(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if IPv4Address(host) not in _LOOPBACK or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(text)
    return host, int(port)
