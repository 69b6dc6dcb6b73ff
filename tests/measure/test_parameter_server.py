"""Sums by parameter servers: how tensors are cut, what is added, and what is said to whoever pushes what does not fit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from switchsum.measure import endpoints
from switchsum.measure.push_pull import PIECE_BYTES, PushPull, cut
from switchsum.measure.rpc import Call, CallFailed, Method
from switchsum.measure.sum_service import THREADS_A_WORKER, BadPart, Head, SumService
from switchsum.measure.transports import DESCRIPTIONS

WORKERS = 3
TYPES = ("float32", "float16", "bfloat16", "int32")


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_every_number_is_cut_out_once_in_nearly_equal_shards_and_small_pieces(servers: int) -> None:
    tensors = [(1, "int32", 4), (1_000_003, "float32", 4), (7, "float16", 2), (333_333, "bfloat16", 2)]
    seen = [np.zeros(count * item, int) for count, _, item in tensors]
    for pieces in cut(tensors, servers):
        for piece in pieces:
            assert 0 < sum(stop - first for _, first, stop in piece) <= PIECE_BYTES
            for index, first, stop in piece:
                item = tensors[index][2]
                assert first % item == stop % item == 0
                seen[index][first:stop] += 1
        whole = sum(stop - first for piece in pieces for _, first, stop in piece)
        assert abs(whole - sum(count * item for count, _, item in tensors) / servers) <= 4 * len(tensors)
    assert all((each == 1).all() for each in seen)


def pushed(service: SumService, worker: int, parts: list[tuple[str, bytes]], pulls: bool = False) -> list[bytes]:
    head = Head(1, 0, tuple(dtype for dtype, _ in parts), True, pulls)
    call = Call(worker, Method.SUM, False, [head.pack(), *(data for _, data in parts)])
    return [bytes(each) for each in service(call)]


def pulled(service: SumService, worker: int) -> list[bytes]:
    return [bytes(each) for each in service(Call(worker, Method.SUM, False, [Head(1, 0, (), False, True).pack()]))]


def data_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(torch.uint8).numpy().data)


@pytest.mark.parametrize("average", [False, True])
def test_sums_are_rounded_once(average: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    dtypes = TYPES[:3] if average else TYPES
    by_worker = [
        [(torch.randn(1001, generator=generator) * 1000).to(getattr(torch, dtype)) for dtype in dtypes] for _ in range(WORKERS)
    ]
    by_worker[0][2][0] = float("nan")
    by_worker[1][1][0] = by_worker[2][1][0] = 65504.0  # their sum is infinite, their average is not
    service = SumService(WORKERS, average, 5.0)
    for worker, tensors in enumerate(by_worker):
        assert pushed(service, worker, [(d, data_of(t)) for d, t in zip(dtypes, tensors, strict=True)]) == []
    for worker in range(WORKERS):
        for number, data in enumerate(pulled(service, worker)):
            dtype = torch.int32 if dtypes[number] == "int32" else torch.float32
            total = sum(tensors[number].to(dtype) for tensors in by_worker)
            assert isinstance(total, torch.Tensor)
            expected = (total / WORKERS if average else total).to(by_worker[0][number].dtype)
            found = torch.frombuffer(bytearray(data), dtype=expected.dtype)
            assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


def failure_of(action: Callable[[], Any]) -> str:
    with pytest.raises((BadPart, TimeoutError)) as told:
        action()
    return str(told.value)


def test_what_does_not_fit_is_told_and_nobody_waits_for_it() -> None:
    service = SumService(WORKERS, False, 60.0)
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(failure_of(lambda: pulled(service, 2))))
    waiting.start()
    pushed(service, 0, [("float32", bytes(8))])
    told = "worker 1 pushed 4 float16 where worker 0 pushed 2 float32"
    assert failure_of(lambda: pushed(service, 1, [("float16", bytes(8))])) == told
    waiting.join(10)
    assert answers == [told]


def test_misuse_of_the_service_is_told() -> None:
    service = SumService(WORKERS, False, 0.05)
    pushed(service, 0, [("int32", bytes(4))])
    assert "worker 0 pushed a piece that it must not push" in failure_of(lambda: pushed(service, 0, [("int32", bytes(4))]))
    service = SumService(WORKERS, False, 0.05)
    pushed(service, 0, [("int32", bytes(4))])
    assert failure_of(lambda: pulled(service, 0)) == "worker 1, 2 pushed nothing within 0.05 s"
    assert "3 bytes, which are no whole number of int32" in failure_of(lambda: pushed(service, 1, [("int32", bytes(3))]))
    assert "only sums" in failure_of(lambda: service(Call(0, Method.ECHO, False, [b"x"])))
    assert "too few for 1 buffers" in failure_of(lambda: service(Call(0, Method.SUM, False, [b"x", b"y"])))
    head = bytearray(Head(1, 0, ("int32",), True, False).pack())
    head[16] = 9
    assert "names a type that is unknown" in failure_of(lambda: service(Call(0, Method.SUM, False, [head, bytes(4)])))


@pytest.mark.parametrize("way", ["tcp", "grpc/serialized", "grpc/non-serialized"])
def test_all_workers_are_given_the_same_bits(way: str) -> None:
    """Real servers and clients, in threads; many pieces each, of several tensors, twice."""
    servers = [endpoints.listen(way, "127.0.0.1", 0, SumService(WORKERS, False, 10), THREADS_A_WORKER * WORKERS) for _ in "12"]
    dialled = [("127.0.0.1", server.port) for server in servers]
    workers = [PushPull(DESCRIPTIONS[way.partition("/")[0]], way, dialled, worker, 10) for worker in range(WORKERS)]
    for count in (3, 600_000):
        inputs = [[torch.randn(count) for _ in range(2)] for _ in range(WORKERS)]
        results = [[each.clone() for each in tensors] for tensors in inputs]
        threads = [threading.Thread(target=each.run, args=(mine,)) for each, mine in zip(workers, results, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for number in range(2):
            exact = sum(tensors[number].double() for tensors in inputs)
            assert torch.allclose(results[0][number].double(), exact, rtol=1e-5, atol=1e-5)
            assert all(torch.equal(result[number], results[0][number]) for result in results)
    for server in servers:
        server.close()
    with pytest.raises(CallFailed, match=r"parameter server 127\.0\.0\.1:\d+ \((tcp|grpc)\)"):
        workers[0].run([torch.zeros(3)])
    for worker in workers:
        worker.close()
