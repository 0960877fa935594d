//! Names of the fields of mailboxes, by command. Bits outside of all fields are shown by offset, so nothing
//! is omitted.

use crate::device::{Command, Mailbox};

/// A field: its name, the offset of its 32-bit word, its highest and lowest bit there, and its kind.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    word: usize,
    high: u8,
    low: u8,
    kind: Kind,
}

/// The kind of a field's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The value has a meaning of its own.
    Meant,
    /// The value distinguishes uses of the command.
    Telling,
    /// The driver chooses the value: an address, or the number of an object.
    Picked,
    /// The value is part of a list.
    Listed,
}

/// Returns a field whose value has a meaning.
const fn v(name: &'static str, word: usize, high: u8, low: u8) -> Field {
    Field { name, word, high, low, kind: Kind::Meant }
}

/// Returns a field of a whole word whose value has a meaning.
const fn w(name: &'static str, word: usize) -> Field {
    v(name, word, 31, 0)
}

/// Returns a field with an address or number that the driver chooses.
const fn p(name: &'static str, word: usize, high: u8, low: u8) -> Field {
    Field { name, word, high, low, kind: Kind::Picked }
}

/// Returns a field that distinguishes uses of the command.
const fn k(name: &'static str, word: usize, high: u8, low: u8) -> Field {
    Field { name, word, high, low, kind: Kind::Telling }
}

/// Returns a field of a whole word with an address or number that the driver chooses.
const fn a(name: &'static str, word: usize) -> Field {
    p(name, word, 31, 0)
}

impl Field {
    const fn mask(self) -> u32 {
        (u32::MAX >> (31 - self.high)) & (u32::MAX << self.low)
    }
}

/// The length of the decoded part of a mailbox, in bytes.
const LOOKED_AT: usize = 0x200;

/// Returns the names and values of the nonzero fields of a mailbox.
#[must_use]
pub fn fields(command: &Command, mailbox: &Mailbox) -> Vec<(String, u32, Kind)> {
    let Some(layout) = layout(command, mailbox) else { return Vec::new() };
    let mut found = Vec::new();
    for word in (0..LOOKED_AT).step_by(4) {
        let mut rest = mailbox.u32(word);
        for field in layout.iter().filter(|field| field.word == word) {
            let value = (rest & field.mask()) >> field.low;
            rest &= !field.mask();
            if value != 0 {
                found.push((field.name.to_owned(), value, field.kind));
            }
        }
        if rest != 0 {
            let kind = if is_list(command) { Kind::Listed } else { Kind::Meant };
            found.push((format!("word_{word:#05x}"), rest, kind));
        }
    }
    found
}

/// Returns whether a command has an input mailbox.
#[must_use]
pub fn takes_mailbox(command: &Command) -> bool {
    layout(command, &Mailbox::default()).is_some()
}

/// Returns whether a mailbox holds a list of addresses or members instead of fields.
const fn is_list(command: &Command) -> bool {
    const SET_PORT: u16 = 0x00c;
    const TABLES: [u32; 4] = [2, 3, 5, 0xd];
    let part = command.in_mod >> 8 & 0xff;
    let table = command.opcode == SET_PORT
        && command.op_mod == 1
        && (part == TABLES[0] || part == TABLES[1] || part == TABLES[2] || part == TABLES[3]);
    table
        || matches!(
            command.opcode,
            0xfff | 0xffa | 0xffc | 0x026 | 0x027 | 0x024 | 0x047 | 0x011 | 0x03b | 0x065
        )
}

/// Returns the layout of a command's input mailbox, or `None` if it has none.
fn layout(command: &Command, mailbox: &Mailbox) -> Option<&'static [Field]> {
    const SPREADS: u32 = 1 << 13;
    Some(match (command.opcode, command.op_mod) {
        (0x007, _) => INIT_HCA,
        (0x00c, 0) => SET_PORT_INFINIBAND,
        (0x00c, 1) if command.in_mod >> 8 & 0xff == 0 => SET_PORT_GENERAL,
        (0x00c, 1) if command.in_mod >> 8 & 0xff == 1 => SET_PORT_QUEUES,
        (0x00d, _) => MPT,
        (0x013, _) => EQ,
        (0x016 | 0x02c, _) => CQ,
        (0x019..=0x01d | 0x01f | 0x020 | 0x02d | 0x038, _) => {
            if mailbox.u32(0x08) & SPREADS == 0 {
                QP
            } else {
                QP_RSS
            }
        }
        (0x035, _) => SRQ,
        (0x03a, 0) => CONFIG_DEV,
        (0x061, _) => UPDATE_QP,
        (0x024, _) => MAD,
        (0x026, _) => GROUP,
        (0x03b, _) => REGISTER,
        (0x065, _) => RULE,
        (0x034, 0) => &[],
        (0x00c | 0x011 | 0x027 | 0x047 | 0xffa | 0xffc | 0xfff, _) => &[],
        _ => return None,
    })
}

const INIT_HCA: &[Field] = &[
    v("version", 0x000, 31, 24),
    v("cache_line", 0x00c, 15, 8),
    w("flags", 0x014),
    w("flags2", 0x018),
    a("qpc_base_high", 0x030),
    p("qpc_base", 0x034, 31, 5),
    v("log_qps", 0x034, 4, 0),
    a("srqc_base_high", 0x048),
    p("srqc_base", 0x04c, 31, 5),
    v("log_srqs", 0x04c, 4, 0),
    a("cqc_base_high", 0x050),
    p("cqc_base", 0x054, 31, 5),
    v("log_cqs", 0x054, 4, 0),
    w("entry_sizes", 0x058),
    a("altc_base_high", 0x060),
    a("altc_base", 0x064),
    a("auxc_base_high", 0x070),
    a("auxc_base", 0x074),
    a("eqc_base_high", 0x080),
    p("eqc_base", 0x084, 31, 5),
    v("log_eqs", 0x084, 4, 0),
    v("system_eqs", 0x088, 11, 0),
    a("rdmarc_base_high", 0x090),
    p("rdmarc_base", 0x094, 31, 3),
    v("log_rdmarc", 0x094, 2, 0),
    a("mcg_base_high", 0x0c0),
    a("mcg_base", 0x0c4),
    v("log_mcg_entry", 0x0d0, 7, 0),
    v("log_mcg_hash", 0x0d4, 7, 0),
    v("unicast_steering", 0x0d8, 27, 27),
    v("log_mcgs", 0x0d8, 7, 0),
    a("dmpt_base_high", 0x0f0),
    a("dmpt_base", 0x0f4),
    v("windows", 0x0f8, 31, 31),
    v("log_mpts", 0x0f8, 5, 0),
    a("mtt_base_high", 0x100),
    a("mtt_base", 0x104),
    a("cmpt_base_high", 0x108),
    a("cmpt_base", 0x10c),
    v("log_uars", 0x128, 11, 8),
    v("log_uar_page", 0x128, 7, 0),
    a("flow_base_high", 0x1d0),
    a("flow_base", 0x1d4),
    v("log_flow_entry", 0x1e0, 7, 0),
    v("log_flows", 0x1e8, 7, 0),
    w("flow_ethernet", 0x1f0),
    w("flow_infiniband", 0x1f4),
];

const SET_PORT_INFINIBAND: &[Field] =
    &[w("set", 0x00), w("capabilities", 0x04), v("max_pkeys", 0x28, 31, 16), v("max_gids", 0x28, 15, 0)];

const SET_PORT_GENERAL: &[Field] = &[
    k("flags2", 0x00, 15, 8),
    k("flags", 0x00, 7, 0),
    v("roce_mode", 0x04, 31, 28),
    v("mtu", 0x04, 15, 0),
    v("pptx", 0x08, 31, 24),
    v("pfctx", 0x08, 23, 16),
    v("pprx", 0x0c, 31, 24),
    v("pfcrx", 0x0c, 23, 16),
    v("user_mtu", 0x18, 15, 0),
    p("user_mac_high", 0x1c, 15, 0),
    a("user_mac", 0x20),
];

const SET_PORT_QUEUES: &[Field] = &[
    a("base_qpn", 0x00),
    v("log_macs", 0x04, 23, 16),
    v("log_vlans", 0x04, 15, 8),
    v("log_priorities", 0x04, 7, 0),
    v("no_vlan", 0x0c, 23, 16),
    v("vlan_miss", 0x0c, 7, 0),
    v("promiscuous", 0x14, 31, 31),
    p("promiscuous_qpn", 0x14, 23, 0),
    v("multicast_mode", 0x18, 31, 30),
    p("multicast_qpn", 0x18, 23, 0),
];

const MPT: &[Field] = &[
    v("context_status", 0x00, 31, 28),
    k("flags", 0x00, 27, 0),
    a("key", 0x08),
    v("pd_flags", 0x0c, 31, 24),
    p("pd", 0x0c, 23, 0),
    a("start_high", 0x10),
    a("start", 0x14),
    a("length_high", 0x18),
    a("length", 0x1c),
    a("mtt_high", 0x2c),
    a("mtt", 0x30),
    a("mtt_size", 0x34),
    a("log_page", 0x38),
    a("first_byte", 0x3c),
];

const EQ: &[Field] = &[
    v("context_status", 0x00, 31, 28),
    v("flags", 0x00, 27, 12),
    v("state", 0x00, 11, 8),
    p("page_offset", 0x08, 11, 5),
    v("log_entries", 0x0c, 28, 24),
    v("period", 0x10, 31, 16),
    v("count", 0x10, 15, 0),
    p("vector", 0x14, 9, 0),
    v("log_page", 0x18, 29, 24),
    p("mtt_high", 0x18, 7, 0),
    a("mtt", 0x1c),
];

const CQ: &[Field] = &[
    v("context_status", 0x00, 31, 28),
    v("flags", 0x00, 27, 12),
    v("state", 0x00, 11, 8),
    p("page_offset", 0x08, 11, 5),
    v("log_entries", 0x0c, 28, 24),
    p("uar", 0x0c, 23, 0),
    v("period", 0x10, 31, 16),
    v("count", 0x10, 15, 0),
    p("eqn", 0x14, 8, 0),
    v("log_page", 0x18, 29, 24),
    p("mtt_high", 0x18, 7, 0),
    a("mtt", 0x1c),
    a("record_high", 0x38),
    a("record", 0x3c),
];

const SRQ: &[Field] = &[
    v("state", 0x00, 31, 28),
    v("log_entries", 0x00, 27, 24),
    p("srqn", 0x00, 23, 0),
    v("log_stride", 0x04, 26, 24),
    v("xrc_domain", 0x04, 15, 0),
    p("page_offset", 0x08, 31, 26),
    p("cqn", 0x08, 23, 0),
    v("log_page", 0x10, 29, 24),
    p("mtt_high", 0x10, 7, 0),
    a("mtt", 0x14),
    a("pd", 0x18),
    v("limit", 0x1c, 31, 16),
    a("record_high", 0x28),
    a("record", 0x2c),
];

const CONFIG_DEV: &[Field] =
    &[w("update", 0x00), v("vxlan_port", 0x10, 15, 0), v("roce_port", 0x14, 15, 0), w("roce_flags", 0x18)];

const UPDATE_QP: &[Field] = &[
    w("qp_mask_high", 0x00),
    w("qp_mask", 0x04),
    w("path_mask_high", 0x08),
    w("path_mask", 0x0c),
    v("source_mac", 0x3c, 22, 16),
    v("keep_vlan", 0xe0, 30, 30),
];

const MAD: &[Field] = &[k("class", 0x00, 23, 16), k("method", 0x00, 7, 0), k("attribute", 0x10, 31, 16)];

const GROUP: &[Field] = &[a("next", 0x00), v("protocol", 0x04, 31, 30), p("members", 0x04, 23, 0)];

const REGISTER: &[Field] = &[k("register", 0x04, 31, 16), v("method", 0x04, 15, 8)];

const RULE: &[Field] = &[
    v("priority", 0x00, 31, 16),
    k("type", 0x00, 15, 8),
    k("flags", 0x00, 7, 0),
    v("port", 0x04, 7, 0),
    p("qpn", 0x08, 23, 0),
];

/// Fields of a queue pair before its path.
const QP_START: [Field; 16] = [
    w("optional", 0x00),
    v("state", 0x08, 31, 28),
    k("service", 0x08, 23, 16),
    k("spreads", 0x08, 13, 13),
    v("migration", 0x08, 12, 11),
    p("pd", 0x0c, 23, 0),
    v("mtu", 0x10, 31, 29),
    v("log_message", 0x10, 28, 24),
    v("log_receives", 0x10, 22, 19),
    v("receive_stride", 0x10, 18, 16),
    v("log_sends", 0x10, 14, 11),
    v("send_stride", 0x10, 10, 8),
    v("roce_mode", 0x10, 7, 6),
    v("reserved_lkey", 0x10, 4, 4),
    p("uar", 0x14, 23, 0),
    p("local_qpn", 0x18, 23, 0),
];

/// Fields of the path that receive side scaling does not reuse.
const QP_PATH: [Field; 16] = [
    p("remote_qpn", 0x1c, 23, 0),
    v("path_flags", 0x20, 31, 24),
    v("path_control", 0x20, 23, 16),
    v("ignores_pkey", 0x20, 15, 8),
    v("pkey_index", 0x20, 7, 0),
    p("counter", 0x24, 31, 24),
    v("grh", 0x24, 23, 23),
    p("source_mac", 0x24, 22, 16),
    p("remote_lid", 0x24, 15, 0),
    v("ack_timeout", 0x28, 31, 27),
    v("link_type", 0x28, 26, 24),
    v("source_gid", 0x28, 23, 16),
    v("static_rate", 0x28, 15, 8),
    v("hop_limit", 0x28, 7, 0),
    v("traffic_class", 0x2c, 27, 20),
    p("flow_label", 0x2c, 19, 0),
];

const QP_PEER: [Field; 9] = [
    a("remote_gid_0", 0x30),
    a("remote_gid_1", 0x34),
    a("remote_gid_2", 0x38),
    a("remote_gid_3", 0x3c),
    v("sched_queue", 0x40, 31, 24),
    v("vlan_index", 0x40, 23, 16),
    v("forces", 0x40, 15, 0),
    p("remote_mac_high", 0x44, 15, 0),
    a("remote_mac", 0x48),
];

const QP_SPREAD: [Field; 17] = [
    v("sched_queue", 0x40, 31, 24),
    v("log_spread", 0x44, 31, 24),
    p("spread_base", 0x44, 23, 0),
    p("spread_default", 0x48, 23, 0),
    v("hash_function", 0x4c, 15, 8),
    v("hash_of", 0x4c, 7, 0),
    a("key_0", 0x50),
    a("key_1", 0x54),
    a("key_2", 0x58),
    a("key_3", 0x5c),
    a("key_4", 0x60),
    a("key_5", 0x64),
    a("key_6", 0x68),
    a("key_7", 0x6c),
    a("key_8", 0x70),
    a("key_9", 0x74),
    a("spread_base_udp", 0x78),
];

const QP_END: [Field; 30] = [
    v("log_ack_requests", 0x78, 31, 28),
    v("requester_reads", 0x78, 23, 21),
    v("retries", 0x78, 18, 16),
    v("rnr_retries", 0x78, 15, 13),
    v("fast_register", 0x78, 11, 11),
    p("send_psn", 0x80, 23, 0),
    p("send_cqn", 0x84, 23, 0),
    p("udp_source", 0x88, 31, 16),
    v("responder_reads", 0x98, 23, 21),
    v("peer_reads", 0x98, 15, 15),
    v("peer_writes", 0x98, 14, 14),
    v("peer_atomics", 0x98, 13, 13),
    p("page_offset", 0x98, 11, 6),
    v("receives_from_srq", 0x98, 4, 4),
    v("physical_port", 0x98, 3, 3),
    v("rnr_timer", 0x9c, 28, 24),
    p("receive_psn", 0x9c, 23, 0),
    p("xrc_domain", 0xa0, 23, 0),
    p("receive_cqn", 0xa4, 23, 0),
    a("record_high", 0xa8),
    a("record", 0xac),
    w("q_key", 0xb0),
    v("uses_srq", 0xb4, 24, 24),
    p("srqn", 0xb4, 23, 0),
    v("keep_vlan", 0xc8, 30, 30),
    v("keep_fcs", 0xc8, 29, 29),
    v("inline_receive", 0xc8, 25, 25),
    v("log_page", 0xd0, 29, 24),
    p("mtt_high", 0xd0, 7, 0),
    a("mtt", 0xd4),
];

const QP: &[Field] = &joined::<71>([&QP_START, &QP_PATH, &QP_PEER, &QP_END]);
const QP_RSS: &[Field] = &joined::<79>([&QP_START, &QP_PATH, &QP_SPREAD, &QP_END]);

/// Joins several lists.
const fn joined<const N: usize>(parts: [&[Field]; 4]) -> [Field; N] {
    let mut all = [QP_START[0]; N];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[at] = parts[part][index];
            at += 1;
            index += 1;
        }
        part += 1;
    }
    assert!(at == N, "the length of the list");
    all
}
