"""What is compared, behind one interface: sums by torch.distributed over some backend, by parameter servers (push_pull), and
datagrams without a protocol."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from switchsum.host_agent import quantizer
from switchsum.measure.counters import Counters, of_tcp
from switchsum.measure.datagrams import DatagramRing
from switchsum.measure.payload import Payload

if TYPE_CHECKING:
    import torch

LANES_VARIABLE = "SWITCHSUM_LANES"


@dataclass(frozen=True)
class Description:
    """A transport by name. `backend`: torch.distributed's, "" for none. `lanes`: bits of a lane, of the switch's alone."""

    name: str
    backend: str
    lanes: int = 32
    needs_servers: bool = False

    @property
    def needs_switch(self) -> bool:
        return self.backend == "switchsum"

    @property
    def needs_devices(self) -> bool:
        return self.backend == "nccl"

    @property
    def compiled(self) -> bool:
        """Whether it uses the packet engine."""
        return self.needs_switch or self.name == "limit"


DESCRIPTIONS = {
    each.name: each
    for each in (
        Description("switchsum", "switchsum"),
        Description("switchsum16", "switchsum", 16),
        Description("switchsum8", "switchsum", 8),
        Description("gloo", "gloo"),
        Description("nccl", "nccl"),
        Description("grpc", "", needs_servers=True),
        Description("tcp", "", needs_servers=True),
        Description("limit", ""),
    )
}


@dataclass(frozen=True)
class StageProfile:
    """Seconds of one rank's engine.STAGES, and the packets that it received meanwhile."""

    seconds: dict[str, float]
    packets: int


class Transport(ABC):
    """One rank's end. `untimed_ns`: of the last run, what does not count (waiting for what was lost)."""

    untimed_ns = 0

    def __init__(self, description: Description) -> None:
        self.description = description

    def ready(self, inputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Restore the tensors before an operation."""
        for tensor, values in zip(tensors, inputs, strict=True):
            tensor.copy_(values)

    @abstractmethod
    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        """One operation, in place: all tensors under way at once."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> None:  # noqa: B027  what only devices need
        """Bring the last operation's results into `tensors`, if they are elsewhere."""

    @abstractmethod
    def wrong(self, subject: Payload, result: torch.Tensor) -> int | None:
        """How many elements of `result` are not as they must be; None where nothing is summed."""

    compares_ranks = False  # whether the check is only complete once the ranks' results have been compared, too

    @abstractmethod
    def counters(self) -> Counters: ...

    @abstractmethod
    def close(self) -> None: ...

    def start_profile(self) -> bool:
        """Begin to count where the time goes (engine.STAGES); returns whether this transport can tell."""
        return False

    def end_profile(self) -> StageProfile | None:
        """What was counted since; None where the transport cannot tell."""
        return None


class Collective(Transport):
    """all_reduce of torch.distributed."""

    def __init__(self, description: Description, elements: int, redop: str, timeout: timedelta) -> None:
        """A new group over all ranks; all ranks make it at once. `elements`: of a packet, by which the switch's are checked."""
        import torch.distributed as dist

        super().__init__(description)
        self._dist = dist
        self._elements = elements
        before = os.environ.get(LANES_VARIABLE)
        if description.needs_switch:
            os.environ[LANES_VARIABLE] = str(description.lanes)
        try:
            self.group: Any = dist.new_group(backend=description.backend, timeout=timeout)
        finally:
            if before is None:
                os.environ.pop(LANES_VARIABLE, None)
            else:
                os.environ[LANES_VARIABLE] = before
        # Gloo has no average: whoever wants one divides.
        self._divides = redop == "avg" and description.backend == "gloo"
        average = redop == "avg" and not self._divides
        self._operation = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        self._ranks = dist.get_world_size()
        self._packets_before = 0

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) == 1:
            self._dist.all_reduce(tensors[0], op=self._operation, group=self.group)
        else:
            options: dict[str, Any] = {"op": self._operation, "group": self.group, "async_op": True}
            for work in [self._dist.all_reduce(each, **options) for each in tensors]:
                work.wait()
        if self._divides:
            for each in tensors:
                each.div_(self._ranks)

    @property
    def compares_ranks(self) -> bool:  # type: ignore[override]
        return not (self.description.needs_switch and self.description.lanes == 32)

    def wrong(self, subject: Payload, result: torch.Tensor) -> int:
        if subject.dtype == "int32":
            return subject.wrong_bits(result, None)
        if not self.description.needs_switch:
            return subject.wrong_beyond(result, None)
        if self.description.lanes == 32:
            return subject.wrong_bits(result, lambda inputs: quantizer.reference_sum(inputs, self._elements))
        return subject.wrong_beyond(
            result, lambda inputs: quantizer.error_bound(inputs, self._elements, self.description.lanes)
        )

    def counters(self) -> Counters:
        if self.description.needs_switch:
            found = self.group.statistics()
            return Counters(
                found.bytes_sent,
                found.bytes_received,
                found.retransmissions,
                found.retransmissions * 4 * self._elements,
                sent_packets=found.packets_sent,
                received_packets=found.packets_received,
            )
        return of_tcp()

    def close(self) -> None:
        self._dist.destroy_process_group(self.group)

    def start_profile(self) -> bool:
        if self.description.needs_switch:
            self._packets_before = self.group.statistics().packets_received
            self.group.start_profile()
        return self.description.needs_switch

    def end_profile(self) -> StageProfile | None:
        if not self.description.needs_switch:
            return None
        seconds = self.group.end_profile()
        return StageProfile(seconds, self.group.statistics().packets_received - self._packets_before)


class OnDevices(Collective):
    """Sums of tensors that are in the memory of CUDA devices, of which each rank has one (NCCL)."""

    def __init__(self, description: Description, elements: int, redop: str, timeout: timedelta) -> None:
        import torch

        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        super().__init__(description, elements, redop, timeout)
        self._there: list[torch.Tensor] = []

    def ready(self, inputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        import torch

        self._there = [values.cuda() for values in inputs]
        torch.cuda.synchronize()

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        import torch

        super().run(self._there)
        torch.cuda.synchronize()

    def fetch(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, result in zip(tensors, self._there, strict=True):
            tensor.copy_(result)


class Limit(Transport):
    """datagrams.DatagramRing. Nothing is summed."""

    def __init__(self, description: Description, elements: int, address: str) -> None:
        super().__init__(description)
        self.ring = DatagramRing(address, elements)

    def run(self, tensors: Sequence[torch.Tensor]) -> None:
        self.untimed_ns = self.ring.exchange(sum(self.ring.datagrams(tensor.numel()) for tensor in tensors))

    def wrong(self, subject: Payload, result: torch.Tensor) -> None:
        return None

    def counters(self) -> Counters:
        sent, received = self.ring.payload_bytes
        packets = {"sent_packets": self.ring.sent, "received_packets": self.ring.received}
        return Counters(sent, received, None, 0, self.ring.lost, **packets)

    def close(self) -> None:
        self.ring.close()
