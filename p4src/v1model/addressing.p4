// Egress of answers: each copy is addressed to the worker it is for. Source and destination swap; the rest comes from a table.
control Addressing(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    bit<8> worker;

    action to_worker(mac_t mac, ipv4_address_t address, bit<16> udp_port) {
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = address;
        hdr.udp.src = hdr.udp.dst;
        hdr.udp.dst = udp_port;
        hdr.switchsum.worker = worker;
    }

    action discard() {
        mark_to_drop(standard_metadata);
    }

    table peers {
        key = {
            hdr.switchsum.job: exact @name("job");
            hdr.switchsum.epoch: exact @name("epoch");
            worker: exact @name("worker");
        }
        actions = { to_worker; discard; }
        const default_action = discard();
        size = 2048;
    }

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
