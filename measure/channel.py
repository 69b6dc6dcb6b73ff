"""JSON lines over a stream socket: Unix sockets on one machine (they cross network namespaces), TCP between hosts."""

from __future__ import annotations

import json
import socket
from typing import Any

_READ_BYTES = 1 << 20
_LONGEST_FIRST = 1 << 16


class Closed(ConnectionError):
    """The other side is gone."""


class Channel:
    """One connection; a message is one JSON object."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = b""
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def local_address(self) -> str:
        """Our IP address on this connection; "" on a Unix socket."""
        return str(self._socket.getsockname()[0]) if self._socket.family == socket.AF_INET else ""

    def send(self, **message: Any) -> None:
        """Raises Closed."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> dict[str, Any]:
        """Wait for the next message. Raises Closed."""
        while b"\n" not in self._rest:
            self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def first(self) -> dict[str, Any] | None:
        """What a connection begins with, whoever made it; None while it is not complete. Called when there is something to be
        read. Raises Closed, also for what is no message of at most _LONGEST_FIRST bytes."""
        self._read()
        line, end, self._rest = self._rest.partition(b"\n")
        if not end and len(line) <= _LONGEST_FIRST:
            self._rest = line
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Closed("it begins with no message of ours")
        return message

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise Closed(str(error)) from None
        if not chunk:
            raise Closed("the other side closed the connection")
        self._rest += chunk

    def close(self) -> None:
        self._socket.close()


def connect(address: str, timeout_s: float) -> Channel:
    """`address`: "unix:PATH" or "HOST:PORT". Raises OSError."""
    if address.startswith("unix:"):
        opened = socket.socket(socket.AF_UNIX)
        opened.connect(address.removeprefix("unix:"))
        return Channel(opened)
    host, _, port = address.rpartition(":")
    opened = socket.create_connection((host, int(port)), timeout_s)
    opened.settimeout(None)
    return Channel(opened)
