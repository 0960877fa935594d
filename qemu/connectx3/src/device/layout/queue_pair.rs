//! The layouts of a queue pair's context.

use super::{Field, bits, half, word};

/// The context of a queue pair behind the mask of optional parameters, as transitions pass it (Linux
/// `include/linux/mlx4/qp.h`, `mlx4_qp_context`). Receive side scaling reuses a part of the path.
pub(crate) mod qp_context {
    use super::{Field, bits, half, word};

    pub(crate) const OPTIONAL: Field = word(0x00);
    pub(crate) const STATE: Field = bits(0x08, 31, 28);
    pub(crate) const SERVICE: Field = bits(0x08, 23, 16);
    pub(crate) const SPREADS: Field = bits(0x08, 13, 13);
    pub(crate) const MIGRATION: Field = bits(0x08, 12, 11);
    pub(crate) const PD: Field = bits(0x0c, 23, 0);
    pub(crate) const MTU: Field = bits(0x10, 31, 29);
    pub(crate) const LOG_MESSAGE: Field = bits(0x10, 28, 24);
    pub(crate) const LOG_RECEIVES: Field = bits(0x10, 22, 19);
    pub(crate) const RECEIVE_STRIDE: Field = bits(0x10, 18, 16);
    pub(crate) const LOG_SENDS: Field = bits(0x10, 14, 11);
    pub(crate) const SEND_STRIDE: Field = bits(0x10, 10, 8);
    pub(crate) const ROCE_MODE: Field = bits(0x10, 7, 6);
    pub(crate) const RESERVED_LKEY: Field = bits(0x10, 4, 4);
    pub(crate) const UAR: Field = bits(0x14, 23, 0);
    pub(crate) const LOCAL_QPN: Field = bits(0x18, 23, 0);
    pub(crate) const REMOTE_QPN: Field = bits(0x1c, 23, 0);
    pub(crate) const PATH_FLAGS: Field = bits(0x20, 31, 24);
    pub(crate) const PATH_CONTROL: Field = bits(0x20, 23, 16);
    pub(crate) const IGNORES_PKEY: Field = bits(0x20, 15, 8);
    pub(crate) const PKEY_INDEX: Field = bits(0x20, 7, 0);
    pub(crate) const COUNTER: Field = bits(0x24, 31, 24);
    pub(crate) const GRH: Field = bits(0x24, 23, 23);
    pub(crate) const SOURCE_MAC: Field = bits(0x24, 22, 16);
    pub(crate) const REMOTE_LID: Field = bits(0x24, 15, 0);
    pub(crate) const ACK_TIMEOUT: Field = bits(0x28, 31, 27);
    pub(crate) const LINK_TYPE: Field = bits(0x28, 26, 24);
    pub(crate) const SOURCE_GID: Field = bits(0x28, 23, 16);
    pub(crate) const STATIC_RATE: Field = bits(0x28, 15, 8);
    pub(crate) const HOP_LIMIT: Field = bits(0x28, 7, 0);
    pub(crate) const TRAFFIC_CLASS: Field = bits(0x2c, 27, 20);
    pub(crate) const FLOW_LABEL: Field = bits(0x2c, 19, 0);
    pub(crate) const REMOTE_GID_0: Field = word(0x30);
    pub(crate) const REMOTE_GID_1: Field = word(0x34);
    pub(crate) const REMOTE_GID_2: Field = word(0x38);
    pub(crate) const REMOTE_GID_3: Field = word(0x3c);
    pub(crate) const SCHED_QUEUE: Field = bits(0x40, 31, 24);
    pub(crate) const VLAN_INDEX: Field = bits(0x40, 23, 16);
    pub(crate) const FORCES: Field = bits(0x40, 15, 0);
    pub(crate) const REMOTE_MAC_HIGH: Field = bits(0x44, 15, 0);
    pub(crate) const REMOTE_MAC: Field = word(0x48);
    pub(crate) const LOG_SPREAD: Field = bits(0x44, 31, 24);
    pub(crate) const SPREAD_BASE: Field = bits(0x44, 23, 0);
    pub(crate) const SPREAD_DEFAULT: Field = bits(0x48, 23, 0);
    pub(crate) const HASH_FUNCTION: Field = bits(0x4c, 15, 8);
    pub(crate) const HASH_OF: Field = bits(0x4c, 7, 0);
    pub(crate) const KEY_0: Field = word(0x50);
    pub(crate) const KEY_1: Field = word(0x54);
    pub(crate) const KEY_2: Field = word(0x58);
    pub(crate) const KEY_3: Field = word(0x5c);
    pub(crate) const KEY_4: Field = word(0x60);
    pub(crate) const KEY_5: Field = word(0x64);
    pub(crate) const KEY_6: Field = word(0x68);
    pub(crate) const KEY_7: Field = word(0x6c);
    pub(crate) const KEY_8: Field = word(0x70);
    pub(crate) const KEY_9: Field = word(0x74);
    pub(crate) const SPREAD_BASE_UDP: Field = word(0x78);
    pub(crate) const LOG_ACK_REQUESTS: Field = bits(0x78, 31, 28);
    pub(crate) const REQUESTER_READS: Field = bits(0x78, 23, 21);
    pub(crate) const RETRIES: Field = bits(0x78, 18, 16);
    pub(crate) const RNR_RETRIES: Field = bits(0x78, 15, 13);
    pub(crate) const FAST_REGISTER: Field = bits(0x78, 11, 11);
    pub(crate) const SEND_PSN: Field = bits(0x80, 23, 0);
    pub(crate) const ACKNOWLEDGED_PSN: Field = bits(0x90, 23, 0);
    pub(crate) const RECEIVE_INDEX: Field = bits(0xbc, 31, 16);
    pub(crate) const SEND_INDEX: Field = bits(0xbc, 15, 0);
    pub(crate) const SEND_CQN: Field = bits(0x84, 23, 0);
    pub(crate) const UDP_SOURCE: Field = bits(0x88, 31, 16);
    pub(crate) const RESPONDER_READS: Field = bits(0x98, 23, 21);
    pub(crate) const PEER_READS: Field = bits(0x98, 15, 15);
    pub(crate) const PEER_WRITES: Field = bits(0x98, 14, 14);
    pub(crate) const PEER_ATOMICS: Field = bits(0x98, 13, 13);
    pub(crate) const PAGE_OFFSET: Field = bits(0x98, 11, 6);
    pub(crate) const RECEIVES_FROM_SRQ: Field = bits(0x98, 4, 4);
    pub(crate) const PHYSICAL_PORT: Field = bits(0x98, 3, 3);
    pub(crate) const RNR_TIMER: Field = bits(0x9c, 28, 24);
    pub(crate) const RECEIVE_PSN: Field = bits(0x9c, 23, 0);
    pub(crate) const XRC_DOMAIN: Field = bits(0xa0, 23, 0);
    pub(crate) const RECEIVE_CQN: Field = bits(0xa4, 23, 0);
    pub(crate) const RECORD_HIGH: Field = word(0xa8);
    pub(crate) const RECORD: Field = word(0xac);
    pub(crate) const Q_KEY: Field = word(0xb0);
    pub(crate) const USES_SRQ: Field = bits(0xb4, 24, 24);
    pub(crate) const SRQN: Field = bits(0xb4, 23, 0);
    pub(crate) const RATE_LIMIT: Field = half(0xc4);
    pub(crate) const KEEP_VLAN: Field = bits(0xc8, 30, 30);
    pub(crate) const KEEP_FCS: Field = bits(0xc8, 29, 29);
    pub(crate) const INLINE_RECEIVE: Field = bits(0xc8, 25, 25);
    pub(crate) const LOG_PAGE: Field = bits(0xd0, 29, 24);
    pub(crate) const MTT_HIGH: Field = bits(0xd0, 7, 0);
    pub(crate) const MTT: Field = word(0xd4);
}

/// UPDATE_QP (Linux `mlx4/mlx4.h`, `mlx4_update_qp_context`).
pub(crate) mod update_qp {
    use super::{Field, bits, word};

    pub(crate) const QP_MASK_HIGH: Field = word(0x00);
    pub(crate) const QP_MASK: Field = word(0x04);
    pub(crate) const PATH_MASK_HIGH: Field = word(0x08);
    pub(crate) const PATH_MASK: Field = word(0x0c);
    pub(crate) const ALTERNATE_MASK_HIGH: Field = word(0x10);
    pub(crate) const GRH_AND_SOURCE_MAC: Field = bits(0x3c, 23, 16);
    pub(crate) const SOURCE_MAC: Field = bits(0x3c, 22, 16);
    pub(crate) const KEEP_VLAN: Field = bits(0xe0, 30, 30);
}
