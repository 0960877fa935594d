//! A part of a segment that a reader has read, with the frames in it.

use crate::LogError;
use crate::frame::{self, Look, SLOT};
use crate::layout::Position;
use crate::segments::Segments;
use alloc::vec::Vec;
use lite::Error;

/// The length of a read that goes through the log, in bytes.
const CHUNK: u64 = 64 << 10;

/// The bytes of a segment from one position on.
#[derive(Default)]
pub(crate) struct Window {
    start: Position,
    bytes: Vec<u8>,
}

impl Window {
    /// Returns the frame at `at`. Uses bytes that were read earlier, if the window has any there, and then
    /// misses frames that were written since; [`look_again`](Self::look_again) always reads.
    pub(crate) async fn look(&mut self, segments: &Segments, at: Position) -> Result<Look, LogError> {
        let slots = (self.bytes.len() / SLOT) as u64;
        if !(self.start.slot()..self.start.slot() + slots).contains(&at.slot()) {
            return self.look_again(segments, at, CHUNK).await;
        }
        match self.known(segments, at) {
            Look::Longer(bytes) => self.look_again(segments, at, bytes.max(CHUNK as usize) as u64).await,
            other => Ok(other),
        }
    }

    /// Reads `len` bytes at `at`, or more if the frame there is longer. Returns the frame.
    pub(crate) async fn look_again(
        &mut self,
        segments: &Segments,
        at: Position,
        len: u64,
    ) -> Result<Look, LogError> {
        self.read(segments, at, len).await?;
        match self.known(segments, at) {
            Look::Longer(bytes) => {
                self.read(segments, at, bytes as u64).await?;
                Ok(match self.known(segments, at) {
                    // Such a frame would cross the end of the segment, so these bytes are not a frame.
                    Look::Longer(_) => Look::Nothing,
                    other => other,
                })
            }
            other => Ok(other),
        }
    }

    fn known(&self, segments: &Segments, at: Position) -> Look {
        let fixed = &segments.directory.fixed;
        frame::look(self.from(at), fixed.key, at, fixed.options.longest)
    }

    /// Returns the bytes that were read from `at` on.
    pub(crate) fn from(&self, at: Position) -> &[u8] {
        let skip = (at.slot() - self.start.slot()) as usize * SLOT;
        self.bytes.get(skip..).unwrap_or_default()
    }

    async fn read(&mut self, segments: &Segments, at: Position, len: u64) -> Result<(), LogError> {
        let fixed = &segments.directory.fixed;
        let (number, offset) = (fixed.segment_of(at), fixed.offset_of(at));
        let len = len.next_multiple_of(SLOT as u64).min(fixed.options.segment - offset);
        self.bytes.clear();
        self.start = at;
        let segment = segments.get(number).await?;
        self.bytes.resize(len as usize, 0);
        let read = segment.read(offset, &mut self.bytes).await;
        if let Err(error) = read {
            self.bytes.clear();
            if matches!(error, Error::Freed | Error::NodeDown(_)) {
                segments.forget(number);
                // The caller gets `error` unless the segment has been truncated.
                if segments.directory.bounds().await?.first > number {
                    return Err(LogError::Truncated);
                }
            }
            return Err(error.into());
        }
        Ok(())
    }
}
