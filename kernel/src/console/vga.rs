//! The screen of a VGA in text mode, 80 columns and 25 rows, as a BIOS leaves it. A new line moves
//! the window of the screen in the memory of the VGA, so that it costs one row and not a screen.

use x86_64::instructions::port::Port;

/// The physical address and the length of the memory for text.
pub(super) const MEMORY: (u64, u64) = (0xb_8000, 0x8000);
const COLUMNS: usize = 80;
const ROWS: usize = 25;
/// The number of rows in that memory.
const ALL_ROWS: usize = MEMORY.1 as usize / 2 / COLUMNS;
/// Light grey on black.
const ATTRIBUTE: u16 = 0x07 << 8;
/// Registers of the CRT controller: the address of the window, and of the cursor, upper half first.
const WINDOW: u8 = 0x0c;
const CURSOR: u8 = 0x0e;

/// A screen.
pub(super) struct Screen {
    cells: *mut u16,
    /// The first row of the window, and the place of the next character.
    top: usize,
    row: usize,
    column: usize,
}

// SAFETY: the memory of the VGA is written under the lock of the console only.
unsafe impl Send for Screen {}

fn set(register: u8, value: u8) {
    // SAFETY: registers of the CRT controller have no effect on memory.
    unsafe {
        Port::new(0x3d4).write(register);
        Port::new(0x3d5).write(value);
    }
}

fn get(register: u8) -> u8 {
    // SAFETY: as `set`.
    unsafe {
        Port::new(0x3d4).write(register);
        Port::new(0x3d5).read()
    }
}

fn set_address(register: u8, cell: usize) {
    set(register, (cell >> 8) as u8);
    set(register + 1, cell as u8);
}

/// Returns true if a VGA answers that is in a text mode with colours.
fn is_present() -> bool {
    let old = get(CURSOR + 1);
    let echoes = |value| {
        set(CURSOR + 1, value);
        get(CURSOR + 1) == value
    };
    if !(echoes(0x5a) && echoes(0xa5)) {
        return false;
    }
    set(CURSOR + 1, old);
    // Register 6 of the graphics controller: bit 0 is set in a graphics mode, bits 2 and 3 select 0xb8000.
    // SAFETY: reading a register of the graphics controller has no effect on memory.
    let graphics: u8 = unsafe {
        Port::<u8>::new(0x3ce).write(6);
        Port::new(0x3cf).read()
    };
    graphics & 0xd == 0xc
}

impl Screen {
    /// Returns the cleared screen at the mapped address `cells`. Returns `None` if there is no VGA
    /// in text mode.
    pub(super) fn probe(cells: *mut u8) -> Option<Self> {
        if !is_present() {
            return None;
        }
        let screen = Self { cells: cells.cast(), top: 0, row: 0, column: 0 };
        (0..ROWS).for_each(|row| screen.clear(row));
        set_address(WINDOW, 0);
        Some(screen)
    }

    fn clear(&self, row: usize) {
        (0..COLUMNS).for_each(|column| self.put_at(row, column, b' '));
    }

    fn put_at(&self, row: usize, column: usize, byte: u8) {
        if row < ALL_ROWS && column < COLUMNS {
            // SAFETY: the cell lies in the memory for text, which is mapped.
            unsafe { self.cells.add(row * COLUMNS + column).write_volatile(ATTRIBUTE | u16::from(byte)) };
        }
    }

    /// Copies the rows of the window, except the first, to the start of the memory.
    fn rewind(&mut self) {
        for cell in 0..(ROWS - 1) * COLUMNS {
            // SAFETY: both cells lie in the memory for text, which is mapped; the window lies
            // behind its copy.
            unsafe {
                let old = self.cells.add((self.top + 1) * COLUMNS + cell).read_volatile();
                self.cells.add(cell).write_volatile(old);
            }
        }
        (self.top, self.row) = (0, ROWS - 1);
    }

    fn new_line(&mut self) {
        self.column = 0;
        self.row += 1;
        if self.row == ALL_ROWS {
            self.row -= 1;
            self.rewind();
        } else if self.row >= self.top + ROWS {
            self.top += 1;
        }
        self.clear(self.row);
        set_address(WINDOW, self.top * COLUMNS);
    }

    /// Writes a byte of text. A line that is longer than the screen goes on in the next row.
    pub(super) fn put(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.new_line();
                set_address(CURSOR, self.row * COLUMNS);
            }
            b' '..=b'~' => {
                if self.column == COLUMNS {
                    self.new_line();
                }
                self.put_at(self.row, self.column, byte);
                self.column += 1;
            }
            _ => {}
        }
    }
}
