// Values as wide integers of 64 lanes. Lanes never carry into each other (DESIGN section 3), so one addition of 2048 bits
// is 64 additions of 32 bits. BMv2 pays per primitive, not per bit: this is its fast build.
#ifndef SWITCHSUM_VALUES_P4_
#define SWITCHSUM_VALUES_P4_

#if ELEMENTS == 64
#define EACH_WORD(DO) DO(0)
#elif ELEMENTS == 128
#define EACH_WORD(DO) DO(0) DO(1)
#elif ELEMENTS == 256
#define EACH_WORD(DO) DO(0) DO(1) DO(2) DO(3)
#else
#error "ELEMENTS must be 64, 128 or 256"
#endif
#define WORD_BITS 2048

#include "values_words.p4"

#endif
