//! Writers: commits by one fetch-add and one write.

use crate::desk::{Desk, Place};
use crate::frame;
use crate::layout::{Contact, Position, TAIL};
use crate::pending::{Pending, Taken};
use crate::segments::Segments;
use crate::service::{self, Stop};
use crate::{AppendError, LogError};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use lite::{Error, LockGuard};

/// The pause of a commit that waits because [`Pending`] has no free entry.
const BUSY: Duration = Duration::from_micros(20);
/// The pause between two attempts of a background task to write a frame.
const AGAIN: Duration = Duration::from_millis(2);
/// The number of attempts of a commit to write its frame. A background task makes further attempts.
const ATTEMPTS: u32 = 2;
/// The bytes of fillers that one operation writes.
const FILL: u64 = 64 << 10;

/// A writer of a log. Commits of several tasks may be in progress at once; clones are the same writer.
///
/// After the last clone has been dropped, the writer ends as soon as all its frames are written.
#[derive(Clone)]
pub struct Writer {
    inner: Arc<Inner>,
}

/// The state of a writer. Each task that writes for it holds this, so its lock is released after all writes.
struct Inner {
    segments: Arc<Segments>,
    pending: Arc<Pending<Desk>>,
    /// The largest tail that this writer has seen.
    seen: AtomicU64,
    stop: Arc<Stop>,
    number: usize,
    /// The lock of this writer's entry. LITE releases a lock only when no operation that this node gave up
    /// while it held the lock can happen any more.
    guard: Option<LockGuard>,
}

/// The outcome of the attempts to write a frame.
enum Written {
    Done,
    /// The frame is not there and never will be.
    Never(Error),
    /// The frame may be there, and no further attempt can succeed.
    Unknown,
    /// The frame may be there, and another attempt may succeed.
    Again,
}

/// A commit in progress. Dropping it ends the commit. If the fetch-add has returned, a background task then
/// writes the frame to the reserved place. Otherwise the place is unknown, and nothing is ever written there.
struct Commit<'a> {
    inner: &'a Arc<Inner>,
    desk: Taken<'a, Desk>,
    /// The reserved place, as long as the frame is not written there.
    at: Option<Position>,
}

impl Drop for Commit<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.at {
            None => self.desk.end(),
            Some(at) => self.finish(at),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.stop();
        let (segments, number, guard) = (self.segments.clone(), self.number, self.guard.take());
        let retire = async move {
            // If this fails, a keeper clears the entry when it has got the lock.
            if let Err(error) = segments.directory.set_writer(number, 0).await {
                log::debug!("log: the entry of writer {number} stays: {error}");
            }
            drop(guard);
        };
        self.segments.directory.lite.platform().spawn("log-retire", Box::pin(retire));
    }
}

impl Writer {
    /// Registers a writer in the table.
    pub(crate) async fn new(segments: &Arc<Segments>) -> Result<Self, LogError> {
        let directory = &segments.directory;
        let (lite, fixed) = (&directory.lite, &directory.fixed);
        let (number, guard) = claim(segments).await?;
        let (function, server) = service::register(lite)?;
        let (pending, stop) = (Arc::new(Pending::new()), Arc::<Stop>::default());
        let inner = Inner {
            segments: segments.clone(),
            pending: pending.clone(),
            seen: AtomicU64::new(0),
            stop: stop.clone(),
            number,
            guard: Some(guard),
        };
        let contact = Contact { node: lite.node_id(), incarnation: lite.incarnation(), function };
        let word = contact.pack().ok_or(LogError::Options("the node's number is too large for a writer"))?;
        let serve = service::serve(server, stop, pending, (fixed.key, number));
        lite.platform().spawn("log-marks", Box::pin(serve));
        // A keeper reads the tail before the table. If it does not see this entry, its tail is older than the
        // entry, and all reservations of this writer are at or above that tail.
        directory.set_writer(number, word).await?;
        inner.seen.store(directory.tail().await?.slot(), Ordering::Relaxed);
        segments.get(fixed.segment_of(inner.tail_seen())).await.map(drop).or_else(|error| match error {
            LogError::Lite(Error::NoSuchName) => Ok(()),
            error => Err(error),
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Appends one entry, and returns its position. See [`commit`](Self::commit).
    pub async fn append(&self, entry: &[u8]) -> Result<Position, AppendError> {
        self.commit(&[entry]).await
    }

    /// Appends entries as one record, all or none, and returns its position. Costs one fetch-add and one
    /// write for a frame of up to 64 KiB, and one more write for each further 64 KiB. If the frame would
    /// cross the end of a segment, fillers go to the reserved place, and the frame to another one.
    ///
    /// A commit that begins after another one has returned gets a larger position. If the future is dropped,
    /// the record may still be appended, but not more than once.
    ///
    /// # Errors
    /// After [`AppendError::Unknown`] the record may be in the log, at that position and nowhere else. After
    /// all other errors it is not in the log, and never will be, so the caller may commit it again.
    pub async fn commit(&self, entries: &[&[u8]]) -> Result<Position, AppendError> {
        let inner = &self.inner;
        let directory = &inner.segments.directory;
        let fixed = &directory.fixed;
        // The wait is rare: its future is boxed, so that the future of a commit stays small.
        let mut commit = match Commit::begin(inner) {
            Some(commit) => commit,
            None => Box::pin(Commit::wait(inner)).await,
        };
        let longest = fixed.options.longest;
        let Some(slots) = commit.desk.encode(entries, longest) else {
            return Err(AppendError::TooLarge { max: longest });
        };
        loop {
            let seen = inner.tail_seen();
            if !commit.desk.has_room(fixed, seen, slots) {
                Box::pin(inner.find_room(seen, slots)).await?;
            }
            commit.desk.begin(seen);
            let reserved = directory.region.fetch_add(TAIL, slots).await;
            let at = Position::from_slot(reserved.map_err(AppendError::NotAppended)?);
            commit.reserved(at, slots);
            if let Some(Place { segment, offset, bytes }) = commit.desk.seal_near(fixed, at, slots) {
                let written = segment.write(offset, bytes).await;
                if written.is_err() {
                    return Box::pin(commit.go_on(at, written)).await;
                }
                commit.at = None;
                inner.look_ahead(at);
                return Ok(at);
            }
            if fixed.has_room(at, slots) {
                return Box::pin(commit.write(at, 1)).await;
            }
            // The frame would cross the end of the segment.
            commit = Box::pin(commit.move_on(at, slots)).await;
        }
    }
}

impl<'a> Commit<'a> {
    /// Begins a commit, unless the largest number of commits is in progress.
    #[inline]
    fn begin(inner: &'a Arc<Inner>) -> Option<Self> {
        inner.pending.take().map(|desk| Self { inner, desk, at: None })
    }

    /// Begins a commit. Waits while the largest number of commits is in progress.
    async fn wait(inner: &'a Arc<Inner>) -> Self {
        loop {
            if let Some(commit) = Self::begin(inner) {
                return commit;
            }
            inner.segments.directory.lite.sleep(BUSY).await;
        }
    }

    /// Notes the reserved place.
    #[inline]
    fn reserved(&mut self, at: Position, slots: u64) {
        self.desk.reserved(at);
        self.inner.saw(Position::from_slot(at.slot() + slots));
        self.at = Some(at);
    }

    /// Keeps a place that crosses the end of its segment, where a background task writes fillers, and passes
    /// the frame to a new commit.
    async fn move_on(mut self, at: Position, slots: u64) -> Self {
        let inner = self.inner;
        let frame = self.desk.take();
        self.desk.fill(&inner.segments.directory.fixed, at, slots);
        drop(self);
        let mut next = Self::wait(inner).await;
        next.desk.put(frame);
        next
    }

    /// Goes on after the first attempt to write the frame has failed.
    async fn go_on(mut self, at: Position, result: Result<(), Error>) -> Result<Position, AppendError> {
        let inner = self.inner;
        let written = match result {
            Ok(()) => Written::Done,
            Err(Error::Unknown | Error::Deadline) => return self.write(at, 2).await,
            Err(error) => {
                self.desk.forget();
                inner.segments.forget(inner.segments.directory.fixed.segment_of(at));
                first(error)
            }
        };
        self.end(at, written)
    }

    /// Writes the frame to its reserved place. `attempt` is the number of the first attempt, from 1 on.
    async fn write(mut self, at: Position, mut attempt: u32) -> Result<Position, AppendError> {
        let inner = self.inner;
        self.desk.seal(&inner.segments.directory.fixed, at);
        loop {
            let written = inner.write(at, &mut self.desk, attempt > 1).await;
            if !matches!(written, Written::Again) || attempt >= ATTEMPTS {
                return self.end(at, written);
            }
            attempt += 1;
        }
    }

    /// Ends the commit after the attempts to write its frame.
    fn end(mut self, at: Position, written: Written) -> Result<Position, AppendError> {
        let result = match written {
            Written::Done => Ok(at),
            Written::Never(Error::NoMemory { .. }) => Err(AppendError::Full),
            Written::Never(error) => Err(AppendError::NotAppended(error)),
            Written::Unknown => Err(AppendError::Unknown(at)),
            // `self.at` is still set, so dropping the commit starts the background task.
            Written::Again => return Err(AppendError::Unknown(at)),
        };
        self.at = None;
        self.inner.look_ahead(at);
        result
    }

    /// Lets a background task write the contents of the desk to the reserved place. The entry stays in use
    /// until then.
    #[cold]
    fn finish(&mut self, at: Position) {
        let (inner, number, mut desk) = (self.inner.clone(), self.desk.number, self.desk.take());
        let platform = inner.segments.directory.lite.platform().clone();
        // If the platform drops this task, the entry stays in use, and the low mark never passes the place.
        let finish = async move {
            while let Written::Again = inner.write(at, &mut desk, true).await {
                inner.segments.directory.lite.sleep(AGAIN).await;
            }
            inner.pending.end(number);
        };
        platform.spawn("log-finish", Box::pin(finish));
    }
}

/// Takes the lock of a free entry of the table.
async fn claim(segments: &Segments) -> Result<(usize, LockGuard), LogError> {
    let directory = &segments.directory;
    let writers = directory.writers().await?;
    // Entries in use come last: their writers may have died, and then their locks can be had.
    let (free, others): (Vec<_>, Vec<_>) =
        writers.iter().enumerate().partition(|(_, contact)| **contact == 0);
    for (number, _) in free.into_iter().chain(others) {
        if let Some(guard) = directory.writer_lock(number).await?.try_lock().await? {
            return Ok((number, guard));
        }
    }
    Err(LogError::TooManyWriters { max: writers.len() })
}

impl Inner {
    fn tail_seen(&self) -> Position {
        Position::from_slot(self.seen.load(Ordering::Relaxed))
    }

    /// Notes a tail. Two tasks may race here and leave the smaller tail, which is only less recent.
    #[inline]
    fn saw(&self, tail: Position) {
        if tail.slot() > self.seen.load(Ordering::Relaxed) {
            self.seen.store(tail.slot(), Ordering::Relaxed);
        }
    }

    /// Makes the segment in which a frame of `slots` slots at `at` would end, unless it exists.
    async fn find_room(&self, at: Position, slots: u64) -> Result<(), AppendError> {
        let end = Position::from_slot(at.slot() + slots);
        if end <= self.segments.known_end() {
            return Ok(());
        }
        let number = self.segments.directory.fixed.segment_of(Position::from_slot(end.slot() - 1));
        self.segments.ensure(number).await.map(drop).or_else(|error| match error {
            LogError::Full => Err(AppendError::Full),
            // The tail that this writer has seen is out of date. The fetch-add returns the present one.
            LogError::Truncated => Ok(()),
            LogError::Lite(error) => Err(AppendError::NotAppended(error)),
            _ => Err(AppendError::NotAppended(Error::Refused("the log is damaged".into()))),
        })
    }

    /// Starts to make the next segment if `at` is in the second half of its segment.
    #[inline]
    fn look_ahead(&self, at: Position) {
        let fixed = &self.segments.directory.fixed;
        if fixed.offset_of(at) >= fixed.options.segment / 2 {
            Segments::make_ahead(&self.segments, fixed.segment_of(at) + 1);
        }
    }

    /// Makes one attempt to write the bytes of a desk at `at`. `unsure` is true if an earlier attempt may
    /// have written them.
    async fn write(&self, at: Position, desk: &mut Desk, unsure: bool) -> Written {
        let fixed = &self.segments.directory.fixed;
        let (mut at, mut rest, mut last) = (at, desk.payload(), None);
        // More than one turn is needed only for fillers, which may cross the end of a segment.
        while !rest.is_empty() {
            let number = fixed.segment_of(at);
            let room = (fixed.options.segment - fixed.offset_of(at)).min(rest.len() as u64);
            let Some((now, later)) = rest.split_at_checked(room as usize) else { return Written::Unknown };
            let segment = match self.segments.ensure(number).await {
                Ok(segment) => segment,
                Err(error) => return refused(error, unsure),
            };
            match segment.write(fixed.offset_of(at), now).await {
                Ok(()) => last = Some((number, segment)),
                Err(Error::Unknown | Error::Deadline) => return Written::Again,
                Err(error) => {
                    self.segments.forget(number);
                    return if unsure { ended(error) } else { first(error) };
                }
            }
            (at, rest) = (Position::from_slot(at.slot() + frame::slots(now.len())), later);
        }
        if let Some((number, segment)) = last {
            desk.remember(fixed, number, segment);
        }
        Written::Done
    }
}

/// Returns the outcome of an attempt that could not get the segment.
fn refused(error: LogError, unsure: bool) -> Written {
    match error {
        LogError::Lite(error @ (Error::NodeDown(_) | Error::LinkDown)) if unsure => ended(error),
        LogError::Lite(error) if unsure => {
            log::debug!("log: a segment cannot be mapped: {error}");
            Written::Again
        }
        // The segment has been truncated, or the capacity of the log does not allow it any more. An earlier
        // attempt may have written the frame before that.
        LogError::Truncated | LogError::Full if unsure => Written::Unknown,
        LogError::Lite(error) => Written::Never(error),
        LogError::Full => Written::Never(Error::NoMemory { asked: FILL, free: 0 }),
        _ => Written::Never(Error::Freed),
    }
}

/// Returns the outcome of a first attempt that failed.
fn first(error: Error) -> Written {
    match error {
        // LITE writes a long frame in chunks, and some of them may have been written.
        Error::LinkDown | Error::NodeDown(_) => Written::Unknown,
        error => Written::Never(error),
    }
}

/// Returns the outcome of an attempt that failed after an earlier attempt whose outcome is unknown.
fn ended(error: Error) -> Written {
    match error {
        Error::Freed | Error::NodeDown(_) | Error::LinkDown | Error::Permission | Error::OutOfBounds => {
            Written::Unknown
        }
        _ => Written::Again,
    }
}
