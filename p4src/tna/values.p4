// The values of every row, two lanes to a register, since a stateful ALU works on 64 bits. Tofino's gives back one of the two:
// the sum of the odd lanes comes in the first pass, that of the even ones when the packet comes round again. Tofino 2's gives both.
struct pair_t {
    bit<32> even;
    bit<32> odd;
}

control Pair(inout bit<32> even, inout bit<32> odd, in metadata_t meta) {
    Register<pair_t, row_t>(ROWS) row_pair;

#if TWO_OUTPUTS
    RegisterAction2<pair_t, row_t, bit<32>, bit<32>>(row_pair) write_both = {
        void apply(inout pair_t row, out bit<32> even_sum, out bit<32> odd_sum) {
            row.even = even;
            row.odd = odd;
            even_sum = row.even;
            odd_sum = row.odd;
        }
    };

    RegisterAction2<pair_t, row_t, bit<32>, bit<32>>(row_pair) add_both = {
        void apply(inout pair_t row, out bit<32> even_sum, out bit<32> odd_sum) {
            row.even = row.even + even;
            row.odd = row.odd + odd;
            even_sum = row.even;
            odd_sum = row.odd;
        }
    };

    RegisterAction2<pair_t, row_t, bit<32>, bit<32>>(row_pair) read_both = {
        void apply(inout pair_t row, out bit<32> even_sum, out bit<32> odd_sum) {
            even_sum = row.even;
            odd_sum = row.odd;
        }
    };

    action overwrite() {
        even = write_both.execute(meta.row, odd);
    }

    action add() {
        even = add_both.execute(meta.row, odd);
    }

    action recall() {
        even = read_both.execute(meta.row, odd);
    }

    @hidden table sums {
        key = {
            meta.deed: exact;
            meta.has_values: exact;
        }
        actions = { overwrite; add; recall; NoAction; }
        const entries = {
            (DEED_OVERWRITE, 1): overwrite();
            (DEED_ADD, 1): add();
            (DEED_RECALL, 1): recall();
        }
        const default_action = NoAction();
        size = 4;
    }
#else
    RegisterAction<pair_t, row_t, bit<32>>(row_pair) write_both = {
        void apply(inout pair_t row, out bit<32> sum) {
            row.even = even;
            row.odd = odd;
            sum = row.odd;
        }
    };

    RegisterAction<pair_t, row_t, bit<32>>(row_pair) add_both = {
        void apply(inout pair_t row, out bit<32> sum) {
            row.even = row.even + even;
            row.odd = row.odd + odd;
            sum = row.odd;
        }
    };

    RegisterAction<pair_t, row_t, bit<32>>(row_pair) read_odd = {
        void apply(inout pair_t row, out bit<32> sum) {
            sum = row.odd;
        }
    };

    RegisterAction<pair_t, row_t, bit<32>>(row_pair) read_even = {
        void apply(inout pair_t row, out bit<32> sum) {
            sum = row.even;
        }
    };

    action overwrite() {
        odd = write_both.execute(meta.row);
    }

    action add() {
        odd = add_both.execute(meta.row);
    }

    action recall() {
        odd = read_odd.execute(meta.row);
    }

    action recall_others() {
        even = read_even.execute(meta.row);
    }

    @hidden table sums {
        key = {
            meta.deed: exact;
            meta.has_values: exact;
            meta.round_trip: exact;
        }
        actions = { overwrite; add; recall; recall_others; NoAction; }
        const entries = {
            (DEED_OVERWRITE, 1, 0): overwrite();
            (DEED_ADD, 1, 0): add();
            (DEED_RECALL, 1, 0): recall();
            (DEED_RECALL, 1, 1): recall_others();
        }
        const default_action = NoAction();
        size = 4;
    }
#endif

    apply {
        sums.apply();
    }
}

#define PAIRS_OF_TEN(DO, T) DO(T##0, T##1) DO(T##2, T##3) DO(T##4, T##5) DO(T##6, T##7) DO(T##8, T##9)
#define PAIRS_0_59(DO) DO(0, 1) DO(2, 3) DO(4, 5) DO(6, 7) DO(8, 9) PAIRS_OF_TEN(DO, 1) PAIRS_OF_TEN(DO, 2) \
    PAIRS_OF_TEN(DO, 3) PAIRS_OF_TEN(DO, 4) PAIRS_OF_TEN(DO, 5)
#if ELEMENTS == 64
#define EACH_PAIR(DO) PAIRS_0_59(DO) DO(60, 61) DO(62, 63)
#elif ELEMENTS == 128
#define EACH_PAIR(DO) PAIRS_0_59(DO) PAIRS_OF_TEN(DO, 6) PAIRS_OF_TEN(DO, 7) PAIRS_OF_TEN(DO, 8) PAIRS_OF_TEN(DO, 9) \
    PAIRS_OF_TEN(DO, 10) PAIRS_OF_TEN(DO, 11) DO(120, 121) DO(122, 123) DO(124, 125) DO(126, 127)
#else
#error "ELEMENTS must be 64 or, where the pipeline is long enough, 128"
#endif
#define PAIR_INSTANCE(E, O) Pair() pair_##E;
#define PAIR_APPLY(E, O) pair_##E.apply(hdr.values.v##E, hdr.values.v##O, meta);

control Values(inout headers_t hdr, in metadata_t meta) {
    EACH_PAIR(PAIR_INSTANCE)

    apply {
        EACH_PAIR(PAIR_APPLY)
    }
}
