"""The error of one entity in a P4Runtime Write or Read batch."""

from google.rpc import code_pb2


class EntityError(ValueError):
    """`code` is a google.rpc.Code number; the message names the object, what is wrong and what to do."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> EntityError:
    return EntityError(code_pb2.INVALID_ARGUMENT, message)


def denied(message: str) -> EntityError:
    return EntityError(code_pb2.PERMISSION_DENIED, message)


def unimplemented(message: str) -> EntityError:
    return EntityError(code_pb2.UNIMPLEMENTED, message)
