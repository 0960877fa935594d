//! What the card can do: QUERY_DEV_CAP, QUERY_ADAPTER, QUERY_FUNC.

use crate::device::Card;
use crate::device::mailbox::Mailbox;
use crate::device::profile::{EqScheme, LinkTypes, limits};
use crate::device::statistics::InterfaceCounters;

/// Capability flags (Linux `include/linux/mlx4/device.h`), the low word.
mod flag {
    pub const RC: u32 = 1 << 0;
    pub const UC: u32 = 1 << 1;
    pub const UD: u32 = 1 << 2;
    pub const XRC: u32 = 1 << 3;
    pub const SRQ: u32 = 1 << 6;
    /// Ports may be of different kinds at a time.
    pub const DUAL_PERSONALITY: u32 = 1 << 12;
    /// Large sends whose header is long, and so large sends of Ethernet.
    pub const BIG_LSO_HEADER: u32 = 1 << 15;
    pub const MEMORY_WINDOWS: u32 = 1 << 16;
    pub const ATOMIC: u32 = 1 << 18;
    pub const UD_AV_PORT: u32 = 1 << 20;
    pub const IBOE: u32 = 1 << 30;
    /// High word: queue pairs can have the check sequence of frames.
    pub const HIGH_KEEP_FCS: u32 = 1 << (34 - 32);
    /// High word: unicast and multicast steering, and so the B0 scheme.
    pub const HIGH_VEP_UC: u32 = 1 << (41 - 32);
    pub const HIGH_VEP_MC: u32 = 1 << (42 - 32);
    /// Changes by a subnet manager are told by events.
    pub const HIGH_PORT_MANAGEMENT: u32 = 1 << (59 - 32);
    pub const HIGH_COUNTERS: u32 = 1 << (48 - 32);
    pub const HIGH_LARGE_EQE: u32 = 1 << (61 - 32);
    pub const HIGH_LARGE_CQE: u32 = 1 << (62 - 32);
}

/// Further flags (0x70).
mod flag2 {
    pub const UPDATE_QP: u32 = 1 << 16;
    pub const LB_SRC_CHECK: u32 = 1 << 19;
    pub const SW_CQ_INIT: u32 = 1 << 23;
}

/// Memory management flags (0x94).
mod bmme {
    /// With the next: windows of type 2, variant B.
    pub const TYPE_2B_WINDOWS: u32 = 1 << 1;
    pub const TYPE_2_WINDOWS: u32 = 1 << 9;
    pub const LOCAL_INVALIDATE: u32 = 1 << 6;
    pub const REMOTE_INVALIDATE: u32 = 1 << 7;
    pub const RESERVED_LKEY: u32 = 1 << 10;
    pub const FAST_REGISTER: u32 = 1 << 11;
    pub const ROCE_V1_V2: u32 = 1 << 19;
    pub const CONFIG_DEV: u32 = 1 << 29;
}

impl Card {
    /// Linux `mlx4_QUERY_DEV_CAP`.
    pub(super) fn query_dev_cap(&self) -> Mailbox {
        const LOG_RESERVED_QPS: u8 = 6;
        const LOG_RESERVED_CQS: u8 = 7;
        const LOG_RESERVED_REGIONS: u8 = 8;
        const LOG_RESERVED_MTTS: u8 = 6;
        const RESERVED_PDS: u8 = 4;
        const LOG_MIN_PAGE: u8 = 9;
        const LOG_LARGE_SEND: u8 = 17;
        const PORT_BEACON: u8 = 1 << 7;
        const TIMESTAMPS: u8 = 1 << 7;
        const CLOCK_TO_PROGRAMS: u8 = 1 << 7;
        const RSS_XOR: u8 = 1 << 5;
        const RSS_TOEPLITZ: u8 = 1 << 4;
        const LOG_RSS_TABLE: u8 = 7;
        let mut out = Mailbox::default();
        for (offset, value) in [
            (0x10, limits::LOG_WQES),
            (0x11, limits::LOG_WQES),
            (0x12, LOG_RESERVED_QPS),
            (0x13, limits::LOG_OBJECTS),
            (0x14, 6 << 4),
            (0x15, limits::LOG_OBJECTS),
            (0x19, limits::LOG_CQES),
            (0x1a, LOG_RESERVED_CQS),
            (0x1b, limits::LOG_OBJECTS),
            (0x1d, limits::LOG_OBJECTS),
            (0x1e, 2),
            (0x1f, limits::LOG_EQS),
            (0x20, LOG_RESERVED_MTTS << 4),
            (0x21, 36),
            (0x22, LOG_RESERVED_REGIONS),
            (0x29, limits::LOG_RDMA),
            (0x2b, limits::LOG_RDMA_RESPONDER),
            (0x2d, LOG_LARGE_SEND),
            (0x2e, RSS_XOR | RSS_TOEPLITZ | LOG_RSS_TABLE),
            (0x2f, 20),
            (0x34, PORT_BEACON),
            (0x35, 15),
            (0x37, 8 << 4 | self.profile.ports.len() as u8),
            (0x38, limits::LOG_MESSAGE),
            (0x3b, limits::LOG_GIDS),
            (0x3e, TIMESTAMPS),
            (0x3f, 7),
            (0x48, 0),
            (0x49, limits::LOG_UAR_MIB),
            (0x4b, LOG_MIN_PAGE),
            (0x51, limits::SEND_SGES),
            (0x55, limits::RECV_SGES),
            (0x61, 8),
            (0x62, 0),
            (0x63, 13),
            (0x64, RESERVED_PDS << 4),
            (0x65, 15),
            (0x67, limits::LOG_XRC_DOMAINS),
            (0xc1, CLOCK_TO_PROGRAMS),
        ] {
            out.put_u8(offset, value);
        }
        if let EqScheme::System { max, .. } = self.profile.eqs {
            out.put_u16(0x26, max);
        }
        let groups = if self.profile.steering.groups { flag::HIGH_VEP_UC | flag::HIGH_VEP_MC } else { 0 };
        let entries =
            if self.profile.large_entries { flag::HIGH_LARGE_EQE | flag::HIGH_LARGE_CQE } else { 0 };
        out.put_u32(
            0x40,
            groups | entries | flag::HIGH_KEEP_FCS | flag::HIGH_COUNTERS | flag::HIGH_PORT_MANAGEMENT,
        );
        if self.profile.blue_flame {
            const AVAILABLE: u8 = 1 << 7;
            out.put_u8(0x4c, AVAILABLE);
            out.put_u8(0x4d, limits::LOG_BLUE_FLAME);
            // log2 of registers on a page, and of pages.
            out.put_u8(0x4e, 12 - limits::LOG_BLUE_FLAME);
            out.put_u8(0x4f, limits::LOG_UAR_MIB + 20 - 12);
        }
        let either = self.profile.ports.iter().all(|port| matches!(port.links, LinkTypes::Either { .. }));
        let kinds = if either { flag::DUAL_PERSONALITY } else { 0 };
        out.put_u32(
            0x44,
            kinds
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
        out.put_u16(0x52, 1008);
        out.put_u16(0x56, 512);
        out.put_u32(0x68, InterfaceCounters::COUNT);
        if self.profile.steering.flows {
            const ENABLED: u8 = 1 << 7;
            const QPS_OF_A_RULE: u8 = 24;
            out.put_u8(0x76, ENABLED);
            out.put_u8(0x77, QPS_OF_A_RULE);
        }
        let marked = if self.profile.sw_cq_init { flag2::SW_CQ_INIT } else { 0 };
        out.put_u32(0x70, flag2::UPDATE_QP | flag2::LB_SRC_CHECK | marked);
        // Entry sizes: RDMARC, QPC, AUXC, ALTC, EQC, CQC, SRQC, cMPT, MTT, dMPT.
        for (index, size) in [32, 256, 128, 64, 128, 128, 128, 64, 8, 64].into_iter().enumerate() {
            out.put_u16(0x80 + 2 * index, size);
        }
        let roce_v2 = if self.profile.roce_v2 { bmme::ROCE_V1_V2 } else { 0 };
        out.put_u32(
            0x94,
            bmme::TYPE_2B_WINDOWS
                | bmme::TYPE_2_WINDOWS
                | bmme::LOCAL_INVALIDATE
                | bmme::REMOTE_INVALIDATE
                | bmme::RESERVED_LKEY
                | bmme::FAST_REGISTER
                | bmme::CONFIG_DEV
                | roce_v2,
        );
        out.put_u32(0x98, crate::device::memory::RESERVED_LKEY);
        out.put_u64(0xa0, 1 << 40);
        out
    }

    /// Linux `mlx4_QUERY_ADAPTER`. Words of the board id are stored byte-swapped.
    pub(super) fn query_adapter(&self) -> Mailbox {
        const VENDOR: u16 = 0x15b3;
        let mut out = Mailbox::default();
        out.put_u8(0x10, 0);
        out.put_u16(0x1a, VENDOR);
        let mut board = [0; 16];
        for (place, byte) in board.iter_mut().zip(self.profile.board.bytes()) {
            *place = byte;
        }
        for word in board.chunks_exact_mut(4) {
            word.reverse();
        }
        out.put(0xf0, &board);
        out
    }

    /// Linux `mlx4_QUERY_FUNC`.
    pub(super) fn query_func(&self) -> Mailbox {
        let mut out = Mailbox::default();
        if let EqScheme::System { reserved, max } = self.profile.eqs {
            out.put_u16(0x04, reserved);
            out.put_u16(0x06, max);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Profile;
    use verbs::MacAddr;

    /// Without the flag, Linux refuses to give one port another kind than the other has.
    #[test]
    fn ports_of_either_kind_may_differ() {
        for (name, differ) in [("pro-2port", false), ("ib", false), ("vpi", true), ("vpi-2port", true)] {
            let card = Card::new(Profile::named(name, MacAddr([0; 6])).unwrap());
            let flags = card.query_dev_cap().u32(0x44);
            assert_eq!(flags & flag::DUAL_PERSONALITY != 0, differ, "{name}");
        }
    }
}
