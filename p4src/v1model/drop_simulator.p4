// Loses packets on purpose, per port and direction: how loss is tested where the kernel has no netem, and on hardware.
control DropSimulator(in bit<9> port, out bool lost) {
    bit<32> threshold = 0;
    counter(512, CounterType.packets) dropped;  // by port

    // probability = threshold / 2^32
    action set_threshold(bit<32> value) {
        threshold = value;
    }

    table loss {
        key = { port: exact @name("port"); }
        actions = { set_threshold; NoAction; }
        const default_action = NoAction();
        size = 512;
    }

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
