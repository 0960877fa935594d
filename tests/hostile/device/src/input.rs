//! The byte string from which a run takes all its decisions.

/// The bytes still to be used. At the end, every choice is the first one.
pub(crate) struct Input {
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), at: 0 }
    }

    /// Returns the next byte, or `None` at the end.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied()?;
        self.at += 1;
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

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Returns the next four bytes.
    fn raw(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Returns a word: any, a small one, one with one bit, or one at a limit.
    pub(crate) fn word(&mut self) -> u32 {
        match self.byte() % 5 {
            0 => self.raw(),
            1 => self.byte().into(),
            2 => 1 << (self.byte() % 32),
            3 => u32::from(self.byte()) << 24,
            _ => [0, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0xffff_f000][self.below(5)],
        }
    }
}
