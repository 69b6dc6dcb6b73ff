"""One pipeline's entities behind P4Runtime's Write and Read: which kind goes where, which kinds are refused by name,
and which status code each of the dataplane's errors becomes.

Source: P4Runtime 1.4.1, sections "P4 Entity Messages", "Write RPC" and "Read RPC".
"""

from collections.abc import Iterator

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from switchsum.softswitch.bytestrings import BytestringError
from switchsum.softswitch.counter_entries import CounterEntries
from switchsum.softswitch.device import Pipeline
from switchsum.softswitch.entity_error import EntityError, invalid, unimplemented
from switchsum.softswitch.replication_entries import ReplicationEntries
from switchsum.softswitch.table_entries import TableEntries
from switchsum.softswitch.tables import BadEntry, ConstTable, EntryExists, NoSuchEntry, TableError, TableFull

_UPDATE_TYPES = (p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY, p4runtime_pb2.Update.DELETE)

# Refused in Write and Read alike. Registers: simple_switch_grpc refuses them too, and nothing of ours may need them.
_UNIMPLEMENTED = {
    "register_entry": "registers cannot be read or written over P4Runtime (BMv2 cannot either)",
    "value_set_entry": "parser value sets are not supported",
    "extern_entry": "externs beyond v1model's are not supported",
}
# Kinds that a pipeline which loads here never has, with the field that is 0 in a wildcard read: such a read finds
# nothing, so that a controller can read "everything" without knowing what the switch lacks.
_ABSENT = {
    "action_profile_member": ("action profiles are not supported", "action_profile_id"),
    "action_profile_group": ("action profiles are not supported", "action_profile_id"),
    "meter_entry": ("meters are not supported", "meter_id"),
    "direct_meter_entry": ("meters are not supported", "table_entry"),
    "digest_entry": ("digests are not supported", "digest_id"),
}

# The first that fits counts: the base class comes last.
ERROR_CODES: tuple[tuple[type[BytestringError | TableError], int], ...] = (
    (BytestringError, code_pb2.OUT_OF_RANGE),
    (EntryExists, code_pb2.ALREADY_EXISTS),
    (NoSuchEntry, code_pb2.NOT_FOUND),
    (TableFull, code_pb2.RESOURCE_EXHAUSTED),
    (ConstTable, code_pb2.PERMISSION_DENIED),
    (BadEntry, code_pb2.INVALID_ARGUMENT),
    (TableError, code_pb2.UNKNOWN),
)


class Entities:
    """Reads and writes the entities of one pipeline. The server serializes the calls."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._tables = TableEntries(pipeline)
        self._counters = CounterEntries(pipeline)
        self._replication = ReplicationEntries(pipeline)

    def write(self, update: p4runtime_pb2.Update) -> None:
        """Apply one update or raise EntityError and change nothing."""
        kind = update.entity.WhichOneof("entity")
        try:
            if update.type not in _UPDATE_TYPES:
                raise invalid("the update has no type; choose INSERT, MODIFY or DELETE")
            if kind == "table_entry":
                self._tables.write(update.type, update.entity.table_entry)
            elif kind == "direct_counter_entry":
                self._tables.write_direct_counter(update.type, update.entity.direct_counter_entry)
            elif kind == "counter_entry":
                self._counters.write(update.type, update.entity.counter_entry)
            elif kind == "packet_replication_engine_entry":
                self._replication.write(update.type, update.entity.packet_replication_engine_entry)
            else:
                raise _refusal(kind)
        except (BytestringError, TableError) as error:
            raise translated(error) from error

    def read(self, entity: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """Everything that one request of a Read batch selects. Raises EntityError."""
        kind = entity.WhichOneof("entity")
        try:
            if kind == "table_entry":
                for entry in self._tables.read(entity.table_entry):
                    yield p4runtime_pb2.Entity(table_entry=entry)
            elif kind == "direct_counter_entry":
                for counter in self._tables.read_direct_counter(entity.direct_counter_entry):
                    yield p4runtime_pb2.Entity(direct_counter_entry=counter)
            elif kind == "counter_entry":
                for cell in self._counters.read(entity.counter_entry):
                    yield p4runtime_pb2.Entity(counter_entry=cell)
            elif kind == "packet_replication_engine_entry":
                for replication in self._replication.read(entity.packet_replication_engine_entry):
                    yield p4runtime_pb2.Entity(packet_replication_engine_entry=replication)
            elif kind not in _ABSENT or not _is_wildcard(entity, kind):
                raise _refusal(kind)
        except (BytestringError, TableError) as error:
            raise translated(error) from error


def translated(error: BytestringError | TableError) -> EntityError:
    """The P4Runtime error of a value that does not fit or of a refusal by the dataplane."""
    code = next(code for kind, code in ERROR_CODES if isinstance(error, kind))
    return EntityError(code, str(error))


def _is_wildcard(entity: p4runtime_pb2.Entity, kind: str) -> bool:
    selector = getattr(getattr(entity, kind), _ABSENT[kind][1])
    return not (selector.table_id if kind == "direct_meter_entry" else selector)


def _refusal(kind: str | None) -> EntityError:
    if kind in _UNIMPLEMENTED:
        return unimplemented(_UNIMPLEMENTED[kind])
    if kind in _ABSENT:
        return unimplemented(_ABSENT[kind][0])
    return invalid("the entity is empty or of a kind that P4Runtime 1.4.1 does not know")
