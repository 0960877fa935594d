//! The layouts of the entries that the card writes to completion and event queues.

/// An entry of a completion queue (Linux `include/linux/mlx4/cq.h`: `mlx4_cqe`, `mlx4_err_cqe`,
/// `mlx4_ts_cqe`).
pub(crate) mod cqe {
    use crate::device::layout::{Field, bits, byte, half, word};

    /// The kind of the received frame's VLAN tag: [`CUSTOMER`] or [`SERVICE`].
    pub(crate) const TAG: Field = bits(0x00, 30, 29);
    pub(crate) const QPN: Field = bits(0x00, 23, 0);
    /// Immediate data, the invalidated key, the hash of a frame, or the index of a partition.
    pub(crate) const IMMEDIATE: Field = word(0x04);
    /// Set if a global header precedes the datagram.
    pub(crate) const GLOBAL: Field = bits(0x08, 31, 31);
    pub(crate) const PATH_BITS: Field = bits(0x08, 30, 24);
    pub(crate) const REMOTE_QPN: Field = bits(0x08, 23, 0);
    /// The shared receive queue, for an XRC queue pair.
    pub(crate) const SRQN: Field = bits(0x08, 23, 0);
    pub(crate) const VLAN: Field = half(0x0c);
    pub(crate) const SERVICE_LEVEL: Field = bits(0x0c, 31, 28);
    pub(crate) const REMOTE_LID: Field = half(0x0e);
    pub(crate) const REMOTE_MAC_HIGH: Field = half(0x0e);
    pub(crate) const REMOTE_MAC: Field = word(0x10);
    /// The upper part of the timestamp, in place of the service level and the sender.
    pub(crate) const STAMP_HIGH: Field = word(0x0c);
    /// The kinds of the headers of a received frame.
    pub(crate) const HEADERS: Field = half(0x10);
    /// Set if the checksum of the transport header is right.
    pub(crate) const TRANSPORT_OK: Field = bits(0x10, 2, 2);
    pub(crate) const LENGTH: Field = word(0x14);
    /// The index of the work request modulo 2^16.
    pub(crate) const WQE: Field = half(0x18);
    pub(crate) const CHECKSUM: Field = half(0x1a);
    /// The vendor's code of an error.
    pub(crate) const VENDOR: Field = byte(0x1a);
    pub(crate) const SYNDROME: Field = byte(0x1b);
    /// The lower part of the timestamp.
    pub(crate) const STAMP: Field = bits(0x1c, 23, 8);
    pub(crate) const OWNER: Field = bits(0x1c, 7, 7);
    /// Set in the completion of a sent work request.
    pub(crate) const SENT: Field = bits(0x1c, 6, 6);
    pub(crate) const OPCODE: Field = bits(0x1c, 4, 0);

    /// [`TAG`] of a frame with a C-VLAN tag.
    pub(crate) const CUSTOMER: u32 = 1;
    /// [`TAG`] of a frame with an S-VLAN tag.
    pub(crate) const SERVICE: u32 = 2;
    /// [`OPCODE`] of an error.
    pub(crate) const ERROR: u8 = 0x1e;
}

/// An entry of an event queue (Linux `include/linux/mlx4/device.h`, `mlx4_eqe`).
pub(crate) mod eqe {
    use crate::device::layout::{Field, bits, byte, half, word};

    pub(crate) const KIND: Field = byte(0x01);
    pub(crate) const SUBTYPE: Field = byte(0x03);
    /// The number of the queue, queue pair or port.
    pub(crate) const NUMBER: Field = word(0x04);
    /// The syndrome of a completion queue's error.
    pub(crate) const SYNDROME: Field = byte(0x0f);
    /// The port of a changed link.
    pub(crate) const PORT: Field = bits(0x0c, 31, 28);
    pub(crate) const OWNER: Field = bits(0x1c, 7, 7);

    /// The token, the status and the result of a command.
    pub(crate) const TOKEN: Field = half(0x06);
    pub(crate) const STATUS: Field = byte(0x0f);
    pub(crate) const OUT_HIGH: Field = word(0x10);
    pub(crate) const OUT: Field = word(0x14);

    /// The changed attributes of a port.
    pub(crate) const MANAGER_LID: Field = half(0x08);
    pub(crate) const LID: Field = half(0x0a);
    pub(crate) const CHANGED: Field = word(0x0c);
    pub(crate) const MANAGER_LEVEL: Field = word(0x10);
    pub(crate) const PREFIX_HIGH: Field = word(0x14);
    pub(crate) const PREFIX: Field = word(0x18);
    /// The changed block of a port's table, and the mask of its changed entries.
    pub(crate) const BLOCK: Field = word(0x08);
    pub(crate) const ENTRIES: Field = word(0x0c);
}
