// Headers of the wire, outermost first. The SwitchSum header itself is generated (protocol.p4).
#ifndef SWITCHSUM_HEADERS_P4_
#define SWITCHSUM_HEADERS_P4_

#include "protocol.p4"

typedef bit<48> mac_t;
typedef bit<32> ipv4_address_t;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> PROTOCOL_ICMP = 1;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;
const bit<8> ICMP_ECHO_REQUEST = 8;
const bit<8> ICMP_ECHO_REPLY = 0;

header ethernet_t {
    mac_t dst;
    mac_t src;
    bit<16> ethertype;
}

header arp_t {  // RFC 826, for Ethernet and IPv4 only
    bit<16> hardware;
    bit<16> protocol;
    bit<8> hardware_length;
    bit<8> protocol_length;
    bit<16> operation;
    mac_t sender_mac;
    ipv4_address_t sender_ip;
    mac_t target_mac;
    ipv4_address_t target_ip;
}

header ipv4_t {  // RFC 791 without options
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_address_t src;
    ipv4_address_t dst;
}

header icmp_t {  // RFC 792, the part that every type has
    bit<8> kind;
    bit<8> code;
    bit<16> checksum;
}

header udp_t {  // RFC 768
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

#ifdef VALUES_WIDE
#include "values_wide.p4"
#else
#include "values_lanes.p4"
#endif

struct headers_t {
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    icmp_t icmp;
    udp_t udp;
    switchsum_t switchsum;
    values_t values;
}

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

#endif
