//! Segments: the regions that hold the frames. They are made and freed under one lock, in the order of their
//! numbers. A freed segment is never used again.

use crate::LogError;
use crate::directory::{Directory, RIGHTS, segment_name};
use crate::layout::{END, FIRST, HEAD, Position};
use crate::planted::{Bug, planted};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lite::{Error, Lmr, NodeId};
use platform::Platform;
use spin::Mutex;

/// The most segments that a handle keeps mapped.
const MAPPED: usize = 64;

/// The segments of a log, as one handle knows them.
pub(crate) struct Segments {
    pub(crate) directory: Directory,
    /// The mapped segments, with the most recently used one at the end.
    mapped: Mutex<Vec<(u64, Arc<Lmr>)>>,
    /// The number of the segment after the last one that is known to exist.
    end: AtomicU64,
    /// True while a task of this handle makes the next segment.
    making: AtomicBool,
}

/// A region that becomes a segment. Dropping this frees the region.
pub(crate) struct Forming(Option<(Lmr, Arc<dyn Platform>)>);

impl Forming {
    pub(crate) fn new(region: Lmr, platform: Arc<dyn Platform>) -> Self {
        Self(Some((region, platform)))
    }

    pub(crate) fn region(&self) -> Result<&Lmr, Error> {
        self.0.as_ref().map(|(region, _)| region).ok_or(Error::Freed)
    }

    /// Returns the region, which is not freed by dropping from now on.
    pub(crate) fn keep(mut self) -> Result<Lmr, Error> {
        self.0.take().map(|(region, _)| region).ok_or(Error::Freed)
    }
}

impl Drop for Forming {
    fn drop(&mut self) {
        if let Some((region, platform)) = self.0.take() {
            let free = async move {
                if let Err(error) = region.free().await {
                    log::debug!("log: freeing a region that was not published: {error}");
                }
            };
            platform.spawn("log-free", Box::pin(free));
        }
    }
}

impl Segments {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory, mapped: Mutex::default(), end: AtomicU64::new(0), making: AtomicBool::new(false) }
    }

    /// Returns the first position for which no segment is known to exist.
    pub(crate) fn known_end(&self) -> Position {
        self.directory.fixed.start_of(self.end.load(Ordering::Relaxed))
    }

    fn note_end(&self, end: u64) {
        self.end.fetch_max(end, Ordering::Relaxed);
    }

    fn cached(&self, number: u64) -> Option<Arc<Lmr>> {
        let mapped = self.mapped.lock();
        mapped.iter().rev().find(|(n, _)| *n == number).map(|(_, region)| region.clone())
    }

    fn cache(&self, number: u64, region: Lmr) -> Arc<Lmr> {
        let region = Arc::new(region);
        let mut mapped = self.mapped.lock();
        mapped.retain(|(n, _)| *n != number);
        let dropped = (mapped.len() >= MAPPED).then(|| mapped.remove(0));
        mapped.push((number, region.clone()));
        drop(mapped);
        drop(dropped);
        region
    }

    /// Notes a segment that this handle has made.
    pub(crate) fn adopt(&self, number: u64, region: Lmr) {
        self.note_end(number + 1);
        self.cache(number, region);
    }

    /// Drops the handle of a segment that has been freed or is out of reach.
    pub(crate) fn forget(&self, number: u64) {
        let old: Vec<_> = self.mapped.lock().extract_if(.., |(n, _)| *n == number).collect();
        drop(old);
    }

    /// Returns a segment that exists. Fails with `NoSuchName` if it has not been made yet.
    pub(crate) async fn get(&self, number: u64) -> Result<Arc<Lmr>, LogError> {
        if let Some(region) = self.cached(number) {
            return Ok(region);
        }
        let directory = &self.directory;
        let bounds = directory.bounds().await?;
        self.note_end(bounds.end);
        if number < bounds.first {
            return Err(LogError::Truncated);
        }
        if number >= bounds.end {
            return Err(Error::NoSuchName.into());
        }
        self.map(number).await
    }

    async fn map(&self, number: u64) -> Result<Arc<Lmr>, LogError> {
        let directory = &self.directory;
        match directory.lite.map(&segment_name(&directory.name, number), RIGHTS).await {
            Ok(region) => Ok(self.cache(number, region)),
            // The segment has been truncated since the bounds were read, or has ended with its home.
            Err(Error::NoSuchName | Error::Freed) => {
                let first = directory.bounds().await?.first;
                if number < first {
                    return Err(LogError::Truncated);
                }
                Err(Error::NodeDown(directory.fixed.home_of(number)).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a segment. If it does not exist, this makes it and all segments before it.
    pub(crate) async fn ensure(&self, number: u64) -> Result<Arc<Lmr>, LogError> {
        match self.get(number).await {
            Err(LogError::Lite(Error::NoSuchName)) => {}
            other => return other,
        }
        let directory = &self.directory;
        let guard = directory.segment_lock().await?.lock().await?;
        let bounds = directory.bounds().await?;
        if number < bounds.first {
            return Err(LogError::Truncated);
        }
        if number >= bounds.first + directory.fixed.most_segments() {
            return Err(LogError::Full);
        }
        for next in bounds.end..=number {
            let region = self.make(next, bounds.first).await?;
            // The segment must not be freed from here on, even if this task ends in the write below: that
            // write may still happen, but not after the lock has passed on.
            let region = region.keep()?;
            directory.set(END, next + 1).await?;
            self.adopt(next, region);
        }
        drop(guard);
        match self.cached(number) {
            Some(region) => Ok(region),
            None => self.map(number).await,
        }
    }

    /// Makes a segment and publishes it. `first` is the first segment that exists. The caller holds the lock.
    pub(crate) async fn make(&self, number: u64, first: u64) -> Result<Forming, LogError> {
        let Directory { lite, name, fixed, .. } = &self.directory;
        let name = segment_name(name, number);
        if planted(Bug::SegmentReused)
            && let Some(old) = (first.saturating_sub(4)..first).find_map(|old| self.cached(old))
        {
            old.publish(&name).await?;
            return Ok(Forming::new((*old).clone(), lite.platform().clone()));
        }
        let home = fixed.home_of(number);
        let region = match lite.alloc(home, fixed.options.segment, RIGHTS).await {
            Err(Error::NoMemory { .. }) => return Err(LogError::Full),
            other => other?,
        };
        let forming = Forming::new(region, lite.platform().clone());
        publish(lite, forming.region()?, home, &name).await?;
        Ok(forming)
    }

    /// Starts a task that makes a segment, unless such a task of this handle runs already.
    pub(crate) fn make_ahead(this: &Arc<Self>, number: u64) {
        if number < this.end.load(Ordering::Relaxed) || this.making.swap(true, Ordering::AcqRel) {
            return;
        }
        let segments = this.clone();
        let make = async move {
            if let Err(error) = segments.ensure(number).await {
                log::debug!("log: segment {number} is not made yet: {error}");
            }
            segments.making.store(false, Ordering::Release);
        };
        this.directory.lite.platform().spawn("log-segment", Box::pin(make));
    }

    /// Truncates the log: frees all segments below `before`.
    pub(crate) async fn truncate(&self, before: Position) -> Result<(), LogError> {
        let directory = &self.directory;
        let guard = directory.segment_lock().await?.lock().await?;
        let bounds = directory.bounds().await?;
        if before > directory.tail().await? {
            return Err(LogError::BeyondTail);
        }
        if before > bounds.head {
            directory.set(HEAD, before.slot()).await?;
        }
        let first = directory.fixed.segment_of(before.max(bounds.head)).min(bounds.end);
        for number in bounds.first..first {
            self.free(number).await?;
            directory.set(FIRST, number + 1).await?;
        }
        drop(guard);
        Ok(())
    }

    /// Frees a segment. The caller holds the lock. After `Ok` the segment does not exist. After an error it
    /// may exist, and the directory must still name it: LITE of this node repeats the free, but may end
    /// before its home has heard of that.
    pub(crate) async fn free(&self, number: u64) -> Result<(), LogError> {
        if planted(Bug::SegmentReused) {
            return Ok(());
        }
        self.forget(number);
        self.directory.free(&segment_name(&self.directory.name, number)).await
    }
}

/// Hands a new region over to its home, so that it outlives this node, and publishes it.
pub(crate) async fn publish(lite: &lite::Lite, region: &Lmr, home: NodeId, name: &str) -> Result<(), Error> {
    if home != lite.node_id() {
        region.hand_over(home).await?;
    }
    match region.publish(name).await {
        // A node has published a region under this name and died before it entered the region in the
        // directory, so nobody uses that region. It makes room for this one.
        Err(Error::NameTaken) => {
            match lite.map(name, RIGHTS).await {
                Ok(old) => match old.free().await {
                    Ok(()) | Err(Error::Freed) => {}
                    Err(error) => return Err(error),
                },
                Err(Error::NoSuchName | Error::Freed | Error::NodeDown(_)) => {}
                Err(error) => return Err(error),
            }
            region.publish(name).await
        }
        other => other,
    }
}
