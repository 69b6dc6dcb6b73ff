"""What links carried against what the algorithm must move, as payload bytes by host and direction.

Predicted, of an operation with |U| bytes (of one worker's tensors, or of a call):

    p2p-latency, ps-throughput     |U| from worker to server and back, each call
    p2p-bandwidth                  |U| from worker to server
    allreduce, ring                2(n-1)/n |U| from each of n workers to the next (Patarasu and Yuan, 2009)
    allreduce, parameter servers   |U|/p from each worker to each of p servers and back: n|U|/p in and out at a server
    allreduce, switch              |U| from each worker to the switch and back: E lanes a packet, the last one filled up;
                                   two or four numbers a lane where lanes are narrow; 16-bit floats take a lane of 32 bits
    limit                          as many packets as through the switch, from each worker to the next

What stays on a host does not cross its link. Counted: a token bucket counts each packet with its headers, an interface each run
of segments that the kernel carries as one with the headers of the first; both say how many, so headers can be taken off. What
is left of framing (gRPC's, Gloo's) is part of the count. The switch's packets are counted by who receives them: of those that a
packet socket sends as one run, tbf counts the bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from switchsum.host_agent.quantizer import GUESSED_BLOCKS
from switchsum.measure.manifest import ITEM_BYTES, Buffer
from switchsum.measure.samples import Carried, Run, Series
from switchsum.p4src.layout import HEADER_BYTES

TOLERANCE = 0.03
LEAST_BYTES = 1_000_000  # of an operation's payload: below, Gloo's own headers among many workers are more than that
_ETHERNET, _IPV4, _UDP = 14, 20, 8
_TCP = 32  # with timestamps, which Linux sends unless told otherwise
_TCP_HEADERS = _ETHERNET + _IPV4 + _TCP
_UDP_HEADERS = _ETHERNET + _IPV4 + _UDP
_SWITCH = -1  # where a process is meant
_ECHOES = ("p2p-latency", "ps-throughput")
SENT, RECEIVED = "sent", "received"


@dataclass(frozen=True)
class Flow:
    """Payload bytes of a run from one process to another; _SWITCH is the switch."""

    sender: int
    receiver: int
    size: float


@dataclass(frozen=True)
class Verdict:
    """On one row, host and direction. `predicted`, `counted`, and `resent`, which `counted` may hold besides: bytes an
    operation; `ratio`: counted / predicted, None where nothing is to be carried. `ok`: None where it is not judged; `note`
    says why, or what was wrong."""

    label: str
    payload: str
    host: str
    direction: str
    predicted: float
    counted: float
    resent: float
    ratio: float | None
    ok: bool | None
    source: str
    note: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def off(self) -> float:
        """How far it is from the prediction."""
        return abs(self.ratio - 1) if self.ratio is not None else 0.0


def is_of_datagrams(transport: str) -> bool:
    """Whether it sends our own packets; all others use TCP."""
    return transport == "limit" or transport.startswith("switchsum")


def packets(series: Series, buffers: Sequence[Buffer], elements: int) -> int:
    """With lanes, of a sum through the switch. `elements`: lanes a packet."""
    count = 0
    for buffer in buffers:
        numbers = max(1, buffer.size_bytes // ITEM_BYTES[buffer.dtype])
        wide = series.transport == "limit" or buffer.dtype == "int32" or numbers <= GUESSED_BLOCKS * elements
        count += -(-numbers // (elements * (1 if wide else 32 // series.lanes)))
    return count


def flows(series: Series, run: Run, buffers: Sequence[Buffer], elements: int) -> Iterator[Flow]:
    """Of all operations of a run."""
    workers, servers = range(series.workers), range(series.workers, series.workers + series.servers)
    size = series.size_bytes
    if series.benchmark != "allreduce":
        for worker in workers:
            called = run.made[worker] / series.servers * size  # a worker calls all servers as often
            for server in servers:
                yield Flow(worker, server, called)
                if series.benchmark in _ECHOES:
                    yield Flow(server, worker, called)
        return
    operations, number = run.operations, series.workers
    if is_of_datagrams(series.transport):
        size = operations * packets(series, buffers, elements) * 4 * elements
    for worker in workers:
        following = (worker + 1) % number
        if series.transport == "limit":
            yield Flow(worker, following, size)
        elif is_of_datagrams(series.transport):
            yield Flow(worker, _SWITCH, size)
            yield Flow(_SWITCH, worker, size)
        elif series.servers:
            for server in servers:
                yield Flow(worker, server, operations * size / series.servers)
                yield Flow(server, worker, operations * size / series.servers)
        else:
            yield Flow(worker, following, operations * size * 2 * (number - 1) / number)


def _crossing(found: Sequence[Flow], place: Sequence[int], here: int, direction: str) -> float:
    """Bytes that leave or enter a place. `place`: of each process."""
    total = 0.0
    for flow in found:
        sender, receiver = (None if each == _SWITCH else place[each] for each in (flow.sender, flow.receiver))
        if sender != receiver and here == (sender if direction == SENT else receiver):
            total += flow.size
    return total


def _payload(series: Series, run: Run, index: int, processes: Sequence[int], direction: str) -> float:
    """What was counted at a place, without headers. `index`: of its count in run.carried; `processes`: that are there."""
    count = run.carried[index]
    size, seen = (count.sent_bytes, count.sent_packets) if direction == SENT else (count.received_bytes, count.received_packets)
    if not is_of_datagrams(series.transport):
        return size - (0 if series.link_source == "payload" else _TCP_HEADERS * seen)
    datagrams = sum(_packets(run.payload[process], direction) for process in processes)
    outer = {"payload": 0, "tbf": datagrams, "interface": seen}[series.link_source]
    return size - _UDP_HEADERS * outer - HEADER_BYTES * datagrams


def _packets(count: Carried, direction: str) -> int:
    return count.sent_packets if direction == SENT else count.received_packets


def _again(series: Series, run: Run, processes: Sequence[int], direction: str) -> int:
    """Bytes sent again that this place's link may have carried besides."""
    if series.link_source == "payload" and not is_of_datagrams(series.transport):
        return 0  # TCP tells each byte once
    own = sum(run.resent_bytes[process] for process in processes)
    if direction == SENT or series.transport.startswith("switchsum"):  # the switch answers who asks again
        return own
    return sum(run.resent_bytes) - own


def verdicts(series: Series, buffers: Sequence[Buffer], elements: int, label: str, names: Sequence[str]) -> list[Verdict]:
    """On each host (each process, where the count is its own) and direction of a row, all runs together.

    `buffers`: of the row's payload; `elements`: lanes a packet; `label`: of the transport; `names`: of the processes.
    """
    place = list(range(len(series.hosts))) if series.link_source == "payload" else series.hosts
    moved = [list(flows(series, run, buffers, elements)) for run in series.runs]
    operations = sum(run.operations for run in series.runs)
    found = []
    for index, here in enumerate(sorted(set(place))):
        processes = [process for process, each in enumerate(place) if each == here]
        host = ", ".join(names[process] for process in processes)
        for direction in (SENT, RECEIVED):
            predicted = sum(_crossing(each, place, here, direction) for each in moved)
            counted = sum(_payload(series, run, index, processes, direction) for run in series.runs)
            again = sum(_again(series, run, processes, direction) for run in series.runs)
            whole = series.size_bytes * operations
            ok, note = _judge(predicted, counted, again, whole, series)
            found.append(
                Verdict(
                    label=label,
                    payload=series.payload,
                    host=host,
                    direction=direction,
                    predicted=predicted / operations,
                    counted=counted / operations,
                    resent=again / operations,
                    ratio=counted / predicted if predicted else None,
                    ok=ok,
                    source=series.link_source,
                    note=note,
                )
            )
    return found


def _judge(predicted: float, counted: float, again: int, whole: float, series: Series) -> tuple[bool | None, str]:
    """`again`: bytes that may have been sent again; `whole`: payload of all operations."""
    if series.size_bytes < LEAST_BYTES:
        return None, f"below {LEAST_BYTES} B framing may be more than {100 * TOLERANCE:g} %"
    if series.transport == "nccl":
        return None, "NCCL chooses its algorithm and its way"
    if lost := sum(run.lost for run in series.runs):
        return None, f"{lost} datagrams were lost, which nobody sends again"
    slack = TOLERANCE * (predicted or whole)
    if counted < predicted - slack:
        return False, "the link carried less than the algorithm must move"
    if counted - again > predicted + slack:
        besides = ", even without what was sent again" if again else ""
        return False, f"the link carried more than the algorithm must move{besides}"
    return True, ""


def failed(found: Sequence[Verdict]) -> bool:
    return any(each.ok is False for each in found)


def worst(found: Sequence[Verdict]) -> Verdict:
    """Of one row: what failed goes before what was not judged, and the farther off before the nearer."""
    return max(found, key=lambda each: (each.ok is False, each.off))


def lines(rows: Sequence[Sequence[Verdict]]) -> list[str]:
    """For people: one line a row, of its worst host and direction, and the verdict on all. `rows`: verdicts() of each."""
    told = [
        "#",
        "# conservation: what links carried beside what the algorithm must move, payload bytes an operation, at the host that "
        "is farthest off",
        f"#{'payload':>17} {'transport':>16} {'must move':>12} {'carried':>12} {'ratio':>7} {'resent':>10}  verdict",
    ]
    for verdict in map(worst, rows):
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.4f}"
        judged = {True: "OK", False: "FAILED", None: "not judged"}[verdict.ok]
        where = f"{verdict.host} {verdict.direction}, by {verdict.source}"
        why = f": {verdict.note}" if verdict.note else ""
        told.append(
            f"#{verdict.payload:>17} {verdict.label:>16} {verdict.predicted:>12.0f} {verdict.counted:>12.0f} {ratio:>7} "
            f"{verdict.resent:>10.0f}  {judged}{why} ({where})"
        )
    bad, not_judged = sum(map(failed, rows)), sum(all(each.ok is None for each in row) for row in rows)
    judged = f"FAILED in {bad} row{'s' if bad > 1 else ''}" if bad else ("OK" if not_judged < len(rows) else "-")
    rest = f" ({not_judged} of {len(rows)} rows not judged)" if not_judged else ""
    told.append(f"# Conservation within {100 * TOLERANCE:g} % : {judged}{rest}")
    return told
