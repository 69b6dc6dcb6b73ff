"""Serves Prometheus metrics over HTTP, from a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from switchsum.failures import require

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

METRICS_MODULES = {"prometheus_client": "metrics"}
DEFAULT_HOST = "127.0.0.1"
_CONNECTIONS = 8  # at a time; one more is closed at once
_PATIENCE_S = 10.0  # with a client that asks nothing, or does not take the answer
_endpoints: weakref.WeakSet[MetricsEndpoint] = weakref.WeakSet()


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Host and port of "[HOST:]PORT", loopback without HOST; port 0: any free one. Raises ValueError, which calls it `name`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in text and not host):
        raise ValueError(f"{name} {text!r} is not an address: write PORT, for loopback, or HOST:PORT, such as 10.0.0.1:9464")
    return host.strip("[]") or DEFAULT_HOST, int(port)


class MetricsEndpoint:
    """Answers every GET with the metrics of one collector, and of this process. `url`: where."""

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        """Bind and serve. Raises OSError naming the address, ImportError without prometheus_client."""
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(collector)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _Server((host, port), family)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"cannot serve metrics at {host}:{port}: {reason}; choose another port") from None
        self._server.set_app(make_wsgi_app(registry))
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="switchsum-metrics", daemon=True)
        self._thread.start()
        _endpoints.add(self)

    def close(self) -> None:
        """Stop listening."""
        _endpoints.discard(self)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def forget(self) -> None:
        """In a forked child: the parent's port must not stay taken for as long as the child lives."""
        self._server.socket.close()


@contextlib.contextmanager
def serving(address: tuple[str, int], collector: Collector) -> Iterator[str]:
    """An endpoint at `address` for the length of the block, and its URL."""
    endpoint = MetricsEndpoint(*address, collector)
    try:
        yield endpoint.url
    finally:
        endpoint.close()


def beside(command: str, address: str | None) -> Callable[[Any], contextlib.AbstractContextManager[object]]:
    """For a daemon's run(): serves the daemon's collector() at `address` ("[HOST:]PORT") as long as the daemon serves; None:
    nothing. Raises ValueError for another address, CommandFailed where prometheus_client is missing."""
    if address is None:
        return contextlib.nullcontext
    where = parse_address(address, "--metrics")
    require(f"{command} --metrics", METRICS_MODULES)

    @contextlib.contextmanager
    def endpoint(daemon: Any) -> Iterator[None]:
        with serving(where, daemon.collector()) as url:
            logger.info("metrics at %s", url)
            yield

    return endpoint


def _forget_all() -> None:
    for endpoint in list(_endpoints):
        endpoint.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Who asks, and how often, is nobody's news."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, but not for any number of them."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], family: int) -> None:
        self.address_family = family
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks for the host's full name, which may take a resolver's patience
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment, misc]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or never asked: nothing that anybody could mend here."""
