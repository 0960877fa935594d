//! Shards: each core that uses LITE has a completion queue, a table of operations and bounce buffers of its
//! own. A core posts to its own shard, takes the completions of its own shard, and wakes its own tasks, so that
//! cores whose tasks have nothing in common write no line of memory that another one writes.
//!
//! A core with a higher number than there are shards uses the shard of its number modulo the number of shards.

use super::status::{OpId, OpStatuses};
use super::table::OpTable;
use crate::base::bounce::Buffers;
use crate::base::config::MOST_CORES;
use crate::base::lock::Mutex;
use alloc::boxed::Box;
use platform::Platform;
use verbs::CqId;

/// The number of bits of a shard's number.
pub(super) const SHARD_BITS: u32 = 4;
const _: () = assert!(MOST_CORES == 1 << SHARD_BITS);

/// The operations of one core.
// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct Shard {
    /// The number of the shard.
    pub(crate) index: usize,
    /// The completion queue of this shard's queue pairs.
    pub(crate) cq: CqId,
    /// The memory of the operations' bounce buffers.
    pub(crate) buffers: Buffers,
    pub(crate) ops: Mutex<OpTable>,
    /// The published state of the operations.
    pub(crate) ends: OpStatuses,
}

/// The shards of a node, of which there is at least one.
pub(crate) struct Shards {
    first: Shard,
    others: Box<[Shard]>,
}

impl Shards {
    /// Makes the shards out of the first one and the others, in the order of their numbers.
    pub(super) fn new(first: Shard, others: Box<[Shard]>) -> Self {
        Self { first, others }
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns all shards, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the shard with that number, or the first one if there is none.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> &Shard {
        self.others.get(index.wrapping_sub(1)).unwrap_or(&self.first)
    }

    /// Returns the shard of an operation.
    #[inline(always)]
    pub(crate) fn of(&self, id: OpId) -> &Shard {
        self.get(id.shard())
    }

    /// Returns the number of the shard of that core.
    pub(crate) fn index_of_core(&self, core: usize) -> usize {
        core % self.count()
    }

    /// Returns the shard of the present core.
    #[inline(always)]
    pub(crate) fn here(&self, platform: &dyn Platform) -> &Shard {
        if self.others.is_empty() { &self.first } else { self.get(self.index_of_core(platform.cpu())) }
    }
}
