"""Calls over gRPC and TCP: what is sent arrives, and every failure says from where."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchsum.measure import framing
from switchsum.measure.call_roles import CallRoles
from switchsum.measure.calls import too_large
from switchsum.measure.experiment import Case, Plan, Way
from switchsum.measure.manifest import Buffer
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
    heard: list[tuple[int, Method, int]] = []

    def service(call: Call) -> Buffers:
        heard.append((call.worker, call.method, call.mark))
        return []

    _, client = pair(service)
    assert client.call(Method.ACKNOWLEDGE, [b"x"], mark=70_000) == []
    client.call(Method.SUM, [])
    assert heard == [(3, Method.ACKNOWLEDGE, 70_000), (3, Method.SUM, 0)]


def test_results_come_in_the_order_of_calls_that_are_under_way_at_once(pair: Pair) -> None:
    _, client = pair(echo)
    waiting = [client.begin(Method.ECHO, [bytes([number]) * 1000]) for number in range(8)]
    assert [bytes(result()[0])[0] for result in waiting] == list(range(8))


def test_a_failing_service_is_told_to_its_caller_and_serves_on(pair: Pair) -> None:
    def service(call: Call) -> Buffers:
        if call.mark:
            raise ValueError("shapes differ: 3 and 4")
        return call.buffers

    server, client = pair(service)
    with pytest.raises(CallFailed, match=rf"127\.0\.0\.1:{server.port} .*ValueError: shapes differ: 3 and 4"):
        client.call(Method.ECHO, [b"abc"], mark=1)
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


@pytest.mark.parametrize("way", ["tcp", "grpc/serialized"])
def test_where_nobody_can_listen_the_option_to_change_is_named(way: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        told = rf"cannot listen at 127\.0\.0\.1:{port}: the port is taken; choose another --port \(0: any\)$"
        with pytest.raises(CallFailed, match=told):
            CallRoles(0).do_serve(way, "127.0.0.1", port, 1, 1)
    with pytest.raises(CallFailed, match=r"192\.0\.2\.1:0: this machine has no such address; choose another --ip$"):
        CallRoles(0).do_serve(way, "192.0.2.1", 0, 1, 1)


def test_what_cannot_become_a_message_says_why(pair: Pair) -> None:
    """In a call, and in its answer."""
    server, client = pair(lambda call: call.buffers if call.mark else ["no bytes"])  # type: ignore[list-item]
    name = f"parameter server 127.0.0.1:{server.port}"
    if isinstance(client, GrpcClient):
        with pytest.raises(CallFailed, match=f"{name} .*TypeError: .*str"):
            client.call(Method.ECHO, ["no bytes"])  # type: ignore[list-item]
        with pytest.raises(CallFailed, match=f"{name} .*INTERNAL: TypeError: .*str"):
            client.call(Method.ECHO, [b"abc"])
    assert [bytes(each) for each in client.call(Method.ECHO, [b"abc"], mark=1)] == [b"abc"]


def test_payloads_that_no_message_can_carry_are_refused() -> None:
    serialized, plain = Way("grpc", "serialized"), Way("grpc", "non-serialized")
    half, whole = Case("half", [Buffer(1 << 30)] * 2), Case("whole", [Buffer(1 << 30)] * 4)
    fits = Case("fits", [Buffer((1 << 30) - 50), Buffer(1 << 30)])
    assert too_large(Plan([serialized, plain, Way("tcp")], [fits], 1, 1)) is None
    assert too_large(Plan([plain, Way("tcp")], [half], 1, 1)) is None
    told = "{}: payload {} has {} bytes, and a message carries {} at most"
    for way, case, most in ((serialized, half, (2 << 30) - 49), (plain, whole, (4 << 30) - 65)):
        assert too_large(Plan([Way("tcp"), way], [case], 1, 1)) == told.format(way.label, case.payload, case.size_bytes, most)


@pytest.mark.parametrize("method", [Method.ECHO, Method.ACKNOWLEDGE])
def test_bytes_of_another_call_or_worker_are_wrong(method: Method) -> None:
    """A server that always uses the buffers of the call before this one."""
    sizes = [100_003, 10, 0]
    roles = [CallRoles(rank) for rank in range(3)]
    kept: list[bytes] = []

    def stale(call: Call) -> Buffers:
        nonlocal kept
        before, kept = kept, [bytes(each) for each in call.buffers]
        return roles[2].answer(replace(call, buffers=before or kept))

    for serve, honest in ((stale, False), (roles[2].answer, True)):
        server = TcpServer("127.0.0.1", 0, serve)
        for each in roles:
            each.do_load_buffers(sizes, 1)
        for each in roles[:2]:
            each.do_dial("tcp", [[2, "127.0.0.1", server.port]], 10.0)
        found = [roles[worker].do_check_calls("tcp", method)["wrong"] for worker in (0, 0, 1)]
        found.append(roles[1].do_call_for("tcp", method, 0.0, 1, True, None)["wrong"])
        assert found[0] == 0
        assert all(wrong == 0 if honest else wrong > 0.8 * sum(sizes) for wrong in found[1:])
        for each in roles:
            each.close_clients()
        server.close()


def test_garbage_ends_its_own_connection_only() -> None:
    server = TcpServer("127.0.0.1", 0, echo)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 10, framing.head(Method.ECHO, False, 0, [])[:5], b"\0" * 100):
        with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
            stranger.sendall(garbage)
            with suppress(OSError):  # the server has closed already, and had not read everything
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
    client = TcpClient("127.0.0.1", server.port, 0, 5.0)
    assert [bytes(each) for each in client.call(Method.ECHO, [b"abc"])] == [b"abc"]
    client.close()
    server.close()


@given(
    st.sampled_from(list(Method)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    st.lists(st.binary(max_size=40), max_size=20),
)
def test_heads_round_trip(method: Method, mark: int, worker: int, buffers: list[bytes]) -> None:
    head = framing.head(method, mark, worker, buffers)
    assert framing.parse_head(head) == (method, mark, worker, len(buffers))
    assert framing.parse_lengths(head[framing.HEAD_BYTES :], len(buffers)) == tuple(map(len, buffers))


@given(st.binary(min_size=framing.HEAD_BYTES, max_size=64))
def test_garbage_is_no_head(data: bytes) -> None:
    try:
        _, _, _, count = framing.parse_head(data)
        framing.parse_lengths(data[framing.HEAD_BYTES :].ljust(count * framing.LENGTH_BYTES, b"\xff"), count)
    except framing.BadFrame:
        return
    assert data.startswith(b"SSB1")
