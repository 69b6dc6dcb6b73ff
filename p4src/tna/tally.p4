// What became of every packet to the service port, counted where the controller can read it: a direct counter an entry.
control Tally(in headers_t hdr, in metadata_t meta) {
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) worker_packets;
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) job_packets;
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) rejected_packets;

#include "tally_tables.p4"

    apply {
        rejections.apply();
        worker_verdicts.apply();
        job_verdicts.apply();
    }
}
