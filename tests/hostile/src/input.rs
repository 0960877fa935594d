//! The byte string that decides everything.

/// Bytes still to be used. Once there are none, every choice is the first, which is the harmless one.
#[derive(Clone, Debug)]
pub struct Input {
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), at: 0 }
    }

    /// The next byte; `None` at the end.
    pub fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// The next byte, or zero.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A number below `n`, from one or two bytes.
    pub fn below(&mut self, n: usize) -> usize {
        let low = usize::from(self.byte());
        if n <= 256 { low % n } else { (low | usize::from(self.byte()) << 8) % n }
    }

    /// Up to `n` bytes as they are.
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        let taken: Vec<u8> = self.bytes.iter().skip(self.at).take(n).copied().collect();
        self.at += taken.len();
        taken
    }
}
