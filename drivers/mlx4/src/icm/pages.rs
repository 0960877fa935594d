//! Pages of the machine that are lent to the card (MAP_FA, MAP_ICM_AUX, MAP_ICM).

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::mailbox::Mailbox;
use platform::IoAddr;

/// The size of a page in bytes, and its log2.
pub(crate) const PAGE: u64 = 1 << LOG_PAGE;
pub(crate) const LOG_PAGE: u32 = 12;

/// The size of an entry in bytes: an ICM address, then the machine's address with log2 of the number of pages
/// in its low bits.
const ENTRY: usize = 16;
/// The maximum number of entries in one command.
const MAX_ENTRIES: usize = 256;

/// Lends `pages` pages from `addr` on to the card. `icm` is the ICM address at which they appear, for
/// commands that have one.
pub(crate) fn lend(
    commands: &mut Commands<'_, impl Hardware>,
    opcode: Opcode,
    icm: Option<u64>,
    addr: IoAddr,
    pages: u64,
) -> Result<(), Error> {
    let mut mailbox = Mailbox::new();
    let mut entries = 0;
    let mut flush = |mailbox: &mut Mailbox, entries: &mut usize| {
        let full = core::mem::replace(mailbox, Mailbox::new());
        let count = core::mem::take(entries) as u32;
        commands.exec_in(Command::new(opcode).of(count), &full)
    };
    for (skip, order) in pieces(icm.unwrap_or(0), addr.0, pages) {
        if let Some(icm) = icm {
            mailbox.set_wide(entries * ENTRY, icm + skip * PAGE);
        }
        mailbox.set_wide(entries * ENTRY + 8, (addr.0 + skip * PAGE) | u64::from(order));
        entries += 1;
        if entries == MAX_ENTRIES {
            flush(&mut mailbox, &mut entries)?;
        }
    }
    if entries > 0 { flush(&mut mailbox, &mut entries) } else { Ok(()) }
}

/// Divides a run of pages into powers of two that are aligned in both address spaces. Returns for each the
/// number of pages before it, and log2 of its pages.
fn pieces(icm: u64, addr: u64, pages: u64) -> impl Iterator<Item = (u64, u32)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let left = pages - done;
        let aligned = ((icm / PAGE + done) | (addr / PAGE + done)).trailing_zeros();
        let piece = (done, aligned.min(left.checked_ilog2()?));
        done += 1 << piece.1;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn pieces_are_aligned_on_both_sides_and_cover_all() {
        for (icm, addr, pages) in
            [(0, 0x7000, 9), (0x3000, 0x3000, 17), (0x10_0000, 0x20_1000, 5), (0, 0, 256)]
        {
            let mut next = 0;
            for (skip, order) in pieces(icm, addr, pages) {
                assert_eq!(skip, next);
                for start in [icm, addr] {
                    assert!((start + skip * PAGE).is_multiple_of(PAGE << order), "{icm:#x} {addr:#x} {skip}");
                }
                next += 1 << order;
            }
            assert_eq!(next, pages);
        }
        assert_eq!(pieces(0, 0, 256).collect::<Vec<_>>(), [(0, 8)]);
    }
}
