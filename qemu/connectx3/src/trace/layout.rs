//! Names of the fields of mailboxes, by command. Bits outside of all fields are shown by offset, so nothing
//! is omitted.

use crate::device::layout::{
    Field, bits, config_dev, cq_context, eq_context, init_hca, set_port_general, set_port_queues,
    srq_context, word,
};
use crate::device::{Command, Mailbox};

/// A field with its name and its kind.
#[derive(Clone, Copy)]
struct Named {
    name: &'static str,
    field: Field,
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
const fn v(name: &'static str, field: Field) -> Named {
    Named { name, field, kind: Kind::Meant }
}

/// Returns a field with an address or number that the driver chooses.
const fn p(name: &'static str, field: Field) -> Named {
    Named { name, field, kind: Kind::Picked }
}

/// Returns a field that distinguishes uses of the command.
const fn k(name: &'static str, field: Field) -> Named {
    Named { name, field, kind: Kind::Telling }
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
        for Named { name, field, kind } in layout.iter().filter(|named| named.field.word() == word) {
            let value = field.of(rest);
            rest &= !field.mask();
            if value != 0 {
                found.push(((*name).to_owned(), value, *kind));
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
fn layout(command: &Command, mailbox: &Mailbox) -> Option<&'static [Named]> {
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

const INIT_HCA: &[Named] = &[
    v("version", init_hca::VERSION),
    v("cache_line", init_hca::CACHE_LINE),
    v("flags", init_hca::FLAGS),
    v("flags2", init_hca::FLAGS2),
    p("qpc_base_high", init_hca::QPC_BASE_HIGH),
    p("qpc_base", init_hca::QPC_BASE),
    v("log_qps", init_hca::LOG_QPS),
    p("srqc_base_high", init_hca::SRQC_BASE_HIGH),
    p("srqc_base", init_hca::SRQC_BASE),
    v("log_srqs", init_hca::LOG_SRQS),
    p("cqc_base_high", init_hca::CQC_BASE_HIGH),
    p("cqc_base", init_hca::CQC_BASE),
    v("log_cqs", init_hca::LOG_CQS),
    v("entry_sizes", init_hca::ENTRY_SIZES),
    p("altc_base_high", init_hca::ALTC_BASE_HIGH),
    p("altc_base", init_hca::ALTC_BASE),
    p("auxc_base_high", init_hca::AUXC_BASE_HIGH),
    p("auxc_base", init_hca::AUXC_BASE),
    p("eqc_base_high", init_hca::EQC_BASE_HIGH),
    p("eqc_base", init_hca::EQC_BASE),
    v("log_eqs", init_hca::LOG_EQS),
    v("system_eqs", init_hca::SYSTEM_EQS),
    p("rdmarc_base_high", init_hca::RDMARC_BASE_HIGH),
    p("rdmarc_base", init_hca::RDMARC_BASE),
    v("log_rdmarc", init_hca::LOG_RDMARC),
    p("mcg_base_high", init_hca::MCG_BASE_HIGH),
    p("mcg_base", init_hca::MCG_BASE),
    v("log_mcg_entry", init_hca::LOG_MCG_ENTRY),
    v("log_mcg_hash", init_hca::LOG_MCG_HASH),
    v("unicast_steering", init_hca::UNICAST_STEERING),
    v("log_mcgs", init_hca::LOG_MCGS),
    p("dmpt_base_high", init_hca::DMPT_BASE_HIGH),
    p("dmpt_base", init_hca::DMPT_BASE),
    v("windows", init_hca::WINDOWS),
    v("log_mpts", init_hca::LOG_MPTS),
    p("mtt_base_high", init_hca::MTT_BASE_HIGH),
    p("mtt_base", init_hca::MTT_BASE),
    p("cmpt_base_high", init_hca::CMPT_BASE_HIGH),
    p("cmpt_base", init_hca::CMPT_BASE),
    v("log_uars", init_hca::LOG_UARS),
    v("log_uar_page", init_hca::LOG_UAR_PAGE),
    p("flow_base_high", init_hca::FLOW_BASE_HIGH),
    p("flow_base", init_hca::FLOW_BASE),
    v("log_flow_entry", init_hca::LOG_FLOW_ENTRY),
    v("log_flows", init_hca::LOG_FLOWS),
    v("flow_ethernet", init_hca::FLOW_ETHERNET),
    v("flow_infiniband", init_hca::FLOW_INFINIBAND),
];

const SET_PORT_INFINIBAND: &[Named] = &[
    v("set", word(0x00)),
    v("capabilities", word(0x04)),
    v("max_pkeys", bits(0x28, 31, 16)),
    v("max_gids", bits(0x28, 15, 0)),
];

const SET_PORT_GENERAL: &[Named] = &[
    k("flags2", set_port_general::FLAGS2),
    k("flags", set_port_general::FLAGS),
    v("roce_mode", set_port_general::ROCE_MODE),
    v("mtu", set_port_general::MTU),
    v("pptx", set_port_general::PPTX),
    v("pfctx", set_port_general::PFCTX),
    v("pprx", set_port_general::PPRX),
    v("pfcrx", set_port_general::PFCRX),
    v("user_mtu", set_port_general::USER_MTU),
    p("user_mac_high", set_port_general::USER_MAC_HIGH),
    p("user_mac", set_port_general::USER_MAC),
];

const SET_PORT_QUEUES: &[Named] = &[
    p("base_qpn", set_port_queues::BASE_QPN),
    v("log_macs", set_port_queues::LOG_MACS),
    v("log_vlans", set_port_queues::LOG_VLANS),
    v("log_priorities", set_port_queues::LOG_PRIORITIES),
    v("no_vlan", set_port_queues::NO_VLAN),
    v("vlan_miss", set_port_queues::VLAN_MISS),
    v("promiscuous", set_port_queues::PROMISCUOUS),
    p("promiscuous_qpn", set_port_queues::PROMISCUOUS_QPN),
    v("multicast_mode", set_port_queues::MULTICAST_MODE),
    p("multicast_qpn", set_port_queues::MULTICAST_QPN),
];

const MPT: &[Named] = &[
    v("context_status", bits(0x00, 31, 28)),
    k("flags", bits(0x00, 27, 0)),
    p("key", word(0x08)),
    v("pd_flags", bits(0x0c, 31, 24)),
    p("pd", bits(0x0c, 23, 0)),
    p("start_high", word(0x10)),
    p("start", word(0x14)),
    p("length_high", word(0x18)),
    p("length", word(0x1c)),
    p("mtt_high", word(0x2c)),
    p("mtt", word(0x30)),
    p("mtt_size", word(0x34)),
    p("log_page", word(0x38)),
    p("first_byte", word(0x3c)),
];

const EQ: &[Named] = &[
    v("context_status", eq_context::CONTEXT_STATUS),
    v("flags", eq_context::FLAGS),
    v("state", eq_context::STATE),
    p("page_offset", eq_context::PAGE_OFFSET),
    v("log_entries", eq_context::LOG_ENTRIES),
    v("period", eq_context::PERIOD),
    v("count", eq_context::COUNT),
    p("vector", eq_context::VECTOR),
    v("log_page", eq_context::LOG_PAGE),
    p("mtt_high", eq_context::MTT_HIGH),
    p("mtt", eq_context::MTT),
];

const CQ: &[Named] = &[
    v("context_status", cq_context::CONTEXT_STATUS),
    v("flags", cq_context::FLAGS),
    v("state", cq_context::STATE),
    p("page_offset", cq_context::PAGE_OFFSET),
    v("log_entries", cq_context::LOG_ENTRIES),
    p("uar", cq_context::UAR),
    v("period", cq_context::PERIOD),
    v("count", cq_context::COUNT),
    p("eqn", cq_context::EQN),
    v("log_page", cq_context::LOG_PAGE),
    p("mtt_high", cq_context::MTT_HIGH),
    p("mtt", cq_context::MTT),
    p("record_high", cq_context::RECORD_HIGH),
    p("record", cq_context::RECORD),
];

const SRQ: &[Named] = &[
    v("state", srq_context::STATE),
    v("log_entries", srq_context::LOG_ENTRIES),
    p("srqn", srq_context::SRQN),
    v("log_stride", srq_context::LOG_STRIDE),
    v("xrc_domain", srq_context::XRC_DOMAIN),
    p("page_offset", srq_context::PAGE_OFFSET),
    p("cqn", srq_context::CQN),
    v("log_page", srq_context::LOG_PAGE),
    p("mtt_high", srq_context::MTT_HIGH),
    p("mtt", srq_context::MTT),
    p("pd", srq_context::PD),
    v("limit", srq_context::LIMIT),
    p("record_high", srq_context::RECORD_HIGH),
    p("record", srq_context::RECORD),
];

const CONFIG_DEV: &[Named] = &[
    v("update", config_dev::UPDATE),
    v("vxlan_port", config_dev::VXLAN_PORT),
    v("roce_port", config_dev::ROCE_PORT),
    v("roce_flags", config_dev::ROCE_FLAGS),
];

const UPDATE_QP: &[Named] = &[
    v("qp_mask_high", word(0x00)),
    v("qp_mask", word(0x04)),
    v("path_mask_high", word(0x08)),
    v("path_mask", word(0x0c)),
    v("source_mac", bits(0x3c, 22, 16)),
    v("keep_vlan", bits(0xe0, 30, 30)),
];

const MAD: &[Named] =
    &[k("class", bits(0x00, 23, 16)), k("method", bits(0x00, 7, 0)), k("attribute", bits(0x10, 31, 16))];

const GROUP: &[Named] =
    &[p("next", word(0x00)), v("protocol", bits(0x04, 31, 30)), p("members", bits(0x04, 23, 0))];

const REGISTER: &[Named] = &[k("register", bits(0x04, 31, 16)), v("method", bits(0x04, 15, 8))];

const RULE: &[Named] = &[
    v("priority", bits(0x00, 31, 16)),
    k("type", bits(0x00, 15, 8)),
    k("flags", bits(0x00, 7, 0)),
    v("port", bits(0x04, 7, 0)),
    p("qpn", bits(0x08, 23, 0)),
];

/// Fields of a queue pair before its path.
const QP_START: [Named; 16] = [
    v("optional", word(0x00)),
    v("state", bits(0x08, 31, 28)),
    k("service", bits(0x08, 23, 16)),
    k("spreads", bits(0x08, 13, 13)),
    v("migration", bits(0x08, 12, 11)),
    p("pd", bits(0x0c, 23, 0)),
    v("mtu", bits(0x10, 31, 29)),
    v("log_message", bits(0x10, 28, 24)),
    v("log_receives", bits(0x10, 22, 19)),
    v("receive_stride", bits(0x10, 18, 16)),
    v("log_sends", bits(0x10, 14, 11)),
    v("send_stride", bits(0x10, 10, 8)),
    v("roce_mode", bits(0x10, 7, 6)),
    v("reserved_lkey", bits(0x10, 4, 4)),
    p("uar", bits(0x14, 23, 0)),
    p("local_qpn", bits(0x18, 23, 0)),
];

/// Fields of the path that receive side scaling does not reuse.
const QP_PATH: [Named; 16] = [
    p("remote_qpn", bits(0x1c, 23, 0)),
    v("path_flags", bits(0x20, 31, 24)),
    v("path_control", bits(0x20, 23, 16)),
    v("ignores_pkey", bits(0x20, 15, 8)),
    v("pkey_index", bits(0x20, 7, 0)),
    p("counter", bits(0x24, 31, 24)),
    v("grh", bits(0x24, 23, 23)),
    p("source_mac", bits(0x24, 22, 16)),
    p("remote_lid", bits(0x24, 15, 0)),
    v("ack_timeout", bits(0x28, 31, 27)),
    v("link_type", bits(0x28, 26, 24)),
    v("source_gid", bits(0x28, 23, 16)),
    v("static_rate", bits(0x28, 15, 8)),
    v("hop_limit", bits(0x28, 7, 0)),
    v("traffic_class", bits(0x2c, 27, 20)),
    p("flow_label", bits(0x2c, 19, 0)),
];

const QP_PEER: [Named; 9] = [
    p("remote_gid_0", word(0x30)),
    p("remote_gid_1", word(0x34)),
    p("remote_gid_2", word(0x38)),
    p("remote_gid_3", word(0x3c)),
    v("sched_queue", bits(0x40, 31, 24)),
    v("vlan_index", bits(0x40, 23, 16)),
    v("forces", bits(0x40, 15, 0)),
    p("remote_mac_high", bits(0x44, 15, 0)),
    p("remote_mac", word(0x48)),
];

const QP_SPREAD: [Named; 17] = [
    v("sched_queue", bits(0x40, 31, 24)),
    v("log_spread", bits(0x44, 31, 24)),
    p("spread_base", bits(0x44, 23, 0)),
    p("spread_default", bits(0x48, 23, 0)),
    v("hash_function", bits(0x4c, 15, 8)),
    v("hash_of", bits(0x4c, 7, 0)),
    p("key_0", word(0x50)),
    p("key_1", word(0x54)),
    p("key_2", word(0x58)),
    p("key_3", word(0x5c)),
    p("key_4", word(0x60)),
    p("key_5", word(0x64)),
    p("key_6", word(0x68)),
    p("key_7", word(0x6c)),
    p("key_8", word(0x70)),
    p("key_9", word(0x74)),
    p("spread_base_udp", word(0x78)),
];

const QP_END: [Named; 30] = [
    v("log_ack_requests", bits(0x78, 31, 28)),
    v("requester_reads", bits(0x78, 23, 21)),
    v("retries", bits(0x78, 18, 16)),
    v("rnr_retries", bits(0x78, 15, 13)),
    v("fast_register", bits(0x78, 11, 11)),
    p("send_psn", bits(0x80, 23, 0)),
    p("send_cqn", bits(0x84, 23, 0)),
    p("udp_source", bits(0x88, 31, 16)),
    v("responder_reads", bits(0x98, 23, 21)),
    v("peer_reads", bits(0x98, 15, 15)),
    v("peer_writes", bits(0x98, 14, 14)),
    v("peer_atomics", bits(0x98, 13, 13)),
    p("page_offset", bits(0x98, 11, 6)),
    v("receives_from_srq", bits(0x98, 4, 4)),
    v("physical_port", bits(0x98, 3, 3)),
    v("rnr_timer", bits(0x9c, 28, 24)),
    p("receive_psn", bits(0x9c, 23, 0)),
    p("xrc_domain", bits(0xa0, 23, 0)),
    p("receive_cqn", bits(0xa4, 23, 0)),
    p("record_high", word(0xa8)),
    p("record", word(0xac)),
    v("q_key", word(0xb0)),
    v("uses_srq", bits(0xb4, 24, 24)),
    p("srqn", bits(0xb4, 23, 0)),
    v("keep_vlan", bits(0xc8, 30, 30)),
    v("keep_fcs", bits(0xc8, 29, 29)),
    v("inline_receive", bits(0xc8, 25, 25)),
    v("log_page", bits(0xd0, 29, 24)),
    p("mtt_high", bits(0xd0, 7, 0)),
    p("mtt", word(0xd4)),
];

const QP: &[Named] = &joined::<71>([&QP_START, &QP_PATH, &QP_PEER, &QP_END]);
const QP_RSS: &[Named] = &joined::<79>([&QP_START, &QP_PATH, &QP_SPREAD, &QP_END]);

/// Joins several lists.
const fn joined<const N: usize>(parts: [&[Named]; 4]) -> [Named; N] {
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
