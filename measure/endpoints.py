"""Servers and clients of a way by its name: "tcp", or "grpc" with its mode behind a slash."""

from __future__ import annotations

from switchsum.measure.rpc import Client, Server, Service


def listen(way: str, address: str, port: int, service: Service, threads: int) -> Server:
    """`port` 0: any. `threads`: calls that gRPC answers at once. Raises OSError."""
    transport, _, mode = way.partition("/")
    if transport == "grpc":
        from switchsum.measure.rpc_grpc import GrpcServer

        return GrpcServer(address, port, mode, service, threads)
    from switchsum.measure.rpc_tcp import TcpServer

    return TcpServer(address, port, service)


def dial(way: str, address: str, port: int, worker: int, timeout_s: float) -> Client:
    """Raises CallFailed."""
    transport, _, mode = way.partition("/")
    if transport == "grpc":
        from switchsum.measure.rpc_grpc import GrpcClient

        return GrpcClient(address, port, mode, worker, timeout_s)
    from switchsum.measure.rpc_tcp import TcpClient

    return TcpClient(address, port, worker, timeout_s)
