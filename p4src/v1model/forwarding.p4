// Layer 2 for everything that is not ours: the same rack carries gRPC, Gloo and ssh.
control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    // Unknown and group addresses go to a multicast group of all ports; egress keeps the copy off the ingress port.
    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
        meta.flooded = true;
    }

    action discard() {
        mark_to_drop(standard_metadata);
    }

#include "forwarding_tables.p4"

    apply {
        stations.apply();
    }
}
