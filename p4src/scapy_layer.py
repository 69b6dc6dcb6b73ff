"""Our header as a scapy layer, written from layout.py's field list: to build packets and to read captures.

    from scapy.utils import rdpcap
    from switchsum.p4src.scapy_layer import SwitchSum

    for packet in rdpcap("w0.pcap"):
        for layer in packet.iterpayloads():
            if isinstance(layer, SwitchSum):
                print(layer.mysummary())

There may be several in one datagram: where the kernel cuts datagrams up (UDP_SEGMENT) or joins them (UDP_GRO), captures at a
host hold the whole. Each is then the payload of the one before.

Importing this binds the layer to SERVICE_PORT. No setting of scapy changes: its limit on the length of lists, by default too
low for our values, is raised for that field alone.

Raises nothing of its own: a payload that is too short for the header, or of another wire version, is `Raw`, as on any port
that scapy does not know; bytes after the last whole value are the layer's payload, so that what is read can be built again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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

from switchsum.p4src.layout import (
    ELEMENT_CHOICES,
    HEADER_BYTES,
    HEADER_DTYPE,
    SERVICE_PORT,
    WIRE_VERSION,
    Exponent,
    Flag,
    PacketType,
)

_BY_BYTES = {1: ByteField, 2: ShortField, 4: IntField}
_TYPES = frozenset(map(int, PacketType))
_WITH_VALUES = frozenset({int(PacketType.CONTRIBUTION), int(PacketType.RESULT)})
_LENGTHS = [HEADER_BYTES + 4 * elements for elements in (0, *ELEMENT_CHOICES)]  # of whole packets, ascending
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


def _header(data: bytes) -> np.void:
    """The header as a record of HEADER_DTYPE; `data` holds at least HEADER_BYTES."""
    record: np.void = np.frombuffer(data, HEADER_DTYPE, 1)[0]
    return record


def _is_sound(data: bytes) -> bool:
    """Whether these are the bytes of one packet as a host or a switch of this version sends it."""
    if len(data) < HEADER_BYTES:
        return False
    header = _header(data)
    lengths = _LENGTHS[1:] if header["type"] in _WITH_VALUES else _LENGTHS[:1]
    known = header["version"] == WIRE_VERSION and header["type"] in _TYPES and header["reserved"] == 0
    return bool(known) and len(data) in lengths


def _joined_length(data: bytes) -> int | None:
    """The length in bytes of every packet but the last, if the kernel made one datagram of many; otherwise None.

    The last may be shorter; all are of one job and epoch, since they are of one pair of sockets.
    """
    for length in _LENGTHS:
        packets = [data[i : i + length] for i in range(0, len(data), length)]
        if len(packets) > 1 and all(map(_is_sound, packets)):
            jobs = {(int(header["job"]), int(header["epoch"])) for header in map(_header, packets)}
            if len(jobs) == 1:
                return length
    return None


def _bytes_of_values(packet: Packet) -> int:
    length = _joined_length(packet.original) or len(packet.original)
    return (length - HEADER_BYTES) // 4 * 4


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

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """SwitchSum for the next of several packets that the kernel joined; `Raw` for what else follows."""
        return SwitchSum if _is_sound(payload) or _joined_length(payload) else Raw

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
