//! A ring of bytes.

const BYTES: usize = 16 << 10;

/// A queue of bytes with a fixed capacity.
pub(super) struct Ring {
    bytes: [u8; BYTES],
    head: usize,
    tail: usize,
}

impl Ring {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; BYTES], head: 0, tail: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.head) >= BYTES
    }

    /// Adds a byte. A full ring drops its oldest byte.
    pub(super) fn push(&mut self, byte: u8) {
        if self.is_full() {
            self.head = self.head.wrapping_add(1);
        }
        self.bytes[self.tail % BYTES] = byte;
        self.tail = self.tail.wrapping_add(1);
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        if self.is_empty() {
            return None;
        }
        let byte = self.bytes[self.head % BYTES];
        self.head = self.head.wrapping_add(1);
        Some(byte)
    }
}
