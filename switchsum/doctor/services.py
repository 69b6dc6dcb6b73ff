"""Controller and switch: whether they can be reached, and whether their ports are free where they are to run."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import ip_address

from switchsum.doctor.findings import Controller, Finding, Host, Role, Status
from switchsum.doctor.network import packet_bytes
from switchsum.p4src.layout import SERVICE_PORT, WIRE_VERSION

ASK_S = 3.0  # that a controller gets for its answer
_ECHO_S = 1.0
_CLOCK_S = 1.0
_IP_MTU = 14
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_TAKEN = "right if the service runs already, wrong if it is still to be started"
_START = "start it (`switchsum controller`), or correct SWITCHSUM_CONTROLLER"


def ask(address: str) -> Controller:
    """What a controller says of itself; never raises for what is wrong outside."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return Controller(address, None, "is not an address", "write HOST:PORT, such as 127.0.0.1:50099")
    try:
        with socket.create_connection((host, int(port)), ASK_S):
            pass
    except socket.gaierror as error:
        return Controller(
            address, None, f"{host} cannot be resolved ({error.strerror})", f"correct it; see `getent hosts {host}`"
        )
    except TimeoutError:
        return Controller(address, None, f"nothing answers within {ASK_S:g} s", f"see to firewalls; {_START}")
    except OSError as error:
        remedy = f"find a way: `ip route get {host}`" if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH) else _START
        return Controller(address, None, f"cannot be reached: {error.strerror}", remedy)
    from switchsum.host_agent.errors import NotTrusted, SwitchSumError
    from switchsum.host_agent.job_client import JobClient
    from switchsum.settings import credentials

    try:
        client = JobClient(address, credentials())
    except (NotTrusted, ValueError) as error:
        return Controller(address, None, f"is not asked: {error}", "set the variables of trust as docs/security.md says")
    began = time.monotonic()
    try:
        reply = client.inspect(ASK_S)
    except NotTrusted as error:
        return Controller(address, None, str(error), "set the variables of trust as docs/security.md says")
    except SwitchSumError as error:
        return Controller(address, None, str(error), "see that the address is the job service's, and the controller's log")
    finally:
        client.close()
    took_s = time.monotonic() - began
    ahead_s = reply.clock_s + took_s / 2 - time.time() if reply.clock_s else None
    return Controller(address, reply, took_s=took_s, clock_ahead_s=ahead_s)


def controllers(host: Host) -> Iterator[Finding]:
    """Each that is configured."""
    if not host.controllers:
        yield Finding(
            "controller",
            Status.NOTE,
            "none is configured: a job whose ranks are all on this machine starts a switch of its own, others cannot start",
            "export SWITCHSUM_CONTROLLER=HOST:PORT, or switchsum doctor --controller HOST:PORT",
        )
    for controller in host.controllers:
        yield from _of_controller(controller)


def _of_controller(controller: Controller) -> Iterator[Finding]:
    subject, reply = f"controller {controller.address}", controller.reply
    if reply is None:
        yield Finding(subject, Status.ERROR, controller.problem, controller.remedy)
        return
    running = sum(job.running for job in reply.jobs)
    if reply.standby:  # its switch_problem says the same
        yield Finding(subject, Status.NOTE, "stands by: another controller is in charge of the switch")
    else:
        yield Finding(
            subject,
            Status.FINE,
            f"answers in {controller.took_s * 1e3:.0f} ms: {reply.pipeline}; {running} jobs run, {reply.slots_free} of "
            f"{reply.slots_total} slots are free",
        )
    if reply.wire_version and reply.wire_version != WIRE_VERSION:
        yield Finding(
            f"{subject}: version",
            Status.ERROR,
            f"it speaks wire version {reply.wire_version:#x}, this host {WIRE_VERSION:#x}: it will refuse every join",
            "install the same release of switchsum on both",
        )
    if reply.switch_problem and not reply.standby:
        yield Finding(
            f"{subject}: switch",
            Status.ERROR,
            f"{reply.switch_problem} (its P4Runtime server: {reply.switch_address})",
            "see that the switch runs, and the controller's log",
        )
    # The clock was read at some moment of the call, so a slow answer tells it less exactly.
    if controller.clock_ahead_s is not None and abs(controller.clock_ahead_s) > _CLOCK_S + controller.took_s / 2:
        yield Finding(
            f"{subject}: time of day",
            Status.NOTE,
            f"differs from ours by {abs(controller.clock_ahead_s):.1f} s; sums do not care, but logs are hard to compare",
            "timedatectl set-ntp true",
        )


def ipv4(host: Host) -> Iterator[Finding]:
    """A controller that is reached by IPv6 alone cannot tell from a call where this host's packets come from."""
    for controller in host.controllers:
        name = controller.address.rpartition(":")[0].strip("[]")
        try:
            found = {ip_address(str(entry[4][0]).partition("%")[0]) for entry in socket.getaddrinfo(name, None)}
        except OSError:
            continue  # said by the controller's own finding
        if found and not host.data_address and all(address.version == 6 for address in found):
            yield Finding(
                f"{name}: IPv4",
                Status.ERROR,
                f"is reached by IPv6 only ({', '.join(sorted(map(str, found)))}), but packets to the switch are IPv4",
                "export SWITCHSUM_DATA_ADDRESS=ADDRESS, this host's IPv4 address towards the switch",
            )


def switch(host: Host) -> Iterator[Finding]:
    """The address that packets go to, as the controller tells it: route, MTU on the way, and an answer to ping."""
    reply = host.reply
    if reply is None or not reply.data_address or Role.WORKER not in host.roles:
        return
    target, subject = reply.data_address, f"switch {reply.data_address}"
    if ip_address(target).is_loopback:
        if all(_is_local(controller.address) for controller in host.controllers if controller.reply is reply):
            yield Finding(subject, Status.FINE, "an embedded switch on this machine")
        else:
            yield Finding(
                subject,
                Status.ERROR,
                "the controller serves an embedded switch of its own machine, which no other host reaches",
                "run the ranks there, or describe the network to it: switchsum controller --fabric FILE",
            )
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            if host.data_address:
                opened.bind((host.data_address, 0))
            opened.connect((target, SERVICE_PORT))
        except OSError as error:
            remedy = f"see `ip route get {target}`; SWITCHSUM_DATA_ADDRESS must be this host's address towards the switch"
            yield Finding(subject, Status.ERROR, f"no way leads there: {error.strerror}", remedy)
            return
        source = opened.getsockname()[0]
        mtu = int(struct.unpack("i", opened.getsockopt(socket.IPPROTO_IP, _IP_MTU, 4))[0])
    if mtu < packet_bytes(host):
        text = f"the way from {source} carries {mtu} bytes a packet; those of a sum have {packet_bytes(host)}"
        yield Finding(subject, Status.ERROR, text, f"ip route get {target} names interface and MTU: raise it to 1500")
        return
    try:
        took_s = echo(target, source)
    except PermissionError:
        text = f"a way from {source} exists; whether it answers was not asked: this user may not send ICMP"
        yield Finding(subject, Status.NOTE, text, "run as root, or sysctl -w net.ipv4.ping_group_range='0 2147483647'")
        return
    if took_s is None:
        text = f"does not answer a ping from {source} within {_ECHO_S:g} s"
        remedy = "see cables, the fabric's ports and addresses (controller --fabric), and `ip neigh`: the switch answers ARP"
        yield Finding(subject, Status.ERROR, text, remedy)
    else:
        text = f"answers a ping from {source} in {took_s * 1e3:.2f} ms, packets of {mtu} bytes may go there"
        yield Finding(subject, Status.FINE, text)


def _is_local(address: str) -> bool:
    """Whether a controller's address is one of this machine's."""
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, target in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as opened:
            opened.bind((target[0], 0))
            return True
    return False


def echo(target: str, source: str) -> float | None:
    """Seconds until the ICMP echo comes back; None if it does not. Raises PermissionError where we may not send one."""
    try:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    except PermissionError:
        opened = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with opened:
        raw = opened.type == socket.SOCK_RAW
        opened.bind((source, 0))
        payload = os.urandom(16)
        number = os.getpid() & 0xFFFF
        message = struct.pack("!BBHHH", _ECHO_REQUEST, 0, 0, number, 1) + payload
        message = message[:2] + struct.pack("!H", _checksum(message)) + message[4:]
        began = time.monotonic()
        try:
            opened.sendto(message, (target, 0))
        except OSError:
            return None
        while (left := began + _ECHO_S - time.monotonic()) > 0 and select.select([opened], [], [], left)[0]:
            answer = opened.recv(2048)
            body = answer[(answer[0] & 15) * 4 :] if raw else answer
            if body[:1] == bytes([_ECHO_REPLY]) and body[8:] == payload:
                return time.monotonic() - began
    return None


def _checksum(message: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(message) // 2}H", message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def ports(host: Host) -> Iterator[Finding]:
    """The default ports, where a controller or an embedded switch is to listen."""
    if Role.CONTROLLER not in host.roles:
        return
    from switchsum.cli import DEFAULT_LISTEN, DEFAULT_P4RUNTIME, DEFAULT_PORTS, DEFAULT_UDP_BASE

    for subject, address, option in (
        ("job service's port", DEFAULT_LISTEN, "switchsum controller --listen 127.0.0.1:PORT"),
        ("P4Runtime's port", DEFAULT_P4RUNTIME, "switchsum switch --p4runtime 127.0.0.1:PORT"),
    ):
        host_name, _, port = address.rpartition(":")
        if _free(socket.SOCK_STREAM, host_name, int(port)):
            yield Finding(subject, Status.FINE, f"{address} is free")
        elif address in [each.address for each in host.controllers if each.reply is not None]:
            yield Finding(subject, Status.FINE, f"{address} is the controller's")
        else:
            text = f"{address} is taken: {_TAKEN}"
            yield Finding(
                subject, Status.WARNING, text, f"ss -ltnp 'sport = :{port}' tells by whom; or choose another: {option}"
            )
    taken = [
        number
        for number in range(DEFAULT_UDP_BASE + 1, DEFAULT_UDP_BASE + DEFAULT_PORTS + 1)
        if not _free(socket.SOCK_DGRAM, "127.0.0.1", number)
    ]
    subject = "switch ports"
    reply = host.reply
    if taken and reply is not None and reply.data_address and ip_address(reply.data_address).is_loopback:
        text = f"UDP {taken[0]} to {taken[-1]}: the controller serves an embedded switch, whose they are"
        yield Finding(subject, Status.FINE, text)
    elif taken:
        text = f"UDP {', '.join(map(str, taken))} are taken: {_TAKEN}"
        remedy = "ss -lunp tells by whom; or choose others: switchsum switch --udp-base NUMBER, and the same for the controller"
        yield Finding(subject, Status.WARNING, text, remedy)
    else:
        text = f"UDP {DEFAULT_UDP_BASE + 1} to {DEFAULT_UDP_BASE + DEFAULT_PORTS} are free"
        yield Finding(subject, Status.FINE, text)


def _free(kind: socket.SocketKind, host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as opened:
        if kind == socket.SOCK_STREAM:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a service that has just ended does not count
        try:
            opened.bind((host, port))
        except OSError:
            return False
    return True
