"""Our header as a scapy layer, written from layout.py's field list: to build packets and to read captures.

    from scapy.utils import rdpcap
    from switchsum.p4src.scapy_layer import SwitchSum

    for packet in rdpcap("w0.pcap"):
        if SwitchSum in packet:
            print(packet[SwitchSum].summary())

Importing this binds the layer to SERVICE_PORT. No setting of scapy changes: its limit on the length of lists, by default too
low for our values, is raised for that field alone.

Raises nothing of its own: a payload that is too short for the header, or of another wire version, is `Raw`, as on any port
that scapy does not know; bytes after the last whole value are the layer's payload, so that what is read can be built again.
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldListField,
    FlagsField,
    IntField,
    ShortEnumField,
    ShortField,
    XByteField,
    XIntField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_top_down

from switchsum.p4src.layout import HEADER_BYTES, HEADER_DTYPE, SERVICE_PORT, WIRE_VERSION, Exponent, Flag, PacketType

_BY_BYTES = {1: ByteField, 2: ShortField, 4: IntField}
_MOST_VALUES = 1 << 14  # more than the longest datagram holds
# Powers of two from a double's smallest to beyond its largest: what lies outside is no block of floats, so not shown as one.
_FLOAT_EXPONENTS = range(-1074, 1025)


class ExponentField(ShortEnumField):
    """A code of the exponent field: a special code by its name, another as the power of two that it stands for."""

    def __init__(self, name: str, default: int) -> None:
        super().__init__(name, default, {code.value: code.name for code in Exponent if code is not Exponent.BIAS})

    def i2repr_one(self, packet: Packet | None, code: Any) -> str:
        exponent = code - Exponent.BIAS if isinstance(code, int) else None
        if exponent in _FLOAT_EXPONENTS:
            return f"BIAS{exponent:+d}"
        return str(super().i2repr_one(packet, code))


def _field(name: str) -> Any:
    """The scapy field for a field of the header. `type` is called `kind`, as in the P4 program, where that word is reserved."""
    size = HEADER_DTYPE[name].itemsize
    if name == "version":
        return XByteField(name, WIRE_VERSION)
    if name == "type":
        return ByteEnumField("kind", PacketType.CONTRIBUTION, {kind.value: kind.name for kind in PacketType})
    if name == "exponent":
        return ExponentField(name, Exponent.NONE)
    if name == "tag":
        return XIntField(name, 0)
    if name == "flags":
        names = {flag.value: flag.name for flag in Flag}
        return FlagsField(name, 0, 8 * size, [names.get(1 << i, f"bit_{i}") for i in range(8 * size)])
    if name == "reserved":
        return XShortField(name, 0)
    return _BY_BYTES[size](name, 0)


def _bytes_of_values(packet: Packet) -> int:
    return (len(packet.original) - HEADER_BYTES) // 4 * 4


class SwitchSum(Packet):
    """Header and `values`, a list of unsigned 32-bit lanes as they travel (docs/numerics.md tells what a lane means)."""

    name = "SwitchSum"
    fields_desc = [  # noqa: RUF012
        *(_field(name) for name in HEADER_DTYPE.names or ()),
        FieldListField("values", [], IntField("value", 0), length_from=_bytes_of_values, max_count=_MOST_VALUES),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes = b"", *_: Any, **__: Any) -> type[Packet]:
        """The class that reads these bytes: without a whole header of our version its fields would be anything."""
        foreign = _pkt and (len(_pkt) < HEADER_BYTES or _pkt[0] != WIRE_VERSION)
        return Raw if foreign else cls

    def mysummary(self) -> str:
        """One line, the same as Wireshark's info column begins with."""
        return str(
            self.sprintf(
                "%SwitchSum.kind% job %SwitchSum.job% epoch %SwitchSum.epoch%"
                " worker %SwitchSum.worker% slot %SwitchSum.slot% phase %SwitchSum.phase%"
            )
        )


def decode_port(port: int) -> None:
    """Read UDP datagrams from and to `port` as ours too: an embedded switch has one UDP port on loopback for each worker."""
    bind_bottom_up(UDP, SwitchSum, dport=port)
    bind_bottom_up(UDP, SwitchSum, sport=port)


decode_port(SERVICE_PORT)
bind_top_down(UDP, SwitchSum, dport=SERVICE_PORT)  # what is built without ports goes to the switch
