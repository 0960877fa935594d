//! The layouts of commands that set up the card, its ports and its steering.

use super::{Field, bits, byte, half, word};

/// INIT_HCA (Linux `mlx4/fw.c`, `mlx4_INIT_HCA`).
pub(crate) mod init_hca {
    use super::{Field, bits, word};

    pub(crate) const VERSION: Field = bits(0x000, 31, 24);
    pub(crate) const CACHE_LINE: Field = bits(0x00c, 15, 8);
    pub(crate) const FLAGS: Field = word(0x014);
    pub(crate) const FLAGS2: Field = word(0x018);
    pub(crate) const QPC_BASE_HIGH: Field = word(0x030);
    pub(crate) const QPC_BASE: Field = bits(0x034, 31, 5);
    pub(crate) const LOG_QPS: Field = bits(0x034, 4, 0);
    pub(crate) const SRQC_BASE_HIGH: Field = word(0x048);
    pub(crate) const SRQC_BASE: Field = bits(0x04c, 31, 5);
    pub(crate) const LOG_SRQS: Field = bits(0x04c, 4, 0);
    pub(crate) const CQC_BASE_HIGH: Field = word(0x050);
    pub(crate) const CQC_BASE: Field = bits(0x054, 31, 5);
    pub(crate) const LOG_CQS: Field = bits(0x054, 4, 0);
    pub(crate) const ENTRY_SIZES: Field = word(0x058);
    pub(crate) const ALTC_BASE_HIGH: Field = word(0x060);
    pub(crate) const ALTC_BASE: Field = word(0x064);
    pub(crate) const AUXC_BASE_HIGH: Field = word(0x070);
    pub(crate) const AUXC_BASE: Field = word(0x074);
    pub(crate) const EQC_BASE_HIGH: Field = word(0x080);
    pub(crate) const EQC_BASE: Field = bits(0x084, 31, 5);
    pub(crate) const LOG_EQS: Field = bits(0x084, 4, 0);
    pub(crate) const SYSTEM_EQS: Field = bits(0x088, 11, 0);
    pub(crate) const RDMARC_BASE_HIGH: Field = word(0x090);
    pub(crate) const RDMARC_BASE: Field = bits(0x094, 31, 3);
    pub(crate) const LOG_RDMARC: Field = bits(0x094, 2, 0);
    pub(crate) const MCG_BASE_HIGH: Field = word(0x0c0);
    pub(crate) const MCG_BASE: Field = word(0x0c4);
    pub(crate) const LOG_MCG_ENTRY: Field = bits(0x0d0, 7, 0);
    pub(crate) const LOG_MCG_HASH: Field = bits(0x0d4, 7, 0);
    pub(crate) const UNICAST_STEERING: Field = bits(0x0d8, 27, 27);
    pub(crate) const LOG_MCGS: Field = bits(0x0d8, 7, 0);
    pub(crate) const DMPT_BASE_HIGH: Field = word(0x0f0);
    pub(crate) const DMPT_BASE: Field = word(0x0f4);
    pub(crate) const WINDOWS: Field = bits(0x0f8, 31, 31);
    pub(crate) const LOG_MPTS: Field = bits(0x0f8, 5, 0);
    pub(crate) const MTT_BASE_HIGH: Field = word(0x100);
    pub(crate) const MTT_BASE: Field = word(0x104);
    pub(crate) const CMPT_BASE_HIGH: Field = word(0x108);
    pub(crate) const CMPT_BASE: Field = word(0x10c);
    pub(crate) const LOG_UARS: Field = bits(0x128, 11, 8);
    pub(crate) const LOG_UAR_PAGE: Field = bits(0x128, 7, 0);
    pub(crate) const FLOW_BASE_HIGH: Field = word(0x1d0);
    pub(crate) const FLOW_BASE: Field = word(0x1d4);
    pub(crate) const LOG_FLOW_ENTRY: Field = bits(0x1e0, 7, 0);
    pub(crate) const LOG_FLOWS: Field = bits(0x1e8, 7, 0);
    pub(crate) const FLOW_ETHERNET: Field = word(0x1f0);
    pub(crate) const FLOW_INFINIBAND: Field = word(0x1f4);
}

/// SET_PORT of general settings (Linux `mlx4/port.c`, `mlx4_set_port_general_context`).
pub(crate) mod set_port_general {
    use super::{Field, bits, word};

    pub(crate) const FLAGS2: Field = bits(0x00, 15, 8);
    pub(crate) const FLAGS: Field = bits(0x00, 7, 0);
    pub(crate) const ROCE_MODE: Field = bits(0x04, 31, 28);
    pub(crate) const MTU: Field = bits(0x04, 15, 0);
    pub(crate) const PPTX: Field = bits(0x08, 31, 24);
    pub(crate) const PFCTX: Field = bits(0x08, 23, 16);
    pub(crate) const PPRX: Field = bits(0x0c, 31, 24);
    pub(crate) const PFCRX: Field = bits(0x0c, 23, 16);
    pub(crate) const USER_MTU: Field = bits(0x18, 15, 0);
    pub(crate) const USER_MAC_HIGH: Field = bits(0x1c, 15, 0);
    pub(crate) const USER_MAC: Field = word(0x20);
}

/// SET_PORT of queue calculation (Linux `mlx4/port.c`, `mlx4_set_port_rqp_calc_context`).
pub(crate) mod set_port_queues {
    use super::{Field, bits, word};

    pub(crate) const BASE_QPN: Field = word(0x00);
    pub(crate) const LOG_MACS: Field = bits(0x04, 23, 16);
    pub(crate) const LOG_VLANS: Field = bits(0x04, 15, 8);
    pub(crate) const LOG_PRIORITIES: Field = bits(0x04, 7, 0);
    pub(crate) const NO_VLAN: Field = bits(0x0c, 23, 16);
    pub(crate) const VLAN_MISS: Field = bits(0x0c, 7, 0);
    pub(crate) const PROMISCUOUS: Field = bits(0x14, 31, 31);
    pub(crate) const PROMISCUOUS_QPN: Field = bits(0x14, 23, 0);
    pub(crate) const MULTICAST_MODE: Field = bits(0x18, 31, 30);
    pub(crate) const MULTICAST_QPN: Field = bits(0x18, 23, 0);
}

/// CONFIG_DEV (Linux `mlx4/fw.c`, `mlx4_config_dev`).
pub(crate) mod config_dev {
    use super::{Field, bits, byte, word};

    pub(crate) const UPDATE: Field = word(0x00);
    pub(crate) const VXLAN_PORT: Field = bits(0x10, 15, 0);
    pub(crate) const ROCE_PORT: Field = bits(0x14, 15, 0);
    pub(crate) const ROCE_FLAGS: Field = word(0x18);
    pub(crate) const CHECKSUM_MODES: Field = byte(0x83);
}

/// SET_PORT of an InfiniBand port (Linux `mlx4/port.c`, `mlx4_SET_PORT`).
pub(crate) mod set_port_infiniband {
    use super::{Field, bits, word};

    pub(crate) const SET: Field = word(0x00);
    pub(crate) const CAPABILITIES: Field = word(0x04);
    pub(crate) const MAX_PKEYS: Field = bits(0x28, 31, 16);
    pub(crate) const MAX_GIDS: Field = bits(0x28, 15, 0);
}

/// A management datagram of MAD_IFC.
pub(crate) mod mad {
    use super::{Field, byte, half};
    use crate::subnet::offset;

    pub(crate) const CLASS: Field = byte(offset::CLASS);
    pub(crate) const METHOD: Field = byte(offset::METHOD);
    pub(crate) const ATTRIBUTE: Field = half(offset::ATTRIBUTE);
}

/// ACCESS_REG (Linux `mlx4/fw.c`, `mlx4_ACCESS_REG`).
pub(crate) mod access_register {
    use super::{Field, bits};

    pub(crate) const REGISTER: Field = bits(0x04, 31, 16);
    pub(crate) const METHOD: Field = bits(0x04, 15, 8);
}

/// The control block of QP_FLOW_STEERING_ATTACH (Linux `mlx4/mcg.c`).
pub(crate) mod flow_rule {
    use super::{Field, bits};

    pub(crate) const PRIORITY: Field = bits(0x00, 31, 16);
    pub(crate) const KIND: Field = bits(0x00, 15, 8);
    pub(crate) const FLAGS: Field = bits(0x00, 7, 0);
    pub(crate) const PORT: Field = bits(0x04, 7, 0);
    pub(crate) const QPN: Field = bits(0x08, 23, 0);
}

/// Subcommands of SET_PORT with op_mod 1.
pub(crate) mod set_port_part {
    pub(crate) const GENERAL: u32 = 0x0;
    pub(crate) const RQP_CALC: u32 = 0x1;
    pub(crate) const MAC_TABLE: u32 = 0x2;
    pub(crate) const VLAN_TABLE: u32 = 0x3;
    pub(crate) const PRIO_MAP: u32 = 0x4;
    pub(crate) const GID_TABLE: u32 = 0x5;
    pub(crate) const PRIO2TC: u32 = 0x8;
    pub(crate) const SCHEDULER: u32 = 0x9;
    pub(crate) const ROCE_ADDR: u32 = 0xd;
}
