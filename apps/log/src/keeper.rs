//! The closing of holes: a hole is a reserved place to which no writer will write any more, and gets fillers.
//!
//! `docs/design/log.md` says why this is safe. In short: the keeper reads the tail, then the table of
//! writers, then asks each writer for its low mark. It takes the lock of each writer that does not answer.
//! LITE grants that lock only once no operation of the writer can change memory any more. No writer writes
//! below the least of the tail and the low marks, so a place there without a frame stays without one: it is a
//! hole.

use crate::LogError;
use crate::frame::{self, Look, SLOT};
use crate::layout::{Contact, Position, RESOLVED};
use crate::planted::{Bug, planted};
use crate::segments::Segments;
use crate::service;
use crate::window::Window;
use alloc::vec::Vec;
use core::time::Duration;
use lite::Error;

/// The time for which a keeper waits for the low mark of a writer.
const ANSWER: Duration = Duration::from_millis(100);
/// The time for which a keeper waits for the lock of a writer that does not answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// The most slots that are filled by one operation.
const FILL: u64 = (64 << 10) / SLOT as u64;

impl Segments {
    /// Closes the holes of writers that have died or given up, and returns the position below which
    /// everything is resolved.
    pub(crate) async fn close_holes(&self) -> Result<Position, LogError> {
        let directory = &self.directory;
        let guard = directory.keeper_lock().await?.with_deadline(PATIENCE).lock().await?;
        // The order matters: a writer that registers after the table was read reserves above the tail.
        let tail = directory.tail().await?;
        let writers = directory.writers().await?;
        let mut limit = tail;
        for (number, word) in writers.into_iter().enumerate() {
            if let Some(contact) = Contact::unpack(word) {
                limit = limit.min(self.mark(number, contact).await?);
            }
        }
        let resolved = self.fill(limit).await?;
        drop(guard);
        Ok(resolved)
    }

    /// Returns the low mark of a writer. The mark of a writer that has ended is above all positions.
    async fn mark(&self, number: usize, contact: Contact) -> Result<Position, LogError> {
        let directory = &self.directory;
        let known = (directory.fixed.key, number);
        match service::ask(&directory.lite.with_deadline(ANSWER), contact, known).await {
            Ok(Some(mark)) => return Ok(mark),
            Err(Error::LinkDown) => return Err(Error::LinkDown.into()),
            Err(Error::NodeDown(_)) if planted(Bug::FillUnsettled) => {
                return Ok(Position::from_slot(u64::MAX));
            }
            // The writer may have ended. Its lock is free if it has.
            Ok(None) | Err(_) => {}
        }
        let lock = directory.writer_lock(number).await?.with_deadline(PATIENCE);
        let guard = lock.lock().await?;
        directory.set_writer(number, 0).await?;
        drop(guard);
        Ok(Position::from_slot(u64::MAX))
    }

    /// Fills all holes below `limit`. No writer writes below `limit` any more.
    async fn fill(&self, limit: Position) -> Result<Position, LogError> {
        let directory = &self.directory;
        let (fixed, bounds) = (&directory.fixed, directory.bounds().await?);
        let mut at = bounds.resolved.max(fixed.start_of(bounds.first));
        if at >= limit {
            return Ok(at);
        }
        let mut window = Window::default();
        let mut hole: Option<Position> = None;
        while at < limit {
            let looked = match window.look(self, at).await {
                Ok(looked) => looked,
                // All positions of a truncated segment are resolved, so the search goes on with the next
                // segment.
                Err(LogError::Truncated) => {
                    hole = None;
                    at = fixed.start_of(fixed.segment_of(at) + 1);
                    continue;
                }
                // A writer has reserved positions in a segment that does not exist yet, or that the capacity
                // of the log does not allow; then `ensure` fails.
                Err(LogError::Lite(Error::NoSuchName)) => {
                    self.ensure(fixed.segment_of(at)).await?;
                    continue;
                }
                // The bytes of a segment whose home has died are lost, so the search goes on with the next
                // segment.
                Err(LogError::Lite(Error::NodeDown(_))) => {
                    hole = None;
                    at = fixed.start_of(fixed.segment_of(at) + 1);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let ends = |hole: Position, at: Position| {
                at.slot() - hole.slot() >= FILL || fixed.segment_of(at) != fixed.segment_of(hole)
            };
            let len = match looked {
                Look::Entries(bytes) => frame::slots(bytes),
                Look::Filler => 1,
                Look::Longer(_) | Look::Nothing => {
                    if let Some(begin) = hole.filter(|begin| ends(*begin, at)) {
                        self.fill_hole(begin, at).await?;
                        hole = None;
                    }
                    hole.get_or_insert(at);
                    at = Position::from_slot(at.slot() + 1);
                    continue;
                }
            };
            if let Some(begin) = hole.take() {
                self.fill_hole(begin, at).await?;
            }
            at = Position::from_slot(at.slot() + len);
        }
        if let Some(begin) = hole {
            self.fill_hole(begin, at.min(limit)).await?;
        }
        let at = at.min(limit);
        if at > bounds.resolved {
            directory.set(RESOLVED, at.slot()).await?;
        }
        Ok(at)
    }

    /// Writes fillers to a hole within one segment. A write whose outcome is unknown may still happen
    /// after a later keeper has filled the hole; it then writes the same bytes.
    async fn fill_hole(&self, from: Position, to: Position) -> Result<(), LogError> {
        let fixed = &self.directory.fixed;
        let mut fillers = Vec::new();
        frame::encode_fillers(&mut fillers, fixed.key, from, to.slot() - from.slot());
        let segment = self.get(fixed.segment_of(from)).await?;
        log::debug!("log: the hole from {from} to {to} is filled");
        match segment.write(fixed.offset_of(from), &fillers).await {
            Ok(()) => Ok(()),
            Err(error @ (Error::Freed | Error::NodeDown(_))) => {
                self.forget(fixed.segment_of(from));
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}
