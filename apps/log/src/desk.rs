//! The buffer of a commit in progress, and the segment to which it writes. Later commits use both again.

use crate::frame;
use crate::layout::{Fixed, Position};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::take;
use lite::Lmr;

/// The buffer of a commit, with a frame or with fillers, and the segment of its last write.
#[derive(Default)]
pub(crate) struct Desk {
    /// A frame with zeros up to whole words, or fillers, and then bytes of former frames.
    bytes: Vec<u8>,
    /// The length of the frame or of the fillers.
    len: usize,
    /// The first position of the segment to which the last frame was written, and that segment.
    segment: Option<(Position, Arc<Lmr>)>,
}

/// A part of a segment to which a sealed frame goes: the segment, the offset in it, and the bytes.
pub(crate) struct Place<'a> {
    pub(crate) segment: &'a Lmr,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl Desk {
    /// Writes a frame with these entries. Returns its length in slots, or `None` if it would be longer than
    /// `longest` bytes or have too many entries.
    #[inline]
    pub(crate) fn encode(&mut self, entries: &[&[u8]], longest: usize) -> Option<u64> {
        self.len = frame::encode(&mut self.bytes, entries, longest)?;
        Some(frame::slots(self.len))
    }

    /// Returns true if the segment of the last frame has `slots` slots at `at`.
    #[inline]
    pub(crate) fn has_room(&self, fixed: &Fixed, at: Position, slots: u64) -> bool {
        self.segment.as_ref().is_some_and(|(first, _)| {
            let skip = at.slot().wrapping_sub(first.slot());
            skip < fixed.segment_slots() && slots <= fixed.segment_slots() - skip
        })
    }

    /// Seals the frame of `slots` slots for `at`, and returns its place if that is in the segment of the last
    /// frame.
    #[inline]
    pub(crate) fn seal_near(&mut self, fixed: &Fixed, at: Position, slots: u64) -> Option<Place<'_>> {
        if !self.has_room(fixed, at, slots) {
            return None;
        }
        self.seal(fixed, at);
        let (_, segment) = self.segment.as_ref()?;
        Some(Place { segment, offset: fixed.offset_of(at), bytes: self.payload() })
    }

    /// Seals the frame for `at`.
    #[inline]
    pub(crate) fn seal(&mut self, fixed: &Fixed, at: Position) {
        if let Some(frame) = self.bytes.get_mut(..self.len) {
            frame::seal(frame, fixed.key, at);
        }
    }

    /// Returns the bytes to write: whole words.
    #[inline]
    pub(crate) fn payload(&self) -> &[u8] {
        self.bytes.get(..frame::whole_words(self.len)).unwrap_or_default()
    }

    /// Remembers segment `number` for the next frame.
    pub(crate) fn remember(&mut self, fixed: &Fixed, number: u64, segment: Arc<Lmr>) {
        self.segment = Some((fixed.start_of(number), segment));
    }

    /// Forgets the segment.
    pub(crate) fn forget(&mut self) {
        self.segment = None;
    }

    /// Takes the frame or the fillers, and leaves an empty desk with the same segment.
    pub(crate) fn take(&mut self) -> Self {
        Self { bytes: take(&mut self.bytes), len: take(&mut self.len), segment: self.segment.clone() }
    }

    /// Replaces the contents by those of another desk.
    pub(crate) fn put(&mut self, other: Self) {
        (self.bytes, self.len) = (other.bytes, other.len);
    }

    /// Replaces the contents by fillers for `slots` slots from `at` on.
    pub(crate) fn fill(&mut self, fixed: &Fixed, at: Position, slots: u64) {
        self.bytes.clear();
        frame::encode_fillers(&mut self.bytes, fixed.key, at, slots);
        self.len = self.bytes.len();
    }
}
