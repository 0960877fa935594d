//! Stamps: one bit for each mapping of a node tells whether the mapping is still valid, that is, as it was
//! when it was made. A handle that caches what it was mapped with reads nothing else, however many mappings
//! exist.

use crate::Error;
use crate::base::chunks::Chunks;
use crate::base::lock::Mutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of bits of a mapping's number.
pub(crate) const STAMP_BITS: u32 = 28;

/// The number of a mapping within its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StampId(u32);

impl StampId {
    /// The number of no mapping.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }
}

#[derive(Default)]
struct Numbers {
    next: u32,
    free: Vec<u32>,
}

/// The stamps of a node.
#[derive(Default)]
pub(crate) struct Stamps {
    words: Chunks<AtomicU64>,
    numbers: Mutex<Numbers>,
}

/// The stamp of one mapping. Dropping this frees its number.
pub(crate) struct Stamp {
    stamps: Arc<Stamps>,
    id: StampId,
}

impl Stamps {
    /// Returns a stamp for a new mapping. Fails with `Refused` if the node has 2^28 of them.
    pub(crate) fn stamp(self: &Arc<Self>) -> Result<Stamp, Error> {
        let number = {
            let mut numbers = self.numbers.lock();
            let next = numbers.next;
            numbers.free.pop().or_else(|| {
                numbers.next = next.checked_add(1).filter(|n| *n <= 1 << STAMP_BITS)?;
                Some(next)
            })
        };
        let number = number.ok_or_else(|| Error::Refused("this node has 2^28 mappings".into()))?;
        let id = StampId(number);
        if let Some(word) = self.words.grow(number / 64) {
            word.fetch_or(bit(id), Ordering::SeqCst);
        }
        Ok(Stamp { stamps: self.clone(), id })
    }

    /// Returns true if that mapping is still as it was when it was made.
    #[inline]
    pub(crate) fn is_valid(&self, id: StampId) -> bool {
        self.words.get(id.0 / 64).is_some_and(|word| word.load(Ordering::SeqCst) & bit(id) != 0)
    }

    fn invalidate(&self, id: StampId) {
        if let Some(word) = self.words.get(id.0 / 64) {
            word.fetch_and(!bit(id), Ordering::SeqCst);
        }
    }
}

/// Returns the bit of a stamp within its word.
#[inline]
fn bit(id: StampId) -> u64 {
    1 << (id.0 % 64)
}

impl Stamp {
    pub(crate) fn id(&self) -> StampId {
        self.id
    }

    /// Invalidates what handles cache of the mapping, because it changes or ends.
    pub(crate) fn invalidate(&self) {
        self.stamps.invalidate(self.id);
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        self.invalidate();
        self.stamps.numbers.lock().free.push(self.id.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stamp_is_spoiled_by_itself_and_a_number_that_is_used_again_is_fresh() {
        let stamps = Arc::<Stamps>::default();
        let mut all: Vec<_> = (0..10_000).map(|_| stamps.stamp().unwrap()).collect();
        assert!(all.iter().all(|s| stamps.is_valid(s.id())));
        for stamp in all.iter().step_by(3) {
            stamp.invalidate();
        }
        for (i, stamp) in all.iter().enumerate() {
            assert_eq!(stamps.is_valid(stamp.id()), i % 3 != 0, "{i}");
        }
        let last = all.pop().unwrap().id();
        assert!(!stamps.is_valid(last) && !stamps.is_valid(StampId::NONE));
        let again = stamps.stamp().unwrap();
        assert!(again.id() == last && stamps.is_valid(last));
    }
}
