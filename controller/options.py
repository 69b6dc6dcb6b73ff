"""What a controller is told at its start."""

from dataclasses import dataclass
from pathlib import Path

from switchsum.p4src.layout import DEFAULT_ELEMENTS, SLOTS
from switchsum.protos.tls import ClientTls, ServerTls

DEFAULT_LISTEN = "127.0.0.1:50099"
DEFAULT_SWITCH = "127.0.0.1:9559"  # the port that IANA assigned to P4Runtime
# Twice the bandwidth-delay product of a 1 Gbit/s link with 2 ms there and back is 470 packets of 256 elements.
DEFAULT_SLOTS = 512
DEFAULT_LEASE_S = 5.0
DEFAULT_IDLE_S = 600.0
DEFAULT_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ControllerOptions:
    """Raises ValueError for what cannot be, in a sentence that names the option.

    `switch`, `listen`: "HOST:PORT" or "unix:PATH" of the switch's P4Runtime server and of the job service, which may listen at
    several (port 0: any free one). `election_id`: the highest at a switch is in charge. `layout`: "lanes" (softswitch) or
    "wide" (BMv2). `loss_in`, `loss_out`: share of packets the switch drops on purpose at every port, in [0, 1). `slots`: what
    a job gets that asks for none. `idle_s`: a job that summed nothing for so long ends when somebody else needs its slots.
    `state`: the file in which epochs and running jobs outlive the controller; None: they do not. `program`: the folder that
    `make p4-tna` wrote, for a fabric with a Tofino. `tls`: of the job service, `switch_tls`: towards the switch; None for
    connections in the clear. `tokens`: the file of tenants (controller/tenants.py); None: everybody may do everything.
    """

    switch: str = DEFAULT_SWITCH
    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    device_id: int = 1
    election_id: int = 1
    elements: int = DEFAULT_ELEMENTS
    layout: str = "lanes"
    loss_in: float = 0.0
    loss_out: float = 0.0
    slots: int = DEFAULT_SLOTS
    lease_s: float = DEFAULT_LEASE_S
    idle_s: float = DEFAULT_IDLE_S
    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    state: Path | None = None
    program: Path | None = None
    tls: ServerTls | None = None
    switch_tls: ClientTls | None = None
    tokens: Path | None = None

    def __post_init__(self) -> None:
        _check_address("switch", self.switch, lowest_port=1)
        if not self.listen:
            raise ValueError("listen names no address: workers could not reach the controller")
        for address in self.listen:
            _check_address("listen", address, lowest_port=0)
        for name, value, low, high, unit in (
            ("device_id", self.device_id, 0, 2**64 - 1, ""),  # 0: what open-p4studio calls its first
            ("election_id", self.election_id, 1, 2**128 - 1, ""),
            ("slots", self.slots, 1, SLOTS, ""),
            ("lease", self.lease_s, 0.1, 3600, " seconds"),
            ("idle", self.idle_s, 0.1, 7 * 86400, " seconds"),
            ("connect_timeout", self.connect_timeout_s, 0.1, 3600, " seconds"),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} {value} is out of range: {low} to {high}{unit}")


def _check_address(name: str, text: str, lowest_port: int) -> None:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") and len(text) > len("unix:"):
        return
    if not host or not port.isdecimal() or not lowest_port <= int(port) <= 65535:
        raise ValueError(f"{name} {text!r} is not an address: write HOST:PORT, such as 127.0.0.1:50099")
