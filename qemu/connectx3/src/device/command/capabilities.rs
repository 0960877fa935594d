//! The commands that report the card's capabilities: QUERY_DEV_CAP, QUERY_ADAPTER, QUERY_FUNC.

use crate::device::layout::{device_capabilities as cap, query_adapter, query_func};
use crate::device::mailbox::Mailbox;
use crate::device::profile::{EqScheme, LinkTypes, Profile, limits};
use crate::device::qp::{MAX_RECEIVE, MAX_WQE};
use crate::device::statistics::InterfaceCounters;

/// Capability flags (Linux `include/linux/mlx4/device.h`): those of the low word, and those of the high word
/// with the prefix `HIGH`.
mod flag {
    pub(super) const RC: u32 = 1 << 0;
    pub(super) const UC: u32 = 1 << 1;
    pub(super) const UD: u32 = 1 << 2;
    pub(super) const XRC: u32 = 1 << 3;
    pub(super) const SRQ: u32 = 1 << 6;
    /// Ports may have different link types at the same time.
    pub(super) const DUAL_PERSONALITY: u32 = 1 << 12;
    /// Large sends with a long header, which large sends on Ethernet need.
    pub(super) const BIG_LSO_HEADER: u32 = 1 << 15;
    pub(super) const MEMORY_WINDOWS: u32 = 1 << 16;
    pub(super) const ATOMIC: u32 = 1 << 18;
    pub(super) const UD_AV_PORT: u32 = 1 << 20;
    pub(super) const IBOE: u32 = 1 << 30;
    /// Queue pairs can receive frames with their check sequence.
    pub(super) const HIGH_KEEP_FCS: u32 = 1 << (34 - 32);
    /// Unicast and multicast steering, which the B0 scheme needs.
    pub(super) const HIGH_VEP_UC: u32 = 1 << (41 - 32);
    pub(super) const HIGH_VEP_MC: u32 = 1 << (42 - 32);
    /// Events report changes by a subnet manager.
    pub(super) const HIGH_PORT_MANAGEMENT: u32 = 1 << (59 - 32);
    pub(super) const HIGH_COUNTERS: u32 = 1 << (48 - 32);
    pub(super) const HIGH_LARGE_EQE: u32 = 1 << (61 - 32);
    pub(super) const HIGH_LARGE_CQE: u32 = 1 << (62 - 32);
}

/// The capability flags in the word at offset 0x70 of QUERY_DEV_CAP.
mod flag2 {
    pub(super) const UPDATE_QP: u32 = 1 << 16;
    pub(super) const LB_SRC_CHECK: u32 = 1 << 19;
    pub(super) const SW_CQ_INIT: u32 = 1 << 23;
}

/// Memory management flags (0x94).
mod bmme {
    /// Windows of type 2, variant B, together with [`TYPE_2_WINDOWS`].
    pub(super) const TYPE_2B_WINDOWS: u32 = 1 << 1;
    pub(super) const TYPE_2_WINDOWS: u32 = 1 << 9;
    pub(super) const LOCAL_INVALIDATE: u32 = 1 << 6;
    pub(super) const REMOTE_INVALIDATE: u32 = 1 << 7;
    pub(super) const RESERVED_LKEY: u32 = 1 << 10;
    pub(super) const FAST_REGISTER: u32 = 1 << 11;
    pub(super) const ROCE_V1_V2: u32 = 1 << 19;
    pub(super) const CONFIG_DEV: u32 = 1 << 29;
}

/// Returns the output of QUERY_DEV_CAP (Linux `mlx4_QUERY_DEV_CAP`).
pub(super) fn query_dev_cap(profile: &Profile) -> Mailbox {
    let mut out = Mailbox::default();
    put_limits(&mut out);
    put_offloads(&mut out);
    put_entry_sizes(&mut out);
    out.set(cap::PORTS, profile.ports.len() as u32);
    if let EqScheme::System { max, .. } = profile.eqs {
        out.set(cap::SYSTEM_EQS, max.into());
    }
    if profile.blue_flame {
        put_blue_flame(&mut out);
    }
    if profile.steering.flows {
        const ENABLED: u32 = 1 << 7;
        const QPS_OF_A_RULE: u32 = 24;
        out.set(cap::FLOW_STEERING, ENABLED);
        out.set(cap::FLOW_STEERING_MAX_QPS, QPS_OF_A_RULE);
    }
    put_flags(profile, &mut out);
    out
}

fn put_flags(profile: &Profile, out: &mut Mailbox) {
    let when = |condition: bool, flags: u32| if condition { flags } else { 0 };
    out.set(
        cap::FLAGS_HIGH,
        when(profile.steering.groups, flag::HIGH_VEP_UC | flag::HIGH_VEP_MC)
            | when(profile.large_entries, flag::HIGH_LARGE_EQE | flag::HIGH_LARGE_CQE)
            | flag::HIGH_KEEP_FCS
            | flag::HIGH_COUNTERS
            | flag::HIGH_PORT_MANAGEMENT,
    );
    let either = profile.ports.iter().all(|port| matches!(port.links, LinkTypes::Either { .. }));
    out.set(
        cap::FLAGS,
        when(either, flag::DUAL_PERSONALITY)
            | flag::RC
            | flag::UC
            | flag::UD
            | flag::XRC
            | flag::SRQ
            | flag::BIG_LSO_HEADER
            | flag::MEMORY_WINDOWS
            | flag::ATOMIC
            | flag::UD_AV_PORT
            | flag::IBOE,
    );
    out.set(
        cap::EXTENDED_FLAGS,
        flag2::UPDATE_QP | flag2::LB_SRC_CHECK | when(profile.sw_cq_init, flag2::SW_CQ_INIT),
    );
    out.set(
        cap::BMME_FLAGS,
        bmme::TYPE_2B_WINDOWS
            | bmme::TYPE_2_WINDOWS
            | bmme::LOCAL_INVALIDATE
            | bmme::REMOTE_INVALIDATE
            | bmme::RESERVED_LKEY
            | bmme::FAST_REGISTER
            | bmme::CONFIG_DEV
            | when(profile.roce_v2, bmme::ROCE_V1_V2),
    );
}

/// Returns the output of QUERY_ADAPTER (Linux `mlx4_QUERY_ADAPTER`). Words of the board id are stored
/// byte-swapped.
pub(super) fn query_adapter(profile: &Profile) -> Mailbox {
    const VENDOR: u32 = 0x15b3;
    let mut out = Mailbox::default();
    out.set(query_adapter::INTA_PIN, 0);
    out.set(query_adapter::VENDOR, VENDOR);
    let mut board = [0; 16];
    for (place, byte) in board.iter_mut().zip(profile.board.bytes()) {
        *place = byte;
    }
    for word in board.chunks_exact_mut(4) {
        word.reverse();
    }
    out.put(query_adapter::BOARD, &board);
    out
}

/// Returns the output of QUERY_FUNC (Linux `mlx4_QUERY_FUNC`).
pub(super) fn query_func(profile: &Profile) -> Mailbox {
    let mut out = Mailbox::default();
    if let EqScheme::System { reserved, max } = profile.eqs {
        out.set(query_func::RESERVED_EQS, reserved.into());
        out.set(query_func::MAX_EQS, max.into());
    }
    out
}

/// Writes the sizes of tables and the limits of objects.
fn put_limits(out: &mut Mailbox) {
    const LOG_RESERVED_QPS: u8 = 6;
    const LOG_RESERVED_SRQS: u8 = 6;
    const LOG_RESERVED_CQS: u8 = 7;
    const LOG_RESERVED_EQS: u8 = 2;
    const LOG_RESERVED_MPTS: u8 = 8;
    const LOG_RESERVED_MTTS: u8 = 6;
    const RESERVED_PDS: u8 = 4;
    const LOG_MIN_PAGE: u8 = 9;
    for (field, value) in [
        (cap::LOG_MAX_SRQ_WQES, limits::LOG_WQES),
        (cap::LOG_MAX_QP_WQES, limits::LOG_WQES),
        (cap::LOG_RESERVED_QPS, LOG_RESERVED_QPS),
        (cap::LOG_MAX_QPS, limits::LOG_OBJECTS),
        (cap::LOG_RESERVED_SRQS, LOG_RESERVED_SRQS),
        (cap::LOG_MAX_SRQS, limits::LOG_OBJECTS),
        (cap::LOG_MAX_CQES, limits::LOG_CQES),
        (cap::LOG_RESERVED_CQS, LOG_RESERVED_CQS),
        (cap::LOG_MAX_CQS, limits::LOG_OBJECTS),
        (cap::LOG_MAX_MPTS, limits::LOG_OBJECTS),
        (cap::LOG_RESERVED_EQS, LOG_RESERVED_EQS),
        (cap::LOG_MAX_EQS, limits::LOG_EQS),
        (cap::LOG_RESERVED_MTTS, LOG_RESERVED_MTTS),
        (cap::LOG_MAX_REGION_LENGTH, 36),
        (cap::LOG_RESERVED_MPTS, LOG_RESERVED_MPTS),
        (cap::LOG_MAX_REQUESTER_RDMA, limits::LOG_RDMA),
        (cap::LOG_MAX_RESPONDER_RDMA, limits::LOG_RDMA_RESPONDER),
        (cap::LOG_MAX_RDMA_TOTAL, 20),
        (cap::LOCAL_ACK_DELAY, 15),
        (cap::VIRTUAL_LANES, 8),
        (cap::LOG_MAX_MESSAGE, limits::LOG_MESSAGE),
        (cap::LOG_MAX_GIDS, limits::LOG_GIDS),
        (cap::LOG_MAX_PKEYS, 7),
        (cap::RESERVED_UARS, 0),
        (cap::LOG_UAR_MIB, limits::LOG_UAR_MIB),
        (cap::LOG_MIN_PAGE, LOG_MIN_PAGE),
        (cap::MAX_SEND_SGES, limits::SEND_SGES),
        (cap::MAX_RECEIVE_SGES, limits::RECV_SGES),
        (cap::LOG_MAX_GROUP_MEMBERS, 8),
        (cap::LOG_RESERVED_GROUPS, 0),
        (cap::LOG_MAX_GROUPS, 13),
        (cap::RESERVED_PDS, RESERVED_PDS),
        (cap::LOG_MAX_PDS, 15),
        (cap::LOG_MAX_XRC_DOMAINS, limits::LOG_XRC_DOMAINS),
    ] {
        out.set(field, value.into());
    }
    out.set(cap::MAX_SEND_WQE, MAX_WQE as u32);
    out.set(cap::MAX_RECEIVE_WQE, MAX_RECEIVE as u32);
    out.set(cap::MAX_COUNTERS, InterfaceCounters::COUNT);
    out.set(cap::RESERVED_LKEY, crate::device::memory::RESERVED_LKEY);
    out.set_double(cap::MAX_ICM_HIGH, 1 << 40);
}

/// Writes the offloads that every card has.
fn put_offloads(out: &mut Mailbox) {
    const LOG_LARGE_SEND: u32 = 17;
    const RSS_XOR: u32 = 1 << 5;
    const RSS_TOEPLITZ: u32 = 1 << 4;
    const LOG_RSS_TABLE: u32 = 7;
    const SUPPORTED: u32 = 1 << 7;
    out.set(cap::LOG_MAX_LARGE_SEND, LOG_LARGE_SEND);
    out.set(cap::RSS, RSS_XOR | RSS_TOEPLITZ | LOG_RSS_TABLE);
    out.set(cap::PORT_BEACON, SUPPORTED);
    out.set(cap::CQ_TIMESTAMPS, SUPPORTED);
    out.set(cap::CLOCK_TO_PROGRAMS, SUPPORTED);
}

fn put_blue_flame(out: &mut Mailbox) {
    const AVAILABLE: u32 = 1 << 7;
    const LOG_PAGE: u8 = 12;
    out.set(cap::BLUE_FLAME, AVAILABLE);
    for (field, value) in [
        (cap::LOG_BLUE_FLAME_REGISTER, limits::LOG_BLUE_FLAME),
        (cap::LOG_BLUE_FLAME_REGISTERS_PER_PAGE, LOG_PAGE - limits::LOG_BLUE_FLAME),
        (cap::LOG_BLUE_FLAME_PAGES, limits::LOG_UAR_MIB + 20 - LOG_PAGE),
    ] {
        out.set(field, value.into());
    }
}

fn put_entry_sizes(out: &mut Mailbox) {
    for (index, size) in [32, 256, 128, 64, 128, 128, 128, 64, 8, 64].into_iter().enumerate() {
        out.put_u16(cap::ENTRY_SIZES + 2 * index, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::MacAddr;

    /// Without the flag, Linux refuses different link types for the two ports.
    #[test]
    fn ports_of_either_kind_may_differ() {
        for (name, differ) in [("pro-2port", false), ("ib", false), ("vpi", true), ("vpi-2port", true)] {
            let flags = query_dev_cap(&Profile::named(name, MacAddr([0; 6])).unwrap()).u32(0x44);
            assert_eq!(flags & flag::DUAL_PERSONALITY != 0, differ, "{name}");
        }
    }
}
