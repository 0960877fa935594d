//! The memory map that the kernel gets.

/// The type of usable memory, as in E820.
pub const RAM: u32 = 1;
/// The type of memory that nobody may use.
pub const RESERVED: u32 = 2;

/// An entry of the memory map, in the form of `hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The physical address of the first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The type, as in E820.
    pub kind: u32,
    reserved: u32,
}

impl Entry {
    /// Returns an entry of `len` bytes from `start`.
    #[must_use]
    pub const fn new(start: u64, len: u64, kind: u32) -> Self {
        Self { start, len, kind, reserved: 0 }
    }

    /// Returns the address after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// The most entries of a map. A firmware of a server has some hundred, most of which adjoin and are merged.
const MAX_ENTRIES: usize = 512;

/// A memory map of at most 512 entries.
#[repr(C)]
pub struct Map {
    entries: [Entry; MAX_ENTRIES],
    len: usize,
    /// The number of entries that did not fit.
    dropped: usize,
}

impl Default for Map {
    fn default() -> Self {
        Self { entries: [Entry::new(0, 0, 0); MAX_ENTRIES], len: 0, dropped: 0 }
    }
}

impl Map {
    /// Adds an entry. It is merged with the last one if that ends where it starts and has the same type. An
    /// empty entry is left out. In a full map, an entry of other memory than RAM takes the place of one of
    /// RAM: RAM may be missing in the map, and memory that must not be used never is.
    pub fn push(&mut self, entry: Entry) {
        if entry.len == 0 {
            return;
        }
        let last = self.len.checked_sub(1).and_then(|last| self.entries.get_mut(last));
        if let Some(last) = last.filter(|last| last.end() == entry.start && last.kind == entry.kind) {
            last.len = last.len.saturating_add(entry.len);
        } else if let Some(free) = self.entries.get_mut(self.len) {
            *free = entry;
            self.len += 1;
        } else {
            self.dropped += 1;
            if entry.kind != RAM
                && let Some(ram) = self.entries.iter_mut().rfind(|entry| entry.kind == RAM)
            {
                *ram = entry;
            }
        }
    }

    /// Returns the entries.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        self.entries.get(..self.len).unwrap_or_default()
    }

    /// Returns the number of entries that did not fit.
    #[must_use]
    pub const fn dropped(&self) -> usize {
        self.dropped
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        (self.len, self.dropped) = (0, 0);
    }
}
