//! Reading: single records, and scans.

use crate::frame::{Entries, Look};
use crate::layout::Position;
use crate::window::Window;
use crate::{Log, LogError, ReadError};
use alloc::vec::Vec;
use core::time::Duration;
use lite::Error;
use platform::Instant;

/// The length of the first read of a record, in bytes. A longer record costs one more read.
const FIRST_READ: u64 = 4096;
/// The pauses of a reader that waits: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(20));
/// The time after which a scan gives up at a position that is not resolved.
const PATIENCE: Duration = Duration::from_secs(30);

/// The entries of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    position: Position,
    frame: Vec<u8>,
}

impl Record {
    /// Returns the position of the record.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// Returns the first position after the record.
    #[must_use]
    pub fn next(&self) -> Position {
        Position::from_slot(self.position.slot() + crate::frame::slots(self.frame.len()))
    }

    /// Returns the entries, in the order in which they were committed.
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        Entries::of(&self.frame)
    }
}

impl Log {
    /// Reads the record at a position, as `append` or `commit` has returned it. Costs one read for a record
    /// of up to 4 KiB, and two for a longer one.
    ///
    /// # Errors
    /// [`NotYet`](ReadError::NotYet) if the position is not resolved; a scan waits for that.
    /// [`NoRecord`](ReadError::NoRecord) if it is resolved and no record begins there.
    pub async fn read(&self, at: Position) -> Result<Record, ReadError> {
        if let Some(record) = self.look_at(at).await? {
            return Ok(record);
        }
        let bounds = self.segments.directory.bounds().await?;
        if at < bounds.head {
            return Err(ReadError::Truncated);
        }
        if at >= bounds.resolved {
            return Err(ReadError::NotYet);
        }
        // The record may have been written, and its position resolved, between the first look and the read of
        // the bounds. A resolved position does not change any more.
        self.look_at(at).await?.ok_or(ReadError::NoRecord)
    }

    /// Returns the record at a position, if it is there now.
    async fn look_at(&self, at: Position) -> Result<Option<Record>, ReadError> {
        let mut window = Window::default();
        match window.look_again(&self.segments, at, FIRST_READ).await {
            Ok(Look::Entries(bytes)) => Ok(Some(record(&window, at, bytes))),
            Ok(Look::Filler) => Err(ReadError::NoRecord),
            Ok(Look::Longer(_) | Look::Nothing) => Ok(None),
            // The segment of the position does not exist, so nothing has been written there.
            Err(LogError::Lite(Error::NoSuchName)) => Err(ReadError::NotYet),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a scan of the log from a position, at which a frame must begin: the position of a record, the
    /// first one after a record, [`Position::START`] or a former tail.
    #[must_use]
    pub fn scan(&self, from: Position) -> Scan<'_> {
        Scan { log: self, at: from, window: Window::default() }
    }
}

fn record(window: &Window, at: Position, bytes: usize) -> Record {
    let frame = window.from(at).get(..bytes).unwrap_or_default().to_vec();
    Record { position: at, frame }
}

/// A scan of a log. It reads 64 KiB at a time.
pub struct Scan<'a> {
    log: &'a Log,
    at: Position,
    window: Window,
}

impl Scan<'_> {
    /// Returns the position of the next record.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.at
    }

    /// Returns the next record, or `None` at the tail. If the next position is below the tail and not
    /// resolved, this waits for the writer, and closes the hole if the writer has died or given up.
    ///
    /// # Errors
    /// [`NotYet`](ReadError::NotYet) if the position is not resolved within 30 s because its writer lives and
    /// is slow. The scan may go on after any error.
    pub async fn next(&mut self) -> Result<Option<Record>, ReadError> {
        let lite = &self.log.segments.directory.lite;
        let begun = lite.platform().now();
        let mut waited = Waited { until: begun + self.log.options().hole_time, end: begun + PATIENCE };
        let mut pause = PAUSES.0;
        loop {
            if let Some(found) = self.look().await? {
                return Ok(Some(found));
            }
            let tail = self.log.segments.directory.tail().await?;
            if self.at >= tail {
                return Ok(None);
            }
            // The record may have been written after the bytes of the window were read and before the tail
            // was.
            self.window = Window::default();
            if let Some(found) = self.look().await? {
                return Ok(Some(found));
            }
            waited.go_on(self, &mut pause).await?;
        }
    }

    /// Returns the next record. At the tail this waits for one, and reads the tail again and again, with
    /// pauses of 50 us to 20 ms.
    pub async fn follow(&mut self) -> Result<Record, ReadError> {
        let mut pause = PAUSES.0;
        loop {
            if let Some(found) = self.next().await? {
                return Ok(found);
            }
            while self.at >= self.log.segments.directory.tail().await? {
                self.log.segments.directory.lite.sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Returns the next record if it has been written. Skips fillers.
    async fn look(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            match self.window.look(&self.log.segments, self.at).await {
                Ok(Look::Entries(bytes)) => {
                    let record = record(&self.window, self.at, bytes);
                    self.at = record.next();
                    return Ok(Some(record));
                }
                Ok(Look::Filler) => self.at = Position::from_slot(self.at.slot() + 1),
                Ok(Look::Longer(_) | Look::Nothing) | Err(LogError::Lite(Error::NoSuchName)) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The times of a reader that waits for a position.
struct Waited {
    /// The time at which the reader looks for a hole.
    until: Instant,
    /// The time at which the reader gives up.
    end: Instant,
}

impl Waited {
    /// Sleeps before the next look at the position, or closes the holes if the time for that has come.
    async fn go_on(&mut self, scan: &mut Scan<'_>, pause: &mut Duration) -> Result<(), ReadError> {
        let segments = &scan.log.segments;
        let lite = &segments.directory.lite;
        let now = lite.platform().now();
        if now < self.until {
            lite.sleep(*pause).await;
            *pause = (*pause * 2).min(PAUSES.1);
            return Ok(());
        }
        match segments.close_holes().await {
            Ok(resolved) if scan.at < resolved => {
                // The position is resolved: a filler is there now, or no record begins there.
                scan.window = Window::default();
                let bounds = segments.directory.bounds().await?;
                return match scan.window.look(segments, scan.at).await {
                    _ if scan.at < bounds.head => Err(ReadError::Truncated),
                    Ok(Look::Longer(_) | Look::Nothing) => Err(ReadError::NoRecord),
                    _ => Ok(()),
                };
            }
            // A writer that lives has reserved the position and not written it yet.
            Ok(_) => {}
            Err(LogError::Lite(error @ (Error::LinkDown | Error::NodeDown(_)))) => return Err(error.into()),
            Err(error) => log::debug!("log: holes cannot be closed now: {error}"),
        }
        if lite.platform().now() >= self.end {
            return Err(ReadError::NotYet);
        }
        lite.sleep(scan.log.options().hole_time).await;
        Ok(())
    }
}
