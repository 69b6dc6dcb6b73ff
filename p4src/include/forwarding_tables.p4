// Inside control Forwarding of either architecture, behind its actions.
table stations {
    key = { hdr.ethernet.dst: exact @name("mac"); }
    actions = { forward; flood; discard; }
    default_action = discard();
    size = 1024;
}
