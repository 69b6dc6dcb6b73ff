"""Lets nobody reach the job service without a token, and says what it means where none is asked for."""

import logging
from collections.abc import Callable
from typing import Any

import grpc

from switchsum.controller.options import ControllerOptions
from switchsum.controller.tenants import Tenants
from switchsum.protos.tls import leaves_host

logger = logging.getLogger(__name__)


class Gate(grpc.ServerInterceptor):
    """Refuses every call, whatever its method, that carries no token of a tenant."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        found = self._tenants.of(details.invocation_metadata)
        return _refusing(found, details.method) if isinstance(found, str) else continuation(details)


def _refusing(sentence: str, method: str) -> grpc.RpcMethodHandler:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        logger.info("refused %s of %s: no token of a tenant", method.rpartition("/")[2], context.peer())
        context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence)
        return b""

    return grpc.unary_unary_rpc_method_handler(refuse)  # good for calls that are answered by streams, too


def exposure(options: ControllerOptions) -> str | None:
    """What anybody can do who can reach the job service from another host; None if that is nothing."""
    exposed = [address for address in options.listen if leaves_host(address)]
    if not exposed:
        return None
    where = f"the job service listens at {', '.join(exposed)}"
    asks = options.tls is not None and options.tls.clients is not None
    if options.tokens is None and not asks:
        return (
            f"{where} and asks nobody who they are: whoever can reach it can join jobs, take every slot, and see, shrink "
            "and spoil the jobs of others; give it --tokens and --tls-cert, or keep it on loopback"
        )
    if options.tls is None:
        return f"{where} without TLS: whoever can listen on the way can read the tokens and use them; give it --tls-cert"
    return None
