// Loses packets on purpose, per port and direction: how loss is tested where the kernel has no netem, and on hardware.
control DropSimulator(in bit<9> port, out bool lost) {
    bit<32> threshold = 0;
    counter(512, CounterType.packets) dropped;  // by port

    action set_threshold(bit<32> value) {
        threshold = value;
    }

#include "drop_simulator_tables.p4"

    apply {
        lost = false;
        if (loss.apply().hit) {
            bit<32> dice;
            random(dice, 0, 0xffffffff);
            if (dice < threshold) {
                lost = true;
                dropped.count((bit<32>) port);
            }
        }
    }
}
