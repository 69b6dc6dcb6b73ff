// Inside control Tally of either architecture, which declares the three counters before and says when to look up after.
action count_worker() {
    worker_packets.count();
}

action count_job() {
    job_packets.count();
}

action count_rejected() {
    rejected_packets.count();
}

table worker_verdicts {
    key = {
        hdr.switchsum.job: exact @name("job");
        hdr.switchsum.epoch: exact @name("epoch");
        meta.worker: exact @name("worker");
        meta.verdict: exact @name("verdict");
    }
    actions = { count_worker; @defaultonly NoAction; }
    const default_action = NoAction();
    counters = worker_packets;
    size = 16384;
}

table job_verdicts {
    key = {
        hdr.switchsum.job: exact @name("job");
        hdr.switchsum.epoch: exact @name("epoch");
        meta.verdict: exact @name("verdict");
    }
    actions = { count_job; @defaultonly NoAction; }
    const default_action = NoAction();
    counters = job_packets;
    size = 2048;
}

table rejections {
    key = { meta.reject: exact @name("reason"); }
    actions = { count_rejected; @defaultonly NoAction; }
    const default_action = NoAction();
    counters = rejected_packets;
    size = 16;
}
