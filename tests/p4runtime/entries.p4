// A program with one of each thing that P4Runtime can address on the softswitch, and a packet path short enough to
// follow by hand: the first payload byte of a UDP datagram selects what happens to it.
// entries.json and entries.p4info.txtpb beside it are what p4c-bm2-ss makes of it (tests/p4runtime/compile.sh).

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> id;
    bit<3>  flags;
    bit<13> offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> sport;
    bit<16> dport;
    bit<16> length;
    bit<16> checksum;
}

header request_t {
    bit<8> op;
    bit<8> tag;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
    request_t  request;
}

struct metadata_t {
    bit<12> kind;
}

parser RequestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.request);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Serve(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(16, CounterType.packets_and_bytes) tags;
    direct_counter(CounterType.packets_and_bytes) op_hits;
    direct_counter(CounterType.packets_and_bytes) class_hits;
    register<bit<32>>(4) requests;

    action drop() {
        mark_to_drop(standard);
    }
    // Back to where it came from.
    action reflect() {
        bit<32> address = hdr.ipv4.src;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = address;
        bit<16> port = hdr.udp.sport;
        hdr.udp.sport = hdr.udp.dport;
        hdr.udp.dport = port;
        standard.egress_spec = standard.ingress_port;
    }
    // To a host on another port.
    action forward(bit<9> port, bit<32> address, bit<16> udp_port) {
        standard.egress_spec = port;
        hdr.ipv4.dst = address;
        hdr.udp.dport = udp_port;
    }
    // To a group; Deliver.member gives each copy its destination.
    action replicate(bit<16> group) {
        standard.mcast_grp = group;
    }
    action classify_as(bit<12> kind) {
        meta.kind = kind;
    }

    table op {
        key = { hdr.request.op: exact; }
        actions = { reflect; forward; @tableonly replicate; @defaultonly drop; }
        default_action = drop();
        size = 8;
        counters = op_hits;
    }
    table route {
        key = { hdr.ipv4.src: lpm; }
        actions = { classify_as; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table class {
        key = {
            hdr.ethernet.src: ternary;
            hdr.udp.sport: range;
            hdr.request.tag: optional;
            hdr.request.op: exact;
        }
        actions = { classify_as; NoAction; }
        default_action = NoAction();
        size = 16;
        counters = class_hits;
    }
    table fixed {
        key = { hdr.request.op: exact; }
        actions = { classify_as; NoAction; }
        const default_action = NoAction();
        const entries = {
            0xfe : classify_as(0xffe);
            0xff : classify_as(0xfff);
        }
    }
    table setting {
        actions = { classify_as; NoAction; }
        default_action = classify_as(7);
    }

    apply {
        if (hdr.request.isValid()) {
            tags.count((bit<32>)(hdr.request.tag & 0xf));
            bit<32> seen;
            requests.read(seen, 0);
            requests.write(0, seen + 1);
            setting.apply();
            route.apply();
            class.apply();
            fixed.apply();
            op.apply();
        } else {
            drop();
        }
    }
}

control Deliver(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action deliver_to(bit<32> address, bit<16> udp_port) {
        hdr.ipv4.dst = address;
        hdr.udp.dport = udp_port;
    }
    table member {
        key = { standard.egress_rid: exact @name("instance"); }
        actions = { deliver_to; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    apply {
        member.apply();
    }
}

control SumHeader(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.ipv4.isValid(),
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags,
                hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control RequestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(RequestParser(), VerifyNothing(), Serve(), Deliver(), SumHeader(), RequestDeparser()) main;
