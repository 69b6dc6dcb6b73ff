// Parser features: select with masks and several keys, lookahead, a header stack, a varbit, verify, advance, parser errors.
#include <core.p4>
#include <v1model.p4>

error { BadMarker }

header marker_t { bit<8> kind; bit<8> count; bit<16> value; }
header label_t { bit<20> label; bit<3> tc; bit<1> bottom; bit<8> ttl; }
header options_t { bit<4> version; bit<4> words; bit<8> tag; varbit<320> data; bit<16> tail; }
header report_t { bit<8> parser_error; bit<8> labels; bit<16> last_label; bit<8> peeked; bit<8> flags; }

struct headers_t { report_t report; marker_t marker; label_t[3] labels; options_t options; }
struct metadata_t { bit<8> peeked; bit<16> last_label; bit<8> flags; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.marker);
        verify(hdr.marker.value != 0xdead, error.BadMarker);
        transition select(hdr.marker.kind, hdr.marker.count) {
            (1, _): labels;
            (2, 0x10 &&& 0xf0): options;
            (3, 5..9): peek;
            (4, _): skip;
            (5, 0): accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.last_label = (bit<16>) hdr.labels.last.label;
        transition select(hdr.labels.last.bottom) {
            0: labels;
            1: accept;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>) (((bit<16>) packet.lookahead<bit<8>>()[3:0]) << 5));
        transition accept;
    }
    state peek {
        meta.peeked = packet.lookahead<bit<24>>()[15:8];
        transition select(packet.lookahead<bit<12>>()) {
            0xabc: found;
            0x120 &&& 0xff0: skip;
            default: accept;
        }
    }
    state found {
        meta.flags = meta.flags | 1;
        transition accept;
    }
    state skip {
        packet.advance((bit<32>) hdr.marker.count * 8);
        meta.flags = meta.flags | 2;
        transition accept;
    }
}

control V(inout headers_t hdr, inout metadata_t meta) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.peeked = meta.peeked;
        hdr.report.last_label = meta.last_label;
        hdr.report.flags = meta.flags;
        if (hdr.labels[0].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (hdr.labels[1].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (hdr.labels[2].isValid()) { hdr.report.labels = hdr.report.labels + 1; }
        if (sm.parser_error == error.PacketTooShort) { hdr.report.parser_error = 1; }
        else if (sm.parser_error == error.NoMatch) { hdr.report.parser_error = 2; }
        else if (sm.parser_error == error.StackOutOfBounds) { hdr.report.parser_error = 3; }
        else if (sm.parser_error == error.HeaderTooShort) { hdr.report.parser_error = 4; }
        else if (sm.parser_error == error.BadMarker) { hdr.report.parser_error = 5; }
        else if (sm.parser_error != error.NoError) { hdr.report.parser_error = 99; }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.marker);
        packet.emit(hdr.labels);
        packet.emit(hdr.options);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
