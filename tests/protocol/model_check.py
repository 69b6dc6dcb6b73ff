"""Bounded model check of p4src/state_machine.yaml and the workers' rules: every interleaving, no seed and no chance.

What is modelled, and what must hold: tests/protocol/model.py. What came of it: docs/state-machine.md.

    python -m tests.protocol.model_check                              the small bound, seconds (part of make test)
    python -m tests.protocol.model_check --phases 4                   a larger one, minutes (make model-check)
    python -m tests.protocol.model_check --weaken one_version_bit     a weaker rule: the shortest way to what it breaks
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.protocol.model import ORDINARY, ROUNDS, STRANGER, Found, Hosts, Job, Model
from tests.protocol.modelled_switches import OneVersionBit, Switch, TableSwitch
from tests.protocol.slot_rules import read
from tests.protocol.weakenings import TABLE_WEAKENINGS


def jobs(phases: int, slots: int, rounds: str = "".join(ROUNDS), epochs: int = 1) -> Iterator[Job]:
    """All sequences of so many rounds. In the second slot they run backwards; where ranks disagree, which ends the job, it is
    the last round of the first slot, and the second slot carries values.
    """
    ordinary, last = ([letter for letter in rounds if (letter in ORDINARY) == wanted] for wanted in (True, False))
    for letters in itertools.product(ordinary, repeat=phases):
        sequence = "".join(letters)
        if slots == 1 or sequence <= sequence[::-1]:  # else it is another one with its slots exchanged
            yield Job((sequence, sequence[::-1])[:slots], epochs)
    for letters in itertools.product(ordinary, repeat=phases - 1):
        yield from (Job(("".join((*letters, end)), "V" * phases)[:slots], epochs) for end in last)


def bound(phases: int) -> Iterator[Job]:
    """What is checked: two slots of so many phases; of one phase less if the job lives twice; one slot of one phase more; three
    workers.
    """
    yield from jobs(phases, 2)
    yield from jobs(phases - 1, 2, ORDINARY, epochs=2)
    yield from jobs(phases + 1, 1, ORDINARY, epochs=2)
    yield from (replace(job, workers=3) for job in jobs(phases, 1, ORDINARY, epochs=2))


@dataclass(frozen=True)
class Weakening:
    """A weaker rule, of the switch or of the workers; and the jobs that may show it, the largest `phases` long."""

    switch: Switch
    hosts: Hosts
    rounds: str = "".join(ROUNDS)
    phases: int = 3
    epochs: int = 2

    def shortest_failure(self, sought: str = "") -> tuple[Job, Found]:
        """What it breaks in the smallest job that shows it. `sought`: see Model.search. Raises LookupError."""
        for slots, phases, epochs in itertools.product((1, 2), range(1, self.phases + 1), range(1, self.epochs + 1)):
            for job in jobs(phases, slots, self.rounds, epochs):
                found = Model(self.switch, job, self.hosts).search(sought)
                if found.failure is not None:
                    return job, found
        raise LookupError(f"nothing fails in jobs of {self.phases} phases")


def _weakened(weaken: Callable[[dict[str, Any]], None]) -> Switch:
    table = read()
    weaken(table)
    return TableSwitch(table)


def weakenings() -> dict[str, Weakening]:
    """By name, all that must be found."""
    found = {weaken.__name__: Weakening(_weakened(weaken), Hosts()) for weaken in TABLE_WEAKENINGS}
    # Seven phases and values alone: a late packet must be that late, and exponents and guesses make no difference.
    found["phases_of_three_bits"] = replace(found["phases_of_three_bits"], rounds="V", phases=7)
    found["workers_take_any_phase"] = Weakening(TableSwitch(read()), Hosts(check_phases=False))
    found["workers_take_any_epoch"] = Weakening(TableSwitch(read()), Hosts(check_epochs=False))
    # SwitchML has neither guesses nor tags, and clears its registers for every job.
    found["one_version_bit"] = Weakening(OneVersionBit(), Hosts(), rounds="V", epochs=1)
    return found


def tell(job: Job, found: Found) -> str:
    """The shortest way to a failure, an event a line."""
    lines = [f"{job}; {found.states:,} states"]
    lines += [f"{number:3}. {event}" for number, event in enumerate(found.trace, 1)]
    return "\n".join([*lines, f"     {found.failure}"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--phases", type=int, default=2, help="rounds in each of two slots (default 2)")
    names = weakenings()
    parser.add_argument("--weaken", choices=names, help="take a weaker rule, and print the shortest way to what it breaks")
    options = parser.parse_args(arguments)
    if options.phases < 2:
        parser.error(f"--phases {options.phases}: a job that lives twice has one phase less, so there must be 2")
    if options.weaken:
        print(tell(*names[options.weaken].shortest_failure()))
        if options.weaken == "one_version_bit":
            print("\nand the shortest way to the violation that VeriNC found, a packet that is late by two phases:")
            print(tell(*names[options.weaken].shortest_failure(STRANGER)))
        return 0
    began = time.perf_counter()
    totals: dict[tuple[int, int, int], list[int]] = {}
    switch, hosts = TableSwitch(read()), Hosts()
    for job in bound(options.phases):
        found = Model(switch, job, hosts).search()
        if found.failure is not None:
            print(tell(job, found), file=sys.stderr)
            return 1
        total = totals.setdefault((job.workers, job.epochs, len(job.slots)), [0, 0, 0, 0])
        for place, number in enumerate((1, found.states, found.steps)):
            total[place] += number
        total[3] = max(total[3], found.states)
        print(f"{job}: {found.states:,} states, {found.steps:,} steps, {found.seconds:.1f} s", flush=True)
    print()
    for (workers, epochs, slots), (count, states, steps, largest) in totals.items():
        kind = f"{workers} workers, {epochs} epoch{'s' * (epochs > 1)}, {slots} slot{'s' * (slots > 1)}"
        print(f"{kind}: {count} jobs, {states:,} states (the largest {largest:,}), {steps:,} steps")
    everything = [sum(total[place] for total in totals.values()) for place in range(3)]
    seconds = time.perf_counter() - began
    print(f"{everything[0]} jobs, {everything[1]:,} states, {everything[2]:,} steps in {seconds:.0f} s: nothing fails")
    return 0


if __name__ == "__main__":
    sys.exit(main())
