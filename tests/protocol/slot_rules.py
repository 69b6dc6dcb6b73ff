"""p4src/state_machine.yaml, read and carried out: a row and a packet in, the row, the verdict and the answer out.

What values are is the caller's: lanes of a packet for the comparison with a program, names of packets for the model check.

    python -m tests.protocol.slot_rules         the tables of docs/state-machine.md
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from switchsum.p4src import generate
from switchsum.p4src.layout import Flag, PacketType, RejectReason, Verdict

PATH = generate.HERE / "state_machine.yaml"
HOST_TYPES = (PacketType.CONTRIBUTION, PacketType.PROPOSAL)
GROUP, SENDER = "group", "sender"
WRITES = {  # by field of a row: what a rule may say
    "epoch": {"packet"},
    "phase": {"packet"},
    "bitmap": {"worker", "with_worker"},
    "tag": {"packet"},
    "exponent": {"packet", "maximum"},
    "values": {"packet", "sum"},
}
ANSWERS = {"exponent": {"row"}, "tag": {"row", "bitmap"}}

Add = Callable[[Any, Any], Any]  # two packets' values to their sum


@dataclass(frozen=True, slots=True)
class Row:
    """What the switch holds of a slot and a version."""

    epoch: int
    phase: int
    bitmap: int
    tag: int
    exponent: int
    values: Any


@dataclass(frozen=True, slots=True)
class Packet:
    """What counts of a packet that has been admitted. `values` is None for a PROPOSAL."""

    type: PacketType
    epoch: int
    phase: int
    tag: int
    exponent: int
    flags: int
    values: Any


@dataclass(frozen=True, slots=True)
class Sender:
    """What the switch's tables say about the worker: its bit, and the bitmap of all workers of its job."""

    bit: int
    full: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What leaves, `to` GROUP or SENDER; job, epoch, slot and phase are the packet's. `values` None: the header alone."""

    to: str
    type: PacketType
    tag: int
    exponent: int
    flags: int
    values: Any


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one packet."""

    rule: str
    verdict: Verdict
    row: Row
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the table."""

    name: str
    when: Mapping[str, Collection[str]]
    verdict: Verdict
    write: Mapping[str, str]
    answer: Mapping[str, Any] | None


class BadTable(ValueError):
    """The table does not say one thing for every packet; the text names where."""


def read() -> dict[str, Any]:
    """The file, as YAML has it."""
    table: dict[str, Any] = yaml.safe_load(PATH.read_text())
    return table


class SlotRules:
    """The table at work."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """`table`: as read() gives it, or a changed one. Raises BadTable."""
        self.admission: list[tuple[str, str, RejectReason | Verdict]] = [
            (
                entry["check"],
                entry["fails"],
                RejectReason[entry["reject"]] if "reject" in entry else Verdict[entry["verdict"]],
            )
            for entry in table["admission"]
        ]
        self.slot_rows = int(table["slot_rows"])
        self._phases = 1 << int(table["phase_bits"])
        self.conditions: dict[str, dict[str, str]] = table["conditions"]
        self.rules = [self._rule(entry) for entry in table["rules"]]
        self._fitting = {facts: self._only_rule(facts) for facts in itertools.product(*self.conditions.values())}

    def _rule(self, entry: Mapping[str, Any]) -> Rule:
        when = {name: [given] if isinstance(given, str) else list(given) for name, given in entry["when"].items()}
        for name, given in when.items():
            if name not in self.conditions or not set(given) <= set(self.conditions[name]):
                raise BadTable(f"rule {entry['name']}: {name}: {given} is no condition and answer of the table")
        write, answer = entry.get("write", {}), entry.get("answer")
        for name, what in write.items():
            if what not in WRITES.get(name, ()):
                raise BadTable(f"rule {entry['name']}: {name} cannot be written with {what!r}")
        for name, what in (answer or {}).items():
            if name not in ("to", "type", "flags") and what not in ANSWERS.get(name, ()):
                raise BadTable(f"rule {entry['name']}: {name} of an answer cannot be {what!r}")
        return Rule(entry["name"], when, Verdict[entry["verdict"]], write, answer)

    def _only_rule(self, facts: tuple[str, ...]) -> Rule:
        given = dict(zip(self.conditions, facts, strict=True))
        fitting = [rule for rule in self.rules if all(given[name] in wanted for name, wanted in rule.when.items())]
        if len(fitting) != 1:
            names = ", ".join(rule.name for rule in fitting) or "none"
            raise BadTable(f"{given}: one rule must fit, and these do: {names}")
        return fitting[0]

    def refusal(self, failed: Collection[str]) -> RejectReason | Verdict | None:
        """What a packet is counted as that fails these checks; None if it is admitted."""
        return next((counted for check, _, counted in self.admission if check in failed), None)

    def place(self, slot: int, phase: int) -> int:
        """Number of the row that a packet meets, counted from the job's first."""
        return slot * self.slot_rows + phase % self.slot_rows

    def facts(self, row: Row, packet: Packet, sender: Sender) -> tuple[str, ...]:
        """The answers to the table's conditions, in its order."""
        age = (packet.phase - row.phase) % self._phases
        begins = row.epoch != packet.epoch or 0 < age < self._phases // 2
        present = (0 if begins else row.bitmap) | sender.bit
        given = {
            "epoch": "same" if row.epoch == packet.epoch else "other",
            "phase": "same" if age == 0 else "later" if age < self._phases // 2 else "earlier",
            "tag": "same" if row.tag == packet.tag else "other",
            "bit": "set" if row.bitmap & sender.bit else "clear",
            "bitmap": "full" if present == sender.full else "filling",
            "status": "asked" if packet.flags & Flag.WANT_STATUS else "unasked",
        }
        return tuple(given[name] for name in self.conditions)

    def step(self, row: Row, packet: Packet, sender: Sender, add: Add) -> Step:
        """Take a packet that has been admitted."""
        rule = self._fitting[self.facts(row, packet, sender)]
        written: dict[str, Any] = {}
        for name, what in rule.write.items():
            if what == "packet":
                written[name] = getattr(packet, name)
            elif what == "worker":
                written[name] = sender.bit
            elif what == "with_worker":
                written[name] = row.bitmap | sender.bit
            elif what == "maximum":
                written[name] = max(row.exponent, packet.exponent)
            elif packet.type == PacketType.CONTRIBUTION:
                written[name] = add(row.values, packet.values)
        if packet.type == PacketType.PROPOSAL:
            written.pop("values", None)
        after = replace(row, **written)
        return Step(rule.name, rule.verdict, after, self._answer(rule, after, packet))

    def _answer(self, rule: Rule, row: Row, packet: Packet) -> Answer | None:
        if rule.answer is None:
            return None
        kind = PacketType[rule.answer["type"][packet.type.name]]
        return Answer(
            to=rule.answer["to"],
            type=kind,
            tag={"row": row.tag, "bitmap": row.bitmap}.get(rule.answer.get("tag", ""), packet.tag),
            exponent=row.exponent if "exponent" in rule.answer else packet.exponent,
            flags=sum(Flag[name] for name in rule.answer.get("flags", ())),
            values=row.values if kind == PacketType.RESULT else None,
        )


def situations(bitmaps: Collection[int], workers: Collection[int]) -> Iterator[tuple[Row, Packet, int]]:
    """(row, packet, worker) in every combination of what the rules look at, also rows that no job would reach; without values.

    `bitmaps`: those of the rows; `workers`: who sends.
    """
    epoch, tag, other = 1000, 0xABCD, 0xFFFF0001
    ages = (0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1)
    exponents = ((0x800, 0x7FF), (0x800, 0xFFFF))  # the row's and the packet's
    rows = itertools.product((epoch, epoch - 1, epoch + 1), (2, 2**32 - 1), bitmaps, (tag, other), exponents)
    packets = list(itertools.product(ages, (int(Flag.WANT_STATUS), 0xFF - Flag.WANT_STATUS), HOST_TYPES, workers))
    for row_epoch, row_phase, bitmap, row_tag, (row_exponent, exponent) in rows:
        row = Row(row_epoch, row_phase, bitmap, row_tag, row_exponent, None)
        for age, flags, kind, worker in packets:
            yield row, Packet(kind, epoch, (row_phase + age) % 2**32, tag, exponent, flags, None), worker


def _sentence(rule: Rule) -> str:
    return ", ".join(f"{name} {' or '.join(given)}" for name, given in rule.when.items())


def _written(rule: Rule) -> str:
    words = {"worker": "this worker", "with_worker": "and this worker"}
    by_source: dict[str, list[str]] = {}
    for name, what in rule.write.items():
        by_source.setdefault(words.get(what, what), []).append(name)
    return "; ".join(f"{', '.join(names)}: {what}" for what, names in by_source.items()) or "nothing"


def _sent(rule: Rule) -> str:
    if rule.answer is None:
        return "nothing"
    kinds = list(dict.fromkeys(rule.answer["type"].values()))
    extras = [f"{name}: {rule.answer[name]}" for name in ("exponent", "tag") if name in rule.answer]
    extras += [f"flag {name}" for name in rule.answer.get("flags", ())]
    return f"{' or '.join(kinds)} to {'all' if rule.answer['to'] == GROUP else 'the sender'}; {'; '.join(extras)}"


def tables(rules: SlotRules) -> str:
    """Both tables for people, in Markdown."""
    lines = ["| check, in this order | what fails it | counted as |", "|---|---|---|"]
    lines += [f"| {check} | {fails} | {counted.name} |" for check, fails, counted in rules.admission]
    lines += ["", "| rule | when | verdict | written | sent |", "|---|---|---|---|---|"]
    lines += [
        f"| {rule.name} | {_sentence(rule)} | {rule.verdict.name} | {_written(rule)} | {_sent(rule)} |" for rule in rules.rules
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(SlotRules(read())), end="")
