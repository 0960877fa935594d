//! The layouts of mailboxes, as named fields. Commands use them, and traces print them.

use super::mailbox::Mailbox;

/// A field of a mailbox: a range of bits in a big-endian 32-bit word.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    word: usize,
    high: u8,
    low: u8,
}

/// Returns the field of bits `high` to `low` in the word at an offset.
pub const fn bits(word: usize, high: u8, low: u8) -> Field {
    Field { word, high, low }
}

/// Returns the field of the whole word at an offset.
pub const fn word(offset: usize) -> Field {
    bits(offset, 31, 0)
}

/// Returns the field of the byte at an offset.
pub const fn byte(offset: usize) -> Field {
    let low = 8 * (3 - (offset & 3) as u8);
    bits(offset & !3, low + 7, low)
}

/// Returns the field of the 16 bits at an even offset.
pub const fn half(offset: usize) -> Field {
    let low = 8 * (2 - (offset & 2) as u8);
    bits(offset & !3, low + 15, low)
}

impl Field {
    /// Returns the offset of the field's word. A 64-bit field begins at the word of its high half.
    pub const fn word(self) -> usize {
        self.word
    }

    /// Returns the mask of the field's bits in its word.
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (31 - self.high)) & (u32::MAX << self.low)
    }

    /// Returns the field's value in its word.
    pub const fn of(self, word: u32) -> u32 {
        (word & self.mask()) >> self.low
    }
}

impl Mailbox {
    /// Returns the value of a field.
    pub fn field(&self, field: Field) -> u32 {
        field.of(self.u32(field.word))
    }

    /// Returns the value of a 64-bit field, whose high half is `high`.
    pub fn double(&self, high: Field) -> u64 {
        self.u64(high.word)
    }

    /// Sets a field. Bits of the value that exceed the field are ignored.
    pub fn set(&mut self, field: Field, value: u32) {
        let others = self.u32(field.word) & !field.mask();
        self.put_u32(field.word, others | (value << field.low) & field.mask());
    }

    /// Sets a 64-bit field, whose high half is `high`.
    pub fn set_double(&mut self, high: Field, value: u64) {
        self.put_u64(high.word, value);
    }
}

/// INIT_HCA (Linux `mlx4/fw.c`, `mlx4_INIT_HCA`).
pub mod init_hca {
    use super::{Field, bits, word};

    pub const VERSION: Field = bits(0x000, 31, 24);
    pub const CACHE_LINE: Field = bits(0x00c, 15, 8);
    pub const FLAGS: Field = word(0x014);
    pub const FLAGS2: Field = word(0x018);
    pub const QPC_BASE_HIGH: Field = word(0x030);
    pub const QPC_BASE: Field = bits(0x034, 31, 5);
    pub const LOG_QPS: Field = bits(0x034, 4, 0);
    pub const SRQC_BASE_HIGH: Field = word(0x048);
    pub const SRQC_BASE: Field = bits(0x04c, 31, 5);
    pub const LOG_SRQS: Field = bits(0x04c, 4, 0);
    pub const CQC_BASE_HIGH: Field = word(0x050);
    pub const CQC_BASE: Field = bits(0x054, 31, 5);
    pub const LOG_CQS: Field = bits(0x054, 4, 0);
    pub const ENTRY_SIZES: Field = word(0x058);
    pub const ALTC_BASE_HIGH: Field = word(0x060);
    pub const ALTC_BASE: Field = word(0x064);
    pub const AUXC_BASE_HIGH: Field = word(0x070);
    pub const AUXC_BASE: Field = word(0x074);
    pub const EQC_BASE_HIGH: Field = word(0x080);
    pub const EQC_BASE: Field = bits(0x084, 31, 5);
    pub const LOG_EQS: Field = bits(0x084, 4, 0);
    pub const SYSTEM_EQS: Field = bits(0x088, 11, 0);
    pub const RDMARC_BASE_HIGH: Field = word(0x090);
    pub const RDMARC_BASE: Field = bits(0x094, 31, 3);
    pub const LOG_RDMARC: Field = bits(0x094, 2, 0);
    pub const MCG_BASE_HIGH: Field = word(0x0c0);
    pub const MCG_BASE: Field = word(0x0c4);
    pub const LOG_MCG_ENTRY: Field = bits(0x0d0, 7, 0);
    pub const LOG_MCG_HASH: Field = bits(0x0d4, 7, 0);
    pub const UNICAST_STEERING: Field = bits(0x0d8, 27, 27);
    pub const LOG_MCGS: Field = bits(0x0d8, 7, 0);
    pub const DMPT_BASE_HIGH: Field = word(0x0f0);
    pub const DMPT_BASE: Field = word(0x0f4);
    pub const WINDOWS: Field = bits(0x0f8, 31, 31);
    pub const LOG_MPTS: Field = bits(0x0f8, 5, 0);
    pub const MTT_BASE_HIGH: Field = word(0x100);
    pub const MTT_BASE: Field = word(0x104);
    pub const CMPT_BASE_HIGH: Field = word(0x108);
    pub const CMPT_BASE: Field = word(0x10c);
    pub const LOG_UARS: Field = bits(0x128, 11, 8);
    pub const LOG_UAR_PAGE: Field = bits(0x128, 7, 0);
    pub const FLOW_BASE_HIGH: Field = word(0x1d0);
    pub const FLOW_BASE: Field = word(0x1d4);
    pub const LOG_FLOW_ENTRY: Field = bits(0x1e0, 7, 0);
    pub const LOG_FLOWS: Field = bits(0x1e8, 7, 0);
    pub const FLOW_ETHERNET: Field = word(0x1f0);
    pub const FLOW_INFINIBAND: Field = word(0x1f4);
}

/// The context of an event queue (Linux `mlx4/eq.c`, `mlx4_eq_context`).
pub mod eq_context {
    use super::{Field, bits, word};

    pub const CONTEXT_STATUS: Field = bits(0x00, 31, 28);
    pub const FLAGS: Field = bits(0x00, 27, 12);
    pub const STATE: Field = bits(0x00, 11, 8);
    pub const PAGE_OFFSET: Field = bits(0x08, 11, 5);
    pub const LOG_ENTRIES: Field = bits(0x0c, 28, 24);
    pub const PERIOD: Field = bits(0x10, 31, 16);
    pub const COUNT: Field = bits(0x10, 15, 0);
    pub const VECTOR: Field = bits(0x14, 9, 0);
    pub const LOG_PAGE: Field = bits(0x18, 29, 24);
    pub const MTT_HIGH: Field = bits(0x18, 7, 0);
    pub const MTT: Field = word(0x1c);
    pub const CONSUMER_INDEX: Field = bits(0x28, 23, 0);
    pub const PRODUCER_INDEX: Field = bits(0x2c, 23, 0);
}

/// The context of a completion queue (Linux `mlx4/cq.c`, `mlx4_cq_context`).
pub mod cq_context {
    use super::{Field, bits, word};

    pub const CONTEXT_STATUS: Field = bits(0x00, 31, 28);
    pub const FLAGS: Field = bits(0x00, 27, 12);
    pub const STATE: Field = bits(0x00, 11, 8);
    pub const PAGE_OFFSET: Field = bits(0x08, 11, 5);
    pub const LOG_ENTRIES: Field = bits(0x0c, 28, 24);
    pub const UAR: Field = bits(0x0c, 23, 0);
    pub const PERIOD: Field = bits(0x10, 31, 16);
    pub const COUNT: Field = bits(0x10, 15, 0);
    pub const EQN: Field = bits(0x14, 8, 0);
    pub const LOG_PAGE: Field = bits(0x18, 29, 24);
    pub const MTT_HIGH: Field = bits(0x18, 7, 0);
    pub const MTT: Field = word(0x1c);
    pub const RECORD_HIGH: Field = word(0x38);
    pub const RECORD: Field = word(0x3c);
    pub const PRODUCER_INDEX: Field = word(0x2c);
}

/// The context of a shared receive queue (Linux `mlx4/srq.c`, `mlx4_srq_context`).
pub mod srq_context {
    use super::{Field, bits, word};

    pub const STATE: Field = bits(0x00, 31, 28);
    pub const LOG_ENTRIES: Field = bits(0x00, 27, 24);
    pub const SRQN: Field = bits(0x00, 23, 0);
    pub const LOG_STRIDE: Field = bits(0x04, 26, 24);
    pub const XRC_DOMAIN: Field = bits(0x04, 15, 0);
    pub const PAGE_OFFSET: Field = bits(0x08, 31, 26);
    pub const CQN: Field = bits(0x08, 23, 0);
    pub const LOG_PAGE: Field = bits(0x10, 29, 24);
    pub const MTT_HIGH: Field = bits(0x10, 7, 0);
    pub const MTT: Field = word(0x14);
    pub const PD: Field = word(0x18);
    pub const LIMIT: Field = bits(0x1c, 31, 16);
    pub const RECORD_HIGH: Field = word(0x28);
    pub const RECORD: Field = word(0x2c);
    pub const ENTRIES_TAKEN: Field = bits(0x20, 15, 0);
}

/// QUERY_DEV_CAP (Linux `mlx4/fw.c`, `mlx4_QUERY_DEV_CAP`).
pub mod device_capabilities {
    use super::{Field, bits, byte, half, word};

    pub const LOG_MAX_SRQ_WQES: Field = byte(0x10);
    pub const LOG_MAX_QP_WQES: Field = byte(0x11);
    pub const LOG_RESERVED_QPS: Field = byte(0x12);
    pub const LOG_MAX_QPS: Field = byte(0x13);
    pub const LOG_RESERVED_SRQS: Field = bits(0x14, 31, 28);
    pub const LOG_MAX_SRQS: Field = byte(0x15);
    pub const LOG_MAX_CQES: Field = byte(0x19);
    pub const LOG_RESERVED_CQS: Field = byte(0x1a);
    pub const LOG_MAX_CQS: Field = byte(0x1b);
    pub const LOG_MAX_MPTS: Field = byte(0x1d);
    pub const LOG_RESERVED_EQS: Field = byte(0x1e);
    pub const LOG_MAX_EQS: Field = byte(0x1f);
    pub const LOG_RESERVED_MTTS: Field = bits(0x20, 31, 28);
    pub const LOG_MAX_REGION_LENGTH: Field = byte(0x21);
    pub const LOG_RESERVED_MPTS: Field = byte(0x22);
    pub const SYSTEM_EQS: Field = half(0x26);
    pub const LOG_MAX_REQUESTER_RDMA: Field = byte(0x29);
    pub const LOG_MAX_RESPONDER_RDMA: Field = byte(0x2b);
    pub const LOG_MAX_LARGE_SEND: Field = byte(0x2d);
    pub const RSS: Field = byte(0x2e);
    pub const LOG_MAX_RDMA_TOTAL: Field = byte(0x2f);
    pub const PORT_BEACON: Field = byte(0x34);
    pub const LOCAL_ACK_DELAY: Field = byte(0x35);
    pub const VIRTUAL_LANES: Field = bits(0x34, 7, 4);
    pub const PORTS: Field = bits(0x34, 3, 0);
    pub const LOG_MAX_MESSAGE: Field = byte(0x38);
    pub const LOG_MAX_GIDS: Field = byte(0x3b);
    pub const CQ_TIMESTAMPS: Field = byte(0x3e);
    pub const LOG_MAX_PKEYS: Field = byte(0x3f);
    pub const FLAGS_HIGH: Field = word(0x40);
    pub const FLAGS: Field = word(0x44);
    pub const RESERVED_UARS: Field = byte(0x48);
    pub const LOG_UAR_MIB: Field = byte(0x49);
    pub const LOG_MIN_PAGE: Field = byte(0x4b);
    pub const BLUE_FLAME: Field = byte(0x4c);
    pub const LOG_BLUE_FLAME_REGISTER: Field = byte(0x4d);
    pub const LOG_BLUE_FLAME_REGISTERS_PER_PAGE: Field = byte(0x4e);
    pub const LOG_BLUE_FLAME_PAGES: Field = byte(0x4f);
    pub const MAX_SEND_SGES: Field = byte(0x51);
    pub const MAX_SEND_WQE: Field = half(0x52);
    pub const MAX_RECEIVE_SGES: Field = byte(0x55);
    pub const MAX_RECEIVE_WQE: Field = half(0x56);
    pub const LOG_MAX_GROUP_MEMBERS: Field = byte(0x61);
    pub const LOG_RESERVED_GROUPS: Field = byte(0x62);
    pub const LOG_MAX_GROUPS: Field = byte(0x63);
    pub const RESERVED_PDS: Field = bits(0x64, 31, 28);
    pub const LOG_MAX_PDS: Field = byte(0x65);
    pub const LOG_MAX_XRC_DOMAINS: Field = byte(0x67);
    pub const MAX_COUNTERS: Field = word(0x68);
    pub const EXTENDED_FLAGS: Field = word(0x70);
    pub const FLOW_STEERING_IPOIB: Field = byte(0x74);
    pub const FLOW_STEERING: Field = byte(0x76);
    pub const FLOW_STEERING_MAX_QPS: Field = byte(0x77);
    pub const QOS_PER_FUNCTION: Field = bits(0x78, 12, 12);
    pub const CONGESTION_NOTIFICATION: Field = bits(0x78, 0, 0);
    pub const BMME_FLAGS: Field = word(0x94);
    pub const KEEP_FCS: Field = bits(0x94, 26, 26);
    pub const RESERVED_LKEY: Field = word(0x98);
    pub const TUNNELS: Field = byte(0x9e);
    pub const MAX_ICM_HIGH: Field = word(0xa0);
    pub const CLOCK_TO_PROGRAMS: Field = byte(0xc1);
    pub const RATE_LIMITS: Field = half(0xcc);

    /// Lengths of table entries in bytes, 16 bits each: RDMARC, QPC, AUXC, ALTC, EQC, CQC, SRQC, cMPT, MTT,
    /// dMPT.
    pub const ENTRY_SIZES: usize = 0x80;
}

/// SET_PORT of general settings (Linux `mlx4/port.c`, `mlx4_set_port_general_context`).
pub mod set_port_general {
    use super::{Field, bits, word};

    pub const FLAGS2: Field = bits(0x00, 15, 8);
    pub const FLAGS: Field = bits(0x00, 7, 0);
    pub const ROCE_MODE: Field = bits(0x04, 31, 28);
    pub const MTU: Field = bits(0x04, 15, 0);
    pub const PPTX: Field = bits(0x08, 31, 24);
    pub const PFCTX: Field = bits(0x08, 23, 16);
    pub const PPRX: Field = bits(0x0c, 31, 24);
    pub const PFCRX: Field = bits(0x0c, 23, 16);
    pub const USER_MTU: Field = bits(0x18, 15, 0);
    pub const USER_MAC_HIGH: Field = bits(0x1c, 15, 0);
    pub const USER_MAC: Field = word(0x20);
}

/// SET_PORT of queue calculation (Linux `mlx4/port.c`, `mlx4_set_port_rqp_calc_context`).
pub mod set_port_queues {
    use super::{Field, bits, word};

    pub const BASE_QPN: Field = word(0x00);
    pub const LOG_MACS: Field = bits(0x04, 23, 16);
    pub const LOG_VLANS: Field = bits(0x04, 15, 8);
    pub const LOG_PRIORITIES: Field = bits(0x04, 7, 0);
    pub const NO_VLAN: Field = bits(0x0c, 23, 16);
    pub const VLAN_MISS: Field = bits(0x0c, 7, 0);
    pub const PROMISCUOUS: Field = bits(0x14, 31, 31);
    pub const PROMISCUOUS_QPN: Field = bits(0x14, 23, 0);
    pub const MULTICAST_MODE: Field = bits(0x18, 31, 30);
    pub const MULTICAST_QPN: Field = bits(0x18, 23, 0);
}

/// CONFIG_DEV (Linux `mlx4/fw.c`, `mlx4_config_dev`).
pub mod config_dev {
    use super::{Field, bits, byte, word};

    pub const UPDATE: Field = word(0x00);
    pub const VXLAN_PORT: Field = bits(0x10, 15, 0);
    pub const ROCE_PORT: Field = bits(0x14, 15, 0);
    pub const ROCE_FLAGS: Field = word(0x18);
    pub const CHECKSUM_MODES: Field = byte(0x83);
}

/// QUERY_FW (Linux `mlx4/fw.c`, `mlx4_QUERY_FW`).
pub mod query_fw {
    use super::{Field, byte, half, word};

    pub const PAGES: Field = half(0x00);
    pub const VERSION_MAJOR: Field = half(0x02);
    pub const VERSION_SUBMINOR: Field = half(0x04);
    pub const VERSION_MINOR: Field = half(0x06);
    pub const COMMAND_REVISION: Field = half(0x0a);
    pub const LOG_MAX_COMMANDS: Field = byte(0x0f);
    pub const CLEAR_INTERRUPT_HIGH: Field = word(0x20);
    pub const ERROR_BUFFER_HIGH: Field = word(0x30);
    pub const ERROR_BUFFER_WORDS: Field = word(0x38);
    pub const CLOCK_HIGH: Field = word(0x50);
}

/// QUERY_ADAPTER (Linux `mlx4/fw.c`, `mlx4_QUERY_ADAPTER`).
pub mod query_adapter {
    use super::{Field, byte, half};

    pub const INTA_PIN: Field = byte(0x10);
    pub const VENDOR: Field = half(0x1a);
    pub const BOARD: usize = 0xf0;
}

/// QUERY_FUNC (Linux `mlx4/fw.c`, `mlx4_QUERY_FUNC`).
pub mod query_func {
    use super::{Field, half};

    pub const RESERVED_EQS: Field = half(0x04);
    pub const MAX_EQS: Field = half(0x06);
}

/// QUERY_PORT (Linux `mlx4/fw.c`, `mlx4_QUERY_PORT`, and `en_port.h`).
pub mod query_port {
    use super::{Field, bits, byte, half, word};

    pub const LINK_AND_TYPES: Field = byte(0x00);
    pub const MAX_PATH_MTU: Field = byte(0x01);
    pub const MAX_ETHERNET_MTU: Field = half(0x02);
    pub const SPEED: Field = byte(0x05);
    pub const MAX_WIDTH: Field = byte(0x06);
    pub const LOG_MAX_GIDS: Field = bits(0x04, 7, 4);
    pub const LOG_MAX_PKEYS: Field = bits(0x04, 3, 0);
    pub const LOG_MAX_VLANS: Field = bits(0x08, 15, 12);
    pub const LOG_MAX_MACS: Field = bits(0x08, 11, 8);
    pub const VIRTUAL_LANES: Field = byte(0x0b);
    pub const MAC_HIGH: Field = word(0x10);
}

/// MOD_STAT_CFG that reads a GUID.
pub mod mod_stat_cfg {
    use super::{Field, word};

    pub const GUID_UPPER: Field = word(0x14);
    pub const GUID_LOWER: Field = word(0x1c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bits_of_their_word() {
        let mut mailbox = Mailbox::default();
        mailbox.set(byte(0x11), 0xab);
        mailbox.set(half(0x12), 0xcdef);
        mailbox.set(bits(0x10, 31, 28), 0x175);
        assert_eq!(mailbox.u32(0x10), 0x50ab_cdef);
        assert_eq!((mailbox.field(byte(0x11)), mailbox.field(bits(0x10, 11, 4))), (0xab, 0xde));
        mailbox.set_double(word(0x20), 1 << 40 | 7);
        assert_eq!((mailbox.field(word(0x20)), mailbox.double(word(0x20))), (1 << 8, 1 << 40 | 7));
    }
}
