"""Which switch port reaches whom: the network as the controller knows it, and its description in YAML.

On a `loopback` fabric every port is a UDP socket of the softswitch, and any process of this machine may use any
port. In a `rack` a port reaches the hosts that its list names, by Ethernet:

    kind: loopback                       kind: rack
    switch: {address: 10.83.0.1}         switch: {address: 10.83.0.1, mac: "02:53:53:00:00:00"}
    ports:                               ports:
      1: 127.0.0.1:41001                   1: [{address: 10.83.0.11, mac: "02:00:00:00:00:0b"}]
      2: 127.0.0.1:41002                   2: [{address: 10.83.0.12, mac: "02:00:00:00:00:0c"}]
                                         loss:
                                           2: {in: 0.01, out: 0.01}

`switch` may be left out; its fields default to the values shown. `loss`: what the switch drops on purpose, by port.

A rack whose switch is a Tofino says `kind: tofino` or `kind: tofino2`, who answers P4Runtime there, and how its ports are
brought up. Ports have the chip's numbers, from 0:

    kind: tofino
    server: stratum                      # or bf_switchd
    ports:
      132: [{address: 10.83.0.11, mac: "02:00:00:00:00:0b"}]
      140: [{address: 10.83.0.12, mac: "02:00:00:00:00:0c"}]
    links:
      132: {panel: 1/0, speed: 100G, fec: rs, autonegotiation: off}
      140: {panel: 2/0, speed: 100G, fec: rs, autonegotiation: off}
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from types import MappingProxyType

import yaml

from switchsum.controller import yaml_fields
from switchsum.controller.errors import FabricError
from switchsum.controller.front_panel import Chip, Link, Server, check_server, read_link
from switchsum.controller.jobs import Attachment
from switchsum.controller.yaml_fields import Place
from switchsum.p4src.layout import SERVICE_PORT

SWITCH_IP = int(IPv4Address("10.83.0.1"))  # the softswitch's default, which its UDP ports write into headers
SWITCH_MAC = 0x02_53_53_00_00_00
MAX_PORT = 510  # 9 bits, without 511, which means "drop"
PIPE_PORTS = 72  # of a Tofino's pipe; the numbers of the next pipe's begin 128 higher
_MAX_TOFINO_PORT = 511

_LOOPBACK = IPv4Network("127.0.0.0/8")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


@dataclass(frozen=True)
class Station:
    """A host's interface: its addresses, and the switch port that reaches it."""

    address: int
    mac: int
    port: int


@dataclass(frozen=True)
class Loss:
    """Probabilities, each in [0, 1), that the switch drops a packet that comes in on a port, or leaves by it."""

    into: float = 0.0
    out: float = 0.0


class Fabric(ABC):
    """What both kinds have. `ports` in ascending order; `stations` only where the switch carries other traffic too."""

    carries_other_traffic = False
    losses: Mapping[int, Loss] = MappingProxyType({})  # of the ports where packets shall be lost on purpose

    def __init__(self, ports: tuple[int, ...], stations: tuple[Station, ...], switch_ip: int, switch_mac: int) -> None:
        self.ports = ports
        self.stations = stations
        self.switch_ip = switch_ip
        self.switch_mac = switch_mac

    @staticmethod
    def loopback(sockets: Mapping[int, tuple[str, int]]) -> "LoopbackFabric":
        """The fabric of a softswitch with these ports: switch port -> (host, UDP port)."""
        return LoopbackFabric(sockets)

    @staticmethod
    def embedded(udp_host: str, udp_base: int, ports: int) -> "LoopbackFabric":
        """The fabric of `switchsum switch`: port p is UDP port `udp_base` + p of `udp_host`. Raises ValueError with a sentence
        for what would else be noticed by the first job, or by its packets."""
        if not 1 <= ports <= MAX_PORT:
            raise ValueError(f"{ports} ports: a switch has 1 to {MAX_PORT}")
        if not 0 < udp_base <= 65535 - ports:
            raise ValueError(f"UDP ports {udp_base + 1} to {udp_base + ports} do not exist; give the base that the switch got")
        try:
            loopback = IPv4Address(udp_host) in _LOOPBACK
        except AddressValueError:
            loopback = False
        if not loopback:
            raise ValueError(
                f"host {udp_host!r} is not an IPv4 address of loopback, such as 127.0.0.1, where an embedded switch's ports "
                "are; describe any other network in a file (--fabric)"
            )
        return LoopbackFabric({number: (udp_host, udp_base + number) for number in range(1, ports + 1)})

    @abstractmethod
    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The port for a worker at `address`; the loads count workers by port. Raises ValueError with a sentence."""

    @property
    @abstractmethod
    def data_address(self) -> str:
        """IPv4 address where hosts send their packets."""


class LoopbackFabric(Fabric):
    """Ports are UDP sockets on this machine."""

    def __init__(
        self, sockets: Mapping[int, tuple[str, int]], switch_ip: int = SWITCH_IP, switch_mac: int = SWITCH_MAC
    ) -> None:
        """`sockets`: switch port -> (host, UDP port), at least one."""
        super().__init__(tuple(sorted(sockets)), (), switch_ip, switch_mac)
        self._sockets = dict(sockets)

    @property
    def data_address(self) -> str:
        return self._sockets[self.ports[0]][0]

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
        losses: Mapping[int, Loss] | None = None,
    ) -> None:
        """`ports` may name more than the stations use: flooding reaches them too. `losses`: of single ports."""
        super().__init__(tuple(sorted(ports)), stations, switch_ip, switch_mac)
        self.losses = dict(losses or {})
        self._by_address = {station.address: station for station in stations}

    def as_yaml(self) -> str:
        """The description that load() reads back as an equal fabric."""
        return yaml.safe_dump(self._own_fields() | self._fields(), sort_keys=False)

    def _own_fields(self) -> dict[str, object]:
        return {"kind": "rack"}

    def _fields(self) -> dict[str, object]:
        def mac(number: int) -> str:
            return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))

        hosts: dict[int, list[dict[str, str]]] = {port: [] for port in self.ports}
        for station in self.stations:
            hosts[station.port].append({"address": str(IPv4Address(station.address)), "mac": mac(station.mac)})
        return {
            "switch": {"address": str(IPv4Address(self.switch_ip)), "mac": mac(self.switch_mac)},
            "ports": hosts,
            "loss": {port: {"in": loss.into, "out": loss.out} for port, loss in self.losses.items()},
        }

    @property
    def data_address(self) -> str:
        return str(IPv4Address(self.switch_ip))

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The port that reaches the host."""
        station = self._by_address.get(int(_ipv4(address)))
        if station is None:
            known = ", ".join(str(IPv4Address(number)) for number in sorted(self._by_address)) or "none"
            raise ValueError(
                f"data address {address} belongs to no host of this fabric (known: {known}): "
                "set SWITCHSUM_DATA_ADDRESS to the host's address towards the switch, or add it to the fabric's file"
            )
        return Attachment(station.port, station.mac, self.data_address, SERVICE_PORT)


class TofinoFabric(RackFabric):
    """A rack whose switch is a Tofino: what it sums lies in one pipe, and its ports must be brought up."""

    def __init__(
        self,
        ports: tuple[int, ...],
        stations: tuple[Station, ...],
        chip: Chip,
        server: Server,
        links: Mapping[int, Link],
        switch_ip: int = SWITCH_IP,
        switch_mac: int = SWITCH_MAC,
        losses: Mapping[int, Loss] | None = None,
    ) -> None:
        """`links`: the front panel's port behind each of `ports`."""
        super().__init__(ports, stations, switch_ip, switch_mac, losses)
        self.chip = chip
        self.server = server
        self.links = dict(links)

    def attach(self, address: str, job_load: Mapping[int, int], total_load: Mapping[int, int]) -> Attachment:
        """The port that reaches the host. Raises ValueError also if the job's other workers are at another pipe."""
        attachment = super().attach(address, job_load, total_load)
        for port, workers in job_load.items():
            if workers and _pipe(port) != _pipe(attachment.port):
                raise ValueError(
                    f"data address {address} is at port {attachment.port}, in pipe {_pipe(attachment.port)} of the switch, "
                    f"others of the job are at port {port}, in pipe {_pipe(port)}: a Tofino sums in one pipe; give the job "
                    "hosts of one pipe"
                )
        return attachment

    def _own_fields(self) -> dict[str, object]:
        links = {port: link.as_fields() for port, link in sorted(self.links.items())}
        return {"kind": self.chip.value, "server": self.server.value, "links": links}


def _pipe(port: int) -> int:
    return port >> 7


def load(path: Path) -> Fabric:
    """Read a fabric's description. Raises FabricError naming file, line and field."""
    return _fabric(yaml_fields.load(path, FabricError))


def parse(text: str, source: str) -> Fabric:
    """Like load(), from text; `source` names it in errors."""
    return _fabric(yaml_fields.parse(text, source, FabricError))


def _fabric(place: Place) -> Fabric:
    top = place.fields({"kind", "switch", "ports", "loss", "server", "links"}, required={"kind", "ports"})
    kind = top["kind"].text()
    chips = {chip.value: chip for chip in Chip}
    for name in ("server", "links"):
        if kind not in chips and name in top:
            top[name].fail(f"only kinds {' and '.join(chips)} have it")
        if kind in chips and name not in top:
            top["kind"].fail(f"a {kind} also needs the field {name}")
    switch = top["switch"].fields({"address", "mac"}) if "switch" in top else {}
    ip = switch["address"].convert(_address, "an IPv4 address such as 10.83.0.1") if "address" in switch else SWITCH_IP
    mac = switch["mac"].convert(_mac, _MAC_FORM) if "mac" in switch else SWITCH_MAC
    lowest, highest = (0, _MAX_TOFINO_PORT) if kind in chips else (1, MAX_PORT)
    ports = {place.key_number(name, lowest, highest): place for name, place in top["ports"].items()}
    if not ports:
        top["ports"].fail("no port is listed; a switch needs at least one")
    if kind == "loopback":
        if "loss" in top:
            top["loss"].fail("only a rack has it; a loopback switch loses what `switchsum controller --loss` says")
        form = "HOST:PORT on loopback, such as 127.0.0.1:41001"
        sockets = {number: place.convert(_socket, form) for number, place in ports.items()}
        for number, place in ports.items():
            if list(sockets.values()).count(sockets[number]) > 1:
                place.fail("two ports have this socket; each needs its own")
        return LoopbackFabric(sockets, ip, mac)
    if kind in chips:
        losses = _losses(top["loss"], ports, lowest, highest) if "loss" in top else {}
        return _tofino(top, chips[kind], ports, ip, mac, losses)
    if kind == "rack":
        losses = _losses(top["loss"], ports, lowest, highest) if "loss" in top else {}
        return RackFabric(tuple(ports), _stations(ports, ip, mac), ip, mac, losses)
    raise top["kind"].failure(f"{kind!r} is not a kind of fabric; write loopback, rack, tofino or tofino2")


def _tofino(
    top: Mapping[str, Place], chip: Chip, ports: Mapping[int, Place], ip: int, mac: int, losses: Mapping[int, Loss]
) -> TofinoFabric:
    for number, place in ports.items():
        if number % 128 >= PIPE_PORTS:
            place.fail(f"a pipe of a Tofino has ports 0 to {PIPE_PORTS - 1}, the next 128 to {128 + PIPE_PORTS - 1}, and so on")
    server = top["server"].convert(Server, f"a P4Runtime server; there are {', '.join(server.value for server in Server)}")
    places = {place.key_number(name, 0, _MAX_TOFINO_PORT): place for name, place in top["links"].items()}
    links = {number: read_link(place) for number, place in places.items()}
    for number, place in places.items():
        if number not in ports:
            place.fail("there is no such port")
        if any(other != number and links[other].name == links[number].name for other in links):
            place.fail(f"two ports are {links[number].name} of the front panel")
    for number, place in ports.items():
        if number not in links:
            place.fail("it has no link; say under links which port of the front panel it is")
    check_server({places[number]: link for number, link in links.items()}, server)
    return TofinoFabric(tuple(ports), _stations(ports, ip, mac), chip, server, links, ip, mac, losses)


_MAC_FORM = 'a MAC address in quotes, such as "02:00:00:00:00:0b"'


def _stations(ports: Mapping[int, Place], switch_ip: int, switch_mac: int) -> tuple[Station, ...]:
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


def _losses(place: Place, ports: Mapping[int, Place], lowest: int, highest: int) -> dict[int, Loss]:
    losses = {}
    for name, port in place.items():
        number = port.key_number(name, lowest, highest)
        if number not in ports:
            port.fail("there is no such port")
        losses[number] = read_loss(port)
    return losses


def read_loss(place: Place) -> Loss:
    """{in: 0.01, out: 0.01}, either of which may be left out."""
    fields = place.fields({"in", "out"})
    return Loss(*(fields[name].convert(_probability, PROBABILITY_FORM) if name in fields else 0.0 for name in ("in", "out")))


PROBABILITY_FORM = "a probability from 0 to below 1, such as 0.01"


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


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
