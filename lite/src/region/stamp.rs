//! Stamps: one bit for each mapping of a node says whether the mapping is still as it was when it was made. A handle that
//! keeps what it was mapped with need look at nothing else, however many there are.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::{Mutex, Once};

/// Stamps in the first chunk; each further one has twice as many as the one before.
const FIRST: u32 = 4096;
/// As many as numbers of 32 bits need.
const CHUNKS: usize = 20;

/// Names a mapping among those that its node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StampId(u32);

impl StampId {
    /// No mapping's.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(super) fn number(self) -> u32 {
        self.0
    }

    pub(super) fn from_number(number: u32) -> Self {
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
    chunks: [Once<Box<[AtomicU64]>>; CHUNKS],
    numbers: Mutex<Numbers>,
}

/// The stamp of one mapping, which has its number until this is dropped.
pub(crate) struct Stamp {
    stamps: Arc<Stamps>,
    id: StampId,
}

impl Stamps {
    /// A stamp for a new mapping. Those beyond 2^32 are spoiled from the start and share one name.
    pub(crate) fn stamp(self: &Arc<Self>) -> Stamp {
        let number = {
            let mut numbers = self.numbers.lock();
            let next = numbers.next;
            numbers.free.pop().or_else(|| {
                numbers.next = next.checked_add(1).filter(|n| *n < u32::MAX - FIRST)?;
                Some(next)
            })
        };
        let id = number.map_or(StampId::NONE, StampId);
        if let Some((chunk, at)) = place(id).and_then(|(chunk, at)| Some((self.chunks.get(chunk)?, at))) {
            let words = || (0..at.words).map(|_| AtomicU64::new(0)).collect();
            if let Some(word) = chunk.call_once(words).get(at.word) {
                word.fetch_or(at.bit, Ordering::SeqCst);
            }
        }
        Stamp { stamps: self.clone(), id }
    }

    fn word(&self, id: StampId) -> Option<(&AtomicU64, u64)> {
        let (chunk, at) = place(id)?;
        Some((self.chunks.get(chunk)?.get()?.get(at.word)?, at.bit))
    }

    /// Whether that mapping is as it was when it was made.
    #[inline]
    pub(crate) fn is_fresh(&self, id: StampId) -> bool {
        self.word(id).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    fn spoil(&self, id: StampId) {
        if let Some((word, bit)) = self.word(id) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

/// Where a stamp is in its chunk, which has so many words.
struct At {
    words: usize,
    word: usize,
    bit: u64,
}

/// The chunk of a stamp, and where it is there.
#[inline]
fn place(StampId(number): StampId) -> Option<(usize, At)> {
    let number = number.checked_add(FIRST)?;
    let size = number.ilog2();
    let within = number - (1 << size);
    let at = At { words: 1 << (size - 6), word: (within / 64) as usize, bit: 1 << (within % 64) };
    Some(((size - FIRST.ilog2()) as usize, at))
}

impl Stamp {
    pub(crate) fn id(&self) -> StampId {
        self.id
    }

    /// The mapping changes, or ends.
    pub(crate) fn spoil(&self) {
        self.stamps.spoil(self.id);
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        self.spoil();
        if self.id != StampId::NONE {
            self.stamps.numbers.lock().free.push(self.id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stamp_is_spoiled_by_itself_and_a_number_that_is_used_again_is_fresh() {
        let stamps = Arc::<Stamps>::default();
        let mut all: Vec<_> = (0..3 * FIRST).map(|_| stamps.stamp()).collect();
        assert!(all.iter().all(|s| stamps.is_fresh(s.id())));
        for stamp in all.iter().step_by(3) {
            stamp.spoil();
        }
        for (i, stamp) in all.iter().enumerate() {
            assert_eq!(stamps.is_fresh(stamp.id()), i % 3 != 0, "{i}");
        }
        let last = all.pop().unwrap().id();
        assert!(!stamps.is_fresh(last) && !stamps.is_fresh(StampId::NONE));
        let again = stamps.stamp();
        assert!(again.id() == last && stamps.is_fresh(last));
    }

    #[test]
    fn every_number_has_a_place_of_its_own() {
        assert!(place(StampId::NONE).is_none());
        let all =
            |number| place(StampId(number)).map(|(chunk, at)| (chunk, at.word, at.bit, at.words)).unwrap();
        assert_eq!(all(0), (0, 0, 1, 64));
        assert_eq!(all(FIRST - 1), (0, 63, 1 << 63, 64));
        assert_eq!(all(FIRST), (1, 0, 1, 128));
        let last = all(u32::MAX - FIRST);
        assert!(last.0 < CHUNKS && last.1 < last.3);
    }
}
