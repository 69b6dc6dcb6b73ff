"""A switch that somebody else has started: where it answers P4Runtime, what it is to run, what it calls the cases' ports.

Both pytest (--target) and PTF (--test-params, ptf_parameters.py) are told about one.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from switchsum.controller import pipeline, programming
from switchsum.controller.p4names import P4Names
from switchsum.controller.pipeline import Build
from tests.protocol.targets import PORTS

PORTS_EXAMPLE = ",".join(f"{port}@eth{port}" for port in PORTS)


@dataclass(frozen=True)
class ExternalSwitch:
    """`numbers`: the switch's for PORTS; `p4info`, `device_config`: of another compiler, both "" for our compiled program."""

    address: str
    device_id: int
    layout: str
    elements: int
    p4info: str
    device_config: str
    numbers: dict[int, int]
    shortest_frame_bytes: int

    def build(self) -> Build:
        """Our compiled program, or that of another compiler from the same sources."""
        if not self.p4info:
            return pipeline.load(self.layout, self.elements)
        info = Path(self.p4info)
        p4info = text_format.Parse(info.read_text(), p4info_pb2.P4Info(), allow_unknown_field=True)
        names = P4Names(p4info)
        programming.check_program(names)
        return Build(info.name, self.elements, p4info, Path(self.device_config).read_bytes(), 0, names)


def of_options(options: dict[str, Any]) -> tuple[ExternalSwitch, dict[int, str]]:
    """What pytest was told (tests/conftest.py has the options): the switch, and the interface wired to each of PORTS.

    Raises ValueError naming the option and what to give.
    """
    ports = [text.partition("@") for text in options["ports"].split(",")]
    good = len(ports) == len(PORTS) and all(number.isdecimal() and interface for number, _, interface in ports)
    if not good or len({number for number, _, _ in ports}) < len(PORTS) or len({name for _, _, name in ports}) < len(PORTS):
        raise ValueError(
            f"--ports {options['ports']!r}: give {len(PORTS)} ports of the switch, each with the interface wired to it, "
            f"such as {PORTS_EXAMPLE}"
        )
    here = {name for _, name in socket.if_nameindex()}
    for _, _, name in ports:
        if name not in here:
            raise ValueError(f"--ports: there is no interface {name} here; `ip link` lists those there are")
    if bool(options["p4info"]) != bool(options["device_config"]):
        raise ValueError("--p4info and --device-config: a program of your own needs both files")
    if os.geteuid() != 0:
        raise ValueError("--target: only root may send frames on interfaces (try sudo)")
    switch = ExternalSwitch(
        address=options["target"],
        device_id=options["device_id"],
        layout=options["layout"],
        elements=options["elements"],
        p4info=options["p4info"],
        device_config=options["device_config"],
        numbers={port: int(number) for port, (number, _, _) in zip(PORTS, ports, strict=True)},
        shortest_frame_bytes=options["shortest_frame"],
    )
    return switch, {port: name for port, (_, _, name) in zip(PORTS, ports, strict=True)}
