// The switch as a host: it owns addresses, answers ARP for them and echoes ICMP, so that workers find it and people can ping it.
control OwnAddress(in headers_t hdr, inout metadata_t meta) {
    bit<32> target = 0;

    action own(mac_t mac) {
        meta.own = true;
        meta.own_mac = mac;
    }

    table addresses {
        key = { target: exact @name("address"); }
        actions = { own; NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        if (hdr.arp.isValid()) {
            target = hdr.arp.target_ip;
            addresses.apply();
        } else if (hdr.ipv4.isValid()) {
            target = hdr.ipv4.dst;
            addresses.apply();
        }
    }
}

control Responder(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action turn_around() {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.own_mac;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    action answer_arp() {
        turn_around();
        ipv4_address_t own_ip = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = meta.own_mac;
        hdr.arp.sender_ip = own_ip;
    }

    action answer_echo() {
        turn_around();
        ipv4_address_t own_ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own_ip;
        hdr.icmp.kind = ICMP_ECHO_REPLY;
        // RFC 1624: the type byte fell by 8, so the one's complement checksum grows by 0x0800, end-around carry included.
        bit<17> sum = (bit<17>) hdr.icmp.checksum + 0x0800;
        hdr.icmp.checksum = sum[15:0] + (bit<16>) sum[16:16];
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            answer_arp();
        } else if (hdr.icmp.isValid() && hdr.icmp.kind == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
            answer_echo();
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}
