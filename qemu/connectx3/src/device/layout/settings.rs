//! The layouts of commands that set up the card, its ports and its steering.

use super::{Field, bits, byte, word};

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

/// SET_PORT of an InfiniBand port (Linux `mlx4/port.c`, `mlx4_SET_PORT`).
pub mod set_port_infiniband {
    use super::{Field, bits, word};

    pub const SET: Field = word(0x00);
    pub const CAPABILITIES: Field = word(0x04);
    pub const MAX_PKEYS: Field = bits(0x28, 31, 16);
    pub const MAX_GIDS: Field = bits(0x28, 15, 0);
}

/// A management datagram of MAD_IFC.
pub mod mad {
    use super::{Field, bits};

    pub const CLASS: Field = bits(0x00, 23, 16);
    pub const METHOD: Field = bits(0x00, 7, 0);
    pub const ATTRIBUTE: Field = bits(0x10, 31, 16);
}

/// ACCESS_REG (Linux `mlx4/fw.c`, `mlx4_ACCESS_REG`).
pub mod access_register {
    use super::{Field, bits};

    pub const REGISTER: Field = bits(0x04, 31, 16);
    pub const METHOD: Field = bits(0x04, 15, 8);
}

/// The control block of QP_FLOW_STEERING_ATTACH (Linux `mlx4/mcg.c`).
pub mod flow_rule {
    use super::{Field, bits};

    pub const PRIORITY: Field = bits(0x00, 31, 16);
    pub const KIND: Field = bits(0x00, 15, 8);
    pub const FLAGS: Field = bits(0x00, 7, 0);
    pub const PORT: Field = bits(0x04, 7, 0);
    pub const QPN: Field = bits(0x08, 23, 0);
}
