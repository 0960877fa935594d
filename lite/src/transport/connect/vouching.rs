//! Vouchers of the manager, as the two ends of an attempt see them.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;
use proto::{Attempt, MemberKey, VoucherKey};
use verbs::QpNum;

/// The time for which a voucher is accepted, from the time at which the manager gave it. It is longer than
/// an attempt, with the slowest control connection.
pub(crate) const VALID: Duration = Duration::from_secs(5);

/// A voucher that this node has asked for.
#[derive(Clone)]
pub(crate) struct Voucher {
    pub(crate) stamp: u64,
    pub(crate) key: VoucherKey,
    /// The queue pair at which the peer receives datagrams.
    pub(crate) queue_pair: Option<QpNum>,
}

/// The means by which this node checks vouchers for it: its key, and the manager's clock.
pub(crate) struct Vouching {
    key: MemberKey,
    /// The difference between the manager's clock and this node's, in nanoseconds, wrapping. It comes from
    /// the last message with the manager's time, so the manager's clock is at least this far ahead.
    ahead: AtomicU64,
}

impl Vouching {
    /// Makes the state of a node that the manager has welcomed at `time` of the manager's clock.
    pub(crate) fn new(key: MemberKey, time: u64, now: Instant) -> Self {
        Self { key, ahead: AtomicU64::new(time.wrapping_sub(now.as_nanos())) }
    }

    /// Notes the time of the manager's clock in a message that this node reads at `now`.
    pub(crate) fn note(&self, time: u64, now: Instant) {
        self.ahead.store(time.wrapping_sub(now.as_nanos()), Ordering::Relaxed);
    }

    /// Returns true if a voucher with this stamp is not too old at `now`.
    pub(crate) fn is_fresh(&self, stamp: u64, now: Instant) -> bool {
        let time = now.as_nanos().wrapping_add(self.ahead.load(Ordering::Relaxed));
        time.saturating_sub(stamp) <= VALID.as_nanos() as u64
    }

    /// Returns the key of the voucher for an attempt whose responder this node is.
    pub(crate) fn key(&self, attempt: &Attempt) -> VoucherKey {
        self.key.voucher(attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voucher_is_fresh_for_a_while() {
        const SECOND: u64 = 1_000_000_000;
        let at = Instant::from_nanos;
        // This node's clock is behind the manager's, and then ahead of it.
        let vouching = Vouching::new(MemberKey::from_bytes([1; 32]), 100 * SECOND, at(7));
        assert!(vouching.is_fresh(100 * SECOND, at(7)));
        assert!(vouching.is_fresh(100 * SECOND, at(7 + 5 * SECOND)));
        assert!(!vouching.is_fresh(100 * SECOND, at(8 + 5 * SECOND)));
        assert!(vouching.is_fresh(103 * SECOND, at(8 + 5 * SECOND)), "a stamp may be ahead");
        vouching.note(102 * SECOND, at(900 * SECOND));
        assert!(vouching.is_fresh(100 * SECOND, at(902 * SECOND)));
        assert!(!vouching.is_fresh(100 * SECOND, at(904 * SECOND)));
    }
}
