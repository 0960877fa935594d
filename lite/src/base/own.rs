//! Memory of an application that the RNIC reads and writes in place, without a copy.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{Ordering, fence};
use platform::IoAddr;
use verbs::Sge;

/// The most elements of a work request's list.
const MOST_ELEMENTS: usize = 8;

/// A reference to memory of an application, which stays lent until it is dropped. Each operation in flight
/// has one.
pub(crate) type Hold = Arc<HeldMemory>;

/// Memory of an application that is held for a kind of operations.
pub(crate) struct HeldMemory {
    _memory: Arc<dyn Any + Send + Sync>,
}

/// The references to an application's memory, by which the operations that use it are counted.
pub(crate) struct Uses {
    /// The reference of operations that only read the memory.
    pub(crate) read: Hold,
    /// The reference of operations that change the memory.
    pub(crate) change: Hold,
}

impl Uses {
    /// Returns the references to `memory`.
    pub(crate) fn new(memory: &Arc<impl Any + Send + Sync>) -> Self {
        let hold = || Arc::new(HeldMemory { _memory: memory.clone() });
        Self { read: hold(), change: hold() }
    }

    /// Returns true if no operation uses the memory.
    pub(crate) fn are_none(&self) -> bool {
        is_sole(&self.read) && is_sole(&self.change)
    }

    /// Returns true if no operation changes the memory.
    pub(crate) fn only_read(&self) -> bool {
        is_sole(&self.change)
    }
}

/// Returns true if all other references have been dropped. The reads and writes of their holders happen
/// before the return.
fn is_sole(hold: &Hold) -> bool {
    let sole = Arc::strong_count(hold) == 1;
    fence(Ordering::Acquire);
    sole
}

/// A contiguous part of an application's memory: its address and its length in bytes.
pub(crate) type OwnPiece = (IoAddr, u64);

/// Bytes of an application's memory: a range of the bytes of some pieces, which follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) hold: &'a Hold,
    pieces: &'a [OwnPiece],
    /// The index of the first byte.
    start: u64,
    len: u64,
}

/// The list of a work request.
pub(crate) struct Elements {
    list: [Sge; MOST_ELEMENTS],
    count: usize,
    /// The sum of the lengths, in bytes.
    pub(crate) len: u32,
}

impl Elements {
    pub(crate) fn list(&self) -> &[Sge] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

impl<'a> Span<'a> {
    /// Returns all bytes of `pieces`, whose memory `hold` keeps lent.
    pub(crate) fn new(hold: &'a Hold, pieces: &'a [OwnPiece]) -> Self {
        Self { hold, pieces, start: 0, len: pieces.iter().map(|(_, len)| len).sum() }
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the part from byte `at`, of at most `len` bytes.
    pub(crate) fn part(&self, at: u64, len: u64) -> Self {
        let at = at.min(self.len);
        Self { start: self.start + at, len: len.min(self.len - at), ..*self }
    }

    /// Returns the pieces of the span.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = OwnPiece> + use<'a> {
        let (mut skip, mut left) = (self.start, self.len);
        self.pieces.iter().filter_map(move |&(addr, len)| {
            let (skipped, rest) = (skip.min(len), len - skip.min(len));
            skip -= skipped;
            let now = rest.min(left);
            left -= now;
            if now > 0 { Some((addr.checked_add(skipped)?, now)) } else { None }
        })
    }

    /// Returns the bytes from `at` on as the list of a work request: at most `len` bytes in at most `most`
    /// elements.
    pub(crate) fn elements(&self, at: u64, len: usize, most: usize) -> Elements {
        let mut elements =
            Elements { list: [Sge { addr: IoAddr(0), len: 0 }; MOST_ELEMENTS], count: 0, len: 0 };
        let pieces = self.part(at, len as u64);
        for (entry, (addr, len)) in elements.list.iter_mut().take(most).zip(pieces.pieces()) {
            *entry = Sge { addr, len: len as u32 };
            elements.count += 1;
            elements.len += len as u32;
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const PIECES: [OwnPiece; 3] = [(IoAddr(100), 10), (IoAddr(200), 20), (IoAddr(300), 30)];

    #[test]
    fn a_part_is_cut_at_the_pieces() {
        let uses = Uses::new(&Arc::new(()));
        let span = Span::new(&uses.read, &PIECES);
        let addresses: Vec<_> = (100..110).chain(200..220).chain(300..330).collect();
        for at in 0..=60 {
            for len in 0..=60 {
                let part = span.part(at, len);
                let bytes = part.pieces().flat_map(|(addr, len)| addr.0..addr.0 + len);
                let end = (at + len).min(60) as usize;
                assert_eq!(bytes.collect::<Vec<_>>(), addresses[at as usize..end], "{at} {len}");
                assert_eq!(part.len(), end as u64 - at);
            }
        }
    }

    #[test]
    fn a_list_has_so_many_elements_and_bytes() {
        let uses = Uses::new(&Arc::new(()));
        let span = Span::new(&uses.read, &PIECES);
        let lists =
            [(0, 60, 9, 60), (0, 60, 2, 30), (5, 60, 1, 5), (9, 22, 3, 22), (30, 7, 3, 7), (60, 9, 3, 0)];
        for (at, len, most, sum) in lists {
            let elements = span.elements(at, len, most);
            assert_eq!(elements.len, sum);
            assert_eq!(elements.list().iter().map(|e| e.len).sum::<u32>(), sum);
            assert!(elements.list().len() <= most);
        }
    }

    #[test]
    fn uses_are_told_apart() {
        let memory = Arc::new(7);
        let uses = Uses::new(&memory);
        let (read, changed) = (uses.read.clone(), uses.change.clone());
        assert!(!uses.are_none() && !uses.only_read());
        drop(changed);
        assert!(!uses.are_none() && uses.only_read());
        drop(read);
        assert!(uses.are_none());
        let late = uses.change.clone();
        drop(uses);
        assert!(Arc::strong_count(&memory) > 1, "an operation keeps the memory");
        drop(late);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}
