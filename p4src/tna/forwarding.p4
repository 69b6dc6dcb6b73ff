// Layer 2 for everything that is not ours: the same rack carries gRPC, Gloo and ssh.
control Forwarding(inout headers_t hdr, inout metadata_t meta, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                   inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action forward(PortId_t port) {
        ig_tm_md.ucast_egress_port = port;
    }

    // Unknown and group addresses go to a multicast group of all ports; egress keeps the copy off the ingress port.
    action flood(bit<16> group) {
        ig_tm_md.mcast_grp_a = group;
        meta.bridge.flooded = 1;
    }

    action discard() {
        ig_dprsr_md.drop_ctl = 1;
    }

#include "forwarding_tables.p4"

    apply {
        stations.apply();
    }
}
