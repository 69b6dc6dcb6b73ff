// Inside control DropSimulator of either architecture, behind its action set_threshold: probability = threshold / 2^32.
table loss {
    key = { port: exact @name("port"); }
    actions = { set_threshold; NoAction; }
    const default_action = NoAction();
    size = 512;
}
