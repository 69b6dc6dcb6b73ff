"""The queue between callers and the engine, over a real socket whose other end is a switch for a job of one worker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from switchsum.host_agent.collective import CollectiveQueue
from switchsum.host_agent.engine import MAX_QUEUED, Engine
from switchsum.host_agent.errors import SwitchSumError
from switchsum.host_agent.prepare import prepare
from switchsum.host_agent.transport import Transport
from tests.host_agent.test_engine import answer

LIMIT_S = 20.0


class Rack:
    """A queue, and the socket that plays its switch."""

    def __init__(self) -> None:
        self.switch = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.switch.bind(("127.0.0.1", 0))
        self.switch.settimeout(LIMIT_S)
        transport = Transport("127.0.0.1")
        transport.connect(*self.switch.getsockname())
        self._closed = False
        self._agent = ("127.0.0.1", transport.local_port)
        engine = Engine(job=3, epoch=5, worker=0, world_size=1, slots=2, elements=64)
        self.queue = CollectiveQueue(engine, transport, on_failure=lambda failure, error: error)

    def close(self) -> None:
        """Waits for the queue's thread."""
        if not self._closed:
            self._closed = True
            self.queue.close()
            self.switch.close()

    def receive(self) -> bytes:
        return self.switch.recv(65536)

    def reply(self, contribution: bytes) -> None:
        self.switch.sendto(answer(contribution), self._agent)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiling takes longer than LIMIT_S on a busy machine, and is not what these tests wait for."""
    prepare()


@pytest.fixture
def rack() -> Iterator[Rack]:
    rack = Rack()
    yield rack
    rack.close()


def test_after_a_failure_no_tensor_is_touched(rack: Rack) -> None:
    """The answer that would finish a sum comes after the epoch's end: the tensor is its owner's again by then.

    (With an engine that ran on, it was overwritten, and the queue's thread died of a KeyError.)
    """
    tensor = np.full(64, 3.0, np.float32)
    told: list[SwitchSumError | None] = []
    ended = threading.Event()

    def tell(error: SwitchSumError | None) -> None:
        told.append(error)
        ended.set()

    rack.queue.submit(tensor, tensor, "sum", tell)
    values = rack.receive()
    reason = SwitchSumError("the epoch is over")
    rack.queue.fail(reason)
    assert ended.wait(LIMIT_S)
    assert told == [reason]
    tensor[:] = -1.0
    rack.reply(values)
    rack.queue.submit(tensor, tensor, "sum", told.append)
    assert told == [reason, reason]
    rack.close()
    rack.queue.fail(SwitchSumError("news that come too late"))
    assert (tensor == -1.0).all()


def test_more_sums_than_the_engine_holds(rack: Rack) -> None:
    """They wait their turn; each ends once, right. (Callbacks may overtake each other where one takes long.)"""
    count = 2 * MAX_QUEUED + 100
    tensors = [np.full(1, float(number), np.float32) for number in range(count)]
    order: list[int] = []
    ended = threading.Event()

    def done(number: int, error: SwitchSumError | None) -> None:
        assert error is None
        order.append(number)
        if len(order) == count:
            ended.set()

    def serve() -> None:
        while not ended.is_set():
            rack.reply(rack.receive())

    server = threading.Thread(target=serve, daemon=True)
    for number, tensor in enumerate(tensors):
        rack.queue.submit(tensor, tensor, "sum", lambda error, number=number: done(number, error))  # type: ignore[misc]
    server.start()
    assert ended.wait(LIMIT_S)
    rack.queue.submit(np.ones(1, np.float32), np.ones(1, np.float32), "sum", lambda error: None)  # lets `serve` see the end
    server.join(LIMIT_S)
    assert sorted(order) == list(range(count))
    assert [float(tensor[0]) for tensor in tensors] == [float(number) for number in range(count)]


def test_closing_with_sums_pending_ends_each_with_an_error(rack: Rack) -> None:
    told: list[SwitchSumError | None] = []
    for _ in range(MAX_QUEUED + 1):
        tensor = np.ones(1, np.float32)
        rack.queue.submit(tensor, tensor, "sum", told.append)
    rack.close()
    assert len(told) == MAX_QUEUED + 1
    assert {str(error) for error in told} == {"the process group was destroyed while this collective was pending"}


def test_a_callback_may_wait_for_another_sum(rack: Rack) -> None:
    """As PyTorch's PowerSGD hook does. (With callbacks on the thread that moves packets, that waited for ever.)"""
    first, second = np.full(8, 1.0, np.float32), np.full(8, 2.0, np.float32)
    inner, outer = threading.Event(), threading.Event()

    def done(error: SwitchSumError | None) -> None:
        assert error is None
        rack.queue.submit(second, second, "the other sum", lambda error: inner.set())
        assert inner.wait(LIMIT_S)
        outer.set()

    rack.queue.submit(first, first, "sum", done)
    for _ in range(2):
        rack.reply(rack.receive())
    assert outer.wait(LIMIT_S)


def test_a_caller_that_waits_moves_its_packets_itself(rack: Rack) -> None:
    values = np.arange(8, dtype=np.float32)
    expected = values.copy()
    threads: list[str] = []
    server = threading.Thread(target=lambda: rack.reply(rack.receive()))
    server.start()
    rack.queue.run(values, values, "sum", lambda error: threads.append(threading.current_thread().name))
    assert threads == [threading.current_thread().name]
    assert (values == expected).all()
    server.join(LIMIT_S)


def test_a_sum_of_numbers_that_are_on_their_way_holds_its_place(rack: Rack) -> None:
    """As copies out of a GPU's memory are: sums that are submitted later wait, also one whose caller waits."""
    late, soon = np.zeros(8, np.float32), np.ones(8, np.float32)
    order: list[str] = []
    told = threading.Event()
    release = rack.queue.hold(late, late, "late", lambda error: order.append("late"))
    waiting = threading.Thread(
        target=rack.queue.run, args=(soon, soon, "soon", lambda error: (order.append("soon"), told.set()))
    )
    waiting.start()
    rack.switch.settimeout(0.2)
    used = time.process_time()
    with pytest.raises(TimeoutError):
        rack.receive()
    assert time.process_time() - used < 0.15, "waits by turning"
    rack.switch.settimeout(LIMIT_S)
    late[:] = 7
    release()
    for _ in range(2):
        rack.reply(rack.receive())
    assert told.wait(LIMIT_S)
    waiting.join(LIMIT_S)
    assert order == ["late", "soon"]
    assert (late == 7).all()
    assert (soon == 1).all()


def test_numbers_that_never_come_end_with_the_queue(rack: Rack) -> None:
    told: list[SwitchSumError | None] = []
    release = rack.queue.hold(np.ones(1, np.float32), np.ones(1, np.float32), "late", told.append)
    rack.close()
    release()
    assert [str(error) for error in told] == ["the process group was destroyed while this collective was pending"]
    rack.queue.hold(np.ones(1, np.float32), np.ones(1, np.float32), "too late", told.append)()
    assert len(told) == 2


def test_what_nobody_expected_ends_all_sums_with_an_error(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as no memory. (It ended the queue's thread, and whoever waited did so for ever.)"""

    def no_memory(*arguments: object) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(rack.queue._engine, "submit", no_memory)
    told: list[SwitchSumError | None] = []
    ended = threading.Event()
    for _ in range(2):
        tensor = np.ones(8, np.float32)
        rack.queue.submit(tensor, tensor, "sum", lambda error: (told.append(error), len(told) == 2 and ended.set()))  # type: ignore[func-returns-value]
    assert ended.wait(LIMIT_S)
    assert {str(error) for error in told} == {"a sum could not be run: MemoryError: no room"}
    rack.queue.run(tensor, tensor, "sum", told.append)
    assert "no room" in str(told[-1])
