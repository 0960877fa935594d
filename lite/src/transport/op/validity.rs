//! Stamps: one bit for each mapping of a node tells whether the mapping is still valid, that is, as it was
//! when it was made. A handle that caches what it was mapped with reads nothing else, however many mappings
//! exist. Each table of operations has a copy of the bits, under its lock: an operation that finds its
//! mapping valid is in its table before anyone has invalidated the mapping in all tables.

use super::transport::Transport;
use crate::Error;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The number of bits of a mapping's number.
pub(crate) const STAMP_BITS: u32 = 28;

/// The number of a mapping within its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StampId(pub(super) u32);

impl StampId {
    /// The number of no mapping.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the index of the word with this mapping's bit.
    fn word(self) -> usize {
        (self.0 / u64::BITS) as usize
    }

    /// Returns this mapping's bit.
    fn bit(self) -> u64 {
        1 << (self.0 % u64::BITS)
    }
}

/// The bits of all mappings, 64 to a word; those of valid mappings are set.
#[derive(Default)]
pub(super) struct ValidStamps {
    pub(super) words: Vec<u64>,
}

impl ValidStamps {
    fn validate(&mut self, id: StampId) {
        if self.words.len() <= id.word() {
            self.words.resize(id.word() + 1, 0);
        }
        if let Some(word) = self.words.get_mut(id.word()) {
            *word |= id.bit();
        }
    }

    fn invalidate(&mut self, id: StampId) {
        if let Some(word) = self.words.get_mut(id.word()) {
            *word &= !id.bit();
        }
    }
}

/// The numbers that mappings may have.
#[derive(Default)]
pub(super) struct StampNumbers {
    next: u32,
    free: Vec<u32>,
}

impl StampNumbers {
    fn take(&mut self) -> Option<StampId> {
        let next = self.next;
        let number = self.free.pop().or_else(|| {
            self.next = next.checked_add(1).filter(|n| *n <= 1 << STAMP_BITS)?;
            Some(next)
        });
        number.map(StampId)
    }
}

/// The stamp of one mapping. Dropping this frees its number.
pub(crate) struct Stamp {
    transport: Arc<Transport>,
    id: StampId,
}

impl Transport {
    /// Returns a stamp for a new mapping. Fails with `Refused` if the node has 2^28 of them.
    pub(crate) fn stamp(self: &Arc<Self>) -> Result<Stamp, Error> {
        let id = self.stamps.lock().take();
        let id = id.ok_or_else(|| Error::Refused("this node has 2^28 mappings".into()))?;
        self.shards.iter().for_each(|shard| shard.ops.lock().valid.validate(id));
        Ok(Stamp { transport: self.clone(), id })
    }
}

impl Stamp {
    pub(crate) fn id(&self) -> StampId {
        self.id
    }

    /// Invalidates what handles cache of the mapping, because it changes or ends.
    pub(crate) fn invalidate(&self) {
        self.transport.shards.iter().for_each(|shard| shard.ops.lock().valid.invalidate(self.id));
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        self.invalidate();
        self.transport.stamps.lock().free.push(self.id.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stamp_is_invalidated_by_itself_and_a_number_that_is_used_again_is_fresh() {
        let (mut valid, mut numbers) = (ValidStamps::default(), StampNumbers::default());
        let is_valid = |valid: &ValidStamps, id: StampId| {
            valid.words.get(id.word()).is_some_and(|word| word & id.bit() != 0)
        };
        let mut all: Vec<_> = (0..10_000).map(|_| numbers.take().unwrap()).collect();
        all.iter().for_each(|id| valid.validate(*id));
        assert!(all.iter().all(|id| is_valid(&valid, *id)));
        for id in all.iter().step_by(3) {
            valid.invalidate(*id);
        }
        for (i, id) in all.iter().enumerate() {
            assert_eq!(is_valid(&valid, *id), i % 3 != 0, "{i}");
        }
        let last = all.pop().unwrap();
        assert!(!is_valid(&valid, last) && !is_valid(&valid, StampId::NONE));
        numbers.free.push(last.number());
        assert_eq!(numbers.take(), Some(last));
        valid.validate(last);
        assert!(is_valid(&valid, last));
    }
}
