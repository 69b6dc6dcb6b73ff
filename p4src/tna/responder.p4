// The switch as a host: it owns addresses, answers ARP for them and echoes ICMP, so that workers find it and people can ping it.
control OwnAddress(in headers_t hdr, inout metadata_t meta) {
    action own(mac_t mac) {
        meta.own = 1;
        meta.own_mac = mac;
    }

    table addresses {
        key = { meta.target: exact @name("address"); }
        actions = { own; NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        if (hdr.arp.isValid() || hdr.ipv4.isValid()) {
            addresses.apply();
        }
    }
}

control Responder(inout headers_t hdr, inout metadata_t meta, inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                  inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action turn_around() {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.own_mac;
        ig_tm_md.ucast_egress_port = meta.bridge.port;
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

    // RFC 1624: the type byte fell by 8, so the one's complement checksum grows by 0x0800, end-around carry included.
    action answer_echo(bit<16> growth) {
        turn_around();
        ipv4_address_t own_ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own_ip;
        hdr.icmp.kind = ICMP_ECHO_REPLY;
        hdr.icmp.checksum = hdr.icmp.checksum + growth;
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            answer_arp();
        } else if (hdr.icmp.isValid() && hdr.icmp.kind == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
            if (hdr.icmp.checksum[15:11] == 0x1f) {
                answer_echo(0x0801);
            } else {
                answer_echo(0x0800);
            }
        } else {
            ig_dprsr_md.drop_ctl = 1;
        }
    }
}
