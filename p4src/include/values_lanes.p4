// Values as one 32-bit register array per lane, as hardware has them. Compilers that vectorize (the softswitch) like it best.
#ifndef SWITCHSUM_VALUES_P4_
#define SWITCHSUM_VALUES_P4_

// One decimal digit at a time: TENS(DO, 25) is lanes 250 to 259.
#define TENS(DO, T) DO(T##0) DO(T##1) DO(T##2) DO(T##3) DO(T##4) DO(T##5) DO(T##6) DO(T##7) DO(T##8) DO(T##9)
#define LANES_0_59(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) \
    TENS(DO, 1) TENS(DO, 2) TENS(DO, 3) TENS(DO, 4) TENS(DO, 5)
#define LANES_60_119(DO) TENS(DO, 6) TENS(DO, 7) TENS(DO, 8) TENS(DO, 9) TENS(DO, 10) TENS(DO, 11)
#define LANES_120_249(DO) TENS(DO, 12) TENS(DO, 13) TENS(DO, 14) TENS(DO, 15) TENS(DO, 16) TENS(DO, 17) TENS(DO, 18) \
    TENS(DO, 19) TENS(DO, 20) TENS(DO, 21) TENS(DO, 22) TENS(DO, 23) TENS(DO, 24)

#if ELEMENTS == 64
#define EACH_WORD(DO) LANES_0_59(DO) DO(60) DO(61) DO(62) DO(63)
#elif ELEMENTS == 128
#define EACH_WORD(DO) LANES_0_59(DO) LANES_60_119(DO) DO(120) DO(121) DO(122) DO(123) DO(124) DO(125) DO(126) DO(127)
#elif ELEMENTS == 256
#define EACH_WORD(DO) LANES_0_59(DO) LANES_60_119(DO) LANES_120_249(DO) DO(250) DO(251) DO(252) DO(253) DO(254) DO(255)
#else
#error "ELEMENTS must be 64, 128 or 256"
#endif
#define WORD_BITS 32

#include "values_words.p4"

#endif
