"""Counts what a step of a training computes and moves, operation by operation, in a TorchDispatchMode.

The operations run as they are; none is replaced or split. FLOPs come from PyTorch's own formulas (torch.utils.flop_counter),
which count a multiplication and an addition as two, and from two more below for what these leave out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
# The CPU's attention has the arguments of the GPU's, for which there are formulas.
_ALIKE = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _aten._scaled_dot_product_flash_attention_backward,
}
# Whole recurrent layers as one operation: every weight is multiplied once for each element of the sequence and the batch.
_RECURRENT = {
    _aten.mkldnn_rnn_layer: 1,
    _aten.mkldnn_rnn_layer_backward: 2,  # for the gradients of input and of weights
    _aten._cudnn_rnn: 1,
    _aten._cudnn_rnn_backward: 2,
}
_NO_TRAFFIC = {
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided, _aten._unsafe_view,
    _aten.unsafe_split, _aten.unsafe_split_with_sizes, _aten.unsafe_chunk, _aten.resize_, _aten.set_, _aten.record_stream,
    _aten._local_scalar_dense, _aten._fused_sdp_choice, _aten.is_same_size,
}  # fmt: skip
# What is written without having been read: of these the first argument, which is also the result.
_OVERWRITTEN = {
    _aten.copy_, _aten.fill_, _aten.zero_, _aten.normal_, _aten.uniform_, _aten.random_, _aten.bernoulli_, _aten._foreach_zero_,
    _aten._foreach_copy_,
}  # fmt: skip
# Whose first argument tells shape and type only.
_SHAPED = {
    _aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.rand_like, _aten.randn_like, _aten.new_zeros, _aten.new_ones,
    _aten.new_full,
}  # fmt: skip
# Which read, or change, some rows of their first argument, however large it is.
_GATHERS = {_aten.embedding, _aten.index, _aten.index_select, _aten.gather, _aten.take}
_BAGS = {_aten._embedding_bag, _aten._embedding_bag_forward_only}
_SCATTERS = {_aten.index_put_, _aten._index_put_impl_, _aten.index_add_, _aten.index_copy_, _aten.scatter_, _aten.scatter_add_}
# Which are seen as one operation of nested tensors and in inference mode only, and hide the products of which they are made.
_WHOLE = {
    _aten.linear, _aten.matmul, _aten.einsum, _aten.conv1d, _aten.conv2d, _aten.conv3d, _aten.scaled_dot_product_attention,
    _aten._native_multi_head_attention, _aten._transformer_encoder_layer_fwd,
}  # fmt: skip
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All of them in lists, tuples and dictionaries, however deep."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Of their distinct elements: what an expanded tensor repeats counts once; of a sparse one, what it stores."""
    total = 0
    for tensor in tensors:
        if tensor.layout == torch.sparse_coo:
            total += tensor._values().nbytes + tensor._indices().nbytes
        elif tensor.layout == torch.strided and not tensor.is_nested:
            distinct = prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
            total += distinct * tensor.element_size()
        else:
            total += tensor.numel() * tensor.element_size()
    return total


class OperationCounter(TorchDispatchMode):
    """Between entering and leaving it, in the threads of that thread's backward passes too.

    The first error in counting ends it, and is in `failure`: "" says that everything was counted.
    flops: by operation, those bound by computing; memory_bytes: read and written by all others; copied_bytes: from host to
    device; collective_bytes, collective_dtype: handed to collectives, and of which type the last was; embeddings: where the
    weights of embedding tables lie (data_ptr); conv2d_flops: of convolutions of pictures forwards, which torch.profiler counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()
        self.flops_by_dtype: Counter[torch.dtype] = Counter()
        self.memory_bytes = 0
        self.copied_bytes = 0
        self.collective_bytes = 0
        self.collective_dtype = torch.float32
        self.conv2d_flops = 0
        self.embeddings: set[int] = set()
        self.failure = ""

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and not self.failure:
            try:
                self._count(func, args, kwargs, out)
            except Exception as error:  # of a formula that does not know this case, or a tensor that does not tell its shape
                self.failed(str(func), error)
        return out

    def failed(self, what: str, error: Exception) -> None:
        lines = str(error).splitlines()
        self.failure = f"{what}: {type(error).__name__}{': ' + lines[0] if lines else ''}"

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        packet = func._overloadpacket
        if func.namespace in _COLLECTIVES:
            for tensor in tensors_in(args):
                self.collective_bytes += bytes_of([tensor])
                self.collective_dtype = tensor.dtype
            return
        if packet in _WHOLE:
            raise NotImplementedError("there is no formula for its operations")
        if packet in (_aten.embedding, *_BAGS):
            self.embeddings.add(args[0].data_ptr())
        if (flops := _flops(packet, args, kwargs, out)) is not None:
            self.flops[str(packet)] += flops
            self.flops_by_dtype[next(tensors_in(out)).dtype] += flops
            if packet is _aten.convolution and args[1].dim() == 4 and not args[6]:
                self.conv2d_flops += flops
        elif (copied := _copied(packet, args, out)) is not None:
            self.copied_bytes += copied
        elif not func.is_view:
            self.memory_bytes += _traffic(func, packet, args, kwargs, out)


def _flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
    """None: it is not bound by computing."""
    if packet in _RECURRENT:
        weights = (tensor for tensor in tensors_in(args[1:5] if "mkldnn" in str(packet) else args[1]) if tensor.dim() == 2)
        elements = args[0].numel() // args[0].shape[-1]
        return int(2 * _RECURRENT[packet] * elements * sum(weight.numel() for weight in weights))
    formula = flop_registry.get(_ALIKE.get(packet, packet))
    return None if formula is None else int(formula(*args, **kwargs, out_val=out))


def _copied(packet: Any, args: tuple[Any, ...], out: Any) -> int | None:
    """Bytes that went from host to device; None: it was no such copy."""
    if packet not in (_aten.copy_, _aten._to_copy):
        return None
    source = args[1] if packet is _aten.copy_ else args[0]
    return bytes_of([source]) if source.device.type == "cpu" and out.device.type != "cpu" else None


def _traffic(func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    if packet in _NO_TRAFFIC:
        return 0
    total = 0
    for number, argument in enumerate(func._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name)
        size = bytes_of(tensors_in(value))
        if number == 0:
            size = _touched(packet, args, out, size)
        written = argument.alias_info is not None and argument.alias_info.is_write
        read = not (number == 0 and packet in _OVERWRITTEN | _SHAPED)
        total += size * (written + read)
    returned = out if len(func._schema.returns) > 1 else (out,)
    return total + sum(
        bytes_of(tensors_in(value))
        for each, value in zip(func._schema.returns, returned, strict=False)
        if each.alias_info is None
    )


def _touched(packet: Any, args: tuple[Any, ...], out: Any, size: int) -> int:
    """Bytes of the first argument, all of which are `size`, that an operation touches."""
    if packet in _GATHERS:
        return min(size, bytes_of(tensors_in(out)))
    if packet in _BAGS:
        return min(size, int(args[1].numel() * args[0].shape[1] * args[0].element_size()))
    if packet in _SCATTERS:
        values = [tensor for tensor in tensors_in(args[1:]) if tensor.dtype == args[0].dtype]
        return min(size, bytes_of(values))
    return size


class StepCounts:
    """What one step computes and moves, and of which size its batches are; from when it is made until end().

    failure: why operations, asked for, were not counted (`operations` is None then); "": they were.
    """

    def __init__(self, count_operations: bool) -> None:
        self.operations = OperationCounter() if count_operations else None
        self.loaded_bytes = self.loaded_samples = self.called_samples = 0
        self.wire: list[tuple[int, str]] = []  # of each bucket, bytes and dtype that travelled
        self.seconds = 0.0
        self._bucket_bytes = 0  # of collective_bytes; of a sparse gradient more than travels
        self.failure = ""
        self._began_s = time.perf_counter()
        self._hook: Any = None
        if self.operations is not None:  # a compiled module would be compiled once more for a hook
            self._hook = register_module_forward_pre_hook(self._called)
            self.operations.__enter__()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._began_s
        if self.operations is not None:
            self._hook.remove()
            self.operations.__exit__(None, None, None)
            if self.operations.failure:
                self.failure, self.operations = self.operations.failure, None

    @property
    def collective_bytes(self) -> int:
        """So far."""
        return self.operations.collective_bytes if self.operations is not None else 0

    @property
    def other_collective_bytes(self) -> int:
        """Not of buckets."""
        return max(0, self.collective_bytes - self._bucket_bytes)

    def loaded(self, batch: Any) -> None:
        """A DataLoader has handed this over."""
        self.loaded_bytes += bytes_of(tensors_in(batch))
        self.loaded_samples += _samples(batch)

    def sent(self, size_bytes: int, dtype: str, bytes_before: int) -> None:
        """A bucket's sum has begun; `bytes_before`: collective_bytes until then.

        A hook may send less than the gradients. What it sends later than at once is not seen, nor what a backend written in
        Python sends.
        """
        sent_bytes = self.collective_bytes - bytes_before
        self._bucket_bytes += sent_bytes or size_bytes
        if self.operations is not None and 0 < sent_bytes < size_bytes:
            size_bytes, dtype = sent_bytes, str(self.operations.collective_dtype).removeprefix("torch.")
        self.wire.append((size_bytes, dtype))

    def _called(self, module: torch.nn.Module, inputs: Any) -> None:
        if self.called_samples or self.operations is None:  # the first module that is called is the outermost
            return
        try:
            self.called_samples = _samples(inputs)
        except Exception as error:
            self.operations.failed(f"inputs of {type(module).__name__}", error)


def _samples(batch: Any) -> int:
    """Size of the first dimension of the first tensor that has one."""
    return next((tensor.size(0) for tensor in tensors_in(batch) if tensor.dim()), 0)
