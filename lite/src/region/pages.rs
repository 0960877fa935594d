//! The pieces that another node sends, page by page, and their limits.
//!
//! The number that another node announces is not trusted: memory is allocated only for pieces that have
//! come, and no more pieces are accepted than the limits allow.

use super::layout::Piece;
use crate::Error;
use alloc::vec::Vec;

/// The most pieces of a node's share of a region. They come in pages of
/// [`PAGE_PIECES`](super::request::PAGE_PIECES).
pub(super) const MOST_SHARE_PIECES: usize = 4096;
/// The most pieces of a region. A mapping uses 72 bytes for each: 4.5 MiB at most.
pub(super) const MOST_PIECES: usize = 65_536;

/// The pieces that have come so far.
pub(super) struct PiecePages {
    pieces: Vec<Piece>,
    count: usize,
}

fn nonsense() -> Error {
    Error::Refused("malformed pages of a region's pieces".into())
}

impl PiecePages {
    /// Accepts the first page of `count` pieces, which may be `most` at most.
    pub(super) fn new(first: Vec<Piece>, count: u32, most: usize) -> Result<Self, Error> {
        let count = count as usize;
        if count > most {
            return Err(Error::Refused(alloc::format!("{count} pieces are more than {most}")));
        }
        if first.len() > count {
            return Err(nonsense());
        }
        Ok(Self { pieces: first, count })
    }

    /// Returns the index of the first missing piece, if any is missing.
    pub(super) fn missing(&self) -> Option<u32> {
        (self.pieces.len() < self.count).then_some(self.pieces.len() as u32)
    }

    /// Accepts one more page, which must not be empty.
    pub(super) fn add(&mut self, page: Vec<Piece>) -> Result<(), Error> {
        if page.is_empty() || page.len() > self.count - self.pieces.len() {
            return Err(nonsense());
        }
        let asked = size_of_val(page.as_slice()) as u64;
        self.pieces.try_reserve(page.len()).map_err(|_| Error::NoMemory { asked, free: 0 })?;
        self.pieces.extend(page);
        Ok(())
    }

    /// Returns all pieces, once none is missing.
    pub(super) fn all(self) -> Vec<Piece> {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use platform::IoAddr;
    use proto::{Incarnation, NodeId};

    #[test]
    fn only_so_many_are_taken_and_nothing_is_allocated_ahead() {
        let piece = |i: u64| Piece { at: (NodeId(1), Incarnation(1)), addr: IoAddr(4096 * i), len: 8 };
        assert!(PiecePages::new(vec![], u32::MAX, MOST_PIECES).is_err());
        assert!(PiecePages::new(vec![], 4097, MOST_SHARE_PIECES).is_err());
        assert!(PiecePages::new(vec![piece(0); 2], 1, 9).is_err());
        let mut pages = PiecePages::new(vec![piece(0)], 4096, MOST_SHARE_PIECES).unwrap();
        assert!(pages.pieces.capacity() < 8, "the count alone allocates nothing");
        assert_eq!(pages.missing(), Some(1));
        assert!(pages.add(vec![]).is_err(), "or it would be asked for for ever");
        pages.add(vec![piece(1), piece(2)]).unwrap();
        assert_eq!(pages.missing(), Some(3));
        assert!(pages.add(vec![piece(3); 4094]).is_err(), "one too many");
        pages.add(vec![piece(3); 4093]).unwrap();
        assert_eq!((pages.missing(), pages.all().len()), (None, 4096));
    }
}
