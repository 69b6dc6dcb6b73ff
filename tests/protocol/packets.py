"""Our header as a scapy layer, written from the field list that both sides are generated from."""

from __future__ import annotations

from typing import Any

from scapy.config import conf
from scapy.fields import ByteField, FieldListField, IntField, ShortField, SignedIntField, XByteField, XIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from switchsum.p4src.layout import HEADER_DTYPE, SERVICE_PORT, WIRE_VERSION, Exponent, PacketType

conf.max_list_count = 1024  # scapy refuses longer lists by default; we carry up to 256 values

_FIELDS = {1: ByteField, 2: ShortField, 4: IntField}


def _field(name: str) -> Any:
    if name == "version":
        return XByteField(name, WIRE_VERSION)
    if name == "type":
        return ByteField("kind", PacketType.CONTRIBUTION)
    if name == "tag":
        return XIntField(name, 0)
    if name == "exponent":
        return ShortField(name, Exponent.NONE)
    return _FIELDS[HEADER_DTYPE[name].itemsize](name, 0)


class SwitchSum(Packet):
    """Header and values (signed 32-bit words as they travel; lanes carry value + B)."""

    name = "SwitchSum"
    fields_desc = [  # noqa: RUF012
        *(_field(name) for name in HEADER_DTYPE.names or ()),
        FieldListField("values", [], SignedIntField("value", 0), length_from=lambda packet: 1 << 30),
    ]

    def extract_padding(self, text: bytes) -> tuple[bytes, None]:
        return text, None


bind_layers(UDP, SwitchSum, dport=SERVICE_PORT)
bind_layers(UDP, SwitchSum, sport=SERVICE_PORT)

__all__ = ["IP", "UDP", "Ether", "SwitchSum"]
