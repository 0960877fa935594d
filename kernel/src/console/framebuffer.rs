//! A screen of pixels, as UEFI's firmware leaves it: text in cells of 8 by 16 pixels, in the font
//! of the crate
//! `font8x8` with each line twice.

use alloc::vec;
use alloc::vec::Vec;
use font8x8::legacy::BASIC_LEGACY;
use x86_64::VirtAddr;

use crate::boot::Framebuffer;
use crate::mm::paging::{self, Rights};
use crate::mm::{DIRECT_MAP, PAGE, frames};

const WIDTH: usize = 8;
const HEIGHT: usize = 16;
const WHITE: u32 = 0x00ff_ffff;
/// The number of rows by which a full screen moves, so that few lines write all pixels again.
const SCROLL: usize = 8;

/// A screen.
pub(super) struct Pixels {
    base: *mut u8,
    pitch: usize,
    columns: usize,
    rows: usize,
    /// The text on the screen, by rows.
    cells: Vec<u8>,
    row: usize,
    column: usize,
}

// SAFETY: the pixels are written under the lock of the console only.
unsafe impl Send for Pixels {}

impl Pixels {
    /// Maps the screen and clears it. Returns `None` if it has no room for text or cannot be mapped.
    pub(super) fn new(screen: Framebuffer) -> Option<Self> {
        let (columns, rows) = (screen.width as usize / WIDTH, screen.height as usize / HEIGHT);
        let (pitch, len) = (screen.pitch as usize, u64::from(screen.pitch) * u64::from(screen.height));
        if screen.bits != 32 || pitch < screen.width as usize * 4 || rows <= SCROLL || columns == 0 {
            return None;
        }
        let start = screen.address & !(PAGE - 1);
        let end = screen.address.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        // RAM is mapped already.
        if !frames::overlaps_ram(start, end) {
            let virt = VirtAddr::try_new(DIRECT_MAP.checked_add(start)?).ok()?;
            paging::map(virt, x86_64::PhysAddr::try_new(start).ok()?, end - start, Rights::Combining).ok()?;
        }
        let base = (DIRECT_MAP + screen.address) as *mut u8;
        let pixels =
            Self { base, pitch, columns, rows, cells: vec![b' '; columns * rows], row: 0, column: 0 };
        for cell in 0..columns * rows {
            pixels.draw(cell);
        }
        Some(pixels)
    }

    /// Draws a cell.
    fn draw(&self, cell: usize) {
        let (row, column) = (cell / self.columns, cell % self.columns);
        let byte = self.cells.get(cell).copied().unwrap_or(b' ');
        let glyph = BASIC_LEGACY.get(usize::from(byte)).copied().unwrap_or_default();
        for line in 0..HEIGHT {
            let bits = glyph[line / 2];
            let at = (row * HEIGHT + line) * self.pitch + column * WIDTH * 4;
            for x in 0..WIDTH {
                let colour = if bits >> x & 1 != 0 { WHITE } else { 0 };
                // SAFETY: the cell lies on the screen, whose pixels are mapped.
                unsafe { self.base.add(at + 4 * x).cast::<u32>().write_volatile(colour) };
            }
        }
    }

    fn put_at(&mut self, cell: usize, byte: u8) {
        if let Some(old) = self.cells.get_mut(cell)
            && *old != byte
        {
            *old = byte;
            self.draw(cell);
        }
    }

    fn new_line(&mut self) {
        self.column = 0;
        self.row += 1;
        if self.row < self.rows {
            return;
        }
        let moved = SCROLL * self.columns;
        for cell in 0..self.cells.len() {
            let byte = self.cells.get(cell + moved).copied().unwrap_or(b' ');
            self.put_at(cell, byte);
        }
        self.row = self.rows - SCROLL;
    }

    /// Writes a byte of text. A line that is longer than the screen goes on in the next row.
    pub(super) fn put(&mut self, byte: u8) {
        match byte {
            b'\n' => self.new_line(),
            b' '..=b'~' => {
                if self.column == self.columns {
                    self.new_line();
                }
                self.put_at(self.row * self.columns + self.column, byte);
                self.column += 1;
            }
            _ => {}
        }
    }
}
