// Inside control Addressing of either architecture, behind the variable `worker` (whose copy this is) and the action discard.
action to_worker(mac_t mac, ipv4_address_t address, bit<16> udp_port) {
    hdr.ethernet.src = hdr.ethernet.dst;
    hdr.ethernet.dst = mac;
    hdr.ipv4.src = hdr.ipv4.dst;
    hdr.ipv4.dst = address;
    hdr.udp.src = hdr.udp.dst;
    hdr.udp.dst = udp_port;
    hdr.switchsum.worker = worker;
}

table peers {
    key = {
        hdr.switchsum.job: exact @name("job");
        hdr.switchsum.epoch: exact @name("epoch");
        worker: exact @name("worker");
    }
    actions = { to_worker; discard; }
    const default_action = discard();
    size = 2048;
}
