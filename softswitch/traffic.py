"""The traffic manager: what happens to a packet between ports, parser, pipelines and deparser, as in simple_switch.cpp.

A packet runs through ingress and egress at once. Packets that come back (resubmit, recirculate) and clones wait in a list
and are processed, first come first served, before the next packet from outside. Each of them has its own header vector and
its own copy of the bytes.
Bounds for one packet from outside: MAX_DEPTH generations, MAX_COPIES copies.
"""

from __future__ import annotations

from llvmlite import ir

from switchsum.softswitch.actions import DROP_PORT
from switchsum.softswitch.checksums import update_checksums
from switchsum.softswitch.deparser import header_bound
from switchsum.softswitch.frame import I8, I32, I64, PTR, VOID, Frame, Unit, Value
from switchsum.softswitch.layout import LANE_BYTES, LANES, MAX_COPIES, MAX_DEPTH, MAX_PACKET, Slot
from switchsum.softswitch.packets import HEAD_BYTES, HEAD_STRIDE, RECORD_HEAD, RECORD_WORDS
from switchsum.softswitch.parsers import late_headers
from switchsum.softswitch.program import FieldRef

# standard_metadata.instance_type, as simple_switch numbers it
NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6

RECORD_BYTES = 8 * RECORD_WORDS

CLEARED_IN_LINE = 1024  # bytes of the header vector: a call of memset costs more than these stores
MERGED_GAP = 32  # bytes: copying a few more is cheaper than another copy

# A waiting packet: i64 next, i32 to egress?, i32 port, i64 length, header vector at 64, bytes behind it.
NODE_EGRESS, NODE_PORT, NODE_LENGTH, NODE_PHV = 8, 12, 16, 64


class Traffic:
    """Defines the functions of the traffic manager in a module that has parse, pipelines and deparse."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.layout = unit.layout
        self.intrinsic = unit.program.intrinsic
        self.phv_bytes = unit.layout.size
        self._egress_writes: set[tuple[int, int]] = set()

    def define_all(self) -> None:
        self._define_reserve()
        self._define_copy_list()
        self._define_new_node()
        self._define_emit_apart()
        self._define_emit()
        self._define_clone("ingress", INGRESS_CLONE)
        self._define_clone("egress", EGRESS_CLONE)
        self.unit.take_writes()
        self._define_run_egress()
        self._egress_writes = self.unit.take_writes()
        self._define_run_ingress()
        self._define_packet()
        self._define_batch()
        self._define_forward()

    def _frame(self, name: str, result: ir.Type, args: list[ir.Type], exported: bool = False, phv: int = 1) -> Frame:
        """A function whose first argument is the context and whose argument number `phv` is the header vector."""
        function = self.unit.define(name, result, args, exported)
        return Frame(self.unit, function, function.args[0], function.args[phv])

    def _intrinsic_slot(self, name: str) -> Slot | None:
        ref = self.intrinsic.get(name)
        return None if ref is None else self.layout.slot(ref)

    def _set_intrinsic(self, frame: Frame, name: str, value: Value) -> None:
        slot = self._intrinsic_slot(name)
        if slot is not None:
            frame.set(slot, value)

    def _free(self, frame: Frame, pointer: Value) -> None:
        frame.b.call(self.unit.declare("free", VOID, [PTR]), [pointer])

    # --- output

    def _define_reserve(self) -> None:
        """i1 (context, bytes): room for one more packet of `bytes` in the output; false if memory is out."""
        function = self.unit.define("reserve", ir.IntType(1), [PTR, I64])
        frame = Frame(self.unit, function, function.args[0], function.args[0])
        b = frame.b
        realloc = self.unit.declare("realloc", PTR, [PTR, I64])
        failed = frame.new_block("failed")

        def grow(pointer: str, capacity: str, needed: Value, unit_bytes: int) -> None:
            short = b.icmp_unsigned(">", needed, frame.read_word(capacity))
            with b.if_then(short, likely=False):
                wanted = b.shl(needed, I64(1))
                moved = b.call(realloc, [frame.read_pointer(pointer), b.mul(wanted, I64(unit_bytes))])
                kept = frame.new_block("kept")
                b.cbranch(b.icmp_unsigned("==", b.ptrtoint(moved, I64), I64(0)), failed, kept)
                b.position_at_end(kept)
                b.store(moved, frame.word(pointer))
                frame.write_word(capacity, wanted)

        grow("out_data", "out_data_capacity", b.add(frame.read_word("out_data_used"), function.args[1]), 1)
        grow("out_records", "out_capacity", b.add(frame.read_word("out_count"), I64(1)), RECORD_BYTES)
        b.ret(ir.IntType(1)(1))
        b.position_at_end(failed)
        frame.count("drop_out_of_memory")
        b.ret(ir.IntType(1)(0))

    def _truncated(self, frame: Frame, length: Value) -> Value:
        """min(length, limit set by truncate)"""
        b = frame.b
        slot = self.layout.hidden["truncate"]
        limit = b.zext(b.sub(frame.raw_load(frame.address(slot), slot), I32(1)), I64)  # 0, none, becomes 2^32 - 1
        return b.select(b.icmp_unsigned("<", length, limit), length, limit)

    def _define_emit_apart(self) -> None:
        """void (context, phv, payload, payload bytes, port): deparse into the output, head and rest apart.

        The head is deparsed over the end of the packet before, on its port, which is put right again.
        """
        frame = self._frame("emit_apart", VOID, [PTR, PTR, PTR, I64, I32])
        b = frame.b
        context, phv, payload, size, port = frame.function.args
        lane = frame.at(frame.read_pointer("out_lanes"), b.mul(b.zext(b.and_(port, I32(LANES - 1)), I64), I64(16)))
        room = b.add(size, I64(header_bound(self.unit)))
        cursor, end = b.load(lane, typ=I64), b.load(frame.at(lane, 8), typ=I64)
        full = b.icmp_unsigned(">", b.add(cursor, room), end)
        taken = b.add(room, I64(HEAD_STRIDE))
        taken = b.select(b.icmp_unsigned("<", taken, I64(LANE_BYTES)), I64(LANE_BYTES), taken)
        taken = b.select(full, taken, I64(0))
        with b.if_then(b.not_(b.call(self.unit.functions["reserve"], [context, taken])), likely=False):
            b.ret_void()
        before = b.block
        with b.if_then(full, likely=False):
            used = frame.read_word("out_data_used")
            fresh, fresh_end = b.add(used, I64(HEAD_STRIDE)), b.add(used, taken)
            b.store(fresh, lane)
            b.store(fresh_end, frame.at(lane, 8))
            frame.write_word("out_data_used", fresh_end)
            inside = b.block
        merged = b.phi(I64)
        merged.add_incoming(cursor, before)
        merged.add_incoming(fresh, inside)
        target = frame.at(frame.read_pointer("out_data"), b.sub(merged, I64(HEAD_BYTES)))
        wide, narrow, second = ir.VectorType(I8, 32), ir.VectorType(I8, 16), HEAD_BYTES - 16
        overwritten = [b.load(target, typ=wide, align=1), b.load(frame.at(target, second), typ=narrow, align=1)]
        headers = b.call(self.unit.functions["deparse"], [context, phv, target])
        frame.memcpy(frame.at(target, headers), payload, size)
        length = self._truncated(frame, b.add(headers, size))
        count = frame.read_word("out_count")
        record = frame.at(frame.read_pointer("out_records"), b.mul(count, I64(RECORD_BYTES)))
        head = frame.at(record, RECORD_HEAD)
        b.store(I64(0), frame.at(record, RECORD_BYTES - 8))
        for offset, kind in ((0, wide), (second, narrow)):
            b.store(b.load(frame.at(target, offset), typ=kind, align=1), frame.at(head, offset), align=1)
        b.store(overwritten[0], target, align=1)
        b.store(overwritten[1], frame.at(target, second), align=1)
        with b.if_then(b.icmp_unsigned(">", length, I64(MAX_PACKET)), likely=False):
            frame.count("drop_too_long")
            b.ret_void()
        b.store(merged, record)
        b.store(b.trunc(length, I32), frame.at(record, 8))
        b.store(port, frame.at(record, 12))
        rest = b.sub(length, I64(HEAD_BYTES))
        rest = b.select(b.icmp_signed(">", rest, I64(0)), rest, I64(0))
        b.store(b.add(merged, rest), lane)
        frame.write_word("out_count", b.add(count, I64(1)))
        frame.count("packets_out")
        b.ret_void()

    def _define_emit(self) -> None:
        """void (context, phv, payload, payload bytes, port): deparse into the output."""
        frame = self._frame("emit", VOID, [PTR, PTR, PTR, I64, I32])
        b = frame.b
        context, phv, payload, size, port = frame.function.args
        with b.if_then(b.icmp_unsigned("!=", frame.read_word("out_apart"), I64(0)), likely=True):
            b.call(self.unit.functions["emit_apart"], frame.function.args)
            b.ret_void()
        room = b.add(size, I64(header_bound(self.unit)))
        with b.if_then(b.not_(b.call(self.unit.functions["reserve"], [context, room])), likely=False):
            b.ret_void()
        used = frame.read_word("out_data_used")
        target = frame.at(frame.read_pointer("out_data"), used)
        headers = b.call(self.unit.functions["deparse"], [context, phv, target])
        frame.memcpy(frame.at(target, headers), payload, size)
        length = self._truncated(frame, b.add(headers, size))
        with b.if_then(b.icmp_unsigned(">", length, I64(MAX_PACKET)), likely=False):
            frame.count("drop_too_long")
            b.ret_void()
        count = frame.read_word("out_count")
        record = frame.at(frame.read_pointer("out_records"), b.mul(count, I64(RECORD_BYTES)))
        b.store(used, record)
        b.store(b.trunc(length, I32), frame.at(record, 8))
        b.store(port, frame.at(record, 12))
        frame.write_word("out_data_used", b.add(used, length))
        frame.write_word("out_count", b.add(count, I64(1)))
        frame.count("packets_out")
        b.ret_void()

    # --- packets that come back

    def _define_copy_list(self) -> None:
        """void (context, from phv, to phv, list): copy the fields of a field list."""
        frame = self._frame("copy_list", VOID, [PTR, PTR, PTR, I32])
        b = frame.b
        _, source, target, number = frame.function.args
        done = frame.new_block("done")
        switch = b.switch(number, done)
        for identifier, refs in self.unit.program.field_lists.items():
            block = frame.new_block("list")
            switch.add_case(I32(identifier), block)
            b.position_at_end(block)
            for ref in refs:
                self._copy_field(frame, source, target, ref)
            b.branch(done)
        b.position_at_end(done)
        b.ret_void()

    def _copy_field(self, frame: Frame, source: Value, target: Value, ref: FieldRef) -> None:
        header = self.layout.headers[ref.header]
        if header.varbit is not None and ref.field not in header.fields and ref.field != "$valid$":
            place = header.varbit
            frame.memcpy(frame.at(target, place.offset), frame.at(source, place.offset), place.max_bytes)
            slot = place.length
        else:
            slot = self.layout.slot(ref)
        frame.raw_store(frame.at(target, slot.offset), slot, frame.raw_load(frame.at(source, slot.offset), slot))

    def _define_new_node(self) -> None:
        """ptr (context, phv, length, egress?, port): a waiting packet, its header vector uninitialized but for what

        every returning packet has; null (and counted) if the packet from outside has used up its copies.
        """
        frame = self._frame("new_node", PTR, [PTR, PTR, I64, I32, I32])
        b = frame.b
        _, phv, length, egress, port = frame.function.args
        null = ir.Constant(PTR, None)
        depth = self.layout.hidden["depth"]
        generation = frame.raw_load(frame.at(phv, depth.offset), depth)
        with b.if_then(b.icmp_unsigned(">=", generation, I32(MAX_DEPTH)), likely=False):
            frame.count("drop_came_back_too_often")
            b.ret(null)
        budget = frame.read_word("budget")
        with b.if_then(b.icmp_unsigned("==", budget, I64(0)), likely=False):
            frame.count("drop_too_many_copies")
            b.ret(null)
        frame.write_word("budget", b.sub(budget, I64(1)))
        malloc = self.unit.declare("malloc", PTR, [I64])
        node = b.call(malloc, [b.add(length, I64(NODE_PHV + self.phv_bytes))])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(node, I64), I64(0)), likely=False):
            frame.count("drop_out_of_memory")
            b.ret(null)
        b.store(null, node)
        b.store(egress, frame.at(node, NODE_EGRESS))
        b.store(port, frame.at(node, NODE_PORT))
        b.store(length, frame.at(node, NODE_LENGTH))
        tail = frame.read_pointer("queue_tail")
        with b.if_else(b.icmp_unsigned("==", b.ptrtoint(tail, I64), I64(0))) as (first, later):
            with first:
                b.store(node, frame.word("queue_head"))
            with later:
                b.store(node, tail)
        b.store(node, frame.word("queue_tail"))
        b.ret(node)

    def _prepare(self, frame: Frame, node_phv: Value, phv: Value, list_name: str, kind: int, length: Value) -> None:
        """Hidden fields, kept fields and instance type of a packet that comes back. `parsed` stays as it is."""
        b = frame.b

        def put(name: str, value: Value) -> None:
            slot = self.layout.hidden[name]
            frame.raw_store(frame.at(node_phv, slot.offset), slot, value)

        def get(name: str) -> Value:
            slot = self.layout.hidden[name]
            return frame.raw_load(frame.at(phv, slot.offset), slot)

        generation, number, ingress = get("depth"), get(list_name), get("ingress_length")
        for name in self.layout.hidden:
            if name != "parsed":
                put(name, I32(0))
        put("depth", b.add(generation, I32(1)))
        put("length", length)
        put("ingress_length", ingress)
        b.call(self.unit.functions["copy_list"], [frame.context, phv, node_phv, number])
        slot = self._intrinsic_slot("instance_type")
        assert slot is not None
        frame.raw_store(frame.at(node_phv, slot.offset), slot, frame.fit(I32(kind), slot.width, slot.container))

    def _define_clone(self, stage: str, kind: int) -> None:
        """void (context, phv, packet, length): make the clones a session asks for.

        An ingress clone is the packet as it came in, parsed anew; an egress clone has the headers as egress left them.
        """
        frame = self._frame(f"clone.{stage}", VOID, [PTR, PTR, PTR, I64])
        b = frame.b
        context, phv, packet, length = frame.function.args
        session_slot, length_slot = self.layout.hidden["clone_session"], self.layout.hidden["length"]
        session = frame.raw_load(frame.address(session_slot), session_slot)
        frame.raw_store(frame.address(session_slot), session_slot, I32(0))
        index = b.zext(b.and_(session, I32(0xFFFF)), I64)
        offset = b.load(frame.at(frame.read_pointer("sessions"), b.mul(index, I64(4))), typ=I32)
        with b.if_then(b.icmp_signed("<", offset, I32(0)), likely=False):
            frame.count("drop_no_clone_session")
            b.ret_void()
        entry = frame.at(frame.read_pointer("session_replicas"), b.mul(b.zext(offset, I64), I64(4)))
        limit, replicas = b.load(entry, typ=I32), b.load(frame.at(entry, 4), typ=I32)
        rid_slot, port_slot = self._intrinsic_slot("egress_rid"), self._intrinsic_slot("ingress_port")
        truncate = self.layout.hidden["truncate"]

        def body(position: Value, skip: ir.Block) -> None:
            pair = frame.at(entry, b.add(b.mul(position, I64(8)), I64(8)))
            port, rid = b.load(pair, typ=I32), b.load(frame.at(pair, 4), typ=I32)
            node = b.call(self.unit.functions["new_node"], [context, phv, length, I32(1), port])
            made = frame.new_block("made")
            b.cbranch(b.icmp_unsigned("==", b.ptrtoint(node, I64), I64(0)), skip, made)
            b.position_at_end(made)
            copy = frame.at(node, NODE_PHV)
            frame.memcpy(frame.at(copy, self.phv_bytes), packet, length)
            if stage == "ingress":
                frame.zero(copy, self.phv_bytes)
                if port_slot is not None:
                    came = frame.raw_load(frame.address(port_slot), port_slot)
                    frame.raw_store(frame.at(copy, port_slot.offset), port_slot, came)
                b.call(self.unit.functions["parse"], [context, copy, packet, length])
                size = b.trunc(length, I32)
            else:
                frame.memcpy(copy, phv, self.phv_bytes)
                size = frame.raw_load(frame.address(length_slot), length_slot)
            metadata = self.layout.metadata_end - self.layout.metadata_start
            frame.zero(frame.at(copy, self.layout.metadata_start), metadata)
            self._prepare(frame, copy, phv, "clone_list", kind, size)
            if rid_slot is not None:
                fitted = frame.fit(rid, rid_slot.width, rid_slot.container)
                frame.raw_store(frame.at(copy, rid_slot.offset), rid_slot, fitted)
            bounded = b.select(b.icmp_signed(">", limit, I32(0)), b.add(limit, I32(1)), I32(0))
            frame.raw_store(frame.at(copy, truncate.offset), truncate, bounded)

        self._count_loop(frame, b.zext(replicas, I64), body)
        b.ret_void()

    def _count_loop(self, frame: Frame, count: Value, body) -> None:  # type: ignore[no-untyped-def]
        """for position in range(count): body(position, block to go on with the next)"""
        b = frame.b
        before = b.block
        head, inside, onward, done = (frame.new_block(n) for n in ("head", "inside", "next", "done"))
        b.branch(head)
        b.position_at_end(head)
        position = b.phi(I64)
        position.add_incoming(I64(0), before)
        b.cbranch(b.icmp_unsigned("<", position, count), inside, done)
        b.position_at_end(inside)
        body(position, onward)
        b.branch(onward)
        b.position_at_end(onward)
        position.add_incoming(b.add(position, I64(1)), onward)
        b.branch(head)
        b.position_at_end(done)

    # --- egress

    def _define_run_egress(self) -> None:
        """void (context, phv, packet, length, port)"""
        frame = self._frame("run_egress", VOID, [PTR, PTR, PTR, I64, I32])
        b = frame.b
        context, phv, packet, length, port = frame.function.args
        hidden = self.layout.hidden
        self._set_intrinsic(frame, "egress_port", port)
        self._set_intrinsic(frame, "egress_spec", I32(DROP_PORT + 1))
        self._set_intrinsic(frame, "packet_length", frame.load(hidden["length"]))
        self._set_intrinsic(frame, "egress_global_timestamp", frame.read_word("now"))
        for name in ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"):
            self._set_intrinsic(frame, name, I32(0))
        frame.store(hidden["exit"], I32(0))
        frame.call("pipeline.egress", [context, phv])
        if self._uses("clone_egress_pkt_to_egress"):
            cloned = b.icmp_unsigned("!=", frame.load(hidden["clone_session"]), I32(0))
            with b.if_then(cloned, likely=False):
                b.call(self.unit.functions["clone.egress"], [context, phv, packet, length])
            frame.forget()
        spec = self._intrinsic_slot("egress_spec")
        assert spec is not None
        value = frame.load(spec)
        dropped = b.icmp_unsigned("==", value, ir.Constant(value.type, DROP_PORT))
        with b.if_then(dropped, likely=False):
            frame.count("drop_egress")
            b.ret_void()
        parsed = b.zext(frame.load(hidden["parsed"]), I64)
        payload, size = frame.at(packet, parsed), b.sub(length, parsed)
        update_checksums(frame, (payload, size))
        if self._uses("recirculate"):
            again = b.icmp_unsigned("!=", frame.load(hidden["recirculate_list"]), I32(0))
            with b.if_then(again, likely=False):
                self._recirculate(frame, context, phv, payload, size)
                b.ret_void()
        frame.flush()
        b.call(self.unit.functions["emit"], [context, phv, payload, size, port])
        b.ret_void()

    def _recirculate(self, frame: Frame, context: Value, phv: Value, payload: Value, size: Value) -> None:
        """The packet as it would have left comes in again."""
        b = frame.b
        room = b.add(size, I64(header_bound(self.unit)))
        node = b.call(self.unit.functions["new_node"], [context, phv, room, I32(0), I32(0)])
        with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(node, I64), I64(0))):
            copy = frame.at(node, NODE_PHV)
            target = frame.at(copy, self.phv_bytes)
            headers = b.call(self.unit.functions["deparse"], [context, phv, target])
            frame.memcpy(frame.at(target, headers), payload, size)
            whole = self._truncated(frame, b.add(headers, size))
            whole = b.select(b.icmp_unsigned("<", whole, I64(MAX_PACKET)), whole, I64(MAX_PACKET))
            b.store(whole, frame.at(node, NODE_LENGTH))
            self._come_in(frame, copy, phv, "recirculate_list", RECIRCULATED, b.trunc(whole, I32))

    def _come_in(self, frame: Frame, copy: Value, phv: Value, list_name: str, kind: int, length: Value) -> None:
        """A fresh header vector for a packet that goes to ingress again."""
        frame.zero(copy, self.phv_bytes)
        self._prepare(frame, copy, phv, list_name, kind, length)
        ingress = self.layout.hidden["ingress_length"]
        frame.raw_store(frame.at(copy, ingress.offset), ingress, length)
        slot = self._intrinsic_slot("packet_length")
        assert slot is not None
        frame.raw_store(frame.at(copy, slot.offset), slot, frame.fit(length, slot.width, slot.container))

    def _uses(self, primitive: str) -> bool:
        return any(p.op == primitive for a in self.unit.program.actions.values() for p in a.primitives)

    # --- ingress

    def _define_run_ingress(self) -> None:
        """void (context, phv, packet, length)"""
        frame = self._frame("run_ingress", VOID, [PTR, PTR, PTR, I64])
        b = frame.b
        context, phv, packet, length = frame.function.args
        hidden = self.layout.hidden
        b.call(self.unit.functions["parse"], [context, phv, packet, length])
        frame.call("pipeline.ingress", [context, phv])
        frame.store(hidden["exit"], I32(0))
        frame.flush()
        if self._uses("generate_digest"):
            with b.if_then(b.icmp_unsigned("!=", frame.load(hidden["digest_list"]), I32(0)), likely=False):
                frame.count("digests_discarded")
            frame.store(hidden["digest_list"], I32(0))
        if self._uses("clone_ingress_pkt_to_egress"):
            cloned = b.icmp_unsigned("!=", frame.load(hidden["clone_session"]), I32(0))
            frame.forget()
            with b.if_then(cloned, likely=False):
                b.call(self.unit.functions["clone.ingress"], [context, phv, packet, length])
            frame.forget()
        if self._uses("resubmit"):
            again = b.icmp_unsigned("!=", frame.load(hidden["resubmit_list"]), I32(0))
            frame.forget()
            with b.if_then(again, likely=False):
                node = b.call(self.unit.functions["new_node"], [context, phv, length, I32(0), I32(0)])
                with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(node, I64), I64(0))):
                    copy = frame.at(node, NODE_PHV)
                    frame.memcpy(frame.at(copy, self.phv_bytes), packet, length)
                    self._come_in(frame, copy, phv, "resubmit_list", RESUBMITTED, b.trunc(length, I32))
                b.ret_void()
        group_slot = self._intrinsic_slot("mcast_grp")
        if group_slot is not None:
            group = frame.load(group_slot)
            chosen = b.icmp_unsigned("!=", group, ir.Constant(group.type, 0))
            frame.flush()
            with b.if_then(chosen):
                self._multicast(frame, b.zext(group, I64))
                b.ret_void()
        spec = self._intrinsic_slot("egress_spec")
        assert spec is not None
        port = frame.load(spec)
        with b.if_then(b.icmp_unsigned("==", port, ir.Constant(port.type, DROP_PORT)), likely=False):
            frame.count("drop_ingress")
            b.ret_void()
        self._set_intrinsic(frame, "instance_type", I32(NORMAL))
        frame.flush()
        b.call(self.unit.functions["run_egress"], [context, phv, packet, length, frame.resize(port, 32)])
        b.ret_void()

    def _multicast(self, frame: Frame, group: Value) -> None:
        """Every copy starts with the header vector that ingress left; what egress may change is restored in between."""
        b = frame.b
        context, phv, packet, length = frame.function.args
        index = b.and_(group, I64(0xFFFF))
        offset = b.load(frame.at(frame.read_pointer("groups"), b.mul(index, I64(4))), typ=I32)
        with b.if_then(b.icmp_signed("<", offset, I32(0)), likely=False):
            frame.count("drop_no_multicast_group")
            b.ret_void()
        entry = frame.at(frame.read_pointer("replicas"), b.mul(b.zext(offset, I64), I64(4)))
        count = b.zext(b.load(entry, typ=I32), I64)
        self._set_intrinsic(frame, "instance_type", I32(REPLICATED))
        for name in ("recirculate_list", "clone_session", "resubmit_list", "truncate"):
            frame.store(self.layout.hidden[name], I32(0))
        frame.forget()
        saved = frame.at(frame.read_pointer("phv"), self.phv_bytes)
        ranges = self._egress_ranges()
        for start, size in ranges:
            frame.memcpy(frame.at(saved, start), frame.at(phv, start), size)
        rid_slot = self._intrinsic_slot("egress_rid")

        def body(position: Value, skip: ir.Block) -> None:
            budget = frame.read_word("budget")
            with b.if_then(b.icmp_unsigned("==", budget, I64(0)), likely=False):
                frame.count("drop_too_many_copies")
                b.branch(skip)
            frame.write_word("budget", b.sub(budget, I64(1)))
            with b.if_then(b.icmp_unsigned("!=", position, I64(0))):
                for start, size in ranges:
                    frame.memcpy(frame.at(phv, start), frame.at(saved, start), size)
            pair = frame.at(entry, b.add(b.mul(position, I64(8)), I64(4)))
            port, rid = b.load(pair, typ=I32), b.load(frame.at(pair, 4), typ=I32)
            if rid_slot is not None:
                frame.raw_store(frame.address(rid_slot), rid_slot, frame.fit(rid, rid_slot.width, rid_slot.container))
            b.call(self.unit.functions["run_egress"], [context, phv, packet, length, port])

        self._count_loop(frame, count, body)

    def _egress_ranges(self) -> list[tuple[int, int]]:
        """Memory that one run of egress may change, as (offset, length): what its actions and the traffic manager write."""
        egress = self.unit.program.egress
        actions = {action for table in egress.tables.values() for action in table.actions}
        actions |= {table.default.action for table in egress.tables.values() if table.default is not None}
        actions |= {call.action for call in egress.calls.values()}
        writes = set(self._egress_writes) | {(slot.offset, 4) for slot in self.layout.hidden.values()}
        for action in actions:
            writes |= self.unit.action_writes[action]
        ranges: list[tuple[int, int]] = []
        for start, size in sorted(writes):
            if ranges and start <= sum(ranges[-1]) + MERGED_GAP:
                first = ranges[-1][0]
                ranges[-1] = (first, max(sum(ranges[-1]), start + size) - first)
            else:
                ranges.append((start, size))
        return ranges

    # --- packets from outside

    def _define_packet(self) -> None:
        """void (context, port, data, length): one packet from outside, and all that becomes of it."""
        function = self.unit.define("packet", VOID, [PTR, I32, PTR, I64], exported=True)
        frame = Frame(self.unit, function, function.args[0], function.args[0])
        b = frame.b
        context, port, data, length = function.args
        frame.phv = frame.read_pointer("phv")
        start = 0
        for late, end in [*self._late_ranges(), (self.phv_bytes, 0)]:
            self._clear(frame, start, late)
            start = end
        size = b.trunc(length, I32)
        for name in ("length", "ingress_length"):
            frame.store(self.layout.hidden[name], size)
        self._set_intrinsic(frame, "ingress_port", port)
        self._set_intrinsic(frame, "packet_length", size)
        self._set_intrinsic(frame, "ingress_global_timestamp", frame.read_word("now"))
        frame.count("packets_in")
        frame.write_word("budget", I64(MAX_COPIES))
        frame.forget()
        b.call(self.unit.functions["run_ingress"], [context, frame.phv, data, length])
        head, work, done = (frame.new_block(n) for n in ("head", "work", "done"))
        b.branch(head)
        b.position_at_end(head)
        node = frame.read_pointer("queue_head")
        b.cbranch(b.icmp_unsigned("==", b.ptrtoint(node, I64), I64(0)), done, work)
        b.position_at_end(work)
        following = b.load(node, typ=PTR)
        b.store(following, frame.word("queue_head"))
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(following, I64), I64(0))):
            b.store(following, frame.word("queue_tail"))
        phv = frame.at(node, NODE_PHV)
        inner = frame.at(phv, self.phv_bytes)
        waiting = b.load(frame.at(node, NODE_LENGTH), typ=I64)
        to_egress = b.load(frame.at(node, NODE_EGRESS), typ=I32)
        with b.if_else(b.icmp_unsigned("!=", to_egress, I32(0))) as (egress, ingress):
            with egress:
                out = b.load(frame.at(node, NODE_PORT), typ=I32)
                b.call(self.unit.functions["run_egress"], [context, phv, inner, waiting, out])
            with ingress:
                b.call(self.unit.functions["run_ingress"], [context, phv, inner, waiting])
        self._free(frame, node)
        b.branch(head)
        b.position_at_end(done)
        b.ret_void()

    def _late_ranges(self) -> list[tuple[int, int]]:
        """Memory of the header vector, as (start, end), that the parser makes zero where it must."""
        headers = (self.layout.headers[name] for name in late_headers(self.unit.program, self.layout))
        return sorted((header.offset, header.offset + header.size) for header in headers)

    def _clear(self, frame: Frame, start: int, end: int) -> None:
        """Zero part of the header vector."""
        wide = ir.VectorType(I8, 32)
        while start + wide.count <= end < start + CLEARED_IN_LINE:
            frame.b.store(ir.Constant(wide, None), frame.at(frame.phv, start), align=1)
            start += wide.count
        if start < end:
            frame.zero(frame.at(frame.phv, start), end - start)

    def _define_batch(self) -> None:
        """void (context, count, ports i32*, offsets i64*, lengths i32*, buffer u8*)"""
        function = self.unit.define("batch", VOID, [PTR, I64, PTR, PTR, PTR, PTR], exported=True)
        frame = Frame(self.unit, function, function.args[0], function.args[0])
        b = frame.b
        context, count, ports, offsets, lengths, buffer = function.args

        def body(position: Value, _: ir.Block) -> None:
            narrow, wide = b.mul(position, I64(4)), b.mul(position, I64(8))
            port = b.load(frame.at(ports, narrow), typ=I32)
            start = b.load(frame.at(offsets, wide), typ=I64)
            length = b.zext(b.load(frame.at(lengths, narrow), typ=I32), I64)
            b.call(self.unit.functions["packet"], [context, port, frame.at(buffer, start), length])

        self._count_loop(frame, count, body)
        b.ret_void()

    def _define_forward(self) -> None:
        """i64 (context, now, count, ports i32*, offsets i64*, lengths i32*, buffer u8*, heads u8*, head_of i32*)

        As batch, for the ports: packets come and leave as packets.py says. Returns how many leave.
        """
        kinds = [PTR, I64, I64, PTR, PTR, PTR, PTR, PTR, PTR]
        function = self.unit.define("forward", I64, kinds, exported=True)
        frame = Frame(self.unit, function, function.args[0], function.args[0])
        b = frame.b
        context, now, count, ports, offsets, lengths, buffer, heads, head_of = function.args
        for name, value in (("now", now), ("out_data_used", I64(0)), ("out_count", I64(0)), ("out_apart", I64(1))):
            frame.write_word(name, value)
        frame.zero(frame.read_pointer("out_lanes"), 16 * LANES)

        def body(position: Value, _: ir.Block) -> None:
            narrow, wide = b.mul(position, I64(4)), b.mul(position, I64(8))
            port = b.load(frame.at(ports, narrow), typ=I32)
            start = frame.at(buffer, b.load(frame.at(offsets, wide), typ=I64))
            length = b.zext(b.load(frame.at(lengths, narrow), typ=I32), I64)
            own = b.sext(b.load(frame.at(head_of, narrow), typ=I32), I64)
            with b.if_then(b.icmp_signed(">=", own, I64(0)), likely=True):
                frame.memcpy(start, frame.at(heads, b.mul(own, I64(HEAD_STRIDE))), HEAD_BYTES)
            b.call(self.unit.functions["packet"], [context, port, start, length])

        self._count_loop(frame, count, body)
        frame.write_word("out_apart", I64(0))
        b.ret(frame.read_word("out_count"))
