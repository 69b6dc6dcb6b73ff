// Generated from p4src/protocol.yaml by p4src/generate.py (make generate). Do not edit.
#ifndef SWITCHSUM_PROTOCOL_P4_
#define SWITCHSUM_PROTOCOL_P4_

#define SLOTS 2048
#define ROWS (2 * SLOTS)
#define SWITCHSUM_HEADER_BYTES 24
const bit<8> WIRE_VERSION = 0x51;
const bit<16> SERVICE_PORT = 0x5353;

const bit<8> TYPE_CONTRIBUTION = 0x1;  // host to switch: header and E values to add
const bit<8> TYPE_PROPOSAL = 0x2;  // host to switch: header only, agrees on an exponent
const bit<8> TYPE_RESULT = 0x81;  // switch to host: header and the E sums
const bit<8> TYPE_AGREEMENT = 0x82;  // switch to host: header only, the agreed exponent
const bit<8> TYPE_MISMATCH = 0x83;  // switch to host: header only, your tag is not the row's
const bit<8> TYPE_STATUS = 0x84;  // switch to host: header only, the row is still filling, the bitmap is in tag

const bit<8> FLAG_WANT_STATUS = 0x1;  // host: if this is a duplicate in a filling slot, tell me who is there
const bit<8> FLAG_REPAIR = 0x2;  // switch: this answer repeats a stored result (unicast)

const bit<8> VERDICT_CONTRIBUTION = 0x1;  // first or further contribution of a phase that is not full yet
const bit<8> VERDICT_COMPLETION = 0x2;  // the contribution that filled the bitmap; the result was multicast
const bit<8> VERDICT_DUPLICATE = 0x3;  // already counted in a phase that is still filling
const bit<8> VERDICT_REPAIR = 0x4;  // already counted in a full phase; answered with the stored result
const bit<8> VERDICT_STALE = 0x5;  // a phase that is over
const bit<8> VERDICT_MISMATCH = 0x6;  // another tag than the row's
const bit<8> VERDICT_SLOT_RANGE = 0x7;  // slot outside the job's range

const bit<8> REJECT_MALFORMED = 0x1;  // truncated, or a length that does not fit the type
const bit<8> REJECT_CHECKSUM = 0x2;  // IPv4 header checksum
const bit<8> REJECT_VERSION = 0x3;  // another wire version
const bit<8> REJECT_TYPE = 0x4;  // not a type that hosts send
const bit<8> REJECT_UNKNOWN_JOB = 0x5;  // no such job and epoch (an old epoch ends here)
const bit<8> REJECT_UNKNOWN_WORKER = 0x6;  // ingress port, address or UDP port belong to no worker of the job
const bit<8> REJECT_WORKER_INDEX = 0x7;  // worker index is not the one the table names

header switchsum_t {
    bit<8> version;       // wire_version
    bit<8> kind;          // packet type, see packet_types
    bit<16> job;          // job id given by the controller
    bit<32> epoch;        // job epoch; a restarted job gets a larger one
    bit<16> slot;         // slot, relative to the job's range
    bit<16> exponent;     // code proposed for the slot's next chunk (out), agreed maximum (back)
    bit<32> phase;        // round of this slot, 32-bit serial arithmetic (RFC 1982)
    bit<32> tag;          // identifies collective and round; MISMATCH: the row's tag; STATUS: the row's bitmap
    bit<8> worker;        // worker index; checked against the switch's own table, never believed
    bit<8> flags;         // see flags
    bit<16> reserved;     // sent as zero
}

#endif
