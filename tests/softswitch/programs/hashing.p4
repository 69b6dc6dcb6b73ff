// Hashes, the random extern, checksums with and without payload.
#include <core.p4>
#include <v1model.p4>

header select_t { bit<8> op; bit<32> low; bit<32> high; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> total_length; bit<16> identification; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header udp_t { bit<16> src; bit<16> dst; bit<16> length; bit<16> checksum; }
header odd_t { bit<3> a; bit<13> b; }
header result_t { bit<64> value; bit<8> checksum_error; }

struct headers_t { result_t result; select_t choice; ipv4_t ipv4; udp_t udp; odd_t odd; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.choice);
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.protocol) {
            17: udp;
            default: odd;
        }
    }
    state udp { packet.extract(hdr.udp); transition accept; }
    state odd { packet.extract(hdr.odd); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification, hdr.ipv4.flags,
             hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst},
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0,
            {hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length, hdr.udp.src, hdr.udp.dst, hdr.udp.length},
            hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.result.setValid();
        bit<32> r32 = 0;
        bit<16> r16 = 0;
        bit<64> r64 = 0;
        if (hdr.choice.op == 0) {
            hash(r16, HashAlgorithm.crc16, 16w0, {hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, hdr.udp.src}, 32w0x10000);
        } else if (hdr.choice.op == 1) {
            hash(r32, HashAlgorithm.crc32, 32w0, {hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol}, 64w0x100000000);
        } else if (hdr.choice.op == 2) {
            hash(r16, HashAlgorithm.csum16, 16w0, {hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.ttl}, 32w0x10000);
        } else if (hdr.choice.op == 3) {
            hash(r16, HashAlgorithm.xor16, 16w0, {hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.ttl}, 32w0x10000);
        } else if (hdr.choice.op == 4) {
            hash(r64, HashAlgorithm.identity, 64w0, {hdr.ipv4.src, hdr.ipv4.tos}, 64w0xffffffffffffffff);
        } else if (hdr.choice.op == 5) {
            hash(r32, HashAlgorithm.crc32, hdr.choice.low, {hdr.ipv4.src, hdr.ipv4.flags, hdr.odd.a, hdr.ipv4.dst}, hdr.choice.high);
        } else if (hdr.choice.op == 6) {
            random(r32, hdr.choice.low, hdr.choice.high);
        }
        hdr.result.value = r64 | (bit<64>) r32 | (bit<64>) r16;
        hdr.result.checksum_error = (bit<8>) sm.checksum_error;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.choice.op == 7) {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.choice.op == 7,
            {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification, hdr.ipv4.flags,
             hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst},
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.choice.op == 7 && hdr.udp.isValid(),
            {hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length, hdr.udp.src, hdr.udp.dst, hdr.udp.length},
            hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.result);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.odd);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
