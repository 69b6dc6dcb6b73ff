"""Where everything lies in memory: a packet's header vector, the registers, and the context that native code receives.

Header vector (one for each packet in flight), in this order: hidden fields of the switch | validity bytes and stack
counters | metadata headers | packet headers. A field lies in the smallest of 1, 2, 4, 8 bytes that holds it, wider ones in
a multiple of 8 bytes, in the host's (little-endian) order, unused high bits zero. Fields of a header are adjacent, so that
runs of equal lanes can be moved as vectors.

Registers of equal size and width lie interleaved, row by row ([row][lane]), with one row more than declared: indexes out of
range are led to that row, which is made zero again after every write.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchsum.softswitch.program import FieldRef, Header, Program, Register

HEADER_ALIGNMENT = 32

# Kept by the switch for each packet. u32 each, all zero when a packet arrives, except where traffic.py says otherwise.
HIDDEN_FIELDS = (
    "length",  # simple_switch's packet length register: follows setValid and setInvalid
    "ingress_length",  # bytes received, what counters count
    "clone_session",  # session + CLONE_MARK once clone was called
    "clone_list",
    "resubmit_list",
    "recirculate_list",
    "digest_list",
    "truncate",  # output length limit + 1, or 0 for none
    "exit",
    "parsed",  # bytes that the parser consumed
    "depth",  # how often this packet came back (resubmit, recirculate, clone)
    "loops",  # backward jumps taken in the current action
)

CLONE_MARK = 1 << 16


def container_bits(width: int) -> int:
    """Bits of memory that a value of `width` bits occupies."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return size
    return (width + 63) // 64 * 64


@dataclass(frozen=True)
class Slot:
    """One field in the header vector."""

    offset: int
    width: int
    signed: bool = False

    @property
    def container(self) -> int:
        return container_bits(self.width)

    @property
    def end(self) -> int:
        return self.offset + self.container // 8


@dataclass(frozen=True)
class VarbitSlot:
    """Bytes in network order at `offset`, their number in bits as u32 at `length`."""

    offset: int
    length: Slot
    max_bytes: int


@dataclass(frozen=True)
class HeaderLayout:
    offset: int  # of the body
    size: int  # of the body, bytes
    valid: Slot
    fields: dict[str, Slot]
    varbit: VarbitSlot | None


@dataclass(frozen=True)
class StackLayout:
    """Elements at constant distances: body `stride` bytes, validity 1 byte."""

    next: Slot
    stride: int
    size: int
    trash: int  # offset of a body that takes writes out of range
    zero: int  # offset of a body that stays zero, for reads out of range


@dataclass(frozen=True)
class RegisterGroup:
    """Registers of one size and width: cell (row, lane) is at ((row * lanes) + lane) * cell_bytes."""

    index: int
    rows: int  # as declared; memory holds one more
    width: int
    lanes: tuple[str, ...]

    @property
    def cell_bytes(self) -> int:
        return container_bits(self.width) // 8

    @property
    def row_bytes(self) -> int:
        return len(self.lanes) * self.cell_bytes

    @property
    def bytes(self) -> int:
        return (self.rows + 1) * self.row_bytes


class Layout:
    """All addresses of one program."""

    def __init__(self, program: Program) -> None:
        self.hidden = {name: Slot(4 * i, 32) for i, name in enumerate(HIDDEN_FIELDS)}
        self._cursor = 4 * len(HIDDEN_FIELDS)
        in_stack = {name for stack in program.stacks.values() for name in stack.headers}
        ordered: list[Header] = []
        for stack in program.stacks.values():
            ordered += [program.headers[name] for name in stack.headers]
        ordered += [h for h in program.headers.values() if h.name not in in_stack]
        validity = {h.name: Slot(self._take(1, 1), 8) for h in ordered}
        counters = {name: Slot(self._take(4, 4), 32) for name in program.stacks}
        self.metadata_start = self._cursor
        self.headers: dict[str, HeaderLayout] = {}
        for header in ordered:
            if header.metadata and header.name not in in_stack:
                self.headers[header.name] = self._place(header, validity[header.name])
        self.metadata_end = self._cursor
        for header in ordered:
            if header.name not in self.headers:
                self.headers[header.name] = self._place(header, validity[header.name])
        self.stacks: dict[str, StackLayout] = {}
        for name, stack in program.stacks.items():
            first = self.headers[stack.headers[0]]
            stride = -(-first.size // HEADER_ALIGNMENT) * HEADER_ALIGNMENT
            trash = self._take(first.size, HEADER_ALIGNMENT)
            zero = self._take(first.size, HEADER_ALIGNMENT)
            self.stacks[name] = StackLayout(counters[name], stride, len(stack.headers), trash, zero)
        self.size = -(-self._cursor // 64) * 64
        self.groups, self.register_place = self._group_registers(program)

    def _take(self, size: int, alignment: int) -> int:
        offset = -(-self._cursor // alignment) * alignment
        self._cursor = offset + size
        return offset

    def _place(self, header: Header, valid: Slot) -> HeaderLayout:
        start = self._take(0, HEADER_ALIGNMENT)
        fields: dict[str, Slot] = {}
        varbit = None
        for member in header.type.fields:
            if member.varbit:
                max_bytes = max(member.width // 8, 0)
                length = Slot(self._take(4, 4), 32)
                varbit = VarbitSlot(self._take(max_bytes, 1), length, max_bytes)
                continue
            size = container_bits(member.width) // 8
            fields[member.name] = Slot(self._take(size, min(size, 8)), member.width, member.signed)
        return HeaderLayout(start, self._cursor - start, valid, fields, varbit)

    def slot(self, ref: FieldRef) -> Slot:
        """The memory of a field that is not a varbit (KeyError for one)."""
        header = self.headers[ref.header]
        return header.valid if ref.field == "$valid$" else header.fields[ref.field]

    @staticmethod
    def _group_registers(program: Program) -> tuple[tuple[RegisterGroup, ...], dict[str, tuple[int, int]]]:
        shapes: dict[tuple[int, int], list[Register]] = {}
        for register in program.registers.values():
            shapes.setdefault((register.size, register.width), []).append(register)
        groups = []
        place: dict[str, tuple[int, int]] = {}
        for index, ((rows, width), members) in enumerate(shapes.items()):
            groups.append(RegisterGroup(index, rows, width, tuple(r.name for r in members)))
            for lane, register in enumerate(members):
                place[register.name] = (index, lane)
        return tuple(groups), place


# The context: an array of 64-bit words that Python fills and native code reads and writes.
CONTEXT_WORDS = (
    "out_data",  # address, malloc'ed by native code
    "out_data_capacity",  # bytes
    "out_data_used",
    "out_records",  # address of the records of output packets (see packets.py), malloc'ed by native code
    "out_capacity",  # records
    "out_count",
    "out_apart",  # 1: heads go into the records, the rest of each port's packets side by side; 0: packets lie whole
    "out_lanes",  # address of i64[LANES][2], each lane's room in out_data: its next byte and its end
    "phv",  # address of four header vectors: packet, saved packet (multicast), clone, spare
    "scratch",  # address of the bytes that checksums and hashes run over
    "random",  # state of the random extern
    "queue_head",  # packets that came back, as a linked list
    "queue_tail",
    "budget",  # copies this input packet may still make
    "groups",  # address of i32[65536]: offset into replicas, or -1
    "replicas",  # address of i32: count, then (port, rid) pairs
    "sessions",  # the same for clone sessions, i32[65536]
    "session_replicas",  # truncate bytes (0: none), count, then (port, rid) pairs
    "now",  # microseconds, the ingress timestamp
)

STATISTICS = (
    "packets_in",
    "packets_out",
    "drop_ingress",  # egress_spec was the drop port at the end of ingress
    "drop_egress",
    "drop_no_multicast_group",  # mcast_grp has no group
    "drop_no_clone_session",  # the clone, not the packet
    "drop_too_many_copies",  # budget of copies for one input packet is spent
    "drop_came_back_too_often",  # resubmitted, recirculated or cloned more than MAX_DEPTH times
    "drop_out_of_memory",
    "drop_too_long",  # the deparsed packet exceeds 65,535 bytes
    "digests_discarded",  # digest() was called; this switch has no digest stream
    "parser_errors",  # not drops: the packet goes on to ingress with parser_error set
    "register_writes_out_of_range",  # register rows, one for each group of writes
    "loops_stopped",  # an action jumped backward more than MAX_LOOPS times
)

MAX_DEPTH = 64
MAX_COPIES = 65536
MAX_LOOPS = 65536
MAX_PACKET = 65535
PHV_COUNT = 4
LANES = 512  # for output that lies side by side; v1model's ports have nine bits
LANE_BYTES = 65536 + 1344  # taken at once: a run of datagrams, and an odd number of cache lines, so that lanes share no sets

# Words of a table's descriptor, see tables.py.
TABLE_WORDS = (
    "count",  # entries that a scan visits
    "slot_mask",  # hash slots - 1
    "slots",  # address of i32[slots]: entry, -1 empty, -2 deleted
    "order",  # address of i32[count]: entries, best first
    "keys",  # address of u64[capacity][key words]: value, or low end
    "masks",  # address of u64[capacity][key words]: mask, or high end
    "data",  # address of entry data: i32 action, then parameters
    "counters",  # address of u64[capacity][2]: packets, bytes
    "default_data",  # address of one entry data
)


class ContextMap:
    """Word numbers in the context."""

    def __init__(self, program: Program, layout: Layout) -> None:
        names = [*CONTEXT_WORDS]
        names += [f"stat:{name}" for name in STATISTICS]
        names += [f"table:{name}:{word}" for name in program.tables for word in TABLE_WORDS]
        names += [f"group:{group.index}" for group in layout.groups]
        names += [f"counter:{name}" for name in program.counters]
        self.words = {name: number for number, name in enumerate(names)}
        self.size = len(names)

    def __getitem__(self, name: str) -> int:
        return self.words[name]


@dataclass(frozen=True)
class EntryLayout:
    """A table's key and entry data in memory: byte offsets of components and parameters."""

    key_offsets: tuple[int, ...]
    key_bytes: int  # a multiple of 8
    param_slots: dict[int, tuple[Slot, ...]]  # by action id
    data_bytes: int  # a multiple of 8


def action_params(program: Program, action: int) -> tuple[tuple[Slot, ...], int]:
    """Slots of an action's parameters behind the i32 action number, and the end offset."""
    cursor = 8
    slots = []
    for _, width in program.actions[action].params:
        size = container_bits(width) // 8
        cursor = -(-cursor // min(size, 8)) * min(size, 8)
        slots.append(Slot(cursor, width))
        cursor += size
    return tuple(slots), cursor


def entry_layout(program: Program, table: str) -> EntryLayout:
    declaration = program.tables[table]
    offsets = []
    cursor = 0
    for key in declaration.keys:
        size = container_bits(key.width) // 8
        cursor = -(-cursor // min(size, 8)) * min(size, 8)
        offsets.append(cursor)
        cursor += size
    actions = set(declaration.actions)
    if declaration.default is not None:
        actions.add(declaration.default.action)
    slots = {a: action_params(program, a) for a in actions}
    data = max((end for _, end in slots.values()), default=8)
    return EntryLayout(tuple(offsets), -(-cursor // 8) * 8, {a: s for a, (s, _) in slots.items()}, -(-data // 8) * 8)
