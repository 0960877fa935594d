//! The byte string that decides everything.

/// The bytes still to be used. At the end, every choice is the first one.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte, or `None` at the end.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// Returns the next byte, or zero at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Returns true with probability 1/n.
    pub(crate) fn one_in(&mut self, n: u8) -> bool {
        self.byte().is_multiple_of(n)
    }

    /// Returns one of the elements.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    /// Returns the next four bytes.
    pub(crate) fn raw(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Returns a word: any, a small one, one at a limit, or one with a meaning for the card.
    pub(crate) fn word(&mut self) -> u32 {
        match self.byte() % 8 {
            0 => self.raw(),
            1 | 2 => u32::from(self.byte()),
            3 => 1 << (self.byte() % 32),
            4 => u32::from(self.byte()) << 24,
            5 => self.pick(&[0, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0xffff_f000, 0x100]),
            // An address in the guest's memory.
            6 => (u32::from(self.byte()) << 14 | u32::from(self.byte()) << 3) & 0x3f_fff8,
            _ => self.pick(&crate::guest::NUMBERS),
        }
    }

    /// Returns up to `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
