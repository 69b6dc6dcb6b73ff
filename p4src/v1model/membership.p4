// Who is speaking: identity comes from these tables, never from the packet. An old epoch matches nothing here.
control Membership(in headers_t hdr, inout metadata_t meta, in bit<9> port) {
    action admit_job(bit<16> slot_base, bit<16> slot_count, bit<32> full, bit<16> group) {
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.full = full;
        meta.group = group;
    }

    action admit_worker(bit<8> worker, bit<32> worker_bit) {
        meta.worker = worker;
        meta.worker_bit = worker_bit;
    }

#include "membership_tables.p4"

    apply {
        if (!jobs.apply().hit) {
            meta.reject = REJECT_UNKNOWN_JOB;
        } else if (!workers.apply().hit) {
            meta.reject = REJECT_UNKNOWN_WORKER;
        } else if (hdr.switchsum.worker != meta.worker) {
            meta.reject = REJECT_WORKER_INDEX;
        }
    }
}
