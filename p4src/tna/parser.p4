// From bytes to headers, and back. Every packet carries a bridge from ingress to egress.
#define PARSED_ARP meta.target = hdr.arp.target_ip;
#define PARSED_IPV4 meta.target = hdr.ipv4.dst; ipv4_checksum.add(hdr.ipv4); meta.bad_checksum = (bit<1>) ipv4_checksum.verify();
#define PARSED_SERVICE meta.for_service = 1;
#define PARSED_VALUES meta.has_values = 1;

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        // The intrinsic metadata begin with the flag of a resubmitted packet and end their first 16 bits with the port.
        transition select(packet.lookahead<bit<16>>()) {
            0x8000 &&& 0x8000: parse_resubmitted;
#if !TWO_OUTPUTS
            RECIRCULATION_PORT &&& 0x7f: parse_round_trip;
#endif
            default: parse_arrival;
        }
    }

    state parse_arrival {
        meta.arrival = 1;
        transition parse_resubmitted;
    }

    state parse_resubmitted {
        packet.extract(ig_intr_md);
        meta.bridge.setValid();
        meta.bridge.port = ig_intr_md.ingress_port;
        packet.advance(PORT_METADATA_SIZE);
        transition parse_ethernet;
    }

#if !TWO_OUTPUTS
    state parse_round_trip {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(meta.bridge);
        meta.round_trip = 1;
        transition parse_ethernet;
    }
#endif

#include "parser_states.p4"
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Resubmit() resubmit;

    apply {
        if (ig_dprsr_md.resubmit_type == RESUBMIT_SPARED) {
            resubmit.emit();
        }
        packet.emit(meta.bridge);
        packet.emit(hdr);
    }
}

parser EgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                    out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        packet.extract(meta.bridge);
        transition select(meta.bridge.answer) {
            1: parse_answer;
            default: accept;
        }
    }

    state parse_answer {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.switchsum);
        transition accept;
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.switchsum.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification, hdr.ipv4.flags,
                hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst});
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.switchsum);
    }
}
