//! The queue pairs of a connection as an operation sees them: which one it uses, and whether that has room.

use super::RPC_QP;
use crate::base::qos::Share;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use verbs::{Psn, QpNum};

/// One queue pair.
pub(crate) struct QueuePair {
    pub(crate) number: QpNum,
    /// The first PSN that this side sends.
    pub(crate) psn: Psn,
    load: Load,
    /// True once it is destroyed.
    pub(super) gone: AtomicBool,
}

/// The send work requests of a queue pair: those outstanding, and the total. Changed only under the lock of
/// the operation table.
#[derive(Default)]
struct Load(AtomicU64);

/// Low 32 bits: work requests outstanding, or `u32::MAX` while the queue pair is sealed. High 32 bits: work
/// requests posted so far, modulo 2^32.
const UNDER_WAY: u64 = u32::MAX as u64;
const BEGUN: u64 = 1 << 32;

impl QueuePair {
    pub(super) fn new(number: QpNum, psn: Psn) -> Self {
        Self { number, psn, load: Load::default(), gone: AtomicBool::new(false) }
    }

    /// Returns true if `depth` work requests are outstanding, or the queue pair is sealed.
    #[inline]
    pub(crate) fn is_full(&self, depth: u32) -> bool {
        self.load.0.load(Ordering::Relaxed) as u32 >= depth
    }

    /// Counts one more work request as outstanding.
    #[inline]
    pub(crate) fn begin(&self) {
        let load = self.load.0.load(Ordering::Relaxed);
        self.load.0.store(load.wrapping_add(BEGUN + 1), Ordering::Relaxed);
    }

    /// Counts one work request less as outstanding.
    #[inline]
    pub(crate) fn end(&self) {
        let load = self.load.0.load(Ordering::Relaxed);
        if !matches!(load & UNDER_WAY, 0 | UNDER_WAY) {
            self.load.0.store(load - 1, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.load.0.load(Ordering::Relaxed) & UNDER_WAY == 0
    }

    pub(super) fn set_sealed(&self, sealed: bool) {
        let load = self.load.0.load(Ordering::Relaxed) & !UNDER_WAY;
        self.load.0.store(if sealed { load | UNDER_WAY } else { load }, Ordering::Relaxed);
    }
}

/// The queue pairs of a connection.
pub(crate) struct Lanes {
    pub(super) queue_pairs: Vec<QueuePair>,
    /// The turn of the next one-sided operation.
    next: AtomicU32,
    /// True once nothing may be posted any more.
    ending: AtomicBool,
}

impl Lanes {
    /// Returns no queue pairs, with room for `count`.
    pub(super) fn with_capacity(count: usize) -> Self {
        let queue_pairs = Vec::with_capacity(count);
        Self { queue_pairs, next: AtomicU32::new(0), ending: AtomicBool::new(false) }
    }

    /// Returns a queue pair.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&QueuePair> {
        self.queue_pairs.get(index)
    }

    /// Returns the index of the queue pair for the next one-sided operation: in turn, without that of RPC if
    /// there are others.
    #[inline(always)]
    pub(crate) fn pick(&self, share: Share) -> usize {
        let last = self.queue_pairs.len().saturating_sub(1);
        match share {
            Share::All | Share::Low if last <= 1 => last,
            _ => self.pick_of(share, last),
        }
    }

    /// Returns the index of the queue pair for the next operation of `share`, of which the last is `last`.
    fn pick_of(&self, share: Share, last: usize) -> usize {
        let count = match share {
            Share::Low => return last,
            Share::High if last <= 1 => return RPC_QP,
            Share::High => last - 1,
            Share::All => last,
        };
        // Two tasks may get the same index, which is harmless.
        let next = self.next.load(Ordering::Relaxed);
        self.next.store(next.wrapping_add(1), Ordering::Relaxed);
        1 + next as usize % count
    }

    /// Returns true if nothing is posted any more: the queue pairs are destroyed, or about to be.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Lets nothing be posted any more; returns true if that was not so before.
    pub(super) fn end(&self) -> bool {
        !self.ending.swap(true, Ordering::SeqCst)
    }

    /// Returns the number of send work requests posted so far, modulo 2^32.
    pub(super) fn begun(&self) -> u32 {
        let begun = |qp: &QueuePair| (qp.load.0.load(Ordering::Relaxed) >> 32) as u32;
        self.queue_pairs.iter().map(begun).fold(0, u32::wrapping_add)
    }
}
