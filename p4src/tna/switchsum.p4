// SwitchSum for Tofino (tna) and Tofino 2 (t2na): sums blocks of fixed-point gradients in slot registers.
// Compile with -DELEMENTS=64, and with p4c's __TARGET_TOFINO__.
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#define TWO_OUTPUTS 1  // of a stateful ALU in one pass
#else
#include <tna.p4>
#define TWO_OUTPUTS 0
#define RECIRCULATION_PORT 68  // of the first pipe; the others' differ in the two upper bits
#endif
#define RESUBMIT_SPARED 1

#include "headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "drop_simulator.p4"
#include "responder.p4"
#include "membership.p4"
#include "slots.p4"
#include "values.p4"
#include "tally.p4"
#include "service.p4"
#include "forwarding.p4"
#include "addressing.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                      in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                      inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                      inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    DropSimulator() drop_simulator;
    @name("drop_simulator") Trial() trial;
    OwnAddress() own_address;
    @name("service.membership") Membership() membership;
    Service() service;
    Responder() responder;
    Forwarding() forwarding;

    apply {
        drop_simulator.apply(meta.bridge.port, meta.trial);
        own_address.apply(hdr, meta);
        membership.apply(hdr, meta, meta.bridge.port, ig_prsr_md);
        if (meta.trial.held == 1 && meta.arrival == 1) {
            // The dice fall too late for the registers: what they spare goes in again.
            trial.apply(meta.bridge.port, meta.trial);
            if (meta.trial.lost == 1) {
                ig_dprsr_md.drop_ctl = 1;
            } else {
                ig_dprsr_md.resubmit_type = RESUBMIT_SPARED;
            }
        } else if (meta.own == 1 && meta.for_service == 1) {
            service.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
        } else if (meta.own == 1) {
            responder.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
        } else {
            forwarding.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
                     in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                     inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                     inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Addressing() addressing;
    DropSimulator() drop_simulator;
    @name("drop_simulator") Trial() trial;

    apply {
        if (meta.bridge.answer == 1) {
            addressing.apply(hdr, meta, eg_intr_md, eg_dprsr_md);
        }
        drop_simulator.apply(eg_intr_md.egress_port, meta.trial);
        trial.apply(eg_intr_md.egress_port, meta.trial);
        if (meta.trial.lost == 1 || (meta.bridge.flooded == 1 && eg_intr_md.egress_port == meta.bridge.port)) {
            eg_dprsr_md.drop_ctl = 1;
        }
    }
}

Pipeline(IngressParser(), SwitchIngress(), IngressDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;

@pkginfo(name="switchsum", version="1")
Switch(pipe) main;
