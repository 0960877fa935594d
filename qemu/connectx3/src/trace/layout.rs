//! Names of the fields of mailboxes, by command. Bits outside of all fields are shown by offset, so nothing
//! is omitted.

use crate::device::layout::{
    Field, access_register, config_dev, cq_context, eq_context, flow_rule, init_hca, mad, mcg, mpt,
    qp_context, set_port_general, set_port_infiniband, set_port_part as part, set_port_queues, srq_context,
    update_qp,
};
use crate::device::opcode as op;
use crate::device::{Command, Mailbox, Transition};

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
    /// The value has a meaning by itself, such as a size or a flag.
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
pub(super) fn fields(command: &Command, mailbox: &Mailbox) -> Vec<(String, u32, Kind)> {
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
pub(super) fn takes_mailbox(command: &Command) -> bool {
    layout(command, &Mailbox::default()).is_some()
}

/// Returns whether a mailbox holds a list of addresses or members instead of fields.
const fn is_list(command: &Command) -> bool {
    let is_table = matches!(
        command.in_mod >> 8 & 0xff,
        part::MAC_TABLE | part::VLAN_TABLE | part::GID_TABLE | part::ROCE_ADDR
    );
    match command.opcode {
        op::SET_PORT => command.op_mod == 1 && is_table,
        op::MAP_FA | op::MAP_ICM | op::MAP_ICM_AUX | op::WRITE_MTT => true,
        op::WRITE_MCG | op::MGID_HASH | op::QP_FLOW_STEERING_ATTACH => true,
        op::MAD_IFC | op::ACCESS_REG | op::SET_VLAN_FLTR => true,
        _ => false,
    }
}

/// Returns the layout of a command's input mailbox, or `None` if it has none.
fn layout(command: &Command, mailbox: &Mailbox) -> Option<&'static [Named]> {
    if Transition::from_opcode(command.opcode).is_some_and(Transition::has_context) {
        return Some(if mailbox.field(qp_context::SPREADS) == 0 { QP } else { QP_RSS });
    }
    Some(match (command.opcode, command.op_mod) {
        (op::INIT_HCA, _) => INIT_HCA,
        (op::SET_PORT, 0) => SET_PORT_INFINIBAND,
        (op::SET_PORT, 1) if command.in_mod >> 8 & 0xff == part::GENERAL => SET_PORT_GENERAL,
        (op::SET_PORT, 1) if command.in_mod >> 8 & 0xff == part::RQP_CALC => SET_PORT_QUEUES,
        (op::SW2HW_MPT, _) => MPT,
        (op::SW2HW_EQ, _) => EQ,
        (op::SW2HW_CQ | op::MODIFY_CQ, _) => CQ,
        (op::SW2HW_SRQ, _) => SRQ,
        (op::CONFIG_DEV, 0) => CONFIG_DEV,
        (op::UPDATE_QP, _) => UPDATE_QP,
        (op::MAD_IFC, _) => MAD,
        (op::WRITE_MCG, _) => GROUP,
        (op::ACCESS_REG, _) => REGISTER,
        (op::QP_FLOW_STEERING_ATTACH, _) => RULE,
        (op::MOD_STAT_CFG, 0) => &[],
        (op::SET_PORT | op::WRITE_MTT | op::MGID_HASH | op::SET_VLAN_FLTR, _) => &[],
        (op::MAP_ICM | op::MAP_ICM_AUX | op::MAP_FA, _) => &[],
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
    v("set", set_port_infiniband::SET),
    v("capabilities", set_port_infiniband::CAPABILITIES),
    v("max_pkeys", set_port_infiniband::MAX_PKEYS),
    v("max_gids", set_port_infiniband::MAX_GIDS),
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
    v("context_status", mpt::CONTEXT_STATUS),
    k("flags", mpt::FLAGS),
    p("key", mpt::KEY),
    v("pd_flags", mpt::PD_FLAGS),
    p("pd", mpt::PD),
    p("start_high", mpt::START_HIGH),
    p("start", mpt::START),
    p("length_high", mpt::LENGTH_HIGH),
    p("length", mpt::LENGTH),
    p("mtt_high", mpt::MTT_HIGH),
    p("mtt", mpt::MTT),
    p("mtt_size", mpt::MTT_SIZE),
    p("log_page", mpt::LOG_PAGE),
    p("first_byte", mpt::FIRST_BYTE),
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
    v("qp_mask_high", update_qp::QP_MASK_HIGH),
    v("qp_mask", update_qp::QP_MASK),
    v("path_mask_high", update_qp::PATH_MASK_HIGH),
    v("path_mask", update_qp::PATH_MASK),
    v("source_mac", update_qp::SOURCE_MAC),
    v("keep_vlan", update_qp::KEEP_VLAN),
];

const MAD: &[Named] = &[k("class", mad::CLASS), k("method", mad::METHOD), k("attribute", mad::ATTRIBUTE)];

const GROUP: &[Named] = &[p("next", mcg::NEXT), v("protocol", mcg::PROTOCOL), p("members", mcg::MEMBERS)];

const REGISTER: &[Named] = &[k("register", access_register::REGISTER), v("method", access_register::METHOD)];

const RULE: &[Named] = &[
    v("priority", flow_rule::PRIORITY),
    k("type", flow_rule::KIND),
    k("flags", flow_rule::FLAGS),
    v("port", flow_rule::PORT),
    p("qpn", flow_rule::QPN),
];

/// Fields of a queue pair before its path.
const QP_START: [Named; 16] = [
    v("optional", qp_context::OPTIONAL),
    v("state", qp_context::STATE),
    k("service", qp_context::SERVICE),
    k("spreads", qp_context::SPREADS),
    v("migration", qp_context::MIGRATION),
    p("pd", qp_context::PD),
    v("mtu", qp_context::MTU),
    v("log_message", qp_context::LOG_MESSAGE),
    v("log_receives", qp_context::LOG_RECEIVES),
    v("receive_stride", qp_context::RECEIVE_STRIDE),
    v("log_sends", qp_context::LOG_SENDS),
    v("send_stride", qp_context::SEND_STRIDE),
    v("roce_mode", qp_context::ROCE_MODE),
    v("reserved_lkey", qp_context::RESERVED_LKEY),
    p("uar", qp_context::UAR),
    p("local_qpn", qp_context::LOCAL_QPN),
];

/// Fields of the path that receive side scaling does not reuse.
const QP_PATH: [Named; 16] = [
    p("remote_qpn", qp_context::REMOTE_QPN),
    v("path_flags", qp_context::PATH_FLAGS),
    v("path_control", qp_context::PATH_CONTROL),
    v("ignores_pkey", qp_context::IGNORES_PKEY),
    v("pkey_index", qp_context::PKEY_INDEX),
    p("counter", qp_context::COUNTER),
    v("grh", qp_context::GRH),
    p("source_mac", qp_context::SOURCE_MAC),
    p("remote_lid", qp_context::REMOTE_LID),
    v("ack_timeout", qp_context::ACK_TIMEOUT),
    v("link_type", qp_context::LINK_TYPE),
    v("source_gid", qp_context::SOURCE_GID),
    v("static_rate", qp_context::STATIC_RATE),
    v("hop_limit", qp_context::HOP_LIMIT),
    v("traffic_class", qp_context::TRAFFIC_CLASS),
    p("flow_label", qp_context::FLOW_LABEL),
];

const QP_PEER: [Named; 9] = [
    p("remote_gid_0", qp_context::REMOTE_GID_0),
    p("remote_gid_1", qp_context::REMOTE_GID_1),
    p("remote_gid_2", qp_context::REMOTE_GID_2),
    p("remote_gid_3", qp_context::REMOTE_GID_3),
    v("sched_queue", qp_context::SCHED_QUEUE),
    v("vlan_index", qp_context::VLAN_INDEX),
    v("forces", qp_context::FORCES),
    p("remote_mac_high", qp_context::REMOTE_MAC_HIGH),
    p("remote_mac", qp_context::REMOTE_MAC),
];

const QP_SPREAD: [Named; 17] = [
    v("sched_queue", qp_context::SCHED_QUEUE),
    v("log_spread", qp_context::LOG_SPREAD),
    p("spread_base", qp_context::SPREAD_BASE),
    p("spread_default", qp_context::SPREAD_DEFAULT),
    v("hash_function", qp_context::HASH_FUNCTION),
    v("hash_of", qp_context::HASH_OF),
    p("key_0", qp_context::KEY_0),
    p("key_1", qp_context::KEY_1),
    p("key_2", qp_context::KEY_2),
    p("key_3", qp_context::KEY_3),
    p("key_4", qp_context::KEY_4),
    p("key_5", qp_context::KEY_5),
    p("key_6", qp_context::KEY_6),
    p("key_7", qp_context::KEY_7),
    p("key_8", qp_context::KEY_8),
    p("key_9", qp_context::KEY_9),
    p("spread_base_udp", qp_context::SPREAD_BASE_UDP),
];

const QP_END: [Named; 30] = [
    v("log_ack_requests", qp_context::LOG_ACK_REQUESTS),
    v("requester_reads", qp_context::REQUESTER_READS),
    v("retries", qp_context::RETRIES),
    v("rnr_retries", qp_context::RNR_RETRIES),
    v("fast_register", qp_context::FAST_REGISTER),
    p("send_psn", qp_context::SEND_PSN),
    p("send_cqn", qp_context::SEND_CQN),
    p("udp_source", qp_context::UDP_SOURCE),
    v("responder_reads", qp_context::RESPONDER_READS),
    v("peer_reads", qp_context::PEER_READS),
    v("peer_writes", qp_context::PEER_WRITES),
    v("peer_atomics", qp_context::PEER_ATOMICS),
    p("page_offset", qp_context::PAGE_OFFSET),
    v("receives_from_srq", qp_context::RECEIVES_FROM_SRQ),
    v("physical_port", qp_context::PHYSICAL_PORT),
    v("rnr_timer", qp_context::RNR_TIMER),
    p("receive_psn", qp_context::RECEIVE_PSN),
    p("xrc_domain", qp_context::XRC_DOMAIN),
    p("receive_cqn", qp_context::RECEIVE_CQN),
    p("record_high", qp_context::RECORD_HIGH),
    p("record", qp_context::RECORD),
    v("q_key", qp_context::Q_KEY),
    v("uses_srq", qp_context::USES_SRQ),
    p("srqn", qp_context::SRQN),
    v("keep_vlan", qp_context::KEEP_VLAN),
    v("keep_fcs", qp_context::KEEP_FCS),
    v("inline_receive", qp_context::INLINE_RECEIVE),
    v("log_page", qp_context::LOG_PAGE),
    p("mtt_high", qp_context::MTT_HIGH),
    p("mtt", qp_context::MTT),
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
