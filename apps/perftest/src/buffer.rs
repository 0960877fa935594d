//! The memory of a test, and its content.
//!
//! The layout is perftest's. Each queue pair has a near buffer, which this side's work requests name, and a
//! far buffer, which the peer's work requests name (or in which its messages arrive). Messages of at most
//! half a page rotate through the slots of a page, so that they do not all hit the same cache lines: message
//! `m` uses slot `m % slots` on both sides.

use crate::error::Error;
use crate::exchange::Agreed;
use crate::options::Options;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use platform::{IoAddr, Lent, Platform};
use sha2::{Digest as _, Sha256};

/// The least limit of a test's buffers, in bytes.
const ROOM: u64 = 1 << 20;
/// Bytes that are filled or hashed at a time.
const CHUNK: usize = 4096;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// One of a queue pair's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The buffer that this side's work requests name.
    Near,
    /// The buffer that the peer's work requests name.
    Far,
}

/// The slots of a buffer that messages of the present size use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The length of a message, in bytes.
    pub size: u32,
    /// The distance between two slots, in bytes.
    step: u32,
    /// The number of slots.
    pub count: u32,
}

impl Slots {
    /// Returns the slots for messages of `size` bytes. If `spread` is set, messages rotate through the slots
    /// of a page.
    #[must_use]
    pub(crate) fn new(size: u32, agreed: &Agreed, spread: bool) -> Self {
        let step = size.max(1).next_multiple_of(agreed.line);
        let count = if spread && size <= agreed.cycle / 2 { agreed.cycle / step } else { 1 };
        Self { size, step, count }
    }

    /// Returns the offset of message `m`.
    #[must_use]
    pub(crate) fn offset(&self, m: u64) -> u64 {
        m % u64::from(self.count) * u64::from(self.step)
    }
}

/// The buffers of a test. Dropping them frees their memory, so the queue pairs that can access it must be
/// destroyed before.
pub(crate) struct Buffers {
    run: Box<dyn Lent>,
    stride: u64,
    queue_pairs: u32,
}

impl Buffers {
    /// Returns the limit of the buffers of a test, in bytes. A small test leaves room for a peer with larger
    /// pages.
    #[must_use]
    pub(crate) fn needed(options: &Options) -> u64 {
        Self::len(options, 4096).max(ROOM)
    }

    /// Returns the bytes of the buffers if the larger page of both sides has `cycle` bytes.
    fn len(options: &Options, cycle: u32) -> u64 {
        2 * u64::from(options.queue_pairs) * Self::stride(options, cycle)
    }

    fn stride(options: &Options, cycle: u32) -> u64 {
        let largest = options.size.unwrap_or(crate::options::MAX_SIZE);
        u64::from(largest.max(cycle)).next_multiple_of(4096)
    }

    /// Allocates the memory and fills it with unique data: near and far buffers differ, and so do any two
    /// tests.
    pub(crate) fn new(
        platform: &Arc<dyn Platform>,
        options: &Options,
        agreed: &Agreed,
    ) -> Result<Self, Error> {
        let stride = Self::stride(options, agreed.cycle);
        let (len, most) = (Self::len(options, agreed.cycle), Self::needed(options));
        if len > most {
            return Err(Error::Limit(format!(
                "with the peer's pages of {} bytes the buffers take {len} bytes; this test has {most}",
                agreed.cycle
            )));
        }
        let run = platform.memory().lend(len).ok_or(Error::OutOfMemory(len.div_ceil(1_000_000)))?;
        let buffers = Self { run, stride, queue_pairs: options.queue_pairs };
        buffers.fill(platform)?;
        Ok(buffers)
    }

    /// Returns the offset of a buffer in the run.
    fn offset(&self, side: Side, queue_pair: u32) -> u64 {
        let index = match side {
            Side::Near => queue_pair,
            Side::Far => self.queue_pairs + queue_pair,
        };
        u64::from(index) * self.stride
    }

    /// Returns the first byte of a buffer.
    #[must_use]
    pub(crate) fn start(&self, side: Side, queue_pair: u32) -> IoAddr {
        IoAddr(self.run.addr().0 + self.offset(side, queue_pair))
    }

    /// Returns the address of message `m`.
    #[must_use]
    pub(crate) fn slot(&self, side: Side, queue_pair: u32, slots: &Slots, m: u64) -> IoAddr {
        IoAddr(self.start(side, queue_pair).0 + slots.offset(m))
    }

    /// Reads message `m` from its first byte on.
    pub(crate) fn read(
        &self,
        side: Side,
        queue_pair: u32,
        slots: &Slots,
        m: u64,
        into: &mut [u8],
    ) -> Result<(), Error> {
        Ok(self.run.read(self.offset(side, queue_pair) + slots.offset(m), into)?)
    }

    fn fill(&self, platform: &Arc<dyn Platform>) -> Result<(), Error> {
        let mut seed = [0; 8];
        platform.fill_random(&mut seed);
        let mut state = u64::from_le_bytes(seed) | 1;
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < self.run.size() {
            for word in chunk.chunks_exact_mut(8) {
                // The xorshift64 sequence does not repeat; it need not be secret.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            self.run.write(at, &chunk)?;
            at += CHUNK as u64;
        }
        Ok(())
    }

    /// Writes the last byte of message 0.
    pub(crate) fn set_last(&self, side: Side, size: u32, byte: u8) -> Result<(), Error> {
        Ok(self.run.write(self.last(side, size), &[byte])?)
    }

    /// Reads the last byte of message 0.
    pub(crate) fn get_last(&self, side: Side, size: u32) -> Result<u8, Error> {
        let mut byte = [0];
        self.run.read(self.last(side, size), &mut byte)?;
        Ok(byte[0])
    }

    fn last(&self, side: Side, size: u32) -> u64 {
        self.offset(side, 0) + u64::from(size.saturating_sub(1))
    }

    /// Returns the words in the slots that `iterations` messages of 8 bytes have used.
    pub(crate) fn words(
        &self,
        side: Side,
        queue_pair: u32,
        slots: &Slots,
        iterations: u32,
    ) -> Result<alloc::vec::Vec<u64>, Error> {
        let word = |m: u32| {
            let mut bytes = [0; 8];
            self.read(side, queue_pair, slots, m.into(), &mut bytes)?;
            Ok(u64::from_ne_bytes(bytes))
        };
        (0..slots.count.min(iterations)).map(word).collect()
    }

    /// Returns the digest of the slots that `iterations` messages have used, of all queue pairs in order.
    pub(crate) fn digest(&self, side: Side, slots: &Slots, iterations: u32) -> Result<Digest, Error> {
        let mut hash = Sha256::new();
        let mut chunk = [0; CHUNK];
        for queue_pair in 0..self.queue_pairs {
            for m in 0..slots.count.min(iterations) {
                let start = self.offset(side, queue_pair) + slots.offset(m.into());
                let mut at = 0;
                while at < slots.size as usize {
                    let piece = chunk.len().min(slots.size as usize - at);
                    let piece = chunk.get_mut(..piece).unwrap_or_default();
                    self.run.read(start + at as u64, piece)?;
                    hash.update(&*piece);
                    at += piece.len();
                }
            }
        }
        Ok(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::PathMtu;

    #[test]
    fn slots_are_perftests() {
        let agreed = Agreed { cycle: 4096, line: 64, mtu: PathMtu::B4096 };
        let slots = |size| {
            let slots = Slots::new(size, &agreed, true);
            (slots.step, slots.count)
        };
        assert_eq!(slots(1), (64, 64));
        assert_eq!(slots(64), (64, 64));
        assert_eq!(slots(65), (128, 32));
        assert_eq!(slots(1000), (1024, 4));
        assert_eq!(slots(2048), (2048, 2));
        assert_eq!(slots(2049).1, 1);
        assert_eq!(Slots::new(8, &agreed, false).count, 1);
        assert_eq!(Slots::new(8, &agreed, true).offset(65), 64);
    }
}
