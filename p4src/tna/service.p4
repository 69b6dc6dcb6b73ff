// The aggregation service: what happens to a packet that reached the switch's own address on the service port.

control Service(inout headers_t hdr, inout metadata_t meta, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Slots() slots;
    Values() values;
    Tally() tally;

    action discard() {
        ig_dprsr_md.drop_ctl = 1;
    }

    // An answer is the packet itself, turned: egress fills in who gets it.
    action answer(bit<8> kind) {
        meta.bridge.answer = 1;
        meta.bridge.worker = meta.worker;
        hdr.switchsum.kind = kind;
        hdr.switchsum.flags = 0;
    }

    action answer_all(bit<8> kind) {
        answer(kind);
        hdr.switchsum.exponent = meta.exponent;
        ig_tm_md.mcast_grp_a = meta.group;
    }

    action answer_sender(bit<8> kind) {
        answer(kind);
        hdr.switchsum.exponent = meta.exponent;
        hdr.switchsum.flags = FLAG_REPAIR;
        ig_tm_md.ucast_egress_port = meta.bridge.port;
    }

    action answer_mismatch() {
        answer(TYPE_MISMATCH);
        hdr.switchsum.tag = meta.row_tag;
        hdr.values.setInvalid();
        ig_tm_md.ucast_egress_port = meta.bridge.port;
    }

    action answer_status() {
        answer(TYPE_STATUS);
        hdr.switchsum.tag = meta.before;
        hdr.values.setInvalid();
        ig_tm_md.ucast_egress_port = meta.bridge.port;
    }

#if !TWO_OUTPUTS
    // The other half of the sum takes another pass. In it the packet counts as its own duplicate.
    action go_round(bit<1> broadcast) {
        meta.bridge.broadcast = broadcast;
        ig_tm_md.ucast_egress_port = meta.bridge.port[8:7] ++ (bit<7>) RECIRCULATION_PORT;
        ig_tm_md.bypass_egress = 1;
    }
#endif

    @hidden table answers {
        key = {
            meta.verdict: ternary;
            meta.has_values: ternary;
            meta.bridge.broadcast: ternary;
            hdr.switchsum.flags: ternary;
        }
        actions = {
            answer_all;
            answer_sender;
            answer_mismatch;
            answer_status;
#if !TWO_OUTPUTS
            go_round;
#endif
            discard;
        }
        const entries = {
            (VERDICT_COMPLETION, 0, _, _): answer_all(TYPE_AGREEMENT);
            (VERDICT_REPAIR, 0, _, _): answer_sender(TYPE_AGREEMENT);
#if TWO_OUTPUTS
            (VERDICT_COMPLETION, 1, _, _): answer_all(TYPE_RESULT);
            (VERDICT_REPAIR, 1, _, _): answer_sender(TYPE_RESULT);
#else
            (VERDICT_COMPLETION, 1, _, _): go_round(1);
            (VERDICT_REPAIR, 1, _, _): go_round(0);
            (VERDICT_RETURNED, _, 1, _): answer_all(TYPE_RESULT);
            (VERDICT_RETURNED, _, 0, _): answer_sender(TYPE_RESULT);
#endif
            (VERDICT_MISMATCH, _, _, _): answer_mismatch();
            (VERDICT_DUPLICATE, _, _, FLAG_WANT_STATUS &&& FLAG_WANT_STATUS): answer_status();
        }
        const default_action = discard();
        size = 16;
    }

    apply {
        slots.apply(hdr, meta);
        values.apply(hdr, meta);
        tally.apply(hdr, meta);
        answers.apply();
    }
}
