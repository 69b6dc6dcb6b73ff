"""Indirect counters between P4Runtime messages and the dataplane (P4Runtime 1.4.1, section "CounterEntry")."""

from collections.abc import Iterator

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from switchsum.softswitch.device import Pipeline
from switchsum.softswitch.entity_error import EntityError, invalid
from switchsum.softswitch.p4info import CounterView

_INT64_MASK = (1 << 63) - 1  # CounterData is int64; the dataplane counts in 64 bits and wraps here


class CounterEntries:
    """Reads and writes the indirect counters of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._counters = pipeline.schema.counters

    def write(self, kind: int, message: p4runtime_pb2.CounterEntry) -> None:
        """Set one cell, or every cell when the index is unset. Without data nothing changes."""
        if kind != p4runtime_pb2.Update.MODIFY:
            raise invalid("counter entries can only be modified; they exist as long as the program")
        view = self._view(message.counter_id)
        indices = _indices(view, message)
        if not message.HasField("data"):
            return
        packets, octets = counter_values(message.data, f"counter {view.name}")
        for index in indices:
            view.counter.write(index, packets, octets)

    def read(self, message: p4runtime_pb2.CounterEntry) -> Iterator[p4runtime_pb2.CounterEntry]:
        """One cell; all cells when the index is unset; all cells of all counters when the id is 0."""
        if not message.counter_id and message.HasField("index"):
            raise invalid("a read of all counters (counter_id 0) cannot name an index")
        views = [self._view(message.counter_id)] if message.counter_id else list(self._counters.values())
        for view in views:
            for index in _indices(view, message):
                yield p4runtime_pb2.CounterEntry(
                    counter_id=view.id,
                    index=p4runtime_pb2.Index(index=index),
                    data=counter_data(*view.counter.read(index)),
                )

    def _view(self, counter_id: int) -> CounterView:
        view = self._counters.get(counter_id)
        if view is None:
            raise invalid(f"counter id 0x{counter_id:08x} is not in the P4Info of the loaded pipeline")
        return view


def _indices(view: CounterView, message: p4runtime_pb2.CounterEntry) -> range:
    if not message.HasField("index"):
        return range(view.counter.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"counter {view.name}: index {index} is negative")
    if index >= view.counter.size:
        raise EntityError(code_pb2.OUT_OF_RANGE, f"counter {view.name}: index {index}; it has {view.counter.size} cells")
    return range(index, index + 1)


def counter_values(data: p4runtime_pb2.CounterData, where: str) -> tuple[int, int]:
    """(packets, bytes) of a counter value that a client writes."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{where}: a counter cannot be negative")
    return data.packet_count, data.byte_count


def counter_data(packets: int, octets: int) -> p4runtime_pb2.CounterData:
    return p4runtime_pb2.CounterData(packet_count=packets & _INT64_MASK, byte_count=octets & _INT64_MASK)
