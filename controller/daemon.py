"""The whole controller: switch session, registry and job service in one object, and the function that runs it as a daemon."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc

from switchsum.controller import pipeline, programming, tofino
from switchsum.controller.fabric import Fabric, TofinoFabric
from switchsum.controller.gate import Gate, exposure
from switchsum.controller.jobs import Registry, first_epoch
from switchsum.controller.ledger import Ledger
from switchsum.controller.options import ControllerOptions
from switchsum.controller.pipeline import Build
from switchsum.controller.service import JobService, Reading
from switchsum.controller.switch_keeper import SwitchKeeper
from switchsum.controller.tenants import Tenants
from switchsum.p4src.layout import MAX_WORKERS, SLOTS
from switchsum.protos.job_rpc import add_job_servicer

if TYPE_CHECKING:
    from switchsum.controller.metrics import ControllerCollector

_MAX_CALLS = 1024  # at a time, event streams included; one more is told RESOURCE_EXHAUSTED

logger = logging.getLogger(__name__)


class ControllerDaemon:
    """A controller for one switch. Use as a context manager, or call start() and close(). `address`: its first for workers."""

    def __init__(self, fabric: Fabric, options: ControllerOptions) -> None:
        """Load the compiled program and bind the addresses; the switch is first spoken to in start().

        Raises ValueError for an option that names nothing that there is, WrongProgram, OSError when an address cannot be
        bound, StateError for the state file, TenantsError for the file of tokens.
        """
        build = _build(fabric, options)
        items = programming.fabric_items(fabric, options.loss_in, options.loss_out)
        registry = Registry(
            fabric,
            total_slots=SLOTS,
            max_workers=MAX_WORKERS,
            default_slots=options.slots,
            elements=build.elements,
            lease_s=options.lease_s,
            idle_s=options.idle_s,
            epoch_floor=first_epoch(),
        )
        tenants = None if options.tokens is None else Tenants(options.tokens)
        self._ledger = None if options.state is None else Ledger(options.state)
        self._service = JobService(
            registry,
            self._ledger,
            tenants,
            lease_s=options.lease_s,
            pipeline=build.description,
            switch_address=options.switch,
        )
        self._keeper = SwitchKeeper(
            build,
            items,
            self._service,
            address=options.switch,
            device_id=options.device_id,
            election_id=options.election_id,
            connect_timeout_s=options.connect_timeout_s,
            lease_s=options.lease_s,
            ledger=self._ledger,
            tls=options.switch_tls,
        )
        self._tls = options.tls
        self._exposure = exposure(options)
        self._server = grpc.server(
            _ThreadPerCall(),
            interceptors=[] if tenants is None else [Gate(tenants)],
            options=[
                ("grpc.so_reuseport", 0),  # else two controllers could share a port without noticing
                ("grpc.keepalive_time_ms", 10_000),  # a host that vanished from the network loses its event stream
                ("grpc.keepalive_timeout_ms", 5_000),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        add_job_servicer(self._service, self._server)
        self.address, *_ = [self._bind(address) for address in options.listen]
        self._started = self._closed = False

    def _bind(self, address: str) -> str:
        try:
            port = (
                self._server.add_insecure_port(address)
                if self._tls is None
                else self._server.add_secure_port(address, self._tls.credentials())
            )
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}; is another controller there? ({error})") from None
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    def start(self) -> None:
        """Connect to the switch, program it, then serve. Raises SwitchError's family within a bounded time."""
        if self._exposure is not None:
            logger.warning("%s", self._exposure)
        self._started = True
        self._service.serve(self._keeper)
        self._keeper.start()
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
        if self._ledger is not None:
            self._ledger.close()

    def reading(self) -> Reading:
        """What the metrics are made of, see JobService.reading. Call between start() and close()."""
        return self._service.reading()

    def collector(self) -> "ControllerCollector":
        """For Prometheus. Raises ImportError without prometheus_client."""
        from switchsum.controller.metrics import ControllerCollector

        return ControllerCollector(self.reading)

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


def _build(fabric: Fabric, options: ControllerOptions) -> Build:
    if not isinstance(fabric, TofinoFabric):
        if options.program is not None:
            raise ValueError("program is for a Tofino: describe it in the fabric's file (--fabric), or leave the option out")
        return pipeline.load(options.layout, options.elements)
    if options.program is None:
        raise ValueError("the fabric's switch is a Tofino: give the folder that `make p4-tna` wrote, build/tna (--program)")
    if (options.layout, options.elements) != ("lanes", tofino.ELEMENTS):
        raise ValueError(
            f"elements {options.elements}, layout {options.layout!r}: the program for a Tofino has {tofino.ELEMENTS} elements "
            f"a packet, in lanes; give --elements {tofino.ELEMENTS} --layout lanes"
        )
    return tofino.load(fabric.chip, fabric.server, options.program)


def run(
    fabric: Fabric,
    options: ControllerOptions,
    report: Callable[[str], None] = print,
    beside: Callable[[ControllerDaemon], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Serve until SIGINT or SIGTERM. Call from the main thread; `report` gets the one line that says ready.

    `beside(daemon)` is entered while it serves: its metrics' endpoint.
    Raises like ControllerDaemon and its start().
    """
    daemon = ControllerDaemon(fabric, options)
    stop = threading.Event()
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with daemon, beside(daemon):
            report(f"controller ready: job service {daemon.address}, switch {options.switch}")
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
