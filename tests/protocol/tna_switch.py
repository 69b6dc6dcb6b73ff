"""A switch that runs the source of p4src/tna (tna_program.py) and moves packets as Tofino does: ingress, copies, egress, round.

A target of the conformance cases (test_conformance.py, test_differential.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from switchsum.controller import programming
from switchsum.controller.jobs import Job
from switchsum.controller.p4names import Group, Item
from switchsum.controller.switch_session import DELETE
from switchsum.p4src.layout import Verdict
from tests.protocol.switch_under_test import Worker
from tests.protocol.targets import RACK, Counts, Outputs, Target, job_of
from tests.protocol.tna_program import CPP, NOWHERE, PORT_METADATA_BITS, TableEntry, TnaProgram, preprocessed

ELEMENTS = 64
RECIRCULATION_PORT = 68  # in each pipe of Tofino; its driver lets packets round there without being asked
NO_CPP = "cpp, the C preprocessor, is not on PATH (it comes with gcc)" if CPP is None else None


@functools.cache
def source(chip: int) -> str:
    """Tofino's (1) or Tofino 2's (2), preprocessed."""
    return preprocessed(chip, ELEMENTS)


class TnaSwitch(Target):
    """A Target in this process."""

    shortest_frame_bytes = 0

    def __init__(self, chip: int, text: str | None = None) -> None:
        """`text`: another program than source(chip)."""
        super().__init__(f"the source for Tofino{' 2' if chip == 2 else ''}", ELEMENTS)
        self.program = TnaProgram(text or source(chip))
        self._port_metadata = bytes(PORT_METADATA_BITS[chip] // 8)
        self._groups: dict[int, frozenset[tuple[int, int]]] = {}
        self._pending: Outputs = []
        self.write([(0, item) for item in programming.fabric_items(RACK, 0.0, 0.0)])

    def write(self, updates: Iterable[tuple[int, Item]]) -> None:
        for kind, item in updates:
            if isinstance(item, Group):
                if kind == DELETE:
                    del self._groups[item.number]
                else:
                    self._groups[item.number] = item.replicas
                continue
            table = self.program.tables[item.table]
            if item.is_default:
                table.default = TableEntry(item.action, item.params)
            elif kind == DELETE:
                del table.entries[item.key]
            else:
                table.entries[item.key] = TableEntry(item.action, item.params)

    def process(self, port: int, frame: bytes) -> Outputs:
        """One frame through the whole switch, round included."""
        left: Outputs = []
        waiting = [(port, frame, False)]
        while waiting:
            port, frame, is_resubmitted = waiting.pop(0)
            intrinsic = (int(is_resubmitted) << 63 | port << 48).to_bytes(8, "big")
            state = self.program.ingress.run(intrinsic + self._port_metadata + frame, len(frame), _nowhere)
            towards = state.ingress_intrinsic_metadata_for_tm_t
            if state.ingress_intrinsic_metadata_for_deparser_t.drop_ctl & 1:
                continue
            if state.ingress_intrinsic_metadata_for_deparser_t.resubmit_type:
                waiting.append((port, frame, True))
                continue
            copies = [] if towards.ucast_egress_port == NOWHERE else [(towards.ucast_egress_port, 0)]
            copies += sorted(self._groups.get(towards.mcast_grp_a, ()))
            for egress_port, instance in copies:
                if not towards.bypass_egress:
                    left += self._egress(egress_port, instance, state.emitted)
                elif egress_port & 0x7F == RECIRCULATION_PORT:
                    waiting.append((egress_port, state.emitted, False))
                else:
                    left.append((egress_port, state.emitted))
        return left

    def _egress(self, port: int, instance: int, frame: bytes) -> Outputs:
        state = self.program.egress.run((port << 16 | instance).to_bytes(4, "big") + frame, len(frame), _nothing)
        return [] if state.egress_intrinsic_metadata_for_deparser_t.drop_ctl & 1 else [(port, state.emitted)]

    def inject(self, port: int, frame: bytes) -> None:
        self._pending += self.process(port, self.padded(frame))

    def collect(self, wait_s: float) -> Outputs:
        outputs, self._pending = self._pending, []
        return outputs

    def exchange(self, frames: Iterable[tuple[int, bytes]]) -> Outputs:
        return [output for port, frame in frames for output in self.process(port, self.padded(frame))]

    def entry_counters(self, table: str) -> Counts:
        return {key: (entry.packets, entry.octets) for key, entry in self.program.tables[table].entries.items()}

    def packets_counted(self, counter: str, index: int) -> int:
        return self.program.counters[counter][index]

    def close(self) -> None:
        self._pending = []


class TnaUnderTest:
    """SwitchUnderTest, for the source of p4src/tna: what the simulation asks of a switch."""

    def __init__(self, chip: int) -> None:
        self._chip = chip

    def reset(self) -> None:
        self._switch = TnaSwitch(self._chip)
        self._jobs: dict[tuple[int, int], Job] = {}

    def install_job(self, job: int, epoch: int, workers: list[Worker], slot_base: int, slots: int, group: int) -> None:
        """The job's group has the job's number, as the controller gives it, whatever `group` is."""
        self._jobs[job, epoch] = job_of(workers, range(slot_base, slot_base + slots), epoch, job)
        self._switch.install(self._jobs[job, epoch])

    def remove_job(self, job: int, epoch: int, group: int) -> None:
        self._switch.remove(self._jobs.pop((job, epoch)))

    def process(self, port: int, frame: bytes, now_us: int = 0) -> Outputs:
        return self._switch.process(port, frame)

    def verdicts(self, job: int, epoch: int, worker: int) -> dict[Verdict, int]:
        counts = self._switch.entry_counters(programming.WORKER_VERDICTS)
        return {verdict: packets for verdict in Verdict if (packets := counts[job, epoch, worker, verdict][0])}


def _nowhere(state: Any) -> None:
    state.ingress_intrinsic_metadata_for_tm_t.ucast_egress_port = NOWHERE


def _nothing(state: Any) -> None:
    pass
