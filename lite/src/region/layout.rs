//! The layout of a region: its pieces in columns, and the search for an offset. Arithmetic only.
//!
//! A region has one or more columns; the pieces of a column follow each other. With one column the bytes of
//! the region are those of the column. With several the region is striped: its bytes are dealt to the
//! columns in turn, [`stripe`](Layout::stripe) bytes at a time. The column of an offset is found by
//! division, the piece in it by binary search.

use crate::base::member::MemberId;
use crate::planted::{Bug, planted};
use alloc::vec::Vec;
use core::ops::Range;
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

    /// Returns true if `next` follows this piece in the memory of the same node.
    fn touches(&self, next: &Self) -> bool {
        self.at == next.at && self.addr.checked_add(self.len) == Some(next.addr)
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

    /// Appends pieces; joins those that touch in memory.
    fn extend(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            match self.0.last_mut() {
                Some((_, last)) if last.touches(&piece) => last.len += piece.len,
                _ => self.push(piece),
            }
        }
    }

    /// Returns the memory of the bytes in `range`.
    fn slice(&self, range: &Range<u64>) -> impl Iterator<Item = Piece> {
        let first = self.0.partition_point(|(start, piece)| start + piece.len <= range.start);
        let parts = self.0.get(first..).unwrap_or_default().iter();
        parts.take_while(|(start, _)| *start < range.end).filter_map(|(start, piece)| {
            let (from, to) = (range.start.max(*start), range.end.min(start + piece.len));
            let addr = piece.addr.checked_add(from - start)?;
            Some(Piece { addr, len: to.checked_sub(from)?, ..*piece })
        })
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

    /// Returns true if a byte of the region is in the same column and at the same position there as in
    /// another layout.
    pub(super) fn has_columns_of(&self, other: &Self) -> bool {
        let same_stripe = self.columns.len() == 1 || self.stripe == other.stripe;
        self.len == other.len && self.columns.len() == other.columns.len() && same_stripe
    }

    /// Returns the bytes that are elsewhere in another layout with the same columns: ranges of columns.
    pub(super) fn differences(&self, other: &Self) -> Vec<(usize, Range<u64>)> {
        let mut found: Vec<(usize, Range<u64>)> = Vec::new();
        for (index, (mine, others)) in self.columns.iter().zip(&other.columns).enumerate() {
            let mut at = 0;
            while let (Some(a), Some(b)) = (mine.find(at), others.find(at)) {
                let run = a.run.min(b.run);
                if run == 0 {
                    break;
                }
                if (a.at, a.addr) != (b.at, b.addr) {
                    match found.last_mut() {
                        Some((column, range)) if *column == index && range.end == at => range.end += run,
                        _ => found.push((index, at..at + run)),
                    }
                }
                at += run;
            }
        }
        found
    }

    /// Returns the memory of a range of a column, as a layout of its own.
    pub(super) fn part(&self, column: usize, range: &Range<u64>) -> Option<Self> {
        let mut part = Column::default();
        part.extend(self.columns.get(column)?.slice(range));
        let len = part.len();
        (len == range.end - range.start).then(|| Self { len, stripe: 0, columns: alloc::vec![part] })
    }

    /// Returns this layout with a range of a column as in another layout with the same columns.
    pub(super) fn with_part_of(&self, other: &Self, column: usize, range: &Range<u64>) -> Option<Self> {
        let mut mixed = self.clone();
        let (mine, others) = (self.columns.get(column)?, other.columns.get(column)?);
        let mut made = Column::default();
        made.extend(mine.slice(&(0..range.start)));
        made.extend(others.slice(range));
        made.extend(mine.slice(&(range.end..mine.len())));
        (made.len() == mine.len()).then_some(())?;
        *mixed.columns.get_mut(column)? = made;
        Some(mixed)
    }

    /// Returns the memory that must replace the pieces on a node, in bytes.
    pub(super) fn room_for(&self, at: MemberId) -> u64 {
        self.pieces().filter(|piece| piece.at == at).map(|piece| piece.len.next_multiple_of(GRAIN)).sum()
    }

    /// Returns this layout with other memory in place of the pieces on a node, which has
    /// [room](Self::room_for) for them. Returns `None` if it has not.
    pub(super) fn without(&self, at: MemberId, other: &Self) -> Option<Self> {
        let [other] = other.columns.as_slice() else { return None };
        let (mut made, mut used) = (self.clone(), 0);
        for (column, old) in made.columns.iter_mut().zip(&self.columns) {
            *column = Column::default();
            for (_, piece) in &old.0 {
                if piece.at == at {
                    column.extend(other.slice(&(used..used + piece.len)));
                    used += piece.len.next_multiple_of(GRAIN);
                } else {
                    column.extend([*piece]);
                }
            }
            // A region without bytes has an address, too.
            if column.0.is_empty() {
                column.extend(other.0.first().map(|(_, piece)| Piece { len: 0, ..*piece }));
            }
            (column.len() == old.len()).then_some(())?;
        }
        Some(made)
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

        /// Windows of the differences, applied one after the other in any lengths, lead from one layout to
        /// another; in between, each byte is in one of the two.
        #[test]
        fn windows_lead_from_one_layout_to_another(
            len in 0u64..5000,
            grains in 1u64..60,
            columns in 1usize..5,
            cuts in proptest::collection::vec(any::<u64>(), 0..5),
            others in proptest::collection::vec(any::<u64>(), 0..5),
            stays in 0usize..6,
            lens in proptest::collection::vec(1u64..200, 1..5),
        ) {
            let stripe = grains * GRAIN;
            let columns = columns.min(len.div_ceil(stripe).max(1) as usize);
            let mut next = 0x1000;
            let column = |c: usize| column_len(len, stripe, columns as u64, c as u64);
            let old: Vec<_> = (0..columns).map(|c| cut(1, column(c), &cuts, &mut next)).collect();
            // A column may stay where it is.
            let new: Vec<_> = (0..columns).map(|c| {
                if c == stays { old[c].clone() } else { cut(2, column(c), &others, &mut next) }
            }).collect();
            let layout = |pieces: Vec<Vec<Piece>>| Layout::new(len, stripe, columns, pieces.into_iter().flatten());
            let (old, new) = (layout(old).unwrap(), layout(new).unwrap());
            prop_assert!(old.has_columns_of(&new));
            let place = |layout: &Layout, offset| layout.find(offset).map(|spot| (spot.at, spot.addr));
            let (mut mixed, mut lens) = (old.clone(), lens.iter().cycle());
            for (column, range) in old.differences(&new) {
                let mut at = range.start;
                while at < range.end {
                    let end = range.end.min(at + lens.next().unwrap() * GRAIN);
                    let window = at..end;
                    let part = new.part(column, &window).unwrap();
                    prop_assert_eq!(part.len(), window.end - window.start);
                    mixed = mixed.with_part_of(&new, column, &window).unwrap();
                    for offset in 0..len {
                        let is = place(&mixed, offset);
                        prop_assert!(is == place(&old, offset) || is == place(&new, offset));
                    }
                    at = end;
                }
            }
            for offset in 0..len {
                prop_assert_eq!(place(&mixed, offset), place(&new, offset));
            }
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
