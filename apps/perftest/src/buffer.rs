//! The memory of a test, and what is in it.
//!
//! As perftest's: for each queue pair a near buffer, which this side's work requests name, and a far one, which the
//! peer's name (or its messages land in). Messages of at most half a page go round in a page, so that they do not all hit
//! the same cache lines: message `m` lies in slot `m % slots` on both sides.

use crate::error::Error;
use crate::exchange::Agreed;
use crate::options::Options;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use platform::{IoAddr, Lent, Platform};
use sha2::{Digest as _, Sha256};

/// Bytes that a test has for its buffers at least.
const ROOM: u64 = 1 << 20;
/// Bytes that are filled or hashed at a time.
const CHUNK: usize = 4096;

/// A SHA-256.
pub type Digest = [u8; 32];

/// Which of a queue pair's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What this side's work requests name.
    Near,
    /// What the peer's name.
    Far,
}

/// Where the messages of one size lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Bytes of a message.
    pub size: u32,
    /// Bytes from slot to slot.
    step: u32,
    /// How many.
    pub count: u32,
}

impl Slots {
    /// Of messages of `size` bytes; `spread`: they go round.
    #[must_use]
    pub fn new(size: u32, agreed: &Agreed, spread: bool) -> Self {
        let step = size.max(1).next_multiple_of(agreed.line);
        let count = if spread && size <= agreed.cycle / 2 { agreed.cycle / step } else { 1 };
        Self { size, step, count }
    }

    /// Where message `m` begins.
    #[must_use]
    pub fn offset(&self, m: u64) -> u64 {
        m % u64::from(self.count) * u64::from(self.step)
    }
}

/// The buffers of a test. Frees its memory when dropped: the queue pairs that reach it must be gone by then.
pub struct Buffers {
    run: Box<dyn Lent>,
    stride: u64,
    queue_pairs: u32,
}

impl Buffers {
    /// Bytes that the buffers of a test may take: so many that a peer with larger pages fits in as well, if the test is small.
    #[must_use]
    pub fn needed(options: &Options) -> u64 {
        Self::len(options, 4096).max(ROOM)
    }

    /// Bytes that they take if the larger page of both sides is `cycle`.
    fn len(options: &Options, cycle: u32) -> u64 {
        2 * u64::from(options.queue_pairs) * Self::stride(options, cycle)
    }

    fn stride(options: &Options, cycle: u32) -> u64 {
        let largest = options.size.unwrap_or(crate::options::MAX_SIZE);
        u64::from(largest.max(cycle)).next_multiple_of(4096)
    }

    /// Takes the memory and fills it with what only this test has: near and far differ, and so do any two tests.
    pub fn new(platform: &Arc<dyn Platform>, options: &Options, agreed: &Agreed) -> Result<Self, Error> {
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

    /// Where a buffer begins in the run.
    fn offset(&self, side: Side, queue_pair: u32) -> u64 {
        let index = match side {
            Side::Near => queue_pair,
            Side::Far => self.queue_pairs + queue_pair,
        };
        u64::from(index) * self.stride
    }

    /// First byte of a buffer.
    #[must_use]
    pub fn start(&self, side: Side, queue_pair: u32) -> IoAddr {
        IoAddr(self.run.addr().0 + self.offset(side, queue_pair))
    }

    /// Where message `m` lies.
    #[must_use]
    pub fn slot(&self, side: Side, queue_pair: u32, slots: &Slots, m: u64) -> IoAddr {
        IoAddr(self.start(side, queue_pair).0 + slots.offset(m))
    }

    /// Reads message `m`, from its first byte on.
    pub fn read(
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
                // xorshift64: not secret, only not repeating.
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
    pub fn set_last(&self, side: Side, size: u32, byte: u8) -> Result<(), Error> {
        Ok(self.run.write(self.last(side, size), &[byte])?)
    }

    /// Reads the last byte of message 0.
    pub fn get_last(&self, side: Side, size: u32) -> Result<u8, Error> {
        let mut byte = [0];
        self.run.read(self.last(side, size), &mut byte)?;
        Ok(byte[0])
    }

    fn last(&self, side: Side, size: u32) -> u64 {
        self.offset(side, 0) + u64::from(size.saturating_sub(1))
    }

    /// The words in the slots that `iterations` messages of 8 bytes have used.
    pub fn words(
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

    /// The digest of the slots that `iterations` messages have used, of all queue pairs in order.
    pub fn digest(&self, side: Side, slots: &Slots, iterations: u32) -> Result<Digest, Error> {
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
