"""Batches of Ethernet frames in and out of packet sockets (AF_PACKET), in machine code without the GIL (numba).

`Intake` waits for the interfaces' sockets and makes a batch of what they hold; `Outlet` hands a batch to the kernel. Both make
the system calls themselves (recvmmsg, sendmmsg, poll): a batch costs a few calls and no Python object for each frame.

Each message begins with a virtio_net_hdr (PACKET_VNET_HDR), in which the kernel says what it left to the network card, and we
likewise: a checksum to be filled in, or a run of UDP datagrams to be cut apart (UDP_SEGMENT; virtio's GSO_UDP_L4). So hosts
may send sixty packets with one call, and get sixty results with one, while the switch program sees the packets of the wire.

The kernel's structures are written as int64 words (see datagrams). In addition:

    virtio_net_hdr   10 bytes: flags, gso_type, then hdr_len, gso_size, csum_start, csum_offset as u16 of this machine
    tpacket_auxdata  in a cmsg: status, len, snaplen as u32, mac, net, vlan_tci, vlan_tpid as u16
"""

import socket
from collections.abc import Mapping
from enum import IntEnum

import numba as nb
import numpy as np
import numpy.typing as npt

from switchsum.softswitch.octets import BYTES, INTS, WORDS, copy, folded, put16, u16, word_sum
from switchsum.softswitch.packets import HEAD_BYTES, HEAD_STRIDE, RECORD_HEAD, RECORD_WORDS, Arrivals
from switchsum.softswitch.sockets import (
    PORT_COUNTS,
    PORT_NUMBERS,
    SocketOutlet,
    errno_location,
    recvmmsg,
    sendmmsg,
    wait_for_input,
)

MAX_FRAME_BYTES = 9014  # jumbo frames are the largest that hardware forwards: MTU 9000 and the Ethernet header
MAX_SEGMENTS = 128  # UDP_MAX_SEGMENTS of Linux
MESSAGES = 64  # of one batch, all interfaces together
BATCH_FRAMES = 1024  # of one batch, which the last read may exceed; as in datagrams
TURN_FRAMES = 64  # of one interface, if its next messages are as long as its last one, before the next one has its turn
TURN = 16  # messages, likewise
MESSAGE_BYTES = 65536 + 64
_STRIDE = MESSAGE_BYTES + 1344  # an odd number of cache lines, so that the messages' first bytes do not share a cache set
FRAME_CAPACITY = MESSAGES * MAX_SEGMENTS


_VNET = 10  # bytes of virtio_net_hdr
_NEEDS_CSUM = 1
_GSO_NONE, _GSO_UDP_L4 = 0, 5
_GSO_ECN = 0x80
_VLAN_VALID = 1 << 4  # tpacket_auxdata.status
_CMSG_BYTES = 40  # CMSG_SPACE(sizeof(tpacket_auxdata))

_ETHERNET, _IPV4, _UDP = 14, 20, 8
_HEADERS = HEAD_BYTES

_MSG_TRUNC, _MSG_DONTWAIT = 0x20, 0x40
_EINTR, _EAGAIN, _EMSGSIZE, _ENOBUFS = 4, 11, 90, 105
_SEND_SEGMENTS = 60
_SEND_BYTES = 65000
_SEND_MESSAGES = 1024  # UIO_MAXIOV: sendmmsg takes no more


class Count(IntEnum):
    """Index of what is counted of all ports together (see make_counts), and its name for people, in lower case."""

    RECEIVE_ERRORS = 0  # the interface is down or gone
    SEND_ERRORS = 1
    DROPPED_NO_PIPELINE = 2
    DROPPED_OVERSIZED = 3  # longer than MAX_FRAME_BYTES, or than the outgoing interface's MTU
    DROPPED_QUEUE_FULL = 4  # the outgoing interface's queue
    DROPPED_UNKNOWN_PORT = 5  # the program sent to a port that does not exist
    DROPPED_VLAN = 6  # a tagged frame: the program knows none
    DROPPED_SEGMENTATION = 7  # a run of TCP segments or the like, which a host left to its card to cut apart
    DROPPED_SHORT_FRAME = 8  # the program sent less than an Ethernet header
    INTERNAL_ERRORS = 9  # a batch lost by a defect of the switch; its log has the trace


_TRAFFIC = len(Count)  # where the ports' own counts begin: see make_counts
_RECEIVE_ERRORS, _SEND_ERRORS = int(Count.RECEIVE_ERRORS), int(Count.SEND_ERRORS)
_OVERSIZED, _QUEUE_FULL = int(Count.DROPPED_OVERSIZED), int(Count.DROPPED_QUEUE_FULL)
_UNKNOWN_PORT, _VLAN = int(Count.DROPPED_UNKNOWN_PORT), int(Count.DROPPED_VLAN)
_SEGMENTATION, _SHORT_FRAME = int(Count.DROPPED_SEGMENTATION), int(Count.DROPPED_SHORT_FRAME)


@nb.njit(nb.int64(BYTES, nb.int64), cache=True, nogil=True)
def _native16(data, at):  # type: ignore[no-untyped-def]
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@nb.njit(nb.void(BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def _put_native16(data, at, value):  # type: ignore[no-untyped-def]
    data[at] = value & 0xFF
    data[at + 1] = (value >> 8) & 0xFF


@nb.njit(nb.int64(BYTES, nb.int64, nb.int64), cache=True, nogil=True)
def _is_ipv4_udp(frame, at, length):  # type: ignore[no-untyped-def]
    """Whether frame[at:][:length] is one whole UDP datagram behind plain IPv4 and Ethernet headers, and nothing more."""
    return (
        length >= _HEADERS
        and u16(frame, at + 12) == 0x0800
        and frame[at + 14] == 0x45
        and frame[at + 23] == 17
        and u16(frame, at + 20) & 0x3FFF == 0  # neither more fragments nor an offset
        and u16(frame, at + 16) == length - _ETHERNET
        and u16(frame, at + 38) == length - _ETHERNET - _IPV4
    )


@nb.njit(nb.void(BYTES, nb.int64, nb.int64, nb.int64, nb.int64, BYTES, nb.int64), cache=True, nogil=True)
def _head(buffer, at, number, start, size, heads, head):  # type: ignore[no-untyped-def]
    """Write to heads[head:] the head of datagram `number` of the run whose own head is buffer[at:].

    buffer[start:][:size]: its payload. As a network card would (udp_offload.c): lengths, the IPv4 identification (RFC 791),
    which counts up, and both checksums are each datagram's own.
    """
    copy(heads, head, buffer, at, _HEADERS)
    put16(heads, head + 16, _IPV4 + _UDP + size)
    put16(heads, head + 18, u16(buffer, at + 18) + number)
    put16(heads, head + 24, 0)
    put16(heads, head + 24, ~folded(word_sum(heads, head + _ETHERNET, _IPV4)) & 0xFFFF)
    put16(heads, head + 38, _UDP + size)
    put16(heads, head + 40, 0)
    # RFC 768: pseudo header (protocol, length, addresses), then the datagram; a sum of 0 is sent as all ones
    total = 17 + _UDP + size + word_sum(heads, head + 26, 8) + word_sum(heads, head + 34, _UDP) + word_sum(buffer, start, size)
    checksum = ~folded(total) & 0xFFFF
    put16(heads, head + 40, checksum if checksum != 0 else 0xFFFF)


@nb.njit(
    nb.int64(
        nb.int32[:, ::1],  # polls
        INTS,  # numbers
        INTS,  # turns
        WORDS,  # controls
        WORDS,  # headers
        BYTES,  # buffer
        INTS,  # ports
        WORDS,  # offsets
        INTS,  # lengths
        BYTES,  # heads
        INTS,  # head_of
        WORDS,  # counts
    ),
    cache=True,
    nogil=True,
)
def _receive(  # type: ignore[no-untyped-def]
    polls, numbers, turns, controls, headers, buffer, ports, offsets, lengths, heads, head_of, counts
):
    """Wait until a socket has something, then make a batch of frames; returns their number, or WOKEN.

    polls: pollfd of each interface's socket, in the order of `numbers` (port numbers), and last the one that wakes us up.
    turns: how many messages to read next from each; last, whose turn is first. controls, headers: memory of the messages, whose
    data the kernel writes into buffer, _STRIDE bytes each. The rest as in Arrivals.
    """
    ready = wait_for_input(polls)
    if ready <= 0:
        return ready
    count = 0
    used = 0  # messages
    progress = True
    while progress:
        progress = False
        for _ in range(len(numbers)):  # in turns, so that a busy port does not silence the others
            port = turns[len(numbers)]
            if polls[port, 1] >> 16 == 0:
                turns[len(numbers)] = (port + 1) % len(numbers)
                continue
            if used >= MESSAGES or count >= BATCH_FRAMES:
                return count
            turns[len(numbers)] = (port + 1) % len(numbers)
            wanted = min(turns[port], MESSAGES - used)
            for index in range(used, used + wanted):
                headers[8 * index + 5] = _CMSG_BYTES
                controls[5 * index] = 0
            got = recvmmsg(polls[port, 0], headers.ctypes.data + 64 * used, wanted, _MSG_DONTWAIT, 0)
            if got < 0:
                if errno_location()[0] not in (_EAGAIN, _EINTR):
                    counts[_RECEIVE_ERRORS] += 1
                got = 0
            if got < wanted:
                polls[port, 1] = 0  # drained, as far as this batch is concerned
            else:
                progress = True
            tally = _TRAFFIC + PORT_COUNTS * numbers[port]
            for index in range(used, used + got):
                at = index * _STRIDE + _VNET
                length = (headers[8 * index + 7] & 0xFFFFFFFF) - _VNET
                flags = buffer[at - _VNET]
                kind = buffer[at - _VNET + 1] & ~np.uint8(_GSO_ECN)
                counts[tally + 1] += length
                turns[port] = TURN
                if controls[5 * index] != 0 and controls[5 * index + 2] & _VLAN_VALID:
                    counts[tally] += 1
                    counts[_VLAN] += 1
                elif kind == _GSO_NONE:
                    counts[tally] += 1
                    if length > MAX_FRAME_BYTES or headers[8 * index + 6] & _MSG_TRUNC:
                        counts[_OVERSIZED] += 1
                        continue
                    if flags & _NEEDS_CSUM:  # the field holds the pseudo header's sum
                        start = _native16(buffer, at - _VNET + 6)
                        field = start + _native16(buffer, at - _VNET + 8)
                        if field + 2 <= length:
                            checksum = ~folded(word_sum(buffer, at + start, length - start)) & 0xFFFF
                            put16(buffer, at + field, checksum if checksum != 0 else 0xFFFF)
                    ports[count] = numbers[port]
                    offsets[count] = at
                    lengths[count] = length
                    head_of[count] = -1
                    count += 1
                elif kind == _GSO_UDP_L4 and _is_ipv4_udp(buffer, at, length):
                    segment = _native16(buffer, at - _VNET + 4)
                    frames = (length - _HEADERS + segment - 1) // max(segment, 1)
                    counts[tally] += frames
                    if segment == 0 or frames > MAX_SEGMENTS or _HEADERS + segment > MAX_FRAME_BYTES:
                        counts[_OVERSIZED] += frames
                        continue
                    turns[port] = min(max(TURN_FRAMES // max(frames, 1), 1), TURN)
                    start = at + _HEADERS
                    for frame in range(frames):
                        payload = min(segment, length - _HEADERS - frame * segment)
                        _head(buffer, at, frame, start, payload, heads, HEAD_STRIDE * count)
                        ports[count] = numbers[port]
                        offsets[count] = start - _HEADERS
                        lengths[count] = _HEADERS + payload
                        head_of[count] = count
                        start += payload
                        count += 1
                else:
                    counts[tally] += 1
                    counts[_SEGMENTATION] += 1
            used += got
    return count


@nb.njit(nb.int64(WORDS, nb.int64, nb.int64), cache=True, nogil=True)
def _same_flow(records, one, other):  # type: ignore[no-untyped-def]
    """Whether the heads of two records (given by their first words) differ in no field but identification and IPv4 checksum."""
    differs = records[one + 2] ^ records[other + 2]
    differs |= records[one + 3] ^ records[other + 3]
    differs |= (records[one + 4] ^ records[other + 4]) & ~0xFFFF0000  # bytes 18 and 19 of the head
    differs |= (records[one + 5] ^ records[other + 5]) & ~0xFFFF  # bytes 24 and 25
    differs |= records[one + 6] ^ records[other + 6]
    return differs | (records[one + 7] ^ records[other + 7]) == 0


@nb.njit(
    nb.void(
        nb.int64,  # total
        WORDS,  # records
        BYTES,  # data
        INTS,  # descriptors
        INTS,  # longest
        WORDS,  # counts
    ),
    cache=True,
    nogil=True,
)
def _send(total, records, data, descriptors, longest, counts):  # type: ignore[no-untyped-def]
    """Send the frames of the first `total` records from the sockets of their ports, each port's frames in their order.

    descriptors[PORT_NUMBERS]: the socket of each port, -1 where there is none. Up to longest[port] bytes, datagrams of one flow
    and length that follow each other on a port travel as one run, for the receiving host to take whole (UDP_GRO) or cut apart.
    """
    heads = records.view(np.uint8)
    members = np.zeros(PORT_NUMBERS + 1, np.int64)
    kept = 0
    for frame in range(total):
        word = records[RECORD_WORDS * frame + 1]
        port = word >> 32
        if port < 0 or port >= PORT_NUMBERS or descriptors[port] < 0:
            counts[_UNKNOWN_PORT] += 1
        elif word & 0xFFFFFFFF < _ETHERNET:
            counts[_SHORT_FRAME] += 1
        else:
            members[port + 1] += 1
            kept += 1
    if kept == 0:
        return
    for port in range(PORT_NUMBERS):
        members[port + 1] += members[port]
    order = np.empty(kept, np.int64)
    for frame in range(total):  # a counting sort: multicast alternates between ports
        word = records[RECORD_WORDS * frame + 1]
        port = word >> 32
        if 0 <= port < PORT_NUMBERS and descriptors[port] >= 0 and word & 0xFFFFFFFF >= _ETHERNET:
            order[members[port]] = frame
            members[port] += 1

    vectors = np.empty(4 * kept, np.int64)
    headers = np.zeros(8 * kept, np.int64)
    scratch = np.zeros((_VNET + _HEADERS) * kept, np.uint8)  # of each message: virtio_net_hdr, and the head of frame or run
    sockets = np.empty(kept, np.int32)
    tallies = np.empty(kept, np.int64)  # of each message: where its port's counts lie
    packets = np.empty(kept, np.int64)
    messages = 0
    vector = 0
    place = 0
    while place < kept:
        first = RECORD_WORDS * order[place]
        at = 8 * first + RECORD_HEAD
        length = records[first + 1] & 0xFFFFFFFF
        port = records[first + 1] >> 32
        start = data.ctypes.data + records[first]
        run = 1
        own = messages * (_VNET + _HEADERS)
        head = own + _VNET
        copy(scratch, head, heads, at, _HEADERS)
        headers[8 * messages + 2] = vectors.ctypes.data + 8 * vector
        vectors[vector] = scratch.ctypes.data + own
        vectors[vector + 1] = _VNET + min(length, _HEADERS)
        vector += 2
        if length > _HEADERS:
            vectors[vector] = start
            vectors[vector + 1] = length - _HEADERS
            vector += 2
        # Whoever cuts the run apart writes new checksums, so a frame whose own is wrong must stay alone.
        joins = _HEADERS < length <= longest[port] and _is_ipv4_udp(heads, at, length) and u16(heads, at + 40) == 0
        if joins and folded(word_sum(heads, at + _ETHERNET, _IPV4)) == 0xFFFF:
            limit = min(_SEND_SEGMENTS, _SEND_BYTES // (length - _HEADERS))
            while run < limit and place + run < kept:
                following = RECORD_WORDS * order[place + run]
                if records[following + 1] != records[first + 1]:  # port and length
                    break
                other = 8 * following + RECORD_HEAD
                if not _same_flow(records, first, following) or folded(word_sum(heads, other + _ETHERNET, _IPV4)) != 0xFFFF:
                    break
                run += 1
                start += length - _HEADERS
                if data.ctypes.data + records[following] == start:
                    vectors[vector - 1] += length - _HEADERS
                else:
                    start = data.ctypes.data + records[following]
                    vectors[vector] = start
                    vectors[vector + 1] = length - _HEADERS
                    vector += 2
        headers[8 * messages + 3] = (vectors.ctypes.data + 8 * vector - headers[8 * messages + 2]) // 16
        if run > 1:
            payload = run * (length - _HEADERS)
            scratch[own] = _NEEDS_CSUM
            scratch[own + 1] = _GSO_UDP_L4
            _put_native16(scratch, own + 2, _HEADERS)
            _put_native16(scratch, own + 4, length - _HEADERS)
            _put_native16(scratch, own + 6, _ETHERNET + _IPV4)
            _put_native16(scratch, own + 8, 6)
            put16(scratch, head + 16, _IPV4 + _UDP + payload)
            put16(scratch, head + 24, 0)
            put16(scratch, head + 24, ~folded(word_sum(scratch, head + _ETHERNET, _IPV4)) & 0xFFFF)
            put16(scratch, head + 38, _UDP + payload)
            # The card, or the receiver in its place, completes the sum from the pseudo header's.
            put16(scratch, head + 40, folded(17 + _UDP + payload + word_sum(scratch, head + 26, 8)))
        sockets[messages] = descriptors[port]
        tallies[messages] = _TRAFFIC + PORT_COUNTS * port
        packets[messages] = run
        messages += 1
        place += run

    message = 0
    while message < messages:
        until = message + 1
        while until < messages and sockets[until] == sockets[message] and until - message < _SEND_MESSAGES:
            until += 1
        done = sendmmsg(sockets[message], headers.ctypes.data + 64 * message, until - message, _MSG_DONTWAIT)
        for accepted in range(message, message + max(done, 0)):
            counts[tallies[accepted] + 2] += packets[accepted]
            counts[tallies[accepted] + 3] += (headers[8 * accepted + 7] & 0xFFFFFFFF) - _VNET
        if done > 0:
            message += done
            continue
        error = errno_location()[0]
        if error == _EINTR:
            continue
        reason = _SEND_ERRORS
        if error in (_EAGAIN, _ENOBUFS):
            reason = _QUEUE_FULL
        elif error == _EMSGSIZE:
            reason = _OVERSIZED
        counts[reason] += packets[message]
        message += 1


class Intake:
    """The receiving side of all interfaces, and the batch that it makes."""

    def __init__(self, sockets: Mapping[int, socket.socket], wake: socket.socket, counts: npt.NDArray[np.int64]) -> None:
        """`sockets` by port number, with PACKET_VNET_HDR and PACKET_AUXDATA; `wake`: a socket that gets something to read when
        `receive` shall return WOKEN. `counts`: see Count."""
        self.arrivals = Arrivals(FRAME_CAPACITY, MESSAGES * _STRIDE)
        controls = np.zeros(MESSAGES * 5, np.int64)
        headers = np.zeros(MESSAGES * 8, np.int64)
        self._vectors = np.zeros(MESSAGES * 2, np.int64)  # the kernel follows the headers here
        for index in range(MESSAGES):
            self._vectors[2 * index] = self.arrivals.buffer.ctypes.data + index * _STRIDE
            self._vectors[2 * index + 1] = MESSAGE_BYTES
            headers[8 * index + 2] = self._vectors.ctypes.data + 16 * index
            headers[8 * index + 3] = 1
            headers[8 * index + 4] = controls.ctypes.data + _CMSG_BYTES * index
        polls = np.zeros((len(sockets) + 1, 2), np.int32)
        polls[:, 0] = [opened.fileno() for opened in (*sockets.values(), wake)]
        turns = np.full(len(sockets) + 1, TURN, np.int32)
        turns[-1] = 0
        self._arguments = (
            polls,
            np.array(list(sockets), np.int32),
            turns,
            controls,
            headers,
            self.arrivals.buffer,
            self.arrivals.ports,
            self.arrivals.offsets,
            self.arrivals.lengths,
            self.arrivals.heads,
            self.arrivals.head_of,
            counts,
        )

    def receive(self) -> int:
        """Wait for frames and make a batch; returns its number of frames (0 after a signal) or WOKEN."""
        self.arrivals.count = max(count := int(_receive(*self._arguments)), 0)
        return count


class Outlet(SocketOutlet):
    """The sending side of all interfaces."""

    _native = staticmethod(_send)

    def __init__(
        self, sockets: Mapping[int, socket.socket], counts: npt.NDArray[np.int64], longest: Mapping[int, int] | None = None
    ) -> None:
        """`longest`: bytes of the longest frame that may be part of a run, by port number; 0 where it is missing. The kernel
        does not compare a run with the interface's MTU as it does single frames."""
        lengths = np.zeros(PORT_NUMBERS, np.int32)
        for number, length in (longest or {}).items():
            lengths[number] = length
        super().__init__(sockets, counts, lengths)
