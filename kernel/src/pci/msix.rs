//! MSI-X: the table of messages by which a function interrupts (PCI 3.0, section 6.8.2).

use core::fmt;

use super::{BarError, Function, capability};

const ENABLE: u32 = 1 << 31;
const MASK_ALL: u32 = 1 << 30;
const ENTRY_BYTES: u64 = 16;
const ENTRY_MASKED: u32 = 1;

/// The reason for which a function cannot interrupt by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MsixError {
    /// The function has no MSI-X.
    Absent,
    /// The table lies outside the function's registers.
    OutOfRange,
    /// The function's registers cannot be accessed.
    Bar(BarError),
}

impl fmt::Display for MsixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no MSI-X"),
            Self::OutOfRange => f.write_str("MSI-X table outside the device's registers"),
            Self::Bar(e) => write!(f, "MSI-X table: {e}"),
        }
    }
}

/// A message that interrupts a processor: a write of `data` to `address` (Intel SDM volume 3, 11.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The address to which the device writes.
    pub address: u64,
    /// The value that the device writes.
    pub data: u32,
}

/// A function's table, all entries masked until set.
#[derive(Debug)]
pub(crate) struct MsixTable {
    base: *mut u32,
    /// The number of entries.
    len: u16,
}

// SAFETY: the table is device memory that any processor may write; `&mut self` excludes concurrent writers.
unsafe impl Send for MsixTable {}

impl MsixTable {
    /// Maps `function`'s table, masks every entry and turns MSI-X on.
    pub(crate) fn enable(function: &Function) -> Result<Self, MsixError> {
        let at = function.capabilities(capability::MSIX).next().ok_or(MsixError::Absent)?;
        let control = function.read(at);
        let len = (control >> 16 & 0x7ff) as u16 + 1;
        let location = function.read(at + 4);
        let (bar, size) = function.map_bar(location as usize & 7).map_err(MsixError::Bar)?;
        let offset = u64::from(location & !7);
        if offset + ENTRY_BYTES * u64::from(len) > size {
            return Err(MsixError::OutOfRange);
        }
        // SAFETY: `offset` is inside the window just mapped.
        let base = unsafe { bar.add(offset as usize) }.cast::<u32>();
        function.write(at, control | ENABLE | MASK_ALL);
        let mut table = Self { base, len };
        for entry in 0..len {
            table.put(entry, 3, ENTRY_MASKED);
        }
        function.write(at, (control | ENABLE) & !MASK_ALL);
        Ok(table)
    }

    fn put(&mut self, entry: u16, word: usize, value: u32) {
        assert!(entry < self.len && word < 4, "MSI-X entry {entry} of {}", self.len);
        // SAFETY: the entry is inside the table, whose range was checked.
        unsafe { self.base.add(usize::from(entry) * 4 + word).write_volatile(value) };
    }

    /// Makes entry `entry` send `message`.
    ///
    /// # Panics
    /// Panics if there is no such entry.
    pub(crate) fn set(&mut self, entry: u16, message: Message) {
        self.put(entry, 3, ENTRY_MASKED);
        self.put(entry, 0, message.address as u32);
        self.put(entry, 1, (message.address >> 32) as u32);
        self.put(entry, 2, message.data);
        self.put(entry, 3, 0);
    }
}
