// What a packet carries besides its headers. The bridge travels with it, from ingress to egress and once round the switch.
typedef bit<12> row_t;  // index into the ROWS rows of the registers

header bridge_t {
    @padding bit<7> _pad;
    PortId_t port;     // where the packet came in
    bit<8> worker;     // this worker's index
    bit<1> answer;     // the packet leaves as an answer, egress addresses it
    bit<1> flooded;    // sent to the flood group, so never back to where it came from
    bit<1> broadcast;  // on the way round: the sum is for all workers, not for this one alone
    @padding bit<5> _pad2;
}

struct trial_t {  // drop simulator
    bit<1> held;        // this port loses packets on purpose
    bit<1> lost;        // and this is one of them
    bit<32> threshold;  // below which it is
    bit<32> rolled;     // this packet's number
}

// Tables of the first stage write these; two that shared a container could not both lie there.
@pa_solitary("ingress", "meta.trial.held")
@pa_solitary("ingress", "meta.own")
@pa_solitary("ingress", "meta.job_known")
@pa_solitary("ingress", "meta.worker_known")
@pa_solitary("ingress", "meta.reject")
struct metadata_t {
    bridge_t bridge;
    bit<1> arrival;       // parser: the packet comes from outside and for the first time
    bit<1> round_trip;    // parser: the packet comes back to read the other half of its sum
    bit<1> for_service;   // parser: UDP to the service port
    bit<1> has_values;    // parser: and it carries values
    bit<1> bad_checksum;  // parser: of the IPv4 header
    ipv4_address_t target;  // parser: the address that the packet is for
    trial_t trial;
    bit<1> own;           // responder: the packet is for the switch's own address
    mac_t own_mac;        // responder: that address's MAC
    bit<1> job_known;     // membership: job and epoch are in the table
    bit<1> worker_known;  // membership: so is the sender
    bit<8> stranger;      // membership: 0 if the packet names the worker that the table does
    bit<8> worker;        // membership: this worker's index
    bit<32> worker_bit;   // membership: its bit in a slot's bitmap
    bit<32> full;         // membership: the bitmap when all workers are in
    bit<16> place;        // membership: the slot, counted over all jobs
    bit<16> room;         // membership: 0 if the slot lies outside the job's range
    bit<16> group;        // membership: multicast group that reaches all workers of the job
    bit<32> round;        // slots: the phase with its lowest bit set
    row_t row;            // slots: register row, 2 * slot + version
    bit<32> seen;         // slots: the row's round, 0 if it is older than the packet's or of another epoch
    bit<8> standing;      // slots: STANDING_*, the packet's phase against the row's
    bit<32> before;       // slots: the row's bitmap before this packet, 0 if the tags differ
    bit<32> after;        // slots: and after it
    bit<32> row_tag;      // slots: the row's tag
    bit<16> exponent;     // slots: the row's largest exponent
    bit<8> deed;          // slots: DEED_*, what the values do
    bit<8> verdict;       // slots: VERDICT_*, 0 = the packet never got there
    bit<8> reject;        // service: REJECT_*, 0 = none
}

struct egress_metadata_t {
    bridge_t bridge;
    trial_t trial;
}

const bit<8> STANDING_OLD = 1;
const bit<8> STANDING_SAME = 2;
const bit<8> STANDING_NEW = 3;

const bit<8> VERDICT_RETURNED = 0x80;  // a sum of which one half was read in the pass before; not counted again

const bit<8> DEED_OVERWRITE = 1;
const bit<8> DEED_ADD = 2;
const bit<8> DEED_RECALL = 3;
