"""A switch with veth ports and, where its hosts would be, raw sockets: for tests and benchmarks packet by packet.

Needs root and iproute2. No interface has an address and IPv6 is off, so the kernel sends nothing of its own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from switchsum.bmv2_topologies import namespaces
from switchsum.bmv2_topologies.switch_process import DEVICE_ID, SwitchProcess, offloads_off
from switchsum.controller.p4names import Entry, Item
from switchsum.controller.pipeline import Build
from switchsum.controller.switch_session import INSERT, MODIFY, SwitchSession

_ETH_P_ALL = 3
_SOL_PACKET, _IGNORE_OUTGOING = 263, 23
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER = 32 << 20  # bytes: a whole window of answers waits here while Python is busy elsewhere
_numbers = itertools.count()


class WiredSwitch:
    """A running switch of one kind (see switch_process.KINDS) without a program. Context manager; close() removes everything.

    `address`: of its P4Runtime server. `namespace`: where its ports are. `sockets`: switch port -> non-blocking packet socket
    of the host at that port.
    """

    def __init__(self, kind: str, ports: Iterable[int], *, bmv2: str = "", mtu: int = 1500, offload: bool = False) -> None:
        """`bmv2`: path of simple_switch_grpc, "" for PATH. `offload`: of the softswitch; without it, bytes are as on a wire.

        Call from the main thread, whose end the switch does not survive. Raises NetworkError or SwitchFailed.
        """
        if problem := namespaces.what_is_missing():
            raise namespaces.NetworkError(f"a switch with veth ports needs a network namespace, but {problem}")
        self._folder = Path(tempfile.mkdtemp(prefix="switchsum-wired-"))
        self.namespace = f"switchsum-wired-{os.getpid()}-{next(_numbers)}"
        self._switch: SwitchProcess | None = None
        self.kind = kind
        self.sockets: dict[int, socket.socket] = {}
        try:
            self._start(sorted(ports), mtu, bmv2, offload)
        except BaseException:
            self.close()
            raise

    def _start(self, ports: list[int], mtu: int, bmv2: str, offload: bool) -> None:
        namespaces.add(self.namespace)
        lines = []
        for port in ports:
            lines.append(f"link add host{port} type veth peer name port{port}")
            lines += [f"link set {end}{port} mtu {mtu} up" for end in ("host", "port")]
        namespaces.ip(self.namespace, lines)
        for port in ports:
            for end in ("host", "port"):
                namespaces.turn_off(self.namespace, f"{end}{port}", offloads_off(self.kind))
        self.sockets = namespaces.inside(self.namespace, lambda: {port: packet_socket(f"host{port}") for port in ports})
        interfaces = {port: f"port{port}" for port in ports}
        self._switch = SwitchProcess(self.kind, self.namespace, interfaces, self._folder, bmv2=bmv2, offload=offload)
        self.address = self._switch.address
        self._switch.ready()

    def log(self) -> str:
        """What the switch printed."""
        assert self._switch is not None
        return self._switch.log_path.read_text(errors="replace")

    def close(self) -> None:
        for raw in self.sockets.values():
            raw.close()
        if self._switch is not None:
            self._switch.close()
        namespaces.delete(self.namespace)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> WiredSwitch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def packet_socket(interface: str) -> socket.socket:
    """Non-blocking, for all frames of an interface but those sent from here. Raises OSError."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
    raw.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    raw.bind((interface, _ETH_P_ALL))
    raw.setblocking(False)
    return raw


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
