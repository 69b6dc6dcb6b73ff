"""What both gRPC fuzzers send: bytes that are no messages, and connections that say little."""

from __future__ import annotations

import random
import socket
from typing import Any

import grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_MOST_CONNECTIONS = 100


def noise(rng: random.Random, good: bytes) -> bytes:
    """Bytes that are no message, or by chance another one."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.choice([1, 10, 1000]))
    if kind == 1:
        return good[: rng.randrange(len(good) + 1)]
    if kind == 2:
        return b"\x0a\xff\xff\xff\xff\x0f" + good  # a string of four gigabytes, says its length
    if kind == 3:
        return b"\x0b" * rng.choice([10, 10_000])  # groups in groups
    damaged = bytearray(good or b"\0")
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(len(damaged))] = rng.getrandbits(8)
    return bytes(damaged)


def text(rng: random.Random) -> str:
    """Strings that somebody may not have thought of."""
    return rng.choice(
        ["", "x", "standing", "a" * 300, "\0", "\n\t", "💥" * 50, "%s%n{}", "../../etc/passwd", "ü" * 10_000, "y" * 1_000_000]
    )


def call(
    channel: grpc.Channel, method: str, request: bytes, *, stream: bool, metadata: Any = (), timeout_s: float = 5.0
) -> tuple[Any, str]:
    """A call in bytes; returns the status and its text, (OK, "") after all answers."""
    kind = channel.unary_stream if stream else channel.unary_unary
    try:
        answer = kind(method)(request, metadata=metadata, timeout=timeout_s)
        if stream:
            list(answer)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def check_status(code: grpc.StatusCode, details: str, expected: set[grpc.StatusCode]) -> None:
    """The server blames the caller, with a sentence; it did not fail itself."""
    assert code in expected, (code, details)


class Connections:
    """TCP connections that are left half open, by the dozen."""

    def __init__(self, address: str, rng: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._rng = (host, int(port)), rng
        self._open: list[socket.socket] = []

    def open(self) -> None:
        rng = self._rng
        opened = socket.create_connection(self._address, 10.0)
        headers = b"\0\0\xff\1\4\0\0\0\1"  # announces 255 bytes of headers
        opened.sendall(
            rng.choice(
                [
                    b"",
                    PREFACE,
                    PREFACE + SETTINGS,
                    PREFACE + SETTINGS + headers,
                    PREFACE + b"\xff\xff\xff\4\0\0\0\0\0",  # a frame of 16 megabytes
                    PREFACE + SETTINGS + rng.randbytes(500),
                    b"GET / HTTP/1.1\r\n\r\n",
                    b"\x16\3\1\2\0\1",  # the begin of a TLS handshake
                    rng.randbytes(300),
                ]
            )
        )
        self._open.append(opened)
        if len(self._open) > _MOST_CONNECTIONS or rng.random() < 0.3:
            self._open.pop(rng.randrange(len(self._open))).close()

    def close(self) -> None:
        for opened in self._open:
            opened.close()
        self._open = []
