"""A Tofino's front panel: how fast each port is, what corrects its errors, whether it negotiates; and how a switch is told.

P4Runtime has no words for this. Stratum takes a ChassisConfig (stratum/stratum: stratum/hal/lib/common/common.proto), at its
start or by gNMI. bf_switchd takes commands of its shell (p4lang/open-p4studio: pkgsrc/bf-drivers/src/bf_pm/bf_pm_ucli.c).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from switchsum.controller.yaml_fields import Place

SPEEDS = (1, 10, 25, 40, 50, 100, 200, 400)  # Gbit/s
_PANEL = re.compile(r"([1-9]\d?)/([0-7])")


class Chip(Enum):
    """The value is the compiler's name, and that of a fabric's kind."""

    TOFINO = "tofino"
    TOFINO2 = "tofino2"


class Server(Enum):
    """Who answers P4Runtime on a Tofino: Stratum, or open-p4studio's driver."""

    STRATUM = "stratum"
    BF_SWITCHD = "bf_switchd"


class Fec(Enum):
    """Forward error correction: none, fire code (clause 74 of IEEE 802.3), Reed-Solomon (clauses 91, 108, 134)."""

    NONE = "none"
    FIRE_CODE = "fc"
    REED_SOLOMON = "rs"


class Autonegotiation(Enum):
    """`auto`: as the driver chooses for the kind of cable. The order is that of the driver's numbers."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class Link:
    """A port of the front panel: its number, from 1, and the first of its lanes, from 0. `speed_gbps` in Gbit/s."""

    panel: int
    lane: int
    speed_gbps: int
    fec: Fec
    autonegotiation: Autonegotiation

    @property
    def name(self) -> str:
        """As it is written on the panel and in the driver, such as "1/0"."""
        return f"{self.panel}/{self.lane}"

    def as_fields(self) -> dict[str, str]:
        """What read_link() reads."""
        return {
            "panel": self.name,
            "speed": f"{self.speed_gbps}G",
            "fec": self.fec.value,
            "autonegotiation": self.autonegotiation.value,
        }


def read_link(place: Place) -> Link:
    """{panel: 1/0, speed: 100G, fec: rs, autonegotiation: off}. Fails with `place`'s error."""
    fields = place.fields({"panel", "speed", "fec", "autonegotiation"}, required={"panel", "speed", "fec", "autonegotiation"})
    panel, lane = fields["panel"].convert(_panel, "a port of the front panel, such as 1/0 (port 1, from its lane 0)")
    speeds = [f"{speed}G" for speed in SPEEDS]
    return Link(
        panel,
        lane,
        fields["speed"].convert(lambda text: SPEEDS[speeds.index(text)], f"a speed; there are {', '.join(speeds)}"),
        fields["fec"].convert(Fec, f"an error correction; there are {_values(Fec)}"),
        fields["autonegotiation"].convert(Autonegotiation, f"a way to negotiate; there are {_values(Autonegotiation)}"),
    )


def check_server(links: Mapping[Place, Link], server: Server) -> None:
    """Fail at the first link that cannot be told to this server."""
    for place, link in links.items():
        if server is Server.STRATUM and link.speed_gbps > _STRATUM_FASTEST:
            place.fail(f"Stratum brings up ports to {_STRATUM_FASTEST}G; for {link.speed_gbps}G use bf_switchd")
        if server is Server.STRATUM and link.fec not in (Fec.NONE, _stratum_fec(link.speed_gbps)):
            only = _stratum_fec(link.speed_gbps)
            ways = "fec: none" if only is None else f"fec: none or {only.value}"
            place.fail(f"Stratum cannot do fec: {link.fec.value} at {link.speed_gbps}G; write {ways}, or use bf_switchd")


def chassis_config(links: Mapping[int, Link], chip: Chip) -> str:
    """Stratum's ChassisConfig as protobuf text: one node, and every link up. Ids as Stratum's README.run.md gives them."""
    split = {link.panel for link in links.values() if link.lane}
    split |= {link.panel for link in links.values() if sum(other.panel == link.panel for other in links.values()) > 1}
    lines = [
        'description: "SwitchSum, switchsum tofino-ports"',
        f'chassis {{ platform: PLT_GENERIC_BAREFOOT_{chip.name} name: "{chip.value}" }}',
        "nodes { id: 1 slot: 1 index: 1 }",
    ]
    for _, link in sorted(links.items()):
        channel = link.lane + 1 if link.panel in split else 0
        number = link.panel * 100 + channel if channel else link.panel
        where = f"slot: 1 port: {link.panel}" + (f" channel: {channel}" if channel else "")
        fec = "FEC_MODE_OFF" if link.fec is Fec.NONE else "FEC_MODE_ON"
        negotiates = _TRI_STATE[link.autonegotiation]
        lines += [
            "singleton_ports {",
            f'  id: {number} name: "{link.name}" {where} speed_bps: {link.speed_gbps * 10**9} node: 1',
            f"  config_params {{ admin_state: ADMIN_STATE_ENABLED autoneg: {negotiates} fec_mode: {fec} }}",
            "}",
        ]
    return "\n".join(lines) + "\n"


def shell_commands(links: Mapping[int, Link]) -> str:
    """What bf_switchd's shell is to run: adds the ports, brings them up, and shows them with the numbers that P4 knows."""
    lines = ["ucli", "pm"]
    numbers = {way: number for number, way in enumerate(Autonegotiation)}
    for _, link in sorted(links.items()):
        lines += [
            f"port-add {link.name} {link.speed_gbps}G {link.fec.value.upper()}",
            f"an-set {link.name} {numbers[link.autonegotiation]}",
            f"port-enb {link.name}",
        ]
    return "\n".join([*lines, "show", "exit", "exit"]) + "\n"


# stratum/hal/lib/barefoot/bf_sde_wrapper.cc: PortSpeedHalToBf knows no faster port, FecModeHalToBf guesses from the speed.
_STRATUM_FASTEST = 100
_TRI_STATE = {
    Autonegotiation.AUTO: "TRI_STATE_UNKNOWN",
    Autonegotiation.ON: "TRI_STATE_TRUE",
    Autonegotiation.OFF: "TRI_STATE_FALSE",
}


def _stratum_fec(speed_gbps: int) -> Fec | None:
    return {1: None, 10: Fec.FIRE_CODE, 40: Fec.FIRE_CODE}.get(speed_gbps, Fec.REED_SOLOMON)


def _panel(text: str) -> tuple[int, int]:
    found = _PANEL.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1]), int(found[2])


def _values(kind: type[Enum]) -> str:
    return ", ".join(member.value for member in kind)
