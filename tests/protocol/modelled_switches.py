"""Rules for rows, as the model check runs them: the written table, a changed one, or what was published before.

Values are what they were made of: the numbers of packets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Protocol

from switchsum.p4src.layout import PacketType
from tests.protocol.slot_rules import GROUP, SENDER, Answer, Packet, Row, Sender, SlotRules

Values = tuple[int, ...]  # numbers of packets, one for each time that a packet was added
Answers = list[tuple[int, Answer]]  # (worker, answer)


def added(one: Values, other: Values) -> Values:
    """Values are what they were made of; more than twice is no more wrong than twice."""
    counts = Counter(one + other)
    return tuple(sorted(number for number, times in counts.items() for _ in range(min(times, 2))))


class Switch(Protocol):
    """A rule for rows. `empty`: a row at power-on."""

    empty: Any

    def places(self, slot: int, phase: int) -> tuple[int, ...]:
        """Numbers of the rows that a packet may read or write."""

    def admits(self, packet: Packet, epoch: int) -> bool:
        """Whether a packet reaches the rows while the job is in `epoch`."""

    def receive(self, rows: tuple[Any, ...], packet: Packet, worker: int, workers: int) -> tuple[tuple[Any, ...], Answers, str]:
        """Those rows afterwards, what is sent, and a word for what happened."""


class TableSwitch:
    """The written table, or a changed one."""

    empty: Any = Row(0, 0, 0, 0, 0, ())

    def __init__(self, table: dict[str, Any]) -> None:
        self.rules = SlotRules(table)
        self._refuses_epochs = any(check == "job" for check, _, _ in self.rules.admission)

    def places(self, slot: int, phase: int) -> tuple[int, ...]:
        return (self.rules.place(slot, phase),)

    def admits(self, packet: Packet, epoch: int) -> bool:
        return packet.epoch == epoch or not self._refuses_epochs

    def receive(self, rows: tuple[Any, ...], packet: Packet, worker: int, workers: int) -> tuple[tuple[Any, ...], Answers, str]:
        step = self.rules.step(rows[0], packet, Sender(1 << worker, (1 << workers) - 1), added)
        answer = step.answer
        receivers = [] if answer is None else range(workers) if answer.to == GROUP else [worker]
        return (step.row,), [(receiver, answer) for receiver in receivers if answer is not None], step.rule


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One version of a slot in SwitchML: who was seen, how many were counted, and the sum."""

    seen: int
    count: int
    exponent: int
    values: Values


class OneVersionBit:
    """SwitchML's rule (its algorithm 3): of the phase, the switch knows the lowest bit. A worker's packet for one version takes
    its mark in the other away; a counter modulo n tells the first packet and the last one.
    """

    empty: Any = PublishedRow(0, 0, 0, ())

    def places(self, slot: int, phase: int) -> tuple[int, ...]:
        return (2 * slot + phase % 2, 2 * slot + 1 - phase % 2)

    def admits(self, packet: Packet, epoch: int) -> bool:
        return packet.epoch == epoch

    def receive(self, rows: tuple[Any, ...], packet: Packet, worker: int, workers: int) -> tuple[tuple[Any, ...], Answers, str]:
        row, other = rows
        bit = 1 << worker
        if row.seen & bit:
            answers = [] if row.count else [(worker, self._answer(SENDER, packet, row))]
            return rows, answers, "repair" if answers else "duplicate"
        other = replace(other, seen=other.seen & ~bit)
        values = packet.values or ()
        if row.count == 0:
            row = PublishedRow(row.seen | bit, 1 % workers, packet.exponent, values)
        else:
            exponent = max(row.exponent, packet.exponent)
            row = PublishedRow(row.seen | bit, (row.count + 1) % workers, exponent, added(row.values, values))
        if row.count:
            return (row, other), [], "first" if row.count == 1 else "joins"
        return (row, other), [(receiver, self._answer(GROUP, packet, row)) for receiver in range(workers)], "completes"

    def _answer(self, to: str, packet: Packet, row: PublishedRow) -> Answer:
        if packet.type == PacketType.PROPOSAL:
            return Answer(to, PacketType.AGREEMENT, packet.tag, row.exponent, 0, None)
        return Answer(to, PacketType.RESULT, packet.tag, row.exponent, 0, row.values)
