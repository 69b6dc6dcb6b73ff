"""What a host shows to the controller, and demands of it."""

from dataclasses import dataclass, field

import grpc

from switchsum.host_agent.errors import NotTrusted
from switchsum.protos.tls import ClientTls, Names, diagnose, leaves_host

NAMES = Names("SWITCHSUM_CA", "SWITCHSUM_CERT", "SWITCHSUM_KEY")
_PROBE_S = 2.0


@dataclass(frozen=True)
class Credentials:
    """`tls`: None for a connection in the clear. `token`: "" for none. `insecure`: send it in the clear to other hosts, too."""

    tls: ClientTls | None = None
    token: str = field(default="", repr=False)
    insecure: bool = False

    def channel(self, address: str, options: list[tuple[str, int]]) -> grpc.Channel:
        """A channel to the controller at `address`. Raises NotTrusted for a token that would leave this host in the clear."""
        if self.tls is not None:
            return grpc.secure_channel(address, self.tls.credentials(), options=options)
        if self.token and not self.insecure and leaves_host(address):
            raise NotTrusted(
                f"the token is not sent to the controller at {address}: without TLS everybody on the way could read and use "
                "it; set SWITCHSUM_CA to the authority of the controller's certificate (or SWITCHSUM_INSECURE=1 to send it "
                "anyway)"
            )
        return grpc.insecure_channel(address, options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def fault(self, address: str) -> str | None:
        """Why the controller at `address` and this host do not come together, if TLS is the reason."""
        return diagnose(address, self.tls, f"the controller at {address}", NAMES, _PROBE_S)


IN_THE_CLEAR = Credentials()
