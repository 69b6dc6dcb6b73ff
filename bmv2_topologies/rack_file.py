"""A rack as a YAML file describes it: one switch, its workers, and the links between them.

    switches:
      tor: {kind: softswitch, elements: 256}     # or bmv2, or bridge; tor is the switch's name
    link: {rate: 100 Mbit/s, mtu: 1500}          # of every worker that has none of its own
    loss: {in: 0.01, out: 0.01}                  # share of packets that the switch drops, in from and out to each worker
    workers:                                     # ranks in this order
      w0: {address: 10.83.0.11}
      w1: {address: 10.83.0.12, link: {rate: 10 Mbit/s}, loss: {in: 0.1}}
    management: 10.84.0.0/24                     # a second network, which does not cross the switch
    controller: {lease: 2, standby: yes}         # seconds; a second controller, which takes over when the first is gone

Only `workers` is required. Without `rate` a link is as fast as the machine. `burst` is how much a link may send at once after
a pause (tc-tbf(8)). All addresses lie in 10.83.0.0/24, where .1 is the switch and .254 the controller, unless `network` names
another /24; a standby is .253. In the network `management`, if there is one, each host has the same last number; there workers
reach the controller, and each other over TCP. `switches` is a mapping so that a second level fits in later; today there is
exactly one. A `bridge` is the kernel's: the same network without a switch program and without a controller, for comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from switchsum.bmv2_topologies.switch_process import BRIDGE, LAYOUT
from switchsum.bmv2_topologies.switch_process import KINDS as PROGRAMMABLE_KINDS
from switchsum.controller import fabric as fabrics
from switchsum.controller import yaml_fields
from switchsum.controller.fabric import SWITCH_MAC, Loss, RackFabric, Station
from switchsum.controller.yaml_fields import Place
from switchsum.p4src.layout import DEFAULT_ELEMENTS, ELEMENT_CHOICES, HEADER_BYTES, MAX_WORKERS

KINDS = (*PROGRAMMABLE_KINDS, BRIDGE)
CONTROLLER = "controller"
STANDBY = "standby"
MANAGEMENT = "management"
CONTROLLER_PORT = 50099
PREFIX_LENGTH = 24

_NETWORK = IPv4Network("10.83.0.0/24")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
_RATE = re.compile(r"(\d+(?:\.\d+)?) *([kmg]?)bit(?:/s)?", re.IGNORECASE | re.ASCII)
_BYTES = re.compile(r"(\d+(?:\.\d+)?) *(|k|ki|m|mi)b", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "ki": 1024, "mi": 1 << 20}
_LEAST_RATE, _GREATEST_RATE = 10_000, 100 * 10**9
_GREATEST_BURST = 1 << 30
_LEAST_LEASE_S, _GREATEST_LEASE_S = 0.1, 3600.0  # the controller's
_ETHERNET = 14
_LEAST_MTU, _GREATEST_MTU = 576, 9000  # RFC 791's least datagram; what the softswitch and hardware forward

# A burst too small for the kernel's clock slows a link down; more than a whole UDP_SEGMENT send spares cutting it apart early.
_BURST_S = 0.002
_LEAST_BURST = 16 << 10
# A TCP run of 64 KB that is larger than the burst is cut into packets, one by one, at a multiple of the processor's time.
_LEAST_BRIDGE_BURST = 128 << 10
# The queue holds more than a host's send buffer (host_agent/transport.py), so that a full one blocks the sender.
_QUEUE_S = 0.04
_LEAST_QUEUE = 512 << 10


class RackError(ValueError):
    """A rack's file, or an option that changes it, is wrong; the text names file, line and field."""


@dataclass(frozen=True)
class Link:
    """Both directions of a worker's cable. `rate_bps`: None for as fast as the machine; `burst_bytes`, `queue_bytes`: 0 for
    what suits it."""

    rate_bps: int | None = None
    burst_bytes: int = 0
    mtu: int = 1500
    queue_bytes: int = 0

    @property
    def burst(self) -> int:
        """Bytes, as tbf takes them."""
        return self.burst_bytes or max(_LEAST_BURST, int(_BURST_S * (self.rate_bps or 0) / 8))

    @property
    def queue(self) -> int:
        """Bytes that wait before the link at most."""
        return self.queue_bytes or max(_LEAST_QUEUE, int(_QUEUE_S * (self.rate_bps or 0) / 8))


@dataclass(frozen=True)
class Worker:
    """A host of the rack."""

    name: str
    rank: int
    port: int
    address: IPv4Address
    link: Link
    loss: Loss

    @property
    def mac(self) -> str:
        return mac_of(self.address)


@dataclass(frozen=True)
class ControllerHost:
    """Where a controller runs. `address`: in the rack's network."""

    name: str
    port: int
    address: IPv4Address


@dataclass(frozen=True)
class RackFile:
    """A valid rack. `name`: of the file, unless told otherwise. `management`: None if all that is said crosses the switch.
    `lease_s`: None for the controller's own choice."""

    name: str
    switch_name: str
    kind: str
    elements: int
    network: IPv4Network
    workers: tuple[Worker, ...]
    management: IPv4Network | None = None
    lease_s: float | None = None
    standby: bool = False

    @property
    def switch_address(self) -> IPv4Address:
        return self.network[1]

    @property
    def controllers(self) -> tuple[ControllerHost, ...]:
        """The first is in charge while it lives. They sit at the last of the switch's ports; a bridge has none."""
        names = () if self.kind == BRIDGE else (CONTROLLER, STANDBY) if self.standby else (CONTROLLER,)
        first = len(self.workers) + 1
        return tuple(ControllerHost(name, first + n, self.network[254 - n]) for n, name in enumerate(names))

    def management_of(self, address: IPv4Address) -> IPv4Address | None:
        """A host's address in the management network."""
        return None if self.management is None else self.management[int(address) & 0xFF]

    def reached_at(self, controller: ControllerHost) -> str:
        """Where workers find a controller's job service: HOST:PORT."""
        return f"{self.management_of(controller.address) or controller.address}:{CONTROLLER_PORT}"

    @property
    def layout(self) -> str:
        """The build of the switch program that this kind of switch runs fastest; "" for a bridge, which runs none."""
        return LAYOUT.get(self.kind, "")

    def burst_of(self, link: Link) -> int:
        """Bytes that a worker's link may send at once, as tbf takes them."""
        if self.kind == BRIDGE and not link.burst_bytes:
            return max(link.burst, _LEAST_BRIDGE_BURST)
        return link.burst

    def fabric(self) -> RackFabric:
        """What the controller must know of it."""
        stations = [Station(int(w.address), _number(w.mac), w.port) for w in self.workers]
        stations += [Station(int(c.address), _number(mac_of(c.address)), c.port) for c in self.controllers]
        losses = {w.port: w.loss for w in self.workers if w.loss != Loss()}
        ports = tuple(station.port for station in stations)
        return RackFabric(ports, tuple(stations), int(self.switch_address), SWITCH_MAC, losses)

    def changed(
        self, *, kind: str | None = None, elements: int | None = None, loss: float | None = None, name: str | None = None
    ) -> RackFile:
        """The same rack with another switch, packet size, or loss on every worker's port, both ways.

        Raises RackError naming the option that does not fit.
        """
        if kind is not None and kind not in KINDS:
            raise RackError(f"--switch {kind} is no kind of switch; choose {_either(KINDS)}")
        if elements is not None and elements not in ELEMENT_CHOICES:
            raise RackError(f"--elements {elements} is not compiled; choose {_listed(ELEMENT_CHOICES)}")
        if loss is not None and not 0 <= loss < 1:
            raise RackError(f"--loss {loss} is not {fabrics.PROBABILITY_FORM}")
        if name is not None and not _NAME.fullmatch(name):
            raise RackError(f"--name {name!r} is not {_NAME_FORM}")
        workers = self.workers
        if loss is not None:
            workers = tuple(replace(worker, loss=Loss(loss, loss)) for worker in workers)
        changed = replace(
            self, name=name or self.name, kind=kind or self.kind, elements=elements or self.elements, workers=workers
        )
        for worker in workers:
            if worker.link.mtu < packet_bytes(changed.elements):
                raise RackError(
                    f"--elements {elements} needs an MTU of {packet_bytes(changed.elements)}; {worker.name} has less"
                )
            if changed.kind == BRIDGE and worker.loss != Loss():
                raise RackError(f"{worker.name} has loss, but {_BRIDGE_DROPS_NOTHING}, or --loss 0")
        return changed

    def with_workers(self, count: int) -> RackFile:
        """The same rack with that many workers: the first ones, or more of the first one's kind at free addresses.

        Raises RackError.
        """
        if not 1 <= count <= MAX_WORKERS:
            raise RackError(f"{count} workers are not possible: a job has 1 to {MAX_WORKERS}")
        workers = list(self.workers[:count])
        taken = {self.switch_address, self.network[254], *(worker.address for worker in workers)}
        taken |= {controller.address for controller in self.controllers}
        names = {self.switch_name, *(worker.name for worker in workers)}
        free = (address for address in self.network.hosts() if address > workers[0].address and address not in taken)
        new_names = (name for number in range(2 * MAX_WORKERS + 1) if (name := f"w{number}") not in names)
        while len(workers) < count:
            address = next(free, None)
            if address is None:
                raise RackError(f"network {self.network} has no room for {count} workers behind {workers[0].address}")
            rank = len(workers)
            workers.append(replace(workers[0], name=next(new_names), rank=rank, port=rank + 1, address=address))
        return replace(self, workers=tuple(workers))

    def with_links(self, *, rate_bps: int | None = None, burst_bytes: int = 0, queue_bytes: int = 0) -> RackFile:
        """The same rack with all workers' links changed; None and 0 leave a field as it is."""

        def changed(link: Link) -> Link:
            return replace(
                link,
                rate_bps=rate_bps or link.rate_bps,
                burst_bytes=burst_bytes or link.burst_bytes,
                queue_bytes=queue_bytes or link.queue_bytes,
            )

        return replace(self, workers=tuple(replace(worker, link=changed(worker.link)) for worker in self.workers))

    def as_json(self) -> dict[str, Any]:
        """Everything, resolved, for programs. Behind a bridge, "controller" and "fabric" are None."""
        controllers = [
            {
                "name": controller.name,
                "address": str(controller.address),
                "management_address": _text(self.management_of(controller.address)),
                "mac": mac_of(controller.address),
                "port": controller.port,
                "listen": self.reached_at(controller),
            }
            for controller in self.controllers
        ] + [None, None]
        return {
            "name": self.name,
            "switch": {
                "name": self.switch_name,
                "kind": self.kind,
                "layout": self.layout,
                "elements": self.elements,
                "address": str(self.switch_address),
                "mac": _mac_text(SWITCH_MAC),
            },
            "controller": controllers[0],
            "standby": controllers[1],
            "management": _text(self.management),
            "lease_s": self.lease_s,
            "prefix_length": PREFIX_LENGTH,
            "workers": [
                {
                    "name": worker.name,
                    "rank": worker.rank,
                    "address": str(worker.address),
                    "management_address": _text(self.management_of(worker.address)),
                    "mac": worker.mac,
                    "port": worker.port,
                    "link": {
                        "rate_bps": worker.link.rate_bps,
                        "burst_bytes": self.burst_of(worker.link),
                        "limit_bytes": worker.link.queue,
                        "mtu": worker.link.mtu,
                    },
                    "loss": {"in": worker.loss.into, "out": worker.loss.out},
                }
                for worker in self.workers
            ],
            "fabric": self.fabric().as_yaml() if self.controllers else None,
        }


def packet_bytes(elements: int) -> int:
    """Bytes of an IPv4 packet with that many elements: what a link's MTU must hold."""
    return 20 + 8 + HEADER_BYTES + 4 * elements


def mac_of(address: IPv4Address) -> str:
    """02:00 and the IPv4 address: local, and easy to tell in a capture."""
    return _mac_text(0x02_00_00_00_00_00 | int(address))


def load(path: Path) -> RackFile:
    """Read a rack's file. Raises RackError naming file, line and field."""
    return _rack(yaml_fields.load(path, RackError), path.stem)


def parse(text: str, source: str) -> RackFile:
    """Like load(), from text; `source` names it in errors."""
    return _rack(yaml_fields.parse(text, source, RackError), Path(source).stem)


_BRIDGE_HAS_NO_CONTROLLER = "a bridge has no controller: leave `controller` out"
_BRIDGE_DROPS_NOTHING = "a bridge drops nothing on purpose: leave `loss` out"
_NAME_FORM = "a name: a letter, then up to 19 letters, digits and hyphens, in lower case"
_RATE_FORM = "a rate, such as 100 Mbit/s or 1 Gbit/s"
_BYTES_FORM = "a number of bytes, such as 64 KiB or 1500 B"


def _rack(top: Place, stem: str) -> RackFile:
    known = {"name", "switches", "link", "loss", "network", "workers", "management", "controller"}
    fields = top.fields(known, required={"workers"})
    name = _name(fields["name"]) if "name" in fields else re.sub(r"[^a-z0-9-]", "-", stem.lower())[:20]
    if not _NAME.fullmatch(name):
        raise top.failure(f"the file's name does not do as the rack's ({_NAME_FORM}); give the field `name`")
    switch_name, kind, elements = "tor", "softswitch", DEFAULT_ELEMENTS
    if "switches" in fields:
        switch_name, kind, elements = _switch(fields["switches"])
    network = fields["network"].convert(_network, "a network such as 10.83.0.0/24") if "network" in fields else _NETWORK
    link = _link(fields["link"], Link(), elements) if "link" in fields else Link()
    loss = fabrics.read_loss(fields["loss"]) if "loss" in fields else Loss()
    management = fields["management"].convert(_network, "a network such as 10.84.0.0/24") if "management" in fields else None
    if management == network:
        fields["management"].fail(f"{management} is the network of the switch; choose another")
    lease_s, standby = _controller(fields["controller"]) if "controller" in fields else (None, False)
    if kind == BRIDGE and "controller" in fields:
        fields["controller"].fail(_BRIDGE_HAS_NO_CONTROLLER)
    taken = {network[1]: "the switch", network[254]: f"the {CONTROLLER}"}
    if standby:
        taken[network[253]] = f"the {STANDBY}"
    workers: list[Worker] = []
    for worker_name, place in fields["workers"].items():
        workers.append(_worker(worker_name, place, workers, switch_name, network, taken, link, loss, elements))
    if not workers:
        fields["workers"].fail("no worker is listed")
    if kind == BRIDGE and "loss" in fields:
        fields["loss"].fail(_BRIDGE_DROPS_NOTHING)
    if kind == BRIDGE and (lossy := [worker.name for worker in workers if worker.loss != Loss()]):
        fields["workers"].fail(f"{lossy[0]} has loss, but {_BRIDGE_DROPS_NOTHING}")
    if len(workers) > MAX_WORKERS:
        fields["workers"].fail(f"{len(workers)} workers are listed; a job has at most {MAX_WORKERS}")
    return RackFile(name, switch_name, kind, elements, network, tuple(workers), management, lease_s, standby)


def _controller(place: Place) -> tuple[float | None, bool]:
    fields = place.fields({"lease", "standby"})
    lease_s = fields["lease"].convert(float, "a number of seconds") if "lease" in fields else None
    if lease_s is not None and not _LEAST_LEASE_S <= lease_s <= _GREATEST_LEASE_S:
        fields["lease"].fail(f"{lease_s:g} is out of range: {_LEAST_LEASE_S:g} to {_GREATEST_LEASE_S:g} seconds")
    return lease_s, "standby" in fields and fields["standby"].convert(_yes, "yes or no")


def _switch(place: Place) -> tuple[str, str, int]:
    switches = place.items()
    if len(switches) != 1:
        place.fail(f"{len(switches)} switches are listed; a rack has one (several levels are not supported yet)")
    name, body = switches[0]
    _check_name(name, body)
    fields = body.fields({"kind", "elements"})
    kind = fields["kind"].text() if "kind" in fields else "softswitch"
    if kind not in KINDS:
        fields["kind"].fail(f"{kind!r} is no kind of switch; write {_either(KINDS)}")
    elements = fields["elements"].convert(_whole, "a number") if "elements" in fields else DEFAULT_ELEMENTS
    if elements not in ELEMENT_CHOICES:
        fields["elements"].fail(f"{elements} elements a packet are not compiled; write {_listed(ELEMENT_CHOICES)}")
    return name, kind, elements


def _worker(
    name: str,
    place: Place,
    before: list[Worker],
    switch: str,
    network: IPv4Network,
    taken: Mapping[IPv4Address, str],
    link: Link,
    loss: Loss,
    elements: int,
) -> Worker:
    """`taken`: addresses that are no worker's, and whose they are."""
    _check_name(name, place)
    owners = {switch: "the switch's", CONTROLLER: "the controller's", STANDBY: "the standby controller's"}
    owners |= {MANAGEMENT: "the management network's", "localhost": "every host's own"}
    if name in owners:
        whose = owners[name]
        place.fail(f"{name} is {whose} name; choose another")
    fields = place.fields({"address", "link", "loss"}, required={"address"})
    address = fields["address"].convert(_address, "an IPv4 address such as 10.83.0.11")
    if address not in network or address in (network[0], network[-1]):
        fields["address"].fail(f"{address} is no host of the rack's network {network}")
    taken = {**taken, **{other.address: other.name for other in before}}
    if address in taken:
        fields["address"].fail(f"{address} belongs to {taken[address]} already")
    return Worker(
        name,
        len(before),
        len(before) + 1,
        address,
        _link(fields["link"], link, elements) if "link" in fields else link,
        fabrics.read_loss(fields["loss"]) if "loss" in fields else loss,
    )


def _link(place: Place, default: Link, elements: int) -> Link:
    fields = place.fields({"rate", "burst", "mtu"})
    rate, burst, mtu = default.rate_bps, default.burst_bytes, default.mtu
    if "rate" in fields:
        rate = fields["rate"].convert(_rate, _RATE_FORM)
        if not _LEAST_RATE <= rate <= _GREATEST_RATE:
            fields["rate"].fail(f"{fields['rate'].text()} is out of range: 10 kbit/s to 100 Gbit/s")
    if "mtu" in fields:
        mtu = fields["mtu"].convert(_whole, "a number of bytes, such as 1500")
        if not _LEAST_MTU <= mtu <= _GREATEST_MTU:
            fields["mtu"].fail(f"{mtu} is out of range: {_LEAST_MTU} to {_GREATEST_MTU}")
        if mtu < packet_bytes(elements):
            fields["mtu"].fail(f"{mtu} is less than a packet of {elements} elements needs: {packet_bytes(elements)}")
    if "burst" in fields:
        if rate is None:
            fields["burst"].fail("a link without `rate` is not shaped, so `burst` means nothing")
        burst = fields["burst"].convert(_bytes, _BYTES_FORM)
        if burst > _GREATEST_BURST:
            fields["burst"].fail(f"{fields['burst'].text()} is more than tc can take; write at most 1024 MiB")
        if burst < mtu + _ETHERNET:
            fields["burst"].fail(f"{burst} bytes is less than one frame of {mtu + _ETHERNET}: nothing would get through")
    return Link(rate, burst, mtu)


def _name(place: Place) -> str:
    _check_name(place.text(), place)
    return place.text()


def _check_name(text: str, place: Place) -> None:
    if not _NAME.fullmatch(text):
        place.fail(f"{text!r} is not {_NAME_FORM}")


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise ValueError(text) from None


def _network(text: str) -> IPv4Network:
    network = IPv4Network(text)
    if network.prefixlen != PREFIX_LENGTH or network.is_multicast or network.is_loopback or network.is_reserved:
        raise ValueError(text)
    if network[0].packed[0] == 0:  # RFC 1122: "this network"
        raise ValueError(text)
    return network


def _yes(text: str) -> bool:
    if text not in ("yes", "no", "true", "false"):
        raise ValueError(text)
    return text in ("yes", "true")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def _rate(text: str) -> int:
    """Bits a second; decimal prefixes, as links are sold."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _bytes(text: str) -> int:
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_rate(text: str) -> int:
    """Bits a second of "100 Mbit/s", "100mbit" or, as on a command line, "100M". Raises ValueError that says what to write."""
    for written in (text, f"{text.strip()}bit"):
        try:
            rate = _rate(written)
        except (ValueError, OverflowError):
            continue
        if _LEAST_RATE <= rate <= _GREATEST_RATE:
            return rate
        raise ValueError(f"{text} is out of range: 10 kbit/s to 100 Gbit/s")
    raise ValueError(f"{text!r} is not {_RATE_FORM}")


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def _text(value: IPv4Address | IPv4Network | None) -> str | None:
    return None if value is None else str(value)


def _mac_text(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))
