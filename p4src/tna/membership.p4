#define PROPOSAL_BYTES (16w8 + SWITCHSUM_HEADER_BYTES)
#define CONTRIBUTION_BYTES (PROPOSAL_BYTES + 4 * ELEMENTS)

// Who is speaking: identity comes from these tables, never from the packet. An old epoch matches nothing here.
control Membership(in headers_t hdr, inout metadata_t meta, in PortId_t port,
                   in ingress_intrinsic_metadata_from_parser_t ig_prsr_md) {
    action inspect(bit<8> reason) {
        meta.reject = reason;
        meta.round = hdr.switchsum.phase | 1;  // here, since p4c 1.2.5.16 carries a plain assignment into a gateway and drops "| 1"
    }

    // Truncation, foreign data and padding all end here; what passes has exactly the bytes its type says.
    @hidden table inspections {
        key = {
            hdr.switchsum.isValid(): ternary;
            meta.bad_checksum: ternary;
            hdr.switchsum.version: ternary;
            hdr.switchsum.kind: ternary;
            hdr.udp.length: ternary;
            hdr.ipv4.total_length: ternary;
            ig_prsr_md.parser_err: ternary;
        }
        actions = { inspect; }
        const entries = {
            (false, _, _, _, _, _, _): inspect(REJECT_MALFORMED);
            (_, 1, _, _, _, _, _): inspect(REJECT_CHECKSUM);
            (_, _, WIRE_VERSION, TYPE_CONTRIBUTION, CONTRIBUTION_BYTES, CONTRIBUTION_BYTES + 20, 0): inspect(0);
            (_, _, WIRE_VERSION, TYPE_PROPOSAL, PROPOSAL_BYTES, PROPOSAL_BYTES + 20, 0): inspect(0);
            (_, _, WIRE_VERSION, TYPE_CONTRIBUTION, _, _, _): inspect(REJECT_MALFORMED);
            (_, _, WIRE_VERSION, TYPE_PROPOSAL, _, _, _): inspect(REJECT_MALFORMED);
            (_, _, WIRE_VERSION, _, _, _, _): inspect(REJECT_TYPE);
        }
        const default_action = inspect(REJECT_VERSION);
        size = 8;
    }

    action admit_job(bit<16> slot_base, bit<16> slot_count, bit<32> full, bit<16> group) {
        meta.job_known = 1;
        meta.place = hdr.switchsum.slot + slot_base;
        meta.room = slot_count |-| hdr.switchsum.slot;
        meta.full = full;
        meta.group = group;
    }

    action admit_worker(bit<8> worker, bit<32> worker_bit) {
        meta.worker_known = 1;
        meta.stranger = hdr.switchsum.worker ^ worker;
        meta.worker = worker;
        meta.worker_bit = worker_bit;
    }

#include "membership_tables.p4"

    apply {
        inspections.apply();
        jobs.apply();
        workers.apply();
    }
}
