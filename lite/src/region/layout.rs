//! The layout of a region: its pieces in columns, and the search for an offset. Arithmetic only.
//!
//! A region has one or more columns; the pieces of a column follow each other. With one column the bytes of
//! the region are those of the column. With several the region is striped: its bytes are dealt to the
//! columns in turn, [`stripe`](Layout::stripe) bytes at a time. The column of an offset is found by
//! division, the piece in it by binary search.

use crate::base::member::MemberId;
use crate::planted::{Bug, planted};
use alloc::vec::Vec;
use platform::IoAddr;
use serde::{Deserialize, Serialize};

/// The unit of pieces, in bytes: every piece but a region's last ends at a multiple of it, so that no
/// aligned 8-byte word is in two pieces.
pub(crate) const GRAIN: u64 = 8;

/// Contiguous memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The incarnation of the node that holds the memory.
    pub(crate) at: MemberId,
    /// The address of the first byte.
    pub(crate) addr: IoAddr,
    /// The length, in bytes.
    pub(crate) len: u64,
}

impl Piece {
    /// Returns true if all bytes of `part`, which is on the same node, are among those of this piece.
    pub(crate) fn contains(&self, part: &Self) -> bool {
        let offset = part.addr.0.checked_sub(self.addr.0);
        offset.and_then(|offset| offset.checked_add(part.len)).is_some_and(|end| end <= self.len)
    }
}

/// The location of a byte of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The incarnation of the node that holds the memory.
    pub(crate) at: MemberId,
    /// The byte's address.
    pub(crate) addr: IoAddr,
    /// The number of bytes of the region that are contiguous in memory from this byte on, itself included.
    pub(crate) run: u64,
}

/// Pieces that follow each other, with the offset at which each begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Column(Vec<(u64, Piece)>);

impl Column {
    fn len(&self) -> u64 {
        self.0.last().map_or(0, |(start, piece)| start + piece.len)
    }

    fn push(&mut self, piece: Piece) {
        self.0.push((self.len(), piece));
    }

    fn find(&self, offset: u64) -> Option<Location> {
        let after = if self.0.len() == 1 { 1 } else { self.0.partition_point(|(start, _)| *start <= offset) };
        let (start, piece) = self.0.get(after.checked_sub(1)?)?;
        let within = offset - start;
        let run = if planted(Bug::NoBoundsCheck) { u64::MAX } else { piece.len.checked_sub(within)? };
        Some(Location { at: piece.at, addr: piece.addr.checked_add(within)?, run })
    }
}

/// All pieces of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    len: u64,
    stripe: u64,
    columns: Vec<Column>,
}

/// Returns the length of column `index` of `count`, in a region of `len` bytes.
pub(crate) fn column_len(len: u64, stripe: u64, count: u64, index: u64) -> u64 {
    if count <= 1 {
        return len;
    }
    let (whole, rest) = (len / stripe, len % stripe);
    let last = if index == whole % count { rest } else { 0 };
    (whole / count + u64::from(index < whole % count)) * stripe + last
}

impl Layout {
    /// Returns the layout of `len` bytes over `columns` columns in stripes of `stripe` bytes, whose pieces
    /// are `pieces`, column after column. Returns `None` if the pieces do not add up to exactly that.
    pub(crate) fn new(
        len: u64,
        stripe: u64,
        columns: usize,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Option<Self> {
        let fine = columns == 1 || (stripe > 0 && stripe.is_multiple_of(GRAIN) && columns > 0);
        fine.then_some(())?;
        let mut pieces = pieces.into_iter();
        let mut made = Vec::new();
        for index in 0..columns as u64 {
            let wanted = column_len(len, stripe, columns as u64, index);
            let mut column = Column::default();
            while column.len() < wanted || column.0.is_empty() {
                let piece = pieces.next()?;
                let end = column.len().checked_add(piece.len).filter(|end| *end <= wanted)?;
                let whole = end.is_multiple_of(GRAIN) || end == wanted;
                let sane = piece.addr.checked_add(piece.len).is_some() && (piece.len > 0 || wanted == 0);
                (whole && sane).then_some(())?;
                column.push(piece);
            }
            made.push(column);
        }
        pieces.next().is_none().then_some(Self { len, stripe, columns: made })
    }

    /// Returns the length of the region, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the length of a stripe, in bytes; without meaning if there is one column.
    pub(crate) fn stripe(&self) -> u64 {
        self.stripe
    }

    /// Returns the number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Returns all pieces, column after column.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.columns.iter().flat_map(|column| column.0.iter().map(|(_, piece)| piece))
    }

    /// Returns the location of the byte at `offset`. At the end of the region, which has no byte, it may
    /// return a location behind the last one.
    pub(crate) fn find(&self, offset: u64) -> Option<Location> {
        if let [column] = self.columns.as_slice() {
            return column.find(offset);
        }
        let (stripe, within) = (offset.checked_div(self.stripe)?, offset % self.stripe);
        let count = self.columns.len() as u64;
        let column = self.columns.get(usize::try_from(stripe.checked_rem(count)?).ok()?)?;
        let spot = column.find(stripe / count * self.stripe + within)?;
        Some(Location { run: spot.run.min(self.stripe - within), ..spot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;
    use proto::{Incarnation, NodeId};

    const GAP: u64 = 1000;

    /// Cuts `len` bytes into pieces at `cuts`, on alternating nodes, with gaps between the pieces of a
    /// node.
    fn cut(node: u16, len: u64, cuts: &[u64], next: &mut u64) -> Vec<Piece> {
        let mut ends: Vec<u64> =
            cuts.iter().map(|c| c % len.max(1) / GRAIN * GRAIN).filter(|c| *c > 0).collect();
        ends.push(len);
        ends.sort_unstable();
        ends.dedup();
        let mut start = 0;
        let pieces = ends.into_iter().map(|end| {
            let addr = IoAddr(*next);
            let len = end - start;
            *next += len + GAP;
            start = end;
            Piece { at: (NodeId(node), Incarnation(7)), addr, len }
        });
        pieces.collect()
    }

    proptest! {
        /// The model is a flat array of the node and the address of each byte.
        #[test]
        fn every_byte_is_where_a_flat_array_says(
            len in 0u64..5000,
            grains in 1u64..60,
            columns in 1usize..6,
            cuts in proptest::collection::vec(any::<u64>(), 0..5),
        ) {
            let stripe = grains * GRAIN;
            let columns = columns.min(len.div_ceil(stripe).max(1) as usize);
            let mut next = 0x1000;
            let per_column: Vec<Vec<Piece>> = (0..columns).map(|c| {
                cut(c as u16 + 1, column_len(len, stripe, columns as u64, c as u64), &cuts, &mut next)
            }).collect();
            let sum: u64 = per_column.iter().flatten().map(|p| p.len).sum();
            prop_assert_eq!(sum, len);
            let layout = Layout::new(len, stripe, columns, per_column.iter().flatten().copied()).unwrap();
            prop_assert_eq!(layout.pieces().count(), per_column.iter().flatten().count());
            // The model, byte by byte.
            let mut bytes: Vec<Vec<(MemberId, u64)>> = per_column.iter().map(|pieces| {
                pieces.iter().flat_map(|p| (0..p.len).map(|i| (p.at, p.addr.0 + i))).rev().collect()
            }).collect();
            let model: Vec<(MemberId, u64)> = (0..len).map(|offset| {
                let column = if columns == 1 { 0 } else { (offset / stripe) as usize % columns };
                bytes[column].pop().unwrap()
            }).collect();
            let mut offset = 0;
            while offset < len {
                let spot = layout.find(offset).unwrap();
                prop_assert!(spot.run > 0);
                for i in 0..spot.run {
                    prop_assert_eq!(Some(&(spot.at, spot.addr.0 + i)), model.get((offset + i) as usize));
                }
                // A run from its middle is the rest of it.
                let middle = layout.find(offset + spot.run / 2).unwrap();
                prop_assert_eq!(middle.addr.0 - spot.addr.0, spot.run / 2);
                prop_assert_eq!(middle.run, spot.run - spot.run / 2);
                offset += spot.run;
                prop_assert!(offset == len || offset.is_multiple_of(GRAIN), "no word on two pieces");
            }
            prop_assert_eq!(offset, len);
        }

        /// For any input of a peer, a layout is refused or finds every byte in a piece of its own.
        #[test]
        fn nonsense_is_refused(
            len in 0u64..300,
            stripe in 0u64..100,
            columns in 0usize..4,
            pieces in proptest::collection::vec((any::<u64>(), 0u64..200), 0..6),
        ) {
            let at = (NodeId(1), Incarnation(1));
            let pieces: Vec<_> =
                pieces.into_iter().map(|(addr, len)| Piece { at, addr: IoAddr(addr), len }).collect();
            if let Some(layout) = Layout::new(len, stripe, columns, pieces.iter().copied()) {
                for offset in 0..len {
                    let spot = layout.find(offset).unwrap();
                    prop_assert!(spot.run > 0 && offset + spot.run <= len);
                    prop_assert!(pieces.iter().any(|p| spot.addr >= p.addr
                        && spot.addr.0 - p.addr.0 + spot.run <= p.len));
                }
            }
        }
    }

    #[test]
    fn the_largest_lengths() {
        let at = (NodeId(1), Incarnation(1));
        let piece = |addr, len| Piece { at, addr: IoAddr(addr), len };
        let half = 1u64 << 40;
        let layout = Layout::new(2 * half, 0, 1, vec![piece(0, half), piece(4 * half, half)]).unwrap();
        let last = layout.find(2 * half - 1).unwrap();
        assert_eq!((last.addr.0, last.run), (5 * half - 1, 1));
        assert_eq!(layout.find(half - 8).unwrap().run, 8);
        assert_eq!(Layout::new(u64::MAX, 0, 1, [piece(8, u64::MAX)]), None, "beyond the address space");
        // A region without bytes has a location.
        let empty = Layout::new(0, 0, 1, [piece(64, 0)]).unwrap();
        assert_eq!(empty.find(0).unwrap().run, 0);
    }
}
