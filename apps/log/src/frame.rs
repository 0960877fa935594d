//! Frames: the bytes of one commit in the log, and the check that tells a whole frame from anything else.
//!
//! A frame begins at a multiple of [`SLOT`] bytes with a header: check, position, length in bytes with the
//! header, number of entries, kind, and 8 bytes of zeros. The lengths of the entries follow, 4 bytes each,
//! and then the entries. The check is XXH3-64 of all bytes behind it, with the key of the log as the seed.
//! The check also covers the position, so these are all invalid: a torn frame, an old frame, a frame of
//! another log, and a copy of a frame inside of an entry.

use crate::Position;
use crate::planted::{Bug, planted};
use alloc::vec::Vec;
use twox_hash::XxHash3_64;

/// The unit of positions, in bytes.
pub(crate) const SLOT: usize = 64;
/// The length of a header, in bytes.
const HEADER: usize = 32;
/// The length of a filler's frame, in bytes. It stands for one slot.
const FILLER_LEN: usize = HEADER;

const KIND_ENTRIES: u16 = 1;
const KIND_FILLER: u16 = 2;

/// Returns the length in slots of a frame of `bytes` bytes.
pub(crate) const fn slots(bytes: usize) -> u64 {
    bytes.div_ceil(SLOT) as u64
}

/// Returns the check of a frame. The check does not cover the first 8 bytes, its own place.
#[inline(always)]
fn check(frame: &[u8], key: u64) -> u64 {
    let from = if planted(Bug::CheckWithoutPosition) { 16 } else { 8 };
    XxHash3_64::oneshot_with_seed(key, frame.get(from..).unwrap_or_default())
}

/// Returns a header without check and position.
fn header(bytes: u32, count: u16, kind: u16) -> [u8; HEADER] {
    let word = u64::from(bytes) | u64::from(count) << 32 | u64::from(kind) << 48;
    let mut header = [0; HEADER];
    let (words, _) = header.as_chunks_mut();
    if let Some(place) = words.get_mut(2) {
        *place = word.to_le_bytes();
    }
    header
}

/// Writes a frame with these entries to the begin of `into`, without its position and check, and zeros up to
/// whole words. Returns the length of the frame; `None` if it would be longer than `longest` bytes or have
/// too many entries. `into` grows if need be; bytes behind the zeros are left alone.
#[inline]
pub(crate) fn encode(into: &mut Vec<u8>, entries: &[&[u8]], longest: usize) -> Option<usize> {
    let content = entries.iter().try_fold(0usize, |sum, entry| sum.checked_add(entry.len()))?;
    let bytes = content.checked_add(HEADER + 4 * entries.len()).filter(|bytes| *bytes <= longest)?;
    let count = u16::try_from(entries.len()).ok()?;
    let whole = whole_words(bytes);
    if into.len() < whole {
        into.resize(whole, 0);
    }
    let frame = into.get_mut(..whole)?;
    *frame.last_chunk_mut()? = [0; 8];
    let (head, rest) = frame.split_first_chunk_mut()?;
    *head = header(bytes as u32, count, KIND_ENTRIES);
    let (lengths, mut rest) = rest.split_at_mut_checked(4 * entries.len())?;
    for (length, entry) in lengths.as_chunks_mut().0.iter_mut().zip(entries) {
        *length = (entry.len() as u32).to_le_bytes();
    }
    for entry in entries {
        let (place, next) = rest.split_at_mut_checked(entry.len())?;
        place.copy_from_slice(entry);
        rest = next;
    }
    Some(bytes)
}

/// Returns the length of a frame of `bytes` bytes with the zeros behind it.
pub(crate) const fn whole_words(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Sets the position of a frame, and its check.
#[inline(always)]
pub(crate) fn seal(frame: &mut [u8], key: u64, at: Position) {
    if let Some(place) = frame.get_mut(8..16) {
        place.copy_from_slice(&at.slot().to_le_bytes());
    }
    let check = check(frame, key);
    if let Some(place) = frame.get_mut(..8) {
        place.copy_from_slice(&check.to_le_bytes());
    }
}

/// Appends `count` slots to `into`, each with a filler.
pub(crate) fn encode_fillers(into: &mut Vec<u8>, key: u64, from: Position, count: u64) {
    for slot in from.slot()..from.slot() + count {
        let start = into.len();
        into.extend_from_slice(&header(FILLER_LEN as u32, 0, KIND_FILLER));
        if let Some(frame) = into.get_mut(start..) {
            seal(frame, key, Position::from_slot(slot));
        }
        into.resize(start + SLOT, 0);
    }
}

/// The result of a look at some bytes of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The frame of a commit, with its length in bytes.
    Entries(usize),
    /// A filler, which stands for one slot.
    Filler,
    /// A frame of this length may begin here; there are fewer bytes than that.
    Longer(usize),
    /// No whole frame begins here.
    Nothing,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Returns the beginning of `bytes`, which were read at `at`, as a frame.
pub(crate) fn look(bytes: &[u8], key: u64, at: Position, longest: usize) -> Look {
    try_look(bytes, key, at, longest).unwrap_or(Look::Nothing)
}

fn try_look(bytes: &[u8], key: u64, at: Position, longest: usize) -> Option<Look> {
    let position = u64::from_le_bytes(word(bytes, 8)?);
    if position != at.slot() && !planted(Bug::CheckWithoutPosition) {
        return None;
    }
    let len = u32::from_le_bytes(word(bytes, 16)?) as usize;
    if !(HEADER..=longest).contains(&len) {
        return None;
    }
    let Some(frame) = bytes.get(..len) else { return Some(Look::Longer(len)) };
    if u64::from_le_bytes(word(frame, 0)?) != check(frame, key) {
        return None;
    }
    match u16::from_le_bytes(word(frame, 22)?) {
        KIND_ENTRIES => Some(Look::Entries(len)),
        KIND_FILLER if len == FILLER_LEN => Some(Look::Filler),
        _ => None,
    }
}

/// The entries of a frame, in their order.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    lengths: &'a [u8],
    content: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Returns the entries of a whole frame.
    pub(crate) fn of(frame: &'a [u8]) -> Self {
        let count = word(frame, 20).map_or(0, u16::from_le_bytes);
        let rest = frame.get(HEADER..).unwrap_or_default();
        let (lengths, content) = rest.split_at_checked(4 * usize::from(count)).unwrap_or_default();
        Self { lengths, content }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, lengths) = self.lengths.split_first_chunk::<4>()?;
        let (entry, content) = self.content.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        (self.lengths, self.content) = (lengths, content);
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.lengths.len() / 4;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Entries<'_> {}

/// Returns the bytes of a frame at any position of a log with that key, for tests of the check.
#[cfg(feature = "testing")]
#[must_use]
pub fn frame_at(key: u64, at: Position, entries: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    let len = encode(&mut frame, entries, 1 << 24);
    frame.truncate(len.unwrap_or_default());
    seal(&mut frame, key, at);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::collection::vec as vec_of;
    use proptest::prelude::*;

    const LONGEST: usize = 1 << 20;

    fn frame(key: u64, at: u64, entries: &[Vec<u8>]) -> Vec<u8> {
        let entries: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let mut frame = Vec::new();
        let len = encode(&mut frame, &entries, LONGEST).unwrap();
        assert!(frame[len..].iter().all(|byte| *byte == 0) && frame.len() == whole_words(len));
        frame.truncate(len);
        seal(&mut frame, key, Position::from_slot(at));
        frame
    }

    fn entries() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec_of(vec_of(any::<u8>(), 0..200), 0..20)
    }

    proptest! {
        #[test]
        fn entries_come_back(key: u64, at in 0u64..1 << 58, entries in entries()) {
            let frame = frame(key, at, &entries);
            let at = Position::from_slot(at);
            prop_assert_eq!(look(&frame, key, at, LONGEST), Look::Entries(frame.len()));
            let got: Vec<&[u8]> = Entries::of(&frame).collect();
            prop_assert_eq!(got, entries);
        }

        #[test]
        fn a_changed_byte_is_found(key: u64, at in 0u64..1 << 58, entries in entries(), place: prop::sample::Index, by in 1u8..) {
            let mut frame = frame(key, at, &entries);
            let place = place.index(frame.len());
            frame[place] ^= by;
            let seen = look(&frame, key, Position::from_slot(at), LONGEST);
            prop_assert!(matches!(seen, Look::Nothing | Look::Longer(_)), "{seen:?}");
        }

        #[test]
        fn a_torn_frame_is_found(key: u64, at in 0u64..1 << 58, entries in vec_of(vec_of(1u8.., 1..200), 1..20), cut: prop::sample::Index) {
            let mut frame = frame(key, at, &entries);
            let cut = cut.index(frame.len());
            frame[cut..].fill(0);
            prop_assert_eq!(look(&frame, key, Position::from_slot(at), LONGEST), Look::Nothing);
        }

        #[test]
        fn a_copy_elsewhere_or_in_another_log_is_found(key: u64, other: u64, at in 0u64..1 << 58, there in 0u64..1 << 58) {
            let frame = frame(key, at, &[vec![1, 2, 3]]);
            prop_assume!(at != there && key != other);
            prop_assert_eq!(look(&frame, key, Position::from_slot(there), LONGEST), Look::Nothing);
            prop_assert_eq!(look(&frame, other, Position::from_slot(at), LONGEST), Look::Nothing);
        }

        #[test]
        fn any_bytes_are_looked_at(bytes in vec_of(any::<u8>(), 0..300), key: u64, at in 0u64..1 << 58) {
            let seen = look(&bytes, key, Position::from_slot(at), LONGEST);
            prop_assert!(matches!(seen, Look::Nothing | Look::Longer(_)));
            for entry in Entries::of(&bytes) {
                prop_assert!(entry.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn each_slot_of_a_hole_has_a_filler() {
        let mut bytes = Vec::new();
        encode_fillers(&mut bytes, 7, Position::from_slot(5), 3);
        assert_eq!(bytes.len(), 3 * SLOT);
        for (slot, filler) in (5..).zip(bytes.chunks(SLOT)) {
            assert_eq!(look(filler, 7, Position::from_slot(slot), LONGEST), Look::Filler);
            assert_eq!(look(filler, 7, Position::from_slot(slot + 1), LONGEST), Look::Nothing);
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let mut into = Vec::new();
        assert_eq!(encode(&mut into, &[&[0; 64]], HEADER + 4 + 64), Some(HEADER + 4 + 64));
        assert_eq!(encode(&mut into, &[&[0; 65]], HEADER + 4 + 64), None);
        let many = vec![&[][..]; 1 << 16];
        assert_eq!(encode(&mut into, &many, LONGEST), None);
        assert!(encode(&mut into, &many[1..], LONGEST).is_some());
    }

    #[test]
    fn a_buffer_with_old_bytes_gets_the_same_frame() {
        let (mut new, mut old) = (Vec::new(), vec![0xff; 200]);
        let entries: [&[u8]; 2] = [b"abc", b"de"];
        let len = encode(&mut new, &entries, LONGEST).unwrap();
        assert_eq!(encode(&mut old, &entries, LONGEST), Some(len));
        assert_eq!(old[..whole_words(len)], new);
        assert_eq!(old.len(), 200);
    }
}
