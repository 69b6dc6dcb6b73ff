// Table features: every match kind, priorities, constant entries, default actions, hit and miss, action_run, direct counters.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> which; bit<32> a; bit<12> b; bit<4> c; bit<48> d; }
header result_t { bit<16> value; bit<8> hit; bit<8> path; }

struct headers_t { key_t key; result_t result; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition accept;
    }
}

control V(inout headers_t hdr, inout metadata_t meta) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) exact_counter;
    direct_counter(CounterType.packets_and_bytes) ternary_counter;

    action set(bit<16> value) { hdr.result.value = value; }
    action set_and_leave(bit<16> value) { hdr.result.value = value; exit; }
    action nothing() { }
    action counted(bit<16> value) { hdr.result.value = value; exact_counter.count(); }
    action counted_ternary(bit<16> value) { hdr.result.value = value; ternary_counter.count(); }

    table exact_table {
        key = { hdr.key.a: exact; hdr.key.b: exact; hdr.key.d: exact; }
        actions = { counted; nothing; }
        default_action = nothing();
        counters = exact_counter;
        size = 64;
    }
    table lpm_table {
        key = { hdr.key.a: lpm; hdr.key.c: exact; }
        actions = { set; nothing; }
        default_action = set(0xdddd);
        size = 32;
    }
    table ternary_table {
        key = { hdr.key.a: ternary; hdr.key.d: ternary; hdr.key.c: exact; }
        actions = { counted_ternary; nothing; }
        const default_action = nothing();
        counters = ternary_counter;
        size = 32;
    }
    table range_table {
        key = { hdr.key.b: range; hdr.key.a: ternary; }
        actions = { set; nothing; }
        size = 32;
    }
    table optional_table {
        key = { hdr.key.b: optional; hdr.key.c: optional; }
        actions = { set; nothing; }
        size = 32;
    }
    table const_exact {
        key = { hdr.key.c: exact; }
        actions = { set; set_and_leave; nothing; }
        const entries = {
            1: set(0x1111);
            2: set_and_leave(0x2222);
            3: nothing();
        }
        default_action = set(0xeeee);
    }
    table const_ternary {
        key = { hdr.key.a: ternary; }
        actions = { set; nothing; }
        const entries = {
            0x0a000000 &&& 0xff000000: set(1);
            0x0a0b0000 &&& 0xffff0000: set(2);
            0x00000001 &&& 0x00000001: set(3);
            _: set(4);
        }
    }

    apply {
        hdr.result.setValid();
        sm.egress_spec = 1;
        if (hdr.key.which == 0) {
            if (exact_table.apply().hit) { hdr.result.hit = 1; } else { hdr.result.hit = 2; }
        } else if (hdr.key.which == 1) {
            if (lpm_table.apply().miss) { hdr.result.hit = 2; }
        } else if (hdr.key.which == 2) {
            switch (ternary_table.apply().action_run) {
                counted_ternary: { hdr.result.path = 1; }
                nothing: { hdr.result.path = 2; }
            }
        } else if (hdr.key.which == 3) {
            range_table.apply();
        } else if (hdr.key.which == 4) {
            optional_table.apply();
        } else if (hdr.key.which == 5) {
            const_exact.apply();
            hdr.result.path = 7;
        } else {
            const_ternary.apply();
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.result); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
