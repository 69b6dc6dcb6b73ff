"""What a check is told about the host, and what it says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchsum.protos import job_pb2 as pb


class Role(Enum):
    """What a host is for."""

    WORKER = "worker"  # it trains
    CONTROLLER = "controller"  # it runs the controller, the embedded switch, or both
    RACK = "rack"  # it emulates racks


class Status(Enum):
    """How bad it is. NOTE: nothing to mend, but good to know."""

    FINE = "fine"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """`remedy`: the command, or the sentence, that mends it; empty where nothing is to be done."""

    subject: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Controller:
    """A controller that was asked. `reply` is None when it gave none, and `problem` and `remedy` say why, and what to do."""

    address: str
    reply: pb.InspectReply | None
    problem: str = ""
    remedy: str = ""
    took_s: float = 0.0
    clock_ahead_s: float | None = None  # of ours; None where it does not tell the time


@dataclass(frozen=True)
class Host:
    """What is to be examined.

    roles: what the host is for; asked: whether a person said so, or it was guessed from what is installed.
    controllers: those that are configured. interfaces: those towards the switch, where a person named them.
    """

    roles: frozenset[Role]
    asked: bool = False
    controllers: tuple[Controller, ...] = ()
    interfaces: tuple[str, ...] = ()

    @property
    def reply(self) -> pb.InspectReply | None:
        """Of the controller that is in charge; of a standby if none is."""
        replies = [controller.reply for controller in self.controllers if controller.reply is not None]
        return min(replies, key=lambda reply: reply.standby, default=None)

    @property
    def layout(self) -> str:
        """How the switch's program holds values: "lanes", "wide", or "" where nobody knows."""
        return self.reply.pipeline.rpartition(" ")[2] if self.reply is not None else ""

    @property
    def data_address(self) -> str:
        """What the user set; "" for the address that leads to the controller."""
        return os.environ.get("SWITCHSUM_DATA_ADDRESS", "")
