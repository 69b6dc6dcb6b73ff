"""What the cases are written with: a job of three workers, packets from them, and questions about what became of these."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switchsum.controller import programming
from switchsum.controller.jobs import Job
from switchsum.controller.p4names import Entry
from switchsum.controller.switch_session import DELETE, INSERT
from switchsum.p4src.layout import SERVICE_PORT, Flag, PacketType, RejectReason, Verdict
from switchsum.p4src.scapy_layer import SwitchSum
from tests.protocol.switch_under_test import SWITCH_IP, SWITCH_MAC
from tests.protocol.targets import JOB, PATIENCE_S, WORKERS, Outputs, Target, job_of

TAG = 0xABCD

Packets = list[tuple[int, Any]]  # (port, Ether)


@dataclass(frozen=True)
class Case:
    """One case, or one variant of it. `name` in words joined by underscores."""

    name: str
    run: Callable[[Bench], None]
    description: str


CASES: list[Case] = []


def case(variants: Mapping[str, tuple[Any, ...]] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a case; with `variants`, once for each, with these arguments behind the bench."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        description = (function.__doc__ or "").strip()
        if variants is None:
            CASES.append(Case(function.__name__, function, description))
        for label, arguments in (variants or {}).items():

            def run(bench: Bench, arguments: tuple[Any, ...] = arguments) -> None:
                function(bench, *arguments)

            CASES.append(Case(f"{function.__name__}__{label}", run, description))
        return function

    return register


def mac(value: int) -> str:
    return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))


def dotted(value: int) -> str:
    return str(ipaddress.IPv4Address(value))


class Bench:
    """A target with a job of its own. Context manager: takes the job out at the end.

    Workers and senders are named by rank. send() fills in fields that make a good packet; keywords change them.
    """

    def __init__(self, target: Target, number: int = JOB) -> None:
        """`number`: the job's, which the target must not have."""
        self.target = target
        self.elements = target.elements
        self.job: Job = target.new_job(WORKERS, number)
        self._last: tuple[list[tuple[int, bytes]], Outputs] = ([], [])
        target.install(self.job)
        self._rejected_before = self._rejections()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, AssertionError):
            error.add_note(self._account())
        self.target.remove(self.job)

    def _account(self) -> str:
        """For a case that failed: what PTF, unlike pytest, does not show."""
        sent, left = ([f"port {port}: {frame.hex()}" for port, frame in frames] for frames in self._last)
        verdicts = {worker: self.verdicts(worker) for worker in range(self.job.world_size)}
        return (
            f"last sent: {'; '.join(sent) or 'nothing'}\nwhat left then: {'; '.join(left) or 'nothing'}\n"
            f"verdicts by worker: {verdicts}\nrejections: {self.rejections()}"
        )

    # --- sending ---------------------------------------------------------------------------------------------------

    def values(self, worker: int) -> list[int]:
        """What a worker sends unless told otherwise."""
        return [1000 * (worker + 1) + i for i in range(self.elements)]

    def sums(self, workers: list[int]) -> list[int]:
        """The sum of what these workers send."""
        return [sum(column) for column in zip([0] * self.elements, *map(self.values, workers), strict=True)]

    def frame(self, sender: int, /, *, raw: bytes | None = None, ip_checksum: int | None = None, **fields: Any) -> bytes:
        """A worker's packet as a frame. `raw`: this datagram instead; `ip_checksum`: a wrong one."""
        host = WORKERS[sender]
        defaults: dict[str, Any] = {"job": self.job.number, "epoch": self.job.epoch, "worker": sender, "slot": 1, "phase": 1}
        defaults |= {"tag": TAG, "exponent": 10 + sender}
        if fields.get("kind", PacketType.CONTRIBUTION) == PacketType.CONTRIBUTION:
            defaults["values"] = self.values(sender)
        packet = SwitchSum(**{**defaults, **fields}) if raw is None else raw
        ip = IP(src=dotted(host.ip), dst=dotted(SWITCH_IP))
        if ip_checksum is not None:
            ip.chksum = ip_checksum
        udp = UDP(sport=host.udp_port, dport=SERVICE_PORT)
        return bytes(Ether(dst=mac(SWITCH_MAC), src=mac(host.mac)) / ip / udp / packet)

    def send(self, sender: int, /, *, port: int | None = None, **fields: Any) -> Packets:
        """A worker's packet into its port, or another: what left, sorted by port. Further keywords: of frame()."""
        frame = self.frame(sender, **fields)
        outputs = self.raw((WORKERS[sender].port if port is None else port, frame))
        return [(out, Ether(data)) for out, data in sorted(outputs)]

    def fill(self, workers: list[int], **fields: Any) -> Packets:
        """The workers' packets one after the other: what left because of the last, nothing having left before."""
        for worker in workers[:-1]:
            assert self.send(worker, **fields) == []
        return self.send(workers[-1], **fields)

    def raw(self, *frames: tuple[int, bytes]) -> Outputs:
        """(port, frame) pairs in one burst: what left."""
        self._last = list(frames), []
        outputs = self.target.exchange(frames)
        self._last = list(frames), outputs
        return outputs

    # --- answers ---------------------------------------------------------------------------------------------------

    def check_answer(self, packet: Any, worker: int, kind: PacketType, **fields: int) -> None:
        """An answer is addressed to its worker, comes from the service, has no UDP checksum and a right IPv4 one."""
        expected = WORKERS[worker]
        assert (packet.dst, packet.src) == (mac(expected.mac), mac(SWITCH_MAC))
        assert (packet[IP].src, packet[IP].dst) == (dotted(SWITCH_IP), dotted(expected.ip))
        assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].chksum) == (SERVICE_PORT, expected.udp_port, 0)
        assert packet[IP].len == 20 + packet[UDP].len == len(packet) - 14
        header = packet[IP].copy()
        del header.chksum
        assert IP(bytes(header)).chksum == packet[IP].chksum
        ours = packet[SwitchSum]
        assert (ours.kind, ours.worker, ours.job, ours.epoch) == (kind, worker, self.job.number, self.job.epoch)
        for name, value in fields.items():
            assert getattr(ours, name) == value, name

    def check_results(self, outputs: Packets, values: list[int], **fields: int) -> None:
        """Each worker of the job got this sum on its port, once."""
        assert [port for port, _ in outputs] == [worker.port for worker in WORKERS[: self.job.world_size]]
        for worker, (_, packet) in enumerate(outputs):
            self.check_answer(packet, worker, PacketType.RESULT, flags=0, **fields)
            assert packet[SwitchSum].values == values

    # --- what the switch holds -------------------------------------------------------------------------------------

    def reinstall(self, epochs_later: int = 0, workers: int = len(WORKERS)) -> None:
        """Take the job out and let it in again, in the same slots: a later epoch, or the first `workers` alone."""
        self.target.remove(self.job)
        self.job = job_of(WORKERS[:workers], self.job.slots, self.job.epoch + epochs_later, self.job.number)
        self.target.install(self.job)

    def verdicts(self, worker: int) -> dict[Verdict, int]:
        """Packets of one worker in the job's present epoch, by verdict."""
        return self._verdicts(programming.WORKER_VERDICTS, (self.job.number, self.job.epoch, worker))

    def job_verdicts(self) -> dict[Verdict, int]:
        """The same of all workers together, as the job's own counters have it."""
        return self._verdicts(programming.JOB_VERDICTS, (self.job.number, self.job.epoch))

    def bytes_of(self, worker: int, verdict: Verdict) -> int:
        """Bytes of a worker's packets with this verdict."""
        key = (self.job.number, self.job.epoch, worker, verdict.value)
        return self.target.entry_counters(programming.WORKER_VERDICTS)[key][1]

    def _verdicts(self, table: str, key: tuple[int, ...]) -> dict[Verdict, int]:
        counts = self.target.entry_counters(table)
        return {verdict: packets for verdict in Verdict if (packets := counts[*key, verdict.value][0])}

    def rejections(self) -> dict[RejectReason, int]:
        """Packets that reached no slot since the case began, by reason."""
        return dict(self._rejections() - self._rejected_before)

    def _rejections(self) -> Counter[RejectReason]:
        counts = self.target.entry_counters(programming.REJECTIONS)
        return Counter({reason: counts[reason.value,][0] for reason in RejectReason})

    def row(self, phase: int, slot: int = 1) -> dict[str, int]:
        """A row's bookkeeping. Raises Unsupported."""
        index = 2 * (self.job.slots.start + slot) + (phase & 1)
        names = ("epoch", "phase", "bitmap", "tag", "exponent")
        return {name: self.target.register(f"SwitchIngress.service.slots.row_{name}", index)[0] for name in names}

    def stored(self, phase: int, slot: int = 1) -> list[int]:
        """A row's values, lane by lane, however the build cuts them up. Raises Unsupported."""
        index = 2 * (self.job.slots.start + slot) + (phase & 1)
        prefix = "SwitchIngress.service.values.row_v"
        lanes = []
        for i in range(sum(name.startswith(prefix) for name in self.target.registers())):
            value, bits = self.target.register(f"{prefix}{i}", index)
            data = value.to_bytes(bits // 8, "big")
            lanes += [int.from_bytes(data[k : k + 4], "big") for k in range(0, len(data), 4)]
        return lanes

    def check_row(
        self,
        holders: list[int],
        values: list[int],
        exponent: int = 0,
        *,
        phase: int = 1,
        slot: int = 1,
        tag: int = TAG,
        registers: bool = True,
    ) -> None:
        """The row holds these workers' bits, this sum, exponent and tag. Ends the phase: the last thing to ask of a row.

        Its registers are read where that is possible. Everywhere the workers that are missing contribute, which completes the
        phase with the right sum only if the row was right; a full row must repeat its sum. `registers` False: the phase has
        not begun, and whatever they hold is void.
        """
        if self.target.reads_registers and registers:
            bitmap = sum(1 << worker for worker in holders)
            assert self.row(phase, slot) == {
                "epoch": self.job.epoch,
                "phase": phase,
                "bitmap": bitmap,
                "tag": tag,
                "exponent": exponent,
            }
            assert self.stored(phase, slot) == values
        missing = [worker for worker in range(self.job.world_size) if worker not in holders]
        if not missing:
            [(port, packet)] = self.send(holders[0], phase=phase, slot=slot, tag=tag, exponent=0, values=[3] * self.elements)
            assert port == WORKERS[holders[0]].port
            self.check_answer(packet, holders[0], PacketType.RESULT, flags=Flag.REPAIR, exponent=exponent)
            assert packet[SwitchSum].values == values
            return
        outputs = self.fill(missing, phase=phase, slot=slot, tag=tag, exponent=0)
        added = self.sums(missing)
        total = [mine + others for mine, others in zip(values, added, strict=True)]
        self.check_results(outputs, total, phase=phase, slot=slot, tag=tag, exponent=exponent)

    def check_untouched(self, phase: int = 1, slot: int = 1) -> None:
        """Nothing of this phase, or a later one, has come to the row. Ends the phase."""
        if self.target.reads_registers:
            assert self.row(phase, slot)["epoch"] != self.job.epoch
        self.check_row([], [0] * self.elements, phase=phase, slot=slot, registers=False)

    # --- the drop simulator ----------------------------------------------------------------------------------------

    @contextmanager
    def losing(self, table: str, action: str, port: int, threshold: int) -> Iterator[None]:
        """The drop simulator set for one port meanwhile."""
        entry = Entry(table, (port,), action, (threshold,))
        self.target.write([(INSERT, entry)])
        try:
            yield
        finally:
            self.target.write([(DELETE, entry)])

    def send_with_losses(self, port: int, frames: list[bytes], lost: Callable[[], int], at_once: int = 40) -> Outputs:
        """What came out of frames of which some are lost: marks would be lost as well, so this waits until the numbers fit.

        `lost()`: frames that the switch says it lost so far.
        """
        outputs: Outputs = []
        before = lost()
        for start in range(0, len(frames), at_once):
            part = frames[start : start + at_once]
            for frame in part:
                self.target.inject(port, self.target.padded(frame))
            deadline = time.monotonic() + PATIENCE_S
            while len(outputs) + lost() - before < start + len(part):
                outputs += self.target.collect(0.01)
                assert time.monotonic() < deadline, (
                    f"of {start + len(part)} frames {len(outputs)} came out and {lost() - before} were counted as lost"
                )
        return outputs + self.target.collect(0.0)
