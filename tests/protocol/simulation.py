"""The project's main proof: N engines, the compiled switch program and a bad network, on a virtual clock, from one seed.

The network loses, repeats, reorders and delays (some packets for longer than whole epochs). Invariants, checked for every seed:
every finished sum equals the exact one bit for bit (in narrow lanes: within the stated bound); all ranks hold the same bits;
nothing finishes twice; everything finishes as long as loss is below 100 %; and nothing leaks between collectives, jobs sharing
the switch, or epochs. Exponents are asked for, guessed, or both by the size of the sum; guesses come from tensors that lay in
the same place before, so ranks guess differently, and wrong. An epoch that is cut off in the middle is finished without the
switch (host_agent/detour.py), in place as often as not: every sum that all ranks had begun must be right, and the same on all.

    python -m tests.protocol.simulation --seeds 2000              run seeds 0..1999
    python -m tests.protocol.simulation --minutes 10              run until the time is up (make soak)
    python -m tests.protocol.simulation --replay 1234             tell one seed step by step
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from switchsum.host_agent.detour import settle
from switchsum.host_agent.engine import Engine, collective_tag
from switchsum.host_agent.quantizer import GUESSED_BLOCKS, error_bound, reference_sum
from switchsum.p4src.layout import HEADER_DTYPE, SLOTS, PacketType
from tests.protocol.meeting import Meeting, MeetingPeers
from tests.protocol.switch_under_test import SwitchUnderTest, Worker, frame_of

ELEMENTS = 64
FRAME_OVERHEAD = 42  # Ethernet, IPv4, UDP
MS = 1_000_000
DEADLINE_NS = 3_600_000 * MS  # of virtual time: an hour; a run that is not done by then hangs
MOST_EVENTS = 400_000

Trace = Callable[[str], None]


class SimulationError(AssertionError):
    """An invariant does not hold; the message begins with the seed."""


@dataclass(frozen=True)
class Network:
    """How bad the network is. Probabilities per packet and direction; delays in ns."""

    loss: float
    duplicate: float
    delay: int
    jitter: int
    straggle: float  # probability of a delay of another order of magnitude
    straggle_for: int

    @classmethod
    def draw(cls, rng: random.Random) -> Network:
        """From a quiet LAN to a network that nobody would accept."""
        return cls(
            loss=rng.choice([0.0, 0.0, 0.01, 0.05, 0.2, 0.5]),
            duplicate=rng.choice([0.0, 0.0, 0.02, 0.2]),
            delay=rng.choice([10_000, 100_000, 1 * MS]),
            jitter=rng.choice([0, 10_000, 1 * MS, 20 * MS]),
            straggle=rng.choice([0.0, 0.02, 0.1]),
            straggle_for=rng.choice([5 * MS, 100 * MS, 5_000 * MS]),
        )

    def deliveries(self, rng: random.Random) -> Iterator[int]:
        """Delays (ns) after which copies of one packet arrive; none if it is lost."""
        for _ in range(2 if rng.random() < self.duplicate else 1):
            if rng.random() >= self.loss:
                wait = self.delay + rng.randrange(self.jitter + 1)
                if rng.random() < self.straggle:
                    wait += rng.randrange(self.straggle_for)
                yield wait


@dataclass
class Begun:
    """A sum that a rank has submitted."""

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    description: str


@dataclass
class Rank:
    """One worker in one epoch: its engine, its tensors, and what it has finished."""

    worker: Worker
    engine: Engine
    inputs: list[npt.NDArray[Any]]
    outputs: list[npt.NDArray[Any]]
    submit_at: list[int]
    submitted: int = 0
    finished: Counter[int] = field(default_factory=Counter)
    begun: dict[int, Begun] = field(default_factory=dict)  # and not finished
    # One place for each shape, as a trainer's buckets have; with the collective that uses it, None when free.
    places: dict[tuple[str, int], tuple[npt.NDArray[Any], int | None]] = field(default_factory=dict)


@dataclass
class Epoch:
    """One life of a job."""

    job: int
    number: int
    group: int
    ranks: list[Rank]
    lanes: int
    guessed_blocks: int
    in_place: bool
    abandon_at: int | None  # virtual time at which it is cut off in the middle, as after a lost worker

    @property
    def done(self) -> bool:
        return all(len(rank.finished) == len(rank.inputs) for rank in self.ranks)


def draw_tensor(rng: random.Random, generator: np.random.Generator, kind: str, numel: int) -> npt.NDArray[Any]:
    """Inputs that reach the corners: tiny and huge magnitudes, zero blocks, subnormals, NaN, Inf, full integer ranges."""
    if kind == "float32":
        values = generator.standard_normal(numel).astype(np.float32)
        values *= np.float32(2.0) ** generator.integers(-140, 120, numel // ELEMENTS + 1).repeat(ELEMENTS)[:numel].astype(
            np.float32
        )
        style = rng.randrange(6)
        if style == 0:
            values[:] = 0
        elif style == 1 and numel > 1:
            values[generator.integers(0, numel, max(1, numel // 50))] = rng.choice([np.nan, np.inf, -np.inf])
        return values
    dtype = np.int32 if kind == "int32" else np.int64
    if rng.random() < 0.5:
        return generator.integers(-1000, 1000, numel).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, numel, dtype=dtype, endpoint=True)


def wrong_elements(epoch: Epoch, number: int, found: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where the sum `found` of an epoch's collective is not what it must be: block floating point for floats, modulo the type's
    range for integers."""
    stacked = np.stack([rank.inputs[number] for rank in epoch.ranks])
    if stacked.dtype != np.float32:
        with np.errstate(over="ignore"):
            return np.flatnonzero(found != stacked.sum(axis=0, dtype=stacked.dtype))
    expected = reference_sum(stacked, ELEMENTS, epoch.guessed_blocks)
    if epoch.lanes == 32 or stacked.shape[1] <= epoch.guessed_blocks * ELEMENTS:
        return np.flatnonzero((found.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(found) & np.isnan(expected)))
    finite = np.isfinite(stacked).all(axis=0)
    exact = np.where(np.isfinite(stacked), stacked, np.float32(0))
    bound = error_bound(exact, ELEMENTS, epoch.lanes, epoch.guessed_blocks)
    off = np.abs(found.astype(np.float64) - exact.astype(np.float64).sum(axis=0)) > bound
    beyond = np.abs(exact.astype(np.float64).sum(axis=0)) + bound > np.finfo(np.float32).max  # may be infinite, as in IEEE
    odd = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    return np.flatnonzero(np.where(finite, off & ~beyond, odd))


def wrong_float_sums(epoch: Epoch, number: int, found: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where `found` is not what IEEE additions of the inputs in some order may give."""
    stacked = np.stack([rank.inputs[number] for rank in epoch.ranks])
    if stacked.dtype != np.float32:
        return np.arange(found.size)
    with np.errstate(all="ignore"):
        exact = stacked.astype(np.float64).sum(axis=0)
        bound = len(stacked) * np.finfo(np.float32).eps * np.abs(stacked.astype(np.float64)).sum(axis=0) + 1e-44
        close = np.abs(found - exact) <= bound
    same = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (np.isinf(found) & (np.abs(exact) > 1e38))
    return np.flatnonzero(~(close | same))


class Simulation:
    """One seed. `trace` receives a line per event."""

    def __init__(self, seed: int, switch: SwitchUnderTest, trace: Trace | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.generator = np.random.default_rng(seed)
        self.trace = trace
        self.switch = switch
        self.switch.reset()
        self.network = Network.draw(self.rng)
        self.now = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.by_port: dict[tuple[int, int], Rank] = {}  # who gets what arrives at (switch port, UDP port)
        self.timers: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self.epochs: list[Epoch] = []

    def fail(self, message: str) -> SimulationError:
        """The error that ends the run, with what one needs to see it again."""
        return SimulationError(
            f"seed {self.seed} at {self.now / MS:.3f} ms: {message} ({self.network}); "
            f"replay it with `python -m tests.protocol.simulation --replay {self.seed}`"
        )

    def tell(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now / MS:12.3f} ms  {text}")

    def at(self, when: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), action))

    def open_epoch(self, job: int, number: int, workers: list[Worker], base: int, slots: int, last: bool) -> Epoch:
        """Install a job and give each of its ranks an engine and work."""
        rng = self.rng
        group = job + 1
        self.switch.install_job(job, number, workers, base, slots, group)
        shapes: list[tuple[str, int]] = []
        for _ in range(rng.randrange(1, 4)):
            kind, numel = (
                rng.choice(["float32", "float32", "int32", "int64"]),
                rng.choice([1, 63, 64, 65, rng.randrange(1, 700)]),
            )
            shapes.append(rng.choice(shapes) if shapes and rng.random() < 0.5 else (kind, numel))
        lanes = rng.choice([32, 32, 16, 8])
        guessed_blocks = rng.choice([0, 3, GUESSED_BLOCKS])
        # Anywhere on the circle of 32-bit phases, its seams above all: registers still hold rows of earlier epochs.
        first_phase = rng.choice([0, 2**31 - 3, 2**32 - 3, rng.randrange(2**32)])
        ranks = []
        for index, worker in enumerate(workers):
            inputs = [draw_tensor(rng, self.generator, kind, numel) for kind, numel in shapes]
            start = self.now + rng.randrange(20 * MS)
            ranks.append(
                Rank(
                    worker=worker,
                    engine=Engine(
                        job=job,
                        epoch=number,
                        worker=index,
                        world_size=len(workers),
                        slots=slots,
                        elements=ELEMENTS,
                        lanes=lanes,
                        guessed_blocks=guessed_blocks,
                        switch_timeout_ns=DEADLINE_NS,
                        peer_timeout_ns=DEADLINE_NS,
                        first_phase=first_phase,
                    ),
                    inputs=inputs,
                    outputs=[np.empty_like(tensor) for tensor in inputs],
                    submit_at=list(itertools.accumulate((rng.choice([0, 0, 10 * MS]) for _ in inputs[1:]), initial=start)),
                )
            )
        abandon_at = None if last else self.now + rng.randrange(1, 60 * MS)
        in_place = rng.random() < 0.5
        epoch = Epoch(job, number, group, ranks, lanes, guessed_blocks, in_place, abandon_at)
        for rank in ranks:
            self.by_port[(rank.worker.port, rank.worker.udp_port)] = rank
            for i, when in enumerate(rank.submit_at):
                self.at(when, lambda rank=rank, i=i: self.submit(epoch, rank, i))  # type: ignore[misc]
        self.epochs.append(epoch)
        self.tell(f"job {job} epoch {number}: {len(workers)} workers, slots {base}..{base + slots - 1}, sums {shapes}")
        return epoch

    def submit(self, epoch: Epoch, rank: Rank, i: int) -> None:
        if self.by_port.get((rank.worker.port, rank.worker.udp_port)) is not rank:
            return  # its epoch was abandoned meanwhile
        values = rank.inputs[i]
        description = f"{values.dtype}[{values.size}]"
        place, user = rank.places.setdefault((str(values.dtype), values.size), (np.empty_like(values), None))
        if epoch.in_place:
            rank.outputs[i][:] = values
            values = rank.outputs[i]
        elif user is None:
            place[:] = values
            values = place
            rank.places[str(values.dtype), values.size] = (place, i)
        rank.engine.submit(values, rank.outputs[i], collective_tag(i, description), self.now)
        rank.begun[i] = Begun(values, rank.outputs[i], description)
        rank.submitted += 1
        self.pump(rank)

    def pump(self, rank: Rank) -> None:
        """Send what the engine wants sent, note what it finished, and set its timer."""
        engine = rank.engine
        if engine.failure is not None:
            raise self.fail(f"an engine failed: {engine.failure}")
        for payload in engine.datagrams_to_send():
            for delay in self.network.deliveries(self.rng):
                self.at(self.now + delay, lambda payload=payload: self.at_switch(rank.worker, payload))  # type: ignore[misc]
            self.counts["sent"] += 1
        for number in engine.take_finished():
            rank.finished[number] += 1
            rank.begun.pop(number, None)
            for shape, (place, user) in rank.places.items():
                if user == number:
                    rank.places[shape] = (place, None)
            self.tell(f"rank at port {rank.worker.port} finished collective {number}")
            if rank.finished[number] > 1:
                raise self.fail(f"collective {number} finished twice at port {rank.worker.port}")
        deadline = engine.next_timer()
        if deadline is not None and self.timers.get(id(engine), -1) != deadline:
            self.timers[id(engine)] = deadline
            self.at(max(deadline, self.now), lambda: self.wake(rank, deadline))

    def wake(self, rank: Rank, deadline: int) -> None:
        if rank.engine.next_timer() == deadline and self.by_port.get((rank.worker.port, rank.worker.udp_port)) is rank:
            self.timers.pop(id(rank.engine), None)
            rank.engine.tick(self.now)
            self.pump(rank)

    def at_switch(self, worker: Worker, payload: bytes) -> None:
        self.counts["arrived"] += 1
        outputs = self.switch.process(worker.port, frame_of(worker, payload), self.now // 1000)
        if self.trace is not None:
            self.tell(f"switch <- port {worker.port}: {describe(payload)}; {len(outputs)} out")
        for port, frame in outputs:
            udp_port = int.from_bytes(frame[36:38], "big")
            for delay in self.network.deliveries(self.rng):
                answer = frame[FRAME_OVERHEAD:]
                self.at(self.now + delay, lambda answer=answer, port=port, udp=udp_port: self.at_host(port, udp, answer))  # type: ignore[misc]

    def at_host(self, port: int, udp_port: int, payload: bytes) -> None:
        rank = self.by_port.get((port, udp_port))
        if rank is None:
            return
        if self.trace is not None:
            self.tell(f"port {port} <- switch: {describe(payload)}")
        rank.engine.receive(payload, self.now)
        rank.engine.tick(self.now)
        self.pump(rank)

    def close_epoch(self, epoch: Epoch) -> None:
        """Count what the switch saw, check the sums, and take the job out."""
        for index, rank in enumerate(epoch.ranks):
            for verdict, packets in self.switch.verdicts(epoch.job, epoch.number, index).items():
                self.counts[verdict.name] += packets
            counters = rank.engine.counters()
            if counters["collectives"] != len(rank.finished):
                raise self.fail("the engine counts other collectives than it reported")
            for name in ("guesses", "guessed_wrong", "guesses_adopted"):
                self.counts[name] += counters[name]
        self.switch.remove_job(epoch.job, epoch.number, epoch.group)
        settled = set() if epoch.done else self.settle(epoch)
        for number in range(len(epoch.ranks[0].inputs)):
            holders = [rank for rank in epoch.ranks if number in rank.finished]
            if not holders:
                continue
            for rank in holders:
                wrong = wrong_elements(epoch, number, rank.outputs[number])
                if number in settled:  # each chunk was summed here or there
                    wrong = np.intersect1d(wrong, wrong_float_sums(epoch, number, rank.outputs[number]))
                if wrong.size:
                    raise self.fail(
                        f"job {epoch.job} epoch {epoch.number} collective {number} at port {rank.worker.port}: "
                        f"{wrong.size} wrong elements, the first at {wrong[:1]}"
                    )
            if any(rank.outputs[number].tobytes() != holders[0].outputs[number].tobytes() for rank in holders):
                raise self.fail(f"ranks hold different bits of collective {number}")

    def settle(self, epoch: Epoch) -> set[int]:
        """Finish without the switch what was under way; returns the numbers of what that finished on some rank."""
        meeting = Meeting(len(epoch.ranks))
        numbers: list[set[int]] = [set() for _ in epoch.ranks]

        def body(index: int) -> None:
            rank = epoch.ranks[index]
            numbers[index] = settle(rank.engine, rank.begun, MeetingPeers(meeting, index))

        meeting.run(body)
        all_begun = min(rank.submitted for rank in epoch.ranks)
        for rank, finished in zip(epoch.ranks, numbers, strict=True):
            rank.finished.update(finished)
            if len(rank.finished) != all_begun:
                raise self.fail(f"{len(rank.finished)} of {all_begun} sums are finished at port {rank.worker.port}")
        self.counts["settled"] += len(set().union(*numbers))
        return set().union(*numbers)

    def run(self) -> Counter[str]:
        """Run to the end; returns counts of what happened. Raises SimulationError when an invariant fails."""
        rng = self.rng
        port = itertools.count(1)
        plans = []
        base = rng.randrange(0, SLOTS - 64)
        for job in range(1, rng.choice([1, 1, 2]) + 1):
            slots = rng.choice([1, 2, 3, 8])
            workers = [Worker.at(next(port)) for _ in range(rng.choice([1, 2, 2, 3, 4, rng.randrange(2, 9)]))]
            plans.append([job, 1, workers, base, slots, rng.choice([0, 0, 1, 2])])
            base += slots
        running: dict[int, Epoch] = {}
        for plan in plans:
            job, number, workers, first, slots, restarts = plan
            running[job] = self.open_epoch(job, number, workers, first, slots, last=restarts == 0)

        for _ in range(MOST_EVENTS):
            for plan in plans:
                epoch = running.get(plan[0])
                if epoch is None:
                    continue
                abandoned = epoch.abandon_at is not None and self.now >= epoch.abandon_at
                if not epoch.done and not abandoned:
                    continue
                self.tell(f"job {epoch.job} epoch {epoch.number} " + ("is done" if epoch.done else "is abandoned"))
                self.close_epoch(epoch)
                if plan[5] == 0:
                    del running[plan[0]]
                    continue
                plan[5] -= 1
                plan[1] += 1
                for rank in epoch.ranks:
                    self.by_port.pop((rank.worker.port, rank.worker.udp_port), None)
                running[plan[0]] = self.open_epoch(*plan[:5], last=plan[5] == 0)
            if not running:
                self.counts["epochs"] = len(self.epochs)
                return self.counts
            if not self.events:
                raise self.fail("nothing is under way, but not everything is finished")
            self.now, _, action = heapq.heappop(self.events)
            if self.now > DEADLINE_NS:
                break
            action()
        raise self.fail("does not end")


def describe(payload: bytes) -> str:
    """One line about a packet, for traces."""
    header = np.frombuffer(payload[: HEADER_DTYPE.itemsize], HEADER_DTYPE)[0]
    return (
        f"{PacketType(int(header['type'])).name} job {header['job']} epoch {header['epoch']} worker {header['worker']} "
        f"slot {header['slot']} phase {header['phase']} exponent {header['exponent']:#x} tag {header['tag']:08x} "
        f"flags {header['flags']}"
    )


_switch: SwitchUnderTest | None = None


def run_seed(seed: int, trace: Trace | None = None) -> Counter[str]:
    """Run one seed on this process's switch."""
    global _switch
    if _switch is None:
        _switch = SwitchUnderTest("lanes", ELEMENTS)
    return Simulation(seed, _switch, trace).run()


def try_seed(seed: int) -> tuple[int, Counter[str], str]:
    """run_seed for a pool: (seed, counts, error text or "")."""
    try:
        return seed, run_seed(seed), ""
    except Exception as error:  # whatever it is, the seed must be named
        return seed, Counter(), f"{type(error).__name__}: {error}"


def soak(seeds: Iterator[int], total: int | None, deadline: float | None, processes: int) -> tuple[Counter[str], list[str]]:
    """Run seeds in parallel until they or the time run out; returns summed counts and the errors (at most ten)."""
    counts: Counter[str] = Counter()
    errors: list[str] = []
    limited = itertools.takewhile(lambda _: deadline is None or time.monotonic() < deadline, seeds)
    with multiprocessing.get_context("spawn").Pool(processes) as pool, Progress(transient=True) as progress:
        task = progress.add_task("simulation", total=total)
        for seed, more, error in pool.imap_unordered(try_seed, throttled(limited), chunksize=16):
            counts += more
            counts["seeds"] += 1
            if error:
                errors.append(error if "seed" in error else f"seed {seed}: {error}")
                if len(errors) >= 10:
                    break
            progress.update(task, advance=1, description=f"simulation, seed {seed}, {len(errors)} failed")
            if deadline is not None and time.monotonic() > deadline:
                break
    return counts, errors


def throttled(seeds: Iterator[int]) -> Iterator[int]:
    """imap_unordered reads its input eagerly; the pool's queue must not swallow an endless one."""
    for i, seed in enumerate(seeds):
        if i and i % 256 == 0:
            time.sleep(0.2)
        yield seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100_000, help="how many seeds (default 100,000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--minutes", type=float, help="run for this long instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and tell every step")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        print(run_seed(options.replay, trace=print))
        return 0
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    total = None if options.minutes is not None else options.seeds
    seeds = itertools.count(options.first) if total is None else iter(range(options.first, options.first + total))
    began = time.monotonic()
    counts, errors = soak(seeds, total, deadline, options.processes)
    for error in errors:
        print(error, file=sys.stderr)
    print(
        f"{counts['seeds']} seeds in {time.monotonic() - began:.0f} s, {len(errors)} failed; epochs {counts['epochs']}, "
        f"packets sent {counts['sent']}, arrived {counts['arrived']}, completions {counts['COMPLETION']}, "
        f"repairs {counts['REPAIR']}, duplicates {counts['DUPLICATE']}, stale {counts['STALE']}, guesses {counts['guesses']}, "
        f"wrong {counts['guessed_wrong']}, another rank's adopted {counts['guesses_adopted']}, "
        f"sums finished without the switch {counts['settled']}"
    )
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
