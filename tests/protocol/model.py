"""A job on paper: its workers, its switch and the worst network there is, in every order in which things can happen.

The switch is the table, carried out by slot_rules.py. A worker does what host_agent/engine.py does, without clocks: it sends a
round's packet again at any time, takes an answer to the round that it is in, and ignores all others. The network loses,
repeats, reorders and delays without bound: whatever was sent may arrive at any later moment, any number of times, or never. So
a state holds what was sent as a set, and the search is finite without a limit on copies. Bounds are workers, slots, rounds and
epochs; within them nothing is left out but what can change nothing any more: packets of an epoch that the job table refuses,
answers to rounds that their worker has left, and STATUS, which moves a worker's clocks only.

Rounds: P proposes exponents; V carries values; G guesses, each worker its own exponent, and takes the row's guess when told of
another; D and d are rounds in which the ranks disagree about the collective (d: and about the packet's type as well). With two
epochs, the controller may start the job again at any moment, and each worker notices whenever it does. Phases begin two before
they wrap.

What must hold: a result that a worker takes holds every worker's packet of this epoch, slot and round once and nothing else,
and the largest of their exponents; no other type or tag is answered; none is told of a disagreement where there is none; and
from every state, if the network behaves from then on, all workers finish (where ranks disagree: one of them is told).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from switchsum.p4src.layout import Flag, PacketType
from tests.protocol.modelled_switches import Switch, Values
from tests.protocol.slot_rules import Answer, Packet

FIRST_PHASE = 2**32 - 2
ROUNDS = {
    "V": "VALUES",
    "P": "PROPOSE",
    "G": "GUESS",
    "D": "VALUES of different collectives",
    "d": "VALUES and PROPOSE of different collectives",
}
ORDINARY = "VPG"
TAGS = {
    "P": 1,
    "V": 2,
    "G": 3,
    "D": 100,
    "d": 100,
}  # of worker w: plus w for G, D and d. A slot's rounds share them: one tensor
STRANGER = "a sum with a packet of another round is delivered"
TWICE = "a sum with a packet twice is delivered"
LACKING = "a sum without a worker's packet is delivered"
ENDLESS = "the job never ends, although the network behaves from here on"

State = tuple[int, ...]


@dataclass(frozen=True)
class Hosts:
    """The workers' rules, which can be weakened as well."""

    check_epochs: bool = True
    check_phases: bool = True


@dataclass(frozen=True, slots=True)
class Sent:
    """A packet on its way to the switch, for ever."""

    worker: int
    slot: int
    round: int  # from 0
    packet: Packet


@dataclass(frozen=True, slots=True)
class Arriving:
    """An answer on its way to a worker, for ever. The rest of its labels are those of the packet that it is made of."""

    worker: int
    epoch: int
    slot: int
    round: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker in one epoch: for each slot the round that it is in, and its guess there. `told`: of a disagreement."""

    number: int
    epoch: int
    slots: tuple[tuple[int, int], ...]
    told: bool = False


@dataclass(frozen=True)
class Job:
    """What is explored: the rounds of each slot as letters of ROUNDS, and how often the job may live."""

    slots: tuple[str, ...]
    epochs: int = 1
    workers: int = 2

    def __str__(self) -> str:
        return f"{self.workers} workers, {self.epochs} epoch{'s' * (self.epochs > 1)}, slots {' and '.join(self.slots)}"


@dataclass(frozen=True)
class Found:
    """The result of a search: `failure` is None when everything holds, else what does not, with the events that lead there."""

    states: int
    steps: int
    seconds: float
    failure: str | None
    trace: tuple[str, ...]


class Model:
    """All behaviours of one job."""

    def __init__(self, switch: Switch, job: Job, hosts: Hosts) -> None:
        self.switch, self.hosts = switch, hosts
        self.sequences, self.workers, self.epochs = job.slots, job.workers, job.epochs
        self._sent: list[Sent] = []
        self._places: list[tuple[int, ...]] = []
        self._arriving: list[Arriving] = []
        self._workers: list[Worker] = []
        self._rows: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._at_switch: dict[tuple[int, ...], tuple[tuple[int, ...], int, str]] = {}
        self._at_worker: dict[tuple[int, int], tuple[int, int, str | None, str]] = {}
        self._dead: dict[tuple[int, int], bool] = {}
        places = (switch.places(slot, phase) for slot in range(len(job.slots)) for phase in (0, 1))
        self._row_count = 1 + max(itertools.chain.from_iterable(places))

    # --- numbers for things -----------------------------------------------------------------------------------------

    def _number(self, things: list[Any], thing: Any) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(things)
            things.append(thing)
        return number

    def _packet_of(self, worker: int, epoch: int, slot: int, index: int, guess: int) -> int:
        """Number of the packet that a worker sends in a round."""
        letter = self.sequences[slot][index]
        guess = guess if letter == "G" else 0
        key = (worker, epoch, slot, index, guess)
        if key not in self._numbers:
            kind = PacketType.PROPOSAL if letter == "P" or (letter == "d" and worker) else PacketType.CONTRIBUTION
            tag = TAGS[letter] + {"G": guess, "D": worker, "d": worker}.get(letter, 0)
            # Later rounds and epochs have smaller exponents: what is left over shows. Which worker's is largest changes.
            exponent = 5000 - 1000 * epoch - 100 * index - 10 * slot + (worker + index) % self.workers
            phase = (FIRST_PHASE + index) % 2**32
            values = None if kind == PacketType.PROPOSAL else (len(self._sent),)
            packet = Packet(kind, epoch, phase, tag, exponent, int(Flag.WANT_STATUS), values)
            self._numbers[key] = len(self._sent)
            self._sent.append(Sent(worker, slot, index, packet))
            self._places.append(self.switch.places(slot, phase))
        return self._numbers[key]

    def _packets_of(self, worker: Worker) -> int:
        """The packets of a worker's present rounds, as a set."""
        mask = 0
        for slot, (index, guess) in enumerate(worker.slots):
            if index < len(self.sequences[slot]) and not worker.told:
                mask |= 1 << self._packet_of(worker.number, worker.epoch, slot, index, guess)
        return mask

    def _begin(self, number: int, epoch: int) -> Worker:
        return Worker(number, epoch, tuple((0, number) for _ in self.sequences))

    # --- what can happen --------------------------------------------------------------------------------------------

    def first(self) -> State:
        """Power-on; every worker has sent the first packets of its slots."""
        begun = [self._begin(number, 1) for number in range(self.workers)]
        sent = 0
        for worker in begun:
            sent |= self._packets_of(worker)
        empty = self._number(self._rows, self.switch.empty)
        return (1, *(self._number(self._workers, worker) for worker in begun), *[empty] * self._row_count, sent, 0)

    def _deliver(self, state: State, number: int) -> tuple[State, str]:
        """A packet reaches the switch."""
        base = 1 + self.workers
        places = self._places[number]
        key = (number, *[state[base + place] for place in places])
        known = self._at_switch.get(key)
        if known is None:
            sent = self._sent[number]
            rows = tuple(self._rows[state[base + place]] for place in places)
            after, answers, word = self.switch.receive(rows, sent.packet, sent.worker, self.workers)
            mask = 0
            for receiver, answer in answers:
                if answer.type != PacketType.STATUS:
                    arriving = Arriving(receiver, sent.packet.epoch, sent.slot, sent.round, answer)
                    mask |= 1 << self._number(self._arriving, arriving)
            known = self._at_switch[key] = (tuple(self._number(self._rows, row) for row in after), mask, word)
        numbers, answers_mask, word = known
        changed = list(state)
        for place, row in zip(places, numbers, strict=True):
            changed[base + place] = row
        changed[-1] |= self._living(changed, answers_mask & ~state[-1])
        return tuple(changed), word

    def _living(self, state: list[int] | State, mask: int) -> int:
        """Those of a set of answers that can still change something."""
        kept = mask
        for number in bits(mask):
            worker = state[1 + self._arriving[number].worker]
            dead = self._dead.get((worker, number))
            if dead is None:
                dead = self._dead[worker, number] = self._is_dead(self._workers[worker], self._arriving[number])
            if dead:
                kept &= ~(1 << number)
        return kept

    def _is_dead(self, worker: Worker, arriving: Arriving) -> bool:
        left = arriving.round < worker.slots[arriving.slot][0] and self.hosts.check_phases
        late = arriving.epoch < worker.epoch or (left and arriving.epoch == worker.epoch)
        return worker.told or (late and self.hosts.check_epochs)

    def _take(self, state: State, number: int) -> tuple[State, str | None, str]:
        """An answer reaches its worker: (state, what it breaks, a word for what happened)."""
        place = 1 + self._arriving[number].worker
        key = (state[place], number)
        known = self._at_worker.get(key)
        if known is None:
            before = self._workers[state[place]]
            after, failure, word = self._receive(before, self._arriving[number])
            new = self._packets_of(after) if after != before else 0
            known = self._at_worker[key] = (self._number(self._workers, after), new, failure, word)
        after_number, new, failure, word = known
        if after_number == state[place]:
            return state, failure, word
        changed = list(state)
        changed[place] = after_number
        changed[-2] |= self._admissible(new, state[0])
        changed[-1] = self._living(changed, state[-1])
        return tuple(changed), failure, word

    def _receive(self, worker: Worker, arriving: Arriving) -> tuple[Worker, str | None, str]:
        """host_agent/engine.py's receive(), as far as it is no arithmetic."""
        answer, slot = arriving.answer, arriving.slot
        index, guess = worker.slots[slot]
        if worker.told or index == len(self.sequences[slot]):
            return worker, None, "ignored"
        if self.hosts.check_epochs and arriving.epoch != worker.epoch:
            return worker, None, "ignored"
        if self.hosts.check_phases and arriving.round != index:
            return worker, None, "ignored"
        letter = self.sequences[slot][index]
        if answer.type == PacketType.MISMATCH:
            if letter == "G" and TAGS["G"] <= answer.tag < TAGS["G"] + self.workers:
                return self._in_round(worker, slot, index, answer.tag - TAGS["G"]), None, "takes the other guess"
            failure = None if letter not in ORDINARY else "a worker is told of a disagreement where there is none"
            return replace(worker, told=True), failure, "is told that the ranks disagree"
        own = self._sent[self._packet_of(worker.number, worker.epoch, slot, index, guess)].packet
        expected = PacketType.AGREEMENT if own.type == PacketType.PROPOSAL else PacketType.RESULT
        if answer.type != expected or answer.tag != own.tag:
            return worker, f"a worker that expects {expected.name} gets {answer.type.name} with tag {answer.tag}", "fails"
        numbers = [self._packet_of(other, worker.epoch, slot, index, guess) for other in range(self.workers)]
        largest = max(self._sent[number].packet.exponent for number in numbers)
        told = tuple(sorted(numbers)) if expected == PacketType.RESULT else None
        failure = None
        if letter not in ORDINARY:
            failure = "a sum of ranks that disagree is delivered"
        elif answer.values != told:
            failure = f"{self._what_is_wrong(answer.values, told)}: {self._contents(answer.values)}, not {self._contents(told)}"
        elif answer.exponent != largest:
            failure = f"a wrong exponent is delivered: {answer.exponent} instead of {largest}"
        return self._in_round(worker, slot, index + 1, worker.number), failure, "takes it"

    @staticmethod
    def _what_is_wrong(found: Values | None, right: Values | None) -> str:
        if set(found or ()) - set(right or ()):
            return STRANGER
        return TWICE if len(found or ()) > len(set(found or ())) else LACKING

    @staticmethod
    def _in_round(worker: Worker, slot: int, index: int, guess: int) -> Worker:
        return replace(worker, slots=(*worker.slots[:slot], (index, guess), *worker.slots[slot + 1 :]))

    def _restart(self, state: State) -> State:
        """The controller lets the job's next epoch in, and the last one out."""
        return (state[0] + 1, *state[1:-2], self._admissible(state[-2], state[0] + 1), state[-1])

    def _admissible(self, mask: int, epoch: int) -> int:
        """Those of a set of packets that the switch may still let in."""
        refused = (number for number in bits(mask) if not self.switch.admits(self._sent[number].packet, epoch))
        return mask & ~sum(1 << number for number in refused)

    def _join(self, state: State, place: int) -> State:
        """A worker learns of the next epoch."""
        changed = list(state)
        worker = self._begin(place - 1, state[0])
        changed[place] = self._number(self._workers, worker)
        changed[-2] |= self._packets_of(worker)
        changed[-1] = self._living(changed, state[-1])
        return tuple(changed)

    def following(self, state: State) -> Iterator[tuple[State, str | None, tuple[str, int]]]:
        """Everything that can happen next: (state, what it breaks, event). What changes nothing is left out."""
        epoch = state[0]
        for number in bits(state[-2]):
            if self.switch.admits(self._sent[number].packet, epoch):
                after, _ = self._deliver(state, number)
                if after != state:
                    yield after, None, ("deliver", number)
        for number in bits(state[-1]):
            after, failure, _ = self._take(state, number)
            if after != state or failure:
                yield after, failure, ("take", number)
        if epoch < self.epochs:
            yield self._restart(state), None, ("restart", 0)
        for place in range(1, 1 + self.workers):
            if self._workers[state[place]].epoch < epoch:
                yield self._join(state, place), None, ("join", place)

    def quiet(self, state: State) -> State:
        """One round trip of a network that behaves, all that is under way being lost: each worker asks again, in each slot."""
        for place in range(1, 1 + self.workers):
            if self._workers[state[place]].epoch < state[0]:
                state = self._join(state, place)
        for place in range(1, 1 + self.workers):
            for number in bits(self._packets_of(self._workers[state[place]])):
                _, answers, _ = self._answers_to(state, number)
                state, _ = self._deliver(state, number)
                for answer in bits(answers):
                    state, _, _ = self._take(state, answer)
        return state

    def _answers_to(self, state: State, number: int) -> tuple[tuple[int, ...], int, str]:
        self._deliver(state, number)
        base = 1 + self.workers
        return self._at_switch[(number, *[state[base + place] for place in self._places[number]])]

    def ended(self, state: State) -> bool:
        """Whether the job has come to its end: all finished, or one told that the ranks disagree."""
        workers = [self._workers[state[place]] for place in range(1, 1 + self.workers)]
        finished = all(index == len(self.sequences[slot]) for worker in workers for slot, (index, _) in enumerate(worker.slots))
        return any(worker.told for worker in workers) or (finished and all(worker.epoch == state[0] for worker in workers))

    def outline(self, state: State) -> tuple[Any, ...]:
        """What a state looks like from outside: the job's epoch, each worker's epoch and rounds, each row's epoch, phase and
        bitmap.
        """
        workers = [self._workers[state[place]] for place in range(1, 1 + self.workers)]
        rows = [self._rows[number] for number in state[1 + self.workers : -2]]
        rounds = tuple((worker.epoch, tuple(index for index, _ in worker.slots)) for worker in workers)
        return state[0], rounds, tuple((row.epoch, row.phase, row.bitmap) for row in rows)

    # --- the search -------------------------------------------------------------------------------------------------

    def search(self, sought: str = "") -> Found:
        """Visit every state, nearest first, then ask each whether the job ends on a network that behaves from there on.

        `sought`: how the failure that is looked for begins; the search does not go on behind another one.
        """
        began = time.perf_counter()
        first = self.first()
        came: dict[State, tuple[State, tuple[str, int]] | None] = {first: None}
        waiting = deque([first])
        steps = 0
        while waiting:
            state = waiting.popleft()
            for after, failure, event in self.following(state):
                steps += 1
                if failure is not None and not failure.startswith(sought):
                    continue
                if failure is not None:
                    trace = (*self._way(came, state), self._told(state, event))
                    return Found(len(came), steps, time.perf_counter() - began, failure, trace)
                if after not in came:
                    came[after] = (state, event)
                    waiting.append(after)
        ends: set[State] = set()
        for state in came if ENDLESS.startswith(sought) else ():
            path: dict[State, None] = {}
            at = state
            while at not in ends and at not in path and not self.ended(at):
                path[at] = None
                at = self.quiet(at)
            if at in path:
                return Found(len(came), steps, time.perf_counter() - began, ENDLESS, tuple(self._way(came, state)))
            ends.update(path)
        return Found(len(came), steps, time.perf_counter() - began, None, ())

    # --- for people -------------------------------------------------------------------------------------------------

    def _way(self, came: dict[State, tuple[State, tuple[str, int]] | None], state: State) -> list[str]:
        lines: list[str] = []
        while (step := came[state]) is not None:
            state, event = step
            lines.append(self._told(state, event))
        return lines[::-1]

    def _told(self, state: State, event: tuple[str, int]) -> str:
        what, number = event
        if what == "restart":
            return f"the controller starts the job again, as epoch {state[0] + 1}"
        if what == "join":
            return f"worker {number - 1} begins epoch {state[0]}"
        if what == "deliver":
            _, answers, word = self._answers_to(state, number)
            to = ", ".join(str(self._arriving[answer].worker) for answer in bits(answers))
            kinds = {self._arriving[answer].answer.type.name for answer in bits(answers)}
            leaves = f"; {', '.join(sorted(kinds))} to worker {to}" if to else ""
            return f"switch <- {self._name(number)}: {word}{leaves}"
        arriving = self._arriving[number]
        _, _, word = self._take(state, number)
        where = self._where(arriving.epoch, arriving.slot, arriving.round)
        return f"worker {arriving.worker} <- {arriving.answer.type.name} of {where}: {word}"

    def _where(self, epoch: int, slot: int, index: int) -> str:
        names = [f"epoch {epoch}"] if self.epochs > 1 else []
        names += [f"slot {slot}"] if len(self.sequences) > 1 else []
        return ", ".join([*names, f"round {index + 1}"])

    def _name(self, number: int) -> str:
        sent = self._sent[number]
        where = self._where(sent.packet.epoch, sent.slot, sent.round)
        return f"worker {sent.worker}, {where} ({ROUNDS[self.sequences[sent.slot][sent.round]]})"

    def _contents(self, values: Values | None) -> str:
        return "no values" if values is None else "{" + "; ".join(self._name(number) for number in values) + "}"


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
