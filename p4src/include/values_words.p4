// The header of E values, in words of WORD_BITS; values_wide.p4 and values_lanes.p4 choose the word.
#define WORD_FIELD(I) bit<WORD_BITS> v##I;

header values_t {
    EACH_WORD(WORD_FIELD)
}
