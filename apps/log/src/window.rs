//! A part of a segment that a reader has read, with the frames in it.

use crate::LogError;
use crate::frame::{self, Look, SLOT};
use crate::layout::Position;
use crate::segments::Segments;
use alloc::vec::Vec;
use lite::Error;

/// The length of a read that goes through the log, in bytes.
const CHUNK: u64 = 64 << 10;

/// The bytes from one position on.
#[derive(Default)]
pub(crate) struct Window {
    start: Position,
    bytes: Vec<u8>,
}

impl Window {
    /// Returns what is at `at`, with the bytes that were read already, if there are any. Bytes that were
    /// written meanwhile are not seen; see [`look_again`](Self::look_again).
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

    /// Reads `len` bytes at `at`, and returns what is there.
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
                    // It would cross the end of the segment.
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
                // The next attempt tells why.
                if segments.directory.bounds().await?.first > number {
                    return Err(LogError::Truncated);
                }
            }
            return Err(error.into());
        }
        Ok(())
    }
}
