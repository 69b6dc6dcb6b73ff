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

#endif
