// From bytes to headers, and back.
#define PARSED_ARP
#define PARSED_IPV4
#define PARSED_SERVICE
#define PARSED_VALUES

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        transition parse_ethernet;
    }

#include "parser_states.p4"
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.switchsum);
        packet.emit(hdr.values);
    }
}
