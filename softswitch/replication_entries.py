"""Multicast groups and clone sessions between P4Runtime messages and the dataplane.

Source: P4Runtime 1.4.1, section "PacketReplicationEngineEntry".
"""

from collections.abc import Iterator, Sequence

from p4.v1 import p4runtime_pb2

from switchsum.softswitch import bytestrings
from switchsum.softswitch.device import Pipeline
from switchsum.softswitch.entity_error import invalid, unimplemented

# v1model's standard_metadata: egress_port is bit<9>, egress_rid and mcast_grp are bit<16>; BMv2 keeps 15 bits of a
# clone session's id.
_PORT_BITS = 9
_INSTANCE_BITS = 16
_GROUP_BITS = 16
_SESSION_BITS = 15

Replicas = list[tuple[int, int]]  # (egress port, instance)


class ReplicationEntries:
    """Reads and writes the packet replication engine of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._groups = pipeline.dataplane.multicast_groups
        self._sessions = pipeline.dataplane.clone_sessions
        self._annotations = pipeline.annotations

    def write(self, kind: int, message: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        """Apply one update of type `kind`. Raises EntityError or the dataplane's TableError."""
        which = message.WhichOneof("type")
        if which == "multicast_group_entry":
            self._write_group(kind, message.multicast_group_entry)
        elif which == "clone_session_entry":
            self._write_session(kind, message.clone_session_entry)
        else:
            raise invalid("a packet replication entry must be a multicast group or a clone session")

    def read(self, message: p4runtime_pb2.PacketReplicationEngineEntry) -> Iterator[p4runtime_pb2.PacketReplicationEngineEntry]:
        """One entry by its id, all entries of a kind for id 0, everything when the kind is unset. An id that is not
        configured reads as nothing."""
        which = message.WhichOneof("type")
        if which in (None, "multicast_group_entry"):
            wanted = message.multicast_group_entry.multicast_group_id
            for group, replicas in self._groups.entries():
                if wanted in (0, group):
                    metadata, by_bytes = self._annotations.groups.get(group, (b"", False))
                    yield p4runtime_pb2.PacketReplicationEngineEntry(
                        multicast_group_entry=p4runtime_pb2.MulticastGroupEntry(
                            multicast_group_id=group, replicas=_messages(replicas, by_bytes), metadata=metadata
                        )
                    )
        if which in (None, "clone_session_entry"):
            wanted = message.clone_session_entry.session_id
            for session, replicas, truncate_bytes in self._sessions.entries():
                if wanted in (0, session):
                    yield p4runtime_pb2.PacketReplicationEngineEntry(
                        clone_session_entry=p4runtime_pb2.CloneSessionEntry(
                            session_id=session,
                            replicas=_messages(replicas, self._annotations.sessions.get(session, False)),
                            packet_length_bytes=truncate_bytes,
                        )
                    )

    def _write_group(self, kind: int, message: p4runtime_pb2.MulticastGroupEntry) -> None:
        group = message.multicast_group_id
        if not 0 < group < 1 << _GROUP_BITS:
            raise invalid(f"multicast group id {group}: 1 to {(1 << _GROUP_BITS) - 1} (0 means none)")
        if kind == p4runtime_pb2.Update.DELETE:
            self._groups.delete(group)
            self._annotations.groups.pop(group, None)
            return
        replicas, by_bytes = _parse(message.replicas, f"multicast group {group}")
        if kind == p4runtime_pb2.Update.INSERT:
            self._groups.insert(group, replicas)
        else:
            self._groups.modify(group, replicas)
        self._annotations.groups[group] = (message.metadata, by_bytes)

    def _write_session(self, kind: int, message: p4runtime_pb2.CloneSessionEntry) -> None:
        session = message.session_id
        if not 0 < session < 1 << _SESSION_BITS:
            raise invalid(f"clone session id {session}: 1 to {(1 << _SESSION_BITS) - 1} (0 reads all of them)")
        if kind == p4runtime_pb2.Update.DELETE:
            self._sessions.delete(session)
            self._annotations.sessions.pop(session, None)
            return
        replicas, by_bytes = _parse(message.replicas, f"clone session {session}")
        if message.class_of_service:
            raise unimplemented(f"clone session {session}: classes of service are not supported; leave it 0")
        if message.packet_length_bytes < 0:
            raise invalid(f"clone session {session}: packet_length_bytes is negative; 0 means no truncation")
        if kind == p4runtime_pb2.Update.INSERT:
            self._sessions.insert(session, replicas, message.packet_length_bytes)
        else:
            self._sessions.modify(session, replicas, message.packet_length_bytes)
        self._annotations.sessions[session] = by_bytes


def _parse(messages: Sequence[p4runtime_pb2.Replica], where: str) -> tuple[Replicas, bool]:
    """The replicas, and whether they use the bytes field `port` (new in 1.4.0) so that they read back the same way."""
    replicas: Replicas = []
    by_bytes = False
    for message in messages:
        kind = message.WhichOneof("port_kind")
        if kind == "port":
            by_bytes = True
            port = bytestrings.decode(message.port, _PORT_BITS, f"{where}, port")
        elif kind == "egress_port":
            port = message.egress_port
        else:
            raise invalid(f"{where}: a replica names no port")
        if port >> _PORT_BITS:
            raise invalid(f"{where}: port {port} does not fit the {_PORT_BITS} bits of an egress port")
        if message.instance >> _INSTANCE_BITS:
            raise invalid(f"{where}: instance {message.instance} does not fit {_INSTANCE_BITS} bits")
        if (port, message.instance) in replicas:
            raise invalid(f"{where}: port {port} with instance {message.instance} is listed twice")
        replicas.append((port, message.instance))
    return replicas, by_bytes


def _messages(replicas: Sequence[tuple[int, int]], by_bytes: bool) -> Iterator[p4runtime_pb2.Replica]:
    for port, instance in replicas:
        if by_bytes:
            yield p4runtime_pb2.Replica(port=bytestrings.encode(port), instance=instance)
        else:
            yield p4runtime_pb2.Replica(egress_port=port, instance=instance)
