// SwitchSum for BMv2 and the softswitch (v1model): sums E-element blocks of fixed-point gradients in slot registers.
// Compile with -DELEMENTS=64|128|256 and, for BMv2, -DVALUES_WIDE (see include/values_wide.p4).
#include <core.p4>
#include <v1model.p4>

#include "headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksums.p4"
#include "drop_simulator.p4"
#include "responder.p4"
#include "membership.p4"
#include "slots.p4"
#include "values.p4"
#include "tally.p4"
#include "service.p4"
#include "forwarding.p4"
#include "addressing.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    DropSimulator() drop_simulator;
    OwnAddress() own_address;
    Service() service;
    Responder() responder;
    Forwarding() forwarding;

    apply {
        drop_simulator.apply(standard_metadata.ingress_port, meta.lost);
        if (meta.lost) {
            mark_to_drop(standard_metadata);
        } else {
            own_address.apply(hdr, meta);
            if (meta.own && hdr.udp.isValid() && hdr.udp.dst == SERVICE_PORT) {
                service.apply(hdr, meta, standard_metadata);
            } else if (meta.own) {
                responder.apply(hdr, meta, standard_metadata);
            } else {
                forwarding.apply(hdr, meta, standard_metadata);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Addressing() addressing;
    DropSimulator() drop_simulator;

    apply {
        if (meta.answer) {
            addressing.apply(hdr, meta, standard_metadata);
        }
        drop_simulator.apply(standard_metadata.egress_port, meta.lost);
        if (meta.lost || (meta.flooded && standard_metadata.egress_port == standard_metadata.ingress_port)) {
            mark_to_drop(standard_metadata);
        }
    }
}

@pkginfo(name="switchsum", version="1")
V1Switch(SwitchParser(), VerifyChecksums(), SwitchIngress(), SwitchEgress(), ComputeChecksums(), SwitchDeparser()) main;
