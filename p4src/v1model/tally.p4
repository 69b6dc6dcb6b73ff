// What became of every packet to the service port, counted where the controller can read it: a direct counter an entry.
control Tally(in headers_t hdr, in metadata_t meta) {
    direct_counter(CounterType.packets_and_bytes) worker_packets;
    direct_counter(CounterType.packets_and_bytes) job_packets;
    direct_counter(CounterType.packets_and_bytes) rejected_packets;

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
        actions = { count_worker; NoAction; }
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
        actions = { count_job; NoAction; }
        const default_action = NoAction();
        counters = job_packets;
        size = 2048;
    }

    table rejections {
        key = { meta.reject: exact @name("reason"); }
        actions = { count_rejected; NoAction; }
        const default_action = NoAction();
        counters = rejected_packets;
        size = 16;
    }

    apply {
        if (meta.reject != 0) {
            rejections.apply();
        } else {
            worker_verdicts.apply();
            job_verdicts.apply();
        }
    }
}
