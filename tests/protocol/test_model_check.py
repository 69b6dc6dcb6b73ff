"""The model check: nothing fails within the small bound, every weaker rule is found out, and the model is of our program."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from switchsum.host_agent.engine import IDLE, Engine
from tests.protocol.model import ENDLESS, FIRST_PHASE, ORDINARY, ROUNDS, STRANGER, TWICE, Hosts, Job, Model, State
from tests.protocol.model_check import bound, jobs, main, weakenings
from tests.protocol.modelled_switches import TableSwitch
from tests.protocol.slot_rules import read
from tests.protocol.switch_under_test import SwitchUnderTest, Worker, frame_of
from tests.protocol.weakenings import HARMLESS

ELEMENTS = 64
FRAME_OVERHEAD = 42  # Ethernet, IPv4, UDP


def test_nothing_fails_within_the_small_bound() -> None:
    switch, states = TableSwitch(read()), 0
    for job in bound(2):
        found = Model(switch, job, Hosts()).search()
        assert found.failure is None, (job, found.trace)
        states += found.states
    assert states > 50_000


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("stale_packets_join", STRANGER),
        ("rows_know_no_epoch", ENDLESS),
        ("earlier_epochs_are_admitted", ENDLESS),
        ("duplicates_are_added", TWICE),
        ("tags_are_not_compared", "a worker that expects RESULT gets RESULT with tag 4"),
        ("sums_are_not_repeated", ENDLESS),
        ("new_phases_add", STRANGER),
        ("new_phases_keep_workers", "a sum without a worker's packet is delivered"),
        ("the_last_exponent_counts", "a wrong exponent is delivered"),
        ("one_row_a_slot", ENDLESS),
        ("phases_of_three_bits", ENDLESS),
        ("workers_take_any_phase", STRANGER),
        ("workers_take_any_epoch", STRANGER),
        ("one_version_bit", TWICE),
    ],
)
def test_a_weaker_rule_is_found_out(name: str, failure: str) -> None:
    _, found = weakenings()[name].shortest_failure()
    assert found.failure is not None
    assert found.failure.startswith(failure)


def test_every_weaker_rule_is_tried() -> None:
    [marks] = [mark for mark in test_a_weaker_rule_is_found_out.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert [name for name, _ in marks.args[1]] == list(weakenings())


@pytest.mark.parametrize("weaken", HARMLESS, ids=lambda weaken: weaken.__name__)
def test_another_rule_that_is_enough_passes(weaken: Callable[[dict[str, Any]], None]) -> None:
    table = read()
    weaken(table)
    for job in jobs(2, 1, epochs=2):
        assert Model(TableSwitch(table), job, Hosts()).search().failure is None


def test_one_version_bit_adds_a_packet_that_is_late_by_two_phases(capsys: pytest.CaptureFixture[str]) -> None:
    """VeriNC's trace (tests/protocol/cases/verinc.py), found without being told."""
    assert main(["--weaken", "one_version_bit"]) == 0
    known = capsys.readouterr().out.split("late by two phases:\n")[1].splitlines()
    assert known[0].startswith("2 workers, 1 epoch, slots VVV; ")
    assert known[-1].split(": ", 1) == [
        f"     {STRANGER}",
        "{worker 0, round 1 (VALUES); worker 1, round 3 (VALUES)}, "
        "not {worker 0, round 3 (VALUES); worker 1, round 3 (VALUES)}",
    ]
    late = [line for line in known if line.endswith("switch <- worker 0, round 1 (VALUES): first")]
    assert len(late) == 2
    assert not any("switch <- worker 0, round 3" in line for line in known)  # it was lost, and the old packet stood in for it


def reachable(model: Model) -> set[tuple[Any, ...]]:
    """What can be seen from outside of every state."""
    found: set[State] = {model.first()}
    waiting = list(found)
    while waiting:
        for after, _, _ in model.following(waiting.pop()):
            if after not in found:
                found.add(after)
                waiting.append(after)
    return {model.outline(state) for state in found}


class Real:
    """The same job with real engines, the compiled program, and a network that delivers what was ever sent, by chance."""

    def __init__(self, epochs: int, rounds: str, rng: random.Random, switch: SwitchUnderTest) -> None:
        """`rounds` of each slot: "P" and a "V" for each sum of 64 int32; or "G", for floats whose exponents the workers guess
        differently, so that the first guess may be too small, and the values come once more.
        """
        self.rng, self.switch, self.epochs = rng, switch, epochs
        switch.reset()
        self.hosts = [Worker.at(port) for port in (1, 2)]
        self.guess = rounds[0] == "G"
        size = 2 * ELEMENTS * (1 if self.guess else rounds.count("V"))
        kind, numbers = (np.float32, (1.0, 2.0**20)) if self.guess else (np.int32, (1, 10))
        self.tensors = [np.full(size, number, kind) for number in numbers]
        self.sum, self.error = sum(numbers), self.guess / 8  # a float32 of 2^20 is one of eighths
        self.targets = self.tensors.copy()
        self.sent: list[tuple[int, bytes]] = []
        self.arriving: list[tuple[int, bytes]] = []
        self.epoch = 0
        self.restart()
        self.engines = [self.begin(number) for number in (0, 1)]

    def restart(self) -> None:
        if self.epoch:
            self.switch.remove_job(1, self.epoch, 1)
        self.epoch += 1
        self.switch.install_job(1, self.epoch, self.hosts, 0, 2, 1)

    def begin(self, number: int) -> Engine:
        engine = Engine(
            job=1,
            epoch=self.epoch,
            worker=number,
            world_size=2,
            slots=2,
            elements=ELEMENTS,
            guessed_blocks=2 * self.guess,
            first_phase=FIRST_PHASE - 1,
        )
        self.targets[number] = np.zeros_like(self.tensors[number])
        engine.submit(self.tensors[number], self.targets[number], 9, 0)
        self.sent += [(number, packet) for packet in engine.datagrams_to_send()]
        return engine

    def happen(self) -> None:
        """Anything at all."""
        late = [number for number, engine in enumerate(self.engines) if engine.epoch < self.epoch]
        choice = self.rng.random()
        if choice < 0.01 and self.epoch < self.epochs:
            self.restart()
        elif choice < 0.05 and late:
            number = self.rng.choice(late)
            self.engines[number] = self.begin(number)
        elif choice < 0.5 or not self.arriving:
            number, packet = self.rng.choice(self.sent)
            for port, frame in self.switch.process(self.hosts[number].port, frame_of(self.hosts[number], packet)):
                self.arriving.append((port - 1, frame[FRAME_OVERHEAD:]))
        else:
            number, answer = self.rng.choice(self.arriving[-8:])
            engine = self.engines[number]
            engine.receive(answer, 0)
            self.sent += [(number, packet) for packet in engine.datagrams_to_send()]
            assert engine.failure is None
            if engine.finished:
                assert (abs(self.targets[number] - self.sum) <= self.error).all()

    def outline(self) -> tuple[Any, ...]:
        """As Model.outline tells it."""
        rounds = []
        for engine in self.engines:
            slots = engine.state[1]
            begun = [(int(slot.phase) - FIRST_PHASE) % 2**32 for slot in slots]
            done = [index + (slot.state == IDLE) for index, slot in zip(begun, slots, strict=True)]
            rounds.append((engine.epoch, tuple(map(int, done))))
        names = ("epoch", "phase", "bitmap")
        registers = [self.switch.dataplane.registers[f"SwitchIngress.service.slots.row_{name}"] for name in names]
        rows = tuple(tuple(register.read(row) for register in registers) for row in range(4))
        return self.epoch, tuple(rounds), rows


@pytest.mark.parametrize(("epochs", "rounds"), [(1, "PVVV"), (2, "PV"), (1, "GV")])
def test_engines_and_program_stay_within_the_model(epochs: int, rounds: str) -> None:
    """Every state of real engines and the compiled program, in random runs, is one that the model has; and many are met.

    Seen red (2026-11-30) with programs of test_mutations.py: stale packets added, duplicates added, no maximum of exponents.
    """
    known = set()
    for slots in itertools.product(["G", "GV"] if rounds == "GV" else [rounds], repeat=2):  # a good guess is the end
        known |= reachable(Model(TableSwitch(read()), Job(slots, epochs), Hosts()))
    rng = random.Random(1)
    switch = SwitchUnderTest("lanes", ELEMENTS)
    met = set()
    for _ in range(40):
        real = Real(epochs, rounds, rng, switch)
        for _ in range(150):
            real.happen()
            outline = real.outline()
            assert outline in known
            met.add(outline)
    assert len(met) > len(known) / 8
    print(f"{len(met)} of {len(known)} met")


def test_the_bound_holds_every_sequence_of_rounds() -> None:
    first_slots = {job.slots for job in bound(3) if len(job.slots) == 2 and job.epochs == 1}
    ordinary = {slots for slots in first_slots if set("".join(slots)) <= set(ORDINARY)}
    assert len({slot for slots in ordinary for slot in slots}) == 27
    assert {slots[0][-1] for slots in first_slots - ordinary} == set(ROUNDS) - set(ORDINARY)
