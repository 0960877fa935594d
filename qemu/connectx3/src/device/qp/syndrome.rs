//! Syndromes and vendor codes of failed work requests' completions (Linux `include/linux/mlx4/cq.h`).

use crate::device::cq::Cqe;
use verbs::Status;

/// The syndrome of refused work on keys: of a bind and, on the card, of all memory management.
pub(crate) const MEMORY_MANAGEMENT: u8 = 0x06;

/// Returns the completion queue entry of a failure.
#[must_use]
pub(crate) fn failure(qpn: u32, index: u16, send: bool, status: Status) -> Cqe {
    let (syndrome, vendor) = codes(status);
    Cqe::error(qpn, index, send, syndrome, vendor)
}

/// Returns syndrome and vendor code. No driver reads the vendor code; these are from logs of cards: 0x81 and
/// 0x88 with illumos on a ConnectX-2, 0xf9 with Linux on a ConnectX-3, 0x8a with Linux on a later card. The
/// others are 0.
const fn codes(status: Status) -> (u8, u8) {
    match status {
        Status::Success => (0x00, 0),
        Status::LocalLengthError => (0x01, 0),
        Status::LocalQpOperationError => (0x02, 0),
        Status::LocalProtectionError => (0x04, 0),
        Status::WorkRequestFlushed => (0x05, 0xf9),
        Status::BadResponse => (0x10, 0),
        Status::RemoteInvalidRequest => (0x12, 0x8a),
        Status::RemoteAccessError => (0x13, 0x88),
        Status::RemoteOperationError => (0x14, 0),
        Status::RetryExceeded => (0x15, 0x81),
        Status::RnrRetryExceeded => (0x16, 0),
    }
}
