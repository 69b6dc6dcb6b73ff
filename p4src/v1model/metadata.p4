// Filled in ingress in this order; egress only reads it (a multicast copy carries its own).
struct metadata_t {
    bool own;            // responder: the packet is for the switch's own address
    mac_t own_mac;       // responder: that address's MAC
    bool lost;           // drop simulator: lost on purpose, on the way in or out
    bool flooded;        // forwarding: sent to the flood group, so never back to where it came from
    bit<8> worker;       // membership: this worker's index
    bit<32> worker_bit;  // membership: its bit in a slot's bitmap
    bit<32> full;        // membership: the bitmap when all workers are in
    bit<16> slot_base;   // membership: first slot of the job's range
    bit<16> slot_count;  // membership: slots in that range
    bit<16> group;       // membership: multicast group that reaches all workers of the job
    bit<32> row;         // slots: register row, 2 * slot + version
    bool overwrite;      // slots: first contribution of a phase, the row's old values are void
    bit<8> verdict;      // slots: VERDICT_*, 0 = the packet never got there
    bit<8> reject;       // service: REJECT_*, 0 = none
    bool answer;         // service: the packet leaves as an answer, egress addresses it
}
