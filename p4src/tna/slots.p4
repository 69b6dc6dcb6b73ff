// The slot state machine: DESIGN section 4's table. A register is reached once in a pass, in one stage, and decides by what it
// holds itself; so the rules of v1model/slots.p4 stand here in the order of the stages. A row is never cleared: a later phase
// or another epoch makes its content void.
struct moment_t {
    bit<32> round;  // the phase with its lowest bit set: that bit is the row's number, and 0 is free to mean "void"
    bit<32> epoch;
}

struct members_t {
    bit<32> tag;
    bit<32> bitmap;
}

#define BIT_IS_SET(B) (STANDING_SAME, B &&& B, B &&& B, _): again();
#define EACH_OCTET(DO, O) DO(32w1 << (O)) DO(32w2 << (O)) DO(32w4 << (O)) DO(32w8 << (O)) \
    DO(32w16 << (O)) DO(32w32 << (O)) DO(32w64 << (O)) DO(32w128 << (O))

control Slots(inout headers_t hdr, inout metadata_t meta) {
    Register<moment_t, row_t>(ROWS) row_epoch_phase;
    Register<members_t, row_t>(ROWS) row_bitmap;
    Register<bit<32>, row_t>(ROWS) row_tag;
    Register<bit<16>, row_t>(ROWS) row_exponent;

    // RFC 1982: later while the difference, taken as a signed number, is above 0.
    RegisterAction<moment_t, row_t, bit<32>>(row_epoch_phase) compare = {
        void apply(inout moment_t row, out bit<32> seen) {
            seen = 0;
            if (row.epoch != hdr.switchsum.epoch || (int<32>) (meta.round - row.round) > 0) {
                row.epoch = hdr.switchsum.epoch;
                row.round = meta.round;
            } else {
                seen = row.round;
            }
        }
    };

    RegisterAction<members_t, row_t, bit<32>>(row_bitmap) start_members = {
        void apply(inout members_t row) {
            row.tag = hdr.switchsum.tag;
            row.bitmap = meta.worker_bit;
        }
    };

    RegisterAction<members_t, row_t, bit<32>>(row_bitmap) join_members = {
        void apply(inout members_t row, out bit<32> before) {
            before = 0;
            if (row.tag == hdr.switchsum.tag) {
                before = row.bitmap;
                row.bitmap = row.bitmap | meta.worker_bit;
            }
        }
    };

    RegisterAction<bit<32>, row_t, bit<32>>(row_tag) write_tag = {
        void apply(inout bit<32> row) {
            row = hdr.switchsum.tag;
        }
    };

    RegisterAction<bit<32>, row_t, bit<32>>(row_tag) read_tag = {
        void apply(inout bit<32> row, out bit<32> tag) {
            tag = row;
        }
    };

    RegisterAction<bit<16>, row_t, bit<16>>(row_exponent) write_exponent = {
        void apply(inout bit<16> row, out bit<16> exponent) {
            row = hdr.switchsum.exponent;
            exponent = row;
        }
    };

    RegisterAction<bit<16>, row_t, bit<16>>(row_exponent) raise_exponent = {
        void apply(inout bit<16> row, out bit<16> exponent) {
            row = max(row, hdr.switchsum.exponent);
            exponent = row;
        }
    };

    RegisterAction<bit<16>, row_t, bit<16>>(row_exponent) read_exponent = {
        void apply(inout bit<16> row, out bit<16> exponent) {
            exponent = row;
        }
    };

    action refuse(bit<8> reason) {
        meta.reject = reason;
    }

    action out_of_range() {
        meta.verdict = VERDICT_SLOT_RANGE;
    }

    // The version is the phase's lowest bit: while phase t fills, the sum of t - 1 can still be asked for.
    action find_row() {
        meta.standing = STANDING_OLD;
        meta.seen = compare.execute(meta.place[10:0] ++ hdr.switchsum.phase[0:0]);
        meta.row = meta.place[10:0] ++ hdr.switchsum.phase[0:0];
    }

    // Nobody but an admitted worker reaches a register.
    @hidden table admissions {
        key = {
            meta.reject: ternary;
            meta.job_known: ternary;
            meta.worker_known: ternary;
            meta.stranger: ternary;
            meta.room: ternary;
        }
        actions = { refuse; out_of_range; find_row; @defaultonly NoAction; }
        const entries = {
            (0, 0, _, _, _): refuse(REJECT_UNKNOWN_JOB);
            (0, 1, 0, _, _): refuse(REJECT_UNKNOWN_WORKER);
            (0, 1, 1, 0, 0): out_of_range();
            (0, 1, 1, 0, _): find_row();
            (0, 1, 1, _, _): refuse(REJECT_WORKER_INDEX);
        }
        const default_action = NoAction();
        size = 8;
    }

    action start_row() {
        meta.standing = STANDING_NEW;
        start_members.execute(meta.row);
    }

    action join_row() {
        meta.standing = STANDING_SAME;
        meta.before = join_members.execute(meta.row);
    }

    action start_tag() {
        write_tag.execute(meta.row);
    }

    action compare_tag() {
        meta.row_tag = read_tag.execute(meta.row);
    }

    @hidden table members {
        key = { meta.seen: ternary; }
        actions = { start_row; join_row; @defaultonly NoAction; }
        const entries = {
            0: start_row();
            _: join_row();
        }
        const default_action = NoAction();
        size = 2;
    }

    @hidden table tags {
        key = { meta.seen: ternary; }
        actions = { start_tag; compare_tag; @defaultonly NoAction; }
        const entries = {
            0: start_tag();
            _: compare_tag();
        }
        const default_action = NoAction();
        size = 2;
    }

    action begin() {
        meta.verdict = VERDICT_CONTRIBUTION;
        meta.deed = DEED_OVERWRITE;
        meta.after = meta.worker_bit;
        meta.exponent = write_exponent.execute(meta.row);
    }

    action contribute() {
        meta.verdict = VERDICT_CONTRIBUTION;
        meta.deed = DEED_ADD;
        meta.after = meta.before | meta.worker_bit;
        meta.exponent = raise_exponent.execute(meta.row);
    }

    action again() {
        meta.verdict = VERDICT_DUPLICATE;
        meta.deed = DEED_RECALL;
        meta.after = meta.before;
        meta.exponent = read_exponent.execute(meta.row);
    }

    action mismatch() {
        meta.verdict = VERDICT_MISMATCH;
    }

    action late() {
        meta.verdict = VERDICT_STALE;
    }

    // On its round trip a packet only reads, and finds its own bit set; if it does not, its row has gone to a later phase.
    @hidden table rules {
        key = {
            meta.standing: ternary;
            meta.before: ternary;
            meta.worker_bit: ternary;
            meta.round_trip: ternary;
        }
        actions = { begin; contribute; again; mismatch; late; @defaultonly NoAction; }
        const entries = {
            (STANDING_NEW, _, _, 0): begin();
            (STANDING_OLD, _, _, 0): late();
            (STANDING_SAME, 0, _, 0): mismatch();
            EACH_OCTET(BIT_IS_SET, 0)
            EACH_OCTET(BIT_IS_SET, 8)
            EACH_OCTET(BIT_IS_SET, 16)
            EACH_OCTET(BIT_IS_SET, 24)
            (STANDING_SAME, _, _, 0): contribute();
        }
        const default_action = NoAction();
        size = 40;
    }

    action complete() {
        meta.verdict = VERDICT_COMPLETION;
    }

    action repair() {
        meta.verdict = VERDICT_REPAIR;
    }

    action give_back() {
        meta.verdict = VERDICT_RETURNED;
    }

    @hidden table completions {
        key = {
            meta.verdict: exact;
            meta.round_trip: exact;
        }
        actions = { complete; repair; give_back; NoAction; }
        const entries = {
            (VERDICT_CONTRIBUTION, 0): complete();
            (VERDICT_DUPLICATE, 0): repair();
            (VERDICT_DUPLICATE, 1): give_back();
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        admissions.apply();
        if (meta.standing == STANDING_OLD && (meta.seen == 0 || meta.seen == meta.round)) {
            members.apply();
            tags.apply();
        }
        rules.apply();
        if (meta.after == meta.full) {
            completions.apply();
        }
    }
}
