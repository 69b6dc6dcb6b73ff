"""The whole controller: switch session, registry and job service in one object, and the function that runs it as a daemon."""

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from switchsum.controller import fabric as fabrics
from switchsum.controller import pipeline, programming
from switchsum.controller.fabric import Fabric
from switchsum.controller.jobs import Registry, first_epoch
from switchsum.controller.service import JobService
from switchsum.controller.switch_keeper import SwitchKeeper
from switchsum.p4src.layout import DEFAULT_ELEMENTS, MAX_WORKERS, SLOTS
from switchsum.protos.job_rpc import add_job_servicer

DEFAULT_LISTEN = "127.0.0.1:50099"
DEFAULT_SWITCH = "127.0.0.1:9559"  # the port that IANA assigned to P4Runtime
# Twice the bandwidth-delay product of a 1 Gbit/s link with 2 ms there and back is 470 packets of 256 elements.
DEFAULT_SLOTS = 512
DEFAULT_LEASE_S = 5.0
DEFAULT_CONNECT_TIMEOUT_S = 10.0
_MAX_CALLS = 1024  # at a time, event streams included; one more is told RESOURCE_EXHAUSTED

logger = logging.getLogger(__name__)


class ControllerDaemon:
    """A controller for one switch. Use as a context manager, or call start() and close(). `address`: its first for workers."""

    def __init__(
        self,
        *,
        fabric: Fabric,
        switch: str = DEFAULT_SWITCH,
        listen: str | Sequence[str] = DEFAULT_LISTEN,
        device_id: int = 1,
        election_id: int = 1,
        elements: int = DEFAULT_ELEMENTS,
        layout: str = "lanes",
        loss_in: float = 0.0,
        loss_out: float = 0.0,
        slots: int = DEFAULT_SLOTS,
        lease_s: float = DEFAULT_LEASE_S,
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    ) -> None:
        """Check the arguments, load the compiled program and bind `listen`; the switch is first spoken to in start().

        `switch`, `listen`: "HOST:PORT" or "unix:PATH" of the switch's P4Runtime server and of the job service, which may listen
        at several (port 0: any free one).
        `election_id`: the highest at a switch is in charge. `layout`: "lanes" (softswitch) or "wide" (BMv2). `loss_in`,
        `loss_out`: share of packets the switch drops on purpose at every port, in [0, 1). `slots`: what a job gets that asks
        for none. Raises ValueError for a bad argument, WrongProgram, or OSError when `listen` cannot be bound.
        """
        addresses = [listen] if isinstance(listen, str) else list(listen)
        _check(switch, addresses, device_id, election_id, slots, lease_s, connect_timeout_s)
        build = pipeline.load(layout, elements)
        items = programming.fabric_items(fabric, loss_in, loss_out)
        registry = Registry(
            fabric,
            total_slots=SLOTS,
            max_workers=MAX_WORKERS,
            default_slots=slots,
            elements=elements,
            lease_s=lease_s,
            epoch_floor=first_epoch(),
        )
        self._service = JobService(registry, lease_s=lease_s, pipeline=build.description, switch_address=switch)
        self._keeper = SwitchKeeper(
            build,
            items,
            self._service,
            address=switch,
            device_id=device_id,
            election_id=election_id,
            connect_timeout_s=connect_timeout_s,
        )
        self._server = grpc.server(
            _ThreadPerCall(),
            options=[
                ("grpc.so_reuseport", 0),  # else two controllers could share a port without noticing
                ("grpc.keepalive_time_ms", 10_000),  # a host that vanished from the network loses its event stream
                ("grpc.keepalive_timeout_ms", 5_000),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        add_job_servicer(self._service, self._server)
        self.address, *_ = [self._bind(address) for address in addresses]
        self._started = self._closed = False

    def _bind(self, address: str) -> str:
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}; is another controller there? ({error})") from None
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    def start(self) -> None:
        """Connect to the switch, program it, then serve. Raises SwitchError's family within a bounded time."""
        self._keeper.start()
        self._started = True
        self._service.serve(self._keeper)
        self._server.start()

    def close(self) -> None:
        """End all jobs, tell their members, take them off the switch, stop serving. The switch keeps its program."""
        if self._closed:
            return
        self._closed = True
        if self._started:
            self._service.stop()
        self._keeper.close()
        self._server.stop(grace=0.5).wait()

    def running_jobs(self) -> int:
        """Jobs that have not ended."""
        return self._service.running_jobs()

    def __enter__(self) -> "ControllerDaemon":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def run(
    *,
    switch: str = DEFAULT_SWITCH,
    listen: str | Sequence[str] = DEFAULT_LISTEN,
    fabric: Path | None = None,
    udp_host: str = "127.0.0.1",
    udp_base: int = 47000,
    ports: int = 8,
    device_id: int = 1,
    election_id: int = 1,
    elements: int = DEFAULT_ELEMENTS,
    layout: str = "lanes",
    loss_in: float = 0.0,
    loss_out: float = 0.0,
    slots: int = DEFAULT_SLOTS,
    lease_s: float = DEFAULT_LEASE_S,
    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    report: Callable[[str], None] = print,
) -> None:
    """Serve until SIGINT or SIGTERM. Call from the main thread; `report` gets the one line that says ready.

    `fabric`: file that describes the network (controller/fabric.py); None: a softswitch on this machine whose port p is UDP
    port `udp_base` + p of `udp_host`, with `ports` ports, as `switchsum switch` starts it. The others: ControllerDaemon.
    Raises ValueError for a bad argument; ControllerError's family or OSError for what is wrong outside.
    """
    if fabric is not None:
        network = fabrics.load(fabric)
    else:
        _check_loopback(udp_host, udp_base, ports)
        network = Fabric.loopback({number: (udp_host, udp_base + number) for number in range(1, ports + 1)})
    daemon = ControllerDaemon(
        fabric=network,
        switch=switch,
        listen=listen,
        device_id=device_id,
        election_id=election_id,
        elements=elements,
        layout=layout,
        loss_in=loss_in,
        loss_out=loss_out,
        slots=slots,
        lease_s=lease_s,
        connect_timeout_s=connect_timeout_s,
    )
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with daemon:
            report(f"controller ready: job service {daemon.address}, switch {switch}")
            stop.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _ThreadPerCall(Executor):
    """A daemon thread for each call. Calls that wait (joins, event streams) would occupy any pool, and the standard pool's
    threads keep a process from ending while one of them waits."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def body() -> None:
            try:
                future.set_result(call(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=body, name="switchsum-call", daemon=True).start()
        return future


def _check(
    switch: str,
    listen: list[str],
    device_id: int,
    election_id: int,
    slots: int,
    lease_s: float,
    connect_timeout_s: float,
) -> None:
    _check_address("switch", switch, lowest_port=1)
    if not listen:
        raise ValueError("listen names no address: workers could not reach the controller")
    for address in listen:
        _check_address("listen", address, lowest_port=0)
    for name, value, low, high, unit in (
        ("device_id", device_id, 1, 2**64 - 1, ""),
        ("election_id", election_id, 1, 2**128 - 1, ""),
        ("slots", slots, 1, SLOTS, ""),
        ("lease", lease_s, 0.1, 3600, " seconds"),
        ("connect_timeout", connect_timeout_s, 0.1, 3600, " seconds"),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} {value} is out of range: {low} to {high}{unit}")


def _check_loopback(udp_host: str, udp_base: int, ports: int) -> None:
    """What would else be noticed by the first job, or by its packets."""
    if not 1 <= ports <= fabrics.MAX_PORT:
        raise ValueError(f"{ports} ports: a switch has 1 to {fabrics.MAX_PORT}")
    if not 0 < udp_base <= 65535 - ports:
        raise ValueError(f"UDP ports {udp_base + 1} to {udp_base + ports} do not exist; give the base that the switch got")
    try:
        loopback = IPv4Address(udp_host).is_loopback
    except AddressValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"host {udp_host!r} is not an IPv4 address of loopback, such as 127.0.0.1, where an embedded switch's ports are; "
            "describe any other network in a file (--fabric)"
        )


def _check_address(name: str, text: str, lowest_port: int) -> None:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") and len(text) > len("unix:"):
        return
    if not host or not port.isdecimal() or not lowest_port <= int(port) <= 65535:
        raise ValueError(f"{name} {text!r} is not an address: write HOST:PORT, such as 127.0.0.1:50099")
