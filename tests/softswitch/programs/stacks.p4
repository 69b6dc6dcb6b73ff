// Header stacks and validity: push, pop, run-time index, copies of headers, comparison of headers.
#include <core.p4>
#include <v1model.p4>

header command_t { bit<8> op; bit<8> index; bit<16> value; bit<8> count; }
header item_t { bit<8> tag; bit<16> value; }

struct headers_t { command_t command; item_t[4] items; item_t spare; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.count) {
            0: accept;
            default: item;
        }
    }
    state item {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.tag) {
            0x80 &&& 0x80: accept;
            default: item;
        }
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action push1() { hdr.items.push_front(1); hdr.items[0].setValid(); hdr.items[0].value = hdr.command.value; }
    action push3() { hdr.items.push_front(3); }
    action pop2() { hdr.items.pop_front(2); }
    action write_at() { hdr.items[hdr.command.index].value = hdr.command.value; }
    action read_at() { hdr.command.value = hdr.items[hdr.command.index].value; }
    action copy_header() { hdr.spare = hdr.items[1]; hdr.items[1].setInvalid(); }
    action compare() { hdr.command.value = (bit<16>) (bit<1>) (hdr.items[0] == hdr.items[1]); }
    action copy_back() { hdr.items[0] = hdr.items[1]; }

    apply {
        sm.egress_spec = 1;
        if (hdr.command.op == 1) { push1(); }
        else if (hdr.command.op == 2) { push3(); }
        else if (hdr.command.op == 3) { pop2(); }
        else if (hdr.command.op == 4) { write_at(); }
        else if (hdr.command.op == 5) { read_at(); }
        else if (hdr.command.op == 6) { copy_header(); }
        else if (hdr.command.op == 7) { compare(); }
        else if (hdr.command.op == 8) { copy_back(); }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
        packet.emit(hdr.items);
        packet.emit(hdr.spare);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
