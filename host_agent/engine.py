"""The slot engine: datagrams, tensors and the time go in; datagrams, finished tensors and the next deadline come out.

Sans-IO (no socket, thread, clock or sleep), and compiled (numba, `nogil`), so the transport's loop runs it without the
trainer's GIL and the simulation runs the very same code on a virtual clock.

Collectives form one stream of chunks (E elements each); chunk c travels in slot c mod W, so each slot works through
chunks c, c + W, ... and every answer frees the slot for its next chunk: a self-clocked window (SwitchML, NSDI'21, section 3).
A chunk takes one or more rounds, each one phase of its slot:

    PROPOSE   header only: the ranks agree on the chunk's code     -> CLASSES, VALUES or HALVES
    GUESS     the numbers by a guessed code; proposes the true one -> next chunk if the guess was right, else as after PROPOSE
    CLASSES   float block with NaN or Inf: which, where            -> CLASSES for each lane of a word, then VALUES
    VALUES    the numbers; proposes the code of the next chunk     -> next chunk
    HALVES    integers as 16-bit half words, 2 or 4 rounds         -> next chunk after the last

The last round of a chunk carries the proposal for the slot's next one, so that a round for the code alone is needed only where
some rank had not queued it yet (its NONE is the largest code, so all ranks learn it). All ranks see the same maxima and so take
the same path.

Collectives of few blocks (quantizer.GUESSED_BLOCKS) begin with GUESS instead of PROPOSE: one round trip in all. A rank guesses
what the same tensor needed last time, or what its own numbers need. If ranks guess differently, the first to reach the switch
decides: the others are told its tag (MISMATCH), which holds the guess, and send theirs again by it, in the same phase. The row
took nothing of theirs, and what it holds is kept or thrown away by all ranks alike, since all see the same true code.

Loss: a slot resends the same bytes when slots sent later have been answered for longer than the reordering window (RFC 8985,
RACK; the window grows while the switch says that such resends were not needed: by a STATUS that lists this rank, or by a
stored sum that had come already). What counts as a round trip is the network's alone, without the wait for ranks that still
compute or repair: else patience would grow with every loss, and the next loss would wait longer. When nothing is answered for
a retransmission timeout (RFC 6298: one timer, restarted by each answer, doubled up to a cap), the oldest slot alone is
resent: its answer shows whether the rest was lost, and then brings it back by the first rule. A resend asks the switch for
the row's state, so that silence (a dead switch) is told from waiting (a peer that has not come yet: a step's first sum waits
for the slowest rank), and both end in a failure that names slot, phase and missing workers.

A lost switch: each slot keeps its last finished chunk's sum beside the tensor, which is its owner's again. Nobody is further
ahead of another rank than that: a slot's next chunk needs everybody's contribution, and so everybody's having had this one's
sum. So the ranks can finish without the switch what any of them has finished, and sum the rest again (detour.py).
"""

from __future__ import annotations

import platform
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import voidptr_t
from numba.extending import intrinsic

from switchsum.host_agent import quantizer as q
from switchsum.host_agent import wire
from switchsum.host_agent.wire import HEADER_WORDS, swap32
from switchsum.p4src.layout import HEADER_BYTES, Flag

MAX_QUEUED = 1024  # collectives in flight or waiting in the engine; the agent holds back the rest
INITIAL_RTO_NS = 50_000_000
MIN_RTO_NS = 5_000_000  # scheduling noise of a busy host is of this order
MAX_RTO_NS = 1_000_000_000
REORDERING_FLOOR_NS = 500_000  # the window is not below what one batch of packets takes
MOST_REORDERING = 4  # quarters of the RTT: the window never exceeds one (RFC 8985, section 6.2, step 4)
RECOVERIES_PER_STEP = 16  # a widened window is kept for this many recoveries (same place), then made smaller by one step
RETRIES_BEFORE_SILENCE = 3  # a switch counts as silent only after several unanswered questions

# kinds of collectives
FLOAT32, INT32, INT64 = 0, 1, 2
_KINDS = {np.dtype(np.float32): FLOAT32, np.dtype(np.int32): INT32, np.dtype(np.int64): INT64}
# states of a slot
IDLE, PROPOSE, CLASSES, VALUES, HALVES, GUESS = 0, 1, 2, 3, 4, 5

# What the time of the data path goes to, see Engine.end_profile: each moment of the loop belongs to one of them.
STAGES = ("python", "wait", "receive", "parse", "dequantize", "propose", "quantize", "pack", "timers", "send")
_PYTHON, _PARSE, _DEQUANTIZE, _PROPOSE_TIME, _QUANTIZE, _PACK = 0, 3, 4, 5, 6, 7

MEMORY_BLOCKS = 1 << 16  # blocks of small tensors whose exponents are remembered, oldest forgotten first
FEEDBACK_ELEMENTS = 1 << 28  # 1 GiB: what narrow lanes may remember of their roundings, oldest forgotten first
# failures
NO_FAILURE, SWITCH_SILENT, PEERS_MISSING, MISMATCHED, PROTOCOL_BROKEN = 0, 1, 2, 3, 4

_WANT_STATUS = int(Flag.WANT_STATUS)
_REPAIR = int(Flag.REPAIR)


def _build() -> str:
    """Name of this state of the compiled sources.

    numba keeps machine code by the file that a function stands in, and does not notice when a function that it calls, in
    another file, changes: the transport's loop would go on with yesterday's engine. A field of this name makes types differ.
    """
    folder = Path(__file__).parent
    sources = [(folder / f"{name}.py").read_bytes() for name in ("wire", "quantizer", "engine", "udp_batches", "transport")]
    return f"build_{zlib.crc32(b''.join(sources)):08x}"


SHARED_DTYPE = np.dtype(
    [
        (_build(), "i8"),
        # fixed for an epoch
        ("job", "i8"), ("epoch", "i8"), ("worker", "i8"), ("world_size", "i8"), ("slots", "i8"), ("elements", "i8"),
        ("switch_timeout_ns", "i8"), ("peer_timeout_ns", "i8"),
        # round trip times, ns (RFC 6298)
        ("srtt", "i8"), ("rttvar", "i8"), ("rto", "i8"), ("newest_answered", "i8"), ("newest_checked", "i8"),
        ("reordering", "i8"), ("widened_at", "i8"), ("recoveries", "i8"),
        ("heard_at", "i8"), ("progress_at", "i8"), ("restarted_at", "i8"), ("backoff", "i8"), ("next_timer", "i8"),
        ("active", "i8"),
        # the stream
        ("queued_chunks", "i8"), ("head", "i8"), ("tail", "i8"),
        ("outbox", "i8"), ("finished", "i8"),
        # what went wrong
        ("failure", "i8"), ("failed_slot", "i8"), ("failed_tag", "i8"),
        # the stage profile, in processor cycles
        ("profiling", "i8"), ("lap_at", "i8"), ("laps", "i8", (len(STAGES),)),
        # counters
        ("packets_sent", "i8"), ("bytes_sent", "i8"), ("packets_received", "i8"), ("bytes_received", "i8"),
        ("timeouts", "i8"), ("early_repairs", "i8"), ("repairs_received", "i8"), ("stale", "i8"), ("foreign", "i8"),
        ("collectives", "i8"), ("guesses", "i8"), ("guessed_wrong", "i8"), ("guesses_adopted", "i8"),
    ]
)  # fmt: skip
SLOT_DTYPE = np.dtype(
    [
        ("phase", "i8"), ("chunk", "i8"), ("collective", "i8"), ("state", "i8"), ("part", "i8"), ("code", "i8"),
        ("special", "i8"), ("sent_at", "i8"), ("resent", "i8"), ("length", "i8"), ("queued", "i8"),
        ("present", "i8"), ("early", "i8"), ("kept_words", "i8"),
    ]
)  # fmt: skip
COLLECTIVE_DTYPE = np.dtype(
    [
        ("kind", "i8"), ("first_chunk", "i8"), ("chunks", "i8"), ("numel", "i8"), ("remaining", "i8"), ("tag", "i8"),
        ("guessed", "i8"),  # whether its chunks begin with GUESS
        ("width", "i8"), ("block", "i8"), ("limit", "i8"),  # bits of a lane, elements of a chunk, B
        ("source", "u8"), ("target", "u8"),
        ("memory", "u8"),  # guessed float32: uint8[chunks], 1 + the last right guess, 0 for none yet
        ("remainder", "u8"),  # narrow lanes: float32[numel]
    ]
)  # fmt: skip


@intrinsic
def _pointer(typingctx, address):
    """An integer address as a pointer, for numba.carray: the engine reads and writes tensors where they lie."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], voidptr_t)

    return types.voidptr(types.uint64), codegen


@intrinsic
def _cycles(typingctx):
    """The processor's cycle counter (x86-64: rdtsc). On other machines reading it may be forbidden: see start_profile."""

    def codegen(context, builder, signature, arguments):
        counter = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=ir.FunctionType(ir.IntType(64), []))
        return builder.call(counter, [])

    return types.int64(), codegen


@nb.njit(cache=True, nogil=True)
def read_cycles():
    """The counter that the stage profile counts in."""
    return _cycles()


@nb.njit(cache=True, nogil=True, inline="always")
def lap(shared, stage):
    """While profiling: the time since the last call was that stage's."""
    if shared.profiling:
        at = _cycles()
        shared.laps[stage] += at - shared.lap_at
        shared.lap_at = at


@nb.njit(cache=True, nogil=True)
def _round_tag(tag, state, part):
    """Tag of one round: ranks in different rounds of the same collective must not meet in one row either."""
    return np.int64(np.uint32(tag) ^ np.uint32((state * 128 + part) * 0x9E3779B1))


@nb.njit(cache=True, nogil=True)
def _span(collective, chunk):
    """(first element, number of elements) of a chunk within its collective."""
    start = (chunk - collective.first_chunk) * collective.block
    return start, min(collective.block, collective.numel - start)


# Parts of the tensors, where they lie. `at`: collective.source, .target or .remainder


@nb.njit(cache=True, nogil=True)
def _bits(at, start, count):
    return nb.carray(_pointer(at + np.uint64(start * 4)), (count,), np.uint32)


@nb.njit(cache=True, nogil=True)
def _floats(at, start, count):
    return nb.carray(_pointer(at + np.uint64(start * 4)), (count,), np.float32)


@nb.njit(cache=True, nogil=True)
def _ints(at, start, count):
    return nb.carray(_pointer(at + np.uint64(start * 4)), (count,), np.int32)


@nb.njit(cache=True, nogil=True)
def _longs(at, start, count):
    return nb.carray(_pointer(at + np.uint64(start * 8)), (count,), np.int64)


@nb.njit(cache=True, nogil=True)
def _memory(collective):
    return nb.carray(_pointer(collective.memory), (collective.chunks,), np.uint8)


@nb.njit(cache=True, nogil=True)
def _propose(collectives, number, chunk):
    """Code this rank proposes for a queued chunk of collective `number`."""
    collective = collectives[number % MAX_QUEUED]
    start, count = _span(collective, chunk)
    if collective.kind == FLOAT32:
        return q.float_code(_bits(collective.source, start, count), count)
    if collective.kind == INT32:
        return q.integer_code(_ints(collective.source, start, count), count, collective.limit)
    return q.integer_code(_longs(collective.source, start, count), count, collective.limit)


@nb.njit(cache=True, nogil=True)
def _guess(collectives, number, chunk):
    """Number of the code that this rank guesses for a chunk that begins with GUESS."""
    collective = collectives[number % MAX_QUEUED]
    if collective.kind != FLOAT32:
        return np.int64(0)  # integers are guessed to fit their lanes
    remembered = np.int64(_memory(collective)[chunk - collective.first_chunk])
    if remembered:
        return remembered - 1
    start, count = _span(collective, chunk)
    return q.guess_of_code(q.coarse_code(q.finite_code(_bits(collective.source, start, count), count)))


@nb.njit(cache=True, nogil=True)
def _collective_of(shared, collectives, number, chunk):
    """Number of the collective that holds a queued `chunk`, searched upwards from `number`."""
    while True:
        collective = collectives[number % MAX_QUEUED]
        if chunk < collective.first_chunk + collective.chunks:
            return number
        number += 1


@nb.njit(cache=True, nogil=True)
def _next_proposal(shared, slot, collectives):
    chunk = slot.chunk + shared.slots
    if chunk >= shared.queued_chunks:
        return q.CODE_NONE
    number = _collective_of(shared, collectives, slot.collective, chunk)
    return _propose(collectives, number, chunk)


@nb.njit(cache=True, nogil=True)
def _transmit(shared, index, slots, outbox, now):
    slot = slots[index]
    slot.sent_at = now
    if not slot.queued:
        slot.queued = 1
        outbox[shared.outbox] = index
        shared.outbox += 1


@nb.njit(cache=True, nogil=True)
def _resend(shared, index, slots, packets, outbox, now):
    """Send a slot's packet again, with a question about its row."""
    slots[index].resent += 1
    wire.add_flags(packets[index], _WANT_STATUS)
    _transmit(shared, index, slots, outbox, now)


@nb.njit(cache=True, nogil=True)
def _timeout_at(shared):
    """When the retransmission timer runs out, ns."""
    return shared.restarted_at + min(shared.rto << min(shared.backoff, 10), MAX_RTO_NS)


@nb.njit(cache=True, nogil=True)
def _last_part(collective):
    """Number of an integer collective's last half word."""
    return 1 if collective.kind == INT32 else 3


@nb.njit(cache=True, nogil=True)
def _write_values(shared, slot, collective, code, lanes):
    """A chunk's elements into the lanes of its packet."""
    start, count = _span(collective, slot.chunk)
    if collective.kind == FLOAT32:
        floats = _floats(collective.source, start, count)
        if collective.width < 32:
            remainder = _floats(collective.remainder, start, count)
            # Chunks and workers must not share their noise: equal gradients would be rounded alike, and their errors add up.
            seed = np.uint32(collective.tag + start * 0x9E3779B1 + shared.worker * 0x7FEB352D)
            q.narrow_quantize(floats, remainder, count, code, collective.limit, collective.width, seed, lanes)
        else:
            q.quantize(floats, count, code, collective.limit, lanes)
    elif collective.kind == INT32:
        q.write_integers(_ints(collective.source, start, count), count, collective.limit, lanes)
    else:
        q.write_integers(_longs(collective.source, start, count), count, collective.limit, lanes)


@nb.njit(cache=True, nogil=True)
def _write_packet(shared, index, slots, collectives, packets, outbox, state, part, now):
    """Fill the slot's packet for a round of its present phase and queue it for sending."""
    slot = slots[index]
    collective = collectives[slot.collective % MAX_QUEUED]
    words = packets[index]
    lanes = words[HEADER_WORDS:]
    exponent = 0
    kind = wire.CONTRIBUTION
    lap(shared, _PACK)
    if state == PROPOSE:
        kind = wire.PROPOSAL
        exponent = _propose(collectives, slot.collective, slot.chunk)
        lap(shared, _PROPOSE_TIME)
    elif state == GUESS:
        exponent = _propose(collectives, slot.collective, slot.chunk)
        lap(shared, _PROPOSE_TIME)
        code = q.code_of_guess(part) if collective.kind == FLOAT32 else q.CODE_FITS
        slot.code = code
        slot.special = 0
        _write_values(shared, slot, collective, code, lanes)
        lap(shared, _QUANTIZE)
    elif state == CLASSES:
        start, count = _span(collective, slot.chunk)
        bits = _bits(collective.source, start, count)
        first = min(part * shared.elements, count)
        q.write_classes(bits[first:], min(count - first, shared.elements), lanes)
        exponent = q.finite_code(bits, count)
        lap(shared, _QUANTIZE)
    elif state == VALUES:
        exponent = _next_proposal(shared, slot, collectives)
        lap(shared, _PROPOSE_TIME)
        _write_values(shared, slot, collective, slot.code, lanes)
        lap(shared, _QUANTIZE)
    else:
        start, count = _span(collective, slot.chunk)
        if part == _last_part(collective):
            exponent = _next_proposal(shared, slot, collectives)
        if collective.kind == INT32:
            q.write_halves(_ints(collective.source, start, count), count, part, lanes)
        else:
            q.write_halves(_longs(collective.source, start, count), count, part, lanes)
        lap(shared, _QUANTIZE)
    slot.state = state
    slot.part = part
    slot.resent = 0
    slot.present = 0
    slot.early = 0
    slot.length = HEADER_BYTES if kind == wire.PROPOSAL else HEADER_BYTES + 4 * shared.elements
    tag = _round_tag(collective.tag, state, part)
    wire.write_header(words, kind, shared.job, shared.epoch, index, exponent, slot.phase, tag, shared.worker, 0)
    _transmit(shared, index, slots, outbox, now)


@nb.njit(cache=True, nogil=True)
def _begin_round(shared, index, slots, collectives, packets, outbox, state, part, now):
    """Begin a new phase of a slot."""
    slot = slots[index]
    if slot.state == IDLE:
        if shared.active == 0:  # silence is counted from here: an idle engine hears nothing
            shared.heard_at = now
            shared.progress_at = now
            shared.restarted_at = now
            shared.backoff = 0
        shared.active += 1
    slot.phase = (slot.phase + 1) & 0xFFFFFFFF
    _write_packet(shared, index, slots, collectives, packets, outbox, state, part, now)


@nb.njit(cache=True, nogil=True)
def _begin_data(shared, index, slots, collectives, packets, outbox, code, now):
    """The ranks agreed on `code` for the slot's chunk: begin its first round that carries values."""
    slot = slots[index]
    collective = collectives[slot.collective % MAX_QUEUED]
    slot.code = code
    slot.special = 0
    if collective.kind == FLOAT32:
        if collective.guessed:
            slot.code = q.coarse_code(code)
        state = CLASSES if code == q.CODE_SPECIAL else VALUES
    else:
        state = VALUES if code == q.CODE_FITS else HALVES
    _begin_round(shared, index, slots, collectives, packets, outbox, state, 0, now)


@nb.njit(cache=True, nogil=True)
def _begin_chunk(shared, index, slots, collectives, packets, outbox, now):
    """Begin the slot's chunk, of whose code nothing is known."""
    slot = slots[index]
    if collectives[slot.collective % MAX_QUEUED].guessed:
        guess = _guess(collectives, slot.collective, slot.chunk)
        shared.guesses += 1
        _begin_round(shared, index, slots, collectives, packets, outbox, GUESS, guess, now)
    else:
        _begin_round(shared, index, slots, collectives, packets, outbox, PROPOSE, 0, now)


@nb.njit(cache=True, nogil=True)
def _enqueue(
    shared, slots, collectives, packets, outbox,
    kind, numel, tag, guessed, width, limit, source, target, memory, remainder, now,
):  # fmt: skip
    """Queue a collective and begin its chunks in the slots that wait for them; returns its number."""
    lap(shared, _PYTHON)
    number = shared.tail
    collective = collectives[number % MAX_QUEUED]
    collective.kind = kind
    collective.numel = numel
    collective.tag = tag
    collective.guessed = guessed
    collective.width = width
    collective.limit = limit
    collective.block = shared.elements * 32 // width
    collective.chunks = (numel + collective.block - 1) // collective.block
    collective.remaining = collective.chunks
    collective.source = source
    collective.target = target
    collective.memory = memory
    collective.remainder = remainder
    first = shared.queued_chunks
    collective.first_chunk = first
    shared.queued_chunks = first + collective.chunks
    shared.tail = number + 1
    for chunk in range(first, first + min(collective.chunks, shared.slots)):
        index = chunk % shared.slots
        slot = slots[index]
        if slot.state == IDLE:  # then this is the chunk it waits for
            slot.collective = number
            _begin_chunk(shared, index, slots, collectives, packets, outbox, now)
    shared.next_timer = 0  # there are new deadlines: the next tick finds the earliest
    return number


@nb.njit(cache=True, nogil=True)
def _finish_chunk(shared, index, slots, collectives, packets, kept, outbox, finished, agreed, now):
    slot = slots[index]
    number = slot.collective
    collective = collectives[number % MAX_QUEUED]
    start, count = _span(collective, slot.chunk)
    if collective.kind == INT64:
        start, count = 2 * start, 2 * count
    slot.kept_words = count
    kept[index, kept.shape[1] // 2 :].view(np.uint32)[:count] = _bits(collective.target, start, count)
    collective.remaining -= 1
    if collective.remaining == 0:
        finished[shared.finished] = number
        shared.finished += 1
        shared.collectives += 1
        while shared.head < shared.tail and collectives[shared.head % MAX_QUEUED].remaining == 0:
            shared.head += 1
    slot.chunk += shared.slots
    if slot.chunk < shared.queued_chunks:
        slot.collective = _collective_of(shared, collectives, number, slot.chunk)
        if agreed == q.CODE_NONE:
            _begin_chunk(shared, index, slots, collectives, packets, outbox, now)
        else:
            _begin_data(shared, index, slots, collectives, packets, outbox, agreed, now)
        return
    if agreed != q.CODE_NONE:  # this rank said NONE, so no maximum can say otherwise
        shared.failure = PROTOCOL_BROKEN
        shared.failed_slot = index
    slot.state = IDLE
    shared.active -= 1


@nb.njit(cache=True, nogil=True)
def _measure(shared, sample):
    """RFC 6298 section 2, with alpha 1/8 and beta 1/4."""
    if shared.srtt == 0:
        shared.srtt = sample
        shared.rttvar = sample // 2
    else:
        shared.rttvar += (abs(shared.srtt - sample) - shared.rttvar) // 4
        shared.srtt += (sample - shared.srtt) // 8
    shared.rto = min(max(shared.srtt + 4 * shared.rttvar, MIN_RTO_NS), MAX_RTO_NS)


@nb.njit(cache=True, nogil=True)
def _widen(shared, now):
    """The switch had this rank's packet all along, another's is late: be more patient, by one step a round trip."""
    shared.recoveries = 0
    if now - shared.widened_at > shared.srtt:
        shared.widened_at = now
        shared.reordering = min(shared.reordering + 1, MOST_REORDERING)


@nb.njit(cache=True, nogil=True)
def _adopt(shared, index, slots, collectives, packets, outbox, tag, now):
    """Another rank's guess came first, and the row's `tag` tells which: contribute by that one. False if it tells no guess."""
    slot = slots[index]
    own = collectives[slot.collective % MAX_QUEUED].tag
    for guess in range(q.GUESSES):
        if tag == _round_tag(own, GUESS, guess):
            if guess != slot.part:  # else late news: adopted already
                shared.guesses_adopted += 1
                _write_packet(shared, index, slots, collectives, packets, outbox, GUESS, guess, now)
            return True
    return False


@nb.njit(cache=True, nogil=True)
def receive(shared, slots, collectives, packets, kept, outbox, finished, words, length, now):
    """Take one datagram: `words: uint32[]` holds at least `length` bytes of it. Foreign and stale ones are only counted."""
    shared.packets_received += 1
    shared.bytes_received += length
    if not wire.is_ours(words, length, shared.job, shared.epoch):
        shared.foreign += 1
        return
    kind = np.int64((swap32(words[0]) >> 16) & 0xFF)
    third = swap32(words[2])
    index = np.int64(third >> 16)
    agreed = np.int64(third & 0xFFFF)
    full_length = HEADER_BYTES + 4 * shared.elements
    known = kind == wire.RESULT or kind == wire.AGREEMENT or kind == wire.MISMATCH or kind == wire.STATUS
    if not known or index >= shared.slots or length != (full_length if kind == wire.RESULT else HEADER_BYTES):
        shared.foreign += 1
        return
    shared.heard_at = now
    slot = slots[index]
    if slot.state == IDLE or np.int64(swap32(words[3])) != slot.phase:
        shared.stale += 1
        # The stored sum, for a phase whose sum has come already: the resend that asked for it was needless. (TCP has DSACK.)
        if kind == wire.RESULT and (swap32(words[5]) >> 16) & _REPAIR:
            _widen(shared, now)
        return
    tag = np.int64(swap32(words[4]))
    if kind == wire.STATUS:
        slot.present = tag
        if slot.resent == 1:  # the switch answers at once, whoever else is late: the purest sample of the way there and back
            _measure(shared, now - slot.sent_at)
        # What was sent before and has no answer is lost then, or waits for peers as this one does. (An answer that comes sooner
        # belongs to an earlier copy.)
        if now - slot.sent_at >= shared.srtt // 2:
            shared.newest_answered = max(shared.newest_answered, slot.sent_at)
        if slot.early:
            _widen(shared, now)
        return
    if kind == wire.MISMATCH:
        if slot.state == GUESS and _adopt(shared, index, slots, collectives, packets, outbox, tag, now):
            return
        shared.failure = MISMATCHED
        shared.failed_slot = index
        shared.failed_tag = tag
        return
    state = slot.state
    collective = collectives[slot.collective % MAX_QUEUED]
    expected = wire.AGREEMENT if state == PROPOSE else wire.RESULT
    if kind != expected or tag != _round_tag(collective.tag, state, slot.part):
        shared.failure = PROTOCOL_BROKEN
        shared.failed_slot = index
        return

    shared.progress_at = now
    shared.restarted_at = now
    shared.backoff = 0
    shared.newest_answered = max(shared.newest_answered, slot.sent_at)
    if (swap32(words[5]) >> 16) & _REPAIR:  # the sum had been lost; of other resends it is not known that they were needed
        shared.repairs_received += 1
        shared.recoveries += 1
        if shared.recoveries >= RECOVERIES_PER_STEP:
            shared.reordering = max(shared.reordering - 1, 1)
            shared.recoveries = 0
    # Only what measures the network: not the answer to a resend, which may belong to either copy (Karn), and not a first round
    # that asks or guesses, which waits for whoever still computes. Other rounds follow an answer, on all ranks at once.
    if state not in (PROPOSE, GUESS) and slot.resent == 0:
        _measure(shared, now - slot.sent_at)

    lanes = words[HEADER_WORDS : HEADER_WORDS + shared.elements]  # `words` goes on with the packets behind this one
    start, count = _span(collective, slot.chunk)
    lap(shared, _PARSE)
    if state == PROPOSE:
        _begin_data(shared, index, slots, collectives, packets, outbox, agreed, now)
    elif state == CLASSES:
        slot.special = 1
        slot.code = q.coarse_code(agreed) if collective.guessed else agreed
        first = slot.part * shared.elements
        for i in range(min(count - first, shared.elements)):
            kept[index, first + i] = np.int64(swap32(lanes[i]))
        if first + shared.elements < count:
            _begin_round(shared, index, slots, collectives, packets, outbox, CLASSES, slot.part + 1, now)
        else:
            _begin_round(shared, index, slots, collectives, packets, outbox, VALUES, 0, now)
    elif state in (VALUES, GUESS):
        if state == GUESS:
            right = agreed == q.CODE_FITS
            if collective.kind == FLOAT32:
                right = q.coarse_code(agreed) == slot.code
                if agreed < q.CODE_SPECIAL:
                    _memory(collective)[slot.chunk - collective.first_chunk] = q.guess_of_code(q.coarse_code(agreed)) + 1
            if agreed == q.CODE_NONE:  # a guessing rank has its chunk and says so
                shared.failure = PROTOCOL_BROKEN
                shared.failed_slot = index
                return
            if not right:
                shared.guessed_wrong += 1
                _begin_data(shared, index, slots, collectives, packets, outbox, agreed, now)
                return
            agreed = q.CODE_NONE  # it was this chunk's code; nothing is known of the next one's
        if collective.kind == FLOAT32:
            floats = _floats(collective.target, start, count)
            if collective.width < 32:
                q.narrow_dequantize(lanes, count, slot.code, collective.limit, collective.width, shared.world_size, floats)
            else:
                q.dequantize(lanes, count, slot.code, collective.limit, shared.world_size, floats)
            if slot.special:
                q.apply_classes(kept[index], count, floats)
        elif collective.kind == INT32:
            q.read_integers(lanes, count, collective.limit, shared.world_size, _ints(collective.target, start, count))
        else:
            q.read_integers(lanes, count, collective.limit, shared.world_size, _longs(collective.target, start, count))
        lap(shared, _DEQUANTIZE)
        _finish_chunk(shared, index, slots, collectives, packets, kept, outbox, finished, agreed, now)
    else:
        q.accumulate_halves(lanes, count, slot.part, kept[index])
        if slot.part < _last_part(collective):
            _begin_round(shared, index, slots, collectives, packets, outbox, HALVES, slot.part + 1, now)
            return
        if collective.kind == INT32:
            ints = _ints(collective.target, start, count)
            for i in range(count):
                ints[i] = np.int32(kept[index, i])
        else:
            longs = _longs(collective.target, start, count)
            for i in range(count):
                longs[i] = kept[index, i]
        _finish_chunk(shared, index, slots, collectives, packets, kept, outbox, finished, agreed, now)


@nb.njit(cache=True, nogil=True)
def tick(shared, slots, packets, outbox, now):
    """Resend what is lost by now, judge silence, and set `next_timer` (ns; the largest int64 when nothing is active).

    Work per call, not per packet: while answers come in, only a changed `newest_answered` or a due timer does any.
    """
    if shared.failure != NO_FAILURE:
        return
    if now < shared.next_timer and shared.newest_answered == shared.newest_checked:
        return
    shared.newest_checked = shared.newest_answered
    if shared.active == 0:
        shared.next_timer = np.int64(0x7FFFFFFFFFFFFFFF)
        return
    window = max(shared.reordering * shared.srtt // 4, REORDERING_FLOOR_NS)
    oldest = -1
    for index in range(shared.slots):
        slot = slots[index]
        if slot.state == IDLE:
            continue
        # A row that is known to hold this rank's packet waits for somebody else's. Asking again helps only if the sum comes and
        # is lost, and the packets of those who ask delay the one that is awaited: so each question waits twice as long.
        patience = window
        if (slot.present >> shared.worker) & 1:
            patience = max(window, min(shared.rto << min(slot.resent, 10), MAX_RTO_NS))
        if slot.sent_at + patience < shared.newest_answered:
            shared.early_repairs += 1
            slot.early = 1
            _resend(shared, index, slots, packets, outbox, now)
        if oldest < 0 or slot.sent_at < slots[oldest].sent_at:
            oldest = index
    if now >= _timeout_at(shared):
        silent = now - shared.heard_at > shared.switch_timeout_ns and shared.backoff >= RETRIES_BEFORE_SILENCE
        if silent or now - shared.progress_at > shared.peer_timeout_ns:
            shared.failure = SWITCH_SILENT if silent else PEERS_MISSING
            shared.failed_slot = oldest
            for index in range(shared.slots):  # rather one whose row the switch has described
                if slots[index].state != IDLE and slots[index].present != 0:
                    shared.failed_slot = index
                    break
            return
        shared.timeouts += 1
        shared.backoff += 1
        shared.restarted_at = now
        _resend(shared, oldest, slots, packets, outbox, now)
    shared.next_timer = _timeout_at(shared)


@dataclass(frozen=True)
class EngineFailure:
    """Why an engine stopped: `kind` is one of this module's failures, the rest names the place."""

    kind: int
    slot: int
    phase: int
    collective: int  # number of the collective, counted from 0 in this epoch
    missing: tuple[int, ...]  # workers whose contribution the row lacks, as far as the switch told
    heard: bool  # whether the switch told anything about this row


class Engine:
    """One worker's slots in one job epoch.

    Parameters: `job`, `epoch`, `worker`, `world_size`, `slots` (W), `elements` (E) as the controller gave them; `lanes`: bits
    of a lane of large float32 sums, 32, 16 or 8, the same on all ranks; `switch_timeout_ns`: longest silence of the switch
    while something is outstanding; `peer_timeout_ns`: longest wait for the other workers; `guessed_blocks`: sums of at most so
    many blocks guess their exponents. All times are ns of one monotonic clock of the caller's choice.
    """

    def __init__(
        self,
        *,
        job: int,
        epoch: int,
        worker: int,
        world_size: int,
        slots: int,
        elements: int,
        lanes: int = 32,
        switch_timeout_ns: int = 30_000_000_000,
        peer_timeout_ns: int = 1_800_000_000_000,
        first_phase: int = 0,
        guessed_blocks: int = q.GUESSED_BLOCKS,
    ) -> None:
        self._shared = np.zeros(1, SHARED_DTYPE).view(np.recarray)
        self._record = shared = self._shared[0]
        shared.job, shared.epoch, shared.worker, shared.world_size = job, epoch, worker, world_size
        shared.slots, shared.elements = slots, elements
        shared.switch_timeout_ns, shared.peer_timeout_ns = switch_timeout_ns, peer_timeout_ns
        shared.rto = INITIAL_RTO_NS
        shared.reordering = 1
        self._slots = np.zeros(slots, SLOT_DTYPE).view(np.recarray)
        self._slots.chunk = np.arange(slots)
        self._slots.phase = first_phase
        self._collectives = np.zeros(MAX_QUEUED, COLLECTIVE_DTYPE).view(np.recarray)
        self.packets = np.zeros((slots, HEADER_WORDS + elements), np.uint32)
        self._elements, self._lanes, self._few = elements, lanes, guessed_blocks * elements
        self._limits = {width: q.lane_limit(world_size, width) for width in (32, lanes)}
        # A chunk's classes or half words so far; and, in the second half of the row, the slot's last finished chunk.
        self._kept = np.zeros((slots, 2 * elements * 32 // lanes), np.int64)
        self._outbox = np.zeros(slots, np.int64)
        self._finished = np.zeros(MAX_QUEUED, np.int64)
        # By (address, elements) of a source: what is remembered of the same tensor's last sum. Only this rank's convenience:
        # the ranks need not remember the same.
        self._codes = _Memory(MEMORY_BLOCKS)
        self._remainders = _Memory(FEEDBACK_ELEMENTS)
        self._held: dict[int, npt.NDArray[Any]] = {}  # memories that running collectives point into
        self._profiled_from = (0, 0)

    @property
    def state(self) -> tuple[Any, ...]:
        """The arrays that `receive` and `tick` work on, in the order in which the transport's loop takes them."""
        return (self._shared, self._slots, self._collectives, self.packets, self._kept, self._outbox, self._finished)

    @property
    def epoch(self) -> int:
        return int(self._record.epoch)

    @property
    def worker(self) -> int:
        return int(self._record.worker)

    @property
    def world_size(self) -> int:
        return int(self._record.world_size)

    @property
    def has_room(self) -> bool:
        """Whether another collective can be submitted now."""
        return bool(self._record.tail - self._record.head < MAX_QUEUED)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return bool(self._record.head == self._record.tail)

    def submit(self, source: npt.NDArray[Any], target: npt.NDArray[Any], tag: int, now: int, place: int = 0) -> int:
        """Queue the sum of `source` (1-D, contiguous, float32, int32 or int64, not empty) into `target`
        (of the same kind; may be `source`).

        Both must stay alive and `source` unchanged until the collective is finished. `tag` (32 bits) must be the same on all
        ranks for the same collective. `place`: what tells the tensor from others of its size when it is summed again, the
        address of `source` if 0. Returns its number in this epoch, from 0.
        """
        kind = _KINDS.get(source.dtype)
        if kind is None or source.ndim != 1 or source.size == 0 or not source.flags.c_contiguous:
            raise ValueError(f"the engine sums 1-D contiguous float32, int32 or int64, not {source.dtype}{source.shape}")
        if target.dtype != source.dtype or target.shape != source.shape or not target.flags.c_contiguous:
            raise ValueError(f"target {target.dtype}{target.shape} does not match source {source.dtype}{source.shape}")
        if not self.has_room:
            raise ValueError(f"{MAX_QUEUED} collectives are queued already; finish some first")
        few = source.size <= self._few
        width = self._lanes if kind == FLOAT32 and not few else 32
        address, memory, remainder = source.ctypes.data, 0, 0
        place = place or address
        held = None
        if kind == FLOAT32 and few:
            held = self._codes.of(place, source.size, -(-source.size // self._elements), np.dtype(np.uint8))
            memory = held.ctypes.data
        elif width < 32:
            held = self._remainders.of(place, source.size, source.size, np.dtype(np.float32))
            remainder = held.ctypes.data
        number = int(
            _enqueue(
                self._record, self._slots, self._collectives, self.packets, self._outbox,
                kind, source.size, tag, int(few), width, self._limits[width],
                np.uint64(address), np.uint64(target.ctypes.data), np.uint64(memory), np.uint64(remainder), now,
            )
        )  # fmt: skip
        if held is not None:
            self._held[number] = held
        return number

    def receive(self, datagram: bytes, now: int) -> None:
        """Take one datagram. Anything may be in it: what is not an answer to this engine is counted and ignored."""
        words = np.zeros(HEADER_WORDS + int(self._record.elements), np.uint32)
        kept = datagram[: words.nbytes]
        words.view(np.uint8)[: len(kept)] = np.frombuffer(kept, np.uint8)
        shared, slots, collectives, packets, aux, outbox, finished = self.state
        receive(shared[0], slots, collectives, packets, aux, outbox, finished, words, len(datagram), now)

    def tick(self, now: int) -> None:
        """Let time pass up to `now`."""
        tick(self._record, self._slots, self.packets, self._outbox, now)

    def datagrams_to_send(self) -> list[bytes]:
        """Take what has to be sent now."""
        shared = self._record
        datagrams = []
        for index in self._outbox[: int(shared.outbox)]:
            slot = self._slots[index]
            slot.queued = 0
            datagrams.append(self.packets[index].tobytes()[: int(slot.length)])
        shared.outbox = 0
        shared.packets_sent += len(datagrams)
        shared.bytes_sent += sum(map(len, datagrams))
        return datagrams

    def next_timer(self) -> int | None:
        """When `tick` must be called next (ns), or None while nothing is outstanding."""
        shared = self._record
        return int(shared.next_timer) if shared.active else None

    @property
    def submitted(self) -> int:
        """How many collectives have been submitted: the next one's number."""
        return int(self._record.tail)

    @property
    def finished(self) -> list[int]:
        """Numbers of the collectives that finished since the last forget_finished, in order of completion."""
        return [int(number) for number in self._finished[: int(self._record.finished)]] if self._record.finished else []

    def forget_finished(self) -> None:
        """Whoever waited for `finished` knows."""
        for number in self.finished:
            self._held.pop(number, None)
        self._record.finished = 0

    def take_finished(self) -> list[int]:
        """Both at once."""
        numbers = self.finished
        self.forget_finished()
        return numbers

    def stalled_ns(self, now: int) -> int:
        """How long nothing has been finished while something is under way, ns."""
        return now - int(self._record.progress_at) if self._record.active else 0

    def standing(self) -> npt.NDArray[np.int64]:
        """int64[slots]: the chunk that each slot works on or waits for; its earlier ones (chunk - slots, ...) are finished."""
        return self._slots.chunk.copy()  # type: ignore[no-any-return]

    def last_sums(self) -> npt.NDArray[np.int32]:
        """int32[slots, words]: bits of each slot's last finished chunk as they went into the tensor, padded with zeros."""
        half = self._kept.shape[1] // 2
        bits = np.ascontiguousarray(self._kept[:, half:]).view(np.int32)
        bits[np.arange(bits.shape[1]) >= self._slots.kept_words[:, None]] = 0
        return bits

    def chunks_of(self, number: int) -> tuple[int, int, int]:
        """(first chunk, number of chunks, elements of a chunk) of a collective that has not finished here."""
        collective = self._collectives[number % MAX_QUEUED]
        return int(collective.first_chunk), int(collective.chunks), int(collective.block)

    def tag_of(self, number: int) -> int:
        """The tag under which a collective that has not finished here was submitted."""
        return int(self._collectives[number % MAX_QUEUED].tag)

    @property
    def failure(self) -> EngineFailure | None:
        """What stopped this engine, if anything did. A failed engine sends nothing any more."""
        shared = self._record
        if shared.failure == NO_FAILURE:
            return None
        slot = self._slots[int(shared.failed_slot)]
        present = int(slot.present)
        return EngineFailure(
            kind=int(shared.failure),
            slot=int(shared.failed_slot),
            phase=int(slot.phase),
            collective=int(slot.collective),
            missing=tuple(w for w in range(int(shared.world_size)) if not present >> w & 1),
            heard=present != 0,
        )

    def start_profile(self) -> None:
        """Begin to count where the time goes, from zero. Raises RuntimeError on a processor whose cycles cannot be read."""
        if (machine := platform.machine()) not in ("x86_64", "AMD64"):
            raise RuntimeError(f"the stage profile reads the cycle counter of x86-64 processors, and this is {machine}")
        shared = self._record
        shared.laps[:] = 0
        self._profiled_from = (read_cycles(), time.monotonic_ns())
        shared.lap_at = self._profiled_from[0]
        shared.profiling = 1

    def end_profile(self) -> dict[str, float]:
        """Seconds that each of STAGES took since start_profile, as far as the loop has got; they add up to the whole time.

        Reading the counter costs a few nanoseconds each time, five times a packet; and a stage's time includes what other
        processes took of the processor meanwhile.
        """
        self._record.profiling = 0
        began, began_ns = self._profiled_from
        cycles = read_cycles() - began
        seconds = (time.monotonic_ns() - began_ns) / 1e9
        return {stage: float(taken) / cycles * seconds for stage, taken in zip(STAGES, self._record.laps, strict=True)}

    def counters(self) -> dict[str, int]:
        """Packets, bytes (UDP payload) and events since the epoch began, by name."""
        names = SHARED_DTYPE.names or ()
        shared = self._record
        return {name: int(shared[name]) for name in names[names.index("packets_sent") :]}

    def gauges(self) -> dict[str, float]:
        """How things stand now, by name."""
        shared = self._record
        return {
            "epoch": int(shared.epoch),
            "round_trip_seconds": int(shared.srtt) / 1e9,
            "retransmission_timeout_seconds": int(shared.rto) / 1e9,
            "slots_busy": int(shared.active),
        }


class _Memory:
    """Arrays that outlive a collective, by (address, elements) of its source, oldest forgotten first.

    `most`: elements of all arrays together. An array beyond that is made anew for each collective.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._arrays: dict[tuple[int, int], npt.NDArray[Any]] = {}

    def of(self, address: int, numel: int, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The array of `size` elements for this source, zeros at first."""
        array = self._arrays.pop((address, numel), None)
        if array is None:
            array = np.zeros(size, dtype)
            if size > self._most:
                return array
            self._size += size
        self._arrays[address, numel] = array
        while self._size > self._most:
            self._size -= self._arrays.pop(next(iter(self._arrays))).size
        return array


def collective_tag(number: int, description: str) -> int:
    """Tag of the `number`-th collective of an epoch: equal on ranks that mean the same one, else (all but surely) not."""
    return zlib.crc32(f"{number} {description}".encode())
