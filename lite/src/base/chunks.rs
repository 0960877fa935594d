//! [`Chunks`]: an array whose entries never move, so that an entry is found without a lock.

use alloc::boxed::Box;
use spin::Once;

/// The number of entries in the first chunk; each further chunk is twice as long as the one before.
const FIRST: u32 = 64;
/// The number of chunks that indices of 32 bits need.
const COUNT: usize = 26;

/// An array that grows by chunks when a new entry is wanted.
#[derive(Default)]
pub(crate) struct Chunks<T>([Once<Box<[T]>>; COUNT]);

impl<T: Default> Chunks<T> {
    /// Returns an entry, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (chunk, at) = place(number)?;
        self.0.get(chunk)?.get()?.get(at)
    }

    /// Returns an entry and makes its chunk if need be; `None` for the last [`FIRST`] numbers only.
    pub(crate) fn grow(&self, number: u32) -> Option<&T> {
        let (chunk, at) = place(number)?;
        let entries = || (0..(FIRST as usize) << chunk).map(|_| T::default()).collect();
        self.0.get(chunk)?.call_once(entries).get(at)
    }
}

/// Returns the chunk of an entry and the index within it.
#[inline]
fn place(number: u32) -> Option<(usize, usize)> {
    let number = number.checked_add(FIRST)?;
    let size = number.ilog2();
    Some(((size - FIRST.ilog2()) as usize, (number - (1 << size)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn every_number_has_a_place_of_its_own() {
        assert_eq!(place(0), Some((0, 0)));
        assert_eq!(place(FIRST - 1), Some((0, FIRST as usize - 1)));
        assert_eq!(place(FIRST), Some((1, 0)));
        assert_eq!(place(3 * FIRST), Some((2, 0)));
        assert_eq!(place(u32::MAX - FIRST), Some((COUNT - 1, (1 << 31) - 1)));
        assert_eq!(place(u32::MAX), None);
    }

    #[test]
    fn entries_stay_where_they_are() {
        let chunks = Chunks::<AtomicU32>::default();
        assert!(chunks.get(5).is_none());
        let first = chunks.grow(5).unwrap();
        first.store(7, Ordering::Relaxed);
        for number in 0..1000 {
            chunks.grow(number).unwrap().fetch_add(number, Ordering::Relaxed);
        }
        assert_eq!(first.load(Ordering::Relaxed), 12);
        assert!((6..1000).all(|n| chunks.get(n).unwrap().load(Ordering::Relaxed) == n));
    }
}
