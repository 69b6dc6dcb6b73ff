"""Batches of UDP datagrams in and out of frames, in machine code without the GIL (numba).

`Intake` waits for the ports' sockets and turns what they hold into Ethernet frames; `Outlet` checks the frames that leave
and hands their payloads to the kernel. Both make the system calls themselves (recvmmsg, sendmmsg, poll), so that a batch
costs a few calls and no Python object for each packet. Runs of datagrams of equal size travel as one message: UDP_GRO
joins them on the way in, UDP_SEGMENT splits them on the way out. Payloads stay where the kernel wrote them, and those that
lie side by side leave as one piece (packets.py): sixty pieces cost the kernel a third more than one.

The kernel's structures are written as int64 words. That is the layout of 64-bit little-endian Linux:

    mmsghdr  8 words: name, namelen, iov, iovlen, control, controllen, flags, length of the message
    iovec    2 words: address, bytes             cmsg  3 words: bytes (20 or 18), level | type << 32, value
    pollfd   2 int32: descriptor, events | returned events << 16
"""

import socket
import struct
import sys
from collections.abc import Mapping
from enum import IntEnum

import numba as nb
import numpy as np
import numpy.typing as npt

from switchsum.softswitch.octets import BYTES, INTS, WORDS, folded, put16, u16, word_sum
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

if sys.byteorder != "little" or struct.calcsize("P") != 8:
    raise ImportError("the softswitch's UDP ports need a 64-bit little-endian machine")

MAX_DATAGRAM_BYTES = 9000 - 28  # jumbo frames are the largest that hardware forwards: MTU 9000 less IPv4 and UDP
MAX_SEGMENTS = 128  # UDP_MAX_SEGMENTS of Linux: UDP_GRO never joins more
# Bounds how long the control plane waits for the dataplane's lock (0.2 ms); the last read may exceed it. Under load, a batch
# sends each host several runs and wakes it up once: 256 frames cost 8 % more time a packet, 120 a quarter.
BATCH_FRAMES = 1024
MESSAGES = 8  # for each recvmmsg
TURN_FRAMES = 64  # of one port, if its next messages are as long as its last one, before the next port has its turn
BATCH_BYTES = BATCH_FRAMES * 1600
MESSAGE_BYTES = 65536
_STRIDE = HEAD_STRIDE + MESSAGE_BYTES  # room for the first datagram's head
FRAME_CAPACITY = BATCH_FRAMES + MESSAGES * MAX_SEGMENTS
BUFFER_BYTES = BATCH_BYTES + MESSAGES * _STRIDE

_MSG_DONTWAIT = 0x40
_EINTR, _EIO, _EAGAIN, _EINVAL, _EMSGSIZE, _ENOPROTOOPT, _EOPNOTSUPP = 4, 5, 11, 22, 90, 92, 95
_UDP_SEGMENT, _UDP_GRO = 103 << 32 | 17, 104 << 32 | 17  # level IPPROTO_UDP, type from linux/udp.h
_CMSG_BYTES = 24  # CMSG_SPACE(2) and CMSG_SPACE(4)
_SEND_SEGMENTS = 60  # with up to 1,083 bytes each, the run stays below the 65,507 bytes that one call may carry
_SEND_BYTES = 65000
_SEND_MESSAGES = 1024  # UIO_MAXIOV: sendmmsg takes no more


class Count(IntEnum):
    """Index of what is counted of all ports together (see make_counts), and its name for people, in lower case."""

    RECEIVE_ERRORS = 0  # an ICMP error about something we sent
    SEND_ERRORS = 1  # the host is gone (ICMP), or the kernel refuses the address
    DROPPED_NO_PIPELINE = 2
    DROPPED_OVERSIZED = 3  # longer than MAX_DATAGRAM_BYTES
    DROPPED_QUEUE_FULL = 4  # the socket's send buffer
    DROPPED_SHORT_FRAME = 5  # the program sent less than Ethernet, IPv4 and UDP header
    DROPPED_UNKNOWN_PORT = 6  # the program sent to a port that does not exist
    DROPPED_NOT_IPV4_UDP = 7
    DROPPED_IP_OPTIONS = 8
    DROPPED_FRAGMENT = 9
    DROPPED_NOT_LOOPBACK = 10  # destination outside 127.0.0.0/8
    DROPPED_IP_CHECKSUM = 11
    DROPPED_TRUNCATED = 12  # IPv4 or UDP length beyond the frame, or below the headers
    DROPPED_UDP_PORT_ZERO = 13
    DROPPED_UDP_CHECKSUM = 14
    INTERNAL_ERRORS = 15  # a batch lost by a defect of the switch; its log has the trace


_TRAFFIC = len(Count)  # where the ports' own counts begin: see make_counts
_RECEIVE_ERRORS, _SEND_ERRORS = int(Count.RECEIVE_ERRORS), int(Count.SEND_ERRORS)
_OVERSIZED, _QUEUE_FULL = int(Count.DROPPED_OVERSIZED), int(Count.DROPPED_QUEUE_FULL)
_SHORT_FRAME, _UNKNOWN_PORT = int(Count.DROPPED_SHORT_FRAME), int(Count.DROPPED_UNKNOWN_PORT)
_NOT_IPV4_UDP, _IP_OPTIONS = int(Count.DROPPED_NOT_IPV4_UDP), int(Count.DROPPED_IP_OPTIONS)
_FRAGMENT, _NOT_LOOPBACK = int(Count.DROPPED_FRAGMENT), int(Count.DROPPED_NOT_LOOPBACK)
_IP_CHECKSUM, _TRUNCATED = int(Count.DROPPED_IP_CHECKSUM), int(Count.DROPPED_TRUNCATED)
_UDP_PORT_ZERO, _UDP_CHECKSUM = int(Count.DROPPED_UDP_PORT_ZERO), int(Count.DROPPED_UDP_CHECKSUM)


@nb.njit(nb.void(BYTES, nb.int64, BYTES, nb.int64, nb.int64, BYTES, nb.int64), cache=True, nogil=True)
def _put_header(frame, at, name, name_at, payload, switch_ip, service_port):  # type: ignore[no-untyped-def]
    """Ethernet, IPv4 and UDP header of a datagram of `payload` bytes. `name` holds the sender's sockaddr_in."""
    frame[at] = 0x02  # to 02:53:53:00:00:00, the switch
    frame[at + 1] = 0x53
    frame[at + 2] = 0x53
    for byte in range(3):
        frame[at + 3 + byte] = 0
    frame[at + 6] = 0x02  # from 02:00:a:b:c:d
    frame[at + 7] = 0
    put16(frame, at + 12, 0x0800)
    put16(frame, at + 14, 0x4500)  # RFC 791: version 4, five words, TOS 0
    put16(frame, at + 16, 28 + payload)
    put16(frame, at + 18, 0)
    put16(frame, at + 20, 0x4000)  # DF
    put16(frame, at + 22, 64 << 8 | 17)  # TTL, UDP
    put16(frame, at + 24, 0)
    for byte in range(4):
        frame[at + 8 + byte] = name[name_at + 4 + byte]
        frame[at + 26 + byte] = name[name_at + 4 + byte]
        frame[at + 30 + byte] = switch_ip[byte]
    put16(frame, at + 24, ~folded(word_sum(frame, at + 14, 20)) & 0xFFFF)
    frame[at + 34] = name[name_at + 2]
    frame[at + 35] = name[name_at + 3]
    put16(frame, at + 36, service_port)
    put16(frame, at + 38, 8 + payload)
    put16(frame, at + 40, 0)  # RFC 768: no checksum; loopback does not flip bits


@nb.njit(
    nb.int64(
        nb.int32[:, ::1],  # polls
        INTS,  # numbers
        INTS,  # turns
        BYTES,  # names
        WORDS,  # controls
        WORDS,  # headers
        WORDS,  # vectors
        BYTES,  # buffer
        INTS,  # ports
        WORDS,  # offsets
        INTS,  # lengths
        BYTES,  # heads
        INTS,  # head_of
        BYTES,  # switch_ip
        nb.int64,  # service_port
        WORDS,  # counts
    ),
    cache=True,
    nogil=True,
)
def _receive(  # type: ignore[no-untyped-def]
    polls,
    numbers,
    turns,
    names,
    controls,
    headers,
    vectors,
    buffer,
    ports,
    offsets,
    lengths,
    heads,
    head_of,
    switch_ip,
    service_port,
    counts,
):
    """Wait until a socket has something, then write a batch of frames; returns their number, or WOKEN.

    polls: pollfd of each port's socket, in the order of `numbers` (port numbers), and last the one that wakes us up.
    turns: how many messages to read next from each port; last, whose turn is first. names, controls, headers, vectors: memory
    of the messages of one recvmmsg. The rest as in Arrivals.
    """
    ready = wait_for_input(polls)
    if ready <= 0:
        return ready
    count = 0
    own = 0  # heads
    position = 0
    progress = True
    while progress:
        progress = False
        for _ in range(len(numbers)):  # in turns, so that a busy port does not silence the others
            port = turns[len(numbers)]
            if polls[port, 1] >> 16 == 0:
                turns[len(numbers)] = (port + 1) % len(numbers)
                continue
            if count >= BATCH_FRAMES or position >= BATCH_BYTES:
                return count
            turns[len(numbers)] = (port + 1) % len(numbers)
            wanted = turns[port]
            for index in range(wanted):
                vectors[2 * index] = buffer.ctypes.data + position + index * _STRIDE + HEAD_STRIDE
                headers[8 * index + 1] = 16
                headers[8 * index + 5] = _CMSG_BYTES
                controls[3 * index] = 0
            got = recvmmsg(polls[port, 0], headers.ctypes.data, wanted, _MSG_DONTWAIT, 0)
            if got < 0 and errno_location()[0] != _EAGAIN:
                counts[_RECEIVE_ERRORS] += 1
            if got < wanted:
                polls[port, 1] = 0  # drained, as far as this batch is concerned
            else:
                progress = True
            for index in range(got):
                size = headers[8 * index + 7] & 0xFFFFFFFF
                segment = size
                if controls[3 * index] >= 20 and controls[3 * index + 1] == _UDP_GRO:
                    segment = controls[3 * index + 2] & 0xFFFFFFFF
                frames = 1
                if segment > 0:
                    frames = (size + segment - 1) // segment
                turns[port] = min(max(TURN_FRAMES // frames, 1), MESSAGES)
                counts[_TRAFFIC + PORT_COUNTS * numbers[port]] += frames
                counts[_TRAFFIC + PORT_COUNTS * numbers[port] + 1] += size
                if segment > MAX_DATAGRAM_BYTES or frames > MAX_SEGMENTS:
                    counts[_OVERSIZED] += frames
                    continue
                start = position + index * _STRIDE + HEAD_STRIDE
                for frame in range(frames):
                    payload = min(segment, size - frame * segment)
                    if frame == 0 or payload != segment:
                        _put_header(heads, HEAD_STRIDE * own, names, 16 * index, payload, switch_ip, service_port)
                        own += 1
                    ports[count] = numbers[port]
                    offsets[count] = start - HEAD_BYTES
                    lengths[count] = HEAD_BYTES + payload
                    head_of[count] = own - 1
                    start += payload
                    count += 1
            if got > 0:
                position += (got - 1) * _STRIDE + HEAD_STRIDE + (headers[8 * got - 1] & 0xFFFFFFFF)
                position = (position + HEAD_STRIDE - 1) & ~(HEAD_STRIDE - 1)
    return count


@nb.njit(nb.int64(BYTES, nb.int64, nb.int64, BYTES, nb.int64), cache=True, nogil=True)
def _verdict(heads, at, length, data, rest):  # type: ignore[no-untyped-def]
    """0 if a host's network stack would take this frame, else the Count of the reason why not.

    The frame of `length` bytes: its head is heads[at:], what follows is data[rest:].
    """
    if length < HEAD_BYTES:
        return _SHORT_FRAME
    if u16(heads, at + 12) != 0x0800 or heads[at + 14] >> 4 != 4 or heads[at + 23] != 17:
        return _NOT_IPV4_UDP
    if heads[at + 14] != 0x45:
        return _IP_OPTIONS
    if u16(heads, at + 20) & 0x3FFF:  # more fragments, or not the first
        return _FRAGMENT
    if heads[at + 30] != 127:
        return _NOT_LOOPBACK
    if folded(word_sum(heads, at + 14, 20)) != 0xFFFF:
        return _IP_CHECKSUM
    packet = u16(heads, at + 16)
    datagram = u16(heads, at + 38)
    if packet + 14 > length or datagram + 20 > packet or datagram < 8:
        return _TRUNCATED
    if u16(heads, at + 36) == 0:
        return _UDP_PORT_ZERO
    if u16(heads, at + 40) != 0:
        # RFC 768: pseudo header (protocol, length, addresses), then the datagram
        total = 17 + datagram + word_sum(heads, at + 26, 8) + word_sum(heads, at + 34, 8) + word_sum(data, rest, datagram - 8)
        if folded(total) != 0xFFFF:
            return _UDP_CHECKSUM
    return 0


@nb.njit(
    nb.void(
        nb.int64,  # total
        WORDS,  # records
        BYTES,  # data
        INTS,  # descriptors
        INTS,  # offload
        WORDS,  # counts
    ),
    cache=True,
    nogil=True,
)
def _send(total, records, data, descriptors, offload, counts):  # type: ignore[no-untyped-def]
    """Send the payloads of the frames in the first `total` records from the sockets of their ports.

    descriptors[PORT_NUMBERS]: the socket of each port, -1 where there is none. offload[1]: whether to use UDP_SEGMENT;
    becomes 0 when the kernel refuses it. Frames to one destination keep their order.
    """
    heads = records.view(np.uint8)
    flow_of = np.empty(total, np.int64)  # index of the frame's flow, or -1
    flows = np.empty(total, np.int64)  # port, address and UDP port of each flow
    members = np.zeros(total + 1, np.int64)
    last = np.full(PORT_NUMBERS, -1, np.int64)  # the frame of each port that was last found good
    known = 0
    kept = 0
    guess = 0
    for frame in range(total):
        word = RECORD_WORDS * frame
        port = records[word + 1] >> 32
        if port < 0 or port >= PORT_NUMBERS or descriptors[port] < 0:
            counts[_UNKNOWN_PORT] += 1
            flow_of[frame] = -1
            continue
        if last[port] >= 0:  # as a rule, a frame's head is that of the one before it: good too, if the payload does not matter
            before = RECORD_WORDS * last[port]
            differs = records[word + 7] & 0xFFFF
            for other in range(1, RECORD_WORDS):
                differs |= records[word + other] ^ records[before + other]
            if differs == 0:
                flow_of[frame] = flow_of[last[port]]
                members[flow_of[frame]] += 1
                kept += 1
                continue
        at = 8 * word + RECORD_HEAD
        reason = _verdict(heads, at, records[word + 1] & 0xFFFFFFFF, data, records[word])
        if reason:
            counts[reason] += 1
            flow_of[frame] = -1
            continue
        last[port] = frame
        flow = port << 48 | u16(heads, at + 30) << 32 | u16(heads, at + 32) << 16 | u16(heads, at + 36)
        guess += 1  # multicast goes round the group, so the flow after the last one is the likeliest
        if guess >= known or flows[guess] != flow:
            guess = 0
            while guess < known and flows[guess] != flow:
                guess += 1
            if guess == known:
                flows[known] = flow
                known += 1
        flow_of[frame] = guess
        members[guess] += 1
        kept += 1
    if kept == 0:
        return

    places = np.zeros(known + 1, np.int64)
    for flow in range(known):
        places[flow + 1] = places[flow] + members[flow]
    order = np.empty(kept, np.int64)
    for frame in range(total):  # a counting sort, so that each flow keeps its order
        if flow_of[frame] >= 0:
            order[places[flow_of[frame]]] = frame
            places[flow_of[frame]] += 1

    vectors = np.empty(2 * kept, np.int64)
    headers = np.zeros(8 * kept, np.int64)
    names = np.zeros(16 * kept, np.uint8)
    controls = np.zeros(3 * kept, np.int64)
    sockets = np.empty(kept, np.int32)
    tallies = np.empty(kept, np.int64)  # of each message: where its port's counts lie
    firsts = np.empty(kept + 1, np.int64)  # of each message: its first place in `order`
    messages = 0
    pieces = 0
    run_flow = -1
    run_size = -1
    run_end = -1
    for place in range(kept):
        frame = order[place]
        word = RECORD_WORDS * frame
        at = 8 * word + RECORD_HEAD
        size = u16(heads, at + 38) - 8
        start = data.ctypes.data + records[word]
        joined = messages > 0 and offload[0] != 0 and flow_of[frame] == run_flow and size == run_size and size > 0
        if joined:
            run = place - firsts[messages - 1]
            joined = run < _SEND_SEGMENTS and (run + 1) * size <= _SEND_BYTES
        if joined and start == run_end:
            vectors[2 * pieces - 1] += size
            run_end += size
            continue
        vectors[2 * pieces] = start
        vectors[2 * pieces + 1] = size
        pieces += 1
        run_end = start + size
        if joined:
            headers[8 * (messages - 1) + 3] += 1
            continue
        run_flow = flow_of[frame]
        run_size = size
        sockets[messages] = descriptors[records[word + 1] >> 32]
        tallies[messages] = _TRAFFIC + PORT_COUNTS * (records[word + 1] >> 32)
        name = 16 * messages
        names[name] = 2  # AF_INET, in the host's order
        for byte in range(2):
            names[name + 2 + byte] = heads[at + 36 + byte]
        for byte in range(4):
            names[name + 4 + byte] = heads[at + 30 + byte]
        headers[8 * messages] = names.ctypes.data + name
        headers[8 * messages + 1] = 16
        headers[8 * messages + 2] = vectors.ctypes.data + 16 * (pieces - 1)
        headers[8 * messages + 3] = 1
        firsts[messages] = place
        messages += 1
    firsts[messages] = kept
    for message in range(messages):
        if firsts[message + 1] - firsts[message] > 1:
            first = RECORD_WORDS * order[firsts[message]]
            controls[3 * message] = 18
            controls[3 * message + 1] = _UDP_SEGMENT
            controls[3 * message + 2] = u16(heads, 8 * first + RECORD_HEAD + 38) - 8
            headers[8 * message + 4] = controls.ctypes.data + _CMSG_BYTES * message
            headers[8 * message + 5] = _CMSG_BYTES

    message = 0
    while message < messages:
        until = message + 1
        while until < messages and sockets[until] == sockets[message] and until - message < _SEND_MESSAGES:
            until += 1
        done = sendmmsg(sockets[message], headers.ctypes.data + 64 * message, until - message, _MSG_DONTWAIT)
        for accepted in range(message, message + max(done, 0)):
            counts[tallies[accepted] + 2] += firsts[accepted + 1] - firsts[accepted]
            counts[tallies[accepted] + 3] += headers[8 * accepted + 7] & 0xFFFFFFFF
        if done > 0:
            message += done
            continue
        error = errno_location()[0]
        if error == _EINTR:
            continue
        run = firsts[message + 1] - firsts[message]
        if run > 1 and error in (_EIO, _EINVAL, _EMSGSIZE, _ENOPROTOOPT, _EOPNOTSUPP):
            if error != _EMSGSIZE:  # EMSGSIZE: this size does not fit the link; otherwise the kernel knows no UDP_SEGMENT
                offload[0] = 0
            headers[8 * message + 3] = 1
            headers[8 * message + 4] = 0
            headers[8 * message + 5] = 0
            single = headers[8 * message + 2] - vectors.ctypes.data
            size = controls[3 * message + 2]
            for place in range(firsts[message], firsts[message + 1]):
                vectors[single // 8] = data.ctypes.data + records[RECORD_WORDS * order[place]]
                vectors[single // 8 + 1] = size
                if sendmmsg(sockets[message], headers.ctypes.data + 64 * message, 1, _MSG_DONTWAIT) == 1:
                    counts[tallies[message] + 2] += 1
                    counts[tallies[message] + 3] += headers[8 * message + 7] & 0xFFFFFFFF
                elif errno_location()[0] == _EAGAIN:
                    counts[_QUEUE_FULL] += 1
                else:
                    counts[_SEND_ERRORS] += 1
        elif error == _EAGAIN:
            counts[_QUEUE_FULL] += run
        else:
            counts[_SEND_ERRORS] += run
        message += 1


class Intake:
    """The receiving side of all ports, and the batch that it writes."""

    def __init__(
        self,
        sockets: Mapping[int, socket.socket],
        wake: socket.socket,
        switch_ip: bytes,
        service_port: int,
        counts: npt.NDArray[np.int64],
    ) -> None:
        """`sockets` by port number; `wake`: a socket that gets something to read when `receive` shall return WOKEN.
        `switch_ip` (4 bytes) and `service_port` are the destination in the headers. `counts`: see Count."""
        self.arrivals = Arrivals(FRAME_CAPACITY, BUFFER_BYTES)
        names = np.zeros(MESSAGES * 16, np.uint8)
        controls = np.zeros(MESSAGES * 3, np.int64)
        headers = np.zeros(MESSAGES * 8, np.int64)
        vectors = np.zeros(MESSAGES * 2, np.int64)
        for index in range(MESSAGES):
            vectors[2 * index + 1] = MESSAGE_BYTES
            headers[8 * index] = names.ctypes.data + 16 * index
            headers[8 * index + 2] = vectors.ctypes.data + 16 * index
            headers[8 * index + 3] = 1
            headers[8 * index + 4] = controls.ctypes.data + _CMSG_BYTES * index
        polls = np.zeros((len(sockets) + 1, 2), np.int32)
        polls[:, 0] = [opened.fileno() for opened in (*sockets.values(), wake)]
        turns = np.ones(len(sockets) + 1, np.int32)
        turns[-1] = 0
        self._arguments = (
            polls,
            np.array(list(sockets), np.int32),
            turns,
            names,
            controls,
            headers,
            vectors,
            self.arrivals.buffer,
            self.arrivals.ports,
            self.arrivals.offsets,
            self.arrivals.lengths,
            self.arrivals.heads,
            self.arrivals.head_of,
            np.frombuffer(switch_ip, np.uint8).copy(),
            service_port,
            counts,
        )

    def receive(self) -> int:
        """Wait for datagrams and write a batch; returns its number of frames (0 after a signal) or WOKEN."""
        self.arrivals.count = max(count := int(_receive(*self._arguments)), 0)
        return count


class Outlet(SocketOutlet):
    """The sending side of all ports."""

    _native = staticmethod(_send)

    def __init__(self, sockets: Mapping[int, socket.socket], counts: npt.NDArray[np.int64], *, offload: bool = True) -> None:
        """`offload`: use UDP_SEGMENT as long as the kernel takes it."""
        super().__init__(sockets, counts, np.full(1, offload, np.int32))
