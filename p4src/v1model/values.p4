// The values of every row: overwrite, add, or read. Runs once the slot machine has decided; it decides nothing itself.
#ifndef SWITCHSUM_V1MODEL_VALUES_P4_
#define SWITCHSUM_V1MODEL_VALUES_P4_

#define WORD_REGISTER(I) register<bit<WORD_BITS>>(ROWS) row_v##I;
#define WORD_WRITE(I) row_v##I.write(meta.row, hdr.values.v##I);
#define WORD_READ(I) row_v##I.read(hdr.values.v##I, meta.row);
#define WORD_ADD(I) row_v##I.read(stored, meta.row); hdr.values.v##I = hdr.values.v##I + stored; \
    row_v##I.write(meta.row, hdr.values.v##I);

control Values(inout headers_t hdr, inout metadata_t meta) {
    EACH_WORD(WORD_REGISTER)

    action overwrite() {
        EACH_WORD(WORD_WRITE)
    }

    action add() {
        bit<WORD_BITS> stored;
        EACH_WORD(WORD_ADD)
    }

    action recall() {
        EACH_WORD(WORD_READ)
    }

    apply {
        if (meta.overwrite) {
            overwrite();
        } else if (meta.verdict == VERDICT_REPAIR) {
            recall();
        } else if (meta.verdict == VERDICT_CONTRIBUTION || meta.verdict == VERDICT_COMPLETION) {
            add();
        }
    }
}

#endif
