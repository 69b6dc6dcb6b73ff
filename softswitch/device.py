"""The switch as its two faces share it: the pipeline that packets run through, and the one the controller sees.

Source: P4Runtime 1.4.1, section "SetForwardingPipelineConfig RPC". Usually both are the same pipeline; after
VERIFY_AND_SAVE the controller already reads and writes the saved one while packets still run through the old one,
and COMMIT swaps. A commit replaces one reference, so a batch of packets sees the old or the new pipeline, never a mix.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from p4.config.v1 import p4info_pb2

from switchsum.softswitch.dataplane import Dataplane
from switchsum.softswitch.p4info import Schema, TableView, bind
from switchsum.softswitch.program import Program, UnsupportedProgram
from switchsum.softswitch.tables import Entry, Key


@lru_cache(maxsize=4)
def _program(text: str) -> Program:
    """A program with its machine code, kept because a controller that restarts sends the same one again."""
    return Program.from_text(text, "p4_device_config")


class NotReconcilable(ValueError):
    """RECONCILE_AND_COMMIT cannot carry this state over; P4Runtime answers INVALID_ARGUMENT."""


@dataclass
class Annotations:
    """What a controller wants back although the dataplane has no use for it."""

    # (table id, key, priority), key None for the default entry -> (controller_metadata, metadata)
    entries: dict[tuple[int, Key | None, int], tuple[int, bytes]] = field(default_factory=dict)
    # multicast group -> (metadata, whether its replicas were written with the bytes field `port`)
    groups: dict[int, tuple[bytes, bool]] = field(default_factory=dict)
    sessions: dict[int, bool] = field(default_factory=dict)  # clone session -> the same about `port`


@dataclass
class Pipeline:
    """A verified forwarding-pipeline config and the state it owns."""

    p4info: p4info_pb2.P4Info
    device_config: bytes
    cookie: int | None
    dataplane: Dataplane
    schema: Schema
    annotations: Annotations = field(default_factory=Annotations)


class Device:
    """One switch. No lock: `running` is a single reference, everything else is called under the server's lock."""

    def __init__(self, seed: int = 0) -> None:
        """`seed` starts the random extern of every pipeline that is loaded."""
        self._seed = seed
        self._running: Pipeline | None = None
        self._saved: Pipeline | None = None

    @property
    def dataplane(self) -> Dataplane | None:
        """What packets run through; None while no pipeline is committed."""
        running = self._running
        return None if running is None else running.dataplane

    @property
    def running(self) -> Pipeline | None:
        return self._running

    @property
    def addressed(self) -> Pipeline | None:
        """What Read, Write and GetForwardingPipelineConfig refer to: the saved config if there is one."""
        return self._saved or self._running

    def load(self, p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int | None) -> Pipeline:
        """Compile a config and check it; changes nothing. `device_config` is p4c's BMv2 JSON, as bytes.

        Raises UnsupportedProgram, UnsupportedP4Info or PipelineMismatch.
        """
        try:
            text = device_config.decode()
        except UnicodeDecodeError as error:
            raise UnsupportedProgram("p4_device_config", [f"not UTF-8 text: {error}; send p4c's JSON file"]) from None
        dataplane = Dataplane(_program(text), seed=self._seed)
        return Pipeline(p4info, device_config, cookie, dataplane, bind(p4info, dataplane))

    def save(self, pipeline: Pipeline) -> None:
        """VERIFY_AND_SAVE: the controller's view moves, the packets' does not."""
        self._saved = pipeline

    def commit(self, pipeline: Pipeline) -> None:
        """VERIFY_AND_COMMIT: packets run through `pipeline`, with its initial state, from the next batch on."""
        self._running, self._saved = pipeline, None

    def commit_saved(self) -> bool:
        """COMMIT. False when nothing is saved.

        Writes since the save went to the saved pipeline itself, so the swap is the replay that the section asks for.
        """
        if self._saved is None:
            return False
        self.commit(self._saved)
        return True

    def reconcile(self, pipeline: Pipeline) -> None:
        """RECONCILE_AND_COMMIT. The same program keeps its state untouched, registers included; only P4Info and cookie
        change. Another program takes over entries, defaults, groups, sessions and counters, and its registers start anew.

        Raises NotReconcilable, changing nothing, when an entry or counter has no equal place in the new program.
        """
        old = self._running
        if old is not None and old.device_config == pipeline.device_config:
            pipeline.dataplane = old.dataplane
            pipeline.schema = bind(pipeline.p4info, old.dataplane)
            pipeline.annotations = _renumbered(old, pipeline)
        elif old is not None:
            _carry_tables(old, pipeline)
            _carry_counters(old.dataplane, pipeline.dataplane)
            _carry_replication(old.dataplane, pipeline.dataplane)
            pipeline.annotations = _renumbered(old, pipeline)
        self.commit(pipeline)


def _renumbered(old: Pipeline, new: Pipeline) -> Annotations:
    """The old annotations under the new P4Info's table ids."""
    ids = {view.name: view.id for view in new.schema.tables.values()}
    entries = {
        (ids[old.schema.tables[table_id].name], key, priority): note
        for (table_id, key, priority), note in old.annotations.entries.items()
        if old.schema.tables[table_id].name in ids
    }
    return Annotations(entries, dict(old.annotations.groups), dict(old.annotations.sessions))


def _carry_tables(old: Pipeline, new: Pipeline) -> None:
    successors = {view.name: view for view in new.schema.tables.values()}
    for view in old.schema.tables.values():
        entries = [entry for entry in view.table.entries() if not entry.const]
        default = view.table.default
        successor = successors.get(view.name)
        if successor is None or [(f.match, f.width) for f in successor.fields] != [(f.match, f.width) for f in view.fields]:
            if entries:
                raise NotReconcilable(f"table {view.name} has {len(entries)} entries and no equal table in the new program")
            continue
        _carry_entries(successor, entries)
        if default is not None and not default[2] and successor.table.default != default:
            action, arguments, _ = default
            if successor.const_default or not _fits(successor, action, len(arguments)):
                raise NotReconcilable(f"table {view.name}: its default action {action} does not fit the new program")
            successor.table.set_default(action, arguments)


def _carry_entries(table: TableView, entries: list[Entry]) -> None:
    if table.is_const and entries:
        raise NotReconcilable(f"table {table.name} has entries and is constant in the new program")
    for initial in table.table.entries():  # the old table's entries say what became of the initial ones
        if not initial.const:
            table.table.delete(initial.key, initial.priority)
    for entry in entries:
        if not _fits(table, entry.action, len(entry.params)):
            raise NotReconcilable(f"table {table.name}: action {entry.action} of an entry does not fit the new program")
        table.table.insert(entry.key, entry.priority, entry.action, entry.params)
        if table.table.direct_counter:
            table.table.write_counter(entry.key, entry.priority, entry.packets, entry.bytes)


def _fits(table: TableView, action: str, arguments: int) -> bool:
    compiled = table.table.actions.get(action)
    return compiled is not None and len(compiled.params) == arguments


def _carry_counters(old: Dataplane, new: Dataplane) -> None:
    for name, counter in old.counters.items():
        successor = new.counters.get(name)
        values = [counter.read(index) for index in range(counter.size)]
        if successor is None or successor.size != counter.size:
            if any(packets or octets for packets, octets in values):
                raise NotReconcilable(f"counter {name} has counted and has no equal in the new program")
            continue
        for index, (packets, octets) in enumerate(values):
            if packets or octets:
                successor.write(index, packets, octets)


def _carry_replication(old: Dataplane, new: Dataplane) -> None:
    for group, replicas in old.multicast_groups.entries():
        new.multicast_groups.insert(group, replicas)
    for session, replicas, truncate_bytes in old.clone_sessions.entries():
        new.clone_sessions.insert(session, replicas, truncate_bytes)
