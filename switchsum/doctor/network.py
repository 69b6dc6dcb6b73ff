"""The way to the switch: interface, MTU, offloads; and how Gloo finds this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address

from switchsum.doctor.findings import Finding, Host, Role, Status
from switchsum.measure import interfaces
from switchsum.p4src.layout import DEFAULT_ELEMENTS, HEADER_BYTES, SERVICE_PORT

_SIOCGIFMTU = 0x8921
_SIOCGIFFLAGS = 0x8913
_UP, _RUNNING = 0x1, 0x40
_IPV4_AND_UDP = 28
LOOPBACK = "lo"
# What BMv2 reads must be whole frames, see bmv2_topologies/switch_process.py.
_KIND = {"lanes": "softswitch", "wide": "bmv2"}
_WORDS = {"tx-checksum": "tx", "tso": "tso", "gso": "gso", "gro": "gro"}


def packet_bytes(host: Host) -> int:
    """The largest packet of a sum, with its IPv4 and UDP headers."""
    told = re.search(r"(\d+) elements", host.reply.pipeline) if host.reply is not None else None
    return _IPV4_AND_UDP + HEADER_BYTES + 4 * (int(told[1]) if told else DEFAULT_ELEMENTS)


def towards_switch(host: Host) -> list[str]:
    """Interfaces that packets to the switch take: those that a person named, else the one that leads there."""
    if host.interfaces:
        return list(host.interfaces)
    source = host.data_address or route(host)
    name = interfaces.of_address(source) if source else ""
    if not name and source and ip_address(source).is_loopback:
        name = LOOPBACK
    return [name] if name else []


def route(host: Host) -> str:
    """The address that this host would send from, to the switch or, where that is not known, to the controller; "" if none."""
    reply = host.reply
    targets = [reply.data_address] if reply is not None and reply.data_address else []
    targets += [controller.address.rpartition(":")[0].strip("[]") for controller in host.controllers]
    for target in targets:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            opened.connect((target, SERVICE_PORT))
            return str(opened.getsockname()[0])
    return ""


def data_address(host: Host) -> Iterator[Finding]:
    """SWITCHSUM_DATA_ADDRESS must be an address of this host, and of the side towards the switch."""
    text = host.data_address
    if not text:
        return
    own = "`ip -4 -brief address` lists this host's"
    try:
        IPv4Address(text)
    except ValueError:
        yield Finding("SWITCHSUM_DATA_ADDRESS", Status.ERROR, f"{text!r} is not an IPv4 address", own)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            opened.bind((text, 0))
        except OSError as error:
            yield Finding("SWITCHSUM_DATA_ADDRESS", Status.ERROR, f"{text} is no address of this host ({error.strerror})", own)
            return
    yield Finding("SWITCHSUM_DATA_ADDRESS", Status.FINE, f"{text}, of {interfaces.of_address(text) or LOOPBACK}")


def links(host: Host) -> Iterator[Finding]:
    """State, MTU and offloads of each interface towards the switch."""
    found = towards_switch(host)
    if not found:
        yield Finding(
            "interface towards the switch",
            Status.NOTE,
            "unknown, so MTU and offloads were not examined",
            "name it: switchsum doctor --interface NAME; or the controller: --controller HOST:PORT",
        )
    for name in found:
        try:
            flags = _ask(name, _SIOCGIFFLAGS, "H")
        except OSError as error:
            present = ", ".join(each for _, each in socket.if_nameindex())
            yield Finding(name, Status.ERROR, f"there is no such interface ({error.strerror})", f"name one of {present}")
            continue
        if not flags & _UP:
            yield Finding(name, Status.ERROR, "is down", f"ip link set {name} up")
            continue
        if not _carrier(name, flags):
            yield Finding(name, Status.ERROR, "has no carrier", "see to its cable, and to the other end")
            continue
        yield _mtu(name, host)
        if name != LOOPBACK:
            yield from _offloads(name, host)


def _carrier(name: str, flags: int) -> bool:
    from switchsum.bmv2_topologies import namespaces

    try:
        return namespaces.carrier_here(name)
    except namespaces.NetworkError:  # its driver does not tell
        return bool(flags & _RUNNING)


def _mtu(name: str, host: Host) -> Finding:
    mtu, needed = _ask(name, _SIOCGIFMTU, "i"), packet_bytes(host)
    rate = interfaces.rate_bps(name)
    speed = f", {rate / 1e9:g} Gbit/s" if rate else ""
    if mtu < needed:
        return Finding(
            f"{name}: MTU",
            Status.ERROR,
            f"{mtu} bytes; a packet of a sum has {needed}, and would be sent in fragments, which the switch drops",
            f"ip link set {name} mtu 1500; or fewer numbers a packet: switchsum controller --elements 64",
        )
    return Finding(f"{name}: MTU", Status.FINE, f"{mtu} bytes, packets of a sum have {needed}{speed}")


def _offloads(name: str, host: Host) -> Iterator[Finding]:
    from switchsum.bmv2_topologies import namespaces, switch_process

    kind = _KIND.get(host.layout, "softswitch")
    try:
        active = namespaces.offloads_here(name)
    except namespaces.NetworkError as error:
        yield Finding(f"{name}: offloads", Status.NOTE, str(error))
        return
    harmful = sorted(active & set(switch_process.offloads_off(kind)))
    program = {"bmv2": "BMv2", "softswitch": "the embedded switch"}[kind]
    if harmful:
        yield Finding(
            f"{name}: offloads",
            Status.ERROR if kind == "bmv2" else Status.WARNING,
            f"{', '.join(harmful)} on: where {program} is at the other end, it loses frames",
            f"ethtool -K {name} {' '.join(f'{_WORDS[each]} off' for each in harmful)}",
        )
    else:
        yield Finding(f"{name}: offloads", Status.FINE, f"none is on that {program} could not bear")


def _ask(name: str, request: int, form: str) -> int:
    """A number of struct ifreq. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        answer = fcntl.ioctl(opened, request, struct.pack("16s24x", name.encode()))
    return int(struct.unpack_from(form, answer, 16)[0])


def gloo(host: Host) -> Iterator[Finding]:
    """Which address Gloo would tell the other ranks: that of GLOO_SOCKET_IFNAME, else the host name's."""
    if Role.WORKER not in host.roles:
        return
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "")
    present = {name for _, name in socket.if_nameindex()}
    if wanted:
        missing = [name for name in wanted.split(",") if name not in present]
        if missing:
            listed = ", ".join(sorted(present))
            text = f"{', '.join(missing)} is no interface of this host"
            yield Finding("GLOO_SOCKET_IFNAME", Status.ERROR, text, f"export GLOO_SOCKET_IFNAME=NAME, one of {listed}")
        else:
            yield Finding("GLOO_SOCKET_IFNAME", Status.FINE, wanted)
        return
    name = socket.gethostname()
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except OSError as error:
        addresses, problem = [], f"{name} cannot be resolved ({error})"
    else:
        problem = f"{name} is {', '.join(addresses)}"
    if any(not ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        yield Finding("host name", Status.FINE, problem)
        return
    several = any(not _on_loopback(controller.address) for controller in host.controllers)
    leading = interfaces.of_address(route(host)) if several else ""
    yield Finding(
        "host name",
        Status.WARNING if several else Status.NOTE,
        f"{problem}: Gloo would tell the ranks of other hosts loopback" + ("" if several else "; on one machine that is right"),
        f"export GLOO_SOCKET_IFNAME={leading or 'NAME'}, the interface that leads to the other hosts",
    )


def _on_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or address.startswith("unix:")
