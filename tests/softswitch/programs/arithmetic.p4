// Expressions as p4c lowers them: widths, signs, slices, concatenation, casts, saturation, shifts, comparisons.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> a; bit<8> b; int<8> s; int<8> t; bit<32> w; bit<13> x; bit<3> y; bit<256> big; bit<64> q; }
header out_t {
    bit<8> sum; bit<8> difference; bit<8> product; bit<8> usat_add; bit<8> usat_sub; int<8> sat_add; int<8> sat_sub;
    bit<16> concatenated; bit<8> sliced; bit<8> left; bit<8> right; int<8> arithmetic_right; bit<8> variable_left;
    bit<8> variable_right; bit<8> inverted; int<8> negated; int<16> widened; bit<16> unsigned_widened; bit<8> compared;
    bit<8> mux; bit<256> big_sum; bit<256> big_shift; bit<13> x; bit<3> y; bit<32> assigned_slice; bit<64> product64;
    bit<8> logic; bit<32> hash_like;
}

struct headers_t { in_t i; out_t o; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        hdr.o.sum = hdr.i.a + hdr.i.b;
        hdr.o.difference = hdr.i.a - hdr.i.b;
        hdr.o.product = hdr.i.a * hdr.i.b;
        hdr.o.usat_add = hdr.i.a |+| hdr.i.b;
        hdr.o.usat_sub = hdr.i.a |-| hdr.i.b;
        hdr.o.sat_add = hdr.i.s |+| hdr.i.t;
        hdr.o.sat_sub = hdr.i.s |-| hdr.i.t;
        hdr.o.concatenated = hdr.i.b ++ hdr.i.a;
        hdr.o.sliced = hdr.i.w[19:12];
        hdr.o.left = hdr.i.a << 3;
        hdr.o.right = hdr.i.a >> 3;
        hdr.o.arithmetic_right = hdr.i.s >> 2;
        hdr.o.variable_left = hdr.i.a << hdr.i.b;
        hdr.o.variable_right = hdr.i.a >> hdr.i.b;
        hdr.o.inverted = ~hdr.i.a;
        hdr.o.negated = -hdr.i.s;
        hdr.o.widened = (int<16>) hdr.i.s;
        hdr.o.unsigned_widened = (bit<16>) (bit<8>) hdr.i.s;
        bit<8> bits = 0;
        if (hdr.i.a < hdr.i.b) { bits[0:0] = 1; }
        if (hdr.i.s < hdr.i.t) { bits[1:1] = 1; }
        if (hdr.i.a + hdr.i.b < hdr.i.a) { bits[2:2] = 1; }
        if (hdr.i.s >= 0) { bits[3:3] = 1; }
        if (hdr.i.big > 256w1 << 200) { bits[4:4] = 1; }
        if (hdr.i.a == hdr.i.b || !(hdr.i.s != hdr.i.t)) { bits[5:5] = 1; }
        if (hdr.i.x[12:10] == hdr.i.y && hdr.i.y != 0) { bits[6:6] = 1; }
        hdr.o.compared = bits;
        hdr.o.mux = hdr.i.a > 100 ? hdr.i.b : (bit<8>) hdr.i.s;
        hdr.o.big_sum = hdr.i.big + (bit<256>) hdr.i.w;
        hdr.o.big_shift = (hdr.i.big << 100) | (hdr.i.big >> 156);
        hdr.o.x = hdr.i.x + 1;
        hdr.o.y = hdr.i.y - 1;
        bit<32> target = hdr.i.w;
        target[15:8] = hdr.i.a;
        hdr.o.assigned_slice = target;
        hdr.o.product64 = hdr.i.q * 64w0x9E3779B97F4A7C15;
        hdr.o.logic = (hdr.i.a & 0x3c) ^ (hdr.i.b | 0x81);
        hdr.o.hash_like = ((hdr.i.w ^ (hdr.i.w >> 16)) * 0x45d9f3b)[31:0];
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.o); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
