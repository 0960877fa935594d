//! The queue pairs of a connection as an operation sees them: which one it uses, and whether that has room.

use crate::base::qos::Share;
use crate::base::writers::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use alloc::vec::Vec;
use verbs::{Psn, QpNum};

/// One queue pair.
// Two cache lines: the queue pairs of a connection belong to several cores.
#[repr(align(128))]
pub(crate) struct QueuePair {
    pub(crate) number: QpNum,
    /// The first PSN that this side sends.
    pub(crate) psn: Psn,
    load: Load,
    /// The turn of the shard's next one-sided operation; used in the queue pair of RPC only.
    turn: AtomicU32,
    /// The unsignalled work requests that no signalled one follows. They count as outstanding, and complete
    /// before the next signalled one. Changed only under the lock of the operation table of the shard.
    unsignaled: AtomicU32,
    /// True once it is destroyed.
    pub(super) gone: AtomicBool,
}

/// The send work requests of a queue pair: those outstanding, and the total. Changed only under the lock of
/// the operation table of its shard.
#[derive(Default)]
struct Load(AtomicU64);

/// Low 32 bits: work requests outstanding, or `u32::MAX` while the queue pair is sealed. High 32 bits: work
/// requests posted so far, modulo 2^32.
const UNDER_WAY: u64 = u32::MAX as u64;
const BEGUN: u64 = 1 << 32;
/// One of as many work requests that may be unsignalled is signalled.
const MOST_UNSIGNALED: u32 = 32;

impl QueuePair {
    pub(super) fn new(number: QpNum, psn: Psn) -> Self {
        let (turn, unsignaled) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { number, psn, load: Load::default(), turn, unsignaled, gone: AtomicBool::new(false) }
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

    /// Counts one more unsignalled work request as outstanding, if there may be one. Returns false if the
    /// next one must be signalled: a quarter of the `depth` of the queue pair, or [`MOST_UNSIGNALED`], follow
    /// each other.
    #[inline]
    pub(crate) fn begin_unsignaled(&self, depth: u32) -> bool {
        let unsignaled = self.unsignaled.load(Ordering::Relaxed) + 1;
        let may_begin = unsignaled < MOST_UNSIGNALED && unsignaled < depth / 4;
        if may_begin {
            self.unsignaled.store(unsignaled, Ordering::Relaxed);
            self.begin();
        }
        may_begin
    }

    /// Reverts [`begin_unsignaled`](Self::begin_unsignaled) for a work request that was not posted. If a
    /// signalled one was posted meanwhile, its end counts this one as ended.
    pub(crate) fn cancel_unsignaled(&self) {
        if let Some(fewer) = self.unsignaled.load(Ordering::Relaxed).checked_sub(1) {
            self.unsignaled.store(fewer, Ordering::Relaxed);
            self.end(1);
        }
    }

    /// Returns the number of work requests that complete with the next signalled one, itself included.
    #[inline]
    pub(crate) fn take_unsignaled(&self) -> u32 {
        let before = self.unsignaled.load(Ordering::Relaxed);
        self.unsignaled.store(0, Ordering::Relaxed);
        before + 1
    }

    /// Returns true if an unsignalled work request may be in flight that no signalled one follows.
    pub(crate) fn has_unsignaled(&self) -> bool {
        self.unsignaled.load(Ordering::Relaxed) > 0
    }

    /// Counts `count` work requests less as outstanding.
    #[inline]
    pub(crate) fn end(&self, count: u32) {
        let load = self.load.0.load(Ordering::Relaxed);
        let under_way = load & UNDER_WAY;
        if under_way != UNDER_WAY {
            self.load.0.store(load - under_way.min(u64::from(count)), Ordering::Relaxed);
        }
    }

    /// Returns true if nothing is outstanding but unsignalled work requests: messages, whose senders or
    /// receivers keep the connection open for as long as they matter.
    pub(super) fn is_idle(&self) -> bool {
        let outstanding = self.load.0.load(Ordering::Relaxed) & UNDER_WAY;
        outstanding == u64::from(self.unsignaled.load(Ordering::Relaxed))
    }

    /// Seals the idle queue pair, so that it counts as full, or unseals it. Unsignalled work requests stay
    /// outstanding meanwhile: the RNIC keeps them until a signalled one completes.
    pub(super) fn set_sealed(&self, sealed: bool) {
        let load = self.load.0.load(Ordering::Relaxed) & !UNDER_WAY;
        let under_way = if sealed { UNDER_WAY } else { u64::from(self.unsignaled.load(Ordering::Relaxed)) };
        self.load.0.store(load | under_way, Ordering::Relaxed);
    }
}

/// The queue pairs of a connection: for each shard as many, the first of which carries RPC.
pub(crate) struct Lanes {
    /// The queue pairs of the first shard, then those of the next.
    pub(super) queue_pairs: Vec<QueuePair>,
    /// The number of queue pairs of a shard.
    each: usize,
    /// True once nothing may be posted any more.
    ending: AtomicBool,
}

impl Lanes {
    /// Returns no queue pairs, with room for `each` of `shards` shards.
    pub(super) fn with_capacity(shards: usize, each: usize) -> Self {
        let queue_pairs = Vec::with_capacity(shards * each);
        Self { queue_pairs, each: each.max(1), ending: AtomicBool::new(false) }
    }

    /// Returns the number of queue pairs of each shard.
    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// Returns the number of shards that have queue pairs.
    pub(crate) fn shards(&self) -> usize {
        self.queue_pairs.len() / self.each
    }

    /// Returns the shard of a queue pair.
    pub(crate) fn shard_of(&self, index: usize) -> usize {
        index / self.each
    }

    /// Returns the index of the queue pair that carries a shard's RPC.
    #[inline(always)]
    pub(crate) fn rpc(&self, shard: usize) -> usize {
        shard * self.each
    }

    /// Returns a queue pair.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&QueuePair> {
        self.queue_pairs.get(index)
    }

    /// Returns the index of the queue pair of `shard` for the next one-sided operation: in turn, without that
    /// of RPC if there are others.
    #[inline(always)]
    pub(crate) fn pick(&self, shard: usize, share: Share) -> usize {
        let (first, last) = (shard * self.each, self.each - 1);
        match share {
            Share::All | Share::Low if last <= 1 => first + last,
            _ => first + self.pick_of(first, share, last),
        }
    }

    /// Returns the index of the only queue pair of `shard` for one-sided operations without priority, unless
    /// there are several.
    pub(crate) fn usual(&self, shard: usize) -> Option<u32> {
        let last = self.each - 1;
        (last <= 1).then(|| (shard * self.each + last) as u32)
    }

    /// Returns the index, from `first` on, of the queue pair for the next operation of `share`, of which the
    /// last is `last`.
    fn pick_of(&self, first: usize, share: Share, last: usize) -> usize {
        let count = match share {
            Share::Low => return last,
            Share::High if last <= 1 => return 0,
            Share::High => last - 1,
            Share::All => last,
        };
        let Some(rpc) = self.queue_pairs.get(first) else { return last };
        // Two tasks may get the same index, which is harmless.
        let next = rpc.turn.load(Ordering::Relaxed);
        rpc.turn.store(next.wrapping_add(1), Ordering::Relaxed);
        1 + next as usize % count
    }

    /// Seals the queue pairs of a shard if nothing is outstanding on them; returns true if that is the case.
    /// Must be called under the lock of the shard's operation table, as must [`unseal`](Self::unseal).
    pub(crate) fn seal(&self, shard: usize) -> bool {
        let idle = self.of(shard).all(QueuePair::is_idle);
        if idle {
            self.of(shard).for_each(|queue_pair| queue_pair.set_sealed(true));
        }
        idle
    }

    /// Reverts [`seal`](Self::seal).
    pub(crate) fn unseal(&self, shard: usize) {
        self.of(shard).for_each(|queue_pair| queue_pair.set_sealed(false));
    }

    fn of(&self, shard: usize) -> impl Iterator<Item = &QueuePair> {
        self.queue_pairs.iter().skip(shard * self.each).take(self.each)
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
    pub(crate) fn begun(&self) -> u32 {
        let begun = |qp: &QueuePair| (qp.load.0.load(Ordering::Relaxed) >> 32) as u32;
        self.queue_pairs.iter().map(begun).fold(0, u32::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsignalled_messages_stay_outstanding_while_a_seal_comes_and_goes() {
        const DEPTH: u32 = 16;
        let qp = QueuePair::new(QpNum::new(7), Psn::new(0));
        (0..3).for_each(|_| assert!(qp.begin_unsignaled(DEPTH)));
        assert!(qp.is_idle() && !qp.is_full(4));
        qp.set_sealed(true);
        assert!(qp.is_full(DEPTH));
        qp.set_sealed(false);
        // The RNIC has room for one more work request in a queue of four.
        assert!(qp.is_idle() && qp.is_full(3) && !qp.is_full(4));
        assert!(!qp.begin_unsignaled(DEPTH), "a quarter of the queue is unsignalled");
        qp.begin();
        let ends = qp.take_unsignaled();
        assert_eq!(ends, 4);
        qp.end(ends);
        assert!(qp.is_idle() && !qp.is_full(1));
    }
}
