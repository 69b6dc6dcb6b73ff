"""Calls over gRPC and TCP: what is sent arrives, and every failure says from where."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.measure import framing
from switchsum.measure.rpc import Buffers, Call, CallFailed, Client, Method, Server, Service
from switchsum.measure.rpc_grpc import GrpcClient, GrpcServer
from switchsum.measure.rpc_tcp import TcpClient, TcpServer

Pair = Callable[[Service], tuple[Server, Client]]


@pytest.fixture(params=["tcp", "grpc serialized", "grpc non-serialized"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    opened: list[Server | Client] = []

    def make(service: Service) -> tuple[Server, Client]:
        transport, _, mode = request.param.partition(" ")
        if transport == "tcp":
            server: Server = TcpServer("127.0.0.1", 0, service)
            client: Client = TcpClient("127.0.0.1", server.port, 3, 10.0)
        else:
            server = GrpcServer("127.0.0.1", 0, mode, service, threads=4)
            client = GrpcClient("127.0.0.1", server.port, mode, 3, 10.0)
        opened.extend([client, server])
        return server, client

    yield make
    for each in opened:
        each.close()


def echo(call: Call) -> Buffers:
    return call.buffers


def test_what_is_sent_comes_back(pair: Pair) -> None:
    """Also more buffers than one system call takes, empty ones, and more bytes than gRPC receives by default."""
    _, client = pair(echo)
    for sizes in ([1], [0], [], [10, 0, 10_000, 0], [6_000_000, 10], [7] * 3000):
        sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        assert [bytes(each) for each in client.call(Method.ECHO, sent)] == sent


def test_the_service_hears_who_calls_for_what(pair: Pair) -> None:
    heard: list[tuple[int, Method, bool]] = []

    def service(call: Call) -> Buffers:
        heard.append((call.worker, call.method, call.check))
        return []

    _, client = pair(service)
    assert client.call(Method.ACKNOWLEDGE, [b"x"], check=True) == []
    client.call(Method.SUM, [])
    assert heard == [(3, Method.ACKNOWLEDGE, True), (3, Method.SUM, False)]


def test_results_come_in_the_order_of_calls_that_are_under_way_at_once(pair: Pair) -> None:
    _, client = pair(echo)
    waiting = [client.begin(Method.ECHO, [bytes([number]) * 1000]) for number in range(8)]
    assert [bytes(result()[0])[0] for result in waiting] == list(range(8))


def test_a_failing_service_is_told_to_its_caller_and_serves_on(pair: Pair) -> None:
    def service(call: Call) -> Buffers:
        if call.check:
            raise ValueError("shapes differ: 3 and 4")
        return call.buffers

    server, client = pair(service)
    with pytest.raises(CallFailed, match=rf"127\.0\.0\.1:{server.port} .*ValueError: shapes differ: 3 and 4"):
        client.call(Method.ECHO, [b"abc"], check=True)
    assert [bytes(each) for each in client.call(Method.ECHO, [b"abc"])] == [b"abc"]


def test_a_server_that_ends_fails_the_call(pair: Pair) -> None:
    server, client = pair(echo)
    client.call(Method.ECHO, [b"x"])
    server.close()
    with pytest.raises(CallFailed, match=f"parameter server 127.0.0.1:{server.port}"):
        client.call(Method.ECHO, [b"x"])


def test_nobody_there_is_told_at_once_or_after_the_timeout() -> None:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        for connect in (
            lambda: TcpClient("127.0.0.1", port, 0, 0.3),
            lambda: GrpcClient("127.0.0.1", port, "serialized", 0, 0.3),
        ):
            with pytest.raises(CallFailed, match=f"no parameter server answers at 127.0.0.1:{port}"):
                connect()


def test_a_silent_server_is_not_waited_for_beyond_the_timeout() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = TcpClient("127.0.0.1", silent.getsockname()[1], 0, 0.2)
        with pytest.raises(CallFailed, match=r"did not answer within 0\.2"):
            client.call(Method.ECHO, [b"x"])
        client.close()


def test_a_taken_port_is_an_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="already in use"):
            TcpServer("127.0.0.1", port, echo)
        with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{port}"):
            GrpcServer("127.0.0.1", port, "serialized", echo, threads=1)


def test_garbage_ends_its_own_connection_only() -> None:
    server = TcpServer("127.0.0.1", 0, echo)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 10, framing.head(Method.ECHO, False, 0, [])[:5], b"\0" * 100):
        with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # what the server had not read yet
                assert stranger.recv(100) == b""
    client = TcpClient("127.0.0.1", server.port, 0, 5.0)
    assert [bytes(each) for each in client.call(Method.ECHO, [b"abc"])] == [b"abc"]
    client.close()
    server.close()


@given(st.sampled_from(list(Method)), st.booleans(), st.integers(0, 65535), st.lists(st.binary(max_size=40), max_size=20))
def test_heads_round_trip(method: Method, check: bool, worker: int, buffers: list[bytes]) -> None:
    head = framing.head(method, check, worker, buffers)
    assert framing.parse_head(head) == (method, check, worker, len(buffers))
    assert framing.parse_lengths(head[framing.HEAD_BYTES :], len(buffers)) == tuple(map(len, buffers))


@given(st.binary(min_size=framing.HEAD_BYTES, max_size=64))
def test_garbage_is_no_head(data: bytes) -> None:
    try:
        _, _, _, count = framing.parse_head(data)
        framing.parse_lengths(data[framing.HEAD_BYTES :].ljust(count * framing.LENGTH_BYTES, b"\xff"), count)
    except framing.BadFrame:
        return
    assert data.startswith(b"SSB1")
