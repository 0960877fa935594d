//! The state of each operation: one word for each slot, which the task that waits for the operation reads
//! without a lock.

use crate::base::bounce::BufferOffset;
use crate::base::config::{MOST_CORES, MOST_SLOTS};
use crate::base::writers::{AtomicU64, Ordering};
use alloc::sync::Arc;
use core::num::NonZeroU64;
use verbs::WrId;

/// The number of bits of a slot's index within its shard, which bounds the number of slots.
const SLOT_BITS: u32 = 16;
const SLOT: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!(MOST_SLOTS == 1 << SLOT_BITS);
/// The number of bits of a shard's number.
const SHARD_BITS: u32 = 4;
const _: () = assert!(MOST_CORES == 1 << SHARD_BITS);
/// The number of bits that name a slot of the node: its index, and its shard above.
const INDEX_BITS: u32 = SLOT_BITS + SHARD_BITS;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
/// The number of bits of the stage in a word; the use of the slot is above them.
const STAGE_BITS: u32 = 3;

/// The bit of the identifiers of messages without a slot.
const UNSIGNALED: u64 = 1 << 63;

/// Returns the identifier of the unsignalled messages of the connection that has `receive` as the identifier
/// of its receives.
#[inline]
pub(crate) fn unsignaled_id(receive: WrId) -> WrId {
    WrId(receive.0 | UNSIGNALED)
}

/// Returns the identifier of the receives of the connection whose unsignalled message has the identifier
/// `id`; `None` if `id` is an operation's.
pub(crate) fn receive_of(id: WrId) -> Option<WrId> {
    (id.0 & UNSIGNALED != 0).then_some(WrId(id.0 & !UNSIGNALED))
}

/// A slot in one use of it, as it travels in the work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpId(NonZeroU64);

/// The bit that all identifiers have, so that none is zero.
const OPERATION: NonZeroU64 = NonZeroU64::MIN.saturating_add((1 << 62) - 1);
/// The difference of two uses of a slot that follow each other.
const USE: u64 = 1 << INDEX_BITS;

impl OpId {
    /// Returns the first use of a slot of a shard.
    pub(crate) fn first(shard: usize, index: u32) -> Self {
        let place = (shard as u64) << SLOT_BITS | u64::from(index);
        Self(OPERATION | place & INDEX)
    }

    /// Returns the next use of the slot. Uses repeat after 2^42, which takes one slot weeks.
    #[inline]
    pub(crate) fn next(self) -> Self {
        Self(OPERATION | (self.0.get() + USE) & !UNSIGNALED)
    }

    /// Returns the index of the slot within its shard.
    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0.get() & SLOT) as usize
    }

    /// Returns the number of the slot's shard.
    #[inline]
    pub(crate) fn shard(self) -> usize {
        ((self.0.get() & INDEX) >> SLOT_BITS) as usize
    }

    pub(crate) fn wr_id(self) -> WrId {
        WrId(self.0.get())
    }

    /// Returns `None` for an identifier that is no operation's.
    pub(crate) fn from_wr_id(id: WrId) -> Option<Self> {
        NonZeroU64::new(id.0).map(Self)
    }

    #[inline]
    fn word(self, stage: OpStage) -> u64 {
        self.0.get() >> INDEX_BITS << STAGE_BITS | stage as u64
    }
}

/// The state of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum OpStage {
    /// In flight.
    OnWire = 0,
    /// In flight, and its deadline has passed.
    Late = LATE,
    /// Success. The operation still owns the slot and the bounce buffer.
    Done = DONE,
    /// Failure. The slot contains the status.
    Failed = FAILED,
}

const LATE: u64 = 1;
const DONE: u64 = 2;
const FAILED: u64 = 3;
/// The stage of an operation without a waiter, once its poster has filled the bounce buffer. Without a
/// waiter, no task mistakes this stage for the operation's end.
const FILLED: u64 = 4;

/// The state of the operation in one slot, as its task reads it without the lock of the table.
struct End {
    /// The use of the slot, and its stage.
    word: AtomicU64,
    /// The offset of that use's bounce buffer, if it has one.
    offset: AtomicU64,
}

/// The states of the operations in all slots of a shard, which their tasks read without the lock of the
/// table. It only changes under the lock of the table, except by [`filled`](OpStatuses::filled).
#[derive(Clone)]
pub(crate) struct OpStatuses(Arc<[End]>);

impl OpStatuses {
    pub(crate) fn new(shard: usize, count: u32) -> Self {
        let word = |i| AtomicU64::new(OpId::first(shard, i).word(OpStage::OnWire));
        Self((0..count).map(|i| End { word: word(i), offset: AtomicU64::new(0) }).collect())
    }

    #[inline]
    pub(crate) fn set(&self, id: OpId, stage: OpStage) {
        if let Some(end) = self.0.get(id.index()) {
            end.word.store(id.word(stage), Ordering::Release);
        }
    }

    /// Notes the offset of the bounce buffer of a slot that has been taken.
    #[inline]
    pub(crate) fn set_offset(&self, id: OpId, offset: BufferOffset) {
        if let Some(end) = self.0.get(id.index()) {
            end.offset.store(offset.bits(), Ordering::Relaxed);
        }
    }

    /// Marks the bounce buffer of `id` as filled by its poster. No task may wait for `id`, which is being
    /// posted.
    #[inline]
    pub(crate) fn filled(&self, id: OpId) {
        if let Some(end) = self.0.get(id.index()) {
            // The bytes of the buffer are written before a thread that sees this reuses the buffer.
            end.word.store(id.word(OpStage::OnWire) | FILLED, Ordering::Release);
        }
    }

    /// Returns true if [`filled`](Self::filled) has been called for `id`, which must still own its slot.
    #[inline]
    pub(crate) fn is_filled(&self, id: OpId) -> bool {
        let word = self.0.get(id.index()).map(|end| end.word.load(Ordering::Acquire));
        word == Some(id.word(OpStage::OnWire) | FILLED)
    }

    /// Returns true if the slot is in another use than `id`, of which it tells the success in that case.
    #[inline(always)]
    pub(crate) fn is_past(&self, id: OpId) -> bool {
        let word = self.0.get(id.index()).map_or(0, |end| end.word.load(Ordering::Acquire));
        word ^ id.word(OpStage::OnWire) > FILLED
    }

    /// Returns the stage of `id`, or `None` if the slot is in its next use: in that case `id` has succeeded
    /// without a bounce buffer, or had no waiter any more.
    #[inline]
    pub(crate) fn look(&self, id: OpId) -> Option<OpStage> {
        let word = self.0.get(id.index())?.word.load(Ordering::Acquire);
        match word ^ id.word(OpStage::OnWire) {
            LATE => Some(OpStage::Late),
            DONE => Some(OpStage::Done),
            FAILED => Some(OpStage::Failed),
            0 => Some(OpStage::OnWire),
            _ => None,
        }
    }

    /// Returns the offset of `id`'s bounce buffer. The operation must have one and must not have released
    /// its slot.
    #[inline]
    pub(crate) fn offset(&self, id: OpId) -> BufferOffset {
        BufferOffset::from_bits(self.0.get(id.index()).map_or(0, |end| end.offset.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_each_stage_of_one_use_of_one_slot() {
        let ends = OpStatuses::new(0, 3);
        let id = OpId::first(0, 2);
        assert_eq!(OpId::from_wr_id(id.next().wr_id()), Some(id.next()));
        assert_eq!(OpId::from_wr_id(WrId(0)), None);
        for stage in [OpStage::Late, OpStage::Done, OpStage::Failed, OpStage::OnWire] {
            ends.set(id, stage);
            assert_eq!((ends.look(id), ends.look(id.next())), (Some(stage), None));
            assert!(!ends.is_past(id) && ends.is_past(id.next()));
            assert_eq!(ends.look(OpId::first(0, 1)), Some(OpStage::OnWire));
        }
        assert!(!ends.is_filled(id));
        ends.filled(id);
        assert!(ends.is_filled(id) && !ends.is_filled(id.next()) && !ends.is_filled(OpId::first(0, 1)));
        ends.set(id.next(), OpStage::OnWire);
        assert!(!ends.is_filled(id) && !ends.is_filled(id.next()));
        assert_eq!((ends.look(id), ends.look(id.next())), (None, Some(OpStage::OnWire)));
        // After the last use they begin again.
        let last = OpId(id.0 | !INDEX & !UNSIGNALED);
        assert_eq!(last.next(), id);
        assert_eq!(receive_of(last.wr_id()), None);
        assert_eq!(receive_of(unsignaled_id(WrId(7))), Some(WrId(7)));
    }

    #[test]
    fn an_operation_names_its_shard_and_its_slot() {
        for (shard, slot) in [(0, 0), (1, 0), (15, 65_535), (3, 7)] {
            let id = OpId::first(shard, slot).next();
            assert_eq!((id.shard(), id.index()), (shard, slot as usize));
            assert_eq!(OpId::from_wr_id(id.wr_id()), Some(id));
        }
    }
}
