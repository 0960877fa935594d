//! The byte string that decides everything.

/// The bytes still to be used. At the end, every choice is the first one, which is the harmless one.
#[derive(Clone, Debug)]
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
        let byte = self.bytes.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// Returns the next byte, or zero at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Returns a number below `n`, from one or two bytes.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let low = usize::from(self.byte());
        if n <= 256 { low % n } else { (low | usize::from(self.byte()) << 8) % n }
    }

    /// Returns up to `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Vec<u8> {
        let taken: Vec<u8> = self.bytes.iter().skip(self.at).take(n).copied().collect();
        self.at += taken.len();
        taken
    }
}
