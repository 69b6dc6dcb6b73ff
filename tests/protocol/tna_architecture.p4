// What p4src/tna uses of the architecture's own declarations, for tna_program.py. Fields that no one reads are left out, and
// the layout of egress_intrinsic_metadata_t is that of tna_switch.py.
typedef bit<9> PortId_t;

header ingress_intrinsic_metadata_t {
    bit<1> resubmit_flag;
    bit<6> _pad;
    bit<9> ingress_port;
    bit<48> ingress_mac_tstamp;
}

struct ingress_intrinsic_metadata_from_parser_t {
    bit<16> parser_err;
}

struct ingress_intrinsic_metadata_for_deparser_t {
    bit<3> drop_ctl;
    bit<3> resubmit_type;
}

struct ingress_intrinsic_metadata_for_tm_t {
    PortId_t ucast_egress_port;
    bit<1> bypass_egress;
    bit<16> mcast_grp_a;
}

header egress_intrinsic_metadata_t {
    bit<7> _pad;
    PortId_t egress_port;
    bit<16> egress_rid;
}

struct egress_intrinsic_metadata_from_parser_t {
}

struct egress_intrinsic_metadata_for_deparser_t {
    bit<3> drop_ctl;
}

struct egress_intrinsic_metadata_for_output_port_t {
}
