//! An entry of the send ring as the card reads it, and the sizes of entries.
//!
//! ```text
//!   byte     0            8            16               32                          64
//!            +------------+------------+----------------+---------------------------+
//!   chunk 0  | first word | flags,     | unit 1: remote | units 2 and 3: data       |
//!            |            | immediate  | address        | segments, or inline data  |
//!            +-----+------+------------+----------------+---------------------------+
//!   chunk 1  | mark| more data segments, or inline data                             |
//!            +-----+----------------------------------------------------------------+
//!   chunks 2 and 3 have the form of chunk 1; the mark is 4 bytes of data, or the stamp
//! ```
//!
//! The first word ([`Head`]) has the owner bit, the opcode, the fence bit, and the length in units. The card
//! executes an entry whose owner bit belongs to the present lap of the ring. It may fetch the entry before
//! that, and then does not use a chunk that begins with the stamp.

use core::sync::atomic::{AtomicU64, Ordering};

/// The size of a send work request in bytes, and its log2.
pub(crate) const LEN: usize = 1 << LOG_LEN;
pub(crate) const LOG_LEN: u32 = 8;
/// The size of a send work request in 64-bit words.
pub(crate) const WORDS: usize = LEN / 8;
/// The size of the pieces in which the card prefetches, in bytes. The first four bytes of each say if it is
/// written.
pub(crate) const CHUNK: usize = 64;
pub(crate) const CHUNK_WORDS: usize = CHUNK / 8;
/// The size of a unit of segments, in bytes.
pub(crate) const UNIT: usize = 16;

/// log2 of the size of a receive in bytes, and its size in 64-bit words.
pub(crate) const LOG_RECEIVE_LEN: u32 = 6;
pub(crate) const RECEIVE_WORDS: usize = (1 << LOG_RECEIVE_LEN) / 8;

/// The first word of a chunk that is not written.
const STAMP: u64 = 0xffff_ffff << 32;
/// The position of the fence bit in the second half of the first word.
const LOG_FENCE: u32 = 6;

/// The words of an entry of the send ring.
pub(crate) type Entry = [AtomicU64; WORDS];

/// The first word of a request, for an even lap of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head(u64);

impl Head {
    /// The first word of the longest request.
    pub(crate) const LONGEST: Self = Self::new(0, false, LEN / UNIT);

    #[inline(always)]
    pub(crate) const fn new(opcode: u8, fence: bool, units: usize) -> Self {
        Self(pair(opcode as u32, (fence as u32) << LOG_FENCE | units as u32))
    }

    /// Returns the word for an even or odd lap.
    #[inline]
    pub(crate) const fn word(self, odd: bool) -> u64 {
        self.0 | (odd as u64) << 63
    }

    /// Returns the additional bits of a request that is written to a BlueFlame register: its index in the
    /// ring, and its queue pair.
    #[inline]
    pub(crate) const fn address(index: u32, qpn: u32) -> u64 {
        ((index & 0xffff) as u64) << 40 | (qpn as u64) << 8
    }

    /// Returns the number of units of the request with a first word.
    #[inline]
    const fn units(word: u64) -> usize {
        word as usize & 0x3f
    }

    /// Returns the number of chunks of the request with a first word.
    pub(crate) const fn chunks(word: u64) -> usize {
        Self::units(word).div_ceil(CHUNK / UNIT)
    }
}

/// Marks the chunks of a completed request, except the first, as not written.
#[inline]
pub(crate) fn stamp(entry: &Entry) {
    let [first, ..] = entry;
    let units = Head::units(u64::from_be(first.load(Ordering::Relaxed)));
    for (n, [first, ..]) in entry.as_chunks::<CHUNK_WORDS>().0.iter().enumerate().skip(1) {
        if units <= n * (CHUNK / UNIT) {
            break;
        }
        first.store(STAMP.to_be(), Ordering::Relaxed);
    }
}

/// Joins two consecutive 32-bit words.
#[inline(always)]
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    (first as u64) << 32 | second as u64
}
