// Registers of several widths (two of one shape, so that they interleave), indirect counters, loops in actions.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; bit<32> index; bit<32> v0; bit<32> v1; bit<8> narrow; bit<2048> wide; }

struct headers_t { h_t h; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.h); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(100) r0;
    register<bit<32>>(100) r1;
    register<bit<5>>(16) narrow;
    register<bit<2048>>(8) wide;
    register<bit<1>>(4) flags;
    counter(10, CounterType.packets_and_bytes) indirect;

    action read() {
        r0.read(hdr.h.v0, hdr.h.index);
        r1.read(hdr.h.v1, hdr.h.index);
        bit<5> small;
        narrow.read(small, hdr.h.index);
        hdr.h.narrow = (bit<8>) small;
        wide.read(hdr.h.wide, hdr.h.index);
    }
    action write() {
        r0.write(hdr.h.index, hdr.h.v0);
        r1.write(hdr.h.index, hdr.h.v1);
        narrow.write(hdr.h.index, hdr.h.narrow[4:0]);
        wide.write(hdr.h.index, hdr.h.wide);
    }
    // Read, add, write, read again through another index expression that has the same value.
    action accumulate() {
        bit<32> stored;
        r0.read(stored, hdr.h.index);
        hdr.h.v0 = hdr.h.v0 + stored;
        r0.write(hdr.h.index, hdr.h.v0);
        r0.read(stored, hdr.h.index ^ 0);
        hdr.h.v1 = stored;
        bit<2048> old;
        wide.read(old, hdr.h.index);
        hdr.h.wide = hdr.h.wide + old;
        wide.write(hdr.h.index, hdr.h.wide);
    }
    // Two cells of one register, in an order that matters when index and index + 1 are swapped.
    action swap_cells() {
        bit<32> first;
        bit<32> second;
        r0.read(first, hdr.h.index);
        r0.read(second, hdr.h.index + 1);
        r0.write(hdr.h.index, second);
        r0.write(hdr.h.index + 1, first);
        r0.read(hdr.h.v0, hdr.h.index);
        r0.read(hdr.h.v1, hdr.h.index + 1);
    }
    action conditional() {
        bit<1> seen;
        flags.read(seen, hdr.h.index);
        if (seen == 1) {
            hdr.h.v0 = hdr.h.v0 + 1;
            if (hdr.h.v1 > 10) { hdr.h.v1 = 0; return; }
        } else {
            hdr.h.v0 = 0;
        }
        flags.write(hdr.h.index, 1);
        hdr.h.narrow = 77;
    }
    action count_it() { indirect.count(hdr.h.index); }

    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.h.op == 0) { read(); }
        else if (hdr.h.op == 1) { write(); }
        else if (hdr.h.op == 2) { accumulate(); }
        else if (hdr.h.op == 3) { swap_cells(); }
        else if (hdr.h.op == 4) { conditional(); }
        else if (hdr.h.op == 5) { count_it(); }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
