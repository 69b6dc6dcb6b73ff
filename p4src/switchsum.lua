-- Generated from p4src/protocol.yaml by p4src/generate.py (make generate). Do not edit.

local switchsum = Proto("switchsum", "SwitchSum, sums inside the network")

local WIRE_VERSION = 0x51
local SERVICE_PORT = 0x5353
local HEADER_BYTES = 24
local ELEMENTS = { [64] = true, [128] = true, [256] = true }
local LENGTHS = { 24, 280, 536, 1048 } -- of whole packets
local ELEMENTS_TEXT = "64, 128 or 256"
local ELEMENTS_MAX = 256
local TYPES = { [0x0001] = "CONTRIBUTION", [0x0002] = "PROPOSAL", [0x0081] = "RESULT", [0x0082] = "AGREEMENT", [0x0083] = "MISMATCH", [0x0084] = "STATUS" }
local CARRIES_VALUES = { [0x0001] = true, [0x0081] = true }
local EXPONENTS = { [0x0000] = "ZERO", [0xfffe] = "SPECIAL", [0xffff] = "NONE" }
local EXPONENT_BIAS = 0x0800
local HEADER = { -- offsets and lengths in bytes
    { name = "version", offset = 0, bytes = 1, proto = ProtoField.uint8("switchsum.version", "Version", base.HEX, nil, nil, "wire_version") },
    { name = "type", offset = 1, bytes = 1, proto = ProtoField.uint8("switchsum.type", "Type", base.HEX, TYPES, nil, "packet type, see packet_types") },
    { name = "job", offset = 2, bytes = 2, proto = ProtoField.uint16("switchsum.job", "Job", base.DEC, nil, nil, "job id given by the controller") },
    { name = "epoch", offset = 4, bytes = 4, proto = ProtoField.uint32("switchsum.epoch", "Epoch", base.DEC, nil, nil, "job epoch; a restarted job gets a larger one") },
    { name = "slot", offset = 8, bytes = 2, proto = ProtoField.uint16("switchsum.slot", "Slot", base.DEC, nil, nil, "slot, relative to the job's range") },
    { name = "exponent", offset = 10, bytes = 2, proto = ProtoField.uint16("switchsum.exponent", "Exponent", base.HEX, nil, nil, "code proposed for the slot's next chunk (out), agreed maximum (back)") },
    { name = "phase", offset = 12, bytes = 4, proto = ProtoField.uint32("switchsum.phase", "Phase", base.DEC, nil, nil, "round of this slot, 32-bit serial arithmetic (RFC 1982)") },
    { name = "tag", offset = 16, bytes = 4, proto = ProtoField.uint32("switchsum.tag", "Tag", base.HEX, nil, nil, "identifies collective and round; MISMATCH: the row's tag; STATUS: the row's bitmap") },
    { name = "worker", offset = 20, bytes = 1, proto = ProtoField.uint8("switchsum.worker", "Worker", base.DEC, nil, nil, "worker index; checked against the switch's own table, never believed") },
    { name = "flags", offset = 21, bytes = 1, proto = ProtoField.uint8("switchsum.flags", "Flags", base.HEX, nil, nil, "see flags") },
    { name = "reserved", offset = 22, bytes = 2, proto = ProtoField.uint16("switchsum.reserved", "Reserved", base.HEX, nil, nil, "sent as zero") },
}
local HEADER_AT = { version = 0, type = 1, job = 2, epoch = 4, slot = 8, exponent = 10, phase = 12, tag = 16, worker = 20, flags = 21, reserved = 22 }
local FLAGS = {
    { name = "WANT_STATUS", mask = 0x01, proto = ProtoField.bool("switchsum.flags.want_status", "WANT_STATUS", 8, nil, 0x01, "host: if this is a duplicate in a filling slot, tell me who is there") },
    { name = "REPAIR", mask = 0x02, proto = ProtoField.bool("switchsum.flags.repair", "REPAIR", 8, nil, 0x02, "switch: this answer repeats a stored result (unicast)") },
}

local values_field = ProtoField.bytes("switchsum.values", "Values")
local value_field = ProtoField.uint32("switchsum.value", "Lane", base.DEC, nil, nil, "unsigned lane, as it travels")
local count_field = ProtoField.uint32("switchsum.count", "Number of values")

local fields = { values_field, value_field, count_field }
for _, list in ipairs({ HEADER, FLAGS }) do
    for _, item in ipairs(list) do
        fields[#fields + 1] = item.proto
    end
end
switchsum.fields = fields

local function problem(name, text, group, severity)
    return ProtoExpert.new("switchsum." .. name, text, group, severity)
end
local wrong_version = problem("wrong_version", "Wrong version", expert.group.PROTOCOL, expert.severity.ERROR)
local truncated = problem("truncated", "Truncated header", expert.group.MALFORMED, expert.severity.ERROR)
local odd_length = problem("odd_length", "Values cut in the middle", expert.group.MALFORMED, expert.severity.ERROR)
local unknown_type = problem("unknown_type", "Unknown type", expert.group.PROTOCOL, expert.severity.WARN)
local wrong_count = problem("wrong_count", "Wrong number of values", expert.group.PROTOCOL, expert.severity.WARN)
local reserved_set = problem("reserved_set", "Reserved bits are set", expert.group.PROTOCOL, expert.severity.WARN)
switchsum.experts = { wrong_version, truncated, odd_length, unknown_type, wrong_count, reserved_set }

-- Powers of two that a double can have; a code beyond them is no block of floats, so it is not shown as one.
local FLOAT_EXPONENT_MIN, FLOAT_EXPONENT_MAX = -1074, 1024

-- Arithmetic, since Lua's operators on bits differ between the Lua 5.2 of Wireshark 3.6 and the Lua 5.4 of later ones.
local function has_bit(number, mask)
    return math.floor(number / mask) % 2 == 1
end

local function describe_exponent(item, code)
    local power = code - EXPONENT_BIAS
    if EXPONENTS[code] then
        item:append_text(string.format(" (%s)", EXPONENTS[code]))
    elseif power >= FLOAT_EXPONENT_MIN and power <= FLOAT_EXPONENT_MAX then
        item:append_text(string.format(" (2^%d)", power))
    end
end

local function workers_in(bitmap)
    local workers = {}
    for i = 0, 31 do
        if has_bit(bitmap, 2 ^ i) then
            workers[#workers + 1] = tostring(i)
        end
    end
    return #workers > 0 and table.concat(workers, ", ") or "none"
end

-- As many fields of the header as were captured whole; returns their numbers by name.
local function add_header(tvb, tree)
    local header = {}
    for _, field in ipairs(HEADER) do
        if field.offset + field.bytes <= tvb:captured_len() then
            local range = tvb:range(field.offset, field.bytes)
            local number = range:uint()
            local item = tree:add(field.proto, range)
            header[field.name] = number
            if field.name == "exponent" then
                describe_exponent(item, number)
            elseif field.name == "tag" and TYPES[header.type] == "STATUS" then
                item:append_text(string.format(" (workers in the row: %s)", workers_in(number)))
            elseif field.name == "flags" then
                for _, flag in ipairs(FLAGS) do
                    item:add(flag.proto, range)
                end
            elseif field.name == "reserved" and number ~= 0 then
                item:add_proto_expert_info(reserved_set)
            end
        end
    end
    return header
end

local function add_values(tvb, tree, kind)
    local bytes = tvb:reported_len() - HEADER_BYTES
    local captured = tvb:captured_len() - HEADER_BYTES
    local whole = math.floor(bytes / 4)
    tree:add(count_field, whole):set_generated()
    if TYPES[kind] and CARRIES_VALUES[kind] and not ELEMENTS[whole] then
        tree:add_proto_expert_info(wrong_count, string.format("number of values: %d; a switch program takes %s", whole, ELEMENTS_TEXT))
    elseif TYPES[kind] and not CARRIES_VALUES[kind] and bytes > 0 then
        tree:add_proto_expert_info(wrong_count, string.format("bytes after a header that travels alone: %d", bytes))
    end
    if captured > 0 then
        local branch = tree:add(values_field, tvb:range(HEADER_BYTES, captured))
        branch:set_text(string.format("Values: %d lanes", whole))
        -- One item a lane, no more than a sound packet has, and only if somebody looks at this packet or a filter asks: Wireshark
        -- fills the packet list without.
        if tree:referenced(value_field) then
            for i = 0, math.min(math.floor(captured / 4), ELEMENTS_MAX) - 1 do
                local range = tvb:range(HEADER_BYTES + 4 * i, 4)
                branch:add(value_field, range):set_text(string.format("Lane %d: %d", i, range:uint()))
            end
        end
    end
    if bytes % 4 ~= 0 then
        tree:add_proto_expert_info(odd_length, string.format("bytes after the last whole value: %d", bytes % 4))
    end
end

local function info_of(header)
    local text = string.format(
        "%s job %d epoch %d worker %d slot %d phase %d",
        TYPES[header.type] or string.format("type 0x%02x", header.type),
        header.job, header.epoch, header.worker, header.slot, header.phase
    )
    for _, flag in ipairs(FLAGS) do
        text = text .. (has_bit(header.flags, flag.mask) and " " .. flag.name or "")
    end
    if TYPES[header.type] == "STATUS" then
        text = text .. " has workers " .. workers_in(header.tag)
    end
    return text
end

-- Dissects one packet; returns the text for the info column.
local function dissect_packet(tvb, root)
    local tree = root:add(switchsum, tvb:range())
    local captured = tvb:captured_len()
    local version = captured > 0 and tvb:range(0, 1):uint() or WIRE_VERSION
    if version ~= WIRE_VERSION then
        -- Another version may have laid out all else differently: what would be shown might be wrong.
        local text = string.format("wire version 0x%02x; this dissector reads 0x%02x", version, WIRE_VERSION)
        tree:add(HEADER[1].proto, tvb:range(0, 1))
        tree:add_proto_expert_info(wrong_version, text)
        return text
    end
    local header = add_header(tvb, tree)
    if captured < HEADER_BYTES then
        local cause = tvb:reported_len() < HEADER_BYTES and "truncated header" or "header cut by the capture's length limit"
        local text = string.format("%s: %d of %d bytes", cause, captured, HEADER_BYTES)
        tree:add_proto_expert_info(truncated, text)
        return text
    end
    local info = info_of(header)
    tree:append_text(", " .. info)
    if not TYPES[header.type] then
        tree:add_proto_expert_info(unknown_type, string.format("type 0x%02x", header.type))
    end
    add_values(tvb, tree, header.type)
    return info
end

-- Whether a packet of `bytes` bytes begins at `offset` as a host or a switch of this version sends it. Of random bytes with a
-- fitting length one in 10^9 passes.
local function is_sound(tvb, offset, bytes)
    if offset + HEADER_BYTES > tvb:captured_len() or tvb:range(offset, 1):uint() ~= WIRE_VERSION then
        return false
    end
    local kind = tvb:range(offset + HEADER_AT.type, 1):uint()
    local rest = bytes - HEADER_BYTES
    local length_fits = rest == 0
    if CARRIES_VALUES[kind] then
        length_fits = ELEMENTS[rest / 4] ~= nil
    end
    return TYPES[kind] ~= nil and length_fits and tvb:range(offset + HEADER_AT.reserved, 2):uint() == 0
end

-- The kernel gives captures at a host many datagrams as one, before it cuts them up (UDP_SEGMENT) or after it joined them
-- (UDP_GRO): all of one length, but the last may be shorter, and of one job, since they are of one pair of sockets. Returns that
-- length, or nil if this is not so.
local function joined_length(tvb)
    local total = tvb:reported_len()
    local function same(name, offset, bytes)
        return tvb:range(offset + HEADER_AT[name], bytes):uint() == tvb:range(HEADER_AT[name], bytes):uint()
    end
    for _, length in ipairs(LENGTHS) do
        local sound = length < total
        for offset = 0, total - 1, length do
            sound = sound and is_sound(tvb, offset, math.min(length, total - offset))
            sound = sound and same("job", offset, 2) and same("epoch", offset, 4)
        end
        if sound then
            return length
        end
    end
    return nil
end

function switchsum.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "SwitchSum"
    local total = tvb:reported_len()
    local length = joined_length(tvb)
    if length then
        local info
        for offset = 0, total - 1, length do
            info = dissect_packet(tvb:range(offset, math.min(length, total - offset)):tvb(), root)
        end
        pinfo.cols.info = string.format("%d packets in one, the last: %s", math.ceil(total / length), info)
    else
        pinfo.cols.info = dissect_packet(tvb, root)
    end
    return tvb:captured_len()
end

-- An embedded switch takes datagrams on loopback ports that the kernel chose: those are known by what they hold.
local function looks_like_ours(tvb, pinfo, root)
    if is_sound(tvb, 0, tvb:reported_len()) or joined_length(tvb) then
        switchsum.dissector(tvb, pinfo, root)
        return true
    end
    return false
end

DissectorTable.get("udp.port"):add(SERVICE_PORT, switchsum)
switchsum:register_heuristic("udp", looks_like_ours)
