"""What PTF is told about a switch: --test-params and --interface, checked; and its port numbers. Needs no PTF."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from switchsum.controller import pipeline, programming
from switchsum.controller.p4names import Group, Item, P4Names
from switchsum.controller.pipeline import Build
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


class Parameters:
    """--test-params, checked. Raises ValueError naming what is wrong."""

    def __init__(self, given: dict[str, Any] | None) -> None:
        values = {**DEFAULTS, **(given or {})}
        unknown = sorted(set(values) - set(DEFAULTS))
        if unknown:
            raise ValueError(f"--test-params: {unknown[0]} is not known; there are {', '.join(DEFAULTS)}")
        if not values["address"]:
            raise ValueError("--test-params: give the switch's P4Runtime address, such as address='192.0.2.1:9559'")
        if bool(values["p4info"]) != bool(values["device_config"]):
            raise ValueError("--test-params: a program of your own needs both p4info='FILE' and device_config='FILE'")
        self.address = str(values["address"])
        self.device_id = int(values["device_id"])
        self.shortest_frame_bytes = int(values["shortest_frame"])
        numbers = tuple(map(int, values["ports"]))
        if len(numbers) != len(PORTS) or len(set(numbers)) != len(PORTS):
            raise ValueError(f"--test-params: ports={numbers} must be {len(PORTS)} different numbers, such as {PORTS}")
        self.port_numbers = dict(zip(PORTS, numbers, strict=True))
        self._files = values["p4info"], values["device_config"]
        self._layout, self._elements = values["layout"], int(values["elements"])

    def build(self) -> Build:
        """Our compiled program, or that of another compiler from the same sources."""
        if not self._files[0]:
            return pipeline.load(self._layout, self._elements)
        info, config = map(Path, self._files)
        p4info = text_format.Parse(info.read_text(), p4info_pb2.P4Info(), allow_unknown_field=True)
        names = P4Names(p4info)
        programming.check_program(names)
        return Build(info.name, self._elements, p4info, config.read_bytes(), 0, names)


def renumbered(item: Item, number: dict[int, int]) -> Item:
    """An entry or a group of the cases' ports, for a switch that calls port p number[p]."""
    if isinstance(item, Group):
        return Group(item.number, frozenset((number[port], instance) for port, instance in item.replicas))
    if item.table == programming.WORKERS:
        job, epoch, port, *sender = item.key
        return replace(item, key=(job, epoch, number[port], *sender))
    if item.table in (programming.LOSS_IN, programming.LOSS_OUT):
        return replace(item, key=(number[item.key[0]],))
    if item.action == programming.FORWARD:
        return replace(item, params=(number[item.params[0]],))
    return item


def check_interfaces(ports: Container[tuple[int, int]]) -> None:
    """Raise ValueError unless PTF's (device, port) pairs include those of the cases."""
    missing = [port for port in PORTS if (0, port) not in ports]
    if missing:
        needed = " ".join(f"--interface 0-{port}@NAME" for port in missing)
        raise ValueError(f"ports {missing} have no interface; add {needed}")
