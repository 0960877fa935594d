//! The layouts of queues' contexts, and of entries of the tables of regions and groups.

use super::{Field, bits, word};

/// The context of an event queue (Linux `mlx4/eq.c`, `mlx4_eq_context`).
pub(crate) mod eq_context {
    use super::{Field, bits, word};

    pub(crate) const CONTEXT_STATUS: Field = bits(0x00, 31, 28);
    pub(crate) const FLAGS: Field = bits(0x00, 27, 12);
    pub(crate) const STATE: Field = bits(0x00, 11, 8);
    pub(crate) const PAGE_OFFSET: Field = bits(0x08, 11, 5);
    pub(crate) const LOG_ENTRIES: Field = bits(0x0c, 28, 24);
    pub(crate) const PERIOD: Field = bits(0x10, 31, 16);
    pub(crate) const COUNT: Field = bits(0x10, 15, 0);
    pub(crate) const VECTOR: Field = bits(0x14, 9, 0);
    pub(crate) const LOG_PAGE: Field = bits(0x18, 29, 24);
    pub(crate) const MTT_HIGH: Field = bits(0x18, 7, 0);
    pub(crate) const MTT: Field = word(0x1c);
    pub(crate) const CONSUMER_INDEX: Field = bits(0x28, 23, 0);
    pub(crate) const PRODUCER_INDEX: Field = bits(0x2c, 23, 0);
}

/// The context of a completion queue (Linux `mlx4/cq.c`, `mlx4_cq_context`).
pub(crate) mod cq_context {
    use super::{Field, bits, word};

    pub(crate) const CONTEXT_STATUS: Field = bits(0x00, 31, 28);
    pub(crate) const FLAGS: Field = bits(0x00, 27, 12);
    pub(crate) const STATE: Field = bits(0x00, 11, 8);
    pub(crate) const PAGE_OFFSET: Field = bits(0x08, 11, 5);
    pub(crate) const LOG_ENTRIES: Field = bits(0x0c, 28, 24);
    pub(crate) const UAR: Field = bits(0x0c, 23, 0);
    pub(crate) const PERIOD: Field = bits(0x10, 31, 16);
    pub(crate) const COUNT: Field = bits(0x10, 15, 0);
    pub(crate) const EQN: Field = bits(0x14, 8, 0);
    pub(crate) const LOG_PAGE: Field = bits(0x18, 29, 24);
    pub(crate) const MTT_HIGH: Field = bits(0x18, 7, 0);
    pub(crate) const MTT: Field = word(0x1c);
    pub(crate) const RECORD_HIGH: Field = word(0x38);
    pub(crate) const RECORD: Field = word(0x3c);
    pub(crate) const PRODUCER_INDEX: Field = word(0x2c);
}

/// The context of a shared receive queue (Linux `mlx4/srq.c`, `mlx4_srq_context`).
pub(crate) mod srq_context {
    use super::{Field, bits, word};

    pub(crate) const STATE: Field = bits(0x00, 31, 28);
    pub(crate) const LOG_ENTRIES: Field = bits(0x00, 27, 24);
    pub(crate) const SRQN: Field = bits(0x00, 23, 0);
    pub(crate) const LOG_STRIDE: Field = bits(0x04, 26, 24);
    pub(crate) const XRC_DOMAIN: Field = bits(0x04, 15, 0);
    pub(crate) const PAGE_OFFSET: Field = bits(0x08, 31, 26);
    pub(crate) const CQN: Field = bits(0x08, 23, 0);
    pub(crate) const LOG_PAGE: Field = bits(0x10, 29, 24);
    pub(crate) const MTT_HIGH: Field = bits(0x10, 7, 0);
    pub(crate) const MTT: Field = word(0x14);
    pub(crate) const PD: Field = word(0x18);
    pub(crate) const LIMIT: Field = bits(0x1c, 31, 16);
    pub(crate) const RECORD_HIGH: Field = word(0x28);
    pub(crate) const RECORD: Field = word(0x2c);
    pub(crate) const ENTRIES_TAKEN: Field = bits(0x20, 15, 0);
}

/// An entry of the memory protection table (Linux `mlx4/mlx4.h`, `mlx4_mpt_entry`).
pub(crate) mod mpt {
    use super::{Field, bits, word};

    pub(crate) const CONTEXT_STATUS: Field = bits(0x00, 31, 28);
    pub(crate) const FLAGS: Field = bits(0x00, 27, 0);
    pub(crate) const QPN: Field = word(0x04);
    pub(crate) const KEY: Field = word(0x08);
    pub(crate) const PD_FLAGS: Field = bits(0x0c, 31, 24);
    pub(crate) const PD: Field = bits(0x0c, 23, 0);
    pub(crate) const START_HIGH: Field = word(0x10);
    pub(crate) const START: Field = word(0x14);
    pub(crate) const LENGTH_HIGH: Field = word(0x18);
    pub(crate) const LENGTH: Field = word(0x1c);
    pub(crate) const LKEY: Field = word(0x20);
    pub(crate) const WINDOWS: Field = word(0x24);
    pub(crate) const LENGTH_FLAGS: Field = word(0x28);
    pub(crate) const MTT_HIGH: Field = word(0x2c);
    pub(crate) const MTT: Field = word(0x30);
    pub(crate) const MTT_SIZE: Field = word(0x34);
    pub(crate) const LOG_PAGE: Field = word(0x38);
    pub(crate) const FIRST_BYTE: Field = word(0x3c);
}

/// An entry of the multicast table (Linux `mlx4/mlx4.h`, `mlx4_mgm`).
pub(crate) mod mcg {
    use super::{Field, bits, word};

    pub(crate) const NEXT: Field = word(0x00);
    pub(crate) const PROTOCOL: Field = bits(0x04, 31, 30);
    pub(crate) const MEMBERS: Field = bits(0x04, 23, 0);
}
