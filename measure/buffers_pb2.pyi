# ruff: noqa
# fmt: off
# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BufferList(_message.Message):
    __slots__ = ["buffers", "mark", "method", "worker"]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[bytes]
    mark: int
    method: int
    worker: int
    def __init__(self, method: _Optional[int] = ..., mark: _Optional[int] = ..., worker: _Optional[int] = ..., buffers: _Optional[_Iterable[bytes]] = ...) -> None: ...
# SHA-256 of buffers.proto: ac8fe0693e051810a9106754d13876aec17791dbb3e71a6958a23f7e6224ebce
