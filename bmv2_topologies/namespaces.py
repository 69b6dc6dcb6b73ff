"""Network namespaces by name, as `ip netns` knows them, and how to get things done inside."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path("/run/netns")
_FILES = Path("/etc/netns")

_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
# linux/ethtool.h: commands that turn an offload off, and those that ask for it
_SET_OFF = {"tx-checksum": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
_GET_LINK = 0xA
_GET = {"tx-checksum": 0x16, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}

Value = TypeVar("Value")


class NetworkError(RuntimeError):
    """The kernel, or a command that speaks to it, refused something; the text says what."""


def what_is_missing() -> str | None:
    """Why no rack can be built here, as half a sentence; None if it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces (try sudo)"
    for command, package in {"ip": "iproute2", "tc": "iproute2", "setpriv": "util-linux", "unshare": "util-linux"}.items():
        if shutil.which(command) is None:
            return f"there is no `{command}` command (Debian's package {package})"
    return None


def names() -> list[str]:
    """The namespaces that exist."""
    return sorted(entry.name for entry in FOLDER.iterdir()) if FOLDER.is_dir() else []


def add(name: str) -> None:
    """Make a namespace with loopback up and IPv6 off: nothing in it speaks unless asked to."""
    run("ip", "netns", "add", name)
    ip(name, ["link set lo up"])
    if Path("/proc/sys/net/ipv6").is_dir():
        inside(name, _disable_ipv6)


def _disable_ipv6() -> None:
    for scope in ("all", "default"):
        Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")


def delete(name: str) -> None:
    """Remove a namespace; its interfaces go with it. One that is gone already is no error."""
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    shutil.rmtree(_FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        _FILES.rmdir()  # if nobody else has files there


def set_hosts(namespace: str, addresses: Mapping[str, str]) -> None:
    """What commands in the namespace find in /etc/hosts: name -> address (ip-netns(8))."""
    folder = _FILES / namespace
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    # PyTorch's sockets speak IPv6 and look IPv4 peers up in this form.
    lines += [f"::ffff:{address} {name}" for name, address in addresses.items()]
    (folder / "hosts").write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until a command is done, which takes milliseconds.

    Between its start and the moment at which we know its process it could not be ended, and would make a namespace when the
    rack was removed already. (Blocking the signals does not do: a thread of numpy's takes them, and the handler runs here.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread, and interrupt nothing here
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            if (handler := signal.getsignal(number)) is not None:
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        if came:
            signal.raise_signal(came[0])


def run(*command: str, text: str = "") -> str:
    """Run a command with `text` as its input; returns what it printed. Raises NetworkError with its own words."""
    with _interrupts_later():
        done = subprocess.run(command, capture_output=True, text=True, input=text, check=False)
    if done.returncode:
        told = text.splitlines()
        shown = f"{' '.join(command)}" + (f" ({'; '.join(told[:3])}{' ...' if len(told) > 3 else ''})" if told else "")
        raise NetworkError(f"`{shown}` failed: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def ip(namespace: str, lines: Iterable[str]) -> None:
    """Arguments of `ip`, one command a line, in one process."""
    run("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def tc(namespace: str, lines: Iterable[str]) -> None:
    """Arguments of `tc`, one command a line, in one process."""
    run("tc", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def inside(namespace: str, action: Callable[[], Value]) -> Value:
    """What `action` returns in the namespace. Sockets that it opens belong there for ever.

    A thread of its own goes there and ends, so the caller stays where it is. Raises NetworkError if there is no such
    namespace, and whatever `action` raises.
    """
    results: list[Value] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            enter(namespace)
            results.append(action())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def enter(namespace: str) -> None:
    """Move the calling thread, and what it starts from now on, into a namespace."""
    try:
        descriptor = os.open(FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"network namespace {namespace} cannot be opened: {error.strerror}") from None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise NetworkError(f"network namespace {namespace} cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def command_inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` in the namespace: `ip` becomes it, so the process id stays the same."""
    return ["ip", "netns", "exec", namespace, *command]


@dataclass(frozen=True)
class Shaper:
    """What a token bucket has let through: bytes and packets as it counts them, each segment with its own headers; packets that
    it dropped."""

    sent_bytes: int
    sent_packets: int
    dropped: int


def shapers(namespace: str) -> dict[str, Shaper]:
    """The token buckets of a namespace, by interface."""
    found = json.loads(run("tc", "-n", namespace, "-s", "-j", "qdisc", "show"))
    return {each["dev"]: Shaper(each["bytes"], each["packets"], each["drops"]) for each in found if each["kind"] == "tbf"}


def turn_off(namespace: str, interface: str, offloads: Iterable[str]) -> None:
    """Turn offloads off: "tx-checksum" (and with it UDP and TCP segmentation), "tso", "gso", "gro"."""

    def change() -> None:
        for offload in offloads:
            _ethtool(interface, _SET_OFF[offload], 0)

    inside(namespace, change)


def offloads(namespace: str, interface: str) -> set[str]:
    """Those that are on, of "tx-checksum", "tso", "gso", "gro"."""
    return inside(namespace, lambda: offloads_here(interface))


def offloads_here(interface: str) -> set[str]:
    """The same for an interface of the namespace that the calling thread is in."""
    return {name for name, command in _GET.items() if _ethtool(interface, command, 0)}


def carrier_here(interface: str) -> bool:
    """Whether something is at the other end of an interface's link; true at once, where the flag RUNNING takes a second."""
    return bool(_ethtool(interface, _GET_LINK, 0))


def _ethtool(interface: str, command: int, value: int) -> int:
    """One of the calls that carry a number (struct ethtool_value)."""
    memory = ctypes.create_string_buffer(struct.pack("II", command, value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        try:
            fcntl.ioctl(opened, _SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(memory)))
        except OSError as error:
            raise NetworkError(f"interface {interface}: ethtool cannot read or change it: {error.strerror}") from None
    return int(struct.unpack("II", memory.raw[:8])[1])


def processes(namespace: str) -> list[int]:
    """Process ids of what runs in the namespace."""
    return [int(line) for line in run("ip", "netns", "pids", namespace).split()]
