"""Calls made of torch.distributed's send and recv, over Gloo: a header, then each buffer by itself.

Gloo names no sizes on the wire, so both sides know them beforehand (`sizes`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from switchsum.measure.rpc import Buffer, Buffers, Call, CallFailed, Client, Method, Server, Service

if TYPE_CHECKING:
    import torch

_END = 0  # in place of a method: the caller leaves
# How long a caller may call nobody, while others have their turns: the group's own timeout would end the connection. One that
# has died ends it at once.
_IDLE = timedelta(days=30)
_ACKNOWLEDGEMENT = [8]  # bytes of the buffers of that answer


class Sizes:
    """Bytes of each buffer of the payload in use."""

    def __init__(self) -> None:
        self.now: list[int] = []


def _empty(sizes: Sequence[int]) -> list[torch.Tensor]:
    import torch

    return [torch.empty(size, dtype=torch.uint8) for size in sizes]


def _views(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    return [memoryview(tensor.numpy()) for tensor in tensors]


def _tensors(buffers: Sequence[Buffer]) -> list[torch.Tensor]:
    import torch

    # frombuffer() warns of memory that must not be written, which nobody here does.
    return [torch.frombuffer(bytearray(each) if isinstance(each, bytes) else each, dtype=torch.uint8) for each in buffers]


class TorchServer(Server):
    """A thread for each worker. `port` is 0: ranks know each other from torch.distributed's default group."""

    port = 0
    messages = None

    def __init__(self, workers: Sequence[int], sizes: Sizes, service: Service) -> None:
        self._sizes, self._service = sizes, service
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name="gloo server", daemon=True) for rank in workers
        ]
        for thread in self._threads:
            thread.start()

    def _serve(self, worker: int) -> None:
        import torch
        import torch.distributed as dist

        head = torch.empty(2, dtype=torch.int64)
        while True:
            try:
                dist.irecv(head, src=worker).wait(_IDLE)
                method, mark = int(head[0]), int(head[1])
                if method == _END:
                    return
                arrived = _empty(self._sizes.now)
                for work in [dist.irecv(tensor, src=worker) for tensor in arrived]:
                    work.wait()
                answer = self._service(Call(worker, Method(method), mark, _views(arrived)))
                leaving = _tensors(answer)  # which must live until they are sent
                for work in [dist.isend(tensor, dst=worker) for tensor in leaving]:
                    work.wait()
            except RuntimeError:  # the worker is gone, which the coordinator sees and tells
                return

    def close(self) -> None:
        """Once every client has been closed."""
        for thread in self._threads:
            thread.join()


class TorchClient(Client):
    messages = None

    def __init__(self, server: int, sizes: Sizes) -> None:
        """`server`: its rank in the default group."""
        self._server, self._sizes = server, sizes

    def begin(self, method: Method, buffers: Buffers, *, mark: int = 0) -> Callable[[], Buffers]:
        import torch
        import torch.distributed as dist

        assert method in (Method.ECHO, Method.ACKNOWLEDGE)
        leaving = [torch.tensor([int(method), mark]), *_tensors(buffers)]
        try:
            sent = [dist.isend(tensor, dst=self._server) for tensor in leaving]
        except RuntimeError as error:
            raise self._failed(error) from None

        def result() -> Buffers:
            nonlocal leaving
            arrived = _empty(self._sizes.now if method == Method.ECHO else _ACKNOWLEDGEMENT)
            try:
                works: list[Any] = [*sent, *(dist.irecv(tensor, src=self._server) for tensor in arrived)]
                for work in works:
                    work.wait()
            except RuntimeError as error:
                raise self._failed(error) from None
            leaving = []  # which had to live until they were sent
            return _views(arrived)

        return result

    def _failed(self, error: RuntimeError) -> CallFailed:
        told = str(error).partition("\n")[0]
        return CallFailed(f"parameter server of rank {self._server} (gloo): {told}")

    def close(self) -> None:
        """Tell the server that this caller leaves."""
        import torch
        import torch.distributed as dist

        dist.send(torch.tensor([_END, 0]), dst=self._server)
