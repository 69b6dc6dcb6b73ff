"""simple_switch_grpc (BMv2) in a network namespace of its own, with raw sockets where its hosts would be.

For the differential test (tests/protocol/test_bmv2.py) and the benchmark. Needs root and iproute2. No interface in the
namespace has an address and IPv6 is off, so the kernel sends nothing there; raw frames know neither checksum nor segmentation
offload, so none has to be switched off. gRPC runs through a Unix socket, which does not care for network namespaces.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from switchsum.controller.p4names import Entry, Item
from switchsum.controller.pipeline import Build
from switchsum.controller.switch_session import INSERT, MODIFY, SwitchSession

DEVICE_ID = 1
_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER = 32 << 20  # bytes: a whole window of answers waits here while Python is busy elsewhere
_numbers = itertools.count()


def what_is_missing() -> str | None:
    """Why no namespace can be made here, as half a sentence; None if it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "there is no `ip` command (package iproute2)"
    return None


class Bmv2:
    """A running simple_switch_grpc without a program. Context manager; close() removes everything.

    `address`: of its P4Runtime server. `sockets`: switch port -> non-blocking AF_PACKET socket of the host at that port.
    """

    def __init__(self, binary: str, ports: Iterable[int], mtu: int = 1500) -> None:
        """Raises RuntimeError with what is missing, or with the output of the command that failed."""
        if problem := what_is_missing():
            raise RuntimeError(f"BMv2 needs a network namespace, but {problem}")
        self._folder = Path(tempfile.mkdtemp(prefix="switchsum-bmv2-"))
        self._namespace = f"switchsum-{os.getpid()}-{next(_numbers)}"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:{self._folder / 'grpc'}"
        self.sockets: dict[int, socket.socket] = {}
        try:
            self._start(binary, list(ports), mtu)
        except BaseException:
            self.close()
            raise

    def _start(self, binary: str, ports: list[int], mtu: int) -> None:
        inside = ["ip", "netns", "exec", self._namespace]
        _run("ip", "netns", "add", self._namespace)
        _run(*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        for port in ports:
            host, switch = f"host{port}", f"switch{port}"
            _run("ip", "-n", self._namespace, "link", "add", host, "type", "veth", "peer", "name", switch)
            for name in (host, switch):
                _run("ip", "-n", self._namespace, "link", "set", name, "mtu", str(mtu), "up")
        self._open_sockets(ports)
        interfaces = [word for port in ports for word in ("-i", f"{port}@switch{port}")]
        command = [binary, "--no-p4", "--device-id", str(DEVICE_ID), *interfaces, "--", "--grpc-server-addr", self.address]
        with (self._folder / "log").open("wb") as log:  # `ip netns exec` becomes the command: the same process id
            self._process = subprocess.Popen([*inside, *command], stdout=log, stderr=log, cwd=self._folder)

    def _open_sockets(self, ports: list[int]) -> None:
        """A socket belongs for ever to the namespace of the thread that makes it, so a thread moves there and ends."""
        failures: list[OSError] = []

        def open_all() -> None:
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                with open(f"/run/netns/{self._namespace}") as namespace:
                    if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
                for port in ports:
                    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
                    self.sockets[port] = raw
                    raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
                    raw.bind((f"host{port}", 0))
                    raw.setblocking(False)
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=open_all)
        thread.start()
        thread.join()
        if failures:
            raise RuntimeError(f"cannot open raw sockets in namespace {self._namespace}: {failures[0]}")

    def log(self) -> str:
        """What the process printed."""
        return (self._folder / "log").read_text(errors="replace")

    def close(self) -> None:
        for raw in self.sockets.values():
            raw.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # The interfaces go with their namespace.
        subprocess.run(["ip", "netns", "del", self._namespace], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Bmv2:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def programmed(address: str, build: Build, items: Iterable[Item], timeout_s: float = 20.0) -> SwitchSession:
    """A session with the switch at `address`, which now runs `build` with these items. Raises SwitchError's family."""
    session = SwitchSession(
        address, DEVICE_ID, 1, timeout_s=timeout_s, on_lost=lambda sentence: None, on_role=lambda primary: None
    )
    try:
        session.commit(build)
        session.write(
            build.names,
            [(MODIFY if isinstance(item, Entry) and item.is_default else INSERT, item) for item in items],
        )
    except BaseException:
        session.close()
        raise
    return session
