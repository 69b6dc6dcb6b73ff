// Egress of answers: each copy is addressed to the worker it is for. Source and destination swap; the rest comes from a table.
control Addressing(inout headers_t hdr, in egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
                   inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    bit<8> worker;

    action discard() {
        eg_dprsr_md.drop_ctl = 1;
    }

#include "addressing_tables.p4"

    apply {
        // The job's group gives every copy the replication id worker + 1; an answer to one worker has none.
        if (eg_intr_md.egress_rid != 0) {
            worker = (bit<8>) eg_intr_md.egress_rid - 1;
        } else {
            worker = meta.bridge.worker;
        }
        peers.apply();
        hdr.udp.checksum = 0;
        if (hdr.switchsum.kind == TYPE_RESULT) {
            hdr.udp.length = CONTRIBUTION_BYTES;
            hdr.ipv4.total_length = CONTRIBUTION_BYTES + 20;
        } else {
            hdr.udp.length = PROPOSAL_BYTES;
            hdr.ipv4.total_length = PROPOSAL_BYTES + 20;
        }
        hdr.ipv4.ttl = 64;
    }
}
