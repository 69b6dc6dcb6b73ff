// Inside the parser of either architecture. PARSED_*: what it notes down besides. Anything that is not ours stays payload behind
// its last known header and is forwarded whole.
state parse_ethernet {
    packet.extract(hdr.ethernet);
    transition select(hdr.ethernet.ethertype) {
        ETHERTYPE_IPV4: parse_ipv4;
        ETHERTYPE_ARP: parse_arp;
        default: accept;
    }
}

state parse_arp {
    packet.extract(hdr.arp);
    PARSED_ARP
    transition accept;
}

state parse_ipv4 {
    packet.extract(hdr.ipv4);
    PARSED_IPV4
    // Options and fragments (more fragments, or an offset) are never ours: forward them as they are.
    transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
        (4, 5, 0 &&& 1, 0, PROTOCOL_ICMP): parse_icmp;
        (4, 5, 0 &&& 1, 0, PROTOCOL_UDP): parse_udp;
        default: accept;
    }
}

state parse_icmp {
    packet.extract(hdr.icmp);
    transition accept;
}

state parse_udp {
    packet.extract(hdr.udp);
    transition select(hdr.udp.dst) {
        SERVICE_PORT: parse_switchsum;
        default: accept;
    }
}

state parse_switchsum {
    PARSED_SERVICE
    packet.extract(hdr.switchsum);
    transition select(hdr.switchsum.kind) {
        TYPE_CONTRIBUTION: parse_values;
        default: accept;
    }
}

state parse_values {
    packet.extract(hdr.values);
    PARSED_VALUES
    transition accept;
}
