// Egress of answers: each copy is addressed to the worker it is for. Source and destination swap; the rest comes from a table.
control Addressing(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    bit<8> worker;

    action discard() {
        mark_to_drop(standard_metadata);
    }

#include "addressing_tables.p4"

    apply {
        // The job's group gives every copy the replication id worker + 1; an answer to one worker has none.
        worker = standard_metadata.egress_rid != 0 ? (bit<8>) (standard_metadata.egress_rid - 1) : meta.worker;
        peers.apply();
        hdr.udp.checksum = 0;
        hdr.udp.length = hdr.values.isValid() ? (bit<16>) CONTRIBUTION_BYTES : PROPOSAL_BYTES;
        hdr.ipv4.total_length = hdr.udp.length + 20;
        hdr.ipv4.ttl = 64;
    }
}
