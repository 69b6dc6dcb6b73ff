// Inside control Membership of either architecture, behind its actions admit_job and admit_worker.
table jobs {
    key = {
        hdr.switchsum.job: exact @name("job");
        hdr.switchsum.epoch: exact @name("epoch");
    }
    actions = { admit_job; NoAction; }
    const default_action = NoAction();
    size = 256;
}

table workers {
    key = {
        hdr.switchsum.job: exact @name("job");
        hdr.switchsum.epoch: exact @name("epoch");
        port: exact @name("port");
        hdr.ipv4.src: exact @name("address");
        hdr.udp.src: exact @name("udp_port");
    }
    actions = { admit_worker; NoAction; }
    const default_action = NoAction();
    size = 2048;
}
