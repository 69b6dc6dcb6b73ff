// Loses packets on purpose, per port and direction: how loss is tested where the kernel has no netem, and on hardware.
// Two controls, because what follows a branch lies in later stages: the table is asked in the first, the dice are read where
// the packet takes part in a trial.
control DropSimulator(in PortId_t port, inout trial_t trial) {
    Random<bit<32>>() dice;

    action set_threshold(bit<32> value) {
        trial.held = 1;
        trial.threshold = value;
        trial.rolled = dice.get();
    }

#include "drop_simulator_tables.p4"

    apply {
        loss.apply();
    }
}

control Trial(in PortId_t port, inout trial_t trial) {
    Counter<bit<64>, PortId_t>(512, CounterType_t.PACKETS) dropped;  // by port

    action subtract() {
        trial.threshold = trial.threshold |-| trial.rolled;
    }

    action lose() {
        dropped.count(port);
        trial.lost = 1;
    }

    apply {
        subtract();
        if (trial.threshold != 0) {
            lose();
        }
    }
}
