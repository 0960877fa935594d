//! The page tables of a loader, which are in no memory map.

use crate::place::Span;

/// The bits of an entry: it is present; it maps a large page.
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// The bits with the address of a table.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The length of a table, in bytes, and of an entry.
const LEN: u64 = 4096;
const ENTRY: u64 = 8;

/// Page tables of four or five levels.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// The physical address of the top level, in the form of the register CR3.
    pub root: u64,
    /// The number of levels.
    pub levels: u8,
}

impl Tables {
    /// Returns a table that overlaps `span`, if there is one. `word` returns the eight bytes at a physical
    /// address.
    pub fn within(self, span: &Span, word: impl Fn(u64) -> u64 + Copy) -> Option<Span> {
        let table = Span::new(self.root & ADDRESS, LEN);
        if table.overlaps(span) {
            return Some(table);
        }
        let levels = self.levels.checked_sub(1).filter(|levels| *levels > 0)?;
        (0..LEN / ENTRY).find_map(|index| {
            let root = word(table.start + index * ENTRY);
            let is_table = root & (PRESENT | LARGE) == PRESENT;
            if is_table { Self { root, levels }.within(span, word) } else { None }
        })
    }
}
