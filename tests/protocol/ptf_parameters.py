"""What PTF is told about a switch: --test-params and --interface, checked. Needs no PTF."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tests.protocol.external_switch import ExternalSwitch
from tests.protocol.targets import PORTS

DEFAULTS: dict[str, Any] = {
    "address": None,
    "device_id": 1,
    "layout": "lanes",
    "elements": 256,
    "p4info": "",
    "device_config": "",
    "shortest_frame": 60,
    "ports": PORTS,
}


def of_parameters(given: dict[str, Any] | None) -> ExternalSwitch:
    """The switch that --test-params describe. Raises ValueError naming what is wrong."""
    values = {**DEFAULTS, **(given or {})}
    unknown = sorted(set(values) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"--test-params: {unknown[0]} is not known; there are {', '.join(DEFAULTS)}")
    if not values["address"]:
        raise ValueError("--test-params: give the switch's P4Runtime address, such as address='192.0.2.1:9559'")
    if bool(values["p4info"]) != bool(values["device_config"]):
        raise ValueError("--test-params: a program of your own needs both p4info='FILE' and device_config='FILE'")
    numbers = tuple(map(int, values["ports"]))
    if len(numbers) != len(PORTS) or len(set(numbers)) != len(PORTS):
        raise ValueError(f"--test-params: ports={numbers} must be {len(PORTS)} different numbers, such as {PORTS}")
    return ExternalSwitch(
        address=str(values["address"]),
        device_id=int(values["device_id"]),
        layout=values["layout"],
        elements=int(values["elements"]),
        p4info=values["p4info"],
        device_config=values["device_config"],
        numbers=dict(zip(PORTS, numbers, strict=True)),
        shortest_frame_bytes=int(values["shortest_frame"]),
    )


def check_interfaces(ports: Container[tuple[int, int]]) -> None:
    """Raise ValueError unless PTF's (device, port) pairs include those of the cases."""
    missing = [port for port in PORTS if (0, port) not in ports]
    if missing:
        needed = " ".join(f"--interface 0-{port}@NAME" for port in missing)
        raise ValueError(f"ports {missing} have no interface; add {needed}")
