// The traffic manager: unicast, drop, multicast, clones, resubmit, recirculate, truncate, and what standard_metadata says.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; bit<8> hops; bit<16> argument; }
header trace_t {
    bit<8> stage; bit<8> instance_type; bit<16> port; bit<16> rid; bit<32> length; bit<16> ingress_port; bit<16> kept; bit<48> stamp;
}

struct headers_t { trace_t trace; h_t h; }
struct metadata_t {
    @field_list(1) bit<16> kept;
    @field_list(2) bit<8> rounds;
    bit<16> lost;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.h);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        meta.lost = 0x7777;
        if (hdr.h.op == 1) {
            mark_to_drop(sm);
        } else if (hdr.h.op == 2) {
            sm.mcast_grp = hdr.h.argument;
        } else if (hdr.h.op == 3) {
            meta.kept = 0x5a5a;
            hdr.h.hops = 9;
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.h.argument, 1);
        } else if (hdr.h.op == 5) {
            if (meta.rounds < hdr.h.hops) {
                meta.rounds = meta.rounds + 1;
                hdr.h.argument = 0xffff;
                resubmit_preserving_field_list(2);
            } else {
                meta.kept = (bit<16>) meta.rounds;
            }
        } else if (hdr.h.op == 8) {
            resubmit_preserving_field_list(2);
        } else if (hdr.h.op == 11) {
            mark_to_drop(sm);
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.h.argument, 1);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        bool again = false;
        if (hdr.h.op == 4 && sm.instance_type == 0) {
            meta.kept = 0x1234;
            hdr.h.hops = 8;
            clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.h.argument, 1);
            meta.kept = 0x4321;
        } else if (hdr.h.op == 6) {
            if (hdr.h.hops > 0) {
                hdr.h.hops = hdr.h.hops - 1;
                recirculate_preserving_field_list(1);
                again = true;
                meta.kept = meta.kept + 1;
            }
        } else if (hdr.h.op == 7) {
            truncate((bit<32>) hdr.h.argument);
        } else if (hdr.h.op == 9) {
            recirculate_preserving_field_list(2);
            again = true;
        } else if (hdr.h.op == 10) {
            mark_to_drop(sm);
        } else if (hdr.h.op == 12) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.h.argument, 1);
        } else if (hdr.h.op == 2 && sm.egress_rid == 13) {
            hdr.h.hops = hdr.h.hops + 1;
            mark_to_drop(sm);
        } else if (hdr.h.op == 2) {
            hdr.h.hops = hdr.h.hops + 1;
        }
        if (!again) {
            hdr.trace.setValid();
            hdr.trace.stage = 1;
            hdr.trace.instance_type = (bit<8>) sm.instance_type;
            hdr.trace.port = (bit<16>) sm.egress_port;
            hdr.trace.rid = sm.egress_rid;
            hdr.trace.length = sm.packet_length;
            hdr.trace.ingress_port = (bit<16>) sm.ingress_port;
            hdr.trace.kept = meta.kept;
            hdr.trace.stamp = sm.ingress_global_timestamp;
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.trace);
        packet.emit(hdr.h);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
