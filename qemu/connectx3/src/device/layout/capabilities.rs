//! The layouts of queries.

use super::{Field, bits, byte, half, word};

/// QUERY_DEV_CAP (Linux `mlx4/fw.c`, `mlx4_QUERY_DEV_CAP`).
pub(crate) mod device_capabilities {
    use super::{Field, bits, byte, half, word};

    pub(crate) const LOG_MAX_SRQ_WQES: Field = byte(0x10);
    pub(crate) const LOG_MAX_QP_WQES: Field = byte(0x11);
    pub(crate) const LOG_RESERVED_QPS: Field = byte(0x12);
    pub(crate) const LOG_MAX_QPS: Field = byte(0x13);
    pub(crate) const LOG_RESERVED_SRQS: Field = bits(0x14, 31, 28);
    pub(crate) const LOG_MAX_SRQS: Field = byte(0x15);
    pub(crate) const LOG_MAX_CQES: Field = byte(0x19);
    pub(crate) const LOG_RESERVED_CQS: Field = byte(0x1a);
    pub(crate) const LOG_MAX_CQS: Field = byte(0x1b);
    pub(crate) const LOG_MAX_MPTS: Field = byte(0x1d);
    pub(crate) const LOG_RESERVED_EQS: Field = byte(0x1e);
    pub(crate) const LOG_MAX_EQS: Field = byte(0x1f);
    pub(crate) const LOG_RESERVED_MTTS: Field = bits(0x20, 31, 28);
    pub(crate) const LOG_MAX_REGION_LENGTH: Field = byte(0x21);
    pub(crate) const LOG_RESERVED_MPTS: Field = byte(0x22);
    pub(crate) const SYSTEM_EQS: Field = half(0x26);
    pub(crate) const LOG_MAX_REQUESTER_RDMA: Field = byte(0x29);
    pub(crate) const LOG_MAX_RESPONDER_RDMA: Field = byte(0x2b);
    pub(crate) const LOG_MAX_LARGE_SEND: Field = byte(0x2d);
    pub(crate) const RSS: Field = byte(0x2e);
    pub(crate) const LOG_MAX_RDMA_TOTAL: Field = byte(0x2f);
    pub(crate) const PORT_BEACON: Field = byte(0x34);
    pub(crate) const LOCAL_ACK_DELAY: Field = byte(0x35);
    pub(crate) const VIRTUAL_LANES: Field = bits(0x34, 7, 4);
    pub(crate) const PORTS: Field = bits(0x34, 3, 0);
    pub(crate) const LOG_MAX_MESSAGE: Field = byte(0x38);
    pub(crate) const LOG_MAX_GIDS: Field = byte(0x3b);
    pub(crate) const CQ_TIMESTAMPS: Field = byte(0x3e);
    pub(crate) const LOG_MAX_PKEYS: Field = byte(0x3f);
    pub(crate) const FLAGS_HIGH: Field = word(0x40);
    pub(crate) const FLAGS: Field = word(0x44);
    pub(crate) const RESERVED_UARS: Field = byte(0x48);
    pub(crate) const LOG_UAR_MIB: Field = byte(0x49);
    pub(crate) const LOG_MIN_PAGE: Field = byte(0x4b);
    pub(crate) const BLUE_FLAME: Field = byte(0x4c);
    pub(crate) const LOG_BLUE_FLAME_REGISTER: Field = byte(0x4d);
    pub(crate) const LOG_BLUE_FLAME_REGISTERS_PER_PAGE: Field = byte(0x4e);
    pub(crate) const LOG_BLUE_FLAME_PAGES: Field = byte(0x4f);
    pub(crate) const MAX_SEND_SGES: Field = byte(0x51);
    pub(crate) const MAX_SEND_WQE: Field = half(0x52);
    pub(crate) const MAX_RECEIVE_SGES: Field = byte(0x55);
    pub(crate) const MAX_RECEIVE_WQE: Field = half(0x56);
    pub(crate) const LOG_MAX_GROUP_MEMBERS: Field = byte(0x61);
    pub(crate) const LOG_RESERVED_GROUPS: Field = byte(0x62);
    pub(crate) const LOG_MAX_GROUPS: Field = byte(0x63);
    pub(crate) const RESERVED_PDS: Field = bits(0x64, 31, 28);
    pub(crate) const LOG_MAX_PDS: Field = byte(0x65);
    pub(crate) const LOG_MAX_XRC_DOMAINS: Field = byte(0x67);
    pub(crate) const MAX_COUNTERS: Field = word(0x68);
    pub(crate) const EXTENDED_FLAGS: Field = word(0x70);
    pub(crate) const FLOW_STEERING_IPOIB: Field = byte(0x74);
    pub(crate) const FLOW_STEERING: Field = byte(0x76);
    pub(crate) const FLOW_STEERING_MAX_QPS: Field = byte(0x77);
    pub(crate) const QOS_PER_FUNCTION: Field = bits(0x78, 12, 12);
    pub(crate) const CONGESTION_NOTIFICATION: Field = bits(0x78, 0, 0);
    pub(crate) const BMME_FLAGS: Field = word(0x94);
    pub(crate) const KEEP_FCS: Field = bits(0x94, 26, 26);
    pub(crate) const RESERVED_LKEY: Field = word(0x98);
    pub(crate) const TUNNELS: Field = byte(0x9e);
    pub(crate) const MAX_ICM_HIGH: Field = word(0xa0);
    pub(crate) const CLOCK_TO_PROGRAMS: Field = byte(0xc1);
    pub(crate) const RATE_LIMITS: Field = half(0xcc);

    /// Lengths of table entries in bytes, 16 bits each: RDMARC, QPC, AUXC, ALTC, EQC, CQC, SRQC, cMPT, MTT,
    /// dMPT.
    pub(crate) const ENTRY_SIZES: usize = 0x80;
}

/// QUERY_FW (Linux `mlx4/fw.c`, `mlx4_QUERY_FW`).
pub(crate) mod query_fw {
    use super::{Field, byte, half, word};

    pub(crate) const PAGES: Field = half(0x00);
    pub(crate) const VERSION_MAJOR: Field = half(0x02);
    pub(crate) const VERSION_SUBMINOR: Field = half(0x04);
    pub(crate) const VERSION_MINOR: Field = half(0x06);
    pub(crate) const COMMAND_REVISION: Field = half(0x0a);
    pub(crate) const LOG_MAX_COMMANDS: Field = byte(0x0f);
    pub(crate) const CLEAR_INTERRUPT_HIGH: Field = word(0x20);
    pub(crate) const ERROR_BUFFER_HIGH: Field = word(0x30);
    pub(crate) const ERROR_BUFFER_WORDS: Field = word(0x38);
    pub(crate) const CLOCK_HIGH: Field = word(0x50);
}

/// QUERY_ADAPTER (Linux `mlx4/fw.c`, `mlx4_QUERY_ADAPTER`).
pub(crate) mod query_adapter {
    use super::{Field, byte, half};

    pub(crate) const INTA_PIN: Field = byte(0x10);
    pub(crate) const VENDOR: Field = half(0x1a);
    pub(crate) const BOARD: usize = 0xf0;
}

/// QUERY_FUNC (Linux `mlx4/fw.c`, `mlx4_QUERY_FUNC`).
pub(crate) mod query_func {
    use super::{Field, half};

    pub(crate) const RESERVED_EQS: Field = half(0x04);
    pub(crate) const MAX_EQS: Field = half(0x06);
}

/// QUERY_PORT (Linux `mlx4/fw.c`, `mlx4_QUERY_PORT`, and `en_port.h`).
pub(crate) mod query_port {
    use super::{Field, bits, byte, half, word};

    pub(crate) const LINK_AND_TYPES: Field = byte(0x00);
    pub(crate) const MAX_PATH_MTU: Field = byte(0x01);
    pub(crate) const MAX_ETHERNET_MTU: Field = half(0x02);
    pub(crate) const SPEED: Field = byte(0x05);
    pub(crate) const MAX_WIDTH: Field = byte(0x06);
    pub(crate) const LOG_MAX_GIDS: Field = bits(0x04, 7, 4);
    pub(crate) const LOG_MAX_PKEYS: Field = bits(0x04, 3, 0);
    pub(crate) const LOG_MAX_VLANS: Field = bits(0x08, 15, 12);
    pub(crate) const LOG_MAX_MACS: Field = bits(0x08, 11, 8);
    pub(crate) const VIRTUAL_LANES: Field = byte(0x0b);
    pub(crate) const MAC_HIGH: Field = word(0x10);
}

/// MOD_STAT_CFG that reads a GUID.
pub(crate) mod mod_stat_cfg {
    use super::{Field, word};

    pub(crate) const GUID_UPPER: Field = word(0x14);
    pub(crate) const GUID_LOWER: Field = word(0x1c);
}
