# ruff: noqa
# fmt: off
# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BufferList(_message.Message):
    __slots__ = ["buffers", "check", "method", "worker"]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    buffers: _containers.RepeatedScalarFieldContainer[bytes]
    check: bool
    method: int
    worker: int
    def __init__(self, method: _Optional[int] = ..., check: bool = ..., worker: _Optional[int] = ..., buffers: _Optional[_Iterable[bytes]] = ...) -> None: ...
# SHA-256 of buffers.proto: f8277ec04ea09b79825e45407fbbb95e092caa80be69309550b1e67de89660df
