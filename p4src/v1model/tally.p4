// What became of every packet to the service port, counted where the controller can read it: a direct counter an entry.
control Tally(in headers_t hdr, in metadata_t meta) {
    direct_counter(CounterType.packets_and_bytes) worker_packets;
    direct_counter(CounterType.packets_and_bytes) job_packets;
    direct_counter(CounterType.packets_and_bytes) rejected_packets;

#include "tally_tables.p4"

    apply {
        if (meta.reject != 0) {
            rejections.apply();
        } else {
            worker_verdicts.apply();
            job_verdicts.apply();
        }
    }
}
