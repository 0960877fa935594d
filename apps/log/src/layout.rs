//! Positions, options, and the layout of a log's directory.
//!
//! The directory is a small region on the first home. Its words that change often lie on cache lines of their
//! own:
//!
//! | offset | length | content |
//! |---|---|---|
//! | 0 | 8 | the tail: the first slot that is not reserved |
//! | 64 | 8 | the head: the first slot that is not truncated |
//! | 72 | 8 | the number of the first segment that exists |
//! | 80 | 8 | the number of the segment after the last one |
//! | 88 | 8 | a slot below which each one is resolved, and at which a frame begins |
//! | 128 | 512 | the fixed part: magic, key, options, homes |
//! | 1024 | 512 | the table of writers: 64 entries of 8 bytes |

use crate::LogError;
use crate::frame::SLOT;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use lite::{Incarnation, NodeId};

/// The offsets in the directory, in bytes.
pub(crate) const TAIL: u64 = 0;
pub(crate) const HEAD: u64 = 64;
pub(crate) const FIRST: u64 = 72;
pub(crate) const END: u64 = 80;
pub(crate) const RESOLVED: u64 = 88;
pub(crate) const FIXED: u64 = 128;
pub(crate) const FIXED_LEN: usize = 512;
pub(crate) const WRITERS: u64 = 1024;
/// The length of the directory, in bytes.
pub(crate) const DIRECTORY_LEN: u64 = 1536;
/// The largest number of writers.
pub(crate) const MOST_WRITERS: usize = 64;
/// The length of a writer's entry, in bytes: its packed contact, or 0.
pub(crate) const WRITER_LEN: usize = 8;
/// The largest number of homes.
const MOST_HOMES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"LITELOG1");
/// The bytes of the fixed part before the homes.
const FIXED_HEAD: usize = 64;

/// A place in the log, which grows from commit to commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(u64);

impl Position {
    /// The begin of a log.
    pub const START: Self = Self(0);

    pub(crate) const fn from_slot(slot: u64) -> Self {
        Self(slot)
    }

    pub(crate) const fn slot(self) -> u64 {
        self.0
    }

    /// Returns the position as a number.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the position with the number `number`, as [`to_u64`](Self::to_u64) returned it.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.0)
    }
}

/// The sizes and times of a log, which its creator decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The length of a segment, in bytes: a power of two from 4 KiB to 1 GiB. The memory of the log is
    /// allocated and freed by segments.
    pub segment: u64,
    /// The most memory of all segments, in bytes, at least two segments.
    pub capacity: u64,
    /// The length of the longest frame, in bytes: a commit's entries, 4 bytes for each, and 32 bytes. At most
    /// a quarter of a segment.
    pub longest: usize,
    /// The largest number of writers at a time, 1 to 64.
    pub writers: usize,
    /// The time for which a reader waits at an unresolved position below the tail before it looks for a
    /// hole.
    pub hole_time: Duration,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment: 4 << 20,
            capacity: 1 << 30,
            longest: (64 << 10) + 4096,
            writers: 16,
            hole_time: Duration::from_millis(5),
        }
    }
}

impl LogOptions {
    /// Fails if the options are out of range.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        if !self.segment.is_power_of_two() || !(4096..=1 << 30).contains(&self.segment) {
            return Err(LogError::Options("a segment has a power of two from 4 KiB to 1 GiB"));
        }
        if self.capacity < 2 * self.segment {
            return Err(LogError::Options("the capacity is at least two segments"));
        }
        if self.longest < SLOT || self.longest as u64 > self.segment / 4 {
            return Err(LogError::Options("the longest frame has 64 bytes to a quarter of a segment"));
        }
        if !(1..=MOST_WRITERS).contains(&self.writers) {
            return Err(LogError::Options("a log has 1 to 64 writers"));
        }
        Ok(())
    }
}

/// The part of the directory that never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) key: u64,
    pub(crate) options: LogOptions,
    pub(crate) homes: Vec<NodeId>,
}

impl Fixed {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, LogError> {
        if !(1..=MOST_HOMES).contains(&self.homes.len()) {
            return Err(LogError::Options("a log has 1 to 64 homes"));
        }
        let LogOptions { segment, capacity, longest, writers, hole_time } = self.options;
        let hole_time = u64::try_from(hole_time.as_nanos()).unwrap_or(u64::MAX);
        let (longest, writers, homes) = (longest as u64, writers as u64, self.homes.len() as u64);
        let words = [MAGIC, self.key, segment, capacity, longest, writers, hole_time, homes];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(self.homes.iter().flat_map(|home| home.0.to_le_bytes()));
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let (head, homes) = bytes.split_at_checked(FIXED_HEAD).ok_or(LogError::NotALog)?;
        let mut words = head.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
        let mut next = || words.next().ok_or(LogError::NotALog);
        let magic = next()?;
        let (key, segment, capacity, longest) = (next()?, next()?, next()?, next()?);
        let (writers, hole_time, count) = (next()?, next()?, next()?);
        let options = LogOptions {
            segment,
            capacity,
            longest: longest as usize,
            writers: writers as usize,
            hole_time: Duration::from_nanos(hole_time),
        };
        let homes = homes.chunks_exact(2).filter_map(|home| home.try_into().ok());
        let homes: Vec<NodeId> =
            homes.take(count as usize).map(|home| NodeId(u16::from_le_bytes(home))).collect();
        if magic != MAGIC || homes.is_empty() || options.check().is_err() {
            return Err(LogError::NotALog);
        }
        Ok(Self { key, options, homes })
    }

    /// Returns the slots of a segment.
    pub(crate) const fn segment_slots(&self) -> u64 {
        self.options.segment / SLOT as u64
    }

    /// Returns the number of the segment of a position.
    pub(crate) const fn segment_of(&self, at: Position) -> u64 {
        // A division would cost a commit several nanoseconds.
        at.slot() >> self.segment_slots().trailing_zeros()
    }

    /// Returns the offset in its segment of a position, in bytes.
    pub(crate) const fn offset_of(&self, at: Position) -> u64 {
        (at.slot() & (self.segment_slots() - 1)) * SLOT as u64
    }

    /// Returns true if a frame of `slots` slots at `at` ends in the segment where it begins.
    pub(crate) const fn has_room(&self, at: Position, slots: u64) -> bool {
        self.offset_of(at) + slots * SLOT as u64 <= self.options.segment
    }

    /// Returns the first position of a segment.
    pub(crate) const fn start_of(&self, segment: u64) -> Position {
        Position::from_slot(segment << self.segment_slots().trailing_zeros())
    }

    /// Returns the home of a segment.
    pub(crate) fn home_of(&self, segment: u64) -> NodeId {
        let count = self.homes.len().max(1) as u64;
        self.homes.get((segment % count) as usize).copied().unwrap_or(NodeId(0))
    }

    /// Returns the most segments that may exist at once.
    pub(crate) const fn most_segments(&self) -> u64 {
        self.options.capacity / self.options.segment
    }
}

/// The way to ask a writer for its low mark: its node, incarnation, and function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    /// The function, counted from [`FUNCTIONS`](crate::service::FUNCTIONS).
    pub(crate) function: u16,
}

/// The bits of a packed contact: 12 of the node, 12 of the function, 40 of the incarnation.
const NODE_BITS: u32 = 12;
pub(crate) const FUNCTION_BITS: u32 = 12;
const INCARNATION_BITS: u32 = u64::BITS - NODE_BITS - FUNCTION_BITS;

impl Contact {
    /// Returns the contact as a word that is not 0, if its parts fit.
    pub(crate) fn pack(self) -> Option<u64> {
        let (node, function) = (u64::from(self.node.0), u64::from(self.function));
        let fits = node >> NODE_BITS == 0
            && function >> FUNCTION_BITS == 0
            && self.incarnation.0 >> INCARNATION_BITS == 0
            && node != 0;
        let function = function << INCARNATION_BITS;
        fits.then_some(node << (INCARNATION_BITS + FUNCTION_BITS) | function | self.incarnation.0)
    }

    /// Returns the contact of a word, unless it is 0.
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let node = (word >> (INCARNATION_BITS + FUNCTION_BITS)) as u16;
        let function = (word >> INCARNATION_BITS) as u16 & ((1 << FUNCTION_BITS) - 1);
        let incarnation = Incarnation(word & ((1 << INCARNATION_BITS) - 1));
        (node != 0).then_some(Self { node: NodeId(node), incarnation, function })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn contacts_fit_a_word(node in 1u16..1 << 12, function in 0u16..1 << 12, incarnation in 0u64..1 << 40) {
            let contact = Contact { node: NodeId(node), incarnation: Incarnation(incarnation), function };
            prop_assert_eq!(contact.pack().and_then(Contact::unpack), Some(contact));
        }

        #[test]
        fn the_fixed_part_comes_back(key: u64, homes in prop::collection::vec(1u16..4096, 1..64)) {
            let homes = homes.into_iter().map(NodeId).collect();
            let fixed = Fixed { key, options: LogOptions::default(), homes };
            let mut bytes = fixed.encode().unwrap();
            prop_assert!(bytes.len() <= FIXED_LEN);
            bytes.resize(FIXED_LEN, 0);
            prop_assert_eq!(Fixed::decode(&bytes), Ok(fixed));
        }

        #[test]
        fn any_fixed_part_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(Fixed::decode(&bytes), Err(LogError::NotALog));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let contact = |node, function, incarnation| {
            Contact { node: NodeId(node), incarnation: Incarnation(incarnation), function }.pack()
        };
        assert!(contact(1, 0, 0).is_some());
        for (node, function, incarnation) in [(0, 0, 0), (4096, 0, 0), (1, 4096, 0), (1, 0, 1 << 40)] {
            assert_eq!(contact(node, function, incarnation), None);
        }
        assert_eq!(Contact::unpack(0), None);
        let options = LogOptions::default();
        assert_eq!(options.check(), Ok(()));
        for wrong in [
            LogOptions { segment: 5000, ..options },
            LogOptions { capacity: 4 << 20, ..options },
            LogOptions { longest: 2 << 20, ..options },
            LogOptions { writers: 0, ..options },
        ] {
            assert!(matches!(wrong.check(), Err(LogError::Options(_))));
        }
        let fixed = Fixed { key: 0, options, homes: vec![] };
        assert!(matches!(fixed.encode(), Err(LogError::Options(_))));
    }
}
