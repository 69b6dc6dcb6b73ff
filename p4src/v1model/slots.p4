// The slot state machine: DESIGN section 4's table, one rule a branch, in the table's order. It owns everything a row holds
// but the values. A row is never cleared: a later phase or another epoch makes its content void.
control Slots(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(ROWS) row_epoch;
    register<bit<32>>(ROWS) row_phase;
    register<bit<32>>(ROWS) row_bitmap;
    register<bit<32>>(ROWS) row_tag;
    register<bit<16>>(ROWS) row_exponent;

    bit<32> epoch;
    bit<32> phase;
    bit<32> bitmap;
    bit<32> tag;
    bit<16> exponent;

    apply {
        // The version is the phase's lowest bit: while phase t fills, the sum of t - 1 can still be asked for.
        meta.row = (((bit<32>) meta.slot_base + (bit<32>) hdr.switchsum.slot) << 1) | (hdr.switchsum.phase & 1);
        row_epoch.read(epoch, meta.row);
        row_phase.read(phase, meta.row);
        row_bitmap.read(bitmap, meta.row);
        row_tag.read(tag, meta.row);
        row_exponent.read(exponent, meta.row);

        bit<32> age = hdr.switchsum.phase - phase;  // RFC 1982: later while 0 < age < 2^31
        if (epoch != hdr.switchsum.epoch || (age != 0 && age < 0x80000000)) {
            meta.overwrite = true;
            meta.verdict = VERDICT_CONTRIBUTION;
            bitmap = meta.worker_bit;
            exponent = hdr.switchsum.exponent;
            row_epoch.write(meta.row, hdr.switchsum.epoch);
            row_phase.write(meta.row, hdr.switchsum.phase);
            row_tag.write(meta.row, hdr.switchsum.tag);
        } else if (age != 0) {
            meta.verdict = VERDICT_STALE;
        } else if (tag != hdr.switchsum.tag) {
            meta.verdict = VERDICT_MISMATCH;
            hdr.switchsum.tag = tag;
        } else if (bitmap & meta.worker_bit == 0) {
            meta.verdict = VERDICT_CONTRIBUTION;
            bitmap = bitmap | meta.worker_bit;
            if (exponent < hdr.switchsum.exponent) {
                exponent = hdr.switchsum.exponent;
            }
        } else if (bitmap != meta.full) {
            meta.verdict = VERDICT_DUPLICATE;
            if (hdr.switchsum.flags & FLAG_WANT_STATUS != 0) {
                hdr.switchsum.tag = bitmap;
            }
        } else {
            meta.verdict = VERDICT_REPAIR;
        }

        if (meta.verdict == VERDICT_CONTRIBUTION) {
            row_bitmap.write(meta.row, bitmap);
            row_exponent.write(meta.row, exponent);
            if (bitmap == meta.full) {
                meta.verdict = VERDICT_COMPLETION;
            }
        }
        if (meta.verdict == VERDICT_COMPLETION || meta.verdict == VERDICT_REPAIR) {
            hdr.switchsum.exponent = exponent;
        }
    }
}
