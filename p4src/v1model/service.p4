// The aggregation service: what happens to a packet that reached the switch's own address on the service port.
#define FRAME_BYTES_BEFORE_SERVICE 14 + 20 + 8
#define PROPOSAL_BYTES (8 + SWITCHSUM_HEADER_BYTES)
#define CONTRIBUTION_BYTES (PROPOSAL_BYTES + 4 * ELEMENTS)

control Service(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Membership() membership;
    Slots() slots;
    Values() values;
    Tally() tally;

    // An answer is the packet itself, turned: egress fills in who gets it.
    action answer(bit<8> kind) {
        meta.answer = true;
        hdr.switchsum.kind = kind;
        hdr.switchsum.flags = 0;
    }

    action answer_sender(bit<8> kind) {
        answer(kind);
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    action answer_sender_without_values(bit<8> kind) {
        answer_sender(kind);
        hdr.values.setInvalid();
    }

    // Truncation, foreign data and padding all end here; what passes has exactly the bytes its type says.
    action inspect() {
        bit<16> expected = hdr.switchsum.kind == TYPE_CONTRIBUTION ? (bit<16>) CONTRIBUTION_BYTES : PROPOSAL_BYTES;
        meta.reject = hdr.udp.length != expected || hdr.ipv4.total_length != expected + 20 ? REJECT_MALFORMED : 0;
    }

    apply {
        mark_to_drop(standard_metadata);  // unless an answer is due
        if (!hdr.switchsum.isValid()) {
            meta.reject = REJECT_MALFORMED;
        } else if (standard_metadata.checksum_error != 0) {
            meta.reject = REJECT_CHECKSUM;
        } else if (hdr.switchsum.version != WIRE_VERSION) {
            meta.reject = REJECT_VERSION;
        } else if (hdr.switchsum.kind != TYPE_CONTRIBUTION && hdr.switchsum.kind != TYPE_PROPOSAL) {
            meta.reject = REJECT_TYPE;
        } else if (standard_metadata.parser_error != error.NoError) {
            meta.reject = REJECT_MALFORMED;
        } else {
            inspect();
        }

        if (meta.reject == 0) {
            membership.apply(hdr, meta, standard_metadata.ingress_port);
        }
        if (meta.reject == 0) {
            if (hdr.switchsum.slot < meta.slot_count) {
                slots.apply(hdr, meta);
                if (hdr.values.isValid()) {
                    values.apply(hdr, meta);
                }
            } else {
                meta.verdict = VERDICT_SLOT_RANGE;
            }
        }
        tally.apply(hdr, meta);

        if (meta.verdict == VERDICT_COMPLETION) {
            answer(hdr.values.isValid() ? TYPE_RESULT : TYPE_AGREEMENT);
            standard_metadata.mcast_grp = meta.group;
        } else if (meta.verdict == VERDICT_REPAIR) {
            answer_sender(hdr.values.isValid() ? TYPE_RESULT : TYPE_AGREEMENT);
            hdr.switchsum.flags = FLAG_REPAIR;
        } else if (meta.verdict == VERDICT_MISMATCH) {
            answer_sender_without_values(TYPE_MISMATCH);
        } else if (meta.verdict == VERDICT_DUPLICATE && hdr.switchsum.flags & FLAG_WANT_STATUS != 0) {
            answer_sender_without_values(TYPE_STATUS);
        }
    }
}
