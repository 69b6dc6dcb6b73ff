"""The compiled v1model program does what p4src/state_machine.yaml says, and nothing else: row by row, packet by packet.

Rows are put into the registers as no job would leave them, too. That the comparison can fail: each weaker table and each broken
program below differs.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from switchsum.p4src.layout import SERVICE_PORT, SLOTS, WIRE_VERSION, PacketType, RejectReason, Verdict
from switchsum.softswitch.program import Program
from switchsum.softswitch.tables import Exact
from tests.protocol.slot_rules import (
    GROUP,
    HOST_TYPES,
    Answer,
    BadTable,
    Packet,
    Row,
    Sender,
    SlotRules,
    read,
    situations,
    tables,
)
from tests.protocol.switch_under_test import (
    BUILD,
    JOB_VERDICTS,
    SWITCH_IP,
    SWITCH_MAC,
    SwitchUnderTest,
    Worker,
    checksum,
    frame_of,
)
from tests.protocol.test_mutations import MUTATIONS
from tests.protocol.weakenings import HARMLESS, TABLE_WEAKENINGS

DOCS = Path(__file__).resolve().parents[2] / "docs"
ELEMENTS = 64
JOB, EPOCH, GROUP_NUMBER = 7, 1000, 3
FIRST_SLOT, JOB_SLOTS, SLOT = 40, 4, 2
ROWS = range(2 * FIRST_SLOT, 2 * (FIRST_SLOT + JOB_SLOTS))
NEIGHBOURS = (*range(ROWS.start - 4, ROWS.start), *range(ROWS.stop, ROWS.stop + 4))
HEADER = struct.Struct("!BBHIHHIIBBH")
LANES = struct.Struct(f"!{ELEMENTS}I")
STORED = tuple(range(100, 100 + ELEMENTS))
BROUGHT = tuple(range(2**32 - ELEMENTS // 2, 2**32)) + tuple(range(5000, 5000 + ELEMENTS // 2))  # carries leave a lane nowhere

Lanes = tuple[int, ...]


def added(one: Lanes, other: Lanes) -> Lanes:
    return tuple((mine + its) % 2**32 for mine, its in zip(one, other, strict=True))


def workers_of(count: int) -> list[Worker]:
    return [Worker.at(1 + number % 3, 40000 + number) for number in range(count)]


def answer_frame(worker: Worker, datagram: bytes) -> bytes:
    """The frame in which a worker gets an answer."""
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + len(datagram), 0, 0x4000, 64, 17, 0, SWITCH_IP, worker.ip)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = struct.pack("!HHHH", SERVICE_PORT, worker.udp_port, 8 + len(datagram), 0)
    return worker.mac.to_bytes(6, "big") + SWITCH_MAC.to_bytes(6, "big") + b"\x08\x00" + ip + udp + datagram


class Rows(Protocol):
    """A program with one job, whose rows can be put and read."""

    workers: list[Worker]

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]: ...

    def rejections(self) -> dict[RejectReason, int]: ...

    def put(self, index: int, row: Row) -> None: ...

    def can_hold(self, index: int, row: Row) -> bool:
        """Whether the registers can hold this row here."""

    def row(self, index: int) -> Row:
        """With all its lanes."""

    def fields(self, index: int, values: Any) -> Row:
        """With these values, unread."""

    def some_lanes(self, index: int) -> Lanes: ...

    def check_others(self) -> None:
        """The job's packets have touched nobody else's rows."""

    def has_counted(self, verdict: Verdict) -> bool:
        """Whether one more packet of the job has had this verdict."""


class ProgramRows:
    """Rows of the compiled v1model program."""

    def __init__(self, workers: int, program: Program | None = None) -> None:
        self.workers = workers_of(workers)
        self.switch = SwitchUnderTest("lanes", ELEMENTS, program=program)
        self.switch.install_job(JOB, EPOCH, self.workers, FIRST_SLOT, JOB_SLOTS, GROUP_NUMBER)
        registers = self.switch.dataplane.registers
        names = ("epoch", "phase", "bitmap", "tag", "exponent")
        self._fields = [registers[f"SwitchIngress.service.slots.row_{name}"] for name in names]
        self._lanes = [registers[f"SwitchIngress.service.values.row_v{lane}"] for lane in range(ELEMENTS)]
        self._counted: Counter[Verdict] = Counter()
        for index in (*NEIGHBOURS, *ROWS):
            self.put(index, Row(index, 0, 0, index, 0, STORED))

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self.switch.process(port, frame)

    def rejections(self) -> dict[RejectReason, int]:
        return self.switch.rejections()

    def put(self, index: int, row: Row) -> None:
        for register, value in zip(self._fields, (row.epoch, row.phase, row.bitmap, row.tag, row.exponent), strict=True):
            register.write(index, value)
        for register, value in zip(self._lanes, row.values or (), strict=False):
            register.write(index, value)

    def can_hold(self, index: int, row: Row) -> bool:
        return True

    def row(self, index: int) -> Row:
        return self.fields(index, tuple(register.read(index) for register in self._lanes))

    def fields(self, index: int, values: Any) -> Row:
        return Row(*(register.read(index) for register in self._fields), values)

    def some_lanes(self, index: int) -> Lanes:
        return tuple(self._lanes[lane].read(index) for lane in (0, ELEMENTS // 2, ELEMENTS - 1))

    def check_others(self) -> None:
        for index in NEIGHBOURS:
            assert self.row(index) == Row(index, 0, 0, index, 0, STORED), f"row {index} is of no slot of the job"
        held = {index for index in range(2 * SLOTS) if self._fields[0].read(index)}
        assert held == {*NEIGHBOURS, *ROWS}

    def has_counted(self, verdict: Verdict) -> bool:
        self._counted[verdict] += 1
        key = (Exact(JOB), Exact(EPOCH), Exact(verdict))
        return self.switch.dataplane.tables[JOB_VERDICTS].read_counter(key, 0)[0] == self._counted[verdict]


def datagram(packet: Packet | Answer, phase: int, worker: int, slot: int = SLOT) -> bytes:
    """A packet or an answer of the job as bytes."""
    fields = (WIRE_VERSION, packet.type, JOB, EPOCH, slot, packet.exponent, phase, packet.tag, worker, packet.flags, 0)
    return HEADER.pack(*fields) + (b"" if packet.values is None else LANES.pack(*packet.values))


def compare(
    rules: SlotRules, rows: Rows, bitmaps: Collection[int], senders: Collection[int]
) -> Counter[tuple[str, PacketType]]:
    """Every situation, in the program and in the table. Returns how often each rule was met by each type of packet."""
    met: Counter[tuple[str, PacketType]] = Counter()
    full = (1 << len(rows.workers)) - 1
    sampled = {
        values: tuple(values[lane] for lane in (0, ELEMENTS // 2, ELEMENTS - 1))
        for values in (STORED, BROUGHT, added(STORED, BROUGHT))
    }
    for number, (row, packet, worker) in enumerate(situations(bitmaps, senders)):
        slot = number % JOB_SLOTS
        row = replace(row, values=STORED)
        packet = replace(packet, values=BROUGHT if packet.type == PacketType.CONTRIBUTION else None)
        step = rules.step(row, packet, Sender(1 << worker, full), added)
        index = 2 * FIRST_SLOT + rules.place(slot, packet.phase)
        if not rows.can_hold(index, row):
            continue
        rows.put(index, replace(row, values=None))
        sender = rows.workers[worker]
        left = rows.process(sender.port, frame_of(sender, datagram(packet, packet.phase, worker, slot)))
        where = f"{step.rule}: {row}, {packet}, worker {worker}"
        assert rows.fields(index, step.row.values) == step.row, where
        assert rows.some_lanes(index) == sampled[step.row.values], where
        answer = step.answer
        receivers = [] if answer is None else range(len(rows.workers)) if answer.to == GROUP else [worker]
        assert sorted(left) == sorted(
            (rows.workers[receiver].port, answer_frame(rows.workers[receiver], datagram(answer, packet.phase, receiver, slot)))
            for receiver in receivers
            if answer is not None
        ), where
        assert rows.has_counted(step.verdict), where
        if step.row.values != STORED:
            rows.put(index, replace(row, values=STORED))
        met[step.rule, packet.type] += 1
    rows.check_others()
    return met


JOBS = {1: ((0, 1), (0,)), 2: (range(4), (0, 1)), 32: ((0, 2**31 - 1, 2**32 - 2, 2**32 - 1), (0, 31))}


def test_the_program_keeps_to_the_table() -> None:
    rules = SlotRules(read())
    met: Counter[tuple[str, PacketType]] = Counter()
    for workers, (bitmaps, senders) in JOBS.items():
        met += compare(rules, ProgramRows(workers), bitmaps, senders)
    assert set(met) == set(itertools.product((rule.name for rule in rules.rules), HOST_TYPES))
    print(f"{sum(met.values())} situations")


FAULTS: dict[str, list[dict[str, Any]]] = {  # what makes a packet fail each check; keywords of faulty()
    "header": [{"cut": 20}, {"cut": 0}],
    "checksum": [{"ip_checksum": 0x1234}],
    "version": [{"version": 0x52}],
    "type": [{"kind": PacketType.RESULT}],
    "length": [{"longer": 4}],
    "job": [{"epoch": EPOCH - 1}, {"job": JOB + 1}],
    "worker": [{"port": 3}],
    "index": [{"worker": 1}],
    "slot": [{"slot": JOB_SLOTS}],
}


def faulty(kind: PacketType, faults: dict[str, Any]) -> tuple[int, bytes]:
    """(port, frame) of worker 0's packet with these faults."""
    fields = {"version": WIRE_VERSION, "kind": kind, "job": JOB, "epoch": EPOCH, "slot": SLOT, "worker": 0} | faults
    data = HEADER.pack(*(fields[name] for name in ("version", "kind", "job", "epoch", "slot")), 5, 9, 1, fields["worker"], 0, 0)
    data += LANES.pack(*BROUGHT) if kind == PacketType.CONTRIBUTION else b""
    data += bytes(fields.get("longer", 0))
    frame = bytearray(frame_of(workers_of(2)[0], data[: fields.get("cut")]))
    if "ip_checksum" in fields:
        frame[24:26] = struct.pack("!H", fields["ip_checksum"])
    return fields.get("port", 1), bytes(frame)


def compare_admission(rules: SlotRules, rows: Rows) -> None:
    """Packets that fail any of the checks, in every combination."""
    rejected: Counter[RejectReason] = Counter()
    before = [rows.row(index) for index in ROWS]
    checks = list(FAULTS)
    for kind, failed in itertools.product(HOST_TYPES, subsets(checks)):
        for faults in itertools.product(*(FAULTS[check] for check in failed)):
            port, frame = faulty(kind, functools.reduce(dict.__or__, faults, {}))
            assert rows.process(port, frame) == [], failed
            counted = rules.refusal(failed)
            if isinstance(counted, RejectReason):
                rejected[counted] += 1
            else:
                assert counted is not None, failed
                assert rows.has_counted(counted), failed
            assert rows.rejections() == rejected, failed
    assert [rows.row(index) for index in ROWS] == before
    rows.check_others()


def subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    """All but the empty one."""
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


def test_the_program_refuses_in_the_tables_order() -> None:
    rules = SlotRules(read())
    assert list(FAULTS) == [check for check, _, _ in rules.admission]
    compare_admission(rules, ProgramRows(2))


@pytest.mark.parametrize("weaken", [*TABLE_WEAKENINGS, *HARMLESS], ids=lambda weaken: weaken.__name__)
def test_a_weaker_table_is_another(weaken: Callable[[dict[str, Any]], None]) -> None:
    table = read()
    weaken(table)
    with pytest.raises(AssertionError):
        compare_both(SlotRules(table))


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_broken_program_is_another(mutate: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    source = json.loads((BUILD / "switchsum_lanes_64.json").read_text())
    mutate(source)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(source))
    with pytest.raises(AssertionError):
        compare_both(SlotRules(read()), Program.load(path))


def compare_both(rules: SlotRules, program: Program | None = None) -> None:
    compare_admission(rules, ProgramRows(2, program))
    compare(rules, ProgramRows(2, program), (0b01, 0b11), (0, 1))


@pytest.mark.parametrize(
    ("rule", "part", "change", "message"),
    [
        ("stale", "when", {"epoch": "same", "phase": "earlier", "tag": "same"}, "one rule must fit, and these do: none"),
        ("stale", "when", {"epoch": "same"}, "one rule must fit, and these do: stale, joins"),
        ("stale", "when", {"phase": "older"}, "rule stale: phase: ['older'] is no condition and answer of the table"),
        ("joins", "write", {"values": "maximum"}, "rule joins: values cannot be written with 'maximum'"),
        ("repair", "answer", {"to": "sender", "exponent": "packet"}, "rule repair: exponent of an answer cannot be 'packet'"),
    ],
)
def test_a_table_that_says_nothing_or_two_things_is_told(rule: str, part: str, change: dict[str, str], message: str) -> None:
    table = read()
    [entry] = [entry for entry in table["rules"] if entry["name"] == rule]
    entry[part] = change
    with pytest.raises(BadTable) as told:
        SlotRules(table)
    assert message in str(told.value)


def test_the_page_shows_the_table() -> None:
    page = (DOCS / "state-machine.md").read_text()
    for table in tables(SlotRules(read())).split("\n\n"):
        assert table.strip() in page, "docs/state-machine.md shows another table than python -m tests.protocol.slot_rules"
