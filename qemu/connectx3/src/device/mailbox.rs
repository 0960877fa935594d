//! A command's mailbox: 4096 bytes of big-endian fields.

/// The length of a mailbox, in bytes.
pub(super) const MAILBOX: usize = 4096;

/// A mailbox. Offsets are constants of a command's layout. Beyond the end, reads return zero and writes have
/// no effect.
#[derive(Clone, PartialEq, Eq)]
pub struct Mailbox(Box<[u8; MAILBOX]>);

impl Default for Mailbox {
    fn default() -> Self {
        Self(Box::new([0; MAILBOX]))
    }
}

impl core::fmt::Debug for Mailbox {
    /// Shows only the first words: the rest of most mailboxes is zero.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Mailbox({:x?}..)", self.0.get(..32).unwrap_or_default())
    }
}

impl Mailbox {
    /// Returns all bytes of the mailbox.
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }
    /// Returns all bytes for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut *self.0
    }

    fn get<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.0.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
    /// Returns the byte at an offset.
    pub fn u8(&self, offset: usize) -> u8 {
        u8::from_be_bytes(self.get(offset))
    }
    /// Returns the 16-bit field at an offset.
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_be_bytes(self.get(offset))
    }
    /// Returns the 32-bit field at an offset.
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.get(offset))
    }
    /// Returns the 64-bit field at an offset.
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.get(offset))
    }

    /// Writes bytes at an offset.
    pub fn put(&mut self, offset: usize, data: &[u8]) {
        if let Some(place) = self.0.get_mut(offset..).and_then(|rest| rest.get_mut(..data.len())) {
            place.copy_from_slice(data);
        }
    }
    /// Writes a byte at an offset.
    pub fn put_u8(&mut self, offset: usize, value: u8) {
        self.put(offset, &[value]);
    }
    /// Writes a 16-bit field at an offset.
    pub fn put_u16(&mut self, offset: usize, value: u16) {
        self.put(offset, &value.to_be_bytes());
    }
    /// Writes a 32-bit field at an offset.
    pub fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_be_bytes());
    }
    /// Writes a 64-bit field at an offset.
    pub fn put_u64(&mut self, offset: usize, value: u64) {
        self.put(offset, &value.to_be_bytes());
    }
}
